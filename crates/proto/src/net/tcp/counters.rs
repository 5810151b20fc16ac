//! The counters of a host's TCP.

use crate::count::counters;

counters! {
    /// Counters of the TCP connections of an IP stack.
    TcpCounters, "tcp_",
    /// SYNs that the host answered with a cookie, because too many connections were half-open.
    cookies_sent,
    /// Connections that the host accepted by a cookie.
    cookies_accepted,
    /// Segments dropped at a listener that had sent cookies: their cookie is wrong or old.
    cookies_wrong,
    /// SYNs that began a connection while an earlier one with the same addresses and ports was in
    /// TIME-WAIT.
    time_waits_reopened,
    /// Connections in TIME-WAIT that the host forgot early, because there were too many.
    time_waits_dropped,
    /// ICMP errors about segments in flight that end no connection.
    soft_errors,
    /// SYNs and acknowledgements dropped: the program takes no connections from the listener, or
    /// the host has as many connections as it may have.
    drop_accept,
    /// Resets, SYNs and acknowledgements not sent: too many waited to be sent.
    drop_answer,
}
