//! Counters: one for each reason to drop something, one for each event worth knowing. They only grow.

/// What an endpoint has done and seen since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams given to the driver.
    pub sent: u64,
    /// Client: requests taken from the caller.
    pub calls: u64,
    /// Client: replies handed up.
    pub responses: u64,
    /// Client: requests that failed.
    pub failures: u64,
    /// Server: requests handed up.
    pub requests: u64,
    /// Server: replies taken.
    pub replies: u64,
    /// Server: sessions opened.
    pub sessions_opened: u64,
    /// Server: sessions that ended, for whatever reason.
    pub sessions_ended: u64,

    /// Dropped: shorter than its own headers.
    pub drop_short: u64,
    /// Dropped: wrong CRC32C.
    pub drop_checksum: u64,
    /// Dropped: another version of the protocol.
    pub drop_version: u64,
    /// Dropped: unknown type, or a field out of range.
    pub drop_field: u64,
    /// Dropped: of a kind that never travels in this direction.
    pub drop_direction: u64,
    /// Dropped: an OPEN to an endpoint that does not serve.
    pub drop_not_serving: u64,
    /// Dropped: no such session, or one of an earlier generation.
    pub drop_session: u64,
    /// Dropped: the token is not the session's.
    pub drop_token: u64,
    /// Dropped: not from the address that opened the session.
    pub drop_address: u64,
    /// Dropped: about a request that is past.
    pub drop_stale: u64,
    /// Dropped: a packet that was here before.
    pub drop_duplicate: u64,
    /// Dropped: a packet of a message that does not fit it, or beyond what was granted.
    pub drop_misfit: u64,
    /// Dropped: a cookie that we did not make for that address, or long ago.
    pub drop_cookie: u64,
    /// Dropped: an answer that found no room among those to be sent.
    pub drop_control: u64,
    /// Server: requests dropped because their deadline had passed when they were whole.
    pub drop_dead: u64,
    /// Replies to requests that are no longer waited for.
    pub drop_reply: u64,

    /// Packets sent again.
    pub resent: u64,
    /// Grants sent.
    pub grants: u64,
    /// Requests for missing packets sent.
    pub nacks: u64,
    /// Probes sent.
    pub probes: u64,
    /// Server: requests refused for want of room, or by the application.
    pub refused: u64,
    /// Server: COOKIEs sent.
    pub cookies: u64,
    /// Server: OPENs that had been answered before.
    pub opens_repeated: u64,
    /// Server: RESETs sent.
    pub resets: u64,
    /// Server: replies dropped unacknowledged because too many were kept.
    pub evicted: u64,
    /// Server: half-received requests and half-sent replies given up.
    pub abandoned: u64,
    /// Server: replies acknowledged by DONE.
    pub done: u64,
}
