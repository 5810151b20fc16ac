//! Checks of a simulated RDMA world that is quiet, and of one whose connections have all ended.

use sprat_proto::rdma::Qp;

use super::memory::number;
use super::posted::{Body, COMMON_WORDS, OWN, PUBLIC, SIZES, WORDS};
use super::world::World;

impl World {
    /// Checks a quiet RDMA world: each request has completed, or its connection has ended on both
    /// sides.
    pub(crate) fn at_rest(&mut self) {
        for link in 0..self.links.len() {
            let it = &self.links[link];
            let dead = |s: usize| self.nodes[it.sides[s].node].dead;
            let over = [0, 1].map(|s| it.sides[s].over);
            let shut = [0, 1].map(|s| it.sides[s].closed.is_some());
            if over != [false; 2] {
                let stuck = it.damaged || it.ending;
                assert!(
                    stuck || over == [true; 2] && shut == [true; 2],
                    "{over:?} {shut:?} {}",
                    it.cut
                );
                continue;
            }
            if dead(0) || dead(1) || it.cut || it.damaged || it.ending {
                continue;
            }
            for side in 0..2 {
                let works = std::mem::take(&mut self.links[link].sides[side].works);
                for work in works {
                    assert!(!work.signaled, "{work:?} never completes");
                    self.work_done(link, side, work);
                }
                let peer = self.links[link].sides[1 - side].node;
                for message in std::mem::take(&mut self.links[link].sides[side].messages) {
                    assert!(
                        !matches!(message.body, Body::Send { .. }),
                        "{message:?} was not delivered"
                    );
                    self.settle_write(peer, &message);
                }
            }
        }
        self.check();
    }

    /// Checks that the memory of all simulated machines has the expected bytes.
    pub(crate) fn check(&self) {
        for node in self.nodes.iter().filter(|n| !n.dead) {
            for area in [OWN, PUBLIC] {
                node.areas[area].check(0..SIZES[area], &node.ram.arrays[area]);
            }
        }
    }

    /// Checks that every simulated RDMA connection has ended.
    pub(crate) fn at_end(&mut self) {
        for (it, link) in self.links.iter().enumerate() {
            for side in link.sides.iter().filter(|s| !self.nodes[s.node].dead) {
                assert!(side.over && side.closed.is_some(), "link {it} has no end");
                assert!(side.works.iter().all(|w| !w.signaled), "{:?} never completes", side.works);
            }
        }
        for node in self.nodes.iter_mut().filter(|n| !n.dead) {
            for receive in std::mem::take(&mut node.shared) {
                for (key, _) in receive.list {
                    node.areas[OWN].adopt(key, &[], &node.ram.arrays[OWN]);
                }
            }
        }
        self.check();
        for node in self.nodes.iter().filter(|n| !n.dead) {
            for area in &node.areas {
                assert!(area.claims.is_empty(), "{} bytes are still in use", area.claims.len());
            }
            for (slot, (value, chain)) in node.words.iter().enumerate().skip(COMMON_WORDS) {
                assert!(chain.is_empty());
                assert_eq!(number(&node.ram.arrays[WORDS][8 * slot..][..8]), *value, "word {slot}");
            }
            for (slot, (done, maybe, told)) in node.counts.iter().enumerate() {
                let count = number(&node.ram.arrays[WORDS][8 * slot..][..8]);
                assert!(*done <= count && count <= done + maybe, "{done} + {maybe}: {count}");
                assert!(told.last().is_none_or(|&last| last < count), "{told:?} of {count}");
            }
        }
        self.take_down();
    }

    /// Destroys all RDMA objects of all machines, which shows that no reference to them is left.
    fn take_down(&mut self) {
        let sides = self.links.iter().flat_map(|l| &l.sides);
        let pairs: Vec<(usize, Qp)> = sides.map(|s| (s.node, s.qp)).collect();
        for (at, qp) in pairs {
            // Queue pairs that never connected were destroyed before.
            let _ = self.nodes[at].rnic.destroy_qp(qp);
        }
        for tag in self.tags.iter().rev() {
            let rnic = &mut self.nodes[tag.node].rnic;
            // A flushed request may or may not have changed the key.
            for stag in [tag.stag, tag.before] {
                let _ = rnic.dealloc_window(stag).or_else(|_| rnic.deregister(stag));
            }
        }
        for node in self.nodes.iter_mut().filter(|n| !n.dead) {
            for (stag, _) in node.own {
                node.rnic.deregister(stag).unwrap();
            }
            for &cq in &node.cqs {
                node.rnic.destroy_cq(cq).unwrap();
            }
            node.rnic.destroy_srq(node.srq).unwrap();
            for pd in node.pds {
                node.rnic.dealloc_pd(pd).unwrap();
            }
        }
    }
}
