//! Segments that a connection receives (RFC 9293 3.10.7, RFC 5961, RFC 7323).

use super::config::TcpConfig;
use super::congestion::CongestionControl;
use super::connection::{Connection, TcpError, TcpState};
use super::receive::{Due, Taken};
use super::seq::Seq;
use crate::Instant;
use crate::time::SECOND;
use crate::wire::tcp::{Flags, Tcp, TcpOptions};

/// The most challenge acknowledgements a connection sends in a second (RFC 5961 7).
const MOST_CHALLENGES: u8 = 10;

/// A segment that arrived for a connection.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The header of the segment.
    pub tcp: Tcp,
    /// The data of the segment.
    pub data: &'a [u8],
    /// True if the packet was marked on its way: congestion experienced (RFC 3168).
    pub is_marked: bool,
}

impl Segment<'_> {
    /// Returns the number of sequence numbers of the segment (SEG.LEN).
    pub(super) fn len(&self) -> u32 {
        let flags = self.tcp.flags;
        self.data.len() as u32 + u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN))
    }
}

/// Returns the segment that answers to one for which there is no connection: a reset, or nothing
/// (RFC 9293 3.10.7.1).
#[must_use]
pub fn refusal(segment: &Segment<'_>) -> Option<Tcp> {
    let tcp = &segment.tcp;
    if tcp.flags.has(Flags::RST) {
        return None;
    }
    // RFC 7323 5.2: the answer echoes the time, and has none of its own.
    let timestamps = tcp.options.timestamps.map(|(value, _)| (0, value));
    let options = TcpOptions { timestamps, ..TcpOptions::default() };
    let head = Tcp { from: tcp.to, to: tcp.from, options, ..Tcp::default() };
    Some(if tcp.flags.has(Flags::ACK) {
        Tcp { seq: tcp.ack, flags: Flags::RST, ..head }
    } else {
        let ack = tcp.seq.wrapping_add(segment.len());
        Tcp { ack, flags: Flags::RST.with(Flags::ACK), ..head }
    })
}

/// The effect of a segment on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// The number of bytes that became readable.
    pub bytes: usize,
    /// The bytes of the segment's data that are lent to the program: from the first up to, and
    /// without, the second. [`Connection::take_lent`] and [`Connection::keep_lent`] end that.
    pub lent: (usize, usize),
    /// The number of bytes of the segment's data, from the first on, that were kept behind a gap.
    pub ahead: usize,
    /// A segment to send at once: it refuses the peer's, or acknowledges what came before it.
    pub answer: Option<Tcp>,
}

impl Connection {
    /// Takes a segment of the connection's peer. Call [`Connection::output`] after it, or after a
    /// burst of segments.
    pub fn input(&mut self, now: Instant, config: &TcpConfig, segment: &Segment<'_>) -> Received {
        match self.state {
            TcpState::Closed => Received { answer: refusal(segment), ..Received::default() },
            TcpState::SynSent => self.input_syn_sent(now, config, segment),
            _ => self.input_synchronized(now, config, segment),
        }
    }

    /// RFC 9293 3.10.7.3.
    fn input_syn_sent(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        segment: &Segment<'_>,
    ) -> Received {
        let tcp = &segment.tcp;
        let ack = Seq(tcp.ack);
        let has_ack = tcp.flags.has(Flags::ACK);
        let is_acceptable = self.send.initial.is_before(ack) && self.send.next.reaches(ack);
        if has_ack && !is_acceptable {
            return Received { answer: refusal(segment), ..Received::default() };
        }
        if tcp.flags.has(Flags::RST) {
            if has_ack {
                self.end(Some(TcpError::Refused));
            }
            return Received::default();
        }
        if !tcp.flags.has(Flags::SYN) {
            return Received::default();
        }
        self.take_syn(now, config, tcp);
        if !has_ack {
            // Both ends have sent SYNs. This end's is sent again, as an answer.
            self.state = TcpState::SynReceived;
            self.send.board = super::scoreboard::Scoreboard::default();
            self.send.next = self.send.initial;
            return Received::default();
        }
        self.establish(now, config, tcp);
        self.receive.acknowledge_now();
        // Data with a SYN comes again: RFC 7413 is not implemented.
        Received::default()
    }

    /// The handshake is over.
    fn establish(&mut self, now: Instant, config: &TcpConfig, tcp: &Tcp) {
        if self.timers.retries > 0 {
            self.send.rtt.syn_was_lost();
            self.send.congestion.syn_was_lost();
        }
        self.send.phase = super::connection::Phase::Open;
        self.acknowledged(now, config, tcp, 1);
        self.send.recover = self.send.initial;
        let wants_fin = self.send.has_fin;
        self.state = if wants_fin { TcpState::FinWait1 } else { TcpState::Established };
        if let Some(idle_ns) = self.keep_alive_ns(config) {
            self.timers.keep_alive = now.after(idle_ns);
        }
    }

    /// RFC 9293 3.10.7.4.
    fn input_synchronized(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        segment: &Segment<'_>,
    ) -> Received {
        let Segment { tcp, data, .. } = segment;
        let (seq, len, flags) = (Seq(tcp.seq), segment.len(), tcp.flags);
        if !self.is_current(now, config, tcp, len) {
            return Received::default();
        }
        if flags.has(Flags::RST) {
            self.input_reset(now, seq);
            return Received::default();
        }
        if flags.has(Flags::SYN) {
            return self.input_syn(now, config, segment);
        }
        if !flags.has(Flags::ACK) {
            return Received::default();
        }
        let ack = Seq(tcp.ack);
        if self.state == TcpState::SynReceived {
            if !(self.send.una.is_before(ack) && self.send.next.reaches(ack)) {
                return Received { answer: refusal(segment), ..Received::default() };
            }
            self.establish(now, config, tcp);
        } else if !self.take_acknowledgement(now, config, tcp, len) {
            return Received::default();
        }
        if let Some((value, _)) = tcp.options.timestamps.filter(|_| self.agreed.timestamps) {
            self.receive.echo_segment(now, value, seq);
        }
        if let Some(idle_ns) = self.keep_alive_ns(config) {
            self.timers.keep_alive = now.after(idle_ns);
        }
        let answer = self.take_mark(now, config, segment);
        if len == 0 {
            return Received::default();
        }
        match self.input_data(now, config, seq, data, flags) {
            Taken::InOrder(bytes) => Received { bytes, answer, ..Received::default() },
            Taken::Lent(start, end) => {
                Received { lent: (start, end), answer, ..Received::default() }
            }
            Taken::Ahead(ahead) => Received { ahead, answer, ..Received::default() },
            Taken::Nothing => Received { answer, ..Received::default() },
        }
    }

    /// Takes the mark of a segment, or that it has none. With DCTCP each change makes an
    /// acknowledgement due, and another one of what came before, which is returned (RFC 8257 3.2).
    fn take_mark(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        segment: &Segment<'_>,
    ) -> Option<Tcp> {
        let Segment { tcp, data, is_marked } = segment;
        if !self.agreed.ecn {
            return None;
        }
        if config.congestion != CongestionControl::Dctcp {
            self.receive.mark(*is_marked, tcp.flags.has(Flags::CWR));
            return None;
        }
        // Segments without data show no marks.
        if data.is_empty() || self.receive.is_marked() == *is_marked {
            return None;
        }
        let echo = if self.receive.is_marked() { Flags::ECE } else { Flags::default() };
        let before = self.receive.is_unacknowledged();
        let answer = before.then(|| self.header(now, Flags::ACK.with(echo)));
        self.receive.mark_change(*is_marked);
        answer
    }

    /// Handles a SYN in the window, or the peer's SYN that comes again.
    fn input_syn(&mut self, now: Instant, config: &TcpConfig, segment: &Segment<'_>) -> Received {
        let tcp = &segment.tcp;
        if self.state != TcpState::SynReceived || Seq(tcp.seq) != self.receive.initial() {
            self.challenge(now);
            return Received::default();
        }
        if !tcp.flags.has(Flags::ACK) {
            // The answer was lost: the timer sends it again.
            return Received::default();
        }
        // The SYNs of both ends have crossed, and this answers to the one of this end (RFC 9293
        // figure 8).
        let ack = Seq(tcp.ack);
        if !(self.send.una.is_before(ack) && self.send.next.reaches(ack)) {
            return Received { answer: refusal(segment), ..Received::default() };
        }
        self.establish(now, config, tcp);
        self.receive.acknowledge_now();
        Received::default()
    }

    /// Returns true if a segment is in the window and no old duplicate. The peer gets an
    /// acknowledgement for one that is not.
    fn is_current(&mut self, now: Instant, config: &TcpConfig, tcp: &Tcp, len: u32) -> bool {
        let is_reset = tcp.flags.has(Flags::RST);
        if self.agreed.timestamps && !is_reset {
            match tcp.options.timestamps {
                // RFC 7323 3.2: a segment without the option is dropped.
                None if !tcp.flags.has(Flags::SYN) => return false,
                Some((value, _)) if self.receive.is_old(now, value) => {
                    self.answer_wrong(now, len);
                    return false;
                }
                _ => {}
            }
        }
        if self.receive.is_acceptable(Seq(tcp.seq), len) {
            return true;
        }
        if is_reset {
            return false;
        }
        let is_syn_again = self.state == TcpState::SynReceived
            && tcp.flags.has(Flags::SYN)
            && Seq(tcp.seq) == self.receive.initial();
        if is_syn_again && tcp.flags.has(Flags::ACK) {
            return true;
        }
        if !is_syn_again {
            if len > 0 {
                self.receive.duplicate(Seq(tcp.seq), len);
            }
            self.answer_wrong(now, len);
            if self.state == TcpState::TimeWait && tcp.flags.has(Flags::FIN) {
                // The peer has not got the last acknowledgement (RFC 9293 3.10.7.4).
                self.timers.life = now.after(config.time_wait_ns);
            }
        }
        // RFC 9293 3.10.7.4: with a window of 0 acknowledgements still count.
        let is_ack = tcp.flags.has(Flags::ACK) && !tcp.flags.has(Flags::SYN);
        is_ack && self.receive.window() == 0 && Seq(tcp.seq) == self.receive.next()
    }

    /// Acknowledges a segment of `len` sequence numbers that is not acceptable. One without data
    /// may be an acknowledgement itself, to one of this end that the peer does not accept: two ends
    /// that have lost track of each other would go on forever.
    fn answer_wrong(&mut self, now: Instant, len: u32) {
        if len > 0 { self.receive.acknowledge_now() } else { self.challenge(now) }
    }

    /// Handles a reset in the window (RFC 5961 3): only one at exactly the next sequence number
    /// counts.
    fn input_reset(&mut self, now: Instant, seq: Seq) {
        if seq != self.receive.next() {
            return self.challenge(now);
        }
        match self.state {
            // RFC 1337 3: old segments may still arrive after a reset, too.
            TcpState::TimeWait => {}
            TcpState::Closing | TcpState::LastAck => self.end(None),
            TcpState::SynReceived if !self.is_passive => self.end(Some(TcpError::Refused)),
            _ => self.end(Some(TcpError::Reset)),
        }
    }

    /// Asks the peer to prove that it knows the connection's numbers (RFC 5961), if it was not
    /// asked often.
    fn challenge(&mut self, now: Instant) {
        let second = (now.as_ns() / SECOND) as u32;
        let timers = &mut self.timers;
        if timers.challenge_second != second {
            (timers.challenge_second, timers.challenges) = (second, 0);
        }
        if timers.challenges < MOST_CHALLENGES {
            timers.challenges += 1;
            self.receive.acknowledge_now();
        }
    }

    /// Takes the acknowledgement of a segment. Returns false if the segment is to be dropped.
    fn take_acknowledgement(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        tcp: &Tcp,
        len: u32,
    ) -> bool {
        let ack = Seq(tcp.ack);
        let oldest = self.send.una - self.send.most_window.min(1 << 30);
        if self.send.next.is_before(ack) || ack.is_before(oldest) {
            // RFC 5961 5: an acknowledgement of what was never sent, or of long ago.
            self.challenge(now);
            return false;
        }
        if ack.is_before(self.send.una) {
            return true;
        }
        self.acknowledged(now, config, tcp, len);
        let is_all = self.send.has_fin && self.send.una == self.send.next;
        match self.state {
            TcpState::FinWait1 if is_all => self.state = TcpState::FinWait2,
            TcpState::Closing if is_all => self.wait(now, config),
            TcpState::LastAck if is_all => {
                self.end(None);
                return false;
            }
            _ => {}
        }
        true
    }

    /// Takes the data and the FIN of a segment.
    fn input_data(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        seq: Seq,
        data: &[u8],
        flags: Flags,
    ) -> Taken {
        let was_finished = self.receive.is_finished();
        if was_finished {
            // Only what was received before can come again.
            self.receive.acknowledge_now();
            if self.state == TcpState::TimeWait && flags.has(Flags::FIN) {
                self.timers.life = now.after(config.time_wait_ns);
            }
            return Taken::Nothing;
        }
        let taken =
            self.receive.take(seq, data, flags.has(Flags::FIN), self.send.mss, config.ack_segments);
        let wait_ns = match self.receive.due() {
            Due::Held => config.ack_hold_ns,
            _ => config.delayed_ack_ns,
        };
        if matches!(self.receive.due(), Due::Delayed | Due::Held) {
            self.timers.delayed_ack = self.timers.delayed_ack.min(now.after(wait_ns));
        }
        if self.receive.is_finished() {
            self.state = match self.state {
                TcpState::Established | TcpState::SynReceived => TcpState::CloseWait,
                TcpState::FinWait1 => TcpState::Closing,
                TcpState::FinWait2 => {
                    self.wait(now, config);
                    TcpState::TimeWait
                }
                state => state,
            };
        }
        taken
    }

    /// Enters TIME-WAIT.
    fn wait(&mut self, now: Instant, config: &TcpConfig) {
        self.state = TcpState::TimeWait;
        self.timers.stop();
        self.timers.life = now.after(config.time_wait_ns);
    }
}
