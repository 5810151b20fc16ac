use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use sprat_proto::Rng;
use sprat_proto::datagrams::Sent;
use sprat_proto::device::{Device, Headers, Info, Mac, Offload, RxOffload};

use super::sample::*;
use super::watch::TracedNic;
use super::*;
use crate::device::{AnyNic, Nic, bond, pcap};

/// A list of trace records whose times a test chooses.
#[derive(Default)]
struct Script {
    at: u64,
    trace: Vec<TraceRecord>,
}

impl Script {
    /// Adds a record of `kind`, `ticks` after the previous one. Returns its time.
    fn then(&mut self, ticks: u64, kind: TraceEvent, rpc: u64) -> u64 {
        self.at += ticks;
        self.trace.push(TraceRecord { at: self.at, kind, rpc });
        self.at
    }

    fn at(at: u64) -> Self {
        Self { at, trace: Vec::new() }
    }
}

/// Adds the records of a request's path out over IP. Their times: 3 of the caller or service, 5 of
/// the transport, 7 of IP, 11 of the driver in all.
fn out_over_ip(script: &mut Script, rpc: u64) {
    script.then(5, TraceEvent::Ip, 0);
    script.then(3, TraceEvent::Send, 0);
    script.then(1, TraceEvent::SentIp, 0);
    script.then(2, TraceEvent::Transport, 0);
    script.then(0, TraceEvent::Given, rpc);
    script.then(0, TraceEvent::Ip, 0);
    script.then(2, TraceEvent::Flush, 0);
    script.then(10, TraceEvent::SentIp, 0);
    script.then(100, TraceEvent::Transport, 0);
}

/// Adds the records of a request's path in. Their times: 13 of the driver, 17 of IP, 19 of the
/// transport.
fn in_over_ip(script: &mut Script, waited: u64, up: TraceEvent, rpc: u64) {
    script.then(waited, TraceEvent::Receive, 0);
    script.then(13, TraceEvent::ReceivedIp, 0);
    script.then(17, TraceEvent::Transport, 0);
    script.then(19, up, rpc);
}

/// Returns the records of one request over IP, at the client and at the server. The wire takes
/// `there` and `back`. At the end of each path out, the sender spends 100 more after the packet is
/// on the wire.
fn over_ip(begin: u64, there: u64, back: u64, rpc: u64) -> (Vec<TraceRecord>, Vec<TraceRecord>) {
    let mut client = Script::at(begin);
    client.then(0, TraceEvent::Start, 0);
    client.then(3, TraceEvent::Request, rpc);
    out_over_ip(&mut client, rpc);
    let mut server = Script::at(client.at - 100);
    in_over_ip(&mut server, there, TraceEvent::Serve, rpc);
    server.then(23, TraceEvent::Answer, rpc);
    out_over_ip(&mut server, rpc);
    let mut client = Script { at: server.at - 100, trace: client.trace };
    in_over_ip(&mut client, back, TraceEvent::Done, rpc);
    client.then(29, TraceEvent::End, 0);
    (client.trace, server.trace)
}

fn far(trace: &TraceRing) -> Far {
    Far::parse(&answer(trace)[4..]).unwrap()
}

/// Makes a ring with these records.
fn ring(trace: &[TraceRecord]) -> TraceRing {
    let ring = TraceRing::new();
    trace.iter().for_each(|record| ring.at(record.at, record.kind, record.rpc));
    ring
}

fn ticks(trip: &RoundTrip, trace: &TraceRing) -> Vec<u64> {
    trip.parts_ns.iter().map(|ns| (ns / trace.clock().tick_ns()).round() as u64).collect()
}

#[test]
fn each_layer_gets_what_it_took() {
    let (client, server) = over_ip(1000, 40, 50, 7);
    let trace = ring(&server);
    let (joined, trips) = round_trips(&calls(&client), Some(&far(&trace)), &trace);
    assert_eq!((joined, trips.len()), (Joined::OneClock, 1));
    let expected = [3, 5, 7, 11, 40, 13, 17, 19, 23, 5, 7, 11, 50, 13, 17, 19, 29, 0];
    assert_eq!(ticks(&trips[0], &trace), expected);
    let whole = (trips[0].whole_ns / trace.clock().tick_ns()).round() as u64;
    assert_eq!(whole, expected.iter().sum::<u64>());
    // Seven on the way out before it is sent, one when it began; three and the end on the way back;
    // the server's.
    assert_eq!(trips[0].tracepoints, 8 + 4 + 3 + 1 + 7);
}

#[test]
fn what_both_ends_do_at_once_counts_once() {
    // The server finds the packet 6 before the caller's driver is done, by a look that began 8
    // before.
    let mut client = Script::at(0);
    client.then(0, TraceEvent::Start, 0);
    client.then(3, TraceEvent::Request, 1);
    client.then(5, TraceEvent::Send, 0);
    client.then(20, TraceEvent::Sent, 0);
    client.then(0, TraceEvent::Given, 1);
    let mut server = Script::at(20);
    server.then(0, TraceEvent::Receive, 0);
    server.then(2, TraceEvent::Received, 0);
    server.then(1, TraceEvent::Serve, 1);
    server.then(4, TraceEvent::Answer, 1);
    server.then(1, TraceEvent::Send, 0);
    server.then(30, TraceEvent::Sent, 0);
    server.then(0, TraceEvent::Given, 1);
    // The caller's look began before the server's driver did, and found the reply.
    let mut client = Script { at: 26, ..client };
    client.trace.retain(|m| m.at <= 28);
    client.then(0, TraceEvent::Receive, 0);
    client.then(14, TraceEvent::Received, 0);
    client.then(2, TraceEvent::Done, 1);
    client.then(2, TraceEvent::End, 0);
    let trace = ring(&server.trace);
    let (_, trips) = round_trips(&calls(&client.trace), Some(&far(&trace)), &trace);
    let expected = [3, 5, 0, 12, 0, 2, 0, 1, 4, 1, 0, 0, 0, 12, 0, 2, 2, 0];
    assert_eq!(ticks(&trips[0], &trace), expected);
    assert_eq!(expected.iter().sum::<u64>(), client.at);
}

#[test]
fn the_parts_add_up_whatever_happens_when() {
    let mut rng = Rng::seeded(11);
    let mut begin = 10_000;
    for rpc in 1..500 {
        let (client, server) = over_ip(begin, rng.below(200), rng.below(200), rpc);
        // The server's clock goes with the caller's, but what it does overlaps the caller's driver
        // by up to all of it.
        let early = rng.below(100);
        let server: Vec<TraceRecord> =
            server.into_iter().map(|m| TraceRecord { at: m.at - early, ..m }).collect();
        let trace = ring(&server);
        let (_, trips) = round_trips(&calls(&client), Some(&far(&trace)), &trace);
        for trip in &trips {
            let sum = trip.parts_ns.iter().sum::<f64>();
            assert!((sum - trip.whole_ns).abs() < 1e-6 * trip.whole_ns, "{trip:?}");
            assert!(trip.parts_ns.iter().all(|&ns| ns >= 0.0), "{trip:?}");
        }
        begin += 10_000;
    }
}

#[test]
fn clocks_of_two_machines_leave_the_wire_its_rest() {
    let (client, server) = over_ip(1000, 40, 50, 7);
    let trace = ring(&server);
    let mut said = answer(&trace);
    said[4 + 8] ^= 0x80;
    let far = Far::parse(&said[4..]).unwrap();
    let (joined, trips) = round_trips(&calls(&client), Some(&far), &trace);
    assert_eq!(joined, Joined::TwoClocks);
    let parts = ticks(&trips[0], &trace);
    assert_eq!((parts[4], parts[12], parts[8], parts[3]), (45, 45, 23, 11));
    let sum = trips[0].parts_ns.iter().sum::<f64>();
    assert!((sum - trips[0].whole_ns).abs() < 1e-6 * sum);
}

#[test]
fn a_server_without_tracing_is_far_away() {
    let (client, _) = over_ip(1000, 40, 50, 7);
    let trace = ring(&[]);
    assert_eq!(Far::parse(ask()).is_none(), Far::parse(&[]).is_none());
    let (joined, trips) = round_trips(&calls(&client), None, &trace);
    assert_eq!(joined, Joined::NearOnly);
    let expected = [3, 5, 7, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13, 17, 19, 29, 40 + 49 + 23 + 23 + 50];
    assert_eq!(ticks(&trips[0], &trace), expected);
}

#[test]
fn an_echo_of_the_ip_layer_needs_no_transport() {
    let mut client = Script::at(5);
    for (ticks, kind) in [
        (0, TraceEvent::Start),
        (0, TraceEvent::Ip),
        (7, TraceEvent::Send),
        (2, TraceEvent::SentIp),
        (1, TraceEvent::Flush),
        (9, TraceEvent::SentIp),
        (100, TraceEvent::Receive),
        (13, TraceEvent::ReceivedIp),
        (17, TraceEvent::End),
    ] {
        client.then(ticks, kind, 0);
    }
    let trace = ring(&[]);
    let (_, trips) = round_trips(&calls(&client.trace), None, &trace);
    assert_eq!(
        ticks(&trips[0], &trace),
        [0, 0, 8, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13, 17, 0, 0, 100]
    );
}

#[test]
fn frames_are_matched_by_when_they_came() {
    let side = |begin: u64, rpc| {
        let mut client = Script::at(begin);
        client.then(0, TraceEvent::Start, 0);
        client.then(3, TraceEvent::Request, rpc);
        client.then(5, TraceEvent::Flush, 0);
        client.then(11, TraceEvent::Sent, 0);
        let mut server = Script::at(client.at);
        server.then(40, TraceEvent::Receive, 0);
        server.then(13, TraceEvent::Received, 0);
        server.then(0, TraceEvent::Serve, 0);
        server.then(23, TraceEvent::Answer, 0);
        server.then(5, TraceEvent::Flush, 0);
        server.then(11, TraceEvent::Sent, 0);
        let mut client = Script { at: server.at, ..client };
        client.then(50, TraceEvent::Receive, 0);
        client.then(13, TraceEvent::Received, 0);
        client.then(0, TraceEvent::Done, rpc);
        client.then(29, TraceEvent::End, 0);
        (client.trace, server.trace)
    };
    let (mut near, mut far_records) = side(1000, 5);
    let (more, more_far) = side(5000, 6);
    near.extend(more);
    far_records.extend(more_far);
    let trace = ring(&far_records);
    let (_, trips) = round_trips(&calls(&near), Some(&far(&trace)), &trace);
    assert_eq!(trips.len(), 2);
    for trip in &trips {
        let expected = [3, 5, 0, 11, 40, 13, 0, 0, 23, 5, 0, 11, 50, 13, 0, 0, 29, 0];
        assert_eq!(ticks(trip, &trace), expected);
    }
}

#[test]
fn what_makes_no_sense_is_left_out() {
    let (client, server) = over_ip(1000, 40, 50, 7);
    // A second request inside the operation, a lost beginning, a lost end.
    let mut two = client.clone();
    two.insert(2, client[1]);
    assert!(calls(&two).is_empty() && calls(&client[1..]).is_empty());
    assert!(calls(&client[..client.len() - 1]).is_empty());
    assert_eq!((served(&server).len(), served(&server[..5]).len()), (1, 0));
    // The reply arrived before it was sent.
    let trace =
        ring(&server.iter().map(|m| TraceRecord { at: m.at + 1000, ..*m }).collect::<Vec<_>>());
    assert!(round_trips(&calls(&client), Some(&far(&trace)), &trace).1.is_empty());
    // Another one's trace.
    let other = ring(&over_ip(1000, 40, 50, 8).1);
    assert!(round_trips(&calls(&client), Some(&far(&other)), &other).1.is_empty());
}

#[test]
fn random_records_do_no_harm() {
    let mut rng = Rng::seeded(3);
    for _ in 0..300 {
        let len = rng.below(60);
        let mut trace: Vec<TraceRecord> = (0..len)
            .map(|_| TraceRecord {
                at: rng.below(500),
                kind: EVENTS[rng.below(16) as usize],
                rpc: rng.below(3),
            })
            .collect();
        if rng.below(2) == 0 {
            trace.sort_by_key(|record| record.at);
        }
        let ring = ring(&trace);
        let far = far(&ring);
        for trip in round_trips(&calls(&trace), Some(&far), &ring).1 {
            assert!(trip.whole_ns >= 0.0);
        }
    }
}

#[test]
fn what_a_server_says_is_taken_whole_or_not_at_all() {
    let trace = ring(&over_ip(1000, 40, 50, 7).1);
    let said = answer(&trace);
    assert_eq!(said.len(), 4 + 40 + 14 * 8);
    for len in 4..said.len() {
        assert!(Far::parse(&said[4..len]).is_none());
    }
    let mut rng = Rng::seeded(5);
    let (client, _) = over_ip(1000, 40, 50, 7);
    for _ in 0..2000 {
        let mut lie = said.clone();
        let at = 4 + rng.below(lie.len() as u64 - 4) as usize;
        lie[at] = rng.below(256) as u8;
        if let Some(far) = Far::parse(&lie[4..]) {
            let _ = round_trips(&calls(&client), Some(&far), &trace);
        }
    }
    let lie: Vec<u8> = [&said[..4 + 40], &[0xff; 14 * 8]].concat();
    let far = Far::parse(&lie[4..]).unwrap();
    let _ = round_trips(&calls(&client), Some(&far), &trace);
}

#[test]
fn a_ring_keeps_the_last_ones() {
    let trace = TraceRing::new();
    for n in 0..ROOM as u64 + 3 {
        trace.at(n, TraceEvent::Send, n);
    }
    assert_eq!(trace.count(), ROOM as u64 + 3);
    let all = trace.since(0);
    assert_eq!((all.len(), all[0].rpc, all[0].kind), (ROOM, 3, TraceEvent::Send));
    assert_eq!(trace.since(ROOM as u64).len(), 3);
    assert!(trace.cost() > 0.0 && trace.count() == ROOM as u64 + 3);
    for kind in EVENTS {
        trace.at(1, kind, u64::MAX >> 4);
        let last = trace.since(trace.count() - 1);
        assert_eq!(last, [TraceRecord { at: 1, kind, rpc: u64::MAX >> 4 }]);
    }
}

/// A device that takes headers apart from the rest of a frame, and answers every other call in its
/// least usual way.
struct Takes {
    fd: OwnedFd,
    whole: u32,
    behind: u32,
}

impl Device for Takes {
    fn recv_burst(&mut self) -> usize {
        0
    }
    fn frame(&self, _: usize) -> (&[u8], RxOffload) {
        unreachable!("it never receives")
    }
    fn append_left(&self, _: usize, _: Range<usize>, _: &mut Vec<u8>) {}

    fn send(&mut self, _: &[&[u8]], _: Offload) -> Sent {
        self.whole += 1;
        Sent::Yes
    }
    fn send_with_headers(&mut self, _: &Headers, _: &[&[u8]], _: usize, _: Offload) -> Sent {
        self.behind += 1;
        Sent::Yes
    }
    fn flush(&mut self) {}
    fn info(&self) -> Info {
        Info::without_offloads(Mac([2; 6]), 1500)
    }
    fn rx_timestamp_ns(&self, i: usize) -> Option<u64> {
        Some(i as u64)
    }
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("whole", u64::from(self.whole));
        each("behind", u64::from(self.behind));
    }
}

impl Nic for Takes {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn disarm(&mut self) {}
    fn has_rx_timestamps(&self) -> bool {
        true
    }
    fn carries(&mut self) -> bool {
        false
    }
    fn queues(&self) -> usize {
        7
    }
}

/// Calls a device through its wrappers: each must call the device's method that its own caller
/// called. A traced device was once given whole frames where it takes headers apart.
#[test]
fn wrappers_call_what_they_are_called_by() {
    let fd = || epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let nic = || AnyNic::other(Takes { fd: fd(), whole: 0, behind: 0 });
    let trace = TraceRing::new();
    let folder = tempfile::tempdir().unwrap();
    let captured = pcap::Capture::new(nic(), &folder.path().join("capture"), 1 << 20).unwrap();
    let bond = bond::Bond::new(vec![nic(), nic()]).unwrap();
    let wrappers: Vec<(AnyNic, usize)> = vec![
        (AnyNic::other(TracedNic::new(nic(), trace)), 7),
        (AnyNic::other(captured), 7),
        (AnyNic::other(bond), 14),
        (AnyNic::other(nic()), 7),
    ];
    for (mut wrapper, queues) in wrappers {
        let headers = Headers::from_bytes(&[2; 42]);
        assert_eq!(wrapper.send_with_headers(&headers, &[b"body"], 4, Offload::None), Sent::Yes);
        let (mut whole, mut behind) = (0, 0);
        wrapper.counters(&mut |name, n| match name {
            "whole" => whole += n,
            "behind" => behind += n,
            _ => {}
        });
        assert_eq!((whole, behind), (0, 1));
        assert_eq!(
            (wrapper.has_rx_timestamps(), wrapper.carries(), wrapper.queues()),
            (true, false, queues)
        );
        assert_eq!(wrapper.rx_timestamp_ns(3), Some(3));
    }
}
