//! Tests of connections, accepted, refused and disconnected, and of the objects that several queue
//! pairs share.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use sprat_rdma::{CmEvent, ConnectionChannel, ConnectionId, SocketOptions};

use super::*;

#[test]
fn requests_are_accepted_or_refused_with_private_data() {
    [on_one_device, wire::devices].into_iter().for_each(requests_are_answered);
}

fn requests_are_answered(way: Way) {
    let [ours, theirs] = way(Options::default());
    let (a, b) = (Side::of(&ours, 4096), Side::of(&theirs, 4096));
    let listener = theirs.listen(address(&theirs)).unwrap();
    let ask = ConnectOptions {
        private_data: b"may I?".to_vec(),
        ird: 3,
        ord: 5,
        ..ConnectOptions::default()
    };
    a.pair.begin_connect(listener.local_addr(), ask.clone()).unwrap();
    let request = beside(&ours, || listener.next(SOON).expect("a request"));
    assert_eq!(
        (request.private_data(), request.ird(), request.ord()),
        (&b"may I?"[..], Some(3), Some(5))
    );
    request.reject(b"not now").unwrap();
    match beside(&theirs, || a.pair.connected(SOON).unwrap_err()) {
        ConnectError::Rejected { private_data, .. } => assert_eq!(private_data, b"not now"),
        other => panic!("{other:?}"),
    }
    // The pair may try again.
    connect(&a, &b, ask);
    ping(&a, &b);
    // A listener that was dropped accepts no connection.
    let at = listener.local_addr();
    drop(listener);
    let c = Side::of(&ours, 4096);
    let refused = beside(&theirs, || c.pair.connect(at, depths(), SOON).unwrap_err());
    assert_eq!(refused, ConnectError::Unreachable(std::io::ErrorKind::ConnectionRefused));
}

/// Sends one small message from `a` to `b`.
fn ping(a: &Side, b: &Side) {
    b.recv(1, 0..64);
    a.send(2, SendOp::Send, 0..64);
    let wait = |side: &Side| side.done().id;
    std::thread::scope(|s| {
        let theirs = s.spawn(|| wait(b));
        let mine = wait(a);
        let ids = [mine, theirs.join().unwrap()];
        // The sides have one queue each, or one for both: either way each completion comes once.

        assert!(ids == [2, 1] || ids == [1, 2], "{ids:?}");
    });
}

#[test]
fn several_pairs_share_receives_and_one_completion_channel() {
    [on_one_device, wire::devices].into_iter().for_each(several_pairs_share);
}

fn several_pairs_share(way: Way) {
    let [ours, device] = way(Options::default());
    let domain = device.protection_domain().unwrap();
    let channel = device.completion_channel().unwrap();
    let memory = domain.register(4096, Access::LOCAL).unwrap();
    let shared = domain.shared_receive_queue(16, 1).unwrap();
    for id in 0..4 {
        shared
            .post_recv(RecvRequest::new(id, memory.sge(id as usize * 64..(id as usize + 1) * 64)))
            .unwrap();
    }
    shared.limit(2);
    let listener = device.listen(address(&device)).unwrap();
    let pairs = [(); 2].map(|()| {
        let queue = channel.completion_queue(16).unwrap();
        queue.arm(false);
        let pair = domain
            .queue_pair(&PairOptions { shared: Some(&shared), ..PairOptions::new(&queue) })
            .unwrap();
        let client = Side::of(&ours, 4096);
        client.pair.begin_connect(listener.local_addr(), depths()).unwrap();
        let request = beside(&ours, || listener.next(SOON).expect("a request"));
        request.accept(&pair, AcceptOptions::default()).unwrap();
        beside(&device, || client.pair.connected(SOON).unwrap());
        (queue, pair, client)
    });
    for (queue, _, client) in &pairs {
        client.send(9, SendOp::Send, 0..8);
        assert_eq!(channel.next(SOON), Some(queue.number()));
        assert_eq!(queue.wait(SOON).unwrap().len, 8);
        client.send(9, SendOp::Send, 0..8);
        assert_eq!(queue.sleep(SOON).unwrap().len, 8);
    }
    // A channel that was armed once is notified once.
    assert_eq!(channel.next(Some(Duration::ZERO)), None);
    assert_eq!(device.async_event(), Some(AsyncEvent::Limit(shared.number())));
}

#[test]
fn a_thousand_connections_on_one_device_each_do_a_ping() {
    WAYS.into_iter().for_each(a_thousand_connections);
}

fn a_thousand_connections(way: Way) {
    let [client, server] = way(Options { threading: Threading::IoThread, ..Options::default() });
    let domain = server.protection_domain().unwrap();
    let queue = server.completion_queue(4096).unwrap();
    let memory = domain.register(64, Access::ALL).unwrap();
    let listener = server.listen(address(&server)).unwrap();
    // A connection has two descriptors in this process, whose limit decides how many there are.
    let most =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(4096);
    let count = 1000.min((most as usize).saturating_sub(100) / 2);
    let mut sides = Vec::new();
    for _ in 0..count {
        let side = Side::of(&client, 4096);
        side.pair.begin_connect(listener.local_addr(), depths()).unwrap();
        let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
        pair.post_recv(RecvRequest::new(0, memory.sge(0..64))).unwrap();
        let request = listener.next(SOON).unwrap();
        request.accept(&pair, AcceptOptions::default()).unwrap();
        side.pair.connected(SOON).unwrap();
        sides.push((side, pair));
    }
    for (side, _) in &sides {
        side.send(1, SendOp::Send, 0..64);
        side.done();
    }
    for _ in 0..count {
        assert_eq!(queue.wait(SOON).unwrap().len, 64);
    }
}

#[test]
fn a_peer_that_sends_garbage_stalls_or_leaves_harms_no_other_connection() {
    let options = Options { start_timeout: Duration::from_millis(50), ..Options::default() };
    let device = Device::open(options).unwrap();
    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr();
    let mut nonsense = TcpStream::connect(at).unwrap();
    nonsense.write_all(b"GET / HTTP/1.1\r\nHost: sprat\r\n\r\n").unwrap();
    let mut stalled = TcpStream::connect(at).unwrap();
    stalled.write_all(b"MPA ID Req Fra").unwrap();
    drop(TcpStream::connect(at).unwrap());
    let (a, b) = (Side::of(&device, 4096), Side::of(&device, 4096));
    a.pair.begin_connect(at, depths()).unwrap();
    listener.next(SOON).unwrap().accept(&b.pair, AcceptOptions::default()).unwrap();
    a.pair.connected(SOON).unwrap();
    ping(&a, &b);
    // Both are closed, one at once and one after its time.
    for stream in [&mut nonsense, &mut stalled] {
        stream.set_nonblocking(true).unwrap();
        let mut bytes = [0; 64];
        assert!(device.wait(SOON, || !matches!(
            stream.read(&mut bytes),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock
        )));
    }
}

#[test]
fn misuse_is_an_error() {
    let device = Device::open(Options::default()).unwrap();
    let a = Side::of(&device, 4096);
    assert_eq!(a.memory.read(4090, &mut [0; 7]), Err(OutOfBounds));
    assert_eq!(a.memory.write(usize::MAX, &[0]), Err(OutOfBounds));
    assert!(a.memory.word(4).is_err() && a.memory.word(4096).is_err());
    let outside = a.pair.begin_connect("192.0.2.1:7".parse().unwrap(), depths()).unwrap_err();
    assert_eq!(outside.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(device.listen("0.0.0.0:0".parse().unwrap()).is_err());
    assert!(a.pair.disconnect().is_err());
    assert_eq!(a.pair.connected(SOON), Err(ConnectError::Idle));
    let other = Device::open(Options::default()).unwrap();
    let listener = other.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    a.pair.begin_connect(listener.local_addr(), depths()).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| a.pair.connected(SOON).unwrap_err());
        // A queue pair of another device.
        let foreign = Side::of(&device, 64);
        assert_eq!(
            listener.next(SOON).unwrap().accept(&foreign.pair, AcceptOptions::default()),
            Err(PostError::Invalid)
        );
    });
}

/// A program sends its last message and exits, and its kernel resets the connection because of
/// bytes that it did not read. The peer notices this when it sends, and receives the last message
/// all the same.
#[test]
fn the_last_message_arrives_at_a_peer_that_finds_the_end_by_sending() {
    WAYS.into_iter().for_each(the_last_message_arrives);
}

fn the_last_message_arrives(way: Way) {
    let [a, b] = connected(way, Options { threading: Threading::Caller, ..Options::default() }, 64);
    b.recv(1, 0..8);
    // The accepting side may send once a message has arrived.
    a.send(10, SendOp::Send, 0..8);
    assert_eq!((a.done().id, b.done().id), (10, 1));
    b.recv(2, 0..8);
    b.recv(3, 8..16);
    b.send(4, SendOp::Send, 16..24);
    a.send(11, SendOp::Send, 0..8);
    drop(a);
    // This side has read nothing since; these Sends find the end.
    b.send(5, SendOp::Send, 16..24);
    b.send(6, SendOp::Send, 16..24);
    let mut ended: Vec<_> =
        (0..5).map(|_| b.queue.wait(SOON).expect("a completion in time")).collect();
    ended.sort_by_key(|c| c.id);
    let of = |id: u64| ended.iter().find(|c| c.id == id).map(|c| c.status);
    assert_eq!((of(2), of(3)), (Some(Status::Success), Some(Status::Flushed)), "{ended:?}");
}

/// The end of a device of our own TCP does not take along what was sent: the bytes that waited for
/// the peer's acknowledgements were lost with a process that ended, and its peer's FIN found no
/// answer.
#[test]
fn what_was_sent_arrives_though_the_sender_s_device_leaves() {
    const LEN: usize = 1 << 20;
    let [a, b] = connected(wire::devices, Options::default(), LEN);
    b.recv(1, 0..LEN);
    a.send(2, SendOp::Send, 0..LEN);
    assert_eq!(a.done().id, 2);
    std::thread::scope(|s| {
        s.spawn(|| a.device.leave(Duration::from_secs(20)));
        assert_eq!(b.done().len as usize, LEN);
        assert!(b.pair.disconnected(SOON));
        // The sender waits for the end of this side.
        b.device.leave(Duration::from_secs(20));
    });
}

/// A connection that was refused, since no program listened yet, is tried again from the port that
/// its program knows. The stack still had the first attempt then, and refused the second.
#[test]
fn a_refused_connection_is_tried_again_from_its_port() {
    let [ours, theirs] = wire::devices(Options::default());
    let (a, b) = (Side::of(&ours, 64), Side::of(&theirs, 64));
    let at = theirs.bind(address(&theirs), SocketOptions::default()).unwrap();
    let channels = [&ours, &theirs].map(|device| device.connection_channel().unwrap());
    let (id, listener) = (ConnectionId::new(&channels[0], 1), ConnectionId::new(&channels[1], 2));
    let patience = Duration::from_secs(20);
    let to = at.local_addr();
    let from = id.connect(a.pair.number(), None, to, depths(), patience, patience).unwrap();
    // Addresses are resolved and the attempt is refused meanwhile.
    for _ in 0..100 {
        theirs.progress();
        ours.progress();
    }
    assert_eq!(a.pair.connection(), Connection::Opening);
    listener.listen(at, 1).unwrap();
    // Each read waits at most 100 ms.
    let event = |channel: &ConnectionChannel| {
        let read = (0..200).map(|_| channel.read());
        let is_over = |e: &std::io::Error| e.kind() != std::io::ErrorKind::TimedOut;
        let mut read = read.filter(|read| read.as_ref().err().is_none_or(is_over));
        read.next().expect("an event in time").unwrap()
    };
    let (2, CmEvent::Request(request)) = beside(&ours, || event(&channels[1])) else {
        panic!("a request comes first")
    };
    assert_eq!(request.peer(), from);
    request.accept(&b.pair, AcceptOptions::default()).unwrap();
    beside(&theirs, || a.pair.connected(SOON).unwrap());
}
