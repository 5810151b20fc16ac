//! The counters of an RPC endpoint: one for each reason to drop a packet, one for each event worth
//! knowing. They only grow.

use crate::count::counters;

counters! {
    /// The counters of an RPC endpoint since it was made.
    Stats, "",
    /// The number of datagrams that the endpoint received.
    received,
    /// The number of datagrams that the endpoint gave to the driver.
    sent,
    /// Client: the number of requests that the endpoint took from the caller.
    calls,
    /// Client: the number of replies that the endpoint delivered to the caller.
    responses,
    /// Client: the number of requests that failed.
    failures,
    /// Server: the number of requests that the endpoint delivered to the caller.
    requests,
    /// Server: the number of replies that the endpoint took from the caller.
    replies,
    /// Server: the number of sessions that clients opened.
    sessions_opened,
    /// Server: the number of sessions that ended, for whatever reason.
    sessions_ended,

    /// Dropped: a datagram shorter than its own headers.
    drop_short,
    /// Dropped: a packet with a wrong CRC32C.
    drop_checksum,
    /// Dropped: a packet of another version of the protocol.
    drop_version,
    /// Dropped: a packet of an unknown type, or with a field out of range.
    drop_field,
    /// Dropped: a packet of a kind that never travels in this direction.
    drop_direction,
    /// Dropped: an OPEN to an endpoint that does not serve.
    drop_not_serving,
    /// Dropped: a packet of a session that does not exist, or of an earlier generation.
    drop_session,
    /// Dropped: a packet whose token is not its session's.
    drop_token,
    /// Dropped: a packet that is not from the address that opened its session.
    drop_address,
    /// Dropped: a packet of a request that has already ended.
    drop_stale,
    /// Dropped: a packet that had arrived before.
    drop_duplicate,
    /// Dropped: a packet that does not fit its message, or exceeds the bytes granted.
    drop_misfit,
    /// Dropped: an OPEN whose cookie this server did not make for its address, or made long ago.
    drop_cookie,
    /// Dropped: a control packet, because too many wait to be sent.
    drop_control,
    /// Server: requests dropped because their deadline had passed when they were whole.
    drop_dead,
    /// Server: the number of replies and refusals of the caller whose request was over.
    drop_reply,

    /// The number of packets sent again.
    resent,
    /// The number of GRANTs sent.
    grants,
    /// The number of NACKs sent, which ask for missing packets.
    nacks,
    /// The number of PROBEs sent.
    probes,
    /// Server: the number of requests refused for lack of room, or by the application.
    refused,
    /// Server: the number of COOKIEs sent.
    cookies,
    /// Server: the number of OPENs that had been answered before.
    opens_repeated,
    /// Server: the number of RESETs sent.
    resets,
    /// Server: the number of retained replies dropped before their client acknowledged them,
    /// because too many were retained.
    evicted,
    /// Server: the number of incomplete requests and of half-sent replies that the server gave up.
    abandoned,
    /// Server: the number of replies that clients acknowledged by DONE.
    done,
    /// Server: the number of idempotent requests that clients sent again because the reply was lost
    /// or late, and the server had not retained it.
    forgotten,
}
