//! Rules of a host: initial sequence numbers (RFC 6528), opening and leaving connections (RFC 9293
//! 3.9.1).

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::*;

/// Collects the segments of a host.
#[derive(Default)]
struct Wire(Vec<(TcpFlow, Tcp)>);

impl TcpOutput for Wire {
    fn limits(&mut self, _: &TcpFlow) -> PathLimits {
        PathLimits { mss: 1460, link_mss: 1460, most: 0 }
    }

    fn emit(&mut self, flow: &TcpFlow, _: IpFields, outgoing: &Outgoing<'_>) -> bool {
        self.0.push((*flow, outgoing.tcp));
        true
    }
}

fn at(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), port)
}

fn host(seed: u64) -> TcpHost {
    TcpHost::new(plain(), 10, Rng::seeded(seed))
}

/// RFC 9293 3.8.3: the program hears of a peer that has been silent for three retransmissions.
#[test]
fn ts9_ts10_the_program_hears_of_three_retransmissions() {
    let (mut host, _, id, _) = open();
    while host.event().is_some() {}
    assert_eq!(host.write(id, b"data"), 4);
    let mut now = BEGIN;
    sent(&mut host, now);
    for expiry in 1..=4 {
        while host.connection(id).map(|c| c.send.timeouts) < Some(expiry) {
            now = host.deadline().expect("a timer");
            host.tick(now);
            sent(&mut host, now);
        }
        let changes = host.event().map(|(_, changes)| changes);
        assert_eq!(changes.is_some_and(|c| c.warned && !c.ended), expiry == 3, "{expiry}");
    }
}

/// Returns what the host sends now.
fn sent(host: &mut TcpHost, now: Instant) -> Vec<(TcpFlow, Tcp)> {
    let mut wire = Wire::default();
    assert!(host.output(now, &mut wire));
    wire.0
}

/// Returns the initial sequence number of a connection that begins now, and forgets it.
fn initial(host: &mut TcpHost, now: Instant, from: SocketAddr, to: SocketAddr) -> u32 {
    let id = host.connect(now, from, to).expect("a connection");
    let seq = sent(host, now)[0].1.seq;
    host.abort(id);
    sent(host, now);
    assert_eq!(host.connections(), 0);
    seq
}

/// Returns a host with a connection to its listener at port 7, and the connection.
fn open() -> (TcpHost, TcpFlow, TcpId, Tcp) {
    let mut host = host(1);
    host.listen(7, 5).expect("a listener");
    let flow = TcpFlow { local: at(1, 7), peer: at(2, 8) };
    let mut tcp = Script::syn(&plain());
    host.input(BEGIN, flow, &Segment { tcp, data: &[], is_marked: false });
    let (_, answer) = sent(&mut host, BEGIN)[0];
    (tcp.seq, tcp.ack, tcp.flags) = (PEER + 1, answer.seq.wrapping_add(1), Flags::ACK);
    tcp.options = TcpOptions::default();
    host.input(BEGIN, flow, &Segment { tcp, data: &[], is_marked: false });
    sent(&mut host, BEGIN);
    let (id, changes) = host.event().expect("an event");
    assert!(changes.opened);
    (host, flow, id, tcp)
}

/// RFC 9293 3.4.1, RFC 6528 3: the number of a connection advances with a clock of 4 µs, from a
/// place that no other connection knows.
#[test]
fn tm8_ts1_is1_initial_numbers_follow_a_clock_for_each_connection() {
    let mut host = host(1);
    let (from, to) = (at(1, 1000), at(2, 80));
    let first = initial(&mut host, BEGIN, from, to);
    let later = initial(&mut host, BEGIN.after(40 * MS), from, to);
    assert_eq!(later.wrapping_sub(first), 10_000);
    let others = [(at(1, 1001), to), (from, at(2, 81)), (from, at(3, 80)), (at(4, 1000), to)];
    for (from, to) in others {
        let other = initial(&mut host, BEGIN, from, to);
        let distance = other.wrapping_sub(first) as i32;
        assert!(distance.unsigned_abs() > 100_000, "{distance}");
    }
}

/// RFC 9293 3.4.1, RFC 6528 3, 4: the place is a keyed hash, and the key is that of the host alone.
#[test]
fn tm9_is2_is3_initial_numbers_depend_on_a_secret() {
    let of = |seed| initial(&mut host(seed), BEGIN, at(1, 1000), at(2, 80));
    let numbers: alloc::collections::BTreeSet<_> = (0..100).map(of).collect();
    assert_eq!(numbers.len(), 100);
    assert_eq!(of(1), of(1));
    let high: u32 = numbers.iter().fold(0, |bits, number| bits | number);
    assert_eq!(high, u32::MAX, "all bits vary");
}

/// RFC 7323 7.1: the clock for each peer has an offset that no other host knows.
#[test]
fn hp26_each_peer_sees_a_clock_of_its_own() {
    let time = |(seed, to)| {
        let mut host = TcpHost::new(TcpConfig::default(), 10, Rng::seeded(seed));
        host.connect(BEGIN, at(1, 1000), to).expect("a connection");
        let times = sent(&mut host, BEGIN)[0].1.options.timestamps;
        times.expect("the SYN has times").0
    };
    let times = [(3, at(2, 80)), (3, at(3, 80)), (4, at(2, 80))].map(time);
    let distances = [(0, 1), (1, 2), (0, 2)].map(|(a, b)| times[a].wrapping_sub(times[b]) as i32);
    assert!(distances.iter().all(|distance| distance.unsigned_abs() > 1000), "{times:?}");
}

/// RFC 9293 3.9.1.1: another listener changes no connection that there is, and a port may listen
/// and connect at the same time.
#[test]
fn tm41_tm42_a_port_listens_and_connects_at_the_same_time() {
    let (mut host, flow, id, _) = open();
    assert_eq!(host.listen(7, 5), Err(TcpOpenError::InUse));
    host.unlisten(7);
    host.listen(7, 1).expect("the port is free");
    assert_eq!(host.connection(id).map(Connection::state), Some(TcpState::Established));
    let other = host.connect(BEGIN, at(1, 7), at(3, 9)).expect("a connection");
    assert_eq!(host.connection(other).map(Connection::state), Some(TcpState::SynSent));
    assert_eq!(host.connect(BEGIN, at(1, 7), flow.peer), Err(TcpOpenError::InUse));
    sent(&mut host, BEGIN);
    let flow = TcpFlow { local: at(1, 7), peer: at(4, 8) };
    let tcp = Script::syn(&plain());
    host.input(BEGIN, flow, &Segment { tcp, data: &[], is_marked: false });
    assert!(sent(&mut host, BEGIN).iter().any(|(to, tcp)| *to == flow && tcp.flags.0 == 0x12));
}

/// RFC 9293 3.9.1.1: a program may name its address, and all segments of the connection have it.
#[test]
fn tm43_tm45_all_segments_have_the_address_that_was_named() {
    let mut host = host(1);
    let from = at(77, 0);
    let id = host.connect(BEGIN, from, at(2, 80)).expect("a connection");
    let (flow, syn) = sent(&mut host, BEGIN)[0];
    assert_eq!((flow.local.ip(), flow.peer), (from.ip(), at(2, 80)));
    let tcp = Tcp { ack: syn.seq.wrapping_add(1), flags: Flags(0x12), ..Script::syn(&plain()) };
    host.input(BEGIN, flow, &Segment { tcp, data: &[], is_marked: false });
    host.write(id, b"data");
    let all = sent(&mut host, BEGIN);
    assert!(!all.is_empty() && all.iter().all(|(to, _)| *to == flow));
}

/// RFC 9293 3.6.1: a program that leaves data unread, or gets more after it has left, has the peer
/// reset.
#[test]
fn ts3_a_peer_whose_data_is_lost_is_reset() {
    let (mut host, flow, id, tcp) = open();
    host.input(BEGIN, flow, &Segment { tcp, data: b"unread", is_marked: false });
    host.close(id);
    host.release(id);
    assert!(sent(&mut host, BEGIN).iter().any(|(_, tcp)| tcp.flags.has(Flags::RST)));
    assert_eq!(host.connections(), 0);
    let (mut host, flow, id, tcp) = open();
    host.close(id);
    host.release(id);
    assert!(sent(&mut host, BEGIN).iter().all(|(_, tcp)| !tcp.flags.has(Flags::RST)));
    host.input(BEGIN, flow, &Segment { tcp, data: b"late", is_marked: false });
    assert!(sent(&mut host, BEGIN).iter().any(|(_, tcp)| tcp.flags.has(Flags::RST)));
    let (mut host, flow, id, tcp) = open();
    host.input(BEGIN, flow, &Segment { tcp, data: b"read", is_marked: false });
    assert_eq!(host.read(id, &mut [0; 10]), 4);
    host.close(id);
    host.release(id);
    assert!(sent(&mut host, BEGIN).iter().all(|(_, tcp)| !tcp.flags.has(Flags::RST)));
}
