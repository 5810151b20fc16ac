//! The options of an RPC endpoint.

use super::session::INDEX_MAX;
use crate::time::{MS, SECOND};
use crate::wire::checksum::{Crc32c, crc32c};

/// The options of an RPC endpoint. The defaults suit a driver of kernel UDP.
#[derive(Clone, Debug)]
pub struct Config {
    /// The function that continues a CRC32C over packets; `wire::checksum::crc32c` is the portable
    /// one.
    pub crc32c: Crc32c,
    /// True if the endpoint accepts sessions. A pure client sets this to false.
    pub serve: bool,
    /// Client: the maximum of requests that wait on one session beyond its eight channels.
    pub queue_limit: usize,
    /// Server: the maximum of sessions that are open at a time, at most 2²⁴.
    pub max_sessions: u32,
    /// Server: the maximum of requests that the application has and has not answered. Further
    /// requests are refused with BUSY.
    pub max_executing: u32,
    /// Server: the maximum of bytes of incomplete requests. Further long requests are refused with
    /// BUSY. One request is always accepted.
    pub max_assembling_bytes: usize,
    /// Server: the maximum of bytes of replies that are retained until their clients acknowledge
    /// them. While four times as many bytes wait to be sent, new requests are refused with BUSY.
    pub max_kept_bytes: usize,
    /// Server: the maximum of replies that are retained until their clients acknowledge them.
    pub max_kept: u32,
    /// Server: the time that a refused client waits before its next attempt, in nanoseconds.
    pub retry_after_ns: u64,
    /// Server: the time in nanoseconds after which an idle session ends, in steps of a second, at
    /// most 18 hours.
    pub idle_expiry_ns: u64,
    /// Server: the time in nanoseconds without a packet from the client after which an incomplete
    /// request, or a reply that is not wholly sent, is dropped. So is a reply that holds slices and
    /// that the client has not acknowledged.
    pub stale_request_ns: u64,
    /// Server: the time in nanoseconds after which a reply that the client has not received is
    /// dropped, whatever packets the client sends.
    pub stale_reply_ns: u64,
    /// Client: the least time in nanoseconds that a reply may take, beyond the round trip, before
    /// the client probes.
    pub min_pto_ns: u64,
    /// Client: the number of unanswered probes after which the server counts as unreachable.
    pub max_silent: u8,
    /// Client: the number of refusals after which a request fails as busy.
    pub max_refusals: u8,
    /// Client: the time in nanoseconds after which an idle session acknowledges its replies.
    pub done_after_ns: u64,
    /// The number of bytes of a message that a sender may send to this endpoint without a grant.
    pub unscheduled_bytes: u32,
    /// The maximum of bytes that are granted to all senders together and not yet received.
    pub credit_bytes: u32,
    /// The queueing delay in nanoseconds beyond which a sender reduces its window.
    pub target_delay_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            crc32c,
            serve: true,
            queue_limit: 1024,
            max_sessions: INDEX_MAX,
            max_executing: 8 * 1024,
            max_assembling_bytes: 256 << 20,
            max_kept_bytes: 64 << 20,
            max_kept: 16 * 1024,
            retry_after_ns: MS,
            idle_expiry_ns: 600 * SECOND,
            stale_request_ns: 5 * SECOND,
            stale_reply_ns: 30 * SECOND,
            min_pto_ns: 5 * MS,
            max_silent: 10,
            max_refusals: 8,
            done_after_ns: 5 * MS,
            unscheduled_bytes: 64 << 10,
            credit_bytes: 1 << 20,
            target_delay_ns: MS,
        }
    }
}
