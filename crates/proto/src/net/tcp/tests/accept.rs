//! Listeners under load: SYN cookies (RFC 4987), and programs that take no connections.

use core::net::{Ipv4Addr, SocketAddr};

use super::hosts::{Hosts, PORT, address, is_syn_ack};
use super::*;
use crate::wire::tcp::TcpOptions;

const BACKLOG: u32 = 16;

/// A host whose backlog is full of half-open connections, and one client.
fn flooded(config: &TcpConfig) -> Hosts {
    let mut hosts = Hosts::new(config, 1, 1000, BACKLOG);
    (0..BACKLOG).for_each(|n| flood(&mut hosts, n));
    hosts.work();
    hosts.log.clear();
    hosts
}

/// Sends a SYN in the name of a host that does not answer.
fn flood(hosts: &mut Hosts, n: u32) {
    let peer =
        SocketAddr::from((Ipv4Addr::from(0xc0a8_0000 + n / 60_000), (n % 60_000) as u16 + 1));
    let options = TcpOptions { mss: Some(1460), timestamps: Some((n, 0)), ..TcpOptions::default() };
    hosts.forge(peer, Tcp { seq: n, flags: Flags::SYN, options, ..Tcp::default() }, &[]);
}

/// Lets the client send `bytes`, and returns what the server gets.
fn talk(hosts: &mut Hosts, bytes: &[u8]) -> Vec<u8> {
    let id = hosts.connect(1);
    hosts.hosts[1].write(id, bytes);
    hosts.run(30 * SECOND);
    let accepted = hosts.opened(0);
    assert_eq!(accepted.len(), 1, "{:?}", hosts.hosts[0].counters());
    hosts.read(0, accepted[0])
}

/// RFC 4987 3.6: a flood of SYNs leaves no memory behind, and real clients get through, each with
/// the options that it wants.
#[test]
fn a_flood_of_syns_keeps_nobody_out() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 20, 1000, BACKLOG);
    let mut clients = Vec::new();
    for n in 0..100_000_u32 {
        flood(&mut hosts, n);
        if n % 5000 == 0 {
            let client = 1 + clients.len();
            let id = hosts.connect(client);
            hosts.hosts[client].write(id, b"hello");
            clients.push(id);
        }
        if n % 100 == 0 {
            hosts.run(MS);
        }
        hosts.log.clear();
        assert!(hosts.hosts[0].connections() <= BACKLOG as usize + clients.len());
    }
    hosts.run(10 * SECOND);
    let accepted = hosts.opened(0);
    assert_eq!(accepted.len(), 20);
    for id in accepted {
        assert_eq!(hosts.read(0, id), b"hello");
        let connection = hosts.hosts[0].connection(id).unwrap();
        let agreed = connection.agreed;
        assert!(agreed.timestamps && agreed.sack && agreed.ecn && agreed.window_scaling);
        assert_eq!(connection.send.shift, TcpConfig::default().window_shift());
        assert_eq!(connection.send.mss, 1448);
    }
    let counters = *hosts.hosts[0].counters();
    assert!(counters.cookies_sent > 90_000 && counters.cookies_accepted >= 19, "{counters:?}");
    assert_eq!((counters.cookies_wrong, counters.drop_accept), (0, 0));
}

/// The half-open connections end after their retries, and then SYNs are remembered again.
#[test]
fn after_a_flood_there_are_no_cookies() {
    let mut hosts = flooded(&TcpConfig::default());
    hosts.run(300 * SECOND);
    assert_eq!(hosts.hosts[0].connections(), 0);
    assert_eq!(talk(&mut hosts, b"x"), b"x");
    assert_eq!(hosts.hosts[0].counters().cookies_sent, 0);
}

/// Without timestamps a cookie has the MSS, and no other option.
#[test]
fn a_cookie_without_timestamps_has_no_options() {
    let config = TcpConfig { timestamps: false, ..TcpConfig::default() };
    let mut hosts = flooded(&config);
    let bytes: Vec<u8> = (0..50_000).map(byte).collect();
    assert_eq!(talk(&mut hosts, &bytes), bytes);
    let answer = hosts.log.iter().find(|packet| is_syn_ack(&packet.tcp)).unwrap();
    let wanted = TcpOptions { mss: Some(1460), ..TcpOptions::default() };
    assert_eq!((answer.tcp.options, answer.tcp.flags.has(Flags::ECE)), (wanted, false));
    let id = hosts.opened(0)[0];
    let connection = hosts.hosts[0].connection(id).unwrap();
    assert!(!connection.agreed.sack && !connection.agreed.window_scaling);
    assert_eq!((connection.send.shift, connection.send.mss), (0, 1460));
}

/// The window of the peer is known from its first acknowledgement, scaled, so that the server's
/// data needs no second one.
#[test]
fn the_server_may_speak_first() {
    let mut hosts = flooded(&TcpConfig::default());
    let client = hosts.connect(1);
    hosts.run(3 * MS);
    let server = hosts.opened(0)[0];
    assert_eq!(hosts.hosts[0].connection(server).unwrap().send.window, 1 << 20);
    let bytes: Vec<u8> = (0..50_000).map(byte).collect();
    hosts.hosts[0].write(server, &bytes);
    hosts.run(SECOND);
    assert_eq!(hosts.read(1, client), bytes);
}

/// A SYN and ACK that is lost costs the peer another SYN, which gets another cookie.
#[test]
fn a_lost_cookie_is_asked_for_again() {
    let mut hosts = flooded(&TcpConfig::default());
    hosts.loses = |packet| packet.flow.local.ip() == address(1);
    let id = hosts.connect(1);
    hosts.hosts[1].write(id, b"hello");
    hosts.run(500 * MS);
    assert_eq!(hosts.hosts[0].counters().cookies_sent, 1);
    hosts.loses = |_| false;
    hosts.run(5 * SECOND);
    let server = hosts.opened(0)[0];
    assert_eq!(hosts.read(0, server), b"hello");
    assert_eq!(hosts.hosts[0].counters().cookies_sent, 2);
}

/// The data that follows a lost acknowledgement has its number, and so the cookie.
#[test]
fn data_after_a_lost_acknowledgement_opens_the_connection() {
    let mut hosts = flooded(&TcpConfig::default());
    hosts.loses =
        |packet| packet.flow.local.port() == PORT && packet.data.is_empty() && packet.tcp.ack != 0;
    let id = hosts.connect(1);
    hosts.run(100 * MS);
    assert_eq!(hosts.opened(1), [id], "the client believes in its connection");
    assert_eq!(hosts.opened(0), []);
    hosts.loses = |_| false;
    hosts.hosts[1].write(id, b"hello");
    hosts.run(SECOND);
    let server = hosts.opened(0)[0];
    assert_eq!(hosts.read(0, server), b"hello");
    assert_eq!(hosts.hosts[0].counters().cookies_accepted, 1);
}

/// Acknowledgements that name no cookie leave nothing behind, and an old cookie is refused.
#[test]
fn a_wrong_cookie_is_worth_nothing() {
    let mut hosts = flooded(&TcpConfig::default());
    let before = hosts.hosts[0].connections();
    let mut rng = Rng::seeded(5);
    let peer = SocketAddr::new(address(1), 7);
    let options = TcpOptions { timestamps: Some((1, 1)), ..TcpOptions::default() };
    let ack = Tcp { seq: 5, ack: 6, flags: Flags::ACK, options, ..Tcp::default() };
    hosts.forge(peer, ack, b"early");
    hosts.work();
    assert_eq!(hosts.hosts[0].counters().cookies_wrong, 0, "nobody got a cookie yet");
    assert!(hosts.log.pop().unwrap().tcp.flags.has(Flags::RST));
    hosts.forge(peer, Tcp { seq: 4, flags: Flags::SYN, ..Tcp::default() }, &[]);
    hosts.work();
    let cookie = hosts.log.pop().unwrap().tcp.seq;
    for _ in 0..10_000 {
        hosts.forge(peer, Tcp { seq: rng.u32(), ack: rng.u32(), ..ack }, b"forged");
    }
    let good = Tcp { ack: cookie.wrapping_add(1), options: TcpOptions::default(), ..ack };
    hosts.forge(peer, Tcp { options, ..good }, b"a time that no answer had");
    hosts.forge((address(2), 7).into(), good, b"of another host");
    hosts.forge((address(1), 8).into(), good, b"of another port");
    hosts.forge(peer, Tcp { seq: 6, ..good }, b"of another SYN");
    hosts.work();
    assert_eq!(hosts.hosts[0].counters().cookies_wrong, 10_004);
    assert_eq!((hosts.hosts[0].connections(), hosts.log.len()), (before, 0));
    let later = hosts.now.after(121 * SECOND);
    let now = core::mem::replace(&mut hosts.now, later);
    flood(&mut hosts, 1000);
    hosts.work();
    hosts.forge(peer, good, b"too late");
    hosts.work();
    assert!(hosts.log.pop().unwrap().tcp.flags.has(Flags::RST));
    assert_eq!(hosts.hosts[0].counters().cookies_wrong, 10_005);
    hosts.now = now;
    hosts.forge(peer, good, b"genuine");
    assert_eq!(hosts.hosts[0].counters().cookies_accepted, 1);
    assert_eq!(hosts.hosts[0].connections(), before + 1);
}

/// A segment that overtakes the first acknowledgement shows no cookie. It once brought a reset,
/// which ended the connection.
#[test]
fn a_segment_that_overtakes_the_cookie_does_no_harm() {
    let mut hosts = flooded(&TcpConfig::default());
    let id = hosts.connect(1);
    // The acknowledgement and the first data are lost, and what follows arrives.
    hosts.loses = |packet| {
        packet.flow.local.port() == PORT && packet.tcp.ack != 0 && packet.data.len() != 552
    };
    hosts.hosts[1].write(id, &[7; 2000]);
    hosts.run(20 * MS);
    hosts.hosts[1].close(id);
    hosts.run(20 * MS);
    assert!(hosts.hosts[0].counters().cookies_wrong > 0);
    hosts.loses = |_| false;
    hosts.run(10 * SECOND);
    let server = hosts.opened(0)[0];
    assert_eq!(hosts.read(0, server), [7; 2000]);
}

/// The last places of a host are for connections whose handshakes are over.
#[test]
fn half_open_connections_leave_places_free() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 80, 1000);
    (0..1000).for_each(|n| flood(&mut hosts, n));
    assert_eq!(hosts.hosts[0].connections(), 70);
    hosts.run(MS);
    assert_eq!(talk(&mut hosts, b"x"), b"x");
    assert!(hosts.hosts[0].counters().cookies_accepted == 1);
}

/// A program that takes no connections has at most its backlog of them. The others wait in their
/// handshakes, and get through when it takes some.
#[test]
fn connections_that_nobody_takes_are_limited() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 40, 1000, 8);
    hosts.takes = false;
    let ids: Vec<_> = (1..=40).map(|client| hosts.connect(client)).collect();
    hosts.run(20 * SECOND);
    assert_eq!(hosts.hosts[0].connections(), 8);
    assert!(hosts.hosts[0].counters().drop_accept > 0);
    for (client, id) in ids.iter().enumerate() {
        hosts.hosts[client + 1].write(*id, b"hello");
    }
    hosts.takes = true;
    hosts.work();
    assert_eq!(hosts.opened(0).len(), 8);
    hosts.run(60 * SECOND);
    let accepted = hosts.opened(0);
    assert_eq!(accepted.len(), 40);
    for id in accepted {
        assert_eq!(hosts.read(0, id), b"hello");
    }
}

/// The handshake of a half-open connection does not end while too many open ones wait.
#[test]
fn half_open_connections_wait_for_a_place() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 16, 1000, 8);
    hosts.takes = false;
    hosts.loses = |packet| {
        let is_early = (1..=8).any(|client| packet.flow.peer.ip() == address(client));
        is_early && packet.tcp.flags == Flags::ACK
    };
    (1..=16).for_each(|client| _ = hosts.connect(client));
    hosts.run(100 * MS);
    hosts.loses = |_| false;
    hosts.run(20 * SECOND);
    assert_eq!(hosts.hosts[0].connections(), 16, "8 by SYNs, and 8 by cookies");
    hosts.takes = true;
    hosts.work();
    assert_eq!(hosts.opened(0).len(), 8);
    hosts.run(60 * SECOND);
    assert_eq!(hosts.opened(0).len(), 16);
}

/// A listener that comes after another at its port does not count the connections of that one.
#[test]
fn a_listener_does_not_count_for_another() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 1000, 2);
    (0..2).for_each(|n| flood(&mut hosts, n));
    hosts.hosts[0].unlisten(PORT);
    hosts.hosts[0].listen(PORT, 2).unwrap();
    (2..4).for_each(|n| flood(&mut hosts, n));
    hosts.run(300 * SECOND);
    assert_eq!(hosts.hosts[0].connections(), 0);
    (4..8).for_each(|n| flood(&mut hosts, n));
    assert_eq!(hosts.hosts[0].connections(), 2);
    assert_eq!(hosts.hosts[0].counters().cookies_sent, 2);
}
