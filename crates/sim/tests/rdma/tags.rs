//! Steering tags that the simulated RDMA programs make, change and invalidate: windows, fast
//! registrations, regions.

use sprat_proto::rdma::mr::WindowKind;
use sprat_proto::rdma::{Access, Completed, PostError, SendOp, Stag};
use sprat_proto::wire::rdmap::Cause;

use super::memory::Use;
use super::post::Draft;
use super::posted::{Message, PUBLIC, SIZES, TagChange, TagKind, TagState, Wrong};
use super::world::World;

impl World {
    /// Returns true if requests that use the steering tag are in progress.
    pub(crate) fn is_busy(&self, t: usize) -> bool {
        let node = self.tags[t].node;
        let claimed =
            self.nodes[node].areas.iter().any(|a| a.claims.iter().any(|c| c.tag == Some(t)));
        // Requests in flight may still be received although no request waits for a response.
        let used = |m: &Message| m.uses == Some(t);
        claimed
            || self
                .links
                .iter()
                .flat_map(|l| &l.sides)
                .any(|s| s.owed.iter().chain(&s.messages).any(used))
    }

    /// Drafts a request that binds, registers or invalidates a steering tag of this side.
    pub(crate) fn own_tag(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        let node = self.links[link].sides[side].node;
        let fits: Vec<usize> = (0..self.tags.len())
            .filter(|&t| {
                let tag = &self.tags[t];
                let ours = tag.only == Some((link, side))
                    || tag.node == node && tag.kind == TagKind::Window(WindowKind::Domain);
                ours && matches!(tag.state, TagState::Free | TagState::Live)
            })
            .collect();
        if fits.is_empty() {
            return None;
        }
        let t = fits[self.below(fits.len())];
        if self.tags[t].state == TagState::Live {
            return self.take_back(t, id);
        }
        let region = self.tags.iter().position(|t| t.node == node)?;
        let (base, stag) = (self.tags[region].base, self.tags[region].stag);
        let offset = self.below(SIZES[PUBLIC] - 100);
        let len = 1 + self.below(SIZES[PUBLIC] - offset);
        let access = Access {
            local_write: true,
            remote_write: self.half(),
            remote_read: self.half(),
            remote_atomic: false,
            bind: false,
        };
        let start = self.rng.u64() >> 8;
        let tag = &mut self.tags[t];
        tag.before = tag.stag;
        tag.stag = Stag(tag.stag.0 & !0xff | (tag.stag.0.wrapping_add(1) & 0xff));
        (tag.offset, tag.len, tag.access, tag.state) = (offset, len, access, TagState::Changing);
        let (op, completed) = if tag.kind == TagKind::Fast {
            tag.base = start;
            let (offset, len) = (offset as u64, len as u64);
            let op = SendOp::FastRegister {
                stag: tag.stag,
                region: PUBLIC as u64,
                offset,
                base: start,
                len,
                access,
            };
            (op, Completed::FastRegister)
        } else {
            tag.base = base + offset as u64;
            let (window, addr, len) = (tag.stag, tag.base, len as u64);
            (SendOp::Bind { window, region: stag, addr, len, access }, Completed::Bind)
        };
        let mut draft = Draft::new(id, op, completed);
        draft.work.change = Some(TagChange::Live(t));
        Some(draft)
    }

    /// Drafts a request that invalidates a steering tag which no request uses now.
    fn take_back(&mut self, t: usize, id: u64) -> Option<Draft> {
        if self.is_busy(t) {
            return None;
        }
        self.tags[t].state = TagState::Changing;
        let (stag, kind) = (self.tags[t].stag, self.tags[t].kind);
        let mut draft = if kind == TagKind::Window(WindowKind::Domain) {
            let region = Stag(0);
            let access = self.tags[t].access;
            let op = SendOp::Bind { window: stag, region, addr: 0, len: 0, access };
            Draft::new(id, op, Completed::Bind)
        } else {
            Draft::new(id, SendOp::Invalidate(stag), Completed::Invalidate)
        };
        draft.work.change = Some(TagChange::Free(t));
        Some(draft)
    }

    /// Deregisters a memory region that peers may be using.
    pub(crate) fn revoke(&mut self) {
        let it = self.below(self.tags.len());
        let tag = &self.tags[it];
        let first = self.tags.iter().position(|t| t.node == tag.node) == Some(it);
        let plain =
            tag.kind == TagKind::Region && tag.area == PUBLIC && tag.state == TagState::Live;
        let node = &mut self.nodes[tag.node];
        if first || !plain || node.dead || tag.pd != node.pds[0] {
            return;
        }
        let area = &mut node.areas[PUBLIC];
        let mut keys = Vec::new();
        for claim in
            area.claims.iter().filter(|c| c.tag == Some(it) && matches!(c.what, Use::Sink(_)))
        {
            let range = &claim.range;
            let over = area.claims.iter().any(|c| {
                c.key != claim.key && c.range.start < range.end && range.start < c.range.end
            });
            if over {
                return;
            }
            keys.push(claim.key);
        }
        node.rnic.deregister(tag.stag).unwrap();
        assert_eq!(node.rnic.deregister(tag.stag), Err(PostError::Invalid));
        for &key in &keys {
            area.adopt(key, &[], &node.ram.arrays[PUBLIC]);
        }
        self.tags[it].state = TagState::Lost;
        for side in self.links.iter_mut().flat_map(|l| &mut l.sides) {
            for message in &mut side.messages {
                if message.claim.is_some_and(|key| keys.contains(&key)) {
                    message.claim = None;
                    let wrong = Wrong { cause: Cause::TAGGED_STAG, certain: false };
                    message.wrong.get_or_insert(wrong);
                    if let Some(work) = side.works.iter_mut().find(|w| w.id == message.id) {
                        work.refused.get_or_insert(wrong);
                    }
                }
            }
            let wrong = Wrong { cause: Cause::INVALID_STAG, certain: false };
            for message in
                side.owed.iter_mut().chain(&mut side.messages).filter(|m| m.uses == Some(it))
            {
                message.wrong.get_or_insert(wrong);
            }
            for work in side.works.iter_mut().filter(|w| w.uses == Some(it)) {
                work.refused.get_or_insert(wrong);
            }
        }
    }
}
