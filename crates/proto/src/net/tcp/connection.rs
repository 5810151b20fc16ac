//! A connection: its state, its two directions, and what a program does with it.

use core::ops::Range;

use super::config::TcpConfig;
use super::congestion::{Congestion, CongestionControl};
use super::own::Own;
use super::rack::{Rack, TailProbe};
use super::receive::{Lends, Receive};
use super::records::Records;
use super::ring::{Ring, SpareStorage};
use super::rtt::Rtt;
use super::scoreboard::{Scoreboard, Sent, SpareBoards};
use super::seq::Seq;
use super::timers::Timers;
use crate::Instant;
use crate::net::ip::fields::IpFields;
use crate::time::MS;
use crate::wire::tcp::{Flags, TIMESTAMPS, Tcp, TcpOptions};

/// The state of a connection (RFC 9293 3.3.2). LISTEN has no connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TcpState {
    /// This end has sent its SYN.
    SynSent,
    /// This end has received a SYN and sent its own, and waits for the acknowledgement.
    SynReceived,
    /// Both ends send data.
    Established,
    /// This end has sent its FIN, and the peer's may come.
    FinWait1,
    /// The peer has acknowledged the FIN of this end.
    FinWait2,
    /// The peer has sent its FIN, and this end may still send.
    CloseWait,
    /// Both ends have sent FINs that crossed each other.
    Closing,
    /// This end has sent its FIN after the peer's.
    LastAck,
    /// Both directions have ended. Old segments may still arrive.
    TimeWait,
    /// The connection has ended.
    Closed,
}

/// The reason why a connection has ended before both directions were complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum TcpError {
    /// The peer has no listener at that port.
    #[error("connection refused")]
    Refused,
    /// The peer has reset the connection.
    #[error("connection reset by peer")]
    Reset,
    /// The peer has not acknowledged anything for too long.
    #[error("connection timed out")]
    TimedOut,
}

/// The phase of loss recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nothing is known to be lost.
    Open,
    /// Lost segments are being repaired, by proportional rate reduction (RFC 9937).
    Recovery {
        /// The bytes delivered, and those sent, since the start (prr_delivered, prr_out).
        delivered: u32,
        out: u32,
        /// The bytes in flight at the start (RecoverFS).
        flight: u32,
    },
    /// The retransmission timeout has expired.
    Timeout,
}

/// The sending direction of a connection.
#[derive(Debug)]
pub(super) struct Send {
    /// The initial sequence number, the first that is not acknowledged, and the first that was
    /// never sent (ISS, SND.UNA, SND.NXT).
    pub(super) initial: Seq,
    pub(super) una: Seq,
    pub(super) next: Seq,
    /// The peer's window, and the segment that reported it last (SND.WND, SND.WL1, SND.WL2).
    pub(super) window: u32,
    pub(super) window_seq: Seq,
    pub(super) window_ack: Seq,
    /// The largest window of the peer so far.
    pub(super) most_window: u32,
    /// The shift of the peer's windows.
    pub(super) shift: u8,
    /// The most bytes of payload of a segment, beside the options that each has.
    pub(super) mss: u32,
    /// The limits of `mss`, options included: that of the peer, that of the path, and the length
    /// that every path carries once longer segments have vanished.
    pub(super) peer_mss: u16,
    pub(super) path_mss: u16,
    pub(super) proven_mss: u16,
    /// The data from `una` on that the program has written.
    pub(super) data: Ring,
    pub(super) records: Records,
    /// True if the program has closed this direction, and true if the FIN was sent.
    pub(super) is_closed: bool,
    pub(super) has_fin: bool,
    pub(super) board: Scoreboard,
    pub(super) rtt: Rtt,
    pub(super) rack: Rack,
    pub(super) probe: TailProbe,
    pub(super) congestion: Congestion,
    pub(super) phase: Phase,
    /// SND.NXT at the start of the last recovery: it ends when this is acknowledged.
    pub(super) recover: Seq,
    /// The duplicate acknowledgements in a row, if the peer does not report by SACK.
    pub(super) duplicates: u32,
    /// The window was reduced for a report of congestion, and holds until this is acknowledged.
    pub(super) is_reduced: bool,
    pub(super) reduced_until: Seq,
    /// True if the next new data tells the peer that the window was reduced (CWR).
    pub(super) tells_reduced: bool,
    /// True if the congestion window, and not the program, stopped the last transmission.
    pub(super) is_limited: bool,
    /// The time of the last transmission of data.
    pub(super) last_at: Instant,
    /// The segments that were sent again, and the expiries of the retransmission timeout.
    pub(super) resent: u32,
    pub(super) timeouts: u32,
}

/// The options that both ends have agreed on by their SYNs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreed {
    pub(super) timestamps: bool,
    pub(super) sack: bool,
    pub(super) ecn: bool,
    pub(super) window_scaling: bool,
}

impl Agreed {
    /// Returns what both ends agree on if this end has these options, and the peer sends `syn`.
    pub(super) fn by(config: &TcpConfig, syn: &Tcp) -> Self {
        let options = &syn.options;
        let wants_ecn = if syn.flags.has(Flags::ACK) {
            syn.flags.has(Flags::ECE) && !syn.flags.has(Flags::CWR)
        } else {
            syn.flags.has(Flags::ECE) && syn.flags.has(Flags::CWR)
        };
        Self {
            timestamps: config.timestamps && options.timestamps.is_some(),
            sack: config.sack && options.sack_permitted,
            ecn: config.ecn && wants_ecn,
            window_scaling: config.window_scaling && options.window_scale.is_some(),
        }
    }
}

/// The state that a connection needs in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remains {
    /// SND.NXT and RCV.NXT: the numbers behind the FINs.
    pub(super) next: Seq,
    pub(super) expected: Seq,
    /// The window field of this end's segments.
    pub(super) window: u16,
    /// The latest time of the peer (TS.Recent), if the connection has timestamps.
    pub(super) recent: Option<u32>,
    /// The fields of IP headers that the program has chosen.
    pub(super) fields: IpFields,
}

/// Memory that idle connections have given back.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// Storages for small messages.
    pub(super) rings: SpareStorage,
    pub(super) boards: SpareBoards,
}

/// A TCP connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) state: TcpState,
    pub(super) error: Option<TcpError>,
    pub(super) agreed: Agreed,
    pub(super) send: Send,
    pub(super) receive: Receive,
    pub(super) timers: Timers,
    /// The distance of this end's timestamp clock from the time (RFC 7323 5.4).
    pub(super) clock_offset: u32,
    /// True if the connection began with the peer's SYN.
    pub(super) is_passive: bool,
    /// Ports: this end's and the peer's.
    pub(super) ports: (u16, u16),
    pub(super) own: Own,
}

impl Connection {
    fn new(
        now: Instant,
        config: &TcpConfig,
        state: TcpState,
        ports: (u16, u16),
        initial: u32,
        clock_offset: u32,
    ) -> Self {
        let (initial, mss) = (Seq(initial), DEFAULT_MSS.min(config.mss.into()));
        let send = Send {
            initial,
            una: initial,
            next: initial,
            window: 0,
            window_seq: Seq(0),
            window_ack: Seq(0),
            most_window: 0,
            shift: 0,
            mss,
            peer_mss: mss as u16,
            path_mss: u16::MAX,
            proven_mss: u16::MAX,
            data: Ring::default(),
            records: Records::default(),
            is_closed: false,
            has_fin: false,
            board: Scoreboard::default(),
            rtt: Rtt::default(),
            rack: Rack::default(),
            probe: TailProbe::default(),
            congestion: Congestion::new(config.congestion, mss),
            phase: Phase::Open,
            recover: initial,
            duplicates: 0,
            is_reduced: false,
            reduced_until: initial,
            tells_reduced: false,
            is_limited: false,
            last_at: now,
            resent: 0,
            timeouts: 0,
        };
        Self {
            state,
            error: None,
            agreed: Agreed::default(),
            send,
            receive: Receive::default(),
            timers: Timers::new(now),
            clock_offset,
            is_passive: state == TcpState::SynReceived,
            ports,
            own: Own::default(),
        }
    }

    /// Returns a connection that sends its SYN at the next [`Connection::output`]. `ports` are this
    /// end's and the peer's. `initial` is the initial sequence number (RFC 6528). `clock_offset` is
    /// the distance of the timestamps from the time in milliseconds (RFC 7323 5.4).
    #[must_use]
    pub fn connect(
        now: Instant,
        config: &TcpConfig,
        ports: (u16, u16),
        initial: u32,
        clock_offset: u32,
    ) -> Self {
        Self::new(now, config, TcpState::SynSent, ports, initial, clock_offset)
    }

    /// Returns a connection for the SYN of a peer, or `None` if the segment is none that begins a
    /// connection. It answers at the next [`Connection::output`]. `initial` and `clock_offset` are
    /// as for [`Connection::connect`].
    #[must_use]
    pub fn accept(
        now: Instant,
        config: &TcpConfig,
        syn: &Tcp,
        initial: u32,
        clock_offset: u32,
    ) -> Option<Self> {
        if !is_opening(syn) {
            return None;
        }
        let (state, ports) = (TcpState::SynReceived, (syn.to, syn.from));
        let mut connection = Self::new(now, config, state, ports, initial, clock_offset);
        connection.take_syn(now, config, syn);
        Some(connection)
    }

    /// Takes what the peer's SYN offers.
    pub(super) fn take_syn(&mut self, now: Instant, config: &TcpConfig, syn: &Tcp) {
        let options = &syn.options;
        self.agreed = Agreed::by(config, syn);
        if self.agreed.window_scaling {
            // RFC 7323 2.3: a larger shift counts as 14.
            self.send.shift = options.window_scale.unwrap_or(0).min(super::MAX_SHIFT);
        }
        let shift = if self.agreed.window_scaling { config.window_shift() } else { 0 };
        self.receive.begin(Seq(syn.seq), config.receive_bytes, shift);
        if let Some((value, _)) = options.timestamps.filter(|_| self.agreed.timestamps) {
            self.receive.echo(now, value);
        }
        // RFC 9293 MUST-15: without the option the peer receives 536 bytes.
        self.send.peer_mss = options.mss.unwrap_or(DEFAULT_MSS as u16).min(config.mss);
        self.adapt_mss(config);
        // The window of a SYN is not scaled.
        self.send.window = syn.window.into();
        self.send.most_window = self.send.window;
        self.send.window_seq = Seq(syn.seq);
        self.send.window_ack = Seq(syn.ack);
    }

    /// Computes the length of segments anew. Those in flight that became too long are sent again in
    /// parts, and do not count as a sign of congestion (RFC 1191 6.4, RFC 8201 5.4).
    pub(super) fn adapt_mss(&mut self, config: &TcpConfig) {
        let send = &mut self.send;
        let options = if self.agreed.timestamps { TIMESTAMPS } else { 0 };
        let limit = send.peer_mss.min(send.path_mss).min(send.proven_mss);
        let mss = u32::from(limit).saturating_sub(options as u32).max(LEAST_MSS);
        let before = core::mem::replace(&mut send.mss, mss);
        // Wrapped, since a connection sends more than 2 GiB.
        if send.next.0.wrapping_sub(send.initial.0) <= 1 {
            let has_marks = self.agreed.ecn || config.congestion != CongestionControl::Dctcp;
            let control = if has_marks { config.congestion } else { CongestionControl::Reno };
            send.congestion = Congestion::new(control, mss);
            return;
        }
        send.congestion.set_mss(mss);
        if mss < before {
            let (has_fin, next) = (send.has_fin, send.next);
            let is_fin = |sent: &Sent| has_fin && sent.end() == next;
            send.board.declare(|sent| Some(sent.len > mss + u32::from(is_fin(sent))));
        }
    }

    /// Returns true if the peer has not acknowledged this sequence number, and this end has sent
    /// it.
    #[must_use]
    pub fn is_in_flight(&self, seq: u32) -> bool {
        let (seq, send) = (Seq(seq), &self.send);
        self.state != TcpState::Closed && seq.reaches(send.una) && seq.is_before(send.next)
    }

    /// Takes the report that no program listens at the peer's port. It ends a connection in its
    /// handshake.
    pub fn unreachable(&mut self) {
        if self.state == TcpState::SynSent {
            self.end(Some(TcpError::Refused));
        }
    }

    /// Returns the most bytes of data that one segment to the peer has now.
    #[must_use]
    pub const fn mss(&self) -> u32 {
        self.send.mss
    }

    /// Returns the state of the connection.
    #[must_use]
    pub const fn state(&self) -> TcpState {
        self.state
    }

    /// Returns the reason why the connection has ended early, if it has.
    #[must_use]
    pub const fn error(&self) -> Option<TcpError> {
        self.error
    }

    // What a program does.

    /// Returns true if the program may still write.
    #[must_use]
    pub const fn may_send(&self) -> bool {
        use TcpState::{CloseWait, Established, SynReceived, SynSent};
        let is_open = matches!(self.state, SynSent | SynReceived | Established | CloseWait);
        is_open && !self.send.is_closed
    }

    /// Returns the number of bytes that the program can write now.
    #[must_use]
    pub fn writable(&self, config: &TcpConfig) -> usize {
        if !self.may_send() {
            return 0;
        }
        (config.send_bytes as usize).saturating_sub(self.send.data.len())
    }

    /// Takes as many of `bytes` as the send buffer has room for. Returns their number.
    pub fn write(&mut self, config: &TcpConfig, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.writable(config));
        self.send.data.push(&bytes[..count]);
        if self.send.records.is_used() {
            self.send.records.push(count as u32);
        }
        count
    }

    /// Takes the concatenation of `parts` to send as a record, which begins a segment and ends with
    /// it, if the send buffer has room for all of it. Keep it within [`Connection::mss`] bytes: a
    /// longer record leaves in several segments. Returns true if the record was taken.
    pub fn write_record(&mut self, config: &TcpConfig, parts: &[&[u8]]) -> bool {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > self.writable(config) {
            return false;
        }
        let unsent = self.unsent();
        self.send.records.begin(unsent);
        parts.iter().for_each(|part| self.send.data.push(part));
        self.send.records.push(len as u32);
        true
    }

    /// Returns the number of received bytes that the program can read.
    #[must_use]
    pub const fn readable(&self) -> usize {
        self.receive.readable()
    }

    /// Returns received bytes in two pieces, without removing them.
    #[must_use]
    pub fn peek(&self, range: Range<usize>) -> (&[u8], &[u8]) {
        self.receive.peek(range)
    }

    /// Removes `count` bytes that the program has read.
    pub fn consume(&mut self, count: usize) {
        self.receive.consume(count, self.send.mss);
    }

    /// Lets data in order be lent to the program instead of copied ([`Received::lent`]), while no
    /// earlier data waits to be read.
    ///
    /// [`Received::lent`]: super::input::Received::lent
    pub const fn lend(&mut self, lends: bool) {
        self.receive.lends = if lends { Lends::InOrder } else { Lends::Nothing };
    }

    /// Returns the number of bytes of the stream before a sequence number, modulo 2³².
    #[must_use]
    pub const fn offset(&self, seq: u32) -> u32 {
        self.receive.offset(seq)
    }

    /// Ends the lending of the next `count` bytes, which the program has taken.
    pub fn take_lent(&mut self, count: usize) {
        self.receive.take_lent(count as u32, self.send.mss);
    }

    /// Ends the lending of the next bytes, which the program has not taken: it can read them
    /// later.
    pub fn keep_lent(&mut self, bytes: &[u8]) {
        self.receive.keep_lent(bytes);
    }

    /// Returns true if the peer has closed its direction, and the program has read everything.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        let receive = &self.receive;
        receive.is_finished() && receive.readable() == 0 && receive.lent() == 0
    }

    /// Closes this end's direction: the peer gets what was written, and then the end (FIN).
    pub fn close(&mut self) {
        self.send.is_closed = true;
        if self.state == TcpState::SynSent {
            self.end(None);
        }
    }

    /// Ends the connection at once. Returns the segment that resets the peer's end, if it has one.
    pub fn abort(&mut self) -> Option<Tcp> {
        use TcpState::{Closed, SynSent, TimeWait};
        let reset = (!matches!(self.state, SynSent | TimeWait | Closed)).then(|| self.reset());
        self.end(None);
        reset
    }

    /// Ends the connection.
    pub(super) fn end(&mut self, error: Option<TcpError>) {
        self.state = TcpState::Closed;
        self.error = self.error.or(error);
        self.timers.stop();
        self.send.board = Scoreboard::default();
        self.send.data = Ring::default();
    }

    /// Returns the memory that an idle connection has beside its own, in bytes.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        let board = self.send.board.capacity() * size_of::<Sent>();
        board + self.send.data.capacity() + self.receive.kept_bytes()
    }

    /// Gives back the memory that is kept for the next transmission, because none will come soon.
    pub(super) fn give_back(&mut self, spare: &mut Spare) {
        self.send.board.give_back(&mut spare.boards);
        self.send.data.give_back(&mut spare.rings);
        self.receive.give_back(&mut spare.rings);
    }

    /// Takes spare memory for a small message to send.
    pub(super) fn take_spare(&mut self, spare: &mut Spare) {
        self.send.board.take_spare(&mut spare.boards);
        self.send.data.take_spare(&mut spare.rings);
    }

    /// Returns what is left of a connection in TIME-WAIT, whose IP headers have these fields, and
    /// the end of that.
    pub(super) fn remains(&mut self, fields: IpFields) -> (Remains, Instant) {
        let remains = Remains {
            next: self.send.next,
            expected: self.receive.next(),
            window: self.receive.window_field(),
            recent: self.agreed.timestamps.then(|| self.receive.echoed()),
            fields,
        };
        (remains, self.timers.life)
    }

    /// Returns the header of a segment with the next sequence number of this end.
    pub(super) fn header(&mut self, now: Instant, flags: Flags) -> Tcp {
        let timestamps = self.agreed.timestamps.then(|| (self.clock(now), self.receive.echoed()));
        Tcp {
            from: self.ports.0,
            to: self.ports.1,
            seq: self.send.next.0,
            ack: self.receive.next().0,
            flags,
            window: self.receive.window_field(),
            urgent: 0,
            options: TcpOptions { timestamps, ..TcpOptions::default() },
        }
    }

    /// Returns the segment that resets the peer's end. Its time is that of the last data: the host
    /// sets it when it sends the segment.
    pub(super) fn reset(&mut self) -> Tcp {
        let flags = Flags::RST.with(Flags::ACK);
        Tcp { window: 0, ..self.header(self.send.last_at, flags) }
    }

    /// Returns the value of this end's timestamp clock, in milliseconds.
    pub(super) fn clock(&self, now: Instant) -> u32 {
        clock(now, self.clock_offset)
    }
}

/// Returns the value of the timestamp clock of connections with this offset, in milliseconds.
pub(super) fn clock(now: Instant, offset: u32) -> u32 {
    ((now.as_ns() / MS) as u32).wrapping_add(offset)
}

/// Returns true if a segment begins a connection.
pub(super) fn is_opening(syn: &Tcp) -> bool {
    syn.flags.has(Flags::SYN) && !syn.flags.has(Flags::ACK.with(Flags::RST).with(Flags::FIN))
}

/// The MSS of a peer that offers none (RFC 9293 MUST-15).
pub(super) const DEFAULT_MSS: u32 = 536;
/// The least MSS that is used, whatever the peer offers: a smaller one would only cost both ends.
const LEAST_MSS: u32 = 48;
