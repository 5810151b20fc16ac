//! The rig for transports of frames, and the tests that all of them must pass: kernel TCP, queue
//! pairs, and our own TCP.

use std::collections::BTreeMap;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat_proto::Rng;
use sprat_proto::rpc::{MAX_MESSAGE, RpcError};
use sprat_proto::time::MS;

use super::*;
use crate::locator::Locator;
use crate::transport::SystemTransport as _;
use crate::transport::qp::{Pairs, Rdma};
use crate::transport::tcp::{Sockets, Tcp};
use crate::transport::utcp::Connections;

mod limits;

use limits::*;

pub(crate) const NOW: Instant = Instant::from_ns(1_000);

/// A carrier that a test opens by its protocol's name.
pub(crate) trait Named: Carrier {
    const PROTOCOL: &'static str;
    fn listen(at: &Locator, options: Options) -> io::Result<Framed<Self>>;
    fn client(options: Options) -> io::Result<Framed<Self>>;

    /// Returns the locator of a free port of the host, or of one that stands for it.
    fn at(host: &str, more: &str) -> Locator {
        locator(&format!("{}:host={host},port=0{more}", Self::PROTOCOL))
    }

    /// Does what the kernel does for a carrier while its program does nothing.
    fn breathe(_: &mut Framed<Self>) {}

    /// True if a counter of this name is one of the transport of frames.
    fn counts(_: &str) -> bool {
        true
    }
}

impl Named for Sockets {
    const PROTOCOL: &'static str = "tcp";

    fn listen(at: &Locator, options: Options) -> io::Result<Tcp> {
        Tcp::listen(at, options)
    }

    fn client(options: Options) -> io::Result<Tcp> {
        Tcp::client(options)
    }
}

impl Named for Pairs {
    const PROTOCOL: &'static str = "rdma";

    fn listen(at: &Locator, options: Options) -> io::Result<Rdma> {
        Rdma::listen(at, options)
    }

    fn client(options: Options) -> io::Result<Rdma> {
        Rdma::client(&locator("rdma:host=127.0.0.1,port=1"), &[], options)
    }

    fn counts(name: &str) -> bool {
        !name.starts_with("octets") && name != "streams_accepted"
    }
}

pub(crate) fn locator(text: &str) -> Locator {
    text.parse().expect("a locator")
}

/// Makes a server at a free port of `host`, with the options `more` in its locator. Returns it with
/// its locator.
pub(crate) fn server_at<C: Named>(
    host: &str,
    more: &str,
    options: Options,
) -> (Framed<C>, Locator) {
    let at = C::at(host, more);
    let server = C::listen(&at, options).expect("a free port");
    let at = locator(&server.locator().expect("it listens"));
    (server, at)
}

pub(crate) fn server<C: Named>() -> (Framed<C>, Locator) {
    server_at("127.0.0.1", "", Options::default())
}

pub(crate) fn client<C: Named>() -> Framed<C> {
    C::client(Options::default()).expect("descriptors")
}

pub(crate) fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed * 131 + i * 7 + i / 251) as u8).collect()
}

/// An event that a test's client got.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) enum Seen {
    Response(u64, Vec<u8>),
    Failed(u64, RpcError),
    Closed(SessionId, CloseReason),
}

/// Takes the events of a client and adds them to `seen`.
pub(crate) fn take_events<C: Carrier>(client: &mut Framed<C>, now: Instant, seen: &mut Vec<Seen>) {
    client.input(now);
    while let Some(event) = client.event(now) {
        seen.push(match event {
            Event::Response { tag, payload, .. } => Seen::Response(tag, payload.into_vec()),
            Event::Failed { tag, error, .. } => Seen::Failed(tag, error),
            Event::Closed { session, reason } => Seen::Closed(session, reason),
            Event::Request { .. } => panic!("a request at a client"),
        });
    }
}

/// Makes one turn of a client, which adds its events to `seen`.
pub(crate) fn turn<C: Carrier>(client: &mut Framed<C>, now: Instant, seen: &mut Vec<Seen>) {
    take_events(client, now, seen);
    client.output(now, &());
}

/// Makes one turn of a server that answers each request with the result of `answer`. Returns the
/// number of requests.
pub(crate) fn serve<C: Carrier>(
    server: &mut Framed<C>,
    answer: impl FnMut(&[u8]) -> Option<Vec<u8>>,
) -> usize {
    serve_at(server, NOW, answer)
}

fn serve_at<C: Carrier>(
    server: &mut Framed<C>,
    now: Instant,
    mut answer: impl FnMut(&[u8]) -> Option<Vec<u8>>,
) -> usize {
    let mut count = 0;
    server.input(now);
    while let Some(event) = server.event(now) {
        let Event::Request { rpc, payload, .. } = event else { panic!("{event:?}") };
        if let Some(reply) = answer(&payload) {
            server.reply(now, rpc, &mut reply.into(), false);
        }
        count += 1;
    }
    server.output(now, &());
    count
}

pub(crate) fn echo<C: Carrier>(server: &mut Framed<C>) -> usize {
    serve(server, |request| Some(request.to_vec()))
}

/// Makes turns of a server and a client until the client has `many` events. Loopback delivers by
/// itself; the bound only ends a broken test.
pub(crate) fn until<C: Carrier>(
    server: &mut Framed<C>,
    client: &mut Framed<C>,
    seen: &mut Vec<Seen>,
    many: usize,
) {
    for _ in 0..20_000_000 {
        turn(client, NOW, seen);
        echo(server);
        if seen.len() >= many {
            return;
        }
    }
    panic!("{} of {many}", seen.len());
}

/// Echoes `requests` over a session and returns the replies by tag.
pub(crate) fn exchange<C: Carrier>(
    server: &mut Framed<C>,
    client: &mut Framed<C>,
    session: SessionId,
    requests: &[Vec<u8>],
) -> BTreeMap<u64, Vec<u8>> {
    for (tag, request) in requests.iter().enumerate() {
        client
            .request(NOW, session, tag as u64, &mut request.clone().into(), Instant::NEVER)
            .expect("taken");
    }
    let mut seen = Vec::new();
    until(server, client, &mut seen, requests.len());
    seen.into_iter()
        .map(
            |e| if let Seen::Response(tag, payload) = e { (tag, payload) } else { panic!("{e:?}") },
        )
        .collect()
}

/// Makes turns of a server until it has `left` connections.
pub(crate) fn serve_until<C: Carrier>(server: &mut Framed<C>, left: usize) {
    assert!((0..20_000_000).any(|_| {
        echo(server);
        server.live().len() == left
    }));
}

pub(crate) fn readable<C: Carrier>(transport: &Framed<C>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(transport.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") == 1
}

/// Makes one test of each case for every carrier.
macro_rules! cases {
    ($($case:ident)+) => {
        mod over_tcp {
            use super::*;
            $(#[test] fn $case() { super::$case::<Sockets>(); })+
        }
        mod over_rdma {
            use super::*;
            $(#[test] fn $case() { super::$case::<Pairs>(); })+
        }
        mod over_utcp {
            use super::*;
            $(#[test] fn $case() { super::$case::<Connections>(); })+
        }
    };
}

cases! {
    echo_by_address_and_name
    messages_of_16_mib_both_ways
    random_requests_on_random_sessions_each_answered_once
    many_connections_come_and_go
    a_server_that_dies_leaves_no_request_without_an_end
    connecting_without_a_server_fails
    an_error_names_the_address_in_use
    a_server_that_answers_late_is_not_flooded
    the_descriptor_tells_when_to_wake
    stale_numbers_are_ignored
    deadlines_and_cancels_reach_the_caller
    what_happens_is_counted
    stalled_messages_make_room_for_others
    short_requests_for_long_replies_are_answered_as_their_client_reads
    a_client_that_takes_no_reply_is_given_up
    where_too_much_waits_in_sum_one_that_has_much_is_not_read
}

fn echo_by_address_and_name<C: Named>() {
    for host in ["127.0.0.1", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"] {
        let (mut server, at) = server_at::<C>(host, "", Options::default());
        let mut client = client::<C>();
        let session = client.connect(NOW, &at).expect("connects");
        let requests: Vec<_> =
            [0, 1, 100, 5000, 70_000].iter().map(|&len| bytes(len, len)).collect();
        let replies = exchange(&mut server, &mut client, session, &requests);
        assert!(replies.into_values().eq(requests), "{host}");
    }
}

fn messages_of_16_mib_both_ways<C: Named>() {
    let (mut server, at) = server::<C>();
    let mut client = client::<C>();
    let session = client.connect(NOW, &at).expect("connects");
    let requests =
        [bytes(1, MAX_MESSAGE), bytes(2, 3), bytes(3, MAX_MESSAGE - 1), bytes(4, 1_000_000)];
    let replies = exchange(&mut server, &mut client, session, &requests);
    assert!(replies.into_values().eq(requests));
}

fn random_requests_on_random_sessions_each_answered_once<C: Named>() {
    let (mut server, at) = server::<C>();
    let mut client = client::<C>();
    let mut rng = Rng::seeded(11);
    // More connections than TCP polls directly.
    let sessions: Vec<_> = (0..20).map(|_| client.connect(NOW, &at).expect("connects")).collect();
    let (mut sent, mut unanswered, mut seen) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut tag = 0;
    while tag < 3000 || seen.len() < sent.len() {
        if tag < 3000 {
            for _ in 0..rng.below(8) {
                let len = match rng.below(50) {
                    0 => rng.below(400_000),
                    // Around the limit between eager messages and rendezvous.
                    1 => 16_300 + rng.below(80),
                    _ => rng.below(300),
                };
                let request = bytes(tag as usize, len as usize);
                let session = sessions[rng.below(20) as usize];
                client
                    .request(NOW, session, tag, &mut request.clone().into(), Instant::NEVER)
                    .expect("taken");
                sent.insert(tag, request);
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
            let (rpc, payload) =
                unanswered.swap_remove(rng.below(unanswered.len() as u64) as usize);
            server.reply(NOW, rpc, &mut payload.into(), false);
        }
        server.output(NOW, &());
    }
    let mut ends = BTreeMap::new();
    for e in seen {
        let Seen::Response(tag, payload) = e else { panic!("{e:?}") };
        assert!(ends.insert(tag, payload).is_none());
    }
    assert!(ends == sent);
    let counters = Counters {
        accepted: 20,
        requests: sent.len() as u64,
        replies: sent.len() as u64,
        ..Counters::default()
    };
    assert_eq!(server.counters, counters);
}

fn many_connections_come_and_go<C: Named>() {
    const MANY: usize = 300;
    let (mut server, at) = server::<C>();
    let (mut client, mut sessions, mut seen) = (client::<C>(), Vec::new(), Vec::new());
    for i in 0..MANY {
        sessions.push(client.connect(NOW, &at).expect("connects"));
        client
            .request(NOW, sessions[i], i as u64, &mut bytes(i, 100).into(), Instant::NEVER)
            .expect("taken");
        turn(&mut client, NOW, &mut seen);
        echo(&mut server);
    }
    for round in 1..4 {
        for (i, &session) in sessions.iter().enumerate() {
            let tag = round * MANY + i;
            client
                .request(NOW, session, tag as u64, &mut bytes(tag, 64).into(), Instant::NEVER)
                .expect("taken");
        }
    }
    until(&mut server, &mut client, &mut seen, 4 * MANY);
    assert_eq!((server.live().len(), client.live().len()), (MANY, MANY));
    assert!(seen.iter().all(|e| matches!(e, Seen::Response(..))));
    for &session in &sessions {
        client.close(NOW, session);
    }
    seen.clear();
    turn(&mut client, NOW, &mut seen);
    assert_eq!((seen.len(), client.live().len()), (MANY, 0));
    serve_until(&mut server, 0);
}

fn a_server_that_dies_leaves_no_request_without_an_end<C: Named>() {
    let (mut server, at) = server::<C>();
    let mut client = client::<C>();
    let session = client.connect(NOW, &at).expect("connects");
    let mut seen = Vec::new();
    for tag in 0..2 {
        client.request(NOW, session, tag, &mut bytes(1, 10).into(), Instant::NEVER).expect("taken");
    }
    // A request that is not short.
    client.request(NOW, session, 2, &mut bytes(3, 100_000).into(), Instant::NEVER).expect("taken");
    let mut got = 0;
    while got < 3 {
        turn(&mut client, NOW, &mut seen);
        got += serve(&mut server, |_| None);
    }
    client.request(NOW, session, 3, &mut bytes(1, 10).into(), Instant::NEVER).expect("taken");
    drop(server);
    // No output: the last request stays unsent.
    assert!((0..20_000_000).any(|_| {
        take_events(&mut client, NOW, &mut seen);
        seen.len() == 5
    }));
    let maybe = |tag| Seen::Failed(tag, RpcError::MaybeExecuted);
    let not = Seen::Failed(3, RpcError::NotExecuted);
    assert_eq!(
        seen,
        [maybe(0), maybe(1), maybe(2), not, Seen::Closed(session, CloseReason::Reset)]
    );
    let more = client.request(NOW, session, 4, &mut Message::default(), Instant::NEVER);
    assert_eq!(more, Err(RequestError::Closed));
    assert_eq!(client.live().len(), 0);
}

fn connecting_without_a_server_fails<C: Named>() {
    let (server, at) = server::<C>();
    drop(server);
    let mut client = client::<C>();
    // Refused at once, or a little later.
    if let Ok(session) = client.connect(NOW, &at) {
        client.request(NOW, session, 7, &mut bytes(1, 10).into(), Instant::NEVER).expect("taken");
        let (mut seen, mut now) = (Vec::new(), NOW);
        assert!((0..20_000_000).any(|_| {
            turn(&mut client, now, &mut seen);
            if C::PROTOCOL.starts_with("utcp") {
                // No kernel refuses where no process has the device.
                now = now.after(MS);
                client.tick(now);
            }
            seen.len() == 2
        }));
        let closed = Seen::Closed(session, CloseReason::Unreachable);
        assert_eq!(seen, [Seen::Failed(7, RpcError::NotExecuted), closed]);
    }
    assert_eq!(client.live().len(), 0);
    let mut refused = |host_port: &str, protocol: &str| {
        let to = locator(&format!("{protocol}:{host_port}"));
        client.connect(NOW, &to).expect_err("no peer of ours").kind()
    };
    assert_eq!(refused("host=127.0.0.1,port=1", "fast+udp"), io::ErrorKind::InvalidInput);
    assert_eq!(refused("host=127.0.0.1,port=0", C::PROTOCOL), io::ErrorKind::InvalidInput);
    if !C::PROTOCOL.starts_with("utcp") {
        assert_eq!(refused("host=192.0.2.1,port=1", C::PROTOCOL), io::ErrorKind::PermissionDenied);
    }
    let mut full =
        C::client(Options { connection_limit: 0, ..Options::default() }).expect("descriptors");
    assert_eq!(full.connect(NOW, &at).expect_err("full").kind(), io::ErrorKind::QuotaExceeded);
}

fn an_error_names_the_address_in_use<C: Named>() {
    let (_server, at) = server::<C>();
    let e = C::listen(&at, Options::default()).expect_err("in use");
    assert_eq!(e.kind(), io::ErrorKind::AddrInUse);
    assert!(e.to_string().contains(&at.to_string()), "{e}");
}

fn the_descriptor_tells_when_to_wake<C: Named>() {
    let (mut server, at) = server_at::<C>("::1", "", Options::default());
    assert!(server.arm() && !readable(&server));
    let mut client = client::<C>();
    let session = client.connect(NOW, &at).expect("begun");
    client.output(NOW, &());
    assert!((0..20_000_000).any(|_| readable(&server)));
    server.disarm();
    assert_eq!(exchange(&mut server, &mut client, session, &[bytes(1, 3)])[&0], bytes(1, 3));
    for _ in 0..1000 {
        echo(&mut server);
        turn(&mut client, NOW, &mut Vec::new());
    }
    assert!(server.arm() && !readable(&server));
    assert!(client.arm() && !readable(&client));
    client.request(NOW, session, 0, &mut bytes(1, 10).into(), Instant::NEVER).expect("taken");
    assert!(!client.arm(), "there is output");

    turn(&mut client, NOW, &mut Vec::new());
    assert!((0..20_000_000).any(|_| readable(&server)));
    server.disarm();
    assert!(server.input(NOW) > 0);
    assert!(!server.arm(), "there is input to parse");
}

fn stale_numbers_are_ignored<C: Named>() {
    let (mut server, at) = server::<C>();
    let mut client = client::<C>();
    let session = client.connect(NOW, &at).expect("begun");
    let rpc =
        client.request(NOW, session, 0, &mut Message::default(), Instant::NEVER).expect("taken");
    let mut stale = None;
    while stale.is_none() {
        turn(&mut client, NOW, &mut Vec::new());
        server.input(NOW);
        if let Some(Event::Request { rpc, .. }) = server.event(NOW) {
            stale = Some(rpc);
        }
        server.output(NOW, &());
    }
    client.close(NOW, session);
    let mut seen = Vec::new();
    turn(&mut client, NOW, &mut seen);
    let closed = Seen::Closed(session, CloseReason::Local);
    assert_eq!(seen, [Seen::Failed(0, RpcError::MaybeExecuted), closed]);
    serve_until(&mut server, 0);
    let slice = Slice { segment: 1, offset: 2, len: 3 };
    let mut message = Message::default();
    message.slices.push(slice);
    let stale = stale.expect("it arrived");
    server.refuse(NOW, stale, 1);
    server.reply(NOW, stale, &mut message.clone(), false);
    assert_eq!((server.released(), server.released()), (Some(slice), None));
    // The slot has another connection now.
    let again = client.connect(NOW, &at).expect("begun");
    assert_ne!(again, session);
    assert_eq!(exchange(&mut server, &mut client, again, &[bytes(1, 5)])[&0], bytes(1, 5));
    server.reply(NOW, stale, &mut message, false);
    assert_eq!((server.released(), server.released()), (Some(slice), None));
    client.cancel(NOW, rpc);
    client.close(NOW, session);
    let more = client.request(NOW, session, 1, &mut Message::default(), Instant::NEVER);
    assert_eq!(more, Err(RequestError::Closed));
    assert_eq!(exchange(&mut server, &mut client, again, &[bytes(1, 6)])[&0], bytes(1, 6));
}

fn deadlines_and_cancels_reach_the_caller<C: Named>() {
    let (mut server, at) = server::<C>();
    let mut client = client::<C>();
    let session = client.connect(NOW, &at).expect("begun");
    let late = NOW.after(1000);
    client.request(NOW, session, 0, &mut Message::default(), late).expect("taken");
    let rpc =
        client.request(NOW, session, 1, &mut Message::default(), Instant::NEVER).expect("taken");
    let (mut seen, mut got) = (Vec::new(), 0);
    while got < 2 {
        turn(&mut client, NOW, &mut seen);
        got += serve(&mut server, |_| None);
    }
    assert!(client.deadline().is_some_and(|at| at <= late));
    client.tick(late);
    client.cancel(late, rpc);
    turn(&mut client, late, &mut seen);
    let expected = [
        Seen::Failed(0, RpcError::Deadline { maybe_executed: true }),
        Seen::Failed(1, RpcError::Cancelled),
    ];
    assert_eq!(seen, expected);
}

fn what_happens_is_counted<C: Named>() {
    let (mut server, at) = server::<C>();
    let mut client = client::<C>();
    let session = client.connect(NOW, &at).expect("begun");
    let requests: Vec<_> = (0..5).map(|i| bytes(i, i * 10_000)).collect();
    exchange(&mut server, &mut client, session, &requests);
    client.request(NOW, session, 9, &mut Message::default(), Instant::NEVER).expect("taken");
    let (mut seen, mut asked) = (Vec::new(), None);
    while seen.is_empty() {
        server.input(NOW);
        while let Some(Event::Request { rpc, .. }) = server.event(NOW) {
            asked = Some(rpc);
        }
        if let Some(rpc) = asked.take() {
            server.refuse(NOW, rpc, 5_000);
        }
        server.output(NOW, &());
        turn(&mut client, NOW, &mut seen);
    }
    assert_eq!(seen, [Seen::Failed(9, RpcError::Busy { retry_after_ns: 5_000 })]);
    client.close(NOW, session);
    turn(&mut client, NOW, &mut seen);
    serve_until(&mut server, 0);
    let counted = |transport: &Framed<C>| {
        let mut counted = BTreeMap::new();
        transport.counters(&mut |name, count| {
            assert!(counted.insert(name, count).is_none(), "{name} twice")
        });
        counted.retain(|name, count| *count > 0 && C::counts(name));
        counted.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(
        counted(&client),
        [("calls", 6), ("ended", 1), ("failures", 1), ("opened", 1), ("responses", 5)]
    );
    assert_eq!(
        counted(&server),
        [("accepted", 1), ("ended", 1), ("refused", 1), ("replies", 5), ("requests", 6)]
    );
}
