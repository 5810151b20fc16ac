use super::*;
use sprat_proto::Rng;
use sprat_proto::datagrams::BURST;

fn locator(text: &str) -> Locator {
    text.parse().expect("a locator")
}

fn server(host: &str, options: Options) -> Udp {
    Udp::listen(&locator(&format!("fast+udp:host={host},port=0")), options).expect("a free port")
}

/// Opens a driver that listens and one that has resolved its address. Returns both and the address.
fn pair(options: Options) -> (Udp, Udp, Addr) {
    let server = server("127.0.0.1", options);
    let mut client = Udp::client(options).expect("a driver");
    let at = client.resolve(&locator(&server.locator().expect("it listens"))).expect("an address");
    (server, client, at)
}

/// Polls the driver until `n` datagrams have arrived; loopback delivers before the sender's call
/// returns, so this never waits long.
fn receive(driver: &mut Udp, n: usize) -> Vec<(Addr, Vec<u8>)> {
    let mut got = Vec::new();
    for _ in 0..1_000_000 {
        let burst = driver.recv_burst();
        assert!(burst <= BURST);
        got.extend((0..burst).map(|i| (driver.datagram(i).0, driver.datagram(i).1.to_vec())));
        if got.len() >= n {
            break;
        }
    }
    assert_eq!(got.len(), n);
    got
}

fn payload(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|j| (i * 31 + j * 7) as u8).collect()
}

#[test]
fn there_and_back_on_both_families() {
    for host in ["127.0.0.1", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"] {
        let mut server = server(host, Options::default());
        let mut client = Udp::client(Options::default()).expect("a driver");
        let at =
            client.resolve(&locator(&server.locator().expect("it listens"))).expect("an address");
        assert_eq!(client.send(at, &[b"pi", b"", b"ng"]), Sent::Yes);
        client.flush();
        let (from, bytes) = receive(&mut server, 1).remove(0);
        assert_eq!(bytes, b"ping");
        server.send(from, &[b"pong"]);
        server.flush();
        let (from, bytes) = receive(&mut client, 1).remove(0);
        assert_eq!((from, bytes.as_slice()), (at, &b"pong"[..]));
        assert_eq!((client.recv_burst(), server.recv_burst()), (0, 0));
    }
}

#[test]
fn runs_of_every_shape_arrive_as_they_were_sent() {
    let (mut server, mut client, at) = pair(Options::default());
    // Equal lengths, a shorter one that ends a run, a longer one that begins one, empty ones, the
    // largest.
    let mut lens = vec![100; 5];
    lens.extend([40, 100, 0, 0, 7, 7, 8188, 8188, 3, 1400]);
    lens.extend([8188; 20]);
    lens.extend([1; 150]);
    lens.extend((0..60).map(|i| 60 - i));
    for (i, &len) in lens.iter().enumerate() {
        let bytes = payload(i, len);
        let (a, b) = bytes.split_at(len / 3);
        assert_eq!(client.send(at, &[a, b]), Sent::Yes);
    }
    client.flush();
    client.flush();
    // Those of one length stay in order.
    let mut got = receive(&mut server, lens.len());
    got.sort_by_key(|(_, bytes)| bytes.len());
    let mut sent: Vec<_> = lens.iter().enumerate().map(|(i, &len)| payload(i, len)).collect();
    sent.sort_by_key(Vec::len);
    for (i, ((_, bytes), sent)) in got.iter().zip(&sent).enumerate() {
        assert!(bytes == sent, "datagram {i} of {} bytes", sent.len());
    }
    let counters = client.counters();
    assert_eq!((counters.sent, counters.send_dropped), (lens.len() as u64, 0));
    assert_eq!(server.counters().received, lens.len() as u64);
}

/// A listening driver has the checksums that its locator says, a client those of its first server.
/// A server that differs is refused, since neither end would take a packet of the other.
#[test]
fn checksums_follow_the_locator() {
    let (on, mut client, _) = pair(Options::default());
    assert!(!on.intact() && !client.intact());
    let on = on.locator().expect("it listens");
    let off = Udp::listen(&locator("fast+udp:host=127.0.0.1,port=0,crc=off"), Options::default());
    let off = off.expect("a free port");
    assert!(off.intact());
    let off = off.locator().expect("it listens");
    assert!(off.ends_with(",crc=off") && !on.contains("crc"));
    let e = client.resolve(&locator(&off)).expect_err("crc differs");
    assert_eq!(e.to_string(), format!("{off}: calls here have crc=on, not crc=off"));
    let mut client = Udp::client(Options::default()).expect("a driver");
    // Expect: a server that cannot be called decides nothing.
    assert!(client.resolve(&locator("fast+udp:host=192.0.2.1,port=1")).is_err());
    client.resolve(&locator(&off)).expect("the first one");
    assert!(client.intact());
    assert!(client.resolve(&locator(&on)).is_err() && client.intact());
}

/// A driver that may reach the network sends long datagrams to addresses of loopback all the same,
/// and to no others.
#[test]
fn loopback_has_long_datagrams_where_the_network_is_allowed_too() {
    let options = Options { insecure_network: true, ..Options::default() };
    let (mut server, mut client, at) = pair(options);
    assert_eq!(client.max_payload(), NETWORK_PAYLOAD);
    let long = payload(1, client.max_loopback_payload());
    client.send(at, &[&long]);
    assert!(receive(&mut server, 1).remove(0).1 == long);
    let far = client.resolve(&locator("fast+udp:host=192.0.2.1,port=9")).expect("an address");
    client.send(far, &[&long[..NETWORK_PAYLOAD + 1]]);
    assert_eq!((client.counters().sent, client.counters().send_invalid), (1, 1));
    let (_, client, _) = pair(Options { max_payload: Some(1000), ..options });
    assert_eq!((client.max_payload(), client.max_loopback_payload()), (1000, 1000));
}

/// A long datagram leaves at once, without a copy in the batch, behind those that wait. One that is
/// a byte shorter waits as others do.
#[test]
fn long_datagrams_leave_at_once_behind_those_that_wait() {
    let (mut server, mut client, at) = pair(Options::default());
    assert_eq!(client.max_payload(), LOOPBACK_PAYLOAD);
    for len in [LENT, LOOPBACK_PAYLOAD] {
        let long = payload(len, len);
        let (a, b) = long.split_at(32);
        client.send(at, &[b"first"]);
        client.send(at, &[a, b]);
        assert!(client.batch.is_empty());
        client.send(at, &[&payload(0, LENT - 1)]);
        let got: Vec<_> = receive(&mut server, 2).into_iter().map(|(_, bytes)| bytes).collect();
        assert!(got == [b"first".to_vec(), long]);
        assert_eq!(server.recv_burst(), 0);
        client.flush();
        assert!(receive(&mut server, 1).remove(0).1 == payload(0, LENT - 1));
    }
    assert_eq!(client.counters().sent, 6);
}

/// Returns the datagrams of a batch by peer, run by run; checks the kernel's conditions for a run.
fn runs(batch: &mut Batch) -> Vec<(SocketAddr, Vec<Vec<u8>>)> {
    let mut all = Vec::new();
    batch.close();
    batch.each_socket(|_, items| {
        for item in items {
            let bytes: Vec<u8> = item.pieces.iter().flat_map(|p| p.iter().copied()).collect();
            assert!(bytes.len() <= MAX_RUN);
            let segment = item.segment.map_or_else(|| bytes.len().max(1), usize::from);
            let mut run: Vec<_> = bytes.chunks(segment).map(<[u8]>::to_vec).collect();
            run.resize(run.len().max(1), vec![]);
            assert!(run.len() <= 64);
            all.push((item.to.addr().expect("an address"), run));
        }
    });
    batch.clear();
    all
}

fn add(batch: &mut Batch, to: SocketAddr, bytes: &[u8]) -> bool {
    let parts = &[&bytes[..bytes.len() / 2], &bytes[bytes.len() / 2..]];
    if batch.join(&to, bytes.len(), parts) {
        return true;
    }
    let room = batch.has_room(bytes.len());
    if room {
        batch.begin(0, to, bytes.len(), parts);
    }
    room
}

/// Replies to several clients, to reads and to writes, once left one by one unless the next one in
/// the batch had the same peer and length.
#[test]
fn interleaved_peers_and_lengths_make_one_run_each() {
    let mut batch = Batch::new();
    let peers: Vec<SocketAddr> =
        (1..=4).map(|i| SocketAddr::from((Ipv4Addr::LOCALHOST, i))).collect();
    for i in 0..48 {
        let bytes = payload(i, if i % 3 == 0 { 40 } else { 140 });
        assert!(add(&mut batch, peers[i % 4], &bytes));
    }
    let all = runs(&mut batch);
    assert_eq!(all.len(), 8, "a run for each peer and length");
    for (to, run) in all {
        let of = |i: &usize| peers[i % 4] == to && i.is_multiple_of(3) == (run[0].len() == 40);
        let expected: Vec<_> = (0..48).filter(of).map(|i| payload(i, run[0].len())).collect();
        assert!(run == expected);
    }
    // The last packet of a message goes with the others.
    for len in [8188, 8188, 300, 8188, 412] {
        assert!(add(&mut batch, peers[0], &payload(len, len)));
    }
    let all = runs(&mut batch);
    let lens: Vec<Vec<_>> = all.iter().map(|(_, r)| r.iter().map(Vec::len).collect()).collect();
    assert_eq!(lens, [vec![8188, 8188, 8188, 412], vec![300]]);
}

#[test]
fn random_batches_lose_nothing() {
    let mut rng = Rng::seeded(5);
    let mut batch = Batch::new();
    for round in 0..300 {
        let (mut sent, peers) = (Vec::new(), 1 + rng.below(40) as u16);
        let lens: Vec<u64> = (0..1 + rng.below(4)).map(|_| rng.below(9000)).collect();
        for i in 0..rng.below(400) as usize {
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 1 + rng.below(peers.into()) as u16));
            let len = match rng.below(4) {
                0 => rng.below(500),
                _ => lens[rng.below(lens.len() as u64) as usize],
            };
            let bytes = payload(i, len as usize);
            if !add(&mut batch, to, &bytes) {
                break;
            }
            sent.push((to, bytes));
        }
        let mut got: Vec<_> = runs(&mut batch)
            .into_iter()
            .flat_map(|(to, r)| r.into_iter().map(move |b| (to, b)))
            .collect();
        got.sort();
        sent.sort();
        assert!(got == sent, "round {round}");
    }
}

#[test]
fn a_run_longer_than_a_burst_is_delivered_in_several() {
    let (mut server, mut client, at) =
        pair(Options { max_payload: Some(1000), ..Options::default() });
    for i in 0..60 {
        client.send(at, &[&payload(i, 1000)]);
    }
    client.flush();
    assert_eq!(server.recv_burst(), BURST);
    assert_eq!(server.datagram(31).1, payload(31, 1000));
    assert!(!server.arm(), "what has been received already gives no signal on the descriptor");
    assert_eq!(server.recv_burst(), 60 - BURST);
    assert_eq!(server.datagram(0).1, payload(32, 1000));
    assert!(server.arm());
}

/// Replies to several clients leave together when the receive is handled, those to one client at
/// once. After [`HELD_BURSTS`] bursts all leave.
#[test]
fn replies_to_several_clients_wait_for_the_rest_of_a_receive() {
    let (mut server, mut a, at) = pair(Options::default());
    let mut b = Udp::client(Options::default()).expect("a driver");
    let to_b = b.resolve(&locator(&server.locator().expect("it listens"))).expect("an address");
    let send = |driver: &mut Udp, to: Addr, n: usize| {
        (0..n).for_each(|i| _ = driver.send(to, &[&payload(i, 100)]));
        driver.flush();
    };
    // The first receive asks for one message, the next ones for several.
    send(&mut a, at, 2 * BURST);
    assert_eq!(server.recv_burst(), BURST);
    let from_a = server.datagram(0).0;
    send(&mut server, from_a, BURST);
    assert_eq!(receive(&mut a, BURST).len(), BURST, "one client alone does not wait");
    assert_eq!(server.recv_burst(), BURST);
    send(&mut a, at, BURST);
    send(&mut b, to_b, (HELD_BURSTS as usize + 2) * BURST);
    assert_eq!(server.recv_burst(), BURST);
    assert_eq!(server.recv_burst(), BURST);
    let from_b = server.datagram(0).0;
    assert_ne!(from_a, from_b);
    for burst in 0..=HELD_BURSTS {
        for to in [from_a, from_b] {
            assert_eq!(server.send(to, &[&payload(0, 100)]), Sent::Yes);
        }
        server.flush();
        let left = if burst == HELD_BURSTS { burst as usize + 1 } else { 0 };
        assert_eq!(a.recv_burst(), left, "after burst {burst}");
    }
    // What waits leaves before the next receive, whatever that brings.
    server.send(from_a, &[&payload(0, 100)]);
    server.send(from_b, &[&payload(0, 100)]);
    server.flush();
    assert_eq!(a.recv_burst(), 0);
    assert_eq!(server.recv_burst(), BURST);
    assert_eq!(a.recv_burst(), 0);
    while server.recv_burst() > 0 {}
    assert_eq!(a.recv_burst(), 1);
}

#[test]
fn without_segmentation_the_same_datagrams_go_singly() {
    let (mut server, mut client, at) = pair(Options::default());
    client.sockets[0].gso = false;
    for i in 0..10 {
        client.send(at, &[&payload(i, 500)]);
    }
    client.send(at, &[b"end"]);
    client.flush();
    let got = receive(&mut server, 11);
    assert!((0..10).all(|i| got[i].1 == payload(i, 500)));
    assert_eq!(got[10].1, b"end");
    assert_eq!(client.counters().sent, 11);
}

#[test]
fn datagrams_to_many_peers_in_one_batch() {
    let mut servers: Vec<_> = (0..40)
        .map(|i| server(if i % 2 == 0 { "127.0.0.1" } else { "::1" }, Options::default()))
        .collect();
    let mut client = Udp::client(Options::default()).expect("a driver");
    let peers: Vec<_> = servers
        .iter()
        .map(|s| client.resolve(&locator(&s.locator().expect("it listens"))).expect("an address"))
        .collect();
    assert_eq!(client.sockets.len(), 3, "one connected, one for each family");
    for (i, &peer) in peers.iter().enumerate() {
        client.send(peer, &[&payload(i, 90 + i)]);
        client.send(peer, &[&payload(i + 100, 90 + i)]);
    }
    client.flush();
    for (i, server) in servers.iter_mut().enumerate() {
        let got = receive(server, 2);
        assert_eq!((&got[0].1, &got[1].1), (&payload(i, 90 + i), &payload(i + 100, 90 + i)));
        server.send(got[0].0, &[&payload(i, 20)]);
        server.flush();
    }
    let mut back: Vec<_> =
        receive(&mut client, 40).into_iter().map(|(from, _)| from.to_string()).collect();
    let mut expected: Vec<_> = peers.iter().map(ToString::to_string).collect();
    back.sort();
    expected.sort();
    assert_eq!(back, expected);
}

#[test]
fn a_peer_that_is_not_there_is_loss() {
    let (server, mut client, at) = pair(Options::default());
    drop(server);
    for _ in 0..20 {
        client.send(at, &[b"anyone?"]);
        client.flush();
        assert_eq!(client.recv_burst(), 0);
    }
}

#[test]
fn misuse_is_counted_or_refused() {
    let (_server, mut client, at) = pair(Options::default());
    client.send(at, &[&vec![0; client.max_payload() + 1]]);
    client.send(Addr::Local(3), &[b"x"]);
    client.send(Addr::Net("192.0.2.1:9".parse().expect("an address")), &[b"x"]);
    client.flush();
    assert_eq!((client.counters().send_invalid, client.counters().sent), (3, 0));
    let refused =
        |text: &str| Udp::client(Options::default()).expect("a driver").resolve(&locator(text));
    assert!(
        refused("tcp:host=127.0.0.1,port=1")
            .expect_err("wrong kind")
            .to_string()
            .contains("no locator of fast+udp")
    );
    assert!(refused("fast+udp:host=127.0.0.1,port=0").is_err());
    assert_eq!(
        refused("fast+udp:host=192.0.2.1,port=1").expect_err("elsewhere").kind(),
        io::ErrorKind::PermissionDenied
    );
    assert!(Udp::client(Options { max_payload: Some(70_000), ..Options::default() }).is_err());
    let taken = server("127.0.0.1", Options::default());
    let at = locator(&taken.locator().expect("it listens"));
    let e = Udp::listen(&at, Options::default()).expect_err("the port is in use");
    assert_eq!(e.kind(), io::ErrorKind::AddrInUse);
    assert!(e.to_string().contains(&at.to_string()), "{e}");
}

#[test]
fn the_descriptor_tells_of_arrivals_on_any_socket() {
    let mut server = server("::1", Options::default());
    let mut client = Udp::client(Options::default()).expect("a driver");
    let readable = |driver: &Udp| {
        let mut fds =
            [rustix::event::PollFd::from_borrowed_fd(driver.fd(), rustix::event::PollFlags::IN)];
        let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&none)).expect("poll") == 1
    };
    assert!(!readable(&client));
    let at = client.resolve(&locator(&server.locator().expect("it listens"))).expect("an address");
    client.send(at, &[b"x"]);
    assert!(client.arm(), "and it leaves nothing unsent");
    assert!(readable(&server));
    receive(&mut server, 1);
    assert!(server.arm());
    assert!(!readable(&server));
}
