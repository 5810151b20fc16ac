use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use tempfile::TempDir;

use super::path::is_deserted_at;
use super::sockets::NOW;
use super::*;
use sprat_proto::Rng;
use sprat_proto::datagrams::BURST;
use sprat_sys::fork::Child;

mod death;
mod left;
mod polling;

fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    directory
}

fn options(directory: &Path) -> Options {
    Options { directory: Some(directory.into()), ring_bytes: ring::MIN_SIZE, ..Options::default() }
}

fn locator(name: &str) -> Locator {
    format!("fast+shm:name={name}").parse().unwrap()
}

fn server(directory: &Path, name: &str) -> Shm {
    Shm::listen(&locator(name), options(directory)).unwrap()
}

fn client(directory: &Path) -> Shm {
    Shm::client(options(directory)).unwrap()
}

/// Runs turns of all drivers until `done`; fails after many turns.
fn turn_until(all: &mut [&mut Shm], mut done: impl FnMut(&mut [&mut Shm]) -> bool) {
    for _ in 0..100_000 {
        if done(all) {
            return;
        }
    }
    panic!("it never came: {all:?}");
}

/// Opens a connection between a server's and a client's driver. Returns both, and the client's
/// address of the server.
fn pair(directory: &Path) -> (Shm, Shm, Addr) {
    let (mut server, mut client) = (server(directory, "s"), client(directory));
    let to = client.resolve(&locator("s")).unwrap();
    turn_until(&mut [&mut server, &mut client], |all| {
        all.iter_mut().for_each(|shm| assert_eq!(shm.recv_burst(), 0));
        all[1].counters.opened == 1
    });
    (server, client, to)
}

/// Receives until a burst is empty again, and returns all datagrams of these bursts.
fn receive(shm: &mut Shm) -> Vec<(Addr, Vec<u8>)> {
    let mut all = receive_burst(shm);
    while shm.burst.len() > 0 {
        let n = shm.recv_burst();
        all.extend((0..n).map(|i| whole(shm, i)));
    }
    all
}

/// Returns the sender and all bytes of datagram `i` of the burst, with those that the driver has
/// left in the ring.
fn whole(shm: &Shm, i: usize) -> (Addr, Vec<u8>) {
    let (from, bytes) = shm.datagram(i);
    let mut bytes = bytes.to_vec();
    shm.append_left(i, 0, &mut bytes);
    (from, bytes)
}

/// Receives until a burst has datagrams, and returns them.
fn receive_burst(shm: &mut Shm) -> Vec<(Addr, Vec<u8>)> {
    for _ in 0..100_000 {
        let n = shm.recv_burst();
        if n > 0 {
            return (0..n).map(|i| whole(shm, i)).collect();
        }
    }
    panic!("nothing arrived: {shm:?}");
}

fn wait_for(shm: &Shm) {
    poll(&mut [PollFd::from_borrowed_fd(shm.fd(), PollFlags::IN)], None).unwrap();
}

fn is_quiet(shm: &Shm) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(shm.fd(), PollFlags::IN)], Some(&NOW)).unwrap() == 0
}

#[test]
fn datagrams_go_there_and_back() {
    let directory = directory();
    let (mut server, mut client, to) = pair(directory.path());
    assert_eq!(server.locator().as_deref(), Some("fast+shm:name=s"));
    assert_eq!(client.locator(), None);
    assert_eq!(client.resolve(&locator("s")).unwrap(), to, "one connection to one server");
    assert!(client.lossless() && client.max_payload() == 65_536);

    let long: Vec<u8> = (0..client.max_payload()).map(|i| i as u8).collect();
    assert_eq!(client.send(to, &[b"he", b"", b"llo"]), Sent::Yes);
    assert_eq!(client.send(to, &[&long]), Sent::Yes);
    client.flush();
    let got = receive(&mut server);
    assert_eq!(got.len(), 2);
    assert_eq!(got[0].1, b"hello");
    assert!(got[1].1 == long);
    let from = got[0].0;
    assert_eq!(server.send(from, &[b"back"]), Sent::Yes);
    assert_eq!(receive(&mut client), [(to, b"back".to_vec())]);
    assert_eq!((server.gone(), client.gone()), (None, None));
}

#[test]
fn before_the_connection_is_open_there_is_no_room() {
    let directory = directory();
    let (mut server, mut client) = (server(directory.path(), "s"), client(directory.path()));
    let to = client.resolve(&locator("s")).unwrap();
    assert_eq!(client.send(to, &[b"early"]), Sent::Full);
    assert_eq!(client.send(Addr::Local(0), &[b"nobody"]), Sent::Gone);
    let sent = |all: &mut [&mut Shm]| {
        all[0].recv_burst();
        all[1].recv_burst();
        all[1].send(to, &[b"now"]) == Sent::Yes
    };
    turn_until(&mut [&mut server, &mut client], sent);
    assert_eq!(receive(&mut server)[0].1, b"now");
}

#[test]
fn a_full_ring_pushes_back_and_loses_nothing() {
    let directory = directory();
    let (mut server, mut client, to) = pair(directory.path());
    let (mut sent, mut received) = (0u32, 0u32);
    for _ in 0..20 {
        let payload = [7; 1000];
        while client.send(to, &[&sent.to_be_bytes(), &payload]) == Sent::Yes {
            sent += 1;
        }
        assert!(sent - received > 200, "{} in flight", sent - received);
        for (_, bytes) in receive(&mut server) {
            assert_eq!(bytes[..4], received.to_be_bytes());
            received += 1;
        }
    }
    while received < sent {
        for (_, bytes) in receive(&mut server) {
            assert_eq!(bytes[..4], received.to_be_bytes());
            received += 1;
        }
    }
    assert_eq!(server.recv_burst(), 0);
}

#[test]
fn a_burst_takes_from_every_connection_in_turn() {
    let directory = directory();
    let mut server = server(directory.path(), "s");
    let mut clients: Vec<_> = (0..3).map(|_| client(directory.path())).collect();
    let to: Vec<_> = clients.iter_mut().map(|c| c.resolve(&locator("s")).unwrap()).collect();
    while server.counters.opened < 3 {
        assert_eq!(server.recv_burst(), 0);
    }
    for (i, client) in clients.iter_mut().enumerate() {
        while client.counters.opened < 1 {
            client.recv_burst();
        }
        for _ in 0..if i == 0 { 100 } else { 5 } {
            assert_eq!(client.send(to[i], &[&[i as u8]]), Sent::Yes);
        }
    }
    let mut counts = |n: usize| {
        let mut counts = [0; 3];
        assert_eq!(server.recv_burst(), n);
        (0..n).for_each(|i| counts[server.datagram(i).1[0] as usize] += 1);
        counts
    };
    assert_eq!(counts(3), [1, 1, 1], "what may be alone is not kept waiting");
    assert_eq!(counts(BURST), [BURST - 8, 4, 4], "a flood leaves the others their share");
}

#[test]
fn whoever_dozes_is_woken_by_a_datagram() {
    let directory = directory();
    let (mut server, mut client, to) = pair(directory.path());
    for round in 0..10 {
        server.poll_sockets();
        assert!(server.arm(), "round {round}");
        assert!(is_quiet(&server));
        client.send(to, &[b"one"]);
        client.send(to, &[b"two"]);
        assert_eq!(client.counters.wakes, round + 1, "one wake for one sleep");
        wait_for(&server);
        server.disarm();
        assert_eq!(receive(&mut server).len(), 2);
        // What has arrived keeps it from sleeping.
        client.send(to, &[b"three"]);
        assert!(!server.arm());
        assert_eq!(receive(&mut server).len(), 1);
    }
}

#[test]
fn whoever_waits_for_room_is_woken_when_there_is() {
    let directory = directory();
    let (mut server, mut client, to) = pair(directory.path());
    let payload = [1; 5000];
    while client.send(to, &[&payload]) == Sent::Yes {}
    client.poll_sockets();
    assert!(client.arm());
    while server.counters.wakes == 0 {
        assert!(server.recv_burst() > 0, "all was read and nobody was woken");
    }
    wait_for(&client);
    client.disarm();
    assert_eq!(client.send(to, &[&payload]), Sent::Yes);
    assert!(client.arm());
}

#[test]
fn the_end_of_a_peer_is_told_after_what_it_had_sent() {
    let directory = directory();
    let (mut server, mut client, to) = pair(directory.path());
    client.send(to, &[b"last words"]);
    drop(client);
    server.poll_sockets();
    assert!(!server.arm());
    let got = receive_burst(&mut server);
    assert_eq!(got[0].1, b"last words");
    assert_eq!(server.gone(), None);
    assert_eq!(server.recv_burst(), 0);
    assert_eq!(server.gone(), Some(got[0].0));
    assert_eq!(server.gone(), None);
    assert_eq!(server.send(got[0].0, &[b"too late"]), Sent::Gone);
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_server_that_comes_again_is_another_peer() {
    let directory = directory();
    let (first, mut client, to) = pair(directory.path());
    drop(first);
    assert!(!directory.path().join("s").exists(), "no socket file is left");
    client.poll_sockets();
    while client.recv_burst() > 0 {}
    assert_eq!(client.gone(), Some(to));
    let e = client.resolve(&locator("s")).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::NotFound);
    assert!(e.to_string().contains(directory.path().join("s").to_str().unwrap()), "{e}");
    let _second = server(directory.path(), "s");
    assert_ne!(client.resolve(&locator("s")).unwrap(), to);
}

#[test]
fn a_server_that_never_answers_leaves_the_client_waiting_until_it_ends() {
    let directory = directory();
    let mut client = client(directory.path());
    let silent = Listener::bind(directory.path(), "s").unwrap();
    let to = client.resolve(&locator("s")).unwrap();
    client.poll_sockets();
    assert_eq!(client.gone(), None);
    assert!(client.arm());
    drop(silent);
    wait_for(&client);
    client.disarm();
    client.recv_burst();
    assert_eq!(client.gone(), Some(to));
}

#[test]
fn a_name_has_one_living_server_and_a_dead_ones_file_is_replaced() {
    let directory = directory();
    let path = directory.path().join("s");
    let first = server(directory.path(), "s");
    let e = Shm::listen(&locator("s"), options(directory.path())).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::AddrInUse);
    assert!(e.to_string().contains(path.to_str().unwrap()), "{e}");
    assert!(!is_deserted_at(&path));
    drop(first);
    assert!(!is_deserted_at(&path), "it may have been another server's");
    // A server that is killed leaves its file.
    let child = Child::spawn(|| {
        let _server = server(directory.path(), "s");
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
            .unwrap();
    });
    child.unwrap().wait();
    assert!(path.exists() && is_deserted_at(&path));
    assert_eq!(
        client(directory.path()).resolve(&locator("s")).unwrap_err().kind(),
        io::ErrorKind::ConnectionRefused
    );
    let second = server(directory.path(), "s");
    assert!(!is_deserted_at(&path));
    assert!(client(directory.path()).resolve(&locator("s")).is_ok());
    drop(second);
    // What is no socket is not ours to replace.
    fs::write(&path, "data").unwrap();
    assert_eq!(
        Shm::listen(&locator("s"), options(directory.path())).unwrap_err().kind(),
        io::ErrorKind::AddrInUse
    );
    assert_eq!(fs::read(&path).unwrap(), b"data");
}

#[test]
fn a_directory_that_others_may_enter_is_not_used() {
    let directory = directory();
    let inner = directory.path().join("sprat");
    drop(server(&inner, "s"));
    assert_eq!(fs::metadata(&inner).unwrap().mode() & 0o777, 0o700);
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o755)).unwrap();
    for e in [
        Shm::listen(&locator("s"), options(&inner)).unwrap_err(),
        client(&inner).resolve(&locator("s")).unwrap_err(),
    ] {
        assert_eq!(e.kind(), io::ErrorKind::PermissionDenied);
        assert!(e.to_string().contains(inner.to_str().unwrap()), "{e}");
    }
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&inner, &link).unwrap();
    assert!(Shm::listen(&locator("s"), options(&link)).is_err());
}

#[test]
fn peers_of_other_protocols_and_beyond_the_limit_are_refused() {
    let directory = directory();
    let few = Options { max_connections: 1, ..options(directory.path()) };
    let mut server = Shm::listen(&locator("s"), few).unwrap();
    let mut speaks = |words: &[u8]| {
        let socket = path::connect(directory.path(), "s").unwrap();
        rustix::net::send(&socket, words, rustix::net::SendFlags::empty()).unwrap();
        server.poll_sockets();
        server.poll_sockets();
        let mut answer = [0; 64];
        let n =
            rustix::net::recv(&socket, &mut answer, rustix::net::RecvFlags::DONTWAIT).unwrap().0;
        (answer[..n].to_vec(), server.connections(), server.counters.refused)
    };
    assert_eq!(speaks(b"GET / HTTP/1.1"), (vec![], 0, 1));
    assert_eq!(speaks(&[0; hello::LEN]), (vec![], 0, 2));
    let mut newer = hello::of_client(hello::Kind::Datagrams, true);
    newer[5] = 9;
    assert_eq!(
        speaks(&newer),
        (hello::Refusal::Version.answer(hello::Kind::Datagrams).unwrap().to_vec(), 0, 3)
    );

    let (mut a, mut b) = (client(directory.path()), client(directory.path()));
    let (_, to_b) = (a.resolve(&locator("s")).unwrap(), b.resolve(&locator("s")).unwrap());
    server.poll_sockets();
    a.poll_sockets();
    b.poll_sockets();
    assert_eq!((a.counters.opened, b.counters.opened), (1, 0));
    assert_eq!(b.gone(), Some(to_b));
    assert_eq!(server.counters.refused, 4);
}

/// Clients that connected and sent no hello once kept their places as long as they lived, and then
/// no other client got one.
#[test]
fn a_client_that_says_nothing_loses_its_place() {
    let directory = directory();
    let few = Options { max_connections: 1, ..options(directory.path()) };
    let mut server = Shm::listen(&locator("s"), few).unwrap();
    let silent = path::connect(directory.path(), "s").unwrap();
    server.poll_sockets();
    assert_eq!(server.connections(), 1);
    let due = server.deadline().unwrap();
    server.tick(Instant::from_ns(due.as_ns() - 1));
    assert_eq!((server.connections(), server.counters.refused), (1, 0));
    server.tick(due);
    assert_eq!((server.connections(), server.counters.refused, server.deadline()), (0, 1, None));
    assert_eq!(
        rustix::net::recv(&silent, &mut [0; 1], rustix::net::RecvFlags::DONTWAIT).unwrap().0,
        0
    );
    // One that said its hello in time stays.
    let mut good = client(directory.path());
    good.resolve(&locator("s")).unwrap();
    server.poll_sockets();
    good.poll_sockets();
    assert_eq!(good.counters.opened, 1);
    server.tick(Instant::NEVER);
    assert_eq!((server.connections(), server.counters.refused), (1, 1));
}

#[test]
fn damage_ends_one_connection_only() {
    let directory = directory();
    let (mut server, mut good, to) = pair(directory.path());
    let mut bad = client(directory.path());
    let server_of_bad = bad.resolve(&locator("s")).unwrap();
    server.poll_sockets();
    bad.poll_sockets();
    let Addr::Local(id) = server_of_bad else { unreachable!() };
    let State::Open(rings) = &mut bad.table.get(id).unwrap().state else { panic!("not open") };
    rings.tx.forge(MAX_PAYLOAD as u64 + 1);
    let mut gone = None;
    turn_until(&mut [&mut server], |all| {
        assert_eq!(all[0].recv_burst(), 0);
        gone = all[0].gone();
        gone.is_some()
    });
    assert_eq!(server.counters.broken, 1);
    good.send(to, &[b"fine"]);
    assert_eq!(receive(&mut server)[0].1, b"fine");
    bad.poll_sockets();
    while bad.recv_burst() > 0 {}
    assert_eq!(bad.gone(), Some(server_of_bad));
}

/// A client is killed at a random point, as likely in the middle of a push as anywhere, twenty
/// times. The server goes on with its other client and keeps nothing of the killed one.
#[test]
fn a_client_killed_at_any_point_harms_only_itself() {
    let directory = directory();
    let (mut server, mut good, to) = pair(directory.path());
    // Other tests run in this process, so only what bears the ring's name counts.
    let maps =
        || fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:sprat-ring").count();
    let mut rng = Rng::seeded(9);
    for round in 0..20u32 {
        let child = Child::spawn(|| {
            let mut bad = client(directory.path());
            let to = bad.resolve(&locator("s")).unwrap();
            let payload = vec![round as u8; 3000];
            loop {
                bad.recv_burst();
                bad.send(to, &[&payload]);
            }
        })
        .unwrap();
        let (mut patience, mut received, mut killed) = (rng.below(200), 0, None);
        let mut child = Some(child);
        let gone = loop {
            for i in 0..server.recv_burst() {
                let (from, bytes) = server.datagram(i);
                assert!(bytes.len() == 3000 && bytes.iter().all(|&b| b == round as u8));
                killed = Some(from);
                received += 1;
            }
            patience = patience.saturating_sub(u64::from(received > 0));
            if patience == 0 {
                drop(child.take());
            }
            if let Some(gone) = server.gone() {
                break gone;
            }
        };
        assert_eq!(Some(gone), killed);
        assert_eq!(good.send(to, &[b"still here"]), Sent::Yes);
        assert_eq!(receive(&mut server)[0].1, b"still here");
        assert_eq!(server.connections(), 1, "round {round}");
    }
    assert_eq!(server.counters().broken, 0);
    assert!(maps() >= 2);
}

/// Runs `body` in a process of its own, where no other test opens or maps anything. Returns false
/// if it panicked.
fn alone(body: impl FnOnce()) -> bool {
    let flag = sprat_sys::memory::Region::anonymous(4096).unwrap();
    let child = Child::spawn(|| {
        body();
        flag.word(0).store(1, std::sync::atomic::Ordering::Relaxed);
    });
    child.unwrap().wait();
    flag.word(0).load(std::sync::atomic::Ordering::Relaxed) == 1
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    let directory = directory();
    let done = alone(|| {
        let open = || {
            let fds = fs::read_dir("/proc/self/fd").unwrap().count();
            let maps =
                fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:sprat-ring").count();
            (fds, maps)
        };
        let before = open();
        let mut server = server(directory.path(), "s");
        let alone = open();
        for _ in 0..50 {
            let mut client = client(directory.path());
            let to = client.resolve(&locator("s")).unwrap();
            while client.send(to, &[b"x"]) != Sent::Yes {
                server.recv_burst();
                client.recv_burst();
            }
            assert_eq!(open().1, alone.1 + 2, "one mapping a side");
            assert_eq!(open().0, alone.0 + 5, "a socket and a pidfd a side, the client's epoll");
            drop(client);
            while server.gone().is_none() {
                server.recv_burst();
            }
            assert_eq!(open(), alone);
        }
        drop(server);
        assert_eq!(open(), before);
    });
    assert!(done);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_server_without_file_descriptors_turns_clients_away_and_can_sleep() {
    let directory = directory();
    let done = alone(|| {
        let mut server = server(directory.path(), "s");
        let mut clients: Vec<_> = (0..3).map(|_| client(directory.path())).collect();
        let all: Vec<_> = clients.iter_mut().map(|c| c.resolve(&locator("s")).unwrap()).collect();
        let mut hoard = Vec::new();
        while let Some(fd) = path::reserve() {
            hoard.push(fd);
        }
        server.poll_sockets();
        assert_eq!((server.counters.refused, server.connections()), (3, 0));
        assert!(server.arm() && is_quiet(&server));
        server.disarm();
        hoard.clear();
        for (client, to) in clients.iter_mut().zip(all) {
            client.poll_sockets();
            assert_eq!(client.gone(), Some(to));
            let again = client.resolve(&locator("s")).unwrap();
            while client.send(again, &[b"x"]) != Sent::Yes {
                server.recv_burst();
                client.recv_burst();
            }
        }
    });
    assert!(done);
}
