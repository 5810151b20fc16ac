//! A simulated RDMA world: machines with an engine each, and the streams between them, which delay,
//! damage and end.
//!
//! ```text
//!  output ─► outbox ─ sent ─► wire ─ any number of bytes at any time ─► inbox ─► input
//! ```
//!
//! One world object has the state of all programs, so that they need not exchange tags.

use std::collections::{BTreeSet, VecDeque};

use sprat_proto::rdma::mr::WindowKind;
use sprat_proto::rdma::{
    AcceptOptions, Access, Conn, ConnectOptions, Cq, Pd, Qp, QpOptions, Rnic, RnicOptions, Srq,
    Stag, Status,
};
use sprat_proto::time::{MS, SECOND};
use sprat_proto::wire::checksum::{Crc32c, crc32c};
use sprat_proto::wire::mpa::RtrKind;
use sprat_proto::wire::rdmap::Cause;
use sprat_proto::{Instant, Rng};

use super::memory::{Area, Bug, Ram};
use super::posted::{
    COMMON_WORDS, Message, NONE, OWN, PUBLIC, Receive, SIZES, Tag, TagKind, TagState, WORDS, Work,
};

/// A simulated machine with an RDMA engine.
pub(crate) struct Node {
    pub(crate) rnic: Rnic,
    pub(crate) ram: Ram,
    pub(crate) areas: Vec<Area>,
    pub(crate) pds: [Pd; 2],
    pub(crate) cqs: Vec<Cq>,
    pub(crate) armed: Vec<Option<bool>>,
    pub(crate) srq: Srq,
    /// The receives in the machine's shared queue, oldest first, and the number of them that no
    /// message needs.
    pub(crate) shared: VecDeque<Receive>,
    pub(crate) credit: usize,
    /// The steering tags of the area [`OWN`] and their base addresses, with and without the right
    /// to write.
    pub(crate) own: [(Stag, u64); 2],
    /// The values of the machine's private words: the certain one, and the one after each posted
    /// atomic.
    pub(crate) words: Vec<(u64, VecDeque<u64>)>,
    /// Of each common word: the number of atomics that happened, the number that may have happened,
    /// and the values returned.
    pub(crate) counts: Vec<(u64, u64, BTreeSet<u64>)>,
    pub(crate) ready: Vec<Conn>,
    pub(crate) dead: bool,
    /// True if the machine requests CRC in MPA.
    pub(crate) crc: bool,
    /// True if the machine acknowledges placed Writes.
    pub(crate) acknowledges: bool,
}

/// One end of a simulated stream.
pub(crate) struct Side {
    pub(crate) node: usize,
    pub(crate) qp: Qp,
    pub(crate) conn: Option<Conn>,
    pub(crate) shares: bool,
    pub(crate) signal_all: bool,
    /// Bytes that this end's engine emitted, and the stream has not accepted yet.
    pub(crate) outbox: VecDeque<u8>,
    /// Bytes in flight to this end's peer.
    pub(crate) wire: VecDeque<u8>,
    /// Bytes that this end received, and its engine has not consumed yet.
    pub(crate) inbox: Vec<u8>,
    /// The way in which this end closed the stream, if it did.
    pub(crate) closed: Option<bool>,
    pub(crate) told: bool,
    pub(crate) established: bool,
    /// True if the connection of this end's queue pair has ended or was never made.
    pub(crate) over: bool,
    pub(crate) failed: Option<(Cause, bool)>,
    pub(crate) disconnected: bool,
    /// True if a completion of this end's queue was an error or a flush: of its send queue, of its
    /// receive queue.
    pub(crate) flushing: [bool; 2],
    pub(crate) works: VecDeque<Work>,
    pub(crate) messages: VecDeque<Message>,
    /// The Reads and atomics of this end that the peer may not have answered.
    pub(crate) owed: Vec<Message>,
    pub(crate) receives: VecDeque<Receive>,
    /// The bytes of each posted receive that no message of the peer needs yet, oldest first.
    pub(crate) rooms: VecDeque<usize>,
    /// The number of the peer's messages that precede their receives.
    pub(crate) late: usize,
    /// The number of the last shared receive that this end consumed.
    pub(crate) last_shared: u64,
    /// The Read depths of this end: inbound and outbound.
    pub(crate) depths: (u16, u16),
    /// A request that must fail was posted, so this end posts no further ones.
    pub(crate) doomed: bool,
    /// The length in bytes of the last Write, or 0 if a Send came after it.
    pub(crate) last_write: u32,
    /// This end posts no more receives.
    pub(crate) closed_to_receives: bool,
    /// The number of this end's receives that were flushed.
    pub(crate) flushed: usize,
    /// The failures of this end's requests that are not flushes.
    pub(crate) blamed: Vec<Status>,
}

/// A simulated stream and its two ends. The first end is the initiator.
pub(crate) struct Link {
    pub(crate) sides: [Side; 2],
    pub(crate) connect: ConnectOptions,
    pub(crate) accept: AcceptOptions,
    pub(crate) refuse: bool,
    /// The stream was broken, so bytes may be lost.
    pub(crate) cut: bool,
    /// Bytes of the stream were damaged.
    pub(crate) damaged: bool,
    /// An end of the stream was disconnected or destroyed.
    pub(crate) ending: bool,
    pub(crate) crc: bool,
}

impl Link {
    /// Returns true if a Write completes only once it is placed: both machines of the stream
    /// acknowledge Writes.
    pub(crate) fn acknowledges(&self, nodes: &[Node]) -> bool {
        let opens = self.connect.peer_to_peer.is_none_or(|kind| kind == RtrKind::Write);
        // The lost or damaged bytes may be those of the hello.
        opens
            && !self.damaged
            && !self.cut
            && self.sides.iter().all(|side| nodes[side.node].acknowledges)
    }

    /// Returns the time for which a message waits for its receive at one end of the stream, in
    /// nanoseconds; none is without limit.
    pub(crate) fn rnr_timeout_ns(&self, side: usize) -> Option<u64> {
        if side == 0 { self.connect.rnr_timeout_ns } else { self.accept.rnr_timeout_ns }
    }
}

/// The plan of a simulated RDMA world: its size, its faults and its planted bug.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) links: usize,
    pub(crate) steps: usize,
    /// The rates of the world's faults, in parts per million of steps.
    pub(crate) wrong_ppm: u32,
    pub(crate) cut_ppm: u32,
    pub(crate) death_ppm: u32,
    pub(crate) damage_ppm: u32,
    pub(crate) revoke_ppm: u32,
    pub(crate) bug: Bug,
    pub(crate) crc32c: Crc32c,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            nodes: 2,
            links: 2,
            steps: 600,
            wrong_ppm: 0,
            cut_ppm: 0,
            death_ppm: 0,
            damage_ppm: 0,
            revoke_ppm: 0,
            bug: Bug::None,
            crc32c,
        }
    }
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: Instant,
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: Vec<Link>,
    pub(crate) tags: Vec<Tag>,
    pub(crate) last: u64,
    pub(crate) plan: Plan,
    /// The world's results so far: successful completions, failures, bytes delivered.
    pub(crate) seen: Seen,
    pub(crate) calm: bool,
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) good: u64,
    pub(crate) flushed: u64,
    pub(crate) failures: u64,
    pub(crate) bytes: u64,
    pub(crate) established: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, more: Self) {
        self.good += more.good;
        self.flushed += more.flushed;
        self.failures += more.failures;
        self.bytes += more.bytes;
        self.established += more.established;
    }
}

const ALL: Access = Access {
    local_write: true,
    remote_write: true,
    remote_read: true,
    remote_atomic: true,
    bind: true,
};

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let (rng, now) = (Rng::seeded(seed), Instant::from_ns(1_000));
        let (nodes, links, tags) = (Vec::new(), Vec::new(), Vec::new());
        let (last, calm, seen) = (0, false, Seen::default());
        let mut world = Self { rng, now, nodes, links, tags, last, plan, seen, calm };
        for _ in 0..world.plan.nodes {
            world.node();
        }
        for _ in 0..world.plan.links {
            world.link();
        }
        world
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn half(&mut self) -> bool {
        self.rng.chance(500_000)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    /// Returns a random base address for a region of `len` bytes.
    fn base(&mut self, len: usize) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => (u64::MAX - len as u64) & !7,
            2 => 0x1000,
            _ => self.rng.u64() >> 20 << 3,
        }
    }

    fn node(&mut self) {
        let number = self.nodes.len();
        let crc = self.half();
        let config = RnicOptions {
            crc32c: self.plan.crc32c,
            crc,
            markers: self.half(),
            acknowledge_writes: self.rng.chance(700_000),
            start_timeout_ns: SECOND,
            reply_timeout_ns: SECOND,
            close_timeout_ns: SECOND,
            ..RnicOptions::default()
        };
        let acknowledges = config.acknowledge_writes;
        let mut rnic = Rnic::new(config, self.rng.fork());
        let pds = [rnic.alloc_pd().unwrap(), rnic.alloc_pd().unwrap()];
        let cqs: Vec<Cq> = (0..2).map(|_| rnic.create_cq(10_000).unwrap()).collect();
        let srq = rnic.create_srq(pds[0], 1000, 4).unwrap();
        let mut arrays: Vec<Vec<u8>> = SIZES.iter().map(|&len| vec![0; len]).collect();
        arrays.iter_mut().for_each(|array| self.rng.fill(array));
        for word in arrays[WORDS].chunks_exact_mut(8).take(COMMON_WORDS) {
            word.fill(0);
        }
        let (b0, b1) = (self.base(SIZES[OWN]), self.base(SIZES[OWN]));
        let write = Access { local_write: true, ..NONE };
        let len = SIZES[OWN] as u64;
        let own = [
            (rnic.register(pds[0], OWN as u64, b0, len, write).unwrap(), b0),
            (rnic.register(pds[0], OWN as u64, b1, len, NONE).unwrap(), b1),
        ];
        let words = arrays[WORDS]
            .chunks_exact(8)
            .map(|w| (super::memory::number(w), VecDeque::new()))
            .collect();
        let areas = arrays.iter().cloned().map(Area::new).collect();
        let ram = Ram::new(arrays, self.plan.bug);
        let counts = vec![(0, 0, BTreeSet::new()); COMMON_WORDS];
        let armed = vec![None; cqs.len()];
        let (shared, credit, ready, dead) = (VecDeque::new(), 0, Vec::new(), false);
        self.nodes.push(Node {
            rnic,
            ram,
            areas,
            pds,
            cqs,
            armed,
            srq,
            shared,
            credit,
            own,
            words,
            counts,
            ready,
            dead,
            crc,
            acknowledges,
        });
        let read = Access { remote_read: true, ..NONE };
        let put = Access { local_write: true, remote_write: true, ..NONE };
        let count = Access { local_write: true, remote_atomic: true, ..NONE };
        self.region(number, PUBLIC, SIZES[PUBLIC], 0, ALL);
        self.region(number, PUBLIC, SIZES[PUBLIC] / 2, 0, put);
        self.region(number, PUBLIC, SIZES[PUBLIC] - 5, 0, read);
        self.region(number, PUBLIC, SIZES[PUBLIC], 0, ALL);
        self.region(number, PUBLIC, SIZES[PUBLIC], 1, ALL);
        self.region(number, WORDS, SIZES[WORDS], 0, count);
    }

    fn region(&mut self, node: usize, area: usize, len: usize, pd: usize, access: Access) {
        let base = self.base(len);
        let it = &mut self.nodes[node];
        let pd = it.pds[pd];
        let stag = it.rnic.register(pd, area as u64, base, len as u64, access).unwrap();
        let blank = Tag::blank(node, stag, pd, TagKind::Region);
        self.tags.push(Tag { area, base, len, access, state: TagState::Live, ..blank });
    }

    fn side(&mut self, node: usize) -> Side {
        let cqs = [self.below(2), self.below(2)];
        let (shares, signal_all) = (self.rng.chance(300_000), self.rng.chance(300_000));
        let it = &mut self.nodes[node];
        let options = QpOptions {
            pd: it.pds[0],
            send_cq: it.cqs[cqs[0]],
            recv_cq: it.cqs[cqs[1]],
            srq: shares.then_some(it.srq),
            send_depth: 40,
            recv_depth: 40,
            max_send_sge: 8,
            max_recv_sge: 8,
            max_inline: 256,
            signal_all,
        };
        let qp = it.rnic.create_qp(options).unwrap();
        Side {
            node,
            qp,
            conn: None,
            shares,
            signal_all,
            outbox: VecDeque::new(),
            wire: VecDeque::new(),
            inbox: Vec::new(),
            closed: None,
            told: false,
            established: false,
            over: false,
            failed: None,
            disconnected: false,
            flushing: [false; 2],
            works: VecDeque::new(),
            messages: VecDeque::new(),
            owed: Vec::new(),
            receives: VecDeque::new(),
            rooms: VecDeque::new(),
            late: 0,
            last_shared: 0,
            depths: (0, 0),
            doomed: false,
            last_write: 0,
            closed_to_receives: false,
            flushed: 0,
            blamed: Vec::new(),
        }
    }

    /// Adds a stream between two live machines of the world, if there are two.
    pub(crate) fn link(&mut self) {
        let alive: Vec<usize> = (0..self.nodes.len()).filter(|&n| !self.nodes[n].dead).collect();
        if alive.len() < 2 {
            return;
        }
        let a = self.below(alive.len());
        let b = (a + 1 + self.below(alive.len() - 1)) % alive.len();
        let mut sides = [self.side(alive[a]), self.side(alive[b])];
        let depth = |rng: &mut Rng| if rng.chance(200_000) { 0 } else { rng.below(10) as u16 };
        let revision = if self.rng.chance(300_000) { 1 } else { 2 };
        let rtr = [RtrKind::Send, RtrKind::Write, RtrKind::Read][self.below(3)];
        let mut connect = ConnectOptions {
            ird: depth(&mut self.rng),
            ord: depth(&mut self.rng),
            private_data: self.private(),
            crc: Some(self.half()),
            markers: Some(self.half()),
            revision: Some(revision),
            peer_to_peer: (revision == 2 && self.half()).then_some(rtr),
            first_fpdu_delay_ns: if self.rng.chance(100_000) { MS } else { 0 },
            open_with_write: self.half(),
            rnr_timeout_ns: self.patience(),
        };
        let mut accept = AcceptOptions {
            ird: depth(&mut self.rng),
            ord: depth(&mut self.rng),
            private_data: self.private(),
            first_fpdu_timeout_ns: None,
            rnr_timeout_ns: self.patience(),
        };
        if revision == 1 {
            // Without negotiation the programs agree on the options.
            (accept.ird, accept.ord) = (connect.ord, connect.ird);
        }
        if self.rng.chance(50_000) {
            connect.private_data = vec![7; 508];
            accept.private_data = vec![8; 508];
        }
        let (now, emss) = (self.now, [self.emss(), self.emss()]);
        let node = &mut self.nodes[sides[0].node];
        let first = node.rnic.connect(now, sides[0].qp, &connect).unwrap();
        node.rnic.set_emss(first, emss[0]);
        let node = &mut self.nodes[sides[1].node];
        let second = node.rnic.incoming(now).unwrap();
        node.rnic.set_emss(second, emss[1]);
        (sides[0].conn, sides[1].conn) = (Some(first), Some(second));
        let refuse = self.rng.chance(30_000);
        let (cut, damaged, ending, crc) = (false, false, false, false);
        let it = self.links.len();
        let nodes = [sides[0].node, sides[1].node];
        self.links.push(Link { sides, connect, accept, refuse, cut, damaged, ending, crc });
        for (side, node) in nodes.into_iter().enumerate() {
            for kind in [TagKind::Window(WindowKind::OneQp), TagKind::Fast] {
                self.blank(node, kind, Some((it, side)));
            }
            if self.half() {
                self.blank(node, TagKind::Window(WindowKind::Domain), None);
            }
        }
    }

    /// Draws the time for which a message waits for its receive, in nanoseconds: none, some, or
    /// unlimited.
    fn patience(&mut self) -> Option<u64> {
        [Some(0), Some(MS), None][self.below(3)]
    }

    fn private(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.below(30) as usize];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn emss(&mut self) -> usize {
        match self.below(5) {
            0 => 100 + self.below(200),
            1 => 1448,
            2 => 8948,
            3 => 65_483,
            _ => 500 + self.below(3000),
        }
    }

    /// Adds an unbound steering tag to the world.
    fn blank(&mut self, node: usize, kind: TagKind, only: Option<(usize, usize)>) {
        let it = &mut self.nodes[node];
        let pd = it.pds[0];
        let stag = match kind {
            TagKind::Window(window) => it.rnic.alloc_window(pd, window),
            _ => it.rnic.alloc_fast(pd),
        }
        .unwrap();
        self.tags.push(Tag { only, ..Tag::blank(node, stag, pd, kind) });
    }

    /// Returns the stream of a machine's connection, as the indexes of its link and side.
    pub(crate) fn find(&self, node: usize, conn: Conn) -> Option<(usize, usize)> {
        let is = |s: &Side| s.node == node && s.conn == Some(conn) && s.closed.is_none();
        (0..self.links.len())
            .flat_map(|l| [(l, 0), (l, 1)])
            .find(|&(l, s)| is(&self.links[l].sides[s]))
    }

    pub(crate) fn find_qp(&self, node: usize, qp: Qp) -> Option<(usize, usize)> {
        let is = |s: &Side| s.node == node && s.qp == qp;
        (0..self.links.len())
            .flat_map(|l| [(l, 0), (l, 1)])
            .find(|&(l, s)| is(&self.links[l].sides[s]))
    }
}
