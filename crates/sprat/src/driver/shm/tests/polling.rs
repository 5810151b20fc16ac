//! Tests of the rings that a turn polls: those of busy, quiet and inactive connections.

use super::*;
use crate::driver::shm::table::{
    ALWAYS_POLLED, INACTIVE_AFTER, PATIENCE, QUIET_AFTER, QUIET_EVERY,
};

#[test]
fn silent_connections_go_cold_and_come_back() {
    const CLIENTS: usize = ALWAYS_POLLED + 8;
    let directory = directory();
    let mut server = server(directory.path(), "s");
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| client(directory.path())).collect();
    let to: Vec<_> = clients.iter_mut().map(|c| c.resolve(&locator("s")).unwrap()).collect();
    while server.counters.opened < CLIENTS as u64 {
        server.recv_burst();
    }
    assert_eq!(server.table.due(true), CLIENTS);
    for client in &mut clients {
        while client.counters.opened < 1 {
            client.recv_burst();
        }
    }
    // The first one keeps talking.
    for _ in 0..=INACTIVE_AFTER + PATIENCE {
        clients[0].send(to[0], &[b"x"]);
        server.recv_burst();
    }
    assert!(server.burst.len() > 0);
    assert_eq!(server.table.due(true), 1);
    for (i, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.send(to[i], &[b"again"]), Sent::Yes);
        assert_eq!(client.counters.wakes, u64::from(i > 0));
        let got = receive(&mut server);
        assert_eq!(got[0].1, b"again");
        assert_eq!(server.send(got[0].0, &[b"answer"]), Sent::Yes);
        assert_eq!(receive(client)[0].1, b"answer");
    }
    assert!(server.table.due(true) > 1, "those that spoke last are polled");
}

/// The ring of a quiet connection is polled less often, and its next record waits for a few turns
/// at most.
#[test]
fn a_quiet_connection_is_polled_less_often_until_it_speaks() {
    let directory = directory();
    let mut server = server(directory.path(), "s");
    let mut clients: Vec<_> = (0..3).map(|_| client(directory.path())).collect();
    let to: Vec<_> = clients.iter_mut().map(|c| c.resolve(&locator("s")).unwrap()).collect();
    while server.counters.opened < 3 {
        server.recv_burst();
    }
    for client in &mut clients {
        while client.counters.opened < 1 {
            client.recv_burst();
        }
    }
    for _ in 0..QUIET_AFTER + PATIENCE {
        clients[1].send(to[1], &[b"x"]);
        server.recv_burst();
    }
    assert_eq!((server.table.due(false), server.table.due(true)), (1, 3));
    for (busy, i) in [(2, 0), (3, 2)] {
        clients[i].send(to[i], &[b"again"]);
        let turns = (1..).find(|_| server.recv_burst() > 0).unwrap();
        assert!(turns <= QUIET_EVERY, "it waited for {turns} turns");
        assert_eq!(server.datagram(0).1, b"again");
        assert_eq!(server.table.due(false), busy);
    }
}

/// Each connection knows its place in the list of polled ones, whichever connections end in
/// whatever order.
#[test]
fn connections_that_end_leave_the_others_polled() {
    const CLIENTS: usize = 12;
    let directory = directory();
    let mut server = server(directory.path(), "s");
    let mut rng = Rng::seeded(3);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| client(directory.path())).collect();
    let to: Vec<_> = clients.iter_mut().map(|c| c.resolve(&locator("s")).unwrap()).collect();
    let mut clients: Vec<_> = clients.into_iter().zip(to).collect();
    while server.counters.opened < CLIENTS as u64 {
        server.recv_burst();
    }
    // Some are quiet, some are busy.
    server.table.sort(QUIET_AFTER);
    while clients.len() > 1 {
        drop(clients.swap_remove(rng.below(clients.len() as u64) as usize));
        turn_until(&mut [&mut server], |all| {
            all[0].recv_burst();
            all[0].gone().is_some()
        });
        assert_eq!(server.table.due(true), clients.len());
        for (client, to) in &mut clients {
            while client.send(*to, &[b"here"]) != Sent::Yes {
                client.recv_burst();
            }
            assert_eq!(receive(&mut server)[0].1, b"here");
        }
        if clients.len() == CLIENTS / 2 {
            server.table.sort(0);
            server.table.sort(QUIET_AFTER);
            assert_eq!(server.table.due(false), 0, "all are quiet");
        }
    }
}
