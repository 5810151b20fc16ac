//! Segments that a connection sends.

use super::config::TcpConfig;
use super::connection::{Connection, Phase, TcpState};
use super::receive::Due;
use super::scoreboard::Sent;
use super::seq::Seq;
use super::timers::Wanted;
use crate::Instant;
use crate::time::MS;
use crate::wire::tcp::{Flags, SackBlocks, Tcp, TcpOptions};

/// A segment to send, or several that the device cuts from one.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The header of the segment.
    pub tcp: Tcp,
    /// The data of the segment, in two pieces.
    pub data: (&'a [u8], &'a [u8]),
    /// The most bytes of data a segment may have. If there are more, the device cuts them.
    pub mss: u32,
    /// True if the packet shows that both ends understand marks of congestion: ECT(0) (RFC 3168).
    pub is_ect: bool,
}

/// The sizes of the segments that the way to a peer carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathLimits {
    /// The most bytes behind the fixed TCP header that a packet on the path has room for, options
    /// included: the path MTU without the IP header and 20 bytes.
    pub mss: u16,
    /// The room of a packet on the link of this end: the MSS that it offers to its peer (RFC 6691).
    pub link_mss: u16,
    /// The bytes of data that one call of `emit` may have: more than a segment if the device cuts
    /// segments, else 0.
    pub most: u32,
}

/// The time for which a window that is too small for a segment holds data back at most.
const OVERRIDE_NS: u64 = 500 * MS;

/// Takes segments to send. Returns false if there is no room for the segment.
pub type Emit<'a> = dyn FnMut(&Outgoing<'_>) -> bool + 'a;

/// The reason for a transmission that is no retransmission.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// There is nothing more to send, or the peer's window or Nagle's algorithm holds it back.
    Done,
    /// The congestion window is full.
    Congestion,
    /// There was no room for the segment.
    Full,
}

/// New data to send.
#[derive(Clone, Copy, Debug)]
struct New {
    len: u32,
    /// The length of each segment but the last.
    unit: u32,
    has_fin: bool,
}

/// The place of data in the stream and in the send buffer.
#[derive(Clone, Copy, Debug)]
struct Place {
    seq: Seq,
    at: usize,
    len: usize,
    /// The length of each segment but the last.
    unit: u32,
}

impl Connection {
    /// Returns true if [`Connection::output`] may have something to do.
    #[inline]
    pub(super) fn may_output(&self) -> bool {
        let send = &self.send;
        !matches!(self.state, TcpState::Established | TcpState::CloseWait)
            || self.receive.due() == Due::Now
            || send.is_closed
            || send.board.lost() > 0
            || self.timers.wants != Wanted::Nothing
            || self.unsent() > 0
    }

    /// Sends what can be sent now in segments that `path` carries. Returns false if `emit` had no
    /// room.
    pub fn output(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        path: &PathLimits,
        emit: &mut Emit<'_>,
    ) -> bool {
        if self.send.path_mss != path.mss {
            self.send.path_mss = path.mss;
            self.adapt_mss(config);
        }
        let has_room = match self.state {
            TcpState::Closed => return true,
            TcpState::SynSent | TcpState::SynReceived => {
                self.output_syn(now, config, path.link_mss, emit)
            }
            _ => self.output_data(now, config, path.most, emit),
        };
        has_room && self.output_ack(now, emit)
    }

    fn output_syn(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        link_mss: u16,
        emit: &mut Emit<'_>,
    ) -> bool {
        let is_first = self.send.next == self.send.initial;
        if !is_first && self.send.board.lost() == 0 {
            return true;
        }
        let is_answer = self.state == TcpState::SynReceived;
        let agreed = self.agreed;
        let mut flags = if is_answer { Flags::SYN.with(Flags::ACK) } else { Flags::SYN };
        // RFC 3168 6.1.1.1: a SYN that was lost may have been lost for its flags.
        if is_answer && agreed.ecn {
            flags = flags.with(Flags::ECE);
        } else if !is_answer && config.ecn && self.timers.retries < 2 {
            flags = flags.with(Flags::ECE).with(Flags::CWR);
        }
        let offers = |agreed: bool, option: bool| if is_answer { agreed } else { option };
        let echo = if is_answer { self.receive.echoed() } else { 0 };
        let options = TcpOptions {
            mss: Some(config.mss.min(link_mss)),
            window_scale: offers(agreed.window_scaling, config.window_scaling)
                .then(|| config.window_shift()),
            sack_permitted: offers(agreed.sack, config.sack),
            timestamps: offers(agreed.timestamps, config.timestamps)
                .then(|| (self.clock(now), echo)),
            sack: SackBlocks::default(),
        };
        let window = config.syn_window();
        let ack = if is_answer { self.receive.next().0 } else { 0 };
        let (from, to) = self.ports;
        let seq = self.send.initial.0;
        let tcp = Tcp { from, to, seq, ack, flags, window, urgent: 0, options };
        if !emit(&Outgoing { tcp, data: (&[], &[]), mss: self.send.mss, is_ect: false }) {
            return false;
        }
        if is_answer {
            self.receive.acknowledge();
        }
        if is_first {
            self.send.board.push(Sent::new(self.send.initial, 1, now));
            self.send.next = self.send.initial + 1;
            self.send.una = self.send.initial;
            self.timers.progress = now;
        } else {
            self.send.board.sent_again(self.send.initial, 1, now);
            self.send.resent = self.send.resent.wrapping_add(1);
        }
        self.start_retransmit(now, config);
        true
    }

    fn output_data(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        most: u32,
        emit: &mut Emit<'_>,
    ) -> bool {
        if !self.output_lost(now, config, emit) {
            return false;
        }
        let wants = self.timers.wants;
        if wants != Wanted::Nothing {
            let is_sent = match wants {
                Wanted::TailProbe => self.output_tail_probe(now, config, emit),
                _ => self.output_window_probe(now, config, wants, emit),
            };
            if !is_sent {
                return false;
            }
            self.timers.wants = Wanted::Nothing;
        }
        let is_idle = self.send.board.is_empty()
            && now.since(self.send.last_at) > self.send.rtt.timeout_ns(config.min_timeout_ns);
        if is_idle && self.send.data.len() > 0 {
            self.send.congestion.idle();
        }
        let stop = loop {
            match self.next_new(config, most) {
                Ok(new) => {
                    if !self.emit_new(now, config, new, emit) {
                        break Stop::Full;
                    }
                }
                Err(stop) => break stop,
            }
        };
        self.send.is_limited = stop == Stop::Congestion;
        self.watch_window(now, config);
        stop != Stop::Full
    }

    /// Sends what counts as lost again, as far as the congestion window allows.
    fn output_lost(&mut self, now: Instant, config: &TcpConfig, emit: &mut Emit<'_>) -> bool {
        while let Some(lost) = self.send.board.first_lost() {
            let len = self.repeated(&lost);
            let pipe = self.pipe();
            if pipe > 0 && pipe + len > self.send.congestion.window() {
                break;
            }
            if !self.emit_again(now, config, lost.seq, len, emit) {
                return false;
            }
            if let Phase::Recovery { out, .. } = &mut self.send.phase {
                *out = out.saturating_add(len);
            }
        }
        true
    }

    /// Returns the length in which a segment is sent again: all of it, or as much as fits if the
    /// MSS has fallen.
    fn repeated(&self, sent: &Sent) -> u32 {
        let mss = self.send.mss;
        if sent.len <= mss + u32::from(self.is_fin(sent)) { sent.len } else { mss }
    }

    /// Returns true if the segment ends with the FIN of this end.
    fn is_fin(&self, sent: &Sent) -> bool {
        self.send.has_fin && sent.end() == self.send.next
    }

    /// Returns the sequence number of the first byte of data that is not acknowledged.
    pub(super) fn data_start(&self) -> Seq {
        // Numbers compare within 2 GiB, so that the distance from the first one says nothing.
        let is_opening = matches!(self.state, TcpState::SynSent | TcpState::SynReceived);
        self.send.una + u32::from(is_opening)
    }

    /// Returns the number of bytes that were never sent.
    pub(super) fn unsent(&self) -> u32 {
        let sent = self.send.next.since(self.data_start());
        (self.send.data.len() as u32).saturating_sub(sent)
    }

    /// Returns the number of bytes beyond SND.NXT that the peer has room for.
    fn open_window(&self) -> u32 {
        self.send.window.saturating_sub(self.send.next.since(self.send.una))
    }

    /// Sends `len` sequence numbers from `seq` on again.
    fn emit_again(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        seq: Seq,
        len: u32,
        emit: &mut Emit<'_>,
    ) -> bool {
        let at = seq.since(self.data_start()) as usize;
        let bytes = (len as usize).min(self.send.data.len() - at);
        let has_fin = bytes < len as usize;
        let mut flags = Flags::ACK.with(Flags::PSH);
        if has_fin {
            flags = flags.with(Flags::FIN);
        }
        let place = Place { seq, at, len: bytes, unit: self.send.mss };
        if !self.emit_data(now, place, flags, false, emit) {
            return false;
        }
        self.send.board.sent_again(seq, len, now);
        self.send.resent = self.send.resent.wrapping_add(1);
        if self.timers.retransmit == Instant::NEVER {
            self.start_retransmit(now, config);
        }
        true
    }

    /// Returns the next new data to send.
    fn next_new(&self, config: &TcpConfig, most: u32) -> Result<New, Stop> {
        let send = &self.send;
        if send.has_fin {
            return Err(Stop::Done);
        }
        let left = self.unsent();
        let wants_fin = send.is_closed;
        if left == 0 && !wants_fin {
            return Err(Stop::Done);
        }
        let flight = send.next.since(send.una);
        let by_congestion = send.congestion.window().saturating_sub(self.pipe());
        let room = self.open_window().min(by_congestion);
        if let Some(batch) = send.records.next(room, most, send.mss) {
            if batch.len == 0 {
                let is_held = batch.unit.min(left) > self.open_window();
                return Err(if is_held { Stop::Done } else { Stop::Congestion });
            }
            let has_fin = wants_fin && batch.len == left;
            return Ok(New { len: batch.len, unit: batch.unit, has_fin });
        }
        let mut len = left.min(self.open_window()).min(most.max(send.mss));
        if len > by_congestion {
            // A whole segment, or nothing: short ones would only cost.
            len = by_congestion / send.mss * send.mss;
            if len == 0 {
                return Err(Stop::Congestion);
            }
        }
        if len > send.mss {
            // Segments of full size, which a device can cut.
            len = len / send.mss * send.mss;
        }
        let is_last = len == left;
        if left > 0 && len < send.mss {
            // Silly window avoidance (RFC 9293 3.8.6.2.1) and Nagle's algorithm (3.7.4).
            let may_be_short = is_last && (self.no_delay(config) || wants_fin || flight == 0);
            let is_half = len > 0 && len >= send.most_window / 2;
            if !may_be_short && !is_half {
                return Err(Stop::Done);
            }
        }
        // The FIN needs no window: the peer always has room for it.
        Ok(New { len, unit: send.mss, has_fin: wants_fin && is_last })
    }

    /// Sends new data, and the FIN.
    fn emit_new(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        new: New,
        emit: &mut Emit<'_>,
    ) -> bool {
        let New { len, unit, has_fin } = new;
        let seq = self.send.next;
        let at = seq.since(self.data_start());
        let is_last = (at + len) as usize == self.send.data.len();
        let mut flags = Flags::ACK;
        if is_last && len > 0 {
            flags = flags.with(Flags::PSH);
        }
        if has_fin {
            flags = flags.with(Flags::FIN);
        }
        if self.send.tells_reduced && len > 0 {
            flags = flags.with(Flags::CWR);
        }
        let place = Place { seq, at: at as usize, len: len as usize, unit };
        if !self.emit_data(now, place, flags, self.agreed.ecn, emit) {
            return false;
        }
        if len > 0 {
            self.send.tells_reduced = false;
        }
        self.record(now, config, new);
        true
    }

    /// Records new segments that were sent.
    fn record(&mut self, now: Instant, config: &TcpConfig, new: New) {
        let New { len, unit, has_fin } = new;
        let send = &mut self.send;
        send.records.sent(len);
        if send.board.is_empty() {
            self.timers.progress = now;
        }
        let total = len + u32::from(has_fin);
        let mut left = total;
        while left > 0 {
            // The FIN belongs to the last segment.
            let is_end = left <= unit + u32::from(has_fin);
            let part = if is_end { left } else { unit };
            send.board.push(Sent::new(send.next, part, now));
            send.next = send.next + part;
            left -= part;
        }
        if let Phase::Recovery { out, .. } = &mut send.phase {
            *out = out.saturating_add(total);
        }
        send.last_at = now;
        if has_fin {
            send.has_fin = true;
            self.state = match self.state {
                TcpState::CloseWait => TcpState::LastAck,
                _ => TcpState::FinWait1,
            };
        }
        if self.timers.retransmit == Instant::NEVER {
            self.start_retransmit(now, config);
        }
        self.start_probe(now);
    }

    fn emit_data(
        &mut self,
        now: Instant,
        place: Place,
        mut flags: Flags,
        is_ect: bool,
        emit: &mut Emit<'_>,
    ) -> bool {
        let Place { seq, at, len, unit } = place;
        if self.receive.is_marked() {
            flags = flags.with(Flags::ECE);
        }
        let tcp = Tcp { seq: seq.0, ..self.header(now, flags) };
        let is_ect = is_ect && len > 0;
        let data = self.send.data.get(at..at + len);
        if !emit(&Outgoing { tcp, data, mss: unit, is_ect }) {
            return false;
        }
        // Blocks have no room beside a full segment, and go with a segment of their own.
        if !self.receive.has_blocks() {
            self.receive.acknowledge();
            self.timers.delayed_ack = Instant::NEVER;
        }
        true
    }

    /// Returns one segment of new data, as long as the peer's window allows. `splits` is true if
    /// that may split a record.
    fn next_forced(&self, splits: bool) -> New {
        let (left, mss) = (self.unsent(), self.send.mss);
        let room = left.min(self.open_window()).min(mss);
        let len = match self.send.records.next(room, 0, mss) {
            Some(batch) if batch.len > 0 => batch.len.min(batch.unit),
            Some(_) if !splits => 0,
            _ => room,
        };
        New { len, unit: mss, has_fin: splits && self.send.is_closed && len == left }
    }

    /// Sends a tail loss probe: new data, or else the last segment again (RFC 8985 7.3).
    fn output_tail_probe(&mut self, now: Instant, config: &TcpConfig, emit: &mut Emit<'_>) -> bool {
        let new = self.next_forced(false);
        if new.len > 0 && !self.send.has_fin {
            if !self.emit_new(now, config, new, emit) {
                return false;
            }
            self.send.probe.sent(self.send.next, false);
        } else if let Some(last) = self.send.board.segments().back().copied() {
            let len = self.repeated(&last);
            if !self.emit_again(now, config, last.seq, len, emit) {
                return false;
            }
            self.send.probe.sent(self.send.next, true);
        }
        self.timers.probe = Instant::NEVER;
        self.start_retransmit(now, config);
        true
    }

    /// Sends a byte beyond the peer's closed window, or an old number, so that the peer reports its
    /// window (RFC 9293 3.8.6.1, 3.8.4).
    fn output_window_probe(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        wants: Wanted,
        emit: &mut Emit<'_>,
    ) -> bool {
        let new = self.next_forced(true);
        if wants == Wanted::WindowProbe && new.len > 0 {
            // The window is open, and too small for silly window avoidance.
            return self.emit_new(now, config, new, emit);
        }
        let seq = self.send.una - 1;
        let tcp = Tcp { seq: seq.0, ..self.header(now, Flags::ACK) };
        if !emit(&Outgoing { tcp, data: (&[], &[]), mss: self.send.mss, is_ect: false }) {
            return false;
        }
        if wants == Wanted::WindowProbe {
            self.timers.retries = self.timers.retries.saturating_add(1);
            self.send.rtt.back_off();
            self.timers.persist = Instant::NEVER;
            self.watch_window(now, config);
        }
        true
    }

    /// Starts the timer that probes a window which holds back all data.
    fn watch_window(&mut self, now: Instant, config: &TcpConfig) {
        let is_held = self.send.board.is_empty() && self.unsent() > 0;
        if !is_held {
            self.timers.persist = Instant::NEVER;
        } else if self.timers.persist == Instant::NEVER {
            let wait_ns = self.send.rtt.timeout_ns(config.min_timeout_ns);
            // An open window that is too small is overridden within a second (RFC 9293 MUST-38).
            let most_ns = if self.send.window > 0 { OVERRIDE_NS } else { u64::MAX };
            self.timers.persist = now.after(wait_ns.min(most_ns));
        }
    }

    /// Sends an acknowledgement without data, if one is due.
    fn output_ack(&mut self, now: Instant, emit: &mut Emit<'_>) -> bool {
        let is_open = !matches!(self.state, TcpState::SynSent | TcpState::SynReceived);
        while is_open && self.receive.due() == Due::Now {
            let mut flags = Flags::ACK;
            if self.receive.is_marked() {
                flags = flags.with(Flags::ECE);
            }
            self.receive.open(self.send.mss);
            let mut tcp = self.header(now, flags);
            if self.agreed.sack {
                tcp.options.sack = self.receive.blocks();
            }
            if !emit(&Outgoing { tcp, data: (&[], &[]), mss: self.send.mss, is_ect: false }) {
                return false;
            }
            if self.agreed.sack {
                self.receive.acknowledge();
            } else {
                self.receive.acknowledge_one();
            }
            self.timers.delayed_ack = Instant::NEVER;
        }
        true
    }
}
