use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use sprat_proto::Rng;
use sprat_proto::rpc::{Message, RpcError};

use super::*;
use crate::transport::SystemTransport as _;
use crate::transport::framed::SILENCE_NS;
use crate::transport::framed::tests::{
    NOW, Seen, bytes, client, echo, exchange, readable, serve, serve_until, server, server_at,
    take_events, turn, until,
};
use sprat_proto::node::Transport as _;

fn port(at: &Locator) -> u16 {
    at.option("port").expect("a port").parse().expect("a number")
}

#[test]
fn tiny_send_buffers_only_make_it_slower() {
    let (mut server, at) = server::<Sockets>();
    let listener = &server.carrier.listener.as_ref().expect("it listens").socket;
    sockopt::set_socket_send_buffer_size(listener, 1).expect("set");
    let mut client = client::<Sockets>();
    let session = client.connect(NOW, &at).expect("connects");
    let slot = client.live()[0];
    let socket = &client.link(slot).expect("there").wire.socket;
    sockopt::set_socket_send_buffer_size(socket, 1).expect("set");
    let requests: Vec<_> =
        (0..40).map(|i| bytes(i, if i % 10 == 0 { 300_000 } else { i * 50 })).collect();
    let replies = exchange(&mut server, &mut client, session, &requests);
    assert!(replies.into_values().eq(requests));
    assert_eq!((client.carrier.waiting, server.carrier.waiting), (0, 0));
}

#[test]
fn a_connection_that_never_opens_is_given_up() {
    let (_server, at) = server::<Sockets>();
    let mut client = client::<Sockets>();
    let session = client.connect(NOW, &at).expect("begun");
    let slot = client.live()[0];
    let until = client.deadline().expect("it waits for the connection");
    client.request(NOW, session, 1, &mut Message::default(), Instant::NEVER).expect("taken");
    // As if the answer to the first packet were still missing.
    let left = VecDeque::new();
    client.link(slot).expect("there").connecting = Some(Connecting { left, until });
    let mut seen = Vec::new();
    client.tick(until);
    take_events(&mut client, until, &mut seen);
    let closed = Seen::Closed(session, CloseReason::Unreachable);
    assert_eq!(seen, [Seen::Failed(1, RpcError::NotExecuted), closed]);
}

#[test]
fn garbage_at_the_port_harms_only_itself() {
    let (mut server, at) = server::<Sockets>();
    let mut client = client::<Sockets>();
    let session = client.connect(NOW, &at).expect("connects");
    let mut wrong_field = vec![0x21; 40];
    wrong_field[1] = 0;
    let mut rng = Rng::seeded(4);
    let mut noise = vec![0; 100_000];
    rng.fill(&mut noise);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &wrong_field, &noise, b"\0", b"\x21\x00"] {
        let mut peer = TcpStream::connect(("127.0.0.1", port(&at))).expect("connects");
        // It may be sent away before all of it is written.
        let _ = peer.write_all(garbage);
        let replies = exchange(&mut server, &mut client, session, &[bytes(5, 50)]);
        assert_eq!(replies[&0], bytes(5, 50));
        drop(peer);
    }
    for _ in 0..1_000_000 {
        echo(&mut server);
        if server.counters.accepted == 6 && server.live().len() == 1 {
            break;
        }
    }
    let counters = server.counters;
    assert_eq!((server.live().len(), counters.accepted), (1, 6));
    assert!(counters.bad_version >= 2 && counters.bad_field >= 1, "{counters:?}");
}

#[test]
fn a_client_of_another_version_gets_a_reset() {
    let (mut server, at) = server::<Sockets>();
    let mut peer = TcpStream::connect(("127.0.0.1", port(&at))).expect("connects");
    peer.write_all(&[0x41; 32]).expect("written");
    for _ in 0..1_000_000 {
        echo(&mut server);
        if server.counters.bad_version == 1 {
            break;
        }
    }
    let mut reset = [0; 32];
    peer.read_exact(&mut reset).expect("a RESET");
    assert_eq!((reset[0], reset[1], reset[19]), (0x2e, 0x01, 2));
}

#[test]
fn silent_and_half_closed_connections_are_ended() {
    let (mut server, at) = server::<Sockets>();
    let silent = TcpStream::connect(("127.0.0.1", port(&at))).expect("connects");
    let mut half = TcpStream::connect(("127.0.0.1", port(&at))).expect("connects");
    // A header that claims much, and then nothing.
    half.write_all(&[0x21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0xff, 0, 0]).expect("written");
    serve_until(&mut server, 2);
    half.shutdown(std::net::Shutdown::Write).expect("shut down");
    serve_until(&mut server, 1);
    let due = server.deadline().expect("it waits for a word");
    assert_eq!(due, NOW.after(SILENCE_NS));
    server.tick(due);
    assert!(server.event(due).is_none());
    assert_eq!((server.live().len(), server.counters.silent, server.deadline()), (0, 1, None));
    drop(silent);
}

#[test]
fn a_full_transport_accepts_again_after_a_connection_ends() {
    let (mut server, at) = server_at::<Sockets>(
        "127.0.0.1",
        "",
        Options { connection_limit: 2, ..Options::default() },
    );
    let mut clients: Vec<_> = (0..4).map(|_| client::<Sockets>()).collect();
    let mut sessions = Vec::new();
    for (i, client) in clients.iter_mut().enumerate() {
        sessions.push(client.connect(NOW, &at).expect("begun"));
        client
            .request(NOW, sessions[i], i as u64, &mut Message::default(), Instant::NEVER)
            .expect("taken");
    }
    let mut served = 0;
    let mut seen = vec![Vec::new(); 4];
    for _ in 0..10_000 {
        served += echo(&mut server);
        for (client, seen) in clients.iter_mut().zip(&mut seen) {
            turn(client, NOW, seen);
        }
    }
    assert_eq!((served, server.live().len(), server.carrier.accept_errors), (2, 2, 1));
    assert!(!readable(&server), "a connection that waits in the kernel does not wake it");
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
}

#[test]
fn a_pause_after_running_out_of_descriptors_ends_by_itself() {
    let (mut server, at) = server::<Sockets>();
    server.carrier.pause_accepting(NOW.after(5));
    let mut client = client::<Sockets>();
    let session = client.connect(NOW, &at).expect("begun");
    client.request(NOW, session, 0, &mut Message::default(), Instant::NEVER).expect("taken");
    let mut seen = Vec::new();
    for _ in 0..1000 {
        turn(&mut client, NOW, &mut seen);
        echo(&mut server);
    }
    assert_eq!((server.live().len(), server.deadline()), (0, Some(NOW.after(5))));
    server.tick(NOW.after(5));
    until(&mut server, &mut client, &mut seen, 1);
    assert_eq!(seen, [Seen::Response(0, Vec::new())]);
}

#[test]
fn a_peer_that_asks_and_never_listens_is_not_read_for_ever() {
    let (mut server, at) = server::<Sockets>();
    let mut client = client::<Sockets>();
    let session = client.connect(NOW, &at).expect("begun");
    for tag in 0..200 {
        client.request(NOW, session, tag, &mut Message::default(), Instant::NEVER).expect("taken");
    }
    let (mut served, mut idle) = (0, 0);
    while idle < 20_000 {
        // The client writes, but does not read.
        if client.live().len() == 1 && client.carrier.waiting > 0 {
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
    let more = client.request(NOW, session, 999, &mut Message::default(), Instant::NEVER);
    assert!(more.is_ok());
    for _ in 0..1000 {
        client.output(NOW, &());
        assert_eq!(serve(&mut server, |_| Some(Vec::new())), 0);
    }
    assert!(server.arm() && !readable(&server), "it sleeps until the peer reads");
    let mut seen = Vec::new();
    until(&mut server, &mut client, &mut seen, 201);
    assert_eq!(seen.len(), 201);
}
