//! A test of software iWARP with a stream without CRC whose bits flip, as a hostile peer could send
//! it: the engine does not panic, accesses only memory that the peer may access, and completes each
//! request once.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use arrayvec::ArrayVec;
use sprat_proto::rdma::{
    AcceptOptions, Access, Conn, ConnectOptions, Cq, Data, Event, Memory, Part, Qp, QpOptions,
    Record, RecvRequest, Remote, Rnic, RnicOptions, SendFlags, SendOp, SendRequest, Sge, Span,
    Stag, StreamEnd, Unmapped,
};
use sprat_proto::time::SECOND;
use sprat_proto::wire::mpa::RtrKind;
use sprat_proto::{Instant, Rng};
use sprat_sim::seeds;

/// The number of the memory region with the bytes of messages to send.
const SOURCE: u64 = 0;
/// The number of the memory region of receives and of sinks of Reads.
const INBOX: u64 = 1;
/// The number of the memory region whose first half the peer may write.
const WRITABLE: u64 = 2;
/// The number of the memory region that the peer may read.
const READABLE: u64 = 3;
/// The number of the memory region of words for the peer's atomics.
const WORDS: u64 = 4;
/// The number of a memory region of another protection domain.
const ALIEN: u64 = 5;
const SIZE: usize = 8192;

/// Registered memory that panics on any access that the peer must not have.
struct Guarded {
    arrays: Vec<Vec<u8>>,
    /// The parts of the inbox region that are posted as receives or sinks, by the number of the
    /// request.
    posted: Vec<(u64, Range<u64>)>,
    /// True if the tag of the writable region is valid.
    writable: bool,
    /// True while the connection over the stream has not ended.
    open: bool,
}

impl Guarded {
    fn at(&mut self, span: Span) -> &mut [u8] {
        let start = span.offset as usize;
        &mut self.arrays[span.region as usize][start..start + span.len as usize]
    }
}

impl Memory for Guarded {
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped> {
        let end = span.offset + u64::from(span.len);
        let fits = |r: &Range<u64>| r.start <= span.offset && end <= r.end;
        let allowed = match span.region {
            INBOX => self.posted.iter().any(|(_, range)| fits(range)),
            WRITABLE => self.writable && end <= SIZE as u64 / 2,
            _ => false,
        };
        assert!(allowed && self.open, "{span:?} is placed");
        self.at(span).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        assert!(self.open && matches!(span.region, SOURCE | READABLE), "{span:?} is read");
        bytes.copy_from_slice(self.at(span));
        Ok(())
    }

    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        assert!(
            self.open && span.region == WORDS && span.len == 8 && span.offset.is_multiple_of(8)
        );
        let old = super::memory::number(self.at(span));
        super::memory::put(self.at(span), change(old));
        Ok(old)
    }
}

struct Half {
    rnic: Rnic,
    memory: Guarded,
    tags: Vec<Stag>,
    cq: Cq,
    qp: Qp,
    conn: Conn,
    wire: VecDeque<u8>,
    inbox: Vec<u8>,
    closed: Option<bool>,
    told: bool,
    established: bool,
    /// The numbers of the posted requests that have not completed.
    waiting: BTreeSet<u64>,
    next: u64,
}

impl Half {
    fn new(rng: &mut Rng, asks: bool, now: Instant) -> Self {
        let config =
            RnicOptions { crc: false, markers: rng.chance(300_000), ..RnicOptions::default() };
        let mut rnic = Rnic::new(config, rng.fork());
        let (pd, other) = (rnic.alloc_pd().unwrap(), rnic.alloc_pd().unwrap());
        let none = Access::default();
        let write = Access { local_write: true, ..none };
        let regions = [
            (pd, SIZE, none),
            (pd, SIZE, write),
            (pd, SIZE / 2, Access { remote_write: true, ..write }),
            (pd, SIZE, Access { remote_read: true, ..none }),
            (pd, SIZE, Access { remote_atomic: true, ..write }),
            (
                other,
                SIZE,
                Access { remote_write: true, remote_read: true, remote_atomic: true, ..write },
            ),
        ];
        let tag = |(at, &(pd, len, access)): (usize, &(_, usize, Access))| {
            rnic.register(pd, at as u64, 0, len as u64, access).unwrap()
        };
        let tags = regions.iter().enumerate().map(tag).collect();
        let cq = rnic.create_cq(1000).unwrap();
        let qp = QpOptions {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send_depth: 100,
            recv_depth: 100,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
            signal_all: true,
        };
        let qp = rnic.create_qp(qp).unwrap();
        let peer_to_peer = rng.chance(500_000).then_some(RtrKind::Write);
        let connect = ConnectOptions { ird: 4, ord: 4, peer_to_peer, ..ConnectOptions::default() };
        let conn = if asks { rnic.connect(now, qp, &connect) } else { rnic.incoming(now) }.unwrap();
        rnic.set_emss(conn, 200 + rng.below(2000) as usize);
        let arrays = (0..=ALIEN).map(|_| vec![0; SIZE]).collect();
        let memory = Guarded { arrays, posted: Vec::new(), writable: true, open: true };
        let (wire, inbox, waiting) = (VecDeque::new(), Vec::new(), BTreeSet::new());
        let (closed, told, established, next) = (None, false, false, 0);
        Self {
            rnic,
            memory,
            tags,
            cq,
            qp,
            conn,
            wire,
            inbox,
            closed,
            told,
            established,
            waiting,
            next,
        }
    }

    /// Marks a random part of the inbox region as posted, and returns it as a scatter/gather
    /// element.
    fn slot(&mut self, rng: &mut Rng, len: u32) -> Sge {
        let addr = rng.below(SIZE as u64 - u64::from(len));
        self.memory.posted.push((self.next, addr..addr + u64::from(len)));
        Sge { stag: self.tags[INBOX as usize], addr, len }
    }

    fn post(&mut self, rng: &mut Rng, theirs: &[Stag]) {
        if self.memory.posted.len() > 60 || self.waiting.len() > 60 || self.closed.is_some() {
            return;
        }
        self.next += 1;
        let (id, len, addr) = (self.next, rng.below(1500) as u32, rng.below(2000));
        if rng.chance(400_000) {
            let list = ArrayVec::from_iter([self.slot(rng, 1500)]);
            self.rnic.post_recv(self.qp, RecvRequest { id, list }).unwrap();
            self.waiting.insert(id);
            return;
        }
        let of = |region: u64| Remote { stag: theirs[region as usize], addr };
        let source = Sge { stag: self.tags[SOURCE as usize], addr, len };
        let (op, sge) = match rng.below(6) {
            0 => (SendOp::Send, source),
            1 => (SendOp::Write(of(WRITABLE)), source),
            2 => (SendOp::WriteImmediate(of(WRITABLE), addr), source),
            3 => (SendOp::SendInvalidate(theirs[WRITABLE as usize]), source),
            4 => (SendOp::Read(of(READABLE)), self.slot(rng, len)),
            _ => {
                let to = Remote { addr: addr & !7, ..of(WORDS) };
                (SendOp::FetchAdd { to, add: 1, mask: 0 }, self.slot(rng, 8))
            }
        };
        // An error of another kind would end the run too soon.
        if matches!(op, SendOp::SendInvalidate(_)) && !rng.chance(50_000) {
            self.next -= 1;
            return;
        }
        let (data, flags) = (Data::Gather(ArrayVec::from_iter([sge])), SendFlags::default());
        match self.rnic.post_send(self.qp, SendRequest { id, op, data, flags }) {
            Ok(()) => drop(self.waiting.insert(id)),
            Err(_) => self.memory.posted.retain(|(owner, _)| *owner != id),
        }
    }

    fn output(&mut self) -> usize {
        let (mut record, now, before) =
            (Record::default(), Instant::from_ns(2000), self.wire.len());
        while let Some(conn) = self.rnic.ready() {
            record.clear();
            while self.rnic.output(now, conn, &mut record, &mut self.memory) {}
            for part in &record.parts {
                match part {
                    Part::Bytes(range) => self.wire.extend(&record.bytes[range.clone()]),
                    Part::Memory(span) => self.wire.extend(self.memory.at(*span).iter()),
                }
            }
            self.rnic.sent(conn, record.len());
        }
        self.take_results();
        self.wire.len() - before
    }

    fn take_results(&mut self) {
        while let Some(event) = self.rnic.event() {
            match event {
                Event::ConnectRequest { conn, .. } => {
                    let options = AcceptOptions { ird: 4, ord: 4, ..AcceptOptions::default() };
                    self.rnic.accept(Instant::from_ns(2000), conn, self.qp, &options).unwrap();
                }
                Event::Established { .. } => self.established = true,
                Event::Disconnected { .. } => self.memory.open = false,
                Event::Close { reset, .. } => {
                    assert_eq!(self.closed.replace(reset), None);
                    self.memory.open = false;
                }
                _ => {}
            }
        }
        while let Some(completion) = self.rnic.poll(self.cq) {
            assert!(self.waiting.remove(&completion.id), "{completion:?} of nothing that waits");
            self.memory.posted.retain(|(owner, _)| *owner != completion.id);
        }
    }

    fn input(&mut self, rng: &mut Rng, bytes: &mut dyn Iterator<Item = u8>) {
        if self.closed.is_some() {
            return bytes.for_each(drop);
        }
        let now = Instant::from_ns(3000);
        if self.inbox.is_empty() && rng.chance(500_000) {
            while let Some(span) = self.rnic.direct_span(self.conn) {
                let here: Vec<u8> = bytes.take(span.len as usize).collect();
                if here.is_empty() {
                    break;
                }
                let len = here.len() as u32;
                self.memory.write(Span { len, ..span }, &here).unwrap();
                self.rnic.placed_directly(now, self.conn, len, &mut self.memory);
            }
        }
        self.inbox.extend(bytes);
        let used = self.rnic.input(now, self.conn, &self.inbox, &mut self.memory);
        self.inbox.drain(..used);
        self.take_results();
    }

    fn told(&mut self, end: Option<bool>) {
        if let Some(reset) = end
            && self.closed.is_none()
            && !self.told
        {
            self.told = true;
            let end = if reset { StreamEnd::Reset } else { StreamEnd::Finished };
            self.rnic.ended(Instant::from_ns(4000), self.conn, end);
            self.take_results();
        }
    }

    /// Checks that each posted work request has completed or its queue pair never connected.
    fn finish(&mut self) {
        self.told(Some(true));
        self.rnic.tick(Instant::from_ns(60 * SECOND));
        self.take_results();
        assert!(self.closed.is_some(), "a stream without an end");
        assert!(!self.established || self.waiting.is_empty(), "{:?} never complete", self.waiting);
        for quiet in [SOURCE, READABLE, ALIEN] {
            assert!(self.memory.arrays[quiet as usize].iter().all(|&byte| byte == 0));
        }
    }
}

fn battle(seed: u64) {
    let mut rng = Rng::seeded(seed ^ 0xbad);
    let now = Instant::from_ns(1000);
    let mut halves = [Half::new(&mut rng, true, now), Half::new(&mut rng, false, now)];
    let (rate, calm) = (rng.below(1_000) as u32, rng.below(100));
    for round in 0..300 {
        let [a, b] = &mut halves;
        a.post(&mut rng, &b.tags);
        b.post(&mut rng, &a.tags);
        for from in 0..2 {
            let [a, b] = &mut halves;
            let (one, other) = if from == 0 { (a, b) } else { (b, a) };
            one.output();
            let len = rng.below(1 + 2 * one.wire.len() as u64).min(one.wire.len() as u64) as usize;
            let mut bytes: Vec<u8> = one.wire.drain(..len).collect();
            for byte in &mut bytes {
                if round > calm && rng.chance(rate) {
                    *byte ^= 1 << (round % 8);
                }
            }
            other.input(&mut rng, &mut bytes.into_iter());
            if one.wire.is_empty() {
                other.told(one.closed);
            }
        }
        if rng.chance(2_000) {
            let it = &mut halves[(seed % 2) as usize];
            it.memory.writable &= it.rnic.deregister(it.tags[WRITABLE as usize]).is_err();
        }
    }
    for half in &mut halves {
        half.finish();
    }
}

#[test]
fn bits_flip_without_crc() {
    seeds::each("bits_flip_without_crc", 100, battle);
}
