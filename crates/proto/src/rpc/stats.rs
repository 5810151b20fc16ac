//! Counters: one for each reason to drop something, one for each event worth knowing. They only
//! grow.

use crate::count::counters;

counters! {
    /// The counters of an endpoint since it was made.
    Stats, "",
    /// Datagrams received.
    received,
    /// Datagrams given to the driver.
    sent,
    /// Client: requests taken from the caller.
    calls,
    /// Client: replies handed up.
    responses,
    /// Client: requests that failed.
    failures,
    /// Server: requests handed up.
    requests,
    /// Server: replies taken.
    replies,
    /// Server: sessions opened.
    sessions_opened,
    /// Server: sessions that ended, for whatever reason.
    sessions_ended,

    /// Dropped: shorter than its own headers.
    drop_short,
    /// Dropped: wrong CRC32C.
    drop_checksum,
    /// Dropped: another version of the protocol.
    drop_version,
    /// Dropped: unknown type, or a field out of range.
    drop_field,
    /// Dropped: of a kind that never travels in this direction.
    drop_direction,
    /// Dropped: an OPEN to an endpoint that does not serve.
    drop_not_serving,
    /// Dropped: no such session, or one of an earlier generation.
    drop_session,
    /// Dropped: the token is not the session's.
    drop_token,
    /// Dropped: not from the address that opened the session.
    drop_address,
    /// Dropped: about a request that is past.
    drop_stale,
    /// Dropped: a packet that was here before.
    drop_duplicate,
    /// Dropped: a packet of a message that does not fit it, or beyond what was granted.
    drop_misfit,
    /// Dropped: a cookie that we did not make for that address, or long ago.
    drop_cookie,
    /// Dropped: an answer that found no room among those to be sent.
    drop_control,
    /// Server: requests dropped because their deadline had passed when they were whole.
    drop_dead,
    /// Replies to requests that are no longer waited for.
    drop_reply,

    /// Packets sent again.
    resent,
    /// Grants sent.
    grants,
    /// Requests for missing packets sent.
    nacks,
    /// Probes sent.
    probes,
    /// Server: requests refused for want of room, or by the application.
    refused,
    /// Server: COOKIEs sent.
    cookies,
    /// Server: OPENs that had been answered before.
    opens_repeated,
    /// Server: RESETs sent.
    resets,
    /// Server: replies dropped unacknowledged because too many were kept.
    evicted,
    /// Server: half-received requests and half-sent replies given up.
    abandoned,
    /// Server: replies acknowledged by DONE.
    done,
}
