//! Tests that a driver sees a peer's death while copies of the peer's sockets are open elsewhere,
//! as in a process that the peer has forked. Tests that fork run beside these, so that without this
//! a dead server sometimes seemed to live (4 of 75 runs).

use std::os::fd::OwnedFd;

use rustix::process::Signal;

use super::*;
use crate::driver::shm::connected::tests::Copies;

/// All sockets of a driver over shared memory: of its connections, and its listening socket.
fn sockets(shm: &Shm) -> impl Iterator<Item = BorrowedFd<'_>> {
    shm.table.sockets().chain(shm.sockets.listener().map(AsFd::as_fd))
}

fn copies(shm: &Shm) -> Vec<OwnedFd> {
    sockets(shm).map(|fd| fd.try_clone_to_owned().unwrap()).collect()
}

/// Runs turns of the driver until it reports that a peer has gone; returns the peer's address.
fn gone(shm: &mut Shm) -> Addr {
    let mut gone = None;
    turn_until(&mut [shm], |all| {
        all[0].recv_burst();
        gone = all[0].gone();
        gone.is_some()
    });
    gone.unwrap()
}

/// Opens a client of a server that runs in a process of its own. The test gets copies of all
/// sockets of that process.
fn client_of_a_child(directory: &Path) -> (Child, Shm, Addr, Vec<OwnedFd>) {
    let handed = Copies::new();
    let child = Child::spawn(|| {
        let mut server = server(directory, "s");
        handed.give(server.sockets.listener().unwrap().as_fd());
        while server.counters.opened == 0 {
            server.recv_burst();
        }
        handed.give(sockets(&server).next().unwrap());
        loop {
            server.recv_burst();
        }
    });
    let mut copies = vec![handed.take()];
    let mut client = client(directory);
    let to = client.resolve(&locator("s")).unwrap();
    while client.counters.opened == 0 {
        client.recv_burst();
    }
    copies.push(handed.take());
    (child.unwrap(), client, to, copies)
}

#[test]
fn a_server_that_is_dropped_is_dead_whoever_has_its_sockets() {
    let directory = directory();
    let (server, mut client, to) = pair(directory.path());
    let mut waiting = super::client(directory.path());
    let to_waiting = waiting.resolve(&locator("s")).unwrap();
    let copies = copies(&server);
    assert_eq!(copies.len(), 2);
    drop(server);
    assert_eq!(gone(&mut client), to);
    assert_eq!(gone(&mut waiting), to_waiting, "it was not accepted yet");
    assert!(client.arm() && is_quiet(&client) && waiting.arm() && is_quiet(&waiting));
    drop(super::server(directory.path(), "s"));
    drop(copies);
}

#[test]
fn a_client_that_is_dropped_is_dead_whoever_has_its_sockets() {
    let directory = directory();
    let (mut server, mut client, to) = pair(directory.path());
    let copies = copies(&client);
    client.send(to, &[b"last words"]);
    drop(client);
    server.poll_sockets();
    let from = receive_burst(&mut server)[0].0;
    assert_eq!(gone(&mut server), from);
    assert!(server.arm() && is_quiet(&server));
    drop(copies);
}

#[test]
fn a_server_that_is_killed_is_dead_whoever_has_its_sockets() {
    let directory = directory();
    let (child, mut client, to, copies) = client_of_a_child(directory.path());
    client.poll_sockets();
    assert!(client.arm());
    drop(child);
    assert!(!is_quiet(&client), "its sleep ends");
    client.disarm();
    assert_eq!(gone(&mut client), to);
    assert!(client.arm() && is_quiet(&client));
    // Its name is free, and until a server takes it, the name resolves to none.
    let e = client.resolve(&locator("s")).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::ConnectionRefused);
    let mut second = server(directory.path(), "s");
    let to = client.resolve(&locator("s")).unwrap();
    while client.send(to, &[b"x"]) != Sent::Yes {
        second.recv_burst();
        client.recv_burst();
    }
    drop(copies);
}

#[test]
fn a_client_that_is_killed_is_dead_whoever_has_its_sockets() {
    let directory = directory();
    let mut server = server(directory.path(), "s");
    let handed = Copies::new();
    let child = Child::spawn(|| {
        let mut client = client(directory.path());
        let to = client.resolve(&locator("s")).unwrap();
        while client.send(to, &[b"last words"]) != Sent::Yes {
            client.recv_burst();
        }
        handed.give(sockets(&client).next().unwrap());
        loop {
            client.recv_burst();
        }
    });
    while server.counters.opened == 0 {
        server.recv_burst();
    }
    let copy = handed.take();
    drop(child);
    let from = receive_burst(&mut server)[0].0;
    assert_eq!(gone(&mut server), from);
    assert_eq!(server.connections(), 0);
    drop(copy);
}

/// A server whose process is stopped (SIGSTOP) counts as alive.
#[test]
fn a_server_that_is_stopped_lives() {
    let directory = directory();
    let (child, mut client, to, copies) = client_of_a_child(directory.path());
    child.signal(Signal::STOP).unwrap();
    for _ in 0..10 {
        client.poll_sockets();
        assert_eq!((client.recv_burst(), client.gone()), (0, None));
    }
    assert_eq!(client.send(to, &[b"when you can"]), Sent::Yes);
    drop(child);
    assert_eq!(gone(&mut client), to);
    drop(copies);
}
