//! A connection's own options and its host's, and reports of the network about it.

use super::config::TcpConfig;
use super::connection::{Connection, TcpState};
use super::own::{TcpReport, TcpSettings};
use crate::Instant;

impl Connection {
    /// Returns the options that the program has set for this connection.
    #[must_use]
    pub fn settings(&self) -> TcpSettings {
        self.own.settings()
    }

    /// Sets the options of this connection, which may be open. Call [`Connection::output`] after
    /// it: data that was held back may leave now. Those of IP headers take effect in a `TcpHost`
    /// alone: a connection by itself has no IP headers.
    pub fn set(&mut self, now: Instant, config: &TcpConfig, settings: TcpSettings) {
        let before = self.keep_alive_ns(config);
        self.own.set(settings);
        use TcpState::{Closed, SynReceived, SynSent, TimeWait};
        let is_open = !matches!(self.state, SynSent | SynReceived | TimeWait | Closed);
        let after = self.keep_alive_ns(config);
        if is_open && before != after {
            self.timers.keep_alive = after.map_or(Instant::NEVER, |ns| now.after(ns));
        }
    }

    /// Takes a report of the network about a segment in flight. `is_hard` is true if it says that
    /// the peer has no TCP, which ends a connection in its handshake.
    pub fn reported(&mut self, report: TcpReport, is_hard: bool) {
        self.own.report(report);
        if is_hard {
            self.unreachable();
        }
    }

    /// Returns the last report of the network since the peer has acknowledged something new. At a
    /// connection that has timed out it is the likely reason.
    #[must_use]
    pub fn soft_error(&self) -> Option<TcpReport> {
        self.own.soft_error()
    }

    /// Returns true if short segments of this connection leave at once.
    pub(super) fn no_delay(&self, config: &TcpConfig) -> bool {
        self.own.settings().no_delay.unwrap_or(config.no_delay)
    }

    /// Returns the idle time after which the peer is probed.
    pub(super) fn keep_alive_ns(&self, config: &TcpConfig) -> Option<u64> {
        self.own.settings().keep_alive_ns.unwrap_or(config.keep_alive_ns)
    }

    /// Returns the time for which data may stay unacknowledged.
    pub(super) fn user_timeout_ns(&self, config: &TcpConfig) -> u64 {
        self.own.settings().user_timeout_ns.unwrap_or(config.user_timeout_ns)
    }
}
