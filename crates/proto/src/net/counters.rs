//! What the IP layer counts: what passed, and each reason to drop something.

use crate::count::counters;

counters! {
    /// What a stack has done and seen since it was made.
    Stats, "ip_",
    /// Frames received.
    received,
    /// Datagrams handed up.
    datagrams_in,
    /// Datagrams that went straight to the device.
    datagrams_out,
    /// Frames sent otherwise: fragments, answers, questions.
    frames_out,
    /// Echo requests answered.
    echoes_answered,
    /// Own echo requests answered.
    echo_replies,
    /// Neighbours asked for, by a broadcast or a group.
    neighbours_asked,
    /// Neighbours that answered.
    neighbours_found,
    /// Neighbours that did not answer.
    neighbours_lost,
    /// Claims that a known neighbour has another hardware address: not believed, but he was asked.
    neighbours_disputed,
    /// Somebody else uses an address of ours.
    conflicts,
    /// Datagrams put together from fragments.
    reassembled,
    /// Datagrams cut into fragments.
    fragmented,
    /// Reports that a peer's port is closed.
    ports_unreachable,
    /// Reports of a smaller MTU on the way, believed.
    mtu_lowered,

    /// Dropped: shorter than its headers, or lengths that contradict each other.
    drop_length,
    /// Dropped: a version that does not go with the type of the frame.
    drop_version,
    /// Dropped: wrong checksum.
    drop_checksum,
    /// Dropped: a type of frame that nobody here knows.
    drop_type,
    /// Dropped: a protocol that nobody here knows.
    drop_protocol,
    /// Dropped: not for us.
    drop_address,
    /// Dropped: from an address that no host has, or from our own.
    drop_source,
    /// Dropped: extension headers that forbid to pass over them, or too many.
    drop_header,
    /// Dropped: nobody listens at the port.
    drop_port,
    /// Dropped: ARP or neighbour discovery that breaks its own rules.
    drop_neighbour,
    /// Dropped: an answer that nobody asked for.
    drop_unsolicited,
    /// Dropped: an error about a packet that we did not send.
    drop_error,
    /// Dropped: a fragment that overlaps another one, contradicts it, is too small or belongs to such a datagram.
    drop_fragment,
    /// Dropped: fragments that did not become whole in time.
    drop_incomplete,
    /// Dropped: fragments that gave way to newer ones.
    drop_evicted,
    /// Not sent: too long, or too many parts.
    drop_invalid,
    /// Not sent: no address of our own, or no way to the peer.
    drop_no_route,
    /// Not sent: too much waits for neighbours.
    drop_waiting,
    /// Not sent: the neighbour did not answer.
    drop_unreachable,
    /// Not sent: too much waits for the device.
    drop_outbox,
    /// Not sent: an error beyond so many a second.
    drop_rate,
    /// Not told: the caller does not take events.
    drop_event,
}
