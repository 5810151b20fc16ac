use super::*;

fn wire(options: Options) -> Wire {
    let mut wire = Wire::new(options, Rng::seeded(7));
    for _ in 0..3 {
        let host = wire.host();
        wire.up(host);
    }
    wire
}

fn deliver_all(wire: &mut Wire) {
    while wire.next().is_some() {
        wire.deliver();
    }
}

fn receive(wire: &mut Wire, host: HostId) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let now = wire.0.borrow().now;
        let mut port = wire.port(host, now);
        let n = port.recv_burst();
        if n == 0 {
            return all;
        }
        all.extend((0..n).map(|i| port.datagram(i).1.to_vec()));
    }
}

#[test]
fn a_datagram_is_delivered_to_its_destination_only() {
    let mut wire = wire(Options::default());
    let (to, from) = (wire.addr(1).unwrap(), wire.addr(0).unwrap());
    assert_eq!(wire.port(0, Instant::ZERO).send(to, &[b"ab", b"", b"c"]), Sent::Yes);
    assert!(wire.next().unwrap() >= Instant::from_ns(3 * US));
    assert_eq!(wire.deliver(), Some(1));
    assert!(wire.waiting(1) && !wire.waiting(2));
    let mut port = wire.port(1, Instant::from_ns(MS));
    assert_eq!(port.recv_burst(), 1);
    assert_eq!(port.datagram(0), (from, &b"abc"[..]));
    assert_eq!(port.recv_burst(), 0);
}

#[test]
fn every_fault_happens_at_its_rate() {
    let fault = Fault {
        drop_ppm: 200_000,
        duplicate_ppm: 100_000,
        reorder_ppm: 100_000,
        corrupt_ppm: 50_000,
        truncate_ppm: 50_000,
        reorder_ns: MS,
    };
    let mut wire = wire(Options { fault, room: 100_000, ..Options::default() });
    let to = wire.addr(1).unwrap();
    for n in 0..10_000u32 {
        wire.port(0, Instant::from_ns(u64::from(n) * 10 * US))
            .send(to, &[&n.to_be_bytes(), &[0; 28]]);
    }
    deliver_all(&mut wire);
    let received = receive(&mut wire, 1);
    let good = |d: &&Vec<u8>| d.len() == 32 && d[4..] == [0; 28];
    let numbers: Vec<u32> = received
        .iter()
        .filter(good)
        .map(|d| u32::from_be_bytes(d[..4].try_into().unwrap()))
        .collect();
    let count = wire.count();
    assert!((1_800..2_200).contains(&count.dropped), "{count:?}");
    let doubled = count.delivered + count.dropped - count.sent;
    assert!((650..950).contains(&doubled), "{count:?}");
    assert!(received.iter().filter(|d| d.len() < 32).count() > 300);
    assert!(received.iter().filter(|d| d.len() == 32 && d[4..] != [0; 28]).count() > 250);
    assert!(numbers.windows(2).filter(|w| w[0] > w[1]).count() > 500);
}

#[test]
fn a_cut_is_one_way_and_can_be_healed() {
    let mut wire = wire(Options::default());
    let (a, b) = (wire.addr(0).unwrap(), wire.addr(1).unwrap());
    wire.cut(0, 1, false);
    wire.port(0, Instant::ZERO).send(b, &[b"x"]);
    wire.port(1, Instant::ZERO).send(a, &[b"y"]);
    deliver_all(&mut wire);
    assert_eq!((receive(&mut wire, 1).len(), receive(&mut wire, 0).len()), (0, 1));
    wire.heal();
    wire.port(0, Instant::ZERO).send(b, &[b"x"]);
    deliver_all(&mut wire);
    assert_eq!(receive(&mut wire, 1).len(), 1);
}

#[test]
fn datagrams_in_flight_reach_the_next_process_at_a_lossy_address() {
    let mut wire = wire(Options::default());
    let to = wire.addr(1).unwrap();
    wire.port(0, Instant::ZERO).send(to, &[b"late"]);
    wire.down(1);
    assert_eq!(wire.up(1), to);
    deliver_all(&mut wire);
    assert_eq!(receive(&mut wire, 1).len(), 1);
    wire.port(0, Instant::ZERO).send(to, &[b"lost"]);
    wire.down(1);
    deliver_all(&mut wire);
    assert_eq!(wire.count().unreachable, 1);
}

#[test]
fn a_ring_is_fifo_and_returns_full() {
    let mut wire = wire(Options { room: 4, ..Options::lossless() });
    let to = wire.addr(1).unwrap();
    let send = |wire: &mut Wire, n: u8| wire.port(0, Instant::ZERO).send(to, &[&[n]]);
    let sent: Vec<Sent> = (0..6).map(|n| send(&mut wire, n)).collect();
    assert_eq!(sent, [Sent::Yes, Sent::Yes, Sent::Yes, Sent::Yes, Sent::Full, Sent::Full]);
    deliver_all(&mut wire);
    // Datagrams that are delivered but not received still occupy the ring.
    assert_eq!(send(&mut wire, 9), Sent::Full);
    assert_eq!(receive(&mut wire, 1), [[0], [1], [2], [3]]);
    assert_eq!(send(&mut wire, 4), Sent::Yes);
}

#[test]
fn the_end_of_a_ring_peer_is_reported_once_after_its_last_datagram() {
    let mut wire = wire(Options::lossless());
    let (a, b) = (wire.addr(0).unwrap(), wire.addr(1).unwrap());
    wire.port(1, Instant::ZERO).send(a, &[b"last datagram"]);
    wire.down(1);
    assert_eq!(wire.port(0, Instant::ZERO).send(b, &[b"?"]), Sent::Gone);
    deliver_all(&mut wire);
    let mut port = wire.port(0, Instant::from_ns(MS));
    assert_eq!(port.gone(), None);
    assert_eq!(port.recv_burst(), 1);
    assert_eq!((port.gone(), port.gone()), (Some(b), None));
    assert_ne!(wire.up(1), b, "a new process has a new address");
}
