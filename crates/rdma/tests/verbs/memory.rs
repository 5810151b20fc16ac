//! Tests of memory windows, fast registration, and the end of objects that open memory to a peer.

use super::*;

#[test]
fn a_window_opens_part_of_a_region_until_the_peer_invalidates_it() {
    WAYS.into_iter().for_each(a_window_opens);
}

fn a_window_opens(way: Way) {
    let [a, b] = connected(way, Options::default(), 4096);
    let window = b.domain.window(WindowKind::OneQp).unwrap();
    let inner = b.domain.register(4096, Access { bind: true, ..Access::LOCAL }).unwrap();
    let access = Access { remote_write: true, ..Access::default() };
    let region = inner.key().unwrap();
    let bind = SendOp::Bind { window: window.tag(), region, addr: 1000, len: 100, access };
    // The window's new key is in its tag.
    b.pair.post_send(SendRequest::bare(1, bind)).unwrap();
    let bound = b.done();
    assert_eq!(bound.completed, Completed::Bind);
    let tag = window.tag();
    std::thread::scope(|s| {
        b.recv(2, 0..64);
        let theirs = s.spawn(|| b.done());
        a.memory.write(0, b"through the window").unwrap();
        a.send(10, SendOp::Write(Remote { stag: tag, addr: 1010 }), 0..18);
        a.send(11, SendOp::SendInvalidate(tag), 0..0);
        a.done();
        a.done();
        assert_eq!(theirs.join().unwrap().invalidated, Some(tag));
    });
    let mut text = [0; 18];
    inner.read(1010, &mut text).unwrap();
    assert_eq!(&text, b"through the window");
    // The window is closed now.
    a.send(12, SendOp::Write(Remote { stag: tag, addr: 1010 }), 0..18);
    std::thread::scope(|s| {
        s.spawn(|| b.pair.disconnected(SOON));
        assert!(a.pair.disconnected(SOON));
    });
    assert!(matches!(
        b.pair.connection(),
        Connection::Not(ConnectError::Disconnected { ours: true, .. })
    ));
}

#[test]
fn fast_registration_opens_memory_by_a_work_request() {
    WAYS.into_iter().for_each(fast_registration_opens);
}

fn fast_registration_opens(way: Way) {
    let [a, b] = connected(way, Options::default(), 4096);
    let (memory, fast) = (b.domain.allocate(4096).unwrap(), b.domain.fast_region().unwrap());
    let access = Access { remote_read: true, ..Access::LOCAL };
    let stag = fast.tag();
    memory.write(100, b"fast").unwrap();
    let register = SendOp::FastRegister {
        stag,
        region: memory.number(),
        offset: 96,
        base: 0x1000,
        len: 64,
        access,
    };
    b.pair.post_send(SendRequest::bare(1, register)).unwrap();
    assert_eq!(b.done().completed, Completed::FastRegister);
    std::thread::scope(|s| {
        b.recv(2, 0..0);
        let theirs = s.spawn(|| b.done());
        a.send(10, SendOp::Read(Remote { stag, addr: 0x1004 }), 0..4);
        let read = a.done();
        assert_eq!((read.completed, read.len), (Completed::Read, 4));
        a.send(11, SendOp::Send, 0..0);
        a.done();
        assert_eq!(theirs.join().unwrap().id, 2);
    });
    let mut text = [0; 4];
    a.memory.read(0, &mut text).unwrap();
    assert_eq!(&text, b"fast");
}

/// The object that opens memory to a peer and that the test drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opens {
    Window(WindowKind),
    Fast,
    /// The region that a window is bound to; the test drops the region and keeps the window.
    RegionOf(WindowKind),
}

/// Binding and fast registration give a tag another key. Dropping the tag's owner has to invalidate
/// it under that key. Otherwise peers went on to write, and neither the tag nor the domain was ever
/// freed, which shows as a panic here.
#[test]
fn nothing_is_placed_after_what_opened_memory_is_dropped() {
    let all = [
        Opens::Window(WindowKind::Domain),
        Opens::Window(WindowKind::OneQp),
        Opens::Fast,
        Opens::RegionOf(WindowKind::Domain),
        Opens::RegionOf(WindowKind::OneQp),
    ];
    for (opens, way) in all.into_iter().flat_map(|opens| WAYS.map(|way| (opens, way))) {
        let [a, b] = connected(way, Options::default(), 4096);
        let mut inner =
            Some(b.domain.register(64, Access { bind: true, ..Access::LOCAL }).unwrap());
        let (mut window, mut fast) = (None, None);
        let (tag, open) = match opens {
            Opens::Window(kind) | Opens::RegionOf(kind) => {
                let made = window.insert(b.domain.window(kind).unwrap());
                let tag = Stag(made.tag().0 ^ 0x55);
                let access = Access { remote_write: true, ..Access::default() };
                let region = inner.as_ref().and_then(MemoryRegion::key).unwrap();
                (tag, SendOp::Bind { window: tag, region, addr: 0, len: 64, access })
            }
            Opens::Fast => {
                let tag = Stag(fast.insert(b.domain.fast_region().unwrap()).tag().0 ^ 0x55);
                let region = inner.as_ref().map(MemoryRegion::number).unwrap();
                let access = Access { remote_write: true, ..Access::LOCAL };
                (
                    tag,
                    SendOp::FastRegister { stag: tag, region, offset: 0, base: 0, len: 64, access },
                )
            }
        };
        b.pair.post_send(SendRequest::bare(1, open)).unwrap();
        b.done();
        a.memory.write(0, b"before").unwrap();
        let to = Remote { stag: tag, addr: 0 };
        b.recv(2, 0..64);
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!(b.done().id, 2));
            a.send(10, SendOp::Write(to), 0..6);
            a.send(11, SendOp::Send, 0..6);
            a.done();
            a.done();
        });
        let mut text = [0; 6];
        inner.as_ref().unwrap().read(0, &mut text).unwrap();
        assert_eq!(&text, b"before", "{opens:?}");

        match opens {
            Opens::Window(_) => drop(window.take()),
            Opens::Fast => drop(fast.take()),
            Opens::RegionOf(_) => drop(inner.take()),
        }
        a.memory.write(0, b"behind").unwrap();
        a.send(12, SendOp::Write(to), 0..6);
        std::thread::scope(|s| {
            s.spawn(|| b.pair.disconnected(SOON));
            assert!(a.pair.disconnected(SOON));
        });
        let ended = ConnectError::Disconnected { cause: Some(Cause::TAGGED_STAG), ours: false };
        assert_eq!(a.pair.connection(), Connection::Not(ended), "{opens:?}");
        if let Some(inner) = &inner {
            inner.read(0, &mut text).unwrap();
            assert_eq!(&text, b"before", "{opens:?}");
        }
    }
}

#[test]
fn nothing_is_placed_after_a_region_is_dropped() {
    WAYS.into_iter().for_each(nothing_is_placed);
}

fn nothing_is_placed(way: Way) {
    let [a, b] = connected(way, Options::default(), 4096);
    let gone = b.domain.register(4096, Access::ALL).unwrap();
    let to = gone.remote(0);
    drop(gone);
    a.send(1, SendOp::Write(to), 0..64);
    std::thread::scope(|s| {
        s.spawn(|| b.pair.disconnected(SOON));
        assert!(a.pair.disconnected(SOON));
    });
    let ConnectError::Disconnected { cause: Some(cause), ours: false } =
        a.pair.connected(SOON).unwrap_err()
    else {
        panic!("the peer says why")
    };
    assert_eq!(cause, Cause::TAGGED_STAG);
    assert_eq!(a.pair.post_send(SendRequest::new(2, SendOp::Send, a.memory.sge(0..1))), Ok(()));
    let statuses: Vec<Status> = std::iter::from_fn(|| a.queue.poll()).map(|c| c.status).collect();
    assert_eq!(statuses.last(), Some(&Status::Flushed));
}
