//! Two hostile peers, and one engine whose program makes random calls: nothing panics, nothing is
//! placed outside of the open memory, every request completes at most once and in order, and every
//! stream ends once.

use super::*;
use crate::rdma::iwarp::framer::{Framer, Piece};
use crate::wire::checksum::crc32c;
use crate::wire::ddp::{Buffer, Header};
use crate::wire::rdmap::{AtomicOp, AtomicRequest, AtomicResponse, ReadRequest};
use crate::wire::write_ack::WriteAck;

/// The length in bytes of the memory region that peers may touch. Another region of this length
/// must stay untouched.
const OPEN: usize = 512;
const BASE: u64 = 0x1000;

struct World {
    us: Side,
    peers: [Option<(Conn, Qp, Vec<u8>)>; 2],
    framer: Framer,
    open: Stag,
    now: Instant,
    rng: Rng,
    next: u64,
    /// The posted `id`s of each queue pair: those of its send queue, then those of its receive
    /// queue.
    posted: Vec<(Qp, VecDeque<u64>, VecDeque<u64>)>,
    closed: Vec<Conn>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::seeded(seed);
        let crc = rng.chance(500_000);
        let mut us = Side::new(RnicOptions { crc, ..RnicOptions::default() }, seed);
        let open = us.region(vec![0x55; OPEN], BASE);
        us.region_with(vec![0xaa; OPEN], 0, Access { local_write: true, ..Access::default() });
        let framer = Framer::new(crc.then_some(crc32c), false);
        let now = Instant::from_ns(1);
        let (posted, closed) = (Vec::new(), Vec::new());
        Self { us, peers: [None, None], framer, open, now, rng, next: 0, posted, closed }
    }

    fn tag(&mut self) -> u32 {
        match self.rng.below(4) {
            0 => self.rng.u32(),
            1 => self.open.0 ^ 1 << self.rng.below(32),
            _ => self.open.0,
        }
    }

    fn address(&mut self) -> u64 {
        match self.rng.below(6) {
            0 => u64::MAX - self.rng.below(64),
            1 => BASE.wrapping_sub(self.rng.below(8)),
            _ => BASE + self.rng.below(OPEN as u64 + 8),
        }
    }

    fn small(&mut self) -> u32 {
        match self.rng.below(8) {
            0 => self.rng.u32(),
            _ => self.rng.below(6) as u32,
        }
    }

    /// A random acknowledgement of Writes, right or wrong.
    fn acknowledgement(&mut self) -> Vec<u8> {
        let (hello, asks) = (self.rng.chance(500_000), self.rng.chance(500_000));
        let count = u64::from(self.small());
        self.says(WriteAck { hello, ack_request: asks, count })
    }

    fn says(&self, said: WriteAck) -> Vec<u8> {
        let mut record = Record::default();
        let header = said.header().emit();
        self.framer.clone().frame(&header, &[], &mut Ram::default(), &mut record).unwrap();
        record.bytes
    }

    /// A random segment that is mostly right and sometimes wrong.
    fn segment(&mut self) -> Vec<u8> {
        if self.rng.chance(30_000) {
            return self.acknowledgement();
        }
        let all = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 3, 0, 1, 10];
        let op = if self.rng.chance(3000) { 7 } else { all[self.rng.below(15) as usize] };
        let (stag, to) = (self.tag(), self.address());
        let buffer = match op {
            0 | 2 => Buffer::Tagged { stag, to },
            1 | 10 => Buffer::Untagged { ulp: 0, qn: 1, msn: self.small(), mo: 0 },
            11 => Buffer::Untagged { ulp: 0, qn: 3, msn: self.small(), mo: 0 },
            7 => Buffer::Untagged { ulp: 0, qn: 2, msn: 1, mo: 0 },
            _ => Buffer::Untagged { ulp: stag, qn: 0, msn: self.small(), mo: self.small() },
        };
        let header = Header { last: self.rng.chance(800_000), control: 0x40 | op, buffer };
        let size = self.small();
        let payload = match op {
            1 => {
                let (sink_stag, source_stag) = (self.rng.u32(), stag);
                ReadRequest { sink_stag, sink_to: to, size, source_stag, source_to: to }
                    .emit()
                    .to_vec()
            }
            10 => {
                let op = AtomicOp::FetchAdd { add: self.rng.u64(), mask: 0 };
                AtomicRequest { id: size, stag, to: to & !7, op }.emit().to_vec()
            }
            11 => AtomicResponse { id: size, was: self.rng.u64() }.emit().to_vec(),
            _ => {
                let mut payload = vec![0; self.rng.below(40) as usize];
                self.rng.fill(&mut payload);
                payload
            }
        };
        let mut record = Record::default();
        let mut framer = self.framer.clone();
        framer
            .frame(&header.emit(), &[Piece::Bytes(&payload)], &mut Ram::default(), &mut record)
            .unwrap();
        let mut bytes = record.bytes;
        if self.rng.chance(30_000) {
            let at = self.rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.rng.below(8);
        }
        bytes
    }

    /// Connects the hostile peer `which`.
    fn connect(&mut self, which: usize) {
        let conn = self.us.rnic.incoming(self.now).unwrap();
        let (pd, cq) = (self.us.pd, self.us.cq);
        let qp = self
            .us
            .rnic
            .create_qp(QpOptions { recv_depth: 8, send_depth: 8, ..qp_options(pd, cq) })
            .unwrap();
        let bytes = b"MPA ID Req Frame\x00\x01\x00\x00";
        assert_eq!(self.us.rnic.input(self.now, conn, bytes, &mut self.us.ram), bytes.len());
        let rnr_timeout_ns = [None, Some(0), Some(1_000_000_000)][self.rng.below(3) as usize];
        let options = AcceptOptions { ird: 2, ord: 2, rnr_timeout_ns, ..AcceptOptions::default() };
        self.us.rnic.accept(self.now, conn, qp, &options).unwrap();
        // One peer sends a hello, so the engine sends it requests and acknowledgements.
        let inbox = if which == 0 {
            self.says(WriteAck { hello: true, ..WriteAck::default() })
        } else {
            Vec::new()
        };
        self.peers[which] = Some((conn, qp, inbox));
        self.posted.push((qp, VecDeque::new(), VecDeque::new()));
    }

    fn say(&mut self, which: usize) {
        let bytes = self.segment();
        let Some((conn, _, inbox)) = &mut self.peers[which] else { return };
        inbox.extend(bytes);
        let most = 1 + self.rng.below(inbox.len() as u64) as usize;
        let used = self.us.rnic.input(self.now, *conn, &inbox[..most], &mut self.us.ram);
        assert!(used <= most);
        inbox.drain(..used);
        let conn = *conn;
        if let Some(span) = self.us.rnic.direct_span(conn) {
            assert!(span.len > 0 && span.offset as usize + span.len as usize <= OPEN);
            if let Some((_, _, inbox)) = &mut self.peers[which]
                && !inbox.is_empty()
                && used == most
            {
                let len = (span.len as usize).min(inbox.len());
                let bytes: Vec<u8> = inbox.drain(..len).collect();
                self.us.ram.write(Span { len: len as u32, ..span }, &bytes).unwrap();
                self.us.rnic.placed_directly(self.now, conn, len as u32, &mut self.us.ram);
            }
        }
    }

    fn post(&mut self, which: usize) {
        let Some((_, qp, _)) = self.peers[which] else { return };
        let (id, stag) = (self.next, self.open);
        self.next += 1;
        let len = self.rng.below(40) as u32;
        let list = sges(&[(stag, BASE + self.rng.below(OPEN as u64 - 8), len)]);
        let remote = Remote { stag: Stag(self.rng.u32()), addr: self.rng.u64() };
        let Some(entry) = self.posted.iter_mut().find(|(owner, ..)| *owner == qp) else { return };
        if self.rng.chance(500_000) {
            if self.us.rnic.post_recv(qp, RecvRequest { id, list }).is_ok() {
                entry.2.push_back(id);
            }
            return;
        }
        let op = match self.rng.below(5) {
            0 => SendOp::Write(remote),
            1 => SendOp::Read(remote),
            2 => SendOp::WriteImmediate(remote, 5),
            3 => SendOp::FetchAdd { to: remote, add: 1, mask: 0 },
            _ => SendOp::Send,
        };
        let request = SendRequest { id, op, data: Data::Gather(list), flags: SendFlags::default() };
        if self.us.rnic.post_send(qp, request).is_ok() {
            entry.1.push_back(id);
        }
    }

    /// Checks the engine's events and completions so far.
    fn check(&mut self) {
        while let Some(conn) = self.us.rnic.ready() {
            let mut record = Record::default();
            while self.us.rnic.output(self.now, conn, &mut record, &mut self.us.ram) {}
            let len = record.len();
            let taken = if self.rng.chance(100_000) {
                self.rng.below(len as u64 + 1) as usize
            } else {
                len
            };
            self.us.rnic.sent(conn, taken);
        }
        while let Some(event) = self.us.rnic.event() {
            if let Event::Close { conn, .. } = event {
                assert!(!self.closed.contains(&conn), "one end for each stream");
                self.closed.push(conn);
                for peer in &mut self.peers {
                    if peer.as_ref().is_some_and(|(c, ..)| *c == conn) {
                        *peer = None;
                    }
                }
            }
        }
        while let Some(done) = self.us.poll() {
            let Some(entry) = self.posted.iter_mut().find(|(owner, ..)| *owner == done.qp) else {
                continue;
            };
            let queue = match done.completed {
                Completed::Recv | Completed::RecvImmediate => &mut entry.2,
                _ => &mut entry.1,
            };
            assert_eq!(queue.pop_front(), Some(done.id), "in the order posted");
        }
        assert!(self.us.ram.0[1].iter().all(|&byte| byte == 0xaa));
    }

    fn step(&mut self) {
        let which = self.rng.below(2) as usize;
        if self.peers[which].is_none() {
            self.connect(which);
        }
        match self.rng.below(100) {
            0 => {
                let Some((conn, ..)) = self.peers[which] else { return };
                let end = [StreamEnd::Finished, StreamEnd::Reset, StreamEnd::Unread]
                    [self.rng.below(3) as usize];
                self.us.rnic.ended(self.now, conn, end);
            }
            1 => {
                let Some((_, qp, _)) = self.peers[which] else { return };
                let _ = self.us.rnic.disconnect(self.now, qp);
            }
            2 => {
                let Some((_, qp, _)) = self.peers[which] else { return };
                let _ = self.us.rnic.destroy_qp(qp);
                self.posted.retain(|(owner, ..)| *owner != qp);
            }
            3 => {
                self.us.rnic.deregister(self.open).unwrap();
                self.open = self.us.rnic.register(self.us.pd, 0, BASE, OPEN as u64, ALL).unwrap();
            }
            4..8 => {
                self.now = self.now.after(self.rng.below(3_000_000_000));
                self.us.rnic.tick(self.now);
            }
            8..40 => self.post(which),
            _ => self.say(which),
        }
        self.check();
    }
}

#[test]
fn two_hostile_peers() {
    let mut ends = 0;
    for seed in 0..300 {
        let mut world = World::new(seed);
        for _ in 0..150 {
            world.step();
        }
        // After all ends, every request has completed.
        for peer in core::mem::take(&mut world.peers).into_iter().flatten() {
            world.us.rnic.ended(world.now, peer.0, StreamEnd::Reset);
        }
        world.now = world.now.after(60_000_000_000);
        world.us.rnic.tick(world.now);
        world.check();
        for (qp, sends, receives) in &world.posted {
            assert!(
                sends.is_empty() && receives.is_empty(),
                "{seed} {qp:?} {sends:?} {receives:?}"
            );
        }
        assert_eq!(world.us.rnic.conns.used(), 0);
        assert_eq!(world.us.rnic.deadline(), None);
        ends += world.closed.len();
    }
    assert!(ends > 2000, "{ends}");
}
