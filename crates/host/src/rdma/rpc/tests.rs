use std::collections::BTreeMap;

use sprat_proto::Rng;
use sprat_proto::rdma::{Access, ConnectOptions, Pd, QpOptions, RecvRequest, SendOp, SendRequest, Sge, Stag};
use sprat_proto::rpc::notes::{Hello, Kind as Says, Note, Place};
use sprat_proto::rpc::{MAX_MESSAGE, RpcError};

use super::*;
use crate::mem::Region;
use crate::rdma::Link as State;

const NOW: Instant = Instant::from_ns(1_000);

fn server() -> (Rdma, Locator) {
    let at = "rdma:host=127.0.0.1,port=0".parse().expect("a locator");
    let server = Rdma::listen(&at, Options::default()).expect("a free port");
    let at = server.locator().expect("it listens").parse().expect("its own locator");
    (server, at)
}

fn client() -> Rdma {
    Rdma::client(Options::default()).expect("an epoll")
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
fn turn(client: &mut Rdma, seen: &mut Vec<Seen>) {
    client.input(NOW);
    while let Some(event) = client.event(NOW) {
        seen.push(match event {
            Event::Response { tag, payload, .. } => Seen::Response(tag, payload.into_vec()),
            Event::Failed { tag, error, .. } => Seen::Failed(tag, error),
            Event::Closed { session, reason } => Seen::Closed(session, reason),
            Event::Request { .. } => panic!("a request at a client"),
        });
    }
    client.output(NOW, &());
}

/// One turn of a server that answers with what it is asked.
fn serve(server: &mut Rdma) {
    server.input(NOW);
    while let Some(event) = server.event(NOW) {
        let Event::Request { rpc, payload, .. } = event else { panic!("{event:?}") };
        let reply = payload.into_vec();
        server.reply(NOW, rpc, reply.into());
    }
    server.output(NOW, &());
}

/// A new client's request is answered.
fn serves(server: &mut Rdma, at: &Locator) {
    let (mut client, mut seen) = (client(), Vec::new());
    let session = client.connect(NOW, at).expect("loopback");
    client.request(NOW, session, 7, vec![1, 2, 3].into(), Instant::NEVER).expect("taken");
    while seen.is_empty() {
        turn(&mut client, &mut seen);
        serve(server);
    }
    assert_eq!(seen, [Seen::Response(7, vec![1, 2, 3])]);
}

#[test]
fn requests_of_all_lengths_pass_each_other() {
    let mut rng = Rng::seeded(1);
    let (mut server, at) = server();
    let (mut client, mut seen) = (client(), Vec::new());
    let sessions: Vec<_> = (0..3).map(|_| client.connect(NOW, &at).expect("loopback")).collect();
    let edge = SLOT - 8 - 32;
    let mut wanted = BTreeMap::new();
    for tag in 0..400_usize {
        let len = match rng.below(8) {
            0 => edge - 2 + rng.below(5) as usize,
            1 => rng.below(2_000_000) as usize,
            2 => rng.below(100_000) as usize,
            _ => rng.below(300) as usize,
        };
        let request = bytes(tag, len);
        let session = sessions[tag % sessions.len()];
        client.request(NOW, session, tag as u64, request.clone().into(), Instant::NEVER).expect("taken");
        wanted.insert(tag as u64, request);
        if rng.below(3) == 0 {
            turn(&mut client, &mut seen);
            serve(&mut server);
        }
    }
    while !wanted.is_empty() {
        turn(&mut client, &mut seen);
        serve(&mut server);
        for one in seen.drain(..) {
            let Seen::Response(tag, reply) = one else { panic!("{one:?}") };
            assert!(wanted.remove(&tag).expect("one reply each") == reply, "request {tag}");
        }
    }
    // What was shown is not needed any more once the last note has gone; the rest is each connection's own.
    for _ in 0..100 {
        turn(&mut client, &mut seen);
        serve(&mut server);
    }
    assert_eq!((client.counters.bad, server.counters.bad), (0, 0));
}

#[test]
fn a_server_that_answers_late_is_not_flooded() {
    const MANY: usize = 10_000;
    let (mut server, at) = server();
    let mut client = Rdma::client(Options { queue_limit: MANY, ..Options::default() }).expect("an epoll");
    let session = client.connect(NOW, &at).expect("loopback");
    for tag in 0..MANY {
        client.request(NOW, session, tag as u64, bytes(tag, 100).into(), Instant::NEVER).expect("taken");
    }
    let (mut seen, mut asked, mut most, mut quiet) = (Vec::new(), Vec::new(), 0, 0);
    while seen.len() < MANY {
        turn(&mut client, &mut seen);
        server.input(NOW);
        let before = asked.len();
        while let Some(event) = server.event(NOW) {
            let Event::Request { rpc, payload, .. } = event else { panic!("{event:?}") };
            asked.push((rpc, payload.into_vec()));
        }
        most = most.max(asked.len());
        quiet = if asked.len() == before { quiet + 1 } else { 0 };
        if quiet > 50 {
            for (rpc, request) in asked.drain(..) {
                server.reply(NOW, rpc, request.into());
            }
        }
        server.output(NOW, &());
    }
    assert!(most < 5_000, "{most} requests in a server that answers none");
    for (tag, one) in seen.into_iter().enumerate() {
        assert_eq!(one, Seen::Response(tag as u64, bytes(tag, 100)));
    }
}

#[test]
fn a_peer_that_dies_fails_its_calls() {
    let (server, at) = server();
    let mut server = Some(server);
    let (mut client, mut seen) = (client(), Vec::new());
    let session = client.connect(NOW, &at).expect("loopback");
    client.request(NOW, session, 1, vec![1].into(), Instant::NEVER).expect("taken");
    while seen.is_empty() {
        turn(&mut client, &mut seen);
        serve(server.as_mut().expect("alive"));
    }
    client.request(NOW, session, 2, vec![2].into(), Instant::NEVER).expect("taken");
    client.request(NOW, session, 3, bytes(3, MAX_MESSAGE).into(), Instant::NEVER).expect("taken");
    turn(&mut client, &mut seen);
    drop(server.take());
    while seen.len() < 4 {
        turn(&mut client, &mut seen);
    }
    assert_eq!(seen[1], Seen::Failed(2, RpcError::MaybeExecuted));
    assert!(matches!(seen[2], Seen::Failed(3, _)));
    assert_eq!(seen[3], Seen::Closed(session, CloseReason::Reset));
    // Nobody listens there any more.
    let session = client.connect(NOW, &at).expect("it fails later");
    client.request(NOW, session, 4, vec![4].into(), Instant::NEVER).expect("taken");
    while seen.len() < 6 {
        turn(&mut client, &mut seen);
    }
    assert_eq!(
        seen[4..],
        [Seen::Failed(4, RpcError::NotExecuted), Seen::Closed(session, CloseReason::Unreachable)]
    );
    assert!(client.by_qp.is_empty() && client.core.desk.links.is_empty());
}

/// A peer that speaks iWARP well and says what a test wants.
struct Hostile {
    core: Core,
    pd: Pd,
    qp: Qp,
    stag: Stag,
    region: u32,
}

impl Hostile {
    fn connect(server: &mut Rdma, hello: Vec<u8>) -> Self {
        let config = Config { crc32c, ..Config::default() };
        let settings = Settings { config, copies: Copies::One, connections: 10 };
        let mut core = Core::new(settings).expect("an epoll");
        let region = core.regions.insert(std::sync::Arc::new(Region::anonymous(1 << 20).expect("memory")));
        let region = region.expect("a number");
        let pd = core.rnic.alloc_pd().expect("the first");
        let stag = core.rnic.register(pd, region, 0, 1 << 20, Access::ALL).expect("the first");
        let cq = core.rnic.create_cq(1 << 20).expect("the first");
        let options = QpOptions {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send_depth: 1000,
            recv_depth: 1000,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 256,
            signal_all: false,
        };
        let qp = core.rnic.create_qp(options).expect("the first");
        for _ in 0..1000 {
            let into = Sge { stag, addr: 0, len: SLOT as u32 };
            core.rnic.post_recv(qp, RecvRequest::new(0, into)).expect("room");
        }
        core.desk.links.insert(qp, State::Idle);
        let (_, to) = server.listener.expect("it listens");
        let options = ConnectOptions { ird: 4, ord: 4, private_data: hello, ..ConnectOptions::default() };
        core.connect(NOW, qp, to, options, SECOND).expect("loopback");
        let mut hostile = Self { core, pd, qp, stag, region };
        while matches!(hostile.state(), State::Idle | State::Opening) {
            hostile.turn(server);
        }
        hostile
    }

    fn state(&self) -> State {
        self.core.desk.links[&self.qp].clone()
    }

    fn turn(&mut self, server: &mut Rdma) {
        self.core.turn_at(NOW);
        serve(server);
    }

    fn send(&mut self, send: &[u8]) {
        let request = SendRequest::new(0, SendOp::Send, send.to_vec()).unsignaled();
        // The server may have hung up meanwhile.
        let _ = self.core.rnic.post_send(self.qp, request);
    }

    /// Says all this; the server hangs up, on this peer alone.
    fn sent_away(mut self, server: &mut Rdma, at: &Locator, sends: &[Vec<u8>]) {
        let bad = server.counters.bad;
        for send in sends {
            self.send(send);
        }
        while !matches!(self.state(), State::Disconnected(_)) {
            self.turn(server);
        }
        while !server.by_qp.is_empty() {
            serve(server);
        }
        assert!(server.counters.bad <= bad + 1);
        serves(server, at);
        while !server.by_qp.is_empty() {
            serve(server);
        }
    }
}

fn note(kind: Says, granted: u16, finished: u16, rest: &[u8]) -> Vec<u8> {
    [&Note { kind, granted, finished }.octets()[..], rest].concat()
}

/// A frame's header: DATA to the server, of so many bytes.
fn header(seq: u32, len: u32) -> Vec<u8> {
    let mut header = vec![0; 32];
    header[0] = 1 << 5 | 1;
    header[8..12].copy_from_slice(&seq.to_be_bytes());
    header[12..16].copy_from_slice(&len.to_be_bytes());
    header
}

fn announcement(stag: Stag, address: u64, header: &[u8]) -> Vec<u8> {
    let place = Place { tag: stag.0, address }.octets();
    note(Says::Announcement, 0, 0, &[&place[..], header].concat())
}

fn greeting() -> Vec<u8> {
    Hello { receives: 16, octets: 16_384 }.octets().to_vec()
}

#[test]
fn a_peer_that_breaks_a_rule_loses_its_own_connection() {
    let (mut server, at) = server();
    let frame = [header(1, 4), vec![9; 4]].concat();
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("no note", vec![vec![]]),
        ("half a note", vec![vec![1, 0, 0]]),
        ("no such kind", vec![vec![9; 20]]),
        ("no frame", vec![note(Says::Frames, 0, 0, &[0xff; 40])]),
        ("half a frame", vec![note(Says::Frames, 0, 0, &frame[..34])]),
        ("half a header", vec![note(Says::Frames, 0, 0, &frame[..31])]),
        ("more receives than it has", vec![note(Says::Frames, 1, 0, &frame)]),
        ("what was never announced is finished", vec![note(Says::Nothing, 0, 1, &[])]),
        ("an announcement without a place", vec![note(Says::Announcement, 0, 0, &[0; 15])]),
        ("an announcement without a header", vec![announcement(Stag(1), 0, &[])]),
        ("an announcement of nothing", vec![announcement(Stag(1), 0, &header(1, 0))]),
        ("an announcement of too much", vec![announcement(Stag(1), 0, &header(1, (16 << 20) + 1))]),
        ("a tag that names nothing", vec![announcement(Stag(0x1234), 0, &header(1, 100_000))]),
        ("an address that wraps", vec![announcement(Stag(0x1234), u64::MAX, &header(1, 16 << 20))]),
        ("more Sends than receives", vec![note(Says::Frames, 0, 0, &frame); 400]),
    ];
    for (what, sends) in cases {
        assert!(server.by_qp.is_empty(), "before: {what}");
        Hostile::connect(&mut server, greeting()).sent_away(&mut server, &at, &sends);
    }
}

#[test]
fn what_is_announced_must_be_there() {
    let (mut server, at) = server();
    let hostile = Hostile::connect(&mut server, greeting());
    let beyond = announcement(hostile.stag, (1 << 20) - 100, &header(1, 101));
    hostile.sent_away(&mut server, &at, &[beyond]);
    let many: Vec<_> = {
        let hostile = Hostile::connect(&mut server, greeting());
        let one = announcement(hostile.stag, 0, &header(1, 1 << 20));
        drop(hostile);
        vec![one; 100]
    };
    Hostile::connect(&mut server, greeting()).sent_away(&mut server, &at, &many);
}

#[test]
fn strangers_are_refused_and_told_which_version_we_speak() {
    let (mut server, at) = server();
    let mut other = greeting();
    other[4] = 2;
    for (count, hello) in [Vec::new(), b"hello".to_vec(), other].into_iter().enumerate() {
        let hostile = Hostile::connect(&mut server, hello);
        let State::Rejected { private_data, .. } = hostile.state() else { panic!("{:?}", hostile.state()) };
        assert_eq!(private_data, greeting());
        assert_eq!(server.counters.strangers, count as u64 + 1);
    }
    serves(&mut server, &at);
}

#[test]
fn whoever_says_nothing_sent_away() {
    let (mut server, at) = server();
    let mut hostile = Hostile::connect(&mut server, greeting());
    let late = NOW.after(SILENCE_NS);
    assert_eq!(server.first_deadline, late);
    server.tick(late);
    assert_eq!(server.counters.silent, 1);
    while !matches!(hostile.state(), State::Disconnected(_)) {
        hostile.turn(&mut server);
    }
    serves(&mut server, &at);
}

#[test]
fn a_closed_session_gives_everything_back() {
    let (mut server, at) = server();
    let (mut client, mut seen) = (client(), Vec::new());
    for round in 0..3 {
        let session = client.connect(NOW, &at).expect("loopback");
        let request = bytes(round, 300_000);
        client.request(NOW, session, 1, request.clone().into(), Instant::NEVER).expect("taken");
        while seen.is_empty() {
            turn(&mut client, &mut seen);
            serve(&mut server);
        }
        assert_eq!(seen, [Seen::Response(1, request)]);
        client.close(NOW, session);
        while !server.by_qp.is_empty() || !client.by_qp.is_empty() {
            turn(&mut client, &mut seen);
            serve(&mut server);
        }
        assert_eq!(seen.pop(), Some(Seen::Closed(session, CloseReason::Local)));
        seen.clear();
    }
    for core in [&mut client.core, &mut server.core] {
        // A number that is free again is the first: nothing else is registered.
        let pd = core.rnic.alloc_pd().expect("room");
        assert_eq!(core.rnic.dealloc_pd(pd), Ok(()));
    }
}

#[test]
fn hostile_regions_are_their_own() {
    // The domain of each connection is its own: a tag that one peer learned is none on another's stream.
    let (mut server, _) = server();
    let (a, b) = (Hostile::connect(&mut server, greeting()), Hostile::connect(&mut server, greeting()));
    let domains: Vec<_> = server.links.iter().flatten().map(|link| link.pair.domain()).collect();
    assert_eq!(domains.len(), 2);
    assert_ne!(domains[0], domains[1]);
    assert!(a.region == b.region && a.pd == b.pd, "each hostile peer has an engine of its own");
}
