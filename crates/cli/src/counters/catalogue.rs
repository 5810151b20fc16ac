//! The catalogue of the counters of servers and coordinators: the unit, the kind and the meaning of
//! each. The tables, Prometheus's text and docs/counters.md are made from it.
//!
//! The counters of the store are listed where they are counted ([`sprat_store::master::COUNTERS`],
//! [`sprat_store::coordinator::COUNTERS`]), those of processes, transports, drivers and devices
//! here. `tidy` compares this list with the code: each
//! name that a layer reports has a row, and no row is left over.

use sprat_proto::node::ANSWERED;
use sprat_store::counter::{Counter, Kind, Unit};
use sprat_store::{coordinator, master};

/// The kind of a process: the part that it has in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// The process is a coordinator.
    Coordinator,
    /// The process is a server.
    Server,
}

/// Makes catalogue rows of counters that only grow.
macro_rules! totals {
    ($($name:ident $unit:ident $help:literal)*) => {
        &[$(Counter {
            name: stringify!($name),
            kind: Kind::Total,
            unit: Unit::$unit,
            help: $help,
        }),*]
    };
}

/// The catalogue row of a server's refusals. In a counter's name, the status of the refusal
/// follows.
const REFUSED: Counter = Counter {
    name: master::REFUSED,
    kind: Kind::Total,
    unit: Unit::Requests,
    help: "Requests refused with this status.",
};

/// The catalogue row of the time since the start of a process.
const UPTIME: Counter = Counter {
    name: "uptime_seconds",
    kind: Kind::Level,
    unit: Unit::Seconds,
    help: "Time since the start of the process.",
};

/// The catalogue row of the answers of a process. In a counter's name, the longest time follows.
pub(crate) const ANSWERS: Counter = Counter {
    name: ANSWERED,
    kind: Kind::Total,
    unit: Unit::Requests,
    help: "Requests answered in at most this time, and in more than that of the counter before: \
           from the begin of the turn that received them to the end of the one that answered \
           them.",
};

/// The catalogue row of the time that all answers of a process took.
const ANSWERS_NS: Counter = Counter {
    name: "answered_ns",
    kind: Kind::Total,
    unit: Unit::Nanoseconds,
    help: "Sum of these times.",
};

/// The catalogue rows of the counters of a process. All of them only grow.
const PROCESS: &[Counter] = totals! {
    turns_from_100us Events
        "Turns of the process's loop that used the processor for 100 µs or longer."
    turns_from_200us Events "Such turns that took 200 µs or longer."
    turns_from_500us Events "Such turns that took 500 µs or longer."
    stalls Events
        "Turns of the process's loop that used the processor for 1 ms or longer: nothing else \
         was served meanwhile."
    stalls_from_4ms Events "Such turns that took 4 ms or longer."
    stalls_from_16ms Events "Such turns that took 16 ms or longer."
    stalls_from_64ms Events "Such turns that took 64 ms or longer."
    stalls_from_256ms Events "Such turns that took 256 ms or longer."
    stalls_ns Nanoseconds "Processor time of such turns."
    turns_preempted Events
        "Turns in which the loop's thread did not run for 1 ms or longer: other threads had the \
         processor, or the kernel made it wait. Sleep that ended 100 ms late counts, too."
    turns_preempted_ns Nanoseconds "Time in which the thread did not run in such turns."
};

/// The catalogue rows of the counters of transports, drivers and devices. All of them only grow.
const TRANSPORT: &[Counter] = totals! {
    received Packets "Datagrams received."
    sent Packets "Datagrams given to the driver."
    calls Requests "Client: requests taken from the caller."
    responses Replies "Client: replies handed up."
    failures Requests "Client: requests that failed."
    requests Requests "Server: requests handed up."
    replies Replies "Server: replies taken."
    sessions_opened Sessions "Server: sessions opened."
    sessions_ended Sessions "Server: sessions that ended, for whatever reason."
    drop_short Packets "Dropped: shorter than its own headers."
    drop_checksum Packets "Dropped: wrong CRC32C."
    drop_version Packets "Dropped: another version of the protocol."
    drop_field Packets "Dropped: unknown type, or a field out of range."
    drop_direction Packets "Dropped: of a kind that never travels in this direction."
    drop_not_serving Packets "Dropped: an OPEN to an endpoint that does not serve."
    drop_session Packets "Dropped: no such session, or one of an earlier generation."
    drop_token Packets "Dropped: the token is not the session's."
    drop_address Packets "Dropped: not from the address that opened the session."
    drop_stale Packets "Dropped: about a request that is past."
    drop_duplicate Packets "Dropped: a packet that was here before."
    drop_misfit Packets
        "Dropped: a packet of a message that does not fit it, or beyond what was granted."
    drop_cookie Packets "Dropped: a cookie that we did not make for that address, or long ago."
    drop_control Packets "Dropped: an answer that found no room among those to be sent."
    drop_dead Requests
        "Server: requests dropped because their deadline had passed when they were whole."
    drop_reply Replies "Replies to requests that are no longer waited for."
    resent Packets "Packets sent again."
    grants Packets "Grants sent."
    nacks Packets "Requests for missing packets sent."
    probes Packets "Probes sent."
    refused Requests "Server: requests refused for want of room, or by the application."
    cookies Packets "Server: COOKIEs sent."
    opens_repeated Packets "Server: OPENs that had been answered before."
    resets Packets "Server: RESETs sent."
    evicted Replies "Server: replies dropped unacknowledged because too many were kept."
    abandoned Requests "Server: half-received requests and half-sent replies given up."
    done Replies "Server: replies acknowledged by DONE."
    forgotten Requests "Server: idempotent requests sent again: the reply was lost and not kept."
    ip_received Frames "Frames received."
    ip_datagrams_in Packets "Datagrams delivered to the caller."
    ip_datagrams_out Packets "Datagrams sent by a cached route."
    ip_segments_in Packets "TCP segments received for connections and listeners."
    ip_segments_out Packets "TCP segments sent."
    ip_frames_out Frames "Frames sent by the transmit queue: fragments, solicitations, replies."
    ip_echoes_answered Events "Echo requests answered."
    ip_echo_replies Events "Echo replies received for requests of this stack."
    ip_neighbours_solicited Events "Broadcast or multicast solicitations of neighbours."
    ip_neighbours_resolved Events "Neighbours resolved."
    ip_neighbours_failed Events "Neighbours given up because they did not answer."
    ip_neighbours_disputed Events
        "Packets that claim another MAC address for a known neighbour. The stack keeps the \
         known one and solicits the neighbour there."
    ip_address_conflicts Events "Packets of another host that uses an address of this stack."
    ip_reassembled Packets "Datagrams reassembled from fragments."
    ip_fragmented Packets "Datagrams sent in fragments."
    ip_ports_unreachable Events "ICMP errors that report a closed port of a peer."
    ip_mtu_lowered Events "ICMP errors that lowered a path MTU."
    ip_drop_length Packets
        "Received packets dropped: shorter than their headers, or with contradicting lengths."
    ip_drop_version Packets
        "Received packets dropped: their IP version does not match the Ethernet type."
    ip_drop_checksum Packets "Received packets dropped: wrong checksum."
    ip_drop_type Frames "Received frames dropped: unknown Ethernet type."
    ip_drop_protocol Packets "Received packets dropped: unknown protocol."
    ip_drop_address Packets "Received packets dropped: not addressed to this stack."
    ip_drop_source Packets
        "Received packets dropped: the source is this stack's address or no host address."
    ip_drop_header Packets
        "Received packets dropped: extension headers that must not be skipped, or too many."
    ip_drop_port Packets "Received datagrams dropped: the port is closed."
    ip_drop_neighbour Packets
        "Received ARP and neighbour discovery packets dropped: invalid by their RFC."
    ip_drop_unsolicited Packets "Received replies dropped: they match no request."
    ip_drop_error Packets "Received ICMP errors dropped: they match no datagram of this stack."
    ip_drop_fragment Packets
        "Received fragments dropped: they overlap, contradict each other or are too short."
    ip_drop_incomplete Packets
        "Received fragments dropped: the datagram stayed incomplete for too long."
    ip_drop_evicted Packets "Received fragments dropped: newer fragments needed the memory."
    ip_drop_invalid Packets "Datagrams not sent: too long, too many parts, or port 0."
    ip_drop_no_route Packets
        "Packets not sent: no source address, or no route to the destination."
    ip_drop_unresolved Frames "Frames not sent: too many wait for address resolution."
    ip_drop_unreachable Frames "Frames not sent: the neighbour did not answer."
    ip_drop_queue Frames
        "Frames not sent: the transmit queue is full, or its head was blocked for too long."
    ip_drop_rate Packets "ICMP errors not sent: the rate limit."
    ip_drop_event Packets "Events not reported: the caller does not collect them."
    tcp_cookies_sent Packets
        "SYNs answered with a cookie: too many connections were half-open."
    tcp_cookies_accepted Connections "Connections accepted by a cookie."
    tcp_cookies_wrong Packets
        "Segments dropped at a listener that had sent cookies: their cookie is wrong or old."
    tcp_time_waits_reopened Connections
        "Connections begun by a SYN while an earlier one was in TIME-WAIT."
    tcp_time_waits_dropped Connections
        "Connections in TIME-WAIT forgotten early: there were too many."
    tcp_soft_errors Packets
        "ICMP errors about segments in flight that end no connection."
    tcp_drop_accept Packets
        "SYNs and acknowledgements dropped: the program takes no connections, or there are too \
         many."
    tcp_drop_answer Packets
        "Resets, SYNs and acknowledgements not sent: too many waited to be sent."
    opened Connections "Connections opened."
    accepted Connections "Connections accepted."
    ended Connections "Connections ended, opened or accepted."
    bad_version Connections
        "Connections ended because the peer speaks another version or protocol."
    bad_field Connections "Connections ended because the peer broke another rule of frames."
    silent Connections "Accepted connections ended because they sent nothing."
    stalled Connections
        "Accepted connections ended because a message or a reply made no progress."
    unsolicited Replies "Replies that came after their request had failed."
    bad_hello Connections
        "Peers refused because they speak another version of the hello, or none."
    refused_full Connections "Peers refused for want of room."
    bad_start Connections "Peers refused because of a wrong or late MPA start-up frame."
    rejected Connections "Connections that the peer refused."
    terminates_sent Connections "RDMAP Terminates sent."
    terminates_received Connections "RDMAP Terminates received."
    bad_crc Connections "Connections terminated because of a wrong CRC32C."
    bad_fpdu Connections "Connections terminated because of another fault of MPA."
    bad_ddp Connections "Connections terminated because of a fault of DDP."
    bad_rdmap Connections "Connections terminated because of a fault of RDMAP."
    streams_accepted Connections "TCP streams accepted."
    accept_errors Events "Failures of accept."
    octets_received Bytes "Bytes received from TCP."
    octets_sent Bytes "Bytes sent to TCP."
    octets_direct Bytes "Bytes received from TCP straight into their place."
    ring_full Events "Records that waited because the peer's ring was full."
    rings_opened Connections "Rings opened with a peer."
    rings_refused Connections "Peers whose rings were refused."
    rings_broken Connections "Rings closed because the peer broke a rule of the ring."
    wakes Events "Peers woken from sleep."
    send_dropped Packets "Datagrams that the kernel had no room for."
    send_invalid Packets "Datagrams that the kernel refused."
    receive_errors Events "Failures of the kernel to receive."
    receive_invalid Packets "Received datagrams dropped: cut, or from no valid address."
    failovers Events "Changes from one device of a bond to another."
    frames_by_device_0 Frames "Frames sent by the first device of a bond."
    frames_by_device_1 Frames "Frames sent by the second device of a bond."
    frames_by_device_2 Frames "Frames sent by the third device of a bond."
    frames_by_device_3 Frames "Frames sent by the fourth device of a bond."
    frames_received Frames "Frames received by the device."
    frames_sent Frames "Frames sent by the device."
    frames_refused Frames "Frames not sent: the device cannot send such a frame."
    frames_broken Frames "Received frames dropped: the device described them wrongly."
    frames_unsent Frames "Frames not sent: the device has no room."
    frames_too_long Frames "Received frames dropped by the kernel: longer than a chunk."
    frames_ring_full Frames "Received frames dropped by the kernel: the ring was full."
    frames_no_chunk Frames "Received frames dropped by the kernel: the fill ring was empty."
    frames_cut Frames "Received frames dropped: they did not fit."
    frames_vlan Frames "Received frames dropped: they have a VLAN tag."
    frames_captured Frames "Frames written to the capture."
    frames_not_captured Frames "Frames missing in the capture: it could not be written."
    frames_bad Frames "Received frames dropped: malformed."
    frames_unconnected Frames "Frames not sent: no peer is connected."
    links Connections "memif connections that came up."
    links_ended Connections "memif connections that ended."
    links_refused Connections "memif connections refused."
    links_broken Connections "memif connections ended because the peer broke a rule of memif."
    faults_dropped Frames "Frames dropped by fault injection."
    faults_doubled Frames "Frames doubled by fault injection."
    faults_delayed Frames "Frames delayed by fault injection."
    faults_damaged Frames "Frames damaged by fault injection."
    faults_cut Frames "Frames cut by fault injection."
};

/// Returns the catalogue row of a counter of the store in a process of this kind.
pub(crate) fn of_store(part: Part, name: &str) -> Option<&'static Counter> {
    let counters = match part {
        Part::Coordinator => coordinator::COUNTERS,
        Part::Server if name.starts_with(master::REFUSED) => return Some(&REFUSED),
        Part::Server => master::COUNTERS,
    };
    counters.iter().find(|counter| counter.name == name)
}

/// Returns the catalogue row of a counter of a process.
pub(crate) fn of_process(name: &str) -> Option<&'static Counter> {
    let named = [&UPTIME, &ANSWERS_NS].into_iter().chain(PROCESS).find(|row| row.name == name);
    named.or_else(|| name.starts_with(ANSWERED).then_some(&ANSWERS))
}

/// Returns the catalogue row of a counter of a transport, driver or device.
pub(crate) fn of_transport(name: &str) -> Option<&'static Counter> {
    TRANSPORT.iter().find(|counter| counter.name == name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Returns the text of docs/counters.md, made from the catalogue.
    fn document() -> String {
        let mut text = String::from(
            "# Counters\n\n\
             `sprat stats` shows the counters of each server: first what matters, with rates if\n\
             `--watch` repeats it, then the others. `--json` and `--prometheus` write them for\n\
             programs. `sprat server --metrics ADDRESS:PORT` and `sprat coordinator --metrics\n\
             ADDRESS:PORT` serve them to Prometheus at `http://ADDRESS:PORT/metrics`. The names\n\
             there begin with `sprat_`, those of a coordinator with `sprat_coordinator_`, and\n\
             those of transports with `sprat_transport_`; a total ends in `_total`, and times\n\
             are in seconds. This page is made from the program's own list, by\n\
             `SPRAT_WRITE_COUNTERS=1 cargo test -p sprat-cli --bin sprat catalogue`. A *total*\n\
             only grows while the process lives. A *level* is a value at the time of the\n\
             request.\n",
        );
        let refused = [Counter { name: "refused_STATUS", ..REFUSED }];
        let store: Vec<_> = master::COUNTERS.iter().chain(&refused).collect();
        let answers = Counter { name: "answered_TIME", ..ANSWERS };
        let process = [&UPTIME, &answers, &ANSWERS_NS].into_iter().chain(PROCESS).collect();
        for (title, counters) in [
            ("A server's store", store),
            ("The coordinator", coordinator::COUNTERS.iter().collect()),
            ("Every process", process),
            ("Transports, drivers and devices, by protocol", TRANSPORT.iter().collect()),
        ] {
            text += &format!("\n## {title}\n\n| counter | kind | unit | meaning |\n");
            text += "| --- | --- | --- | --- |\n";
            for Counter { name, kind, unit, help } in counters {
                let (kind, unit) = (format!("{kind:?}"), format!("{unit:?}"));
                let (kind, unit) = (kind.to_lowercase(), unit.to_lowercase());
                text += &format!("| `{name}` | {kind} | {unit} | {help} |\n");
            }
        }
        text
    }

    #[test]
    fn the_document_is_made_from_the_catalogue() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/counters.md");
        if std::env::var_os("SPRAT_WRITE_COUNTERS").is_some() {
            fs::write(&path, document()).expect("writes");
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(there == document(), "write it anew: see the head of docs/counters.md");
    }

    #[test]
    fn names_differ_and_helps_are_sentences() {
        for counters in [master::COUNTERS, coordinator::COUNTERS, PROCESS, TRANSPORT] {
            for (index, Counter { name, help, .. }) in counters.iter().enumerate() {
                assert!(counters[..index].iter().all(|other| other.name != *name), "{name} twice");
                assert!(help.ends_with('.') && help.starts_with(char::is_alphabetic), "{name}");
            }
        }
    }
}
