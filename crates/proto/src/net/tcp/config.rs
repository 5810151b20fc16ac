//! The options of TCP connections.

use super::congestion::CongestionControl;
use super::{receive, rtt};
use crate::net::ip::fields::{IpFields, TTL};
use crate::time::{MS, SECOND};

/// The options of TCP connections.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// The most bytes of payload that a segment may have, to this end or from it. The MTU of the
    /// link lowers what this end offers to its peer (RFC 9293 3.7.1), and the path MTU what it
    /// sends.
    pub mss: u16,
    /// The size of the receive buffer in bytes, at most 2³⁰. The window is what is free of it.
    pub receive_bytes: u32,
    /// The size of the send buffer in bytes, at most 2³⁰.
    pub send_bytes: u32,
    /// True to offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// True to offer window scaling (RFC 7323).
    pub window_scaling: bool,
    /// True to offer SACK (RFC 2018).
    pub sack: bool,
    /// True to offer explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// True to send short segments at once. False to hold one back while data is in flight: Nagle's
    /// algorithm (RFC 9293 3.7.4).
    pub no_delay: bool,
    /// The Differentiated Services codepoint of the segments, below 64 (RFC 9293 3.9.1.9): of
    /// larger numbers the lower six bits count.
    pub dscp: u8,
    /// The time to live of the segments over IPv4, and their hop limit over IPv6 (RFC 9293 3.9.2).
    /// 0 counts as 1.
    pub ttl: u8,
    /// The algorithm of the congestion window. [`CongestionControl::Dctcp`] needs ECN.
    pub congestion: CongestionControl,
    /// The time by which an acknowledgement may wait for more data, in nanoseconds: below 500 ms
    /// (RFC 9293 3.8.6.3).
    pub delayed_ack_ns: u64,
    /// The number of full segments after which an acknowledgement is due at once: 2 (RFC 9293
    /// SHLD-19). More spare packets, as a receiver that coalesces segments does, and need
    /// `ack_hold_ns`.
    pub ack_segments: u8,
    /// The time in nanoseconds by which the acknowledgement of two segments waits for more, or for
    /// data to go with, while `ack_segments` have not come.
    pub ack_hold_ns: u64,
    /// The shortest retransmission timeout in nanoseconds.
    pub min_timeout_ns: u64,
    /// The number of times that a SYN is sent again before the connection fails.
    pub syn_retries: u8,
    /// The time for which data may stay unacknowledged, in nanoseconds, before the connection fails
    /// (R2 in RFC 9293 3.8.3).
    pub user_timeout_ns: u64,
    /// The time in TIME-WAIT in nanoseconds, twice the maximum segment lifetime (RFC 9293 3.4.2).
    pub time_wait_ns: u64,
    /// The idle time in nanoseconds after which the peer is probed (RFC 9293 3.8.4), or `None`.
    pub keep_alive_ns: Option<u64>,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            mss: u16::MAX,
            receive_bytes: 1 << 20,
            send_bytes: 1 << 20,
            timestamps: true,
            window_scaling: true,
            sack: true,
            ecn: true,
            no_delay: false,
            dscp: 0,
            ttl: TTL,
            congestion: CongestionControl::default(),
            delayed_ack_ns: 40 * MS,
            ack_segments: receive::SEGMENTS,
            ack_hold_ns: 0,
            min_timeout_ns: rtt::MIN_NS,
            syn_retries: 7,
            user_timeout_ns: 120 * SECOND,
            time_wait_ns: 60 * SECOND,
            keep_alive_ns: None,
        }
    }
}

impl TcpConfig {
    /// Returns the shift of this end's windows: the least by which the receive buffer fits.
    pub(super) fn window_shift(&self) -> u8 {
        let bits = u32::BITS - self.receive_bytes.leading_zeros();
        bits.saturating_sub(u16::BITS).min(super::MAX_SHIFT.into()) as u8
    }

    /// Returns the fields of IP headers whose program chooses no others.
    pub(super) const fn fields(&self) -> IpFields {
        IpFields::new(self.dscp, self.ttl)
    }

    /// Returns the window field of a SYN, whose window is not scaled.
    pub(super) fn syn_window(&self) -> u16 {
        self.receive_bytes.min(u16::MAX.into()) as u16
    }
}
