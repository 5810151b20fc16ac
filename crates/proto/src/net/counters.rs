//! The counters of an IP stack.

use crate::count::counters;

counters! {
    /// Counters of an IP stack: traffic, and one counter for each reason to drop.
    StackCounters, "ip_",
    /// Frames that the IP stack received.
    received,
    /// UDP datagrams that the IP stack delivered to the caller.
    datagrams_in,
    /// UDP datagrams that the IP stack sent by a cached route.
    datagrams_out,
    /// TCP segments that the IP stack received for its connections and listeners.
    segments_in,
    /// TCP segments that the IP stack sent.
    segments_out,
    /// Frames sent by the transmit queue: fragments, solicitations, replies.
    frames_out,
    /// Echo requests of other hosts that the IP stack answered.
    echoes_answered,
    /// Echo replies received for requests of this IP stack.
    echo_replies,
    /// Broadcast or multicast solicitations of neighbours that the IP stack sent.
    neighbours_solicited,
    /// Neighbours whose MAC address the IP stack resolved.
    neighbours_resolved,
    /// Neighbours given up because they did not answer.
    neighbours_failed,
    /// Packets that claim another MAC address for a known neighbour. The stack keeps the known one
    /// and solicits the neighbour there.
    neighbours_disputed,
    /// Packets of another host that uses an address of this IP stack.
    address_conflicts,
    /// Datagrams that the IP stack reassembled from fragments.
    reassembled,
    /// Datagrams that the IP stack sent in fragments.
    fragmented,
    /// ICMP errors received that report a closed port of a peer.
    ports_unreachable,
    /// ICMP errors received that lowered a path MTU.
    mtu_lowered,

    /// Received packets dropped: shorter than their headers, or with contradicting lengths.
    drop_length,
    /// Received packets dropped: their IP version does not match the Ethernet type.
    drop_version,
    /// Received packets dropped: a checksum is wrong.
    drop_checksum,
    /// Received frames dropped: the Ethernet type is unknown.
    drop_type,
    /// Received packets dropped: the protocol is unknown.
    drop_protocol,
    /// Received packets dropped: not addressed to this IP stack.
    drop_address,
    /// Received packets dropped: the source is this IP stack's own address or no host address.
    drop_source,
    /// Received packets dropped: extension headers that must not be skipped, or too many.
    drop_header,
    /// Received datagrams dropped: the port is closed.
    drop_port,
    /// Received ARP and neighbour discovery packets dropped: invalid by their RFC.
    drop_neighbour,
    /// Received echo replies and replies of neighbours dropped: they match no request.
    drop_unsolicited,
    /// Received ICMP errors dropped: they match no datagram of this IP stack.
    drop_error,
    /// Received fragments dropped: they overlap, contradict each other or are too short.
    drop_fragment,
    /// Received fragments dropped: the datagram stayed incomplete for too long.
    drop_incomplete,
    /// Received fragments dropped: newer fragments needed the memory.
    drop_evicted,
    /// Datagrams not sent: too long, too many parts, or port 0.
    drop_invalid,
    /// Packets not sent: no source address, or no route to the destination.
    drop_no_route,
    /// Frames not sent: too many wait for address resolution.
    drop_unresolved,
    /// Frames not sent: the neighbour did not answer.
    drop_unreachable,
    /// Frames not sent: the transmit queue is full, or its head was blocked for too long.
    drop_queue,
    /// ICMP errors not sent: the rate limit is reached.
    drop_rate,
    /// Events of the IP stack not reported: the caller does not collect them.
    drop_event,
}
