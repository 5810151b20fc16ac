//! Tests of the rules in docs/rules-tcp.md: one end of a connection, and a script that plays its
//! peer, in virtual time.
//!
//! Numbers count from the first byte of data of each direction. The initial sequence numbers are
//! such that both directions wrap within a few segments.

use super::super::output::Outgoing;
use super::*;
use crate::wire::tcp::{SackBlocks, TcpOptions};

mod ack;
mod congestion;
mod ecn;
mod fields;
mod handshake;
mod host;
mod ip;
mod options;
mod paths;
mod rack;
mod recovery;
mod reset;
mod settings;
mod timeout;
mod timestamps;
mod window;

/// The initial sequence numbers of this end and of the peer.
const OWN: u32 = u32::MAX - 4000;
const PEER: u32 = u32::MAX - 700;
/// The distance of this end's clock of timestamps from the time, in milliseconds.
const CLOCK: u32 = u32::MAX - 150_000;
/// The round-trip time of a handshake, and the length of segments.
const TRIP: u64 = 100 * MS;
const MSS: u32 = 1000;
/// The time of the first segment.
const BEGIN: Instant = Instant::from_ns(100 * SECOND);

/// A segment that this end has sent.
#[derive(Clone, PartialEq)]
struct Out {
    /// The time since the start of the script in nanoseconds.
    at: u64,
    /// The number of the first byte, by its place in the stream.
    place: u32,
    len: u32,
    /// The number that the segment acknowledges, by its place in the peer's stream.
    ack: u32,
    tcp: Tcp,
    is_ect: bool,
}

impl core::fmt::Debug for Out {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { at, place, len, ack, tcp, .. } = self;
        let (at, flags) = (at / MS, tcp.flags.0);
        write!(f, "[{at} ms: {place} +{len}, {flags:#x}, ack {ack}, window {}]", tcp.window)
    }
}

impl Out {
    fn has(&self, flags: Flags) -> bool {
        self.tcp.flags.has(flags)
    }
}

/// One end of a connection, and the script's state of its peer.
#[derive(Debug)]
struct Script {
    now: Instant,
    /// The time from which on segments sent are dated.
    start: Instant,
    config: TcpConfig,
    connection: Connection,
    path: PathLimits,
    /// The place of the peer's next byte, and of the next byte that this end has not sent.
    peer: u32,
    end: u32,
    /// The window that the peer offers, before it is scaled.
    window: u16,
    /// The times that this end sent last.
    time: u32,
}

/// Returns the options of this script: segments of 1,000 bytes, Reno, SACK, no delay, and no
/// other option.
fn plain() -> TcpConfig {
    TcpConfig {
        timestamps: false,
        window_scaling: false,
        ecn: false,
        no_delay: true,
        congestion: CongestionControl::Reno,
        ..TcpConfig::default()
    }
}

impl Script {
    fn with(config: TcpConfig, connection: Connection) -> Self {
        let path = PathLimits { mss: 1460, link_mss: 1460, most: 0 };
        let (now, start) = (BEGIN, BEGIN);
        let (peer, end, window, time) = (0, 0, 60_000, 0);
        Self { now, start, config, connection, path, peer, end, window, time }
    }

    /// Returns an end that connects, and has sent nothing yet.
    fn connecting(change: impl Fn(&mut TcpConfig)) -> Self {
        let mut config = plain();
        change(&mut config);
        let connection = Connection::connect(BEGIN, &config, (7, 8), OWN, CLOCK);
        Self::with(config, connection)
    }

    /// Returns an end that has received a SYN, and has sent nothing yet.
    fn listening(change: impl Fn(&mut TcpConfig), syn: &Tcp) -> Self {
        let mut config = plain();
        change(&mut config);
        let connection = Connection::accept(BEGIN, &config, syn, OWN, CLOCK).expect("a SYN");
        Self::with(config, connection)
    }

    /// Returns an end whose handshake took a round trip, with all that the options allow.
    fn open(change: impl Fn(&mut TcpConfig)) -> Self {
        Self::open_with(change, |_| {})
    }

    /// Returns an end whose handshake took a round trip. `answer` changes the peer's answer.
    fn open_with(change: impl Fn(&mut TcpConfig), answer: impl Fn(&mut Tcp)) -> Self {
        let mut script = Self::connecting(change);
        script.output();
        script.now = script.now.after(TRIP);
        let mut tcp = script.answer();
        answer(&mut tcp);
        let out = script.input(tcp, &[]);
        assert_eq!(script.connection.state(), TcpState::Established);
        assert_eq!(out.len(), 1, "{out:?}");
        script.start = script.now;
        script
    }

    /// Returns a SYN of the peer with the options that the configuration has.
    fn syn(config: &TcpConfig) -> Tcp {
        let flags = Flags::SYN;
        let flags = if config.ecn { flags.with(Flags::ECE).with(Flags::CWR) } else { flags };
        let options = TcpOptions {
            mss: Some(MSS as u16),
            window_scale: config.window_scaling.then_some(0),
            sack_permitted: config.sack,
            timestamps: config.timestamps.then_some((5000, 0)),
            sack: SackBlocks::default(),
        };
        Tcp { from: 8, to: 7, seq: PEER, flags, window: 60_000, options, ..Tcp::default() }
    }

    /// Returns the peer's answer to the SYN of this end.
    fn answer(&self) -> Tcp {
        let mut tcp = Self::syn(&self.config);
        tcp.flags = Flags::SYN.with(Flags::ACK);
        if self.config.ecn {
            tcp.flags = tcp.flags.with(Flags::ECE);
        }
        tcp.options.timestamps = tcp.options.timestamps.map(|_| (self.peer_time(), self.time));
        Tcp { ack: OWN + 1, window: self.window, ..tcp }
    }

    /// Returns the value of the peer's clock, in milliseconds.
    fn peer_time(&self) -> u32 {
        (self.now.as_ns() / MS) as u32
    }

    /// Returns the header of the peer's next segment, which acknowledges everything.
    fn head(&self, flags: Flags) -> Tcp {
        let times = (self.peer_time(), self.time);
        let timestamps = self.connection.agreed.timestamps.then_some(times);
        Tcp {
            from: 8,
            to: 7,
            seq: (PEER + 1).wrapping_add(self.peer),
            ack: (OWN + 1).wrapping_add(self.end),
            flags: flags.with(Flags::ACK),
            window: self.window,
            urgent: 0,
            options: TcpOptions { timestamps, ..TcpOptions::default() },
        }
    }

    /// Returns an acknowledgement of the data before a place.
    fn ack(&self, place: u32) -> Tcp {
        Tcp { ack: (OWN + 1).wrapping_add(place), ..self.head(Flags::ACK) }
    }

    /// Returns an acknowledgement with SACK blocks.
    fn sack(&self, place: u32, blocks: &[(u32, u32)]) -> Tcp {
        let mut tcp = self.ack(place);
        let seq = |place: u32| (OWN + 1).wrapping_add(place);
        blocks.iter().for_each(|&(a, b)| tcp.options.sack.push((seq(a), seq(b))));
        tcp
    }

    /// Takes a segment, without sending what it causes.
    fn take(&mut self, tcp: Tcp, data: &[u8]) -> Received {
        let segment = Segment { tcp, data, is_marked: false };
        self.connection.input(self.now, &self.config, &segment)
    }

    /// Takes a segment, and returns what this end sends.
    fn input(&mut self, tcp: Tcp, data: &[u8]) -> Vec<Out> {
        let answer = self.take(tcp, data).answer;
        let mut out = self.output();
        out.extend(answer.map(|tcp| self.out(tcp, 0, false)));
        out
    }

    /// Takes an acknowledgement of the data before a place.
    fn acked(&mut self, place: u32) -> Vec<Out> {
        self.input(self.ack(place), &[])
    }

    /// Takes the next data of the peer.
    fn data(&mut self, len: u32) -> Vec<Out> {
        let tcp = self.head(Flags::ACK);
        self.peer += len;
        self.input(tcp, &alloc::vec![7; len as usize])
    }

    /// Takes data of the peer from a place on, at or beyond its next.
    fn data_at(&mut self, place: u32, len: u32) -> Vec<Out> {
        let seq = (PEER + 1).wrapping_add(place);
        self.input(Tcp { seq, ..self.head(Flags::ACK) }, &alloc::vec![7; len as usize])
    }

    fn out(&self, tcp: Tcp, len: u32, is_ect: bool) -> Out {
        let at = self.now.since(self.start);
        let place = tcp.seq.wrapping_sub(OWN + 1);
        Out { at, place, len, ack: tcp.ack.wrapping_sub(PEER + 1), tcp, is_ect }
    }

    /// Sends what can be sent.
    fn output(&mut self) -> Vec<Out> {
        let mut sent = Vec::new();
        let take = &mut |outgoing: &Outgoing<'_>| {
            let (a, b) = outgoing.data;
            sent.push((outgoing.tcp, (a.len() + b.len()) as u32, outgoing.is_ect));
            true
        };
        self.connection.output(self.now, &self.config, &self.path, take);
        let out: Vec<_> = sent.into_iter().map(|(tcp, len, ect)| self.out(tcp, len, ect)).collect();
        for out in &out {
            let has_fin = u32::from(out.has(Flags::FIN));
            if !out.has(Flags::SYN) && (out.len > 0 || has_fin > 0) {
                let end = out.place.wrapping_add(out.len + has_fin);
                self.end = self.end.max(end);
            }
            self.time = out.tcp.options.timestamps.map_or(self.time, |(value, _)| value);
        }
        out
    }

    /// Lets the program write, and returns what this end sends.
    fn write(&mut self, len: u32) -> Vec<Out> {
        let bytes = alloc::vec![9; len as usize];
        assert_eq!(self.connection.write(&self.config, &bytes), len as usize);
        self.output()
    }

    /// Lets the program read.
    fn read(&mut self, len: u32) -> Vec<Out> {
        self.connection.consume(len as usize);
        self.output()
    }

    /// Lets time pass, and returns what timers make this end send.
    fn wait(&mut self, ns: u64) -> Vec<Out> {
        let end = self.now.after(ns);
        let mut out = Vec::new();
        while let Some(at) = self.connection.deadline().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.connection.tick(self.now, &self.config);
            out.extend(self.output());
        }
        self.now = end;
        out
    }

    /// Sets the congestion window.
    fn set_window(&mut self, segments: u32) {
        self.connection.send.congestion.set_window(segments * MSS);
    }

    fn window(&self) -> u32 {
        self.connection.send.congestion.window()
    }

    fn threshold(&self) -> u32 {
        self.connection.send.congestion.threshold()
    }
}

/// Returns the places of the data of segments, in segments of full length.
fn places(out: &[Out]) -> Vec<u32> {
    out.iter().filter(|out| out.len > 0).map(|out| out.place / MSS).collect()
}

/// Returns the times of segments in milliseconds.
fn times(out: &[Out]) -> Vec<u64> {
    out.iter().map(|out| out.at / MS).collect()
}

/// Returns true if this is one segment that only acknowledges.
fn is_ack(out: &[Out]) -> bool {
    out.len() == 1 && out[0].len == 0 && out[0].tcp.flags.without(Flags::ECE) == Flags::ACK
}
