//! Acknowledgements that a connection receives: what was delivered, what is lost, and how far the
//! congestion window opens.

use super::config::TcpConfig;
use super::congestion::Acked;
use super::connection::{Connection, Phase};
use super::seq::Seq;
use super::timers::Wanted;
use crate::Instant;
use crate::time::MS;
use crate::wire::tcp::{Flags, Tcp};

/// The number of duplicate acknowledgements that proves a loss to a sender without SACK (RFC 5681
/// 3.2).
const DUPLICATES: u32 = 3;
/// The longest time by which a peer delays an acknowledgement (TLP.max_ack_delay in RFC 8985).
const MAX_ACK_DELAY_NS: u64 = 200 * MS;

/// The news of one acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    /// The bytes that are delivered for the first time.
    delivered: u32,
    /// The bytes by which SND.UNA has advanced.
    advanced: u32,
    /// The time at which the oldest segment acknowledged first was sent, if it was sent once.
    sent_at: Option<Instant>,
    /// True if some of it had been sent more than once.
    was_again: bool,
    /// The end of a range that the peer received twice.
    duplicate: Option<Seq>,
    has_blocks: bool,
}

impl Connection {
    /// Takes the acknowledgement of a segment whose acknowledgement number is acceptable: from
    /// SND.UNA up to SND.NXT. `len` is the number of sequence numbers of the segment.
    pub(super) fn acknowledged(&mut self, now: Instant, config: &TcpConfig, tcp: &Tcp, len: u32) {
        let ack = Seq(tcp.ack);
        let flight = self.send.next.since(self.send.una);
        let pipe = self.pipe();
        let had_window = self.send.window;
        self.update_window(tcp);
        if had_window == 0 || self.send.window == 0 {
            // A peer that answers may keep its window closed, also below what is in flight (RFC
            // 9293 SHLD-17).
            (self.timers.progress, self.timers.retries) = (now, 0);
        }
        let is_plain = len == 0 && ack == self.send.una && self.send.window == had_window;
        let news = self.deliver(now, tcp);
        self.send.una = ack;
        if news.advanced > 0 {
            // Of the segments that duplicates have counted, some are acknowledged now.
            let segments = news.advanced.div_ceil(self.send.mss);
            let left = self.send.duplicates.saturating_sub(segments.saturating_sub(1));
            let is_recovering = matches!(self.send.phase, Phase::Recovery { .. });
            self.send.duplicates = if is_recovering { left } else { 0 };
            self.timers.retries = 0;
            self.timers.progress = now;
            self.own.forget_error();
            self.send.rtt.forget_backoff();
        } else if is_plain && flight > 0 && !self.agreed.sack {
            self.send.duplicates = self.send.duplicates.saturating_add(1);
        }
        self.measure(now, tcp, &news);
        let send = &mut self.send;
        send.rack.duplicates(send.una, send.next, news.duplicate.is_some());
        let is_plain_duplicate = is_plain && !news.has_blocks;
        if send.probe.acknowledged(ack, news.duplicate, is_plain_duplicate)
            && send.phase == Phase::Open
        {
            send.congestion.reduce(flight);
            send.congestion.set_window(send.congestion.threshold());
        }
        let has_lost = self.find_losses(now, &news) > 0;
        self.echoed_congestion(tcp, flight, news.advanced);
        self.adjust_window(now, &news, has_lost, pipe);
        self.restart_timers(now, config, &news);
    }

    /// Returns the number of bytes that the network is believed to hold. Without SACK, each
    /// duplicate acknowledgement says that one segment has left it (RFC 6582).
    pub(super) fn pipe(&self) -> u32 {
        let left = self.send.duplicates.saturating_mul(self.send.mss);
        self.send.board.pipe().saturating_sub(left)
    }

    /// Takes the window of a segment, unless an older segment has a newer one (RFC 9293 3.10.7.4).
    fn update_window(&mut self, tcp: &Tcp) {
        let send = &mut self.send;
        let (seq, ack) = (Seq(tcp.seq), Seq(tcp.ack));
        if send.window_seq.is_before(seq) || send.window_seq == seq && ack.reaches(send.window_ack)
        {
            let shift = if tcp.flags.has(Flags::SYN) { 0 } else { send.shift };
            send.window = u32::from(tcp.window) << shift;
            send.most_window = send.most_window.max(send.window);
            (send.window_seq, send.window_ack) = (seq, ack);
        }
        if send.window > 0 {
            self.timers.persist = Instant::NEVER;
            if self.timers.wants == Wanted::WindowProbe {
                self.timers.wants = Wanted::Nothing;
            }
        }
    }

    /// Removes what is acknowledged, and marks what SACK reports.
    fn deliver(&mut self, now: Instant, tcp: &Tcp) -> News {
        let ack = Seq(tcp.ack);
        let echo = tcp.options.timestamps.filter(|_| self.agreed.timestamps).map(|(_, echo)| echo);
        let clock_offset = self.clock_offset;
        let data_start = self.data_start();
        let mut news = News { advanced: ack.since(self.send.una), ..News::default() };
        let send = &mut self.send;
        let (rack, rtt) = (&mut send.rack, &send.rtt);
        let mut deliver = |sent: &super::scoreboard::Sent, is_in_order: bool| {
            news.delivered += sent.len;
            news.was_again |= sent.is_again;
            if !sent.is_again {
                news.sent_at = news.sent_at.or(Some(sent.at));
            }
            // The echo is of an earlier transmission of the segment. That of a segment behind a gap
            // is of the last one before the gap (RFC 7323 4.3), and says nothing.
            let sent_clock = ((sent.at.as_ns() / MS) as u32).wrapping_add(clock_offset);
            let is_before = |echo: u32| (echo.wrapping_sub(sent_clock) as i32) < 0;
            let is_earlier = is_in_order && echo.is_some_and(is_before);
            rack.delivered(now, sent, is_earlier, rtt);
        };
        send.board.acknowledge(ack, |sent| deliver(sent, true));
        let mut duplicate = None;
        if self.agreed.sack {
            let blocks = tcp.options.sack.as_slice();
            for (i, &(left, right)) in blocks.iter().enumerate() {
                let (left, right) = (Seq(left), Seq(right));
                let is_inside =
                    |&(l, r): &(u32, u32)| i == 0 && left.reaches(Seq(l)) && Seq(r).reaches(right);
                if i == 0 && (ack.reaches(right) || blocks.get(1).is_some_and(is_inside)) {
                    // RFC 2883 4: the first block reports a duplicate.
                    duplicate = Some(right);
                }
                // A block that names what was never sent, or nothing, is ignored.
                let is_sane = left.is_before(right) && left.reaches(ack);
                if is_sane && send.next.reaches(right) {
                    send.board.sack(left, right, |sent| deliver(sent, false));
                }
            }
            news.has_blocks = !blocks.is_empty();
        }
        news.duplicate = duplicate;
        // The SYN takes a number and no byte, and so does the FIN.
        let bytes = (ack.since(data_start) as usize).min(send.data.len());
        send.data.remove(bytes);
        if send.data.len() == 0 && send.board.is_empty() {
            send.data.free();
        }
        news
    }

    /// Measures the round-trip time (RFC 6298 3: never by a segment that was sent again, unless a
    /// timestamp tells which transmission it was).
    fn measure(&mut self, now: Instant, tcp: &Tcp, news: &News) {
        let rtt_ns = match (news.sent_at, tcp.options.timestamps) {
            (Some(at), _) if !news.was_again => now.since(at),
            (_, Some((_, echo))) if news.advanced > 0 && self.agreed.timestamps && echo != 0 => {
                let now_ms = ((now.as_ns() / MS) as u32).wrapping_add(self.clock_offset);
                let ms = now_ms.wrapping_sub(echo);
                if ms >= 1 << 20 {
                    return;
                }
                u64::from(ms.max(1)) * MS
            }
            _ => return,
        };
        self.send.rtt.measure(now, rtt_ns);
        self.send.probe.measured();
    }

    /// Declares segments lost by time, which may begin a recovery. Returns the number of their
    /// bytes.
    pub(super) fn detect_losses(&mut self, now: Instant) -> u32 {
        let send = &mut self.send;
        let is_recovering = send.phase != Phase::Open;
        let (lost, next) = send.rack.detect(now, &mut send.board, &send.rtt, is_recovering);
        self.timers.reorder = next.unwrap_or(Instant::NEVER);
        if next.is_some() {
            self.timers.probe = Instant::NEVER;
        }
        if lost > 0 {
            self.begin_recovery();
        }
        lost
    }

    /// Declares segments lost that an acknowledgement proves lost. Returns the number of their
    /// bytes.
    fn find_losses(&mut self, now: Instant, news: &News) -> u32 {
        let send = &mut self.send;
        if self.agreed.sack {
            if send.board.sacked_segments() > 0 || send.board.has_again() || news.was_again {
                return self.detect_losses(now);
            }
            self.timers.reorder = Instant::NEVER;
            return 0;
        }
        // NewReno (RFC 6582): three duplicates prove the first segment lost, and so does an
        // acknowledgement of only a part of what was in flight at the start of a recovery.
        let is_recovering = matches!(send.phase, Phase::Recovery { .. });
        if send.phase == Phase::Open && send.recover.is_before(send.una) {
            // It stays near: numbers compare within 2 GiB.
            send.recover = send.una - 1;
        }
        let is_partial = is_recovering && news.advanced > 0 && send.una.is_before(send.recover);
        let is_third = send.phase == Phase::Open
            && send.duplicates == DUPLICATES
            && send.recover.is_before(send.una);
        if !is_partial && !is_third {
            return 0;
        }
        let una = send.una;
        let lost = send.board.declare(|sent| (sent.seq == una).then_some(true));
        if lost > 0 {
            self.begin_recovery();
        }
        lost
    }

    /// Begins a recovery, unless one is in progress.
    fn begin_recovery(&mut self) {
        let send = &mut self.send;
        if send.phase != Phase::Open {
            return;
        }
        let flight = send.next.since(send.una);
        // A report of congestion in the same round trip has closed the window (RFC 3168 6.1.2).
        if !send.is_reduced {
            // What duplicates have let out beyond the window does not count (RFC 5681 3.2).
            send.congestion.reduce(flight.min(send.congestion.window()));
        }
        send.phase = Phase::Recovery { delivered: 0, out: 0, flight };
        send.recover = send.next;
        send.tells_reduced = self.agreed.ecn;
        send.probe.forget();
        self.timers.probe = Instant::NEVER;
        // A timer lets the first retransmission out; acknowledgements decide about the rest.
        let window = self.pipe() + self.send.mss;
        self.send.congestion.set_window(window);
    }

    /// Handles a report of congestion (RFC 3168 6.1.2): at most once a round trip.
    fn echoed_congestion(&mut self, tcp: &Tcp, flight: u32, advanced: u32) {
        let send = &mut self.send;
        if send.una.reaches(send.reduced_until) {
            send.is_reduced = false;
        }
        // A SYN that answers has the flag to agree.
        let is_reported =
            self.agreed.ecn && tcp.flags.has(Flags::ECE) && !tcp.flags.has(Flags::SYN);
        send.congestion.observe(advanced, is_reported, send.una, send.next);
        if is_reported && send.phase == Phase::Open && !send.is_reduced {
            send.congestion.reduce_marked(flight);
            (send.is_reduced, send.reduced_until) = (true, send.next);
            send.tells_reduced = true;
        }
    }

    /// Adjusts the congestion window: by proportional rate reduction in a recovery (RFC 9937), else
    /// by the algorithm. `has_lost` is true if the acknowledgement has proved a loss.
    fn adjust_window(&mut self, now: Instant, news: &News, has_lost: bool, had_pipe: u32) {
        let pipe = self.pipe();
        let advanced = news.advanced;
        let send = &mut self.send;
        let is_over = send.una.reaches(send.recover);
        let threshold = send.congestion.threshold();
        match &mut send.phase {
            Phase::Recovery { .. } if is_over => {
                (send.phase, send.duplicates) = (Phase::Open, 0);
                send.congestion.set_window(threshold);
                send.rack.recovered();
                return;
            }
            Phase::Recovery { delivered, out, flight } => {
                // Without SACK a duplicate acknowledgement delivers a segment.
                let news =
                    if self.agreed.sack { news.delivered } else { news.delivered.max(send.mss) };
                *delivered = delivered.saturating_add(news);
                let count = if pipe > threshold {
                    let share = u64::from(*delivered) * u64::from(threshold);
                    (share.div_ceil(u64::from((*flight).max(1))) as u32).saturating_sub(*out)
                } else {
                    // While what is sent again is lost too, a segment for each delivered one is all
                    // that the network bears (safeACK).
                    let is_safe = advanced > 0 && !has_lost;
                    let extra = if is_safe { send.mss } else { 0 };
                    let limit = delivered.saturating_sub(*out).max(news) + extra;
                    (threshold - pipe).min(limit)
                };
                // The first retransmission leaves at once, and without SACK that of each partial
                // acknowledgement (RFC 6582 3.2 step 5).
                let is_due = *out == 0 || !self.agreed.sack && advanced > 0;
                let least = if is_due { send.mss } else { 0 };
                send.congestion.set_window(pipe.saturating_add(count.max(least)));
                return;
            }
            Phase::Timeout if is_over => {
                send.phase = Phase::Open;
                send.rack.recovered();
            }
            Phase::Timeout | Phase::Open => {}
        }
        let is_slow_start = send.congestion.window() < threshold;
        let is_limited =
            send.is_limited || is_slow_start && had_pipe >= send.congestion.window() / 2;
        // Duplicates do not open the window (RFC 5681 3.1): each lets one segment out, by which the
        // peer's answers prove a loss (limited transmit, RFC 3042), and not two.
        if advanced > 0 && is_limited && !send.is_reduced {
            let rtt_ns = send.rtt.smoothed_ns().unwrap_or(0);
            send.congestion.acked(Acked { now, bytes: news.delivered, rtt_ns });
        }
    }

    fn restart_timers(&mut self, now: Instant, config: &TcpConfig, news: &News) {
        if self.send.board.is_empty() {
            self.timers.retransmit = Instant::NEVER;
            self.timers.probe = Instant::NEVER;
            self.timers.reorder = Instant::NEVER;
            // The peer answers, be it to probes of its window or to keep-alives.
            (self.timers.progress, self.timers.retries) = (now, 0);
            return;
        }
        if news.advanced > 0 {
            self.start_retransmit(now, config);
            self.start_probe(now);
        }
    }

    /// Starts the timer of the tail loss probe, if there may be one (RFC 8985 7.2).
    pub(super) fn start_probe(&mut self, now: Instant) {
        let send = &self.send;
        let may_probe = self.agreed.sack
            && send.phase == Phase::Open
            && send.board.sacked_segments() == 0
            && send.probe.may_be_sent()
            && !send.board.is_empty();
        let Some(srtt) = send.rtt.smoothed_ns().filter(|_| may_probe) else {
            self.timers.probe = Instant::NEVER;
            return;
        };
        let is_one = send.board.segments().len() == 1;
        let wait_ns = 2 * srtt + if is_one { MAX_ACK_DELAY_NS } else { 0 };
        self.timers.probe = now.after(wait_ns).min(self.timers.retransmit);
    }
}
