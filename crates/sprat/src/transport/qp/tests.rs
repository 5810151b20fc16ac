use std::io::Write as _;
use std::net::TcpStream;

use sprat_proto::rdma::{
    Access, ConnectOptions, Pd, QpOptions, RecvRequest, SendOp, SendRequest, Sge, Stag,
};
use sprat_proto::rpc::over_qp::{Hello, Location, SendHeader, SendKind};
use sprat_proto::rpc::{Event, Message};
use sprat_proto::time::SECOND;

use super::*;
use crate::transport::SystemTransport as _;
use crate::transport::framed::SILENCE_NS;
use crate::transport::framed::tests::{
    NOW, Seen, bytes, client, echo, exchange, serve_until, server, server_at, turn,
};
use sprat_proto::Instant;
use sprat_proto::node::Transport as _;
use sprat_rdma::engine::ConnectionState as State;
use sprat_sys::memory::Region;

/// Checks that the server answers a request of a new client.
fn serves(server: &mut Rdma, at: &Locator) {
    let mut client = client::<Pairs>();
    let session = client.connect(NOW, at).expect("loopback");
    assert_eq!(exchange(server, &mut client, session, &[vec![1, 2, 3]])[&0], [1, 2, 3]);
}

#[test]
fn a_crc_is_left_out_if_neither_side_asks() {
    let requests: Vec<_> =
        [0, 100, 16_350, 20_000, 1_000_000, 5_000_000].map(|len| bytes(len, len)).into();
    for (ours, theirs) in [("", ""), (",crc=off", ""), ("", ",crc=off"), (",crc=off", ",crc=off")] {
        let (mut server, at) = server_at::<Pairs>("127.0.0.1", theirs, Options::default());
        assert!(at.to_string().ends_with(theirs));
        let port = at.option("port").expect("a port");
        let to = format!("rdma:host=127.0.0.1,port={port}{ours}").parse().expect("a locator");
        let mut client = client::<Pairs>();
        let session = client.connect(NOW, &to).expect("loopback");
        let replies = exchange(&mut server, &mut client, session, &requests);
        assert!(replies.into_values().eq(requests.iter().cloned()), "{ours} {theirs}");
        // Only without a CRC is a message received directly into its memory.
        let bare = !ours.is_empty() && !theirs.is_empty();
        for side in [&client, &server] {
            assert_eq!(side.carrier.core.counters().direct > 5_000_000, bare, "{ours} {theirs}");
        }
    }
}

/// A peer that speaks iWARP correctly and sends whatever a test gives it.
struct Hostile {
    core: Core,
    pd: Pd,
    qp: Qp,
    stag: Stag,
    region: u64,
}

impl Hostile {
    fn connect(server: &mut Rdma, hello: Vec<u8>) -> Self {
        let config = RnicOptions { crc32c, ..RnicOptions::default() };
        let settings = Settings {
            config,
            copies: Copies::One,
            coupling: Coupling::Tight,
            connections: 10,
            fitted: false,
            on_failure: None,
        };
        let mut core = Core::new(settings, None).expect("an epoll");
        let region =
            core.regions().insert(std::sync::Arc::new(Region::anonymous(1 << 20).expect("memory")));
        let region = region.expect("a number");
        let pd = core.rnic().alloc_pd().expect("the first");
        let stag = core.rnic().register(pd, region, 0, 1 << 20, Access::ALL).expect("the first");
        let cq = core.rnic().create_cq(1 << 20).expect("the first");
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
        let qp = core.rnic().create_qp(options).expect("the first");
        for _ in 0..1000 {
            let into = Sge { stag, addr: 0, len: BUFFER_BYTES as u32 };
            core.rnic().post_recv(qp, RecvRequest::new(0, into)).expect("room");
        }
        core.events().connections.insert(qp, State::Idle);
        let (_, to) = server.carrier.listener.expect("it listens");
        let options =
            ConnectOptions { ird: 4, ord: 4, private_data: hello, ..ConnectOptions::default() };
        core.connect(NOW, qp, to, options, SECOND).expect("loopback");
        let mut hostile = Self { core, pd, qp, stag, region };
        while matches!(hostile.state(), State::Idle | State::Opening) {
            hostile.turn(server);
        }
        hostile
    }

    fn state(&mut self) -> State {
        self.core.events().connections[&self.qp].clone()
    }

    fn turn(&mut self, server: &mut Rdma) {
        self.core.turn_at(NOW);
        echo(server);
    }

    fn send(&mut self, send: &[u8]) {
        let request = SendRequest::new(0, SendOp::Send, send.to_vec()).unsignaled();
        // The server may have disconnected meanwhile.
        let _ = self.core.rnic().post_send(self.qp, request);
    }

    /// Sends all of `sends`. The server must end the connection of this peer, and only this one.
    fn expect_disconnect(mut self, server: &mut Rdma, at: &Locator, sends: &[Vec<u8>]) {
        let bad = server.counters.bad_field;
        for send in sends {
            self.send(send);
        }
        while !matches!(self.state(), State::Disconnected(_)) {
            self.turn(server);
        }
        serve_until(server, 0);
        assert!(server.counters.bad_field <= bad + 1);
        serves(server, at);
        serve_until(server, 0);
    }
}

fn send(kind: SendKind, granted: u16, finished: u16, rest: &[u8]) -> Vec<u8> {
    [&SendHeader { kind, granted, finished }.to_bytes()[..], rest].concat()
}

/// Returns the header of a frame: DATA to the server with a message of `len` bytes.
fn header(seq: u32, len: u32) -> Vec<u8> {
    let mut header = vec![0; 32];
    header[0] = 1 << 5 | 1;
    header[8..12].copy_from_slice(&seq.to_be_bytes());
    header[12..16].copy_from_slice(&len.to_be_bytes());
    header
}

fn announcement(stag: Stag, address: u64, header: &[u8]) -> Vec<u8> {
    let place = Location { stag: stag.0, address }.to_bytes();
    send(SendKind::Rendezvous, 0, 0, &[&place[..], header].concat())
}

fn hello() -> Vec<u8> {
    Hello { receives: 16, receive_bytes: 16_384 }.to_bytes().to_vec()
}

#[test]
fn a_peer_that_breaks_a_rule_loses_its_own_connection() {
    let (mut server, at) = server::<Pairs>();
    let frame = [header(1, 4), vec![9; 4]].concat();
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("an empty Send", vec![vec![]]),
        ("half a header of a Send", vec![vec![1, 0, 0]]),
        ("no such kind", vec![vec![9; 20]]),
        ("no frame", vec![send(SendKind::Eager, 0, 0, &[0xff; 40])]),
        ("half a frame", vec![send(SendKind::Eager, 0, 0, &frame[..34])]),
        ("half a header", vec![send(SendKind::Eager, 0, 0, &frame[..31])]),
        ("more receives than it has", vec![send(SendKind::Eager, 1, 0, &frame)]),
        ("what was never announced is finished", vec![send(SendKind::Credits, 0, 1, &[])]),
        ("an announcement without a place", vec![send(SendKind::Rendezvous, 0, 0, &[0; 15])]),
        ("an announcement without a header", vec![announcement(Stag(1), 0, &[])]),
        ("an announcement of nothing", vec![announcement(Stag(1), 0, &header(1, 0))]),
        ("an announcement of too much", vec![announcement(Stag(1), 0, &header(1, (16 << 20) + 1))]),
        ("a tag that names nothing", vec![announcement(Stag(0x1234), 0, &header(1, 100_000))]),
        ("an address that wraps", vec![announcement(Stag(0x1234), u64::MAX, &header(1, 16 << 20))]),
        ("more Sends than receives", vec![send(SendKind::Eager, 0, 0, &frame); 400]),
    ];
    for (what, sends) in cases {
        assert!(server.live().is_empty(), "before: {what}");
        Hostile::connect(&mut server, hello()).expect_disconnect(&mut server, &at, &sends);
    }
}

#[test]
fn what_is_announced_must_be_there() {
    let (mut server, at) = server::<Pairs>();
    let hostile = Hostile::connect(&mut server, hello());
    let beyond = announcement(hostile.stag, (1 << 20) - 100, &header(1, 101));
    hostile.expect_disconnect(&mut server, &at, &[beyond]);
    let many: Vec<_> = {
        let hostile = Hostile::connect(&mut server, hello());
        let one = announcement(hostile.stag, 0, &header(1, 1 << 20));
        drop(hostile);
        vec![one; 100]
    };
    Hostile::connect(&mut server, hello()).expect_disconnect(&mut server, &at, &many);
}

#[test]
fn a_peer_without_our_hello_is_refused_and_learns_our_version() {
    let (mut server, at) = server::<Pairs>();
    let mut other = hello();
    other[4] = 2;
    for (count, private_data) in [Vec::new(), b"hello".to_vec(), other].into_iter().enumerate() {
        let mut hostile = Hostile::connect(&mut server, private_data);
        let State::Rejected { private_data, .. } = hostile.state() else {
            panic!("{:?}", hostile.state())
        };
        assert_eq!(private_data, hello());
        assert_eq!(server.carrier.counters.bad_hello, count as u64 + 1);
    }
    serves(&mut server, &at);
}

#[test]
fn what_is_no_start_up_is_counted() {
    let (mut server, at) = server::<Pairs>();
    let (_, to) = server.carrier.listener.expect("it listens");
    for count in 1..3 {
        let mut peer = TcpStream::connect(to).expect("loopback");
        peer.write_all(b"GET / HTTP/1.1\r\n\r\nHost: localhost\r\n\r\n").expect("written");
        assert!((0..20_000_000).any(|_| {
            echo(&mut server);
            server.carrier.counters.bad_start == count
        }));
    }
    assert!(server.live().is_empty());
    serves(&mut server, &at);
}

#[test]
fn a_silent_peer_expect_disconnect() {
    let (mut server, at) = server::<Pairs>();
    let mut hostile = Hostile::connect(&mut server, hello());
    let late = NOW.after(SILENCE_NS);
    assert_eq!(server.links.first_deadline(), late);
    server.tick(late);
    assert_eq!(server.counters.silent, 1);
    while !matches!(hostile.state(), State::Disconnected(_)) {
        hostile.turn(&mut server);
    }
    serves(&mut server, &at);
}

#[test]
fn a_closed_session_gives_everything_back() {
    let (mut server, at) = server::<Pairs>();
    let mut client = client::<Pairs>();
    for round in 0..3 {
        let session = client.connect(NOW, &at).expect("loopback");
        let request = bytes(round, 300_000);
        let replies = exchange(&mut server, &mut client, session, std::slice::from_ref(&request));
        assert!(replies[&0] == request);
        client.close(NOW, session);
        let mut seen = Vec::new();
        turn(&mut client, NOW, &mut seen);
        assert_eq!(seen, [Seen::Closed(session, CloseReason::Local)]);
        serve_until(&mut server, 0);
        assert!(
            client.carrier.by_qp.is_empty() && client.carrier.core.events().connections.is_empty()
        );
    }
    for core in [&mut client.carrier.core, &mut server.carrier.core] {
        // The domain gets a number that a closed connection had, and deallocates only if nothing
        // of that connection is left.
        let pd = core.rnic().alloc_pd().expect("room");
        assert_eq!(core.rnic().dealloc_pd(pd), Ok(()));
    }
}

/// The memory that a test's slices lie in: slice n is 100,000 bytes that the seed n makes.
struct Blocks(Vec<Vec<u8>>);

impl Slices for Blocks {
    fn bytes(&self, slice: Slice) -> &[u8] {
        &self.0[slice.segment as usize][..slice.len as usize]
    }
}

#[test]
fn a_slice_is_kept_until_the_peer_has_read_it_or_is_gone() {
    let blocks = Blocks((0..3).map(|n| bytes(n, 100_000)).collect());
    for crc in ["", ",crc=off"] {
        let (mut server, at) = server_at::<Pairs>("127.0.0.1", crc, Options::default());
        let mut client = client::<Pairs>();
        for reads in [true, false] {
            let session = client.connect(NOW, &at).expect("loopback");
            client
                .request(NOW, session, 1, &mut Message::default(), Instant::NEVER)
                .expect("taken");
            let mut message = Message::from(bytes(9, 50));
            message.slices.extend((0..3).map(|n| Slice { segment: n, offset: 0, len: 100_000 }));
            let whole =
                [&bytes(9, 50), &blocks.0[0], &blocks.0[1], &blocks.0[2]].map(|v| &v[..]).concat();
            let (mut seen, mut released, mut answered) = (Vec::new(), 0, false);
            while seen.is_empty() {
                server.input(NOW);
                while let Some(event) = server.event(NOW) {
                    let Event::Request { rpc, .. } = event else { panic!("{event:?}") };
                    server.reply(NOW, rpc, &mut message.clone(), false);
                    answered = true;
                }
                server.output(NOW, &blocks);
                assert!(server.released().is_none(), "not all of them are read");
                if answered && !reads {
                    client.close(NOW, session);
                }
                turn(&mut client, NOW, &mut seen);
            }
            if reads {
                assert!(seen == [Seen::Response(1, whole)]);
            }
            while released < 3 {
                turn(&mut client, NOW, &mut seen);
                server.input(NOW);
                while server.event(NOW).is_some() {}
                server.output(NOW, &blocks);
                released += std::iter::from_fn(|| server.released()).count();
            }
            client.close(NOW, session);
            turn(&mut client, NOW, &mut seen);
            serve_until(&mut server, 0);
        }
    }
}

#[test]
fn hostile_regions_are_their_own() {
    // Each connection has a domain of its own, so a tag that one peer learned is invalid on the
    // connection of another.
    let (mut server, _) = server::<Pairs>();
    let (a, b) = (Hostile::connect(&mut server, hello()), Hostile::connect(&mut server, hello()));
    let domain = |slot| server.link(slot).expect("connected").wire.pair.domain();
    let [first, second] = [0, 1].map(domain);
    assert_ne!(first, second);
    assert!(a.region == b.region && a.pd == b.pd, "each hostile peer has an engine of its own");
}
