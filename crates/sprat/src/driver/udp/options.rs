//! The options and the counters of the driver over kernel UDP.

/// The options of a driver over kernel UDP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// True to allow peers that are not on loopback. Nothing is encrypted.
    pub insecure_network: bool,
    /// The length of the largest datagram in bytes, if not the default for loopback (65,488) or for
    /// networks (1452).
    pub max_payload: Option<usize>,
}

/// The counters of a driver over kernel UDP since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The number of datagrams that the driver received.
    pub received: u64,
    /// The number of datagrams that the driver gave to the kernel.
    pub sent: u64,
    /// The number of datagrams that the kernel had no room for or could not send: lost.
    pub send_dropped: u64,
    /// The number of datagrams given to `send` beyond `max_payload`, or to an address that is none
    /// of the driver's: lost.
    pub send_invalid: u64,
    /// The number of errors that `recv` reported, most of them echoes of ICMP messages.
    pub receive_errors: u64,
    /// The number of receives that did not fit or came from an address of an unknown family: lost.
    pub receive_invalid: u64,
}
