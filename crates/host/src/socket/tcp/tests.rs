use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::event::{PollFd, PollFlags, poll};
use sprat_proto::Rng;
use sprat_proto::rpc::{MAX_MESSAGE, RpcError};

use super::*;

const NOW: Instant = Instant::from_ns(1_000);

fn locator(text: &str) -> Locator {
    text.parse().expect("a locator")
}

fn server(host: &str, options: Options) -> (Tcp, Locator) {
    let at = locator(&format!("tcp:host={host},port=0"));
    let server = Tcp::listen(&at, options).expect("a free port");
    let at = locator(&server.locator().expect("it listens"));
    (server, at)
}

fn client() -> Tcp {
    Tcp::client(Options::default()).expect("an epoll")
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed * 131 + i * 7 + i / 251) as u8).collect()
}

/// What a client saw.
#[derive(Debug, PartialEq, Eq, Clone)]
enum Seen {
    Response(u64, Vec<u8>),
    Failed(u64, RpcError),
    Closed(SessionId, CloseReason),
}

/// One turn of a client.
fn turn(client: &mut Tcp, now: Instant, seen: &mut Vec<Seen>) {
    client.input(now);
    while let Some(event) = client.event(now) {
        seen.push(match event {
            Event::Response { tag, payload, .. } => Seen::Response(tag, payload.into_vec()),
            Event::Failed { tag, error, .. } => Seen::Failed(tag, error),
            Event::Closed { session, reason } => Seen::Closed(session, reason),
            Event::Request { .. } => panic!("a request at a client"),
        });
    }
    client.output(now, &());
}

/// One turn of a server that answers each request with `answer` of it; returns the number of requests.
fn serve(server: &mut Tcp, mut answer: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> usize {
    let mut count = 0;
    server.input(NOW);
    while let Some(event) = server.event(NOW) {
        let Event::Request { rpc, payload, .. } = event else { panic!("{event:?}") };
        let reply = answer(&payload);
        if let Some(reply) = reply {
            server.reply(NOW, rpc, reply.into());
        }
        count += 1;
    }
    server.output(NOW, &());
    count
}

fn echo(server: &mut Tcp) -> usize {
    serve(server, |request| Some(request.to_vec()))
}

/// Runs an echo of `requests` and returns the replies by tag.
fn exchange(
    server: &mut Tcp,
    client: &mut Tcp,
    session: SessionId,
    requests: &[Vec<u8>],
) -> BTreeMap<u64, Vec<u8>> {
    for (tag, request) in requests.iter().enumerate() {
        client.request(NOW, session, tag as u64, request.clone().into(), Instant::NEVER).expect("taken");
    }
    let mut seen = Vec::new();
    for _ in 0..20_000_000 {
        turn(client, NOW, &mut seen);
        echo(server);
        if seen.len() >= requests.len() {
            break;
        }
    }
    seen.into_iter()
        .map(|e| if let Seen::Response(tag, payload) = e { (tag, payload) } else { panic!("{e:?}") })
        .collect()
}

#[test]
fn echo_by_address_and_name() {
    for host in ["127.0.0.1", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"] {
        let (mut server, at) = server(host, Options::default());
        let mut client = client();
        let session = client.connect(NOW, &at).expect("connects");
        let requests: Vec<_> = [0, 1, 100, 5000, 70_000].iter().map(|&len| bytes(len, len)).collect();
        let replies = exchange(&mut server, &mut client, session, &requests);
        assert!(replies.into_values().eq(requests), "{host}");
    }
}

#[test]
fn messages_of_16_mib_both_ways() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let mut client = client();
    let session = client.connect(NOW, &at).expect("connects");
    let requests = [bytes(1, MAX_MESSAGE), bytes(2, 3), bytes(3, MAX_MESSAGE - 1), bytes(4, 1_000_000)];
    let replies = exchange(&mut server, &mut client, session, &requests);
    assert!(replies.into_values().eq(requests));
}

#[test]
fn tiny_send_buffers_only_make_it_slower() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let listener = &server.listener.as_ref().expect("it listens").socket;
    sockopt::set_socket_send_buffer_size(listener, 1).expect("set");
    let mut client = client();
    let session = client.connect(NOW, &at).expect("connects");
    let slot = client.live[0];
    let socket = &client.at_slot(slot).expect("there").socket;
    sockopt::set_socket_send_buffer_size(socket, 1).expect("set");
    let requests: Vec<_> = (0..40).map(|i| bytes(i, if i % 10 == 0 { 300_000 } else { i * 50 })).collect();
    let replies = exchange(&mut server, &mut client, session, &requests);
    assert!(replies.into_values().eq(requests));
    assert_eq!((client.waiting, server.waiting), (0, 0));
}

#[test]
fn random_requests_on_random_sessions_each_answered_once() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let mut client = client();
    let mut rng = Rng::seeded(11);
    // More than are polled directly.
    let sessions: Vec<_> = (0..20).map(|_| client.connect(NOW, &at).expect("connects")).collect();
    let (mut sent, mut unanswered, mut seen) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut tag = 0;
    while tag < 3000 || seen.len() < sent.len() {
        if tag < 3000 {
            for _ in 0..rng.below(8) {
                let len = if rng.chance(20_000) { rng.below(400_000) } else { rng.below(300) } as usize;
                let session = sessions[rng.below(20) as usize];
                client
                    .request(NOW, session, tag, bytes(tag as usize, len).into(), Instant::NEVER)
                    .expect("taken");
                sent.insert(tag, bytes(tag as usize, len));
                tag += 1;
            }
        }
        turn(&mut client, NOW, &mut seen);
        server.input(NOW);
        while let Some(event) = server.event(NOW) {
            let Event::Request { rpc, payload, .. } = event else { panic!("{event:?}") };
            unanswered.push((rpc, payload.into_vec()));
        }
        for _ in 0..rng.below(9).min(unanswered.len() as u64) {
            let (rpc, payload) = unanswered.swap_remove(rng.below(unanswered.len() as u64) as usize);
            server.reply(NOW, rpc, payload.into());
        }
        server.output(NOW, &());
    }
    let mut ends = BTreeMap::new();
    for e in seen {
        let Seen::Response(tag, payload) = e else { panic!("{e:?}") };
        assert!(ends.insert(tag, payload).is_none());
    }
    assert_eq!(ends, sent);
    assert_eq!(server.counters(), Counters { accepted: 20, ..Counters::default() });
}

#[test]
fn a_thousand_connections() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let mut client = client();
    let mut sessions = Vec::new();
    for i in 0..1000 {
        sessions.push(client.connect(NOW, &at).expect("connects"));
        client.request(NOW, sessions[i], i as u64, bytes(i, 100).into(), Instant::NEVER).expect("taken");
        turn(&mut client, NOW, &mut Vec::new());
        echo(&mut server);
    }
    let mut seen = Vec::new();
    for round in 0..3 {
        for (i, &session) in sessions.iter().enumerate() {
            let tag = (round + 1) * 1000 + i;
            client.request(NOW, session, tag as u64, bytes(tag, 64).into(), Instant::NEVER).expect("taken");
        }
    }
    for _ in 0..1_000_000 {
        turn(&mut client, NOW, &mut seen);
        echo(&mut server);
        if seen.iter().filter(|e| matches!(e, Seen::Response(tag, _) if *tag >= 1000)).count() == 3000 {
            break;
        }
    }
    assert_eq!((server.connections(), client.connections()), (1000, 1000));
    assert!(seen.iter().all(|e| matches!(e, Seen::Response(..))));
    for &session in &sessions {
        client.close(NOW, session);
    }
    seen.clear();
    turn(&mut client, NOW, &mut seen);
    assert_eq!(seen.len(), 1000);
    assert_eq!(client.connections(), 0);
    for _ in 0..1_000_000 {
        echo(&mut server);
        if server.connections() == 0 {
            break;
        }
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_server_that_dies_leaves_no_request_without_an_end() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let mut client = client();
    let session = client.connect(NOW, &at).expect("connects");
    let mut seen = Vec::new();
    for tag in 0..3 {
        client.request(NOW, session, tag, bytes(1, 10).into(), Instant::NEVER).expect("taken");
    }
    let mut got = 0;
    for _ in 0..1_000_000 {
        turn(&mut client, NOW, &mut seen);
        got += serve(&mut server, |_| None);
        if got == 3 {
            break;
        }
    }
    client.request(NOW, session, 3, bytes(1, 10).into(), Instant::NEVER).expect("taken");
    drop(server);
    for _ in 0..1_000_000 {
        // No output: the last request stays unsent.
        client.input(NOW);
        while let Some(event) = client.event(NOW) {
            match event {
                Event::Failed { tag, error, .. } => seen.push(Seen::Failed(tag, error)),
                Event::Closed { session, reason } => seen.push(Seen::Closed(session, reason)),
                event => panic!("{event:?}"),
            }
        }
        if seen.len() == 5 {
            break;
        }
    }
    let maybe = |tag| Seen::Failed(tag, RpcError::MaybeExecuted);
    let not = Seen::Failed(3, RpcError::NotExecuted);
    assert_eq!(seen, [maybe(0), maybe(1), maybe(2), not, Seen::Closed(session, CloseReason::Reset)]);
    assert_eq!(
        client.request(NOW, session, 4, Message::default(), Instant::NEVER),
        Err(RequestError::Closed)
    );
    assert_eq!(client.connections(), 0);
}

#[test]
fn nobody_there() {
    let (server, at) = server("127.0.0.1", Options::default());
    drop(server);
    let mut client = client();
    // Refused at once, or a little later.
    if let Ok(session) = client.connect(NOW, &at) {
        client.request(NOW, session, 7, bytes(1, 10).into(), Instant::NEVER).expect("taken");
        let mut seen = Vec::new();
        for _ in 0..1_000_000 {
            turn(&mut client, NOW, &mut seen);
            if seen.len() == 2 {
                break;
            }
        }
        let closed = Seen::Closed(session, CloseReason::Unreachable);
        assert_eq!(seen, [Seen::Failed(7, RpcError::NotExecuted), closed]);
    }
    assert_eq!(client.connections(), 0);
    assert!(client.connect(NOW, &locator("fast+udp:host=127.0.0.1,port=1")).is_err());
    assert!(client.connect(NOW, &locator("tcp:host=127.0.0.1,port=0")).is_err());
    let e = client.connect(NOW, &locator("tcp:host=192.0.2.1,port=1")).expect_err("not on loopback");
    assert_eq!(e.kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn an_address_in_use_is_named() {
    let (_server, at) = server("127.0.0.1", Options::default());
    let e = Tcp::listen(&at, Options::default()).expect_err("in use");
    assert_eq!(e.kind(), io::ErrorKind::AddrInUse);
    assert!(e.to_string().contains(&at.to_string()), "{e}");
}

#[test]
fn a_connection_that_never_opens_is_given_up() {
    let (_server, at) = server("127.0.0.1", Options::default());
    let mut client = client();
    let session = client.connect(NOW, &at).expect("begun");
    let slot = client.live[0];
    let until = client.first_deadline;
    client.request(NOW, session, 1, Message::default(), Instant::NEVER).expect("taken");
    // As if the answer to the first packet were still missing.
    let left = VecDeque::new();
    client.at_slot(slot).expect("there").connecting = Some(Connecting { left, until });
    let mut seen = Vec::new();
    client.first_deadline = until;
    client.tick(until);
    while let Some(event) = client.event(until) {
        match event {
            Event::Failed { tag, error, .. } => seen.push(Seen::Failed(tag, error)),
            Event::Closed { session, reason } => seen.push(Seen::Closed(session, reason)),
            event => panic!("{event:?}"),
        }
    }
    let closed = Seen::Closed(session, CloseReason::Unreachable);
    assert_eq!(seen, [Seen::Failed(1, RpcError::NotExecuted), closed]);
}

#[test]
fn garbage_at_the_port_harms_only_itself() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let mut client = client();
    let session = client.connect(NOW, &at).expect("connects");
    let port: u16 = at.option("port").expect("a port").parse().expect("a number");
    let mut wrong_field = vec![0x21; 40];
    wrong_field[1] = 0;
    let mut rng = Rng::seeded(4);
    let mut noise = vec![0; 100_000];
    rng.fill(&mut noise);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &wrong_field, &noise, b"\0", b"\x21\x00"] {
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        // It may be sent away before all of it is written.
        let _ = stranger.write_all(garbage);
        let replies = exchange(&mut server, &mut client, session, &[bytes(5, 50)]);
        assert_eq!(replies[&0], bytes(5, 50));
        drop(stranger);
    }
    for _ in 0..1_000_000 {
        echo(&mut server);
        if server.counters().accepted == 6 && server.connections() == 1 {
            break;
        }
    }
    let counters = server.counters();
    assert_eq!((server.connections(), counters.accepted), (1, 6));
    assert!(counters.bad_version >= 2 && counters.bad_field >= 1, "{counters:?}");
}

#[test]
fn a_client_of_another_version_is_told() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let port: u16 = at.option("port").expect("a port").parse().expect("a number");
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stranger.write_all(&[0x41; 32]).expect("written");
    for _ in 0..1_000_000 {
        echo(&mut server);
        if server.counters().bad_version == 1 {
            break;
        }
    }
    let mut told = [0; 32];
    stranger.read_exact(&mut told).expect("a RESET");
    assert_eq!((told[0], told[1], told[19]), (0x2e, 0x01, 2));
}

#[test]
fn silent_and_half_closed_connections_are_ended() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let port: u16 = at.option("port").expect("a port").parse().expect("a number");
    let silent = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    let mut half = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    // A header that claims much, and then nothing.
    half.write_all(&[0x21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0xff, 0, 0]).expect("written");
    for _ in 0..1_000_000 {
        echo(&mut server);
        if server.connections() == 2 {
            break;
        }
    }
    half.shutdown(std::net::Shutdown::Write).expect("shut down");
    for _ in 0..1_000_000 {
        echo(&mut server);
        if server.connections() == 1 {
            break;
        }
    }
    let due = server.deadline().expect("it waits for a word");
    assert_eq!(due, NOW.after(SILENCE_NS));
    server.tick(due);
    assert!(server.event(due).is_none());
    assert_eq!((server.connections(), server.counters().silent, server.deadline()), (0, 1, None));
    drop(silent);
}

#[test]
fn beyond_the_limit_nobody_is_accepted_until_someone_leaves() {
    let (mut server, at) = server("127.0.0.1", Options { connection_limit: 2, ..Options::default() });
    let mut clients: Vec<_> = (0..4).map(|_| client()).collect();
    let mut sessions = Vec::new();
    for (i, client) in clients.iter_mut().enumerate() {
        sessions.push(client.connect(NOW, &at).expect("begun"));
        client.request(NOW, sessions[i], i as u64, Message::default(), Instant::NEVER).expect("taken");
    }
    let mut served = 0;
    let mut seen = vec![Vec::new(); 4];
    for _ in 0..10_000 {
        served += echo(&mut server);
        for (client, seen) in clients.iter_mut().zip(&mut seen) {
            turn(client, NOW, seen);
        }
    }
    assert_eq!((served, server.connections(), server.counters().accept_errors), (2, 2, 1));
    assert!(!readable(&server), "who waits to be accepted does not keep it awake");
    let first = seen.iter().position(|s| !s.is_empty()).expect("one was served");
    clients[first].close(NOW, sessions[first]);
    for _ in 0..1_000_000 {
        served += echo(&mut server);
        for (client, seen) in clients.iter_mut().zip(&mut seen) {
            turn(client, NOW, seen);
        }
        if served == 3 {
            break;
        }
    }
    assert_eq!(served, 3);
    let mut full = Tcp::client(Options { connection_limit: 0, ..Options::default() }).expect("an epoll");
    assert_eq!(full.connect(NOW, &at).expect_err("full").kind(), io::ErrorKind::QuotaExceeded);
}

#[test]
fn a_pause_after_running_out_of_descriptors_ends_by_itself() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    server.pause_accepting(NOW.after(5));
    let mut client = client();
    let session = client.connect(NOW, &at).expect("begun");
    client.request(NOW, session, 0, Message::default(), Instant::NEVER).expect("taken");
    let mut seen = Vec::new();
    for _ in 0..1000 {
        turn(&mut client, NOW, &mut seen);
        echo(&mut server);
    }
    assert_eq!((server.connections(), server.deadline()), (0, Some(NOW.after(5))));
    server.tick(NOW.after(5));
    for _ in 0..1_000_000 {
        turn(&mut client, NOW, &mut seen);
        echo(&mut server);
        if !seen.is_empty() {
            break;
        }
    }
    assert_eq!(seen, [Seen::Response(0, Vec::new())]);
}

fn readable(tcp: &Tcp) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(tcp.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") == 1
}

/// Loopback delivers by itself; the bound only ends a broken test.
fn await_readable(tcp: &Tcp) {
    assert!((0..20_000_000).any(|_| readable(tcp)), "nothing arrived");
}

#[test]
fn the_descriptor_tells_when_to_wake() {
    let (mut server, at) = server("::1", Options::default());
    assert!(server.doze() && !readable(&server));
    let mut client = client();
    let session = client.connect(NOW, &at).expect("begun");
    await_readable(&server);
    server.wake();
    let mut seen = Vec::new();
    for _ in 0..1000 {
        echo(&mut server);
        turn(&mut client, NOW, &mut seen);
    }
    assert!(server.doze() && !readable(&server));
    assert!(client.doze() && !readable(&client));
    client.request(NOW, session, 0, bytes(1, 10).into(), Instant::NEVER).expect("taken");
    assert!(!client.doze(), "there is something to write");
    turn(&mut client, NOW, &mut seen);
    await_readable(&server);
    server.wake();
    assert!(server.input(NOW) > 0);
    assert!(!server.doze(), "there is something to take apart");
}

#[test]
fn a_peer_that_asks_and_never_listens_is_not_read_for_ever() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let mut client = client();
    let session = client.connect(NOW, &at).expect("begun");
    for tag in 0..200 {
        client.request(NOW, session, tag, Message::default(), Instant::NEVER).expect("taken");
    }
    let (mut served, mut idle) = (0, 0);
    while idle < 20_000 {
        // The client writes, but does not read.
        if client.live.len() == 1 && client.waiting > 0 {
            client.input(NOW);
        }
        client.output(NOW, &());
        let n = serve(&mut server, |_| Some(vec![7; 1 << 20]));
        served += n;
        idle = if n == 0 { idle + 1 } else { 0 };
        if served == 200 {
            break;
        }
    }
    // All fit into one read, so all are answered; what counts is that no more are read now.
    let more = client.request(NOW, session, 999, Message::default(), Instant::NEVER);
    assert!(more.is_ok());
    for _ in 0..1000 {
        client.output(NOW, &());
        assert_eq!(serve(&mut server, |_| Some(Vec::new())), 0);
    }
    assert!(server.doze() && !readable(&server), "it sleeps until the peer reads");
    let mut seen = Vec::new();
    for _ in 0..20_000_000 {
        turn(&mut client, NOW, &mut seen);
        echo(&mut server);
        if seen.len() == 201 {
            break;
        }
    }
    assert_eq!(seen.len(), 201);
}

#[test]
fn stale_numbers_are_ignored() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let mut client = client();
    let session = client.connect(NOW, &at).expect("begun");
    let rpc = client.request(NOW, session, 0, Message::default(), Instant::NEVER).expect("taken");
    let mut stale = None;
    for _ in 0..1_000_000 {
        turn(&mut client, NOW, &mut Vec::new());
        server.input(NOW);
        if let Some(Event::Request { rpc, .. }) = server.event(NOW) {
            stale = Some(rpc);
            break;
        }
    }
    client.close(NOW, session);
    let mut seen = Vec::new();
    turn(&mut client, NOW, &mut seen);
    let closed = Seen::Closed(session, CloseReason::Local);
    assert_eq!(seen, [Seen::Failed(0, RpcError::MaybeExecuted), closed]);
    for _ in 0..1_000_000 {
        echo(&mut server);
        if server.connections() == 0 {
            break;
        }
    }
    let slice = Slice { segment: 1, offset: 2, len: 3 };
    let mut message = Message::default();
    message.slices.push(slice);
    let stale = stale.expect("it arrived");
    server.refuse(NOW, stale, 1);
    server.reply(NOW, stale, message.clone());
    assert_eq!((server.released(), server.released()), (Some(slice), None));
    // The slot has another connection now.
    let again = client.connect(NOW, &at).expect("begun");
    assert_ne!(again, session);
    assert_eq!(exchange(&mut server, &mut client, again, &[bytes(1, 5)])[&0], bytes(1, 5));
    server.reply(NOW, stale, message);
    assert_eq!((server.released(), server.released()), (Some(slice), None));
    client.cancel(NOW, rpc);
    client.close(NOW, session);
    assert_eq!(
        client.request(NOW, session, 1, Message::default(), Instant::NEVER),
        Err(RequestError::Closed)
    );
    assert_eq!(exchange(&mut server, &mut client, again, &[bytes(1, 6)])[&0], bytes(1, 6));
}

#[test]
fn deadlines_and_cancels_reach_the_caller() {
    let (mut server, at) = server("127.0.0.1", Options::default());
    let mut client = client();
    let session = client.connect(NOW, &at).expect("begun");
    let late = NOW.after(1000);
    client.request(NOW, session, 0, Message::default(), late).expect("taken");
    let rpc = client.request(NOW, session, 1, Message::default(), Instant::NEVER).expect("taken");
    let (mut seen, mut got) = (Vec::new(), 0);
    for _ in 0..1_000_000 {
        turn(&mut client, NOW, &mut seen);
        got += serve(&mut server, |_| None);
        if got == 2 {
            break;
        }
    }
    assert!(client.deadline().is_some_and(|at| at <= late));
    client.tick(late);
    client.cancel(late, rpc);
    turn(&mut client, late, &mut seen);
    let expected =
        [Seen::Failed(0, RpcError::Deadline { maybe_executed: true }), Seen::Failed(1, RpcError::Cancelled)];
    assert_eq!(seen, expected);
}
