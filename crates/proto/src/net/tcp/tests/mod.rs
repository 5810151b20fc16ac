//! Tests of TCP connections: two ends, or an end and a script, in virtual time.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::*;
use crate::net::IpFields;
use crate::time::{MS, SECOND, US};
use crate::wire::tcp::{Flags, MAX_HEADER, Tcp};
use crate::{Instant, Rng};

mod accept;
mod closed;
mod dctcp;
mod far;
mod half_open;
mod hostile;
pub(super) mod hosts;
mod liar;
mod memory;
mod path_mtu;
mod random;
mod records;
mod recovery;
mod room;
mod rules;
mod silence;
mod time_wait;

/// The misbehaviour of a network, and its speed.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    /// The time from end to end, and the most by which it varies.
    pub(super) delay_ns: u64,
    pub(super) jitter_ns: u64,
    /// Probabilities in parts per million.
    pub(super) loss_ppm: u32,
    pub(super) duplicate_ppm: u32,
    pub(super) mark_ppm: u32,
    /// The bytes a second of the slowest link, and the bytes that wait before it at most.
    pub(super) rate: u64,
    pub(super) queue: u64,
    /// The segments that are lost whatever the probability, by their number from 0 in each
    /// direction.
    pub(super) lost: [Vec<u64>; 2],
    /// The MTU of a router, by the number of the segment from which on it holds, and whether the
    /// router reports packets that are too big.
    pub(super) mtus: Vec<(u64, u16)>,
    pub(super) reports: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            delay_ns: MS,
            jitter_ns: 0,
            loss_ppm: 0,
            duplicate_ppm: 0,
            mark_ppm: 0,
            rate: 1 << 40,
            queue: 1 << 40,
            lost: [Vec::new(), Vec::new()],
            mtus: Vec::new(),
            reports: true,
        }
    }
}

/// One end of a connection, with what its program wants to send and has received.
#[derive(Debug)]
pub(super) struct End {
    pub(super) config: TcpConfig,
    pub(super) connection: Option<Connection>,
    pub(super) to_send: VecDeque<u8>,
    pub(super) received: Vec<u8>,
    /// The bytes that the program reads at once, 0 if it reads nothing.
    pub(super) reads: usize,
    /// True if the program closes its direction when all is written.
    pub(super) closes: bool,
    /// The most bytes of a segment that the device cuts, 0 if it cuts none.
    pub(super) most: u32,
    /// The lengths of the records in which the program writes, or nothing.
    pub(super) records: VecDeque<usize>,
    /// True if the program takes data that is lent, as far as `reads` allows.
    pub(super) borrows: bool,
    /// The number of bytes that a program that borrows has seen while they were behind a gap.
    pub(super) ahead: usize,
    /// The MTU of the path from the end, and that of its link.
    pub(super) mtu: u16,
    pub(super) link_mtu: u16,
}

/// A segment on its way.
#[derive(Clone, Debug)]
struct Flying {
    to: usize,
    bytes: Vec<u8>,
    is_marked: bool,
}

/// Two ends and the network between them. End 0 connects.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) now: Instant,
    pub(super) ends: [End; 2],
    pub(super) faults: Faults,
    rng: Rng,
    flying: BTreeMap<(Instant, u64), Flying>,
    numbers: u64,
    /// The number of segments that each end has sent.
    pub(super) sent: [u64; 2],
    /// The time at which the link of each direction is free.
    busy: [Instant; 2],
    /// The headers and data lengths of all segments sent, with their times and senders.
    pub(super) log: Vec<(Instant, usize, Tcp, usize)>,
}

impl Net {
    pub(super) fn new(configs: [TcpConfig; 2], faults: Faults, seed: u64) -> Self {
        let mut rng = Rng::seeded(seed);
        let ends = configs.map(|config| End {
            config,
            connection: None,
            to_send: VecDeque::new(),
            received: Vec::new(),
            reads: usize::MAX,
            closes: true,
            most: 0,
            records: VecDeque::new(),
            borrows: false,
            ahead: 0,
            mtu: 1500,
            link_mtu: 1500,
        });
        let now = Instant::from_ns(SECOND);
        let mut net = Self {
            now,
            ends,
            faults,
            flying: BTreeMap::new(),
            numbers: 0,
            sent: [0; 2],
            busy: [now; 2],
            log: Vec::new(),
            rng: rng.fork(),
        };
        let config = &net.ends[0].config;
        net.ends[0].connection =
            Some(Connection::connect(now, config, (7, 8), rng.u32(), rng.u32()));
        net
    }

    /// Returns a connection over a network without faults.
    pub(super) fn plain() -> Self {
        Self::new(Default::default(), Faults::default(), 1)
    }

    /// Lets an end send `len` bytes that depend on their place.
    pub(super) fn give(&mut self, end: usize, len: usize) {
        let sent = self.ends[end].to_send.len();
        self.ends[end].to_send.extend((sent..sent + len).map(byte));
    }

    pub(super) fn connection(&mut self, end: usize) -> &mut Connection {
        self.ends[end].connection.as_mut().expect("the end has a connection")
    }

    pub(super) fn state(&self, end: usize) -> TcpState {
        self.ends[end].connection.as_ref().map_or(TcpState::Closed, Connection::state)
    }

    /// Lets the programs write and read, and sends what can be sent.
    pub(super) fn work(&mut self) {
        for end in 0..2 {
            let End {
                connection,
                config,
                to_send,
                received,
                reads,
                closes,
                most,
                records,
                mtu,
                link_mtu,
                ..
            } = &mut self.ends[end];
            let Some(connection) = connection else { continue };
            while let Some(&len) = records.front() {
                let record = to_send.iter().copied().take(len).collect::<Vec<_>>();
                if !connection.write_record(config, &[&record[..len / 3], &record[len / 3..]]) {
                    break;
                }
                to_send.drain(..len);
                records.pop_front();
            }
            let is_stream = records.is_empty();
            let writable = connection.writable(config).min(to_send.len() * usize::from(is_stream));
            let (a, b) = to_send.as_slices();
            let first = a.len().min(writable);
            let written = connection.write(config, &a[..first])
                + connection.write(config, &b[..writable - first]);
            to_send.drain(..written);
            if to_send.is_empty() && *closes && connection.state() != TcpState::SynSent {
                connection.close();
            }
            let count = connection.readable().min(*reads);
            let (a, b) = connection.peek(0..count);
            received.extend_from_slice(a);
            received.extend_from_slice(b);
            connection.consume(count);
            let mut out = Vec::new();
            let path = PathLimits { mss: *mtu - 40, link_mss: *link_mtu - 40, most: *most };
            connection.output(self.now, config, &path, &mut |outgoing| {
                let len = outgoing.data.0.len() + outgoing.data.1.len();
                assert!(len <= path.most.max(outgoing.mss) as usize, "{len} bytes");
                cut(outgoing, &mut out);
                true
            });
            for (tcp, data, is_ect) in out {
                self.transmit(end, &tcp, &data, is_ect);
            }
        }
    }

    /// Gives a segment to the network.
    pub(super) fn transmit(&mut self, from: usize, tcp: &Tcp, data: &[u8], is_ect: bool) {
        let number = self.sent[from];
        self.sent[from] += 1;
        self.log.push((self.now, from, *tcp, data.len()));
        let mut header = [0; MAX_HEADER];
        let len = tcp.emit(&mut header);
        let bytes = [&header[..len], data].concat();
        let size = bytes.len() as u64 + 40;
        let start = self.busy[from].max(self.now);
        let queued = start.since(self.now) * self.faults.rate / SECOND;
        let is_lost = self.rng.chance(self.faults.loss_ppm)
            || self.faults.lost[from].contains(&number)
            || queued > self.faults.queue
            || !self.passes(from, number, bytes.len());
        let is_marked = is_ect && self.rng.chance(self.faults.mark_ppm);
        if is_lost {
            return;
        }
        self.busy[from] = start.after(size * SECOND / self.faults.rate);
        let copies = 1 + u32::from(self.rng.chance(self.faults.duplicate_ppm));
        for _ in 0..copies {
            let jitter = self.rng.below(self.faults.jitter_ns + 1);
            let at = self.busy[from].after(self.faults.delay_ns + jitter);
            self.numbers += 1;
            let flying = Flying { to: 1 - from, bytes: bytes.clone(), is_marked };
            self.flying.insert((at, self.numbers), flying);
        }
    }

    /// Returns true if the router passes segment `number`, of `len` bytes without its IP header. A
    /// report arrives at once.
    fn passes(&mut self, from: usize, number: u64, len: usize) -> bool {
        let Faults { mtus, reports, .. } = &self.faults;
        let mtu = mtus.iter().rev().find(|(first, _)| *first <= number).map(|(_, mtu)| *mtu);
        let Some(mtu) = mtu.filter(|mtu| len + 20 > usize::from(*mtu)) else { return true };
        if *reports {
            self.ends[from].mtu = self.ends[from].mtu.min(mtu);
        }
        false
    }

    /// Delivers the next segment or expires the next timer. Returns false if there is none.
    pub(super) fn step(&mut self) -> bool {
        self.work();
        let timer = self.ends.iter().filter_map(|e| e.connection.as_ref()?.deadline()).min();
        let arrival = self.flying.first_key_value().map(|(&(at, _), _)| at);
        // A program that reads slowly reads again after a while.
        let is_slow =
            |end: &End| end.reads > 0 && end.connection.as_ref().is_some_and(|c| c.readable() > 0);
        let reader = self.ends.iter().any(is_slow).then(|| self.now.after(MS));
        let times = [timer, arrival, reader];
        let Some(next) = times.into_iter().flatten().min() else { return false };
        self.now = next.max(self.now);
        while let Some(entry) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
            let Flying { to, bytes, is_marked } = entry.remove();
            self.deliver(to, &bytes, is_marked);
        }
        for End { connection, config, .. } in &mut self.ends {
            if let Some(connection) = connection
                && connection.deadline().is_some_and(|at| at <= self.now)
            {
                connection.tick(self.now, config);
            }
        }
        true
    }

    fn deliver(&mut self, to: usize, bytes: &[u8], is_marked: bool) {
        let (tcp, data) = Tcp::parse(bytes).expect("what an end sends is sound");
        let segment = Segment { tcp, data, is_marked };
        let End { connection, config, received, reads, borrows, ahead, .. } = &mut self.ends[to];
        let answer = match connection {
            Some(connection) => {
                connection.lend(*borrows);
                let Received { lent: (start, end), ahead: kept, answer, .. } =
                    connection.input(self.now, config, &segment);
                if *borrows {
                    let at = connection.offset(tcp.seq) as usize;
                    assert!(data[..kept].iter().zip(at..).all(|(b, at)| *b == byte(at)));
                    *ahead += kept;
                }
                let taken = (end - start).min(*reads);
                received.extend_from_slice(&data[start..start + taken]);
                connection.take_lent(taken);
                connection.keep_lent(&data[start + taken..end]);
                answer
            }
            None => {
                let (initial, offset) = (self.rng.u32(), self.rng.u32());
                let accepted = Connection::accept(self.now, config, &tcp, initial, offset);
                let refused = if accepted.is_none() { refusal(&segment) } else { None };
                *connection = accepted;
                refused
            }
        };
        if let Some(tcp) = answer {
            self.transmit(to, &tcp, &[], false);
        }
    }

    /// Runs until `done` or the time is over. Returns true if it is done.
    pub(super) fn run_until(&mut self, ns: u64, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now.after(ns);
        while self.now < end {
            if done(self) {
                return true;
            }
            if !self.step() {
                break;
            }
        }
        done(self)
    }

    /// Runs until both ends have closed, and checks that each got what the other has sent.
    pub(super) fn complete(&mut self, ns: u64, lens: [usize; 2]) -> Result<(), String> {
        let is_over = |state| matches!(state, TcpState::Closed | TcpState::TimeWait);
        let is_done = self.run_until(ns, |net| {
            let has_all = |(i, end): (usize, &End)| {
                end.received.len() == lens[1 - i] && end.to_send.is_empty()
            };
            net.ends.iter().enumerate().all(has_all)
                && [0, 1].iter().all(|&i| is_over(net.state(i)))
        });
        let states = [self.state(0), self.state(1)];
        let got = [&self.ends[0], &self.ends[1]].map(|end| end.received.len());
        let errors = [0, 1].map(|i| self.ends[i].connection.as_ref().and_then(Connection::error));
        if !is_done || errors != [None, None] {
            let wanted = [lens[1], lens[0]];
            let now = self.now;
            let mut why =
                format!("{states:?}, received {got:?} of {wanted:?}, {errors:?}, {now:?}");
            for (at, end, tcp, len) in self.log.iter().rev().take(12).rev() {
                let Tcp { seq, ack, flags, window, options, .. } = tcp;
                let (flags, sack) = (flags.0, options.sack.as_slice());
                why +=
                    &format!("\n{at:?} {end} {flags:02x} {seq} +{len} {ack} w {window} {sack:?}");
            }
            return Err(why);
        }
        let is_right = |end: &End| end.received.iter().enumerate().all(|(i, b)| *b == byte(i));
        if self.ends.iter().all(is_right) { Ok(()) } else { Err("the bytes are others".into()) }
    }
}

/// Returns the byte at a place of a stream.
fn byte(at: usize) -> u8 {
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Cuts a segment as a device does.
fn cut(outgoing: &Outgoing<'_>, out: &mut Vec<(Tcp, Vec<u8>, bool)>) {
    let (a, b) = outgoing.data;
    let data = [a, b].concat();
    let pieces = data.chunks(outgoing.mss as usize).count().max(1);
    for i in 0..pieces {
        let at = i * outgoing.mss as usize;
        let piece = &data[at..data.len().min(at + outgoing.mss as usize)];
        let mut tcp = outgoing.tcp;
        tcp.seq = tcp.seq.wrapping_add(at as u32);
        if i + 1 < pieces {
            tcp.flags = tcp.flags.without(Flags::FIN.with(Flags::PSH));
        }
        if i > 0 {
            tcp.flags = tcp.flags.without(Flags::CWR);
        }
        out.push((tcp, piece.to_vec(), outgoing.is_ect));
    }
}

#[test]
fn a_stream_each_way_without_faults() {
    let mut net = Net::plain();
    net.give(0, 3_000_000);
    net.give(1, 1_000_000);
    net.complete(60 * SECOND, [3_000_000, 1_000_000]).unwrap();
    assert!(net.now < Instant::from_ns(2 * SECOND), "{:?}", net.now);
    let again: u64 = net.log.len() as u64;
    assert!(again < 5000, "{again} segments");
}

#[test]
fn nothing_but_an_end() {
    let mut net = Net::plain();
    net.complete(10 * SECOND, [0, 0]).unwrap();
    let flags: Vec<_> = net.log.iter().map(|(_, end, tcp, _)| (*end, tcp.flags.0 & 0x17)).collect();
    // SYN, SYN and ACK, ACK with FIN, and so on.
    assert_eq!(flags[..2], [(0, 0x02), (1, 0x12)]);
    assert!(flags.len() <= 8, "{flags:?}");
}

/// An end may acknowledge eight segments at once, and fewer after a moment.
#[test]
fn acknowledgements_wait_for_more_segments_if_they_may() {
    let config = TcpConfig { ack_segments: 8, ack_hold_ns: 10 * US, ..TcpConfig::default() };
    let mut net = Net::new([TcpConfig::default(), config], Faults::default(), 1);
    net.ends.iter_mut().for_each(|end| end.closes = false);
    net.run_until(SECOND, |net| net.state(1) == TcpState::Established);
    net.give(0, 5 * 1448);
    let first = net.sent[1];
    net.run_until(SECOND, |net| net.ends[1].received.len() == 5 * 1448);
    let (sent, at) = (net.sent[1], net.log.last().expect("the data").0.after(MS));
    assert_eq!(sent, first, "five segments have no acknowledgement at once");
    net.run_until(SECOND, |net| net.sent[1] > sent);
    let answered = net.log.last().expect("the acknowledgement").0;
    let waited = answered.since(at);
    assert!((10 * US..11 * US).contains(&waited), "{waited} ns");
    net.give(0, 10 * 1448);
    let before = net.sent[1];
    net.run_until(SECOND, |net| net.ends[1].received.len() == 15 * 1448);
    assert!(net.sent[1] <= before + 2, "{} for ten segments", net.sent[1] - before);
}

/// RFC 9293 3.10.7.4: a FIN that comes again in TIME-WAIT is acknowledged, and its time is renewed.
#[test]
fn tm13_a_repeated_end_prolongs_time_wait() {
    let mut net = Net::plain();
    net.ends[1].closes = false;
    net.run_until(SECOND, |net| net.state(1) == TcpState::CloseWait);
    net.connection(1).close();
    assert!(net.run_until(SECOND, |net| net.state(0) == TcpState::TimeWait));
    let wait_ns = net.ends[0].config.time_wait_ns;
    let (_, _, fin, _) = *net.log.iter().rev().find(|l| l.1 == 1).expect("its FIN");
    assert!(fin.flags.has(Flags::FIN));
    net.work();
    net.now = net.now.after(wait_ns / 2);
    let (now, sent) = (net.now, net.sent[0]);
    let segment = Segment { tcp: fin, data: &[], is_marked: false };
    let End { connection, config, .. } = &mut net.ends[0];
    connection.as_mut().unwrap().input(now, config, &segment);
    net.work();
    assert_eq!(net.sent[0], sent + 1, "the acknowledgement");
    assert_eq!(net.connection(0).deadline(), Some(now.after(wait_ns)));
}
