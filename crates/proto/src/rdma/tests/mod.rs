//! Two engines, joined by a pipe that cuts the stream in different ways, with arrays as memory.

mod ahead;
mod atomics;
mod basic;
mod ddp;
mod ends;
mod hostile;
mod matrices;
mod objects;
mod peer;
mod random;
mod rdmap;
mod starts;
mod terminate;
mod unexpected;
mod write_ack;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::*;
use crate::{Instant, Rng};

/// Arrays as registered memory, named by their index. An empty array counts as unmapped.
#[derive(Debug, Default)]
pub(super) struct Ram(pub(super) Vec<Vec<u8>>);

impl Ram {
    fn at(&mut self, span: Span) -> Result<&mut [u8], Unmapped> {
        let region =
            self.0.get_mut(span.region as usize).filter(|r| !r.is_empty()).ok_or(Unmapped)?;
        Ok(&mut region[span.offset as usize..span.offset as usize + span.len as usize])
    }
}

impl Memory for Ram {
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped> {
        self.at(span)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        bytes.copy_from_slice(self.at(span)?);
        Ok(())
    }

    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        assert!(span.len == 8 && span.offset.is_multiple_of(8));
        let word = self.at(span)?;
        #[expect(clippy::host_endian_bytes, reason = "a number of the program's")]
        let old = u64::from_ne_bytes(word.try_into().map_err(|_| Unmapped)?);
        #[expect(clippy::host_endian_bytes, reason = "a number of the program's")]
        word.copy_from_slice(&change(old).to_ne_bytes());
        Ok(old)
    }
}

/// The way in which a pipe between two engines cuts the stream.
#[derive(Clone, Debug)]
pub(super) enum Cut {
    /// The pipe delivers all available bytes at once.
    Whole,
    /// The pipe delivers at most this many bytes at once.
    Each(usize),
    /// The pipe delivers random lengths, and sometimes reads directly into memory.
    Dice(Box<Rng>),
}

/// One engine of a test with its objects and its end of the pipe.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) rnic: Rnic,
    pub(super) ram: Ram,
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(super) qp: Qp,
    pub(super) conn: Option<Conn>,
    /// The bytes that this side has sent and the other side has not received.
    pub(super) wire: VecDeque<u8>,
    /// Every byte that this side ever sent.
    pub(super) sent: Vec<u8>,
    /// The number of records that this side sent with the push flag.
    pub(super) pushed: u64,
    /// The bytes that this side has received and its engine has not consumed.
    inbox: Vec<u8>,
    /// The reset flag with which this side closed its stream.
    pub(super) closed: Option<bool>,
    /// True if this side's engine knows that the other side has ended the stream.
    told: bool,
    pub(super) events: Vec<Event>,
}

pub(super) const ALL: Access = Access {
    local_write: true,
    remote_write: true,
    remote_read: true,
    remote_atomic: true,
    bind: true,
};

/// Options of a queue pair that uses the completion queue `cq` for its sends and receives.
pub(super) fn qp_options(pd: Pd, cq: Cq) -> QpOptions {
    QpOptions {
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        send_depth: 64,
        recv_depth: 64,
        max_send_sge: MAX_SGE,
        max_recv_sge: MAX_SGE,
        max_inline: MAX_INLINE,
        signal_all: true,
    }
}

impl Side {
    pub(super) fn new(config: RnicOptions, seed: u64) -> Self {
        let mut rnic = Rnic::new(config, Rng::seeded(seed));
        let pd = rnic.alloc_pd().unwrap();
        let cq = rnic.create_cq(4096).unwrap();
        let qp = rnic.create_qp(qp_options(pd, cq)).unwrap();
        Self {
            rnic,
            ram: Ram::default(),
            pd,
            cq,
            qp,
            conn: None,
            wire: VecDeque::new(),
            sent: Vec::new(),
            pushed: 0,
            inbox: Vec::new(),
            closed: None,
            told: false,
            events: Vec::new(),
        }
    }

    /// Registers an array as memory with all rights. Its first byte has the address `base`.
    pub(super) fn region(&mut self, bytes: Vec<u8>, base: u64) -> Stag {
        self.region_with(bytes, base, ALL)
    }

    pub(super) fn region_with(&mut self, bytes: Vec<u8>, base: u64, access: Access) -> Stag {
        let len = bytes.len() as u64;
        self.ram.0.push(bytes);
        self.rnic.register(self.pd, self.ram.0.len() as u64 - 1, base, len, access).unwrap()
    }

    pub(super) fn post(&mut self, id: u64, op: SendOp, list: &[(Stag, u64, u32)]) {
        self.post_with(id, op, list, SendFlags::default()).unwrap();
    }

    pub(super) fn post_with(
        &mut self,
        id: u64,
        op: SendOp,
        list: &[(Stag, u64, u32)],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let data = Data::Gather(sges(list));
        self.rnic.post_send(self.qp, SendRequest { id, op, data, flags })
    }

    pub(super) fn recv(&mut self, id: u64, list: &[(Stag, u64, u32)]) {
        self.rnic.post_recv(self.qp, RecvRequest { id, list: sges(list) }).unwrap();
    }

    pub(super) fn poll(&mut self) -> Option<Completion> {
        self.rnic.poll(self.cq)
    }

    /// Takes all completions of this side and returns their `id`s and statuses.
    pub(super) fn done(&mut self) -> Vec<(u64, Status)> {
        core::iter::from_fn(|| self.poll()).map(|c| (c.id, c.status)).collect()
    }

    /// Sends all output of this side's engine into the pipe. Returns true if there was any.
    fn send(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(conn) = self.rnic.ready() {
            let mut record = Record::default();
            while self.rnic.output(now, conn, &mut record, &mut self.ram) {
                self.pushed += u64::from(core::mem::take(&mut record.push));
            }
            let mut bytes = Vec::new();
            for part in &record.parts {
                match part {
                    Part::Bytes(range) => bytes.extend_from_slice(&record.bytes[range.clone()]),
                    Part::Memory(span) => bytes.extend_from_slice(self.ram.at(*span).unwrap()),
                }
            }
            assert_eq!(bytes.len(), record.len());
            any |= !bytes.is_empty();
            self.sent.extend_from_slice(&bytes);
            self.wire.extend(&bytes);
            self.rnic.sent(conn, bytes.len());
        }
        any
    }

    fn hear(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.rnic.event() {
            if let Event::Close { conn, reset } = event {
                assert_eq!(self.conn, Some(conn));
                assert_eq!(self.closed, None, "one end for each stream");
                self.closed = Some(reset);
            }
            self.events.push(event);
            any = true;
        }
        any
    }

    /// Reports the other side's end of the stream after all of its bytes.
    fn told_of(&mut self, other: &Self, now: Instant) -> bool {
        let (Some(reset), Some(conn)) = (other.closed, self.conn) else { return false };
        if self.told || self.closed.is_some() || !reset && !other.wire.is_empty() {
            return false;
        }
        self.told = true;
        self.rnic.ended(now, conn, if reset { StreamEnd::Reset } else { StreamEnd::Finished });
        true
    }

    /// Hands bytes of the stream to this side's engine.
    pub(super) fn take(&mut self, now: Instant, bytes: &[u8]) {
        let Some(conn) = self.conn.filter(|_| self.closed.is_none()) else { return };
        self.inbox.extend_from_slice(bytes);
        let used = self.rnic.input(now, conn, &self.inbox, &mut self.ram);
        self.inbox.drain(..used);
    }

    /// Hands bytes from the other side's pipe to this side's engine. Returns true if there were
    /// any.
    fn draw(&mut self, now: Instant, from: &mut VecDeque<u8>, cut: &mut Cut) -> bool {
        if from.is_empty() {
            return false;
        }
        let most = match cut {
            Cut::Whole => from.len(),
            Cut::Each(n) => (*n).min(from.len()),
            Cut::Dice(rng) => {
                let bound = if rng.chance(300_000) { 8 } else { 3000 };
                (1 + rng.below(bound) as usize).min(from.len())
            }
        };
        if let Cut::Dice(rng) = cut
            && rng.chance(500_000)
            && let Some(conn) = self.conn
            && self.closed.is_none()
            && let Some(span) = self.rnic.direct_span(conn)
        {
            let len = (span.len as usize).min(most);
            let bytes: Vec<u8> = from.drain(..len).collect();
            let span = Span { len: len as u32, ..span };
            self.ram.write(span, &bytes).unwrap();
            self.rnic.placed_directly(now, conn, len as u32, &mut self.ram);
            return true;
        }
        let bytes: Vec<u8> = from.drain(..most).collect();
        self.take(now, &bytes);
        true
    }
}

pub(super) fn sges(list: &[(Stag, u64, u32)]) -> ArrayVec<Sge, MAX_SGE> {
    list.iter().map(|&(stag, addr, len)| Sge { stag, addr, len }).collect()
}

/// Two sides of a test and the pipe between them.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) a: Side,
    pub(super) b: Side,
    pub(super) now: Instant,
    pub(super) cut: Cut,
}

/// Options of the connection between two sides of a test.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) crc: bool,
    pub(super) markers: bool,
    pub(super) cut: Cut,
    pub(super) connect: ConnectOptions,
    pub(super) accept: AcceptOptions,
    /// True if both sides of a test acknowledge Writes; false if they follow the RFCs alone.
    pub(super) acknowledge: bool,
    pub(super) emss: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            crc: true,
            markers: false,
            cut: Cut::Whole,
            connect: ConnectOptions {
                ird: 8,
                ord: 8,
                rnr_timeout_ns: Some(0),
                ..ConnectOptions::default()
            },
            accept: AcceptOptions {
                ird: 8,
                ord: 8,
                rnr_timeout_ns: Some(0),
                ..AcceptOptions::default()
            },
            acknowledge: false,
            emss: 1460,
        }
    }
}

impl Pair {
    /// Creates two sides of a test without a connection.
    pub(super) fn new(setup: &Setup) -> Self {
        let acknowledge_writes = setup.acknowledge;
        let config = RnicOptions {
            crc: setup.crc,
            markers: setup.markers,
            acknowledge_writes,
            ..RnicOptions::default()
        };
        let (a, b) = (Side::new(config.clone(), 1), Side::new(config, 2));
        Self { a, b, now: Instant::from_ns(1000), cut: setup.cut.clone() }
    }

    /// Creates two connected sides of a test. `a` is the initiator.
    pub(super) fn connected(setup: &Setup) -> Self {
        let mut pair = Self::new(setup);
        pair.start(setup);
        pair.accept(setup);
        let established = |e: &Event| matches!(e, Event::Established { .. });
        assert!(pair.a.events.iter().any(established), "{:?}", pair.a.events);
        assert!(pair.b.events.iter().any(established), "{:?}", pair.b.events);
        pair.a.events.clear();
        pair.b.events.clear();
        pair
    }

    /// Sends the Request of side `a` and runs until the program of side `b` gets it.
    pub(super) fn start(&mut self, setup: &Setup) {
        let a = self.a.rnic.connect(self.now, self.a.qp, &setup.connect).unwrap();
        let b = self.b.rnic.incoming(self.now).unwrap();
        (self.a.conn, self.b.conn) = (Some(a), Some(b));
        self.a.rnic.set_emss(a, setup.emss);
        self.b.rnic.set_emss(b, setup.emss);
        self.run();
    }

    /// Accepts the connection at side `b`.
    pub(super) fn accept(&mut self, setup: &Setup) {
        let conn = self.b.conn.unwrap();
        self.b.rnic.accept(self.now, conn, self.b.qp, &setup.accept).unwrap();
        self.run();
    }

    /// Moves bytes between the two sides until both are idle.
    pub(super) fn run(&mut self) {
        while self.move_some() {}
    }

    /// Moves bytes between the two sides this many times.
    pub(super) fn step(&mut self, times: u64) {
        for _ in 0..times {
            self.move_some();
        }
    }

    fn move_some(&mut self) -> bool {
        let Self { a, b, now, cut } = self;
        let mut moved = a.send(*now) | b.send(*now);
        moved |= a.draw(*now, &mut b.wire, cut) | b.draw(*now, &mut a.wire, cut);
        moved |= a.hear() | b.hear();
        moved | a.told_of(b, *now) | b.told_of(a, *now)
    }

    /// Advances the time of the test.
    pub(super) fn wait(&mut self, ns: u64) {
        self.now = self.now.after(ns);
        self.a.rnic.tick(self.now);
        self.b.rnic.tick(self.now);
        self.run();
    }
}

/// A byte pattern for tests that differs from offset to offset.
pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed))
        .collect()
}

/// All combinations of framing and cutting the stream that are worth a test.
pub(super) fn setups() -> Vec<Setup> {
    let mut all = Vec::new();
    for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
        for cut in [Cut::Whole, Cut::Each(1), Cut::Each(7), Cut::Dice(Box::new(Rng::seeded(5)))] {
            all.push(Setup { crc, markers, cut, ..Setup::default() });
        }
    }
    all
}
