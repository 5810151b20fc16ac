//! Tests of the memif driver: two devices of ours over one socket, and peers that break every
//! promise.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, poll};
use sprat_proto::Rng;
use sprat_proto::device::{BURST, MAX_FRAME};
use sprat_proto::wire::memif::{
    AddRing, DESCRIPTORS, HEAD, Init, Message, VERSION, chars, ring_len,
};

use super::control::Rings;
use super::ring::{Laid, Place, Ring, Sink};
use super::*;
use crate::driver::shm::connected::tests::Copies;
use sprat_sys::fork::Child;
use sprat_sys::memory::{Region, Window};

mod left;

/// Number of polls after which a wait fails. No test needs nearly as many.
const MANY: usize = 2_000_000;

struct House {
    folder: tempfile::TempDir,
}

impl House {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn options(&self, role: Role) -> Options {
        Options::new(role, self.folder.path().join("memif"))
    }
}

fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..MANY {
        if done() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("it never came about");
}

fn linked(server: &mut Memif, client: &mut Memif, links: usize) {
    until(|| {
        server.poll_sockets();
        client.poll_sockets();
        server.links() == links && client.links() == 1
    });
}

fn pair(house: &House, tune: impl Fn(Options) -> Options) -> (Memif, Memif) {
    let mut server = Memif::open(tune(house.options(Role::Server))).unwrap();
    let mut client = Memif::open(tune(house.options(Role::Client))).unwrap();
    linked(&mut server, &mut client, 1);
    (server, client)
}

fn frame(to: Mac, from: Mac, rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes[..6].copy_from_slice(&to.0);
    bytes[6..12].copy_from_slice(&from.0);
    bytes
}

fn received(device: &mut Memif) -> Vec<Vec<u8>> {
    let n = device.recv_burst();
    (0..n).map(|i| device.frame(i).0.to_vec()).collect()
}

fn counter(device: &Memif, name: &str) -> u64 {
    let mut found = None;
    device.counters(&mut |n, v| {
        if n == name {
            found = Some(v);
        }
    });
    found.unwrap()
}

/// Sends frames of random lengths both ways until each has had `count`, in random bursts, some of
/// them in random parts.
fn exchange(server: &mut Memif, client: &mut Memif, count: usize, seed: u64) {
    let mut rng = Rng::seeded(seed);
    let max = server.info().max_send.min(client.info().max_send);
    let macs = [server.info().mac, client.info().mac];
    let sides = [server, client];
    let mut under_way: [std::collections::VecDeque<Vec<u8>>; 2] = Default::default();
    let mut done = [0; 2];
    while done[0] + done[1] < 2 * count {
        let side = rng.below(2) as usize;
        for _ in 0..rng.below(40) {
            let len = HEADER + rng.below((max - HEADER + 1) as u64) as usize;
            let bytes = frame(macs[1 - side], macs[side], &mut rng, len);
            let cut = HEADER + rng.below((len - HEADER + 1) as u64) as usize;
            let head = [42, 62, 14, 64][rng.below(4) as usize].min(len);
            let sent = if rng.below(2) == 0 {
                sides[side].send(&[&bytes[..cut], &[], &bytes[cut..]], Offload::None)
            } else {
                let cut = cut.max(head);
                let parts = [&bytes[head..cut], &[], &bytes[cut..]];
                sides[side].send_with_headers(
                    &Headers::from_bytes(&bytes[..head]),
                    &parts,
                    len - head,
                    Offload::None,
                )
            };
            match sent {
                Sent::Yes => under_way[1 - side].push_back(bytes),
                Sent::Full => break,
                Sent::Gone => unreachable!("memif comes again"),
            }
        }
        sides[side].flush();
        for side in [0, 1] {
            for bytes in received(sides[side]) {
                assert_eq!(Some(bytes), under_way[side].pop_front());
                done[side] += 1;
            }
        }
    }
    for side in sides {
        assert_eq!((counter(side, "frames_bad"), counter(side, "links_broken")), (0, 0));
    }
}

#[test]
fn frames_arrive_whole_and_in_order() {
    let house = House::new();
    let (mut server, mut client) = pair(&house, |o| o);
    exchange(&mut server, &mut client, 5000, 1);
}

#[test]
fn long_frames_take_several_buffers() {
    let house = House::new();
    let (mut server, mut client) = pair(&house, |o| Options { mtu: 65_535, ring: 64, ..o });
    assert_eq!(server.info().max_send, MAX_FRAME);
    exchange(&mut server, &mut client, 1000, 2);
    let house = House::new();
    let (mut server, mut client) = pair(&house, |o| Options { ring: 16, buffer: 128, ..o });
    exchange(&mut server, &mut client, 2000, 3);
}

#[test]
fn a_full_ring_says_so_and_loses_nothing() {
    let house = House::new();
    let (mut server, mut client) = pair(&house, |o| Options { ring: 16, ..o });
    let (to, from) = (server.info().mac, client.info().mac);
    let mut rng = Rng::seeded(4);
    for _ in 0..3 {
        let frames: Vec<_> = (0..16).map(|_| frame(to, from, &mut rng, 100)).collect();
        for bytes in &frames {
            assert_eq!(client.send(&[bytes], Offload::None), Sent::Yes);
        }
        assert_eq!(client.send(&[&frames[0]], Offload::None), Sent::Full);
        assert!(received(&mut server).is_empty(), "nothing shows before the flush");
        client.flush();
        assert_eq!(received(&mut server), frames);
    }
}

#[test]
fn what_cannot_be_sent_is_counted() {
    let house = House::new();
    let mut alone = Memif::open(house.options(Role::Server)).unwrap();
    assert_eq!(alone.send(&[&[0; 60]], Offload::None), Sent::Yes);
    assert_eq!(counter(&alone, "frames_unconnected"), 1);
    for bytes in [&[0; HEADER - 1][..], &[0; HEADER + 1501]] {
        assert_eq!(alone.send(&[bytes], Offload::None), Sent::Yes);
    }
    let checksum = Offload::Checksum { start: 34, offset: 6 };
    assert_eq!(alone.send(&[&[0; 60]], checksum), Sent::Yes);
    assert_eq!(counter(&alone, "frames_refused"), 3);
}

#[test]
fn a_server_is_a_switch() {
    let house = House::new();
    let (mut server, mut first) = pair(&house, |o| o);
    let mut second = Memif::open(house.options(Role::Client)).unwrap();
    linked(&mut server, &mut second, 2);
    let mut rng = Rng::seeded(5);
    let macs = [server.info().mac, first.info().mac, second.info().mac];
    let all = frame(Mac::BROADCAST, macs[0], &mut rng, 60);
    server.send(&[&all], Offload::None);
    server.flush();
    assert_eq!([received(&mut first), received(&mut second)], [[all.clone()], [all]]);
    for (n, client) in [(1, &mut first), (2, &mut second)] {
        client.send(&[&frame(macs[0], macs[n], &mut rng, 60)], Offload::None);
        client.flush();
    }
    // A burst may end with one peer's frames.
    let heard: usize = (0..2).map(|_| received(&mut server).len()).sum();
    assert_eq!(heard, 2);
    // The server knows the address of each client now; none takes another's address away.
    second.send(&[&frame(macs[0], macs[1], &mut rng, 60)], Offload::None);
    second.flush();
    assert_eq!(received(&mut server).len(), 1);
    let one = frame(macs[1], macs[0], &mut rng, 60);
    server.send(&[&one], Offload::None);
    server.flush();
    assert_eq!([received(&mut first), received(&mut second)], [vec![one], vec![]]);
}

/// Sends to a peer that takes no frames. The frame stood first in the stack's outbox, and no other
/// peer got an answer to its ARP.
#[test]
fn a_peer_that_takes_nothing_holds_up_nobody_else() {
    let house = House::new();
    let (mut server, mut stuck) = pair(&house, |o| o);
    let mut other = Memif::open(house.options(Role::Client)).unwrap();
    linked(&mut server, &mut other, 2);
    let mut rng = Rng::seeded(6);
    let macs = [server.info().mac, stuck.info().mac, other.info().mac];
    for (n, client) in [(1, &mut stuck), (2, &mut other)] {
        client.send(&[&frame(macs[0], macs[n], &mut rng, 60)], Offload::None);
        client.flush();
    }
    let heard: usize = (0..2).map(|_| received(&mut server).len()).sum();
    assert_eq!(heard, 2);
    let lost = frame(macs[1], macs[0], &mut rng, 60);
    for _ in 0..2 * server.options.ring {
        assert_eq!(server.send(&[&lost], Offload::None), Sent::Yes);
    }
    server.flush();
    assert!(counter(&server, "frames_unsent") > 0);
    let one = frame(macs[2], macs[0], &mut rng, 60);
    assert_eq!(server.send(&[&one], Offload::None), Sent::Yes);
    server.flush();
    assert_eq!(received(&mut other), [one]);
    // A caller that keeps its data gets an error, and tries again.
    assert!(!received(&mut stuck).is_empty());
}

#[test]
fn a_client_comes_back_to_a_server_that_was_gone() {
    let house = House::new();
    let (server, mut client) = pair(&house, |o| o);
    drop(server);
    until(|| {
        client.poll_sockets();
        client.links() == 0
    });
    assert_eq!(counter(&client, "links_ended"), 1);
    let mut server = Memif::open(house.options(Role::Server)).unwrap();
    linked(&mut server, &mut client, 1);
    exchange(&mut server, &mut client, 100, 6);
}

#[test]
fn sleepers_are_woken() {
    let house = House::new();
    let (mut server, mut client) = pair(&house, |o| o);
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let readable = |device: &Memif| {
        let mut fds = [PollFd::from_borrowed_fd(device.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&none)).unwrap() > 0
    };
    let bytes = frame(server.info().mac, client.info().mac, &mut Rng::seeded(7), 60);
    for _ in 0..3 {
        assert!(server.arm());
        assert!(!readable(&server));
        client.send(&[&bytes], Offload::None);
        client.flush();
        assert!(readable(&server));
        server.disarm();
        assert!(!readable(&server));
        // Awake, it is not told.
        client.send(&[&bytes], Offload::None);
        client.flush();
        assert!(!readable(&server));
        assert!(!server.arm(), "something is there");
        server.disarm();
        assert_eq!(received(&mut server).len(), 2);
    }
}

#[test]
fn a_living_server_keeps_its_name() {
    let house = House::new();
    let _server = Memif::open(house.options(Role::Server)).unwrap();
    let error = Memif::open(house.options(Role::Server)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn wrong_options_are_named() {
    let house = House::new();
    let options = || house.options(Role::Client);
    for (wrong, what) in [
        (Options { ring: 100, ..options() }, "power of two"),
        (Options { ring: 16, buffer: 64, ..options() }, "too little"),
        (Options { buffer: 100, ..options() }, "multiple of 64"),
        (Options { mtu: 100, ..options() }, "MTU"),
        (Options { secret: "x".repeat(25), ..options() }, "secret"),
    ] {
        let error = Memif::open(wrong).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_secret_keeps_others_out() {
    let house = House::new();
    let secret = |s: &str, role| Options { secret: s.to_owned(), ..house.options(role) };
    let mut server = Memif::open(secret("eel", Role::Server)).unwrap();
    let mut wrong = Memif::open(secret("cod", Role::Client)).unwrap();
    until(|| {
        server.poll_sockets();
        wrong.poll_sockets();
        wrong.reason().is_some()
    });
    assert_eq!(wrong.reason(), Some("the peer says: Incorrect secret"));
    let mut right = Memif::open(secret("eel", Role::Client)).unwrap();
    linked(&mut server, &mut right, 1);
}

/// A client that sends arbitrary messages.
struct Rude(Connected);

impl Rude {
    fn new(house: &House, server: &mut Memif) -> Self {
        let socket = connect_at(&house.folder.path().join("memif")).unwrap();
        server.poll_sockets();
        Self(socket)
    }

    fn say(&self, bytes: &[u8]) {
        let _ = rustix::net::send(&self.0, bytes, rustix::net::SendFlags::NOSIGNAL);
    }

    fn has_ended(&self) -> bool {
        let mut bytes = [0; 256];
        let mut ended = false;
        while !ended {
            match rustix::net::recv(&self.0, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => ended = true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        ended
    }
}

#[test]
fn a_peer_that_talks_out_of_turn_is_left() {
    let house = House::new();
    let (mut server, mut client) = pair(&house, |o| o);
    let name = chars("rude");
    let init = Init { version: VERSION, id: 0, mode: 0, secret: [0; 24], name };
    let ring =
        AddRing { to_server: true, index: 0, region: 0, offset: 0, log2: 4, private_header: 0 };
    let good = Message::Init(init).emit().to_vec();
    let cases: Vec<Vec<Vec<u8>>> = vec![
        vec![vec![0; 128]],
        vec![vec![1; 7]],
        vec![vec![1; 200]],
        vec![Message::Ack.emit().to_vec()],
        vec![Message::Connect(name).emit().to_vec()],
        vec![Message::AddRegion { index: 0, size: 4096 }.emit().to_vec()],
        vec![Message::Init(Init { version: 1, ..init }).emit().to_vec()],
        vec![Message::Init(Init { mode: 1, ..init }).emit().to_vec()],
        vec![good.clone(), good.clone()],
        vec![good.clone(), Message::Connect(name).emit().to_vec()],
        // Without the descriptors that belong to them.
        vec![good.clone(), Message::AddRegion { index: 0, size: 4096 }.emit().to_vec()],
        vec![good.clone(), Message::AddRing(ring).emit().to_vec()],
        vec![good.clone(), Message::AddRegion { index: 1, size: 4096 }.emit().to_vec()],
        vec![good.clone(), Message::AddRegion { index: 0, size: u64::MAX }.emit().to_vec()],
        vec![good, Message::AddRing(AddRing { index: 1, ..ring }).emit().to_vec()],
    ];
    for case in cases {
        let rude = Rude::new(&house, &mut server);
        for message in &case {
            rude.say(message);
        }
        until(|| {
            server.poll_sockets();
            rude.has_ended()
        });
    }
    assert_eq!(server.links(), 1);
    exchange(&mut server, &mut client, 100, 8);
}

#[test]
fn what_a_peer_writes_into_memory_ends_its_own_link_at_most() {
    let house = House::new();
    let (mut server, mut good) = pair(&house, |o| o);
    let mut rng = Rng::seeded(9);
    for round in 0..200 {
        let mut bad = Memif::open(Options { ring: 16, ..house.options(Role::Client) }).unwrap();
        linked(&mut server, &mut bad, 2);
        let link = bad.links.first_mut().unwrap();
        let memory = link.rings.as_mut().unwrap().source.memory();
        let header = Window::new(memory, 0, DESCRIPTORS);
        // Indices, flags and descriptors of both rings, and all that lies around them.
        let scribbles = if round % 2 == 0 { 4 } else { 400 };
        for _ in 0..scribbles {
            let value =
                if rng.chance(500_000) { rng.u64() } else { rng.u64() & 0x0000_00ff_0000_ffff };
            if round % 4 < 2 {
                // A descriptor like that, and an index that makes the server look at it.
                let at = DESCRIPTORS + 8 * rng.below(32) as usize;
                memory.word(at).store(value, Ordering::Relaxed);
                header.short(HEAD as u64).fetch_add(1, Ordering::Relaxed);
            } else {
                memory.word(8 * rng.below(2 * 48 + 16) as usize).store(value, Ordering::Relaxed);
            }
            let _ = received(&mut server);
            let _ = server
                .send(&[&frame(Mac::BROADCAST, server.info().mac, &mut rng, 1000)], Offload::None);
            server.flush();
            let _ = received(&mut good);
        }
        drop(bad);
        until(|| {
            server.poll_sockets();
            server.links() == 1
        });
        while !received(&mut good).is_empty() {}
    }
    assert!(counter(&server, "links_broken") > 10);
    assert!(counter(&server, "frames_bad") > 10);
    let (to, from) = (good.info().mac, server.info().mac);
    let bytes = frame(to, from, &mut rng, 1000);
    server.send(&[&bytes], Offload::None);
    server.flush();
    assert_eq!(received(&mut good), [bytes]);
}

/// Makes both ends of a ring to the server, in memory of its own.
fn ends() -> (Sink, Source) {
    let log2 = 7;
    let (at, each) = (ring_len(log2), 128);
    let region = Arc::new(Region::anonymous(at + (each << log2)).unwrap());
    let (regions, place) = ([region].into(), Place { region: 0, offset: 0, log2 });
    let ring =
        |laid| Ring::new(&regions, place, ring::interrupt().unwrap(), laid).expect("the ring fits");
    (Sink::new(ring(Some(Laid { at, each }))), Source::new(ring(None)))
}

#[test]
fn a_client_with_several_queues_is_heard_on_all_in_turns() {
    const EACH: usize = BURST + 20;
    let (mut sinks, mut sources): (Vec<_>, Vec<_>) = (0..3).map(|_| ends()).unzip();
    let (sink, source) = (ends().0, sources.remove(0));
    let mut rings = Rings { source, sink, more: sources, first: 0 };
    for (queue, sink) in sinks.iter_mut().enumerate() {
        for number in 0..EACH {
            let mut bytes = [0; 60];
            (bytes[0], bytes[1]) = (queue as u8, number as u8);
            assert_eq!(sink.put(&[&bytes], 60), Ok(true));
        }
        sink.flush();
    }
    let (mut found, mut firsts) = ([0; 3], Vec::new());
    while found != [EACH; 3] {
        let mut burst = Burst::default();
        assert_eq!(rings.take(&mut burst), Ok(0));
        let frames: Vec<_> = (0..burst.len()).map(|i| burst.frame(i)).collect();
        firsts.push(frames[0][0]);
        for frame in frames {
            let queue = usize::from(frame[0]);
            assert_eq!(usize::from(frame[1]), found[queue], "each once and in order");
            found[queue] += 1;
        }
    }
    assert_eq!(firsts[..3], [1, 2, 0], "nobody waits for who has much to say");
}

#[test]
fn files_that_can_shrink_are_refused() {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    let copy = || file.as_fd().try_clone_to_owned().unwrap();
    assert!(sprat_sys::memory::Sealed::unshrinkable(copy(), 4096).is_err());
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
    assert!(sprat_sys::memory::Sealed::unshrinkable(copy(), 4096).is_ok());
    assert!(sprat_sys::memory::Sealed::unshrinkable(copy(), 8193).is_err());
}

/// Ends a peer while copies of its sockets are open elsewhere, as in a process that the peer has
/// forked. The other side still sees its end.
#[test]
fn a_peer_that_ends_is_gone_whoever_has_its_sockets() {
    let house = House::new();
    let (server, mut client) = pair(&house, |o| o);
    let copies: Vec<OwnedFd> = [
        server.listener.as_ref().unwrap().as_fd().try_clone_to_owned(),
        server.links[0].control.socket().as_fd().try_clone_to_owned(),
    ]
    .into_iter()
    .collect::<Result<_, _>>()
    .unwrap();
    drop(server);
    client.poll_sockets();
    assert_eq!(client.links(), 0, "dropped");
    drop((client, copies));

    let handed = Copies::new();
    let child = Child::spawn(|| {
        let mut server = Memif::open(house.options(Role::Server)).unwrap();
        handed.give(server.listener.as_ref().unwrap().as_fd());
        until(|| {
            server.poll_sockets();
            server.links() == 1
        });
        handed.give(server.links[0].control.socket().as_fd());
        loop {
            server.recv_burst();
        }
    });
    let listener = handed.take();
    let mut client = Memif::open(house.options(Role::Client)).unwrap();
    until(|| {
        client.poll_sockets();
        client.links() == 1
    });
    let copies = (listener, handed.take());
    drop(child);
    client.poll_sockets();
    assert_eq!((client.links(), client.reason()), (0, Some("the peer has gone")));
    drop(Memif::open(house.options(Role::Server)).unwrap());
    drop(copies);
}

/// A client connects to a server that has no file descriptors left. Such a client kept the server
/// from sleeping.
#[test]
fn a_server_without_file_descriptors_turns_links_away_and_can_sleep() {
    let house = House::new();
    let flag = Region::anonymous(4096).unwrap();
    let child = Child::spawn(|| {
        let mut server = Memif::open(house.options(Role::Server)).unwrap();
        let _client = connect_at(&house.folder.path().join("memif")).unwrap();
        let mut hoard = Vec::new();
        while let Ok(fd) = ring::interrupt() {
            hoard.push(fd);
        }
        server.poll_sockets();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut sockets = [PollFd::from_borrowed_fd(server.fd(), PollFlags::IN)];
        assert_eq!(poll(&mut sockets, Some(&now)), Ok(0));
        hoard.clear();
        assert_eq!(counter(&server, "links_refused"), 1);
        flag.word(0).store(1, Ordering::Relaxed);
    });
    child.unwrap().wait();
    assert_eq!(flag.word(0).load(Ordering::Relaxed), 1);
}
