//! The figures of a connection and its path, for programs that measure or tune.

use super::config::TcpConfig;
use super::connection::{Connection, Phase, TcpState};
use super::host::TcpHost;
use super::id::TcpId;

/// The phase of a connection's loss recovery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TcpRecovery {
    /// Nothing is known to be lost.
    None,
    /// Nothing is known to be lost. The congestion window was reduced for a report of congestion
    /// (RFC 3168) and stays so for a round trip.
    Reduced,
    /// Lost segments are being sent again.
    Fast,
    /// The retransmission timeout has expired.
    Timeout,
}

/// The figures of a connection and its path, at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpInfo {
    /// The state of the connection.
    pub state: TcpState,
    /// The phase of loss recovery.
    pub recovery: TcpRecovery,
    /// The most bytes of data that a segment to the peer has.
    pub mss: u32,
    /// The congestion window in bytes.
    pub congestion_window: u32,
    /// The slow start threshold in bytes, `u32::MAX` before the first loss.
    pub slow_start_threshold: u32,
    /// The peer's window in bytes.
    pub peer_window: u32,
    /// The window that this end has reported to the peer, in bytes.
    pub window: u32,
    /// The smoothed round-trip time in nanoseconds, 0 before the first measurement.
    pub rtt_ns: u64,
    /// The variation of the round-trip time in nanoseconds, 0 before the first measurement.
    pub rtt_variation_ns: u64,
    /// The least round-trip time of the last 10 to 20 seconds in nanoseconds, or 0.
    pub least_rtt_ns: u64,
    /// The retransmission timeout in nanoseconds.
    pub timeout_ns: u64,
    /// The number of expiries of the retransmission timeout, or of probes of a closed window, in a
    /// row.
    pub retries: u8,
    /// The number of segments that the peer has not acknowledged.
    pub unacknowledged_segments: u32,
    /// The number of unacknowledged segments that the peer has reported by SACK.
    pub sacked_segments: u32,
    /// The number of unacknowledged segments that count as lost and were not sent again.
    pub lost_segments: u32,
    /// The number of unacknowledged segments that were sent again.
    pub repeated_segments: u32,
    /// The number of segments that were sent again so far, those of the handshake included.
    pub retransmissions: u64,
    /// The number of expiries of the retransmission timeout so far.
    pub timeouts: u64,
    /// The number of bytes of the program that the peer has not acknowledged.
    pub unacknowledged_bytes: u32,
    /// The number of bytes of the program that were never sent.
    pub unsent_bytes: u32,
    /// True if both ends have agreed on timestamps.
    pub timestamps: bool,
    /// True if both ends have agreed on SACK.
    pub sack: bool,
    /// True if both ends have agreed on explicit congestion notification.
    pub ecn: bool,
    /// The shifts of the peer's windows and of this end's, if both ends have agreed on scaling.
    pub window_scaling: Option<(u8, u8)>,
}

impl Connection {
    /// Returns what the connection knows about itself and its path. It takes time in proportion to
    /// the segments in flight.
    #[must_use]
    pub fn info(&self, config: &TcpConfig) -> TcpInfo {
        let send = &self.send;
        let count = |is: fn(&super::scoreboard::Sent) -> bool| {
            send.board.segments().iter().filter(|sent| is(sent)).count() as u32
        };
        let recovery = match send.phase {
            Phase::Open if send.is_reduced => TcpRecovery::Reduced,
            Phase::Open => TcpRecovery::None,
            Phase::Recovery { .. } => TcpRecovery::Fast,
            Phase::Timeout => TcpRecovery::Timeout,
        };
        let shifts = (send.shift, self.receive.shift());
        TcpInfo {
            state: self.state,
            recovery,
            mss: send.mss,
            congestion_window: send.congestion.window(),
            slow_start_threshold: send.congestion.threshold(),
            peer_window: send.window,
            window: self.receive.window(),
            rtt_ns: send.rtt.smoothed_ns().unwrap_or(0),
            rtt_variation_ns: send.rtt.variation_ns().unwrap_or(0),
            least_rtt_ns: send.rtt.least_ns().unwrap_or(0),
            timeout_ns: send.rtt.timeout_ns(config.min_timeout_ns),
            retries: self.timers.retries,
            unacknowledged_segments: send.board.segments().len() as u32,
            sacked_segments: send.board.sacked_segments(),
            lost_segments: count(|sent| sent.is_lost),
            repeated_segments: count(|sent| sent.is_again && !sent.is_sacked),
            retransmissions: send.resent.into(),
            timeouts: send.timeouts.into(),
            unacknowledged_bytes: send.data.len() as u32,
            unsent_bytes: self.unsent(),
            timestamps: self.agreed.timestamps,
            sack: self.agreed.sack,
            ecn: self.agreed.ecn,
            window_scaling: self.agreed.window_scaling.then_some(shifts),
        }
    }
}

impl TcpHost {
    /// Returns the options of the connections that have none of their own.
    #[must_use]
    pub const fn config(&self) -> &TcpConfig {
        &self.config
    }

    /// Returns the options of all connections, to change them. What a SYN has offered stays as it
    /// is in the connections that there are, and so do the fields of their IP headers.
    pub const fn config_mut(&mut self) -> &mut TcpConfig {
        &mut self.config
    }

    /// Returns what a connection knows about itself and its path.
    #[must_use]
    pub fn info(&self, id: TcpId) -> Option<TcpInfo> {
        self.connection(id).map(|connection| connection.info(&self.config))
    }
}
