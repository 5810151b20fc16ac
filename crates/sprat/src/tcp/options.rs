//! The options of a TCP stack.

use std::time::Duration;

use sprat_proto::net::tcp::{CongestionControl, TcpConfig};

use crate::locator::Locator;

/// The most connections of a stack, if the options name no number.
const CONNECTIONS: usize = 16_384;
/// The time that the drop of a stack waits for data in flight, if the options name none.
const LINGER: Duration = Duration::from_secs(2);
/// The largest buffer of a connection in bytes.
const MOST_BUFFER: usize = 1 << 30;

/// The options of a TCP stack. They hold for all of its connections, unless the program sets others
/// for a [`Stream`](super::Stream) or the next of a [`Listener`](super::Listener).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    pub(super) config: TcpConfig,
    pub(super) connections: usize,
    pub(super) linger: Duration,
    pub(super) local: Vec<Locator>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: TcpConfig::default(),
            connections: CONNECTIONS,
            linger: LINGER,
            local: Vec::new(),
        }
    }
}

/// Returns the nanoseconds of a duration.
pub(super) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Options {
    /// Replaces all options of connections by `config`.
    #[must_use]
    pub fn config(mut self, config: TcpConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the algorithm of the congestion window. The default is CUBIC.
    #[must_use]
    pub const fn congestion(mut self, congestion: CongestionControl) -> Self {
        self.config.congestion = congestion;
        self
    }

    /// Offers explicit congestion notification (RFC 3168), or does not. The default is to offer it.
    #[must_use]
    pub const fn ecn(mut self, offered: bool) -> Self {
        self.config.ecn = offered;
        self
    }

    /// Sends short segments at once, or holds one back while data is in flight (Nagle's algorithm),
    /// which is the default.
    #[must_use]
    pub const fn no_delay(mut self, at_once: bool) -> Self {
        self.config.no_delay = at_once;
        self
    }

    /// Sets the codepoint of Differentiated Services of all packets, 0 to 63 (RFC 2474): of larger
    /// numbers the lower six bits count. The default is 0.
    #[must_use]
    pub const fn dscp(mut self, dscp: u8) -> Self {
        self.config.dscp = dscp;
        self
    }

    /// Sets the time to live of all packets over IPv4, and their hop limit over IPv6. 0 counts as
    /// 1. The default is 64.
    #[must_use]
    pub const fn ttl(mut self, ttl: u8) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// Sets the size of each connection's receive buffer in bytes, at most 2³⁰. It is the largest
    /// window that a peer sees. The default is 1 MiB.
    #[must_use]
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.config.receive_bytes = bytes.min(MOST_BUFFER) as u32;
        self
    }

    /// Sets the size of each connection's send buffer in bytes, at most 2³⁰. The default is 1 MiB.
    #[must_use]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.config.send_bytes = bytes.min(MOST_BUFFER) as u32;
        self
    }

    /// Probes a peer that is silent for `idle`. `None`, the default, never does.
    #[must_use]
    pub fn keep_alive(mut self, idle: Option<Duration>) -> Self {
        self.config.keep_alive_ns = idle.map(ns);
        self
    }

    /// Ends a connection whose data the peer has not acknowledged for so long. The default is two
    /// minutes.
    #[must_use]
    pub fn user_timeout(mut self, longest: Duration) -> Self {
        self.config.user_timeout_ns = ns(longest);
        self
    }

    /// Sets the most connections that the stack has at a time, those in TIME-WAIT included. The
    /// default is 16,384.
    #[must_use]
    pub const fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// Sets the time for which the drop of a stack waits until peers have acknowledged all data and
    /// the end of each stream. The stack then resets the connections that are left. The default is
    /// two seconds.
    #[must_use]
    pub const fn linger(mut self, longest: Duration) -> Self {
        self.linger = longest;
        self
    }

    /// Adds own ends of packet devices, for stacks that [`Stack::towards`](super::Stack::towards)
    /// opens: for each protocol a locator with the device and the address.
    #[must_use]
    pub fn local(mut self, locators: impl IntoIterator<Item = Locator>) -> Self {
        self.local.extend(locators);
        self
    }
}
