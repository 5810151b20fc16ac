//! The options and the counters of the driver over kernel UDP.

/// Options of a driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Allow peers that are not on loopback. Nothing is encrypted.
    pub insecure_network: bool,
    /// The largest datagram in bytes, if not the default for loopback (8188) or for networks
    /// (1452).
    pub max_payload: Option<usize>,
}

/// Counters since the driver was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams handed to the kernel.
    pub sent: u64,
    /// Datagrams that the kernel had no room for or could not send: lost.
    pub send_dropped: u64,
    /// Datagrams given to `send` beyond `max_payload`, or to an address that is none of ours: lost.
    pub send_invalid: u64,
    /// Errors that `recv` reported, most of them echoes of ICMP messages.
    pub receive_errors: u64,
    /// Receives that did not fit or came from an address of no family that we know: lost.
    pub receive_invalid: u64,
}
