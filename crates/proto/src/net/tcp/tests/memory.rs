//! The memory and the timers of many connections.

use super::hosts::{Hosts, PORT, address};
use super::*;

/// The most bytes of an idle connection, with its share of the tables.
const MOST: usize = 600;

/// Returns two hosts with `count` connections that have exchanged something, and are idle.
fn idle(count: usize) -> Hosts {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 2 * count, count as u32);
    let (own, peer) = ((address(1), 0).into(), (address(0), PORT).into());
    for _ in 0..count {
        let now = hosts.now;
        let id = hosts.hosts[1].connect(now, own, peer).unwrap();
        hosts.hosts[1].write(id, &[7; 5000]);
    }
    hosts.run(SECOND);
    for id in hosts.opened(0) {
        assert_eq!(hosts.read(0, id).len(), 5000);
        hosts.hosts[0].write(id, b"an answer");
    }
    hosts.run(SECOND);
    for id in hosts.opened(1) {
        assert_eq!(hosts.read(1, id), b"an answer");
    }
    hosts.run(100 * SECOND);
    hosts.log.clear();
    hosts
}

/// Connections that have exchanged data leave no buffers behind, and have no timers.
#[test]
fn an_idle_connection_is_small() {
    // Nearly as many as the tables have room for before they grow.
    let count = 14_000;
    let hosts = idle(count);
    for host in &hosts.hosts {
        assert_eq!((host.connections(), host.deadline()), (count, None));
        let bytes = host.bytes() / count;
        assert!(bytes <= MOST, "{bytes} bytes");
    }
}

/// A timer that is later than before stays where it is until it expires: then nothing is sent, and
/// it waits for its time.
#[test]
fn a_timer_that_moves_on_expires_once() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 10, 10);
    let id = hosts.connect(1);
    hosts.run(10 * MS);
    let server = hosts.opened(0)[0];
    hosts.hosts[1].write(id, b"x");
    hosts.work();
    let first = hosts.hosts[1].deadline().unwrap();
    hosts.run(50 * MS);
    assert_eq!(hosts.read(0, server), b"x");
    hosts.loses = |packet| packet.flow.local.port() == PORT;
    hosts.hosts[1].write(id, b"y");
    hosts.work();
    hosts.log.clear();
    let sent = hosts.now;
    assert!(hosts.hosts[1].deadline() <= Some(first), "it stays");
    let deadline = hosts.hosts[1].connection(id).unwrap().deadline().unwrap();
    hosts.run(first.since(sent));
    assert!(hosts.log.is_empty() && hosts.hosts[1].deadline() == Some(deadline), "it moves");
    hosts.run(deadline.since(hosts.now));
    assert_eq!(hosts.log.len(), 1, "and expires");
}

/// Connections of a host of many give their buffers on to others. Each stream has its own bytes
/// then too, those behind a gap included.
#[test]
fn buffers_that_change_hands_keep_streams_apart() {
    const COUNT: usize = 300;
    let byte = |n: usize, at: usize| (n * 31 + at * 7 + at / 256) as u8;
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 2 * COUNT, COUNT as u32);
    let clients: Vec<_> = (0..COUNT).map(|_| hosts.connect(1)).collect();
    hosts.run(10 * MS);
    let port = |hosts: &Hosts, host: usize, id| {
        let flow = hosts.hosts[host].flow(id).unwrap();
        if host == 0 { flow.peer.port() } else { flow.local.port() }
    };
    let servers: BTreeMap<_, _> =
        hosts.opened(0).into_iter().map(|id| (port(&hosts, 0, id), id)).collect();
    assert_eq!(servers.len(), COUNT);
    let (mut rng, mut written, mut read) = (Rng::seeded(1), [0; COUNT], [0; COUNT]);
    hosts.loses = |packet| !packet.data.is_empty() && packet.tcp.seq.is_multiple_of(11);
    for round in 0..3000 {
        let n = rng.below(COUNT as u64) as usize;
        let len = 1 + rng.below(700) as usize;
        let bytes: Vec<u8> = (written[n]..written[n] + len).map(|at| byte(n, at)).collect();
        written[n] += hosts.hosts[1].write(clients[n], &bytes);
        if round % 7 == 0 {
            hosts.run(MS);
        }
        if round % 1000 == 999 {
            // A lost segment comes with another number, or with other data behind it.
            hosts.loses = |_| false;
            hosts.run(10 * SECOND);
        }
        let n = rng.below(COUNT as u64) as usize;
        for n in if round % 1000 == 999 { 0..COUNT } else { n..n + 1 } {
            let id = servers[&port(&hosts, 1, clients[n])];
            let received = hosts.read(0, id);
            let expected = (read[n]..read[n] + received.len()).map(|at| byte(n, at));
            assert!(received.iter().copied().eq(expected), "round {round}, connection {n}");
            read[n] += received.len();
        }
    }
    assert_eq!(written, read);
}
