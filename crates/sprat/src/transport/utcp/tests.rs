use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use sprat_proto::net::tcp::TcpState;
use sprat_proto::node::Transport as _;
use sprat_proto::rpc::Message;

use super::*;
use crate::transport::SystemTransport as _;
use crate::transport::framed::SILENCE_NS;
use crate::transport::framed::tests::{
    NOW, Named, Seen, bytes, client, echo, exchange, locator, serve_until, server, server_at, turn,
    until,
};

/// The most turns of a test that waits for something.
const TURNS: usize = 1_000_000;
/// The time of a kernel that a test's program does not see pass.
const LATER: Instant = NOW.after(50 * MS);

thread_local! {
    /// The number of this thread's network, whether its server has an IPv6 address, and the number
    /// of its clients.
    static NETWORK: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
    static IS_V6: Cell<bool> = const { Cell::new(false) };
    static CLIENTS: Cell<u8> = const { Cell::new(1) };
}

/// Returns a locator on the network of this thread.
fn on_network(host: &str) -> Locator {
    let (id, number) = (std::process::id(), NETWORK.with(|number| *number));
    locator(&format!("utcp+shmnet:name=utcp-{id}-{number},host={host},port=0"))
}

fn client_interface() -> Opened {
    let clients = CLIENTS.replace(CLIENTS.get() + 1) + 1;
    let own = on_network(&format!("10.77.0.{clients}"));
    let local = if IS_V6.get() { vec![] } else { vec![own] };
    let to = on_network(if IS_V6.get() { "fd77::1" } else { "10.77.0.1" });
    interface::towards(&to, &local, Ports::All, device_port).expect("shared memory")
}

impl Named for Connections {
    const PROTOCOL: &'static str = "utcp+shmnet";

    fn listen(at: &Locator, options: Options) -> io::Result<Utcp> {
        Utcp::listen(at, options)
    }

    fn client(options: Options) -> io::Result<Utcp> {
        Ok(Utcp::over(&on_network("10.77.0.1"), client_interface(), options))
    }

    /// A stack has an address of its own, and not that of loopback.
    fn at(host: &str, _: &str) -> Locator {
        IS_V6.set(host.contains("::1") && !host.contains("ffff"));
        on_network(if IS_V6.get() { "fd77::1" } else { "10.77.0.1" })
    }

    fn breathe(utcp: &mut Utcp) {
        utcp.input(LATER);
        utcp.tick(LATER);
        utcp.output(LATER, &());
    }

    fn counts(name: &str) -> bool {
        let own = ["accept_errors", "accepted", "calls", "ended", "failures", "opened", "refused"];
        own.contains(&name) || ["replies", "requests", "responses"].contains(&name)
    }
}

/// A program that speaks TCP and not our frames.
struct OtherPeer {
    interface: Interface<AnyNic>,
    id: TcpId,
}

impl OtherPeer {
    fn connect(server: &mut Utcp) -> Self {
        let mut interface = client_interface().interface;
        interface.set_now(NOW);
        interface.stack_mut().enable_tcp(TcpConfig::default(), 1);
        let at = locator(&server.locator().expect("it listens"));
        let port = device_port(&at).expect("a port").at.port;
        let id = interface.connect_tcp(0, (std::net::Ipv4Addr::new(10, 77, 0, 1), port).into());
        let mut this = Self { interface, id: id.expect("a route") };
        this.until(server, TcpState::Established);
        this
    }

    /// Makes turns until the connection has this state.
    fn until(&mut self, server: &mut Utcp, state: TcpState) {
        assert!((0..TURNS).any(|_| {
            self.turn(server);
            let tcp = self.interface.tcp().expect("enabled");
            tcp.connection(self.id).is_none_or(|c| c.state() == state)
        }));
    }

    fn turn(&mut self, server: &mut Utcp) {
        self.interface.input();
        self.interface.output();
        echo(server);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.interface.tcp().expect("enabled").write(self.id, bytes);
    }
}

#[test]
fn garbage_at_the_port_harms_only_itself() {
    let (mut server, at) = server::<Connections>();
    let mut client = client::<Connections>();
    let session = client.connect(NOW, &at).expect("connects");
    let mut wrong_field = vec![0x21; 40];
    wrong_field[1] = 0;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &wrong_field, &bytes(4, 100_000)] {
        let mut peer = OtherPeer::connect(&mut server);
        peer.write(garbage);
        for _ in 0..100 {
            peer.turn(&mut server);
        }
        let replies = exchange(&mut server, &mut client, session, &[bytes(5, 50)]);
        assert_eq!(replies[&0], bytes(5, 50));
    }
    let counters = server.counters;
    assert_eq!((server.live().len(), counters.accepted), (1, 4));
    assert!(counters.bad_version >= 1 && counters.bad_field >= 1, "{counters:?}");
}

#[test]
fn a_client_of_another_version_gets_a_reset_and_then_the_end() {
    let (mut server, _at) = server::<Connections>();
    let mut peer = OtherPeer::connect(&mut server);
    peer.write(&[0x41; 32]);
    peer.until(&mut server, TcpState::CloseWait);
    let mut reset = [0; 64];
    assert_eq!(peer.interface.tcp().expect("enabled").read(peer.id, &mut reset), 32);
    assert_eq!((reset[0], reset[1], reset[19]), (0x2e, 0x01, 2));
    // It never closes its direction.
    assert_eq!(server.carrier.tcp().connections(), 1);
    server.tick(NOW.after(TIME_WAIT_NS));
    assert_eq!(server.carrier.tcp().connections(), 0);
}

#[test]
fn silent_and_half_closed_connections_are_ended() {
    let (mut server, _at) = server::<Connections>();
    let _silent = OtherPeer::connect(&mut server);
    let mut half = OtherPeer::connect(&mut server);
    // A header that claims much, and then nothing.
    half.write(&[0x21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0xff, 0, 0]);
    half.turn(&mut server);
    serve_until(&mut server, 2);
    half.interface.tcp().expect("enabled").close(half.id);
    half.interface.output();
    serve_until(&mut server, 1);
    let due = NOW.after(SILENCE_NS);
    server.tick(due);
    assert!(server.event(due).is_none());
    assert_eq!((server.live().len(), server.counters.silent), (0, 1));
}

#[test]
fn a_full_transport_accepts_again_after_a_connection_ends() {
    let options = Options { connection_limit: 2, ..Options::default() };
    let (mut server, at) = server_at::<Connections>("127.0.0.1", "", options);
    let mut clients: Vec<_> = (0..3).map(|_| client::<Connections>()).collect();
    let mut seen = vec![Vec::new(); 3];
    let mut sessions = Vec::new();
    for client in &mut clients {
        let session = client.connect(NOW, &at).expect("begun");
        client.request(NOW, session, 7, &mut Message::default(), Instant::NEVER).expect("taken");
        sessions.push(session);
    }
    let (mut now, mut served) = (NOW, 0);
    let mut turns = |clients: &mut Vec<Utcp>, many: usize| {
        for _ in 0..2_000 {
            served += echo(&mut server);
            now = now.after(MS);
            for (client, seen) in clients.iter_mut().zip(&mut seen) {
                turn(client, now, seen);
                client.tick(now);
            }
            if served == many {
                break;
            }
        }
        assert_eq!(served, many);
        seen.iter().position(|seen| !seen.is_empty())
    };
    let first = turns(&mut clients, 2).expect("one was served");
    clients[first].close(now_after(2), sessions[first]);
    turns(&mut clients, 3);
}

const fn now_after(seconds: u64) -> Instant {
    NOW.after(seconds * SECOND)
}

/// A client whose machine vanishes sends no word. The server ends its connection when no peer
/// acknowledges the reply.
#[test]
fn a_peer_that_vanishes_is_given_up() {
    let (mut server, at) = server::<Connections>();
    let mut client = client::<Connections>();
    let session = client.connect(NOW, &at).expect("begun");
    exchange(&mut server, &mut client, session, &[bytes(1, 10)]);
    client.request(NOW, session, 1, &mut bytes(1, 10).into(), Instant::NEVER).expect("taken");
    turn(&mut client, NOW, &mut Vec::new());
    assert!((0..TURNS).any(|_| echo(&mut server) == 1));
    let mut now = NOW;
    while server.live().len() == 1 {
        now = server.deadline().expect("it waits for an acknowledgement");
        server.tick(now);
        server.input(now);
        assert!(server.event(now).is_none());
        server.output(now, &());
    }
    assert!(now <= NOW.after(3 * UNACKNOWLEDGED_NS), "after {now:?}");
}

/// Frames of many connections come in one burst. The data of a connection that takes no input goes
/// to its buffer, and comes in order when it takes some again.
#[test]
fn a_stream_that_waits_gets_the_rest_in_order() {
    let (mut server, at) = server::<Connections>();
    let mut client = client::<Connections>();
    let session = client.connect(NOW, &at).expect("begun");
    let mut seen = Vec::new();
    let many = 9000;
    for tag in 0..many {
        client
            .request(NOW, session, tag, &mut bytes(tag as usize, 40).into(), Instant::NEVER)
            .err();
        if tag % 64 == 0 {
            turn(&mut client, NOW, &mut seen);
        }
    }
    until(&mut server, &mut client, &mut seen, 4096);
    let in_order = seen.iter().enumerate().all(|(tag, seen)| {
        matches!(seen, Seen::Response(t, reply) if *t == tag as u64 && *reply == bytes(tag, 40))
    });
    assert!(in_order);
}

/// A message that is longer than the congestion window goes on with each acknowledgement, in a
/// program that sends only behind input. An acknowledgement was once none, so that the message
/// waited for a timer.
#[test]
fn acknowledgements_are_input() {
    let (mut server, at) = server::<Connections>();
    let mut client = client::<Connections>();
    let session = client.connect(NOW, &at).expect("connects");
    exchange(&mut server, &mut client, session, &[bytes(1, 10)]);
    let mut request = bytes(2, 500_000).into();
    client.request(NOW, session, 7, &mut request, Instant::NEVER).expect("taken");
    client.output(NOW, &());
    let mut is_answered = false;
    assert!((0..10_000).any(|_| {
        echo(&mut server);
        if client.input(NOW) > 0 {
            while let Some(event) = client.event(NOW) {
                is_answered |= matches!(event, sprat_proto::rpc::Event::Response { tag: 7, .. });
            }
            client.output(NOW, &());
        }
        is_answered
    }));
}
