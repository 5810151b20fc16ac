//! The expiry of a connection's timers.

use super::config::TcpConfig;
use super::connection::{Connection, Phase, TcpError, TcpState};
use super::timers::Wanted;
use crate::Instant;

/// The number of keep-alive probes without an answer after which the peer counts as gone.
const KEEP_ALIVE_PROBES: u8 = 9;

/// The number of timeouts in a row after which long segments count as lost for their length.
const BLACK_HOLE_RETRIES: u8 = 2;
/// The MSS that every path is expected to carry: tcp_base_mss in Linux. It leaves room for the
/// headers of IPv6 and a tunnel in 1,280 bytes.
const PROVEN_MSS: u16 = 1024;

/// Returns true if a timer has expired, and stops it.
fn take(timer: &mut Instant, now: Instant) -> bool {
    let has_expired = *timer <= now;
    if has_expired {
        *timer = Instant::NEVER;
    }
    has_expired
}

impl Connection {
    /// Returns the time at which to call [`Connection::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let next = self.timers.next();
        (next < Instant::NEVER).then_some(next)
    }

    /// Handles expired timers. Call [`Connection::output`] after it.
    pub fn tick(&mut self, now: Instant, config: &TcpConfig) {
        if take(&mut self.timers.delayed_ack, now) {
            self.receive.acknowledge_now();
        }
        if take(&mut self.timers.reorder, now) {
            self.detect_losses(now);
        }
        if take(&mut self.timers.probe, now) {
            self.timers.wants = Wanted::TailProbe;
            self.start_retransmit(now, config);
        }
        if take(&mut self.timers.retransmit, now) {
            self.retransmit_timeout(now, config);
        }
        if take(&mut self.timers.persist, now) {
            self.probe_window(now, config);
        }
        if take(&mut self.timers.keep_alive, now) {
            self.keep_alive(now, config);
        }
        if take(&mut self.timers.life, now) {
            self.end(None);
        }
    }

    /// Limits the life of a connection that its program has released, as far as it depends on the
    /// peer alone: a peer that never ends its direction, or never opens its window.
    pub(super) fn linger(&mut self, now: Instant, config: &TcpConfig) {
        let limit_ns = match self.state {
            TcpState::TimeWait | TcpState::Closed => return,
            TcpState::FinWait2 => config.time_wait_ns,
            _ if self.timers.persist < Instant::NEVER => self.user_timeout_ns(config),
            _ => return self.timers.life = Instant::NEVER,
        };
        if self.timers.life == Instant::NEVER {
            self.timers.life = now.after(limit_ns);
        }
    }

    /// Starts the retransmission timeout anew.
    pub(super) fn start_retransmit(&mut self, now: Instant, config: &TcpConfig) {
        self.timers.retransmit = now.after(self.send.rtt.timeout_ns(config.min_timeout_ns));
    }

    /// Handles the expiry of the retransmission timeout (RFC 6298 5.4 to 5.6, RFC 8985 6.3).
    fn retransmit_timeout(&mut self, now: Instant, config: &TcpConfig) {
        if self.send.board.is_empty() {
            return;
        }
        self.timers.retries = self.timers.retries.saturating_add(1);
        self.send.timeouts = self.send.timeouts.wrapping_add(1);
        let is_opening = matches!(self.state, TcpState::SynSent | TcpState::SynReceived);
        let has_failed = if is_opening {
            self.timers.retries > config.syn_retries
        } else {
            // The first timeout after the report of a closed window is no silence.
            let is_answered = self.send.window == 0 && self.timers.retries == 1;
            !is_answered && now.since(self.timers.progress) >= self.user_timeout_ns(config)
        };
        if has_failed {
            return self.end(Some(TcpError::TimedOut));
        }
        let send = &mut self.send;
        if send.board.segments().front().is_some_and(|first| first.is_sacked) {
            // The peer has dropped what it had reported (RFC 2018 8).
            send.board.forget_sacks();
        }
        let first_len = send.board.segments().front().map_or(0, |first| first.len);
        if !is_opening && self.timers.retries >= BLACK_HOLE_RETRIES && first_len > PROVEN_MSS.into()
        {
            // RFC 8899 4.3: packets of the path MTU may vanish without a report.
            self.send.proven_mss = PROVEN_MSS;
            self.adapt_mss(config);
        }
        let send = &mut self.send;
        let flight = send.next.since(send.una);
        let is_first = send.phase != Phase::Timeout || send.una.reaches(send.recover);
        send.rack.timeout(now, &mut send.board, &send.rtt, send.una);
        send.congestion.timeout(flight, is_first && !is_opening);
        send.tells_reduced = self.agreed.ecn && !is_opening;
        send.rtt.back_off();
        send.probe.forget();
        (send.phase, send.recover, send.duplicates) = (Phase::Timeout, send.next, 0);
        self.timers.wants = Wanted::Nothing;
        self.timers.probe = Instant::NEVER;
        self.timers.reorder = Instant::NEVER;
        self.start_retransmit(now, config);
    }

    /// Probes the peer's closed window. A peer that answers may keep it closed forever, and one
    /// that does not is gone (RFC 9293 3.8.6.1).
    fn probe_window(&mut self, now: Instant, config: &TcpConfig) {
        if self.timers.retries == 0 {
            self.timers.progress = now;
        } else if now.since(self.timers.progress) >= self.user_timeout_ns(config) {
            return self.end(Some(TcpError::TimedOut));
        }
        self.timers.wants = Wanted::WindowProbe;
    }

    /// Probes a silent peer, unless data that waits for an acknowledgement or for room does that.
    fn keep_alive(&mut self, now: Instant, config: &TcpConfig) {
        let Some(idle_ns) = self.keep_alive_ns(config) else { return };
        if !self.send.board.is_empty() || self.timers.persist != Instant::NEVER {
            self.timers.keep_alive = now.after(idle_ns);
            return;
        }
        if self.timers.retries >= KEEP_ALIVE_PROBES {
            return self.end(Some(TcpError::TimedOut));
        }
        self.timers.retries += 1;
        self.timers.wants = Wanted::KeepAlive;
        self.timers.keep_alive = now.after(idle_ns);
    }
}
