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
