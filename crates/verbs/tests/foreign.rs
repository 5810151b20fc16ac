//! Tests of registered memory that the program unmaps or protects: the outcome at the requester and
//! at its peer.

use std::ptr::null_mut;
use std::time::Duration;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use sprat_rdma::{
    AcceptOptions, Access, Cause, CompletionQueue, ConnectOptions, Copies, Device, Error, Foreign,
    ForeignRegion, Options, PairOptions, PostError, ProtectionDomain, QueuePair, RecvRequest,
    Remote, SendFlags, SendOp, SendRequest, Sge, Status, Threading, WindowKind, is_written,
};

const SOON: Option<Duration> = Some(Duration::from_secs(20));
const PAGE: usize = 4096;
const LEN: usize = 64 * PAGE;

/// Pages that the program maps, and unmaps while they are registered.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Self {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: A new mapping does not touch existing memory.
        let base = unsafe { mmap_anonymous(null_mut(), LEN, rights, flags) };
        Self(base.unwrap().cast())
    }

    /// Replaces all but the first `keep` pages by inaccessible ones. Their addresses stay in use,
    /// so no other thread maps memory there.
    fn cut(&self, keep: usize) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: No reference to this memory exists, and the test owns all of it.
        unsafe {
            let rest = self.0.add(keep * PAGE).cast();
            mmap_anonymous(rest, LEN - keep * PAGE, ProtFlags::empty(), flags).unwrap();
        }
    }

    fn protect(&self, rights: MprotectFlags) {
        // SAFETY: No reference to this memory exists.
        unsafe { mprotect(self.0.cast(), LEN, rights) }.unwrap();
    }

    /// Creates the memory that a registration with these rights takes.
    fn lend(&self, access: Access) -> std::io::Result<Foreign> {
        // SAFETY: Only volatile accesses reach this memory.
        unsafe { Foreign::new(self.0, LEN, is_written(access)) }
    }

    fn fill(&self, with: u8) {
        // SAFETY: All pages are mapped, and no reference to them exists.
        unsafe { self.0.write_bytes(with, LEN) }
    }

    fn byte(&self, at: usize) -> u8 {
        // SAFETY: The page is mapped, and the completion of the peer's Write was received.
        unsafe { self.0.add(at).read_volatile() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: Nothing uses the memory any more.
        let _ = unsafe { munmap(self.0.cast(), LEN) };
    }
}

struct Side {
    domain: ProtectionDomain,
    queue: CompletionQueue,
    pair: QueuePair,
    /// The registered region. It is dropped before the memory that it names.
    region: ForeignRegion,
    pages: Pages,
}

fn register(
    domain: &ProtectionDomain,
    pages: &Pages,
    access: Access,
) -> Result<ForeignRegion, Error> {
    domain.register_foreign(pages.lend(access)?, pages.0.addr() as u64, access)
}

impl Side {
    fn new(options: Options) -> (Device, Self) {
        let device = Device::open(options).unwrap();
        let domain = device.protection_domain().unwrap();
        let queue = device.completion_queue(64).unwrap();
        let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
        let pages = Pages::new();
        let region = register(&domain, &pages, Access::ALL).unwrap();
        (device, Self { domain, queue, pair, region, pages })
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            stag: self.region.key(),
            addr: (self.pages.0.addr() + offset) as u64,
            len: len as u32,
        }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote { stag: self.region.key(), addr: (self.pages.0.addr() + offset) as u64 }
    }

    fn post(&self, id: u64, op: SendOp, sge: Sge) {
        self.pair.post_send(SendRequest::new(id, op, sge)).unwrap();
    }

    /// Waits for the side's next completion; returns its id and status.
    fn next(&self) -> (u64, Status) {
        let completion = self.queue.wait(SOON).expect("a completion in time");
        (completion.id, completion.status)
    }
}

/// Connects two sides of a test. Each has a thread of its own.
fn connected(options: Options) -> [Side; 2] {
    let options = Options { threading: Threading::ReceiveThread, ..options };
    let [(_, a), (device, b)] = [0, 1].map(|_| Side::new(options));
    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let depths = ConnectOptions { ird: 8, ord: 8, ..ConnectOptions::default() };
    a.pair.begin_connect(listener.local_addr(), depths).unwrap();
    let request = listener.next(SOON).expect("a request");
    request.accept(&b.pair, AcceptOptions { ird: 8, ord: 8, ..AcceptOptions::default() }).unwrap();
    a.pair.connected(SOON).unwrap();
    b.pair.connected(SOON).unwrap();
    // The accepting side may not send before the other one.
    b.pair.post_recv(RecvRequest::new(0, b.sge(0, 1))).unwrap();
    a.post(0, SendOp::Send, a.sge(0, 1));
    assert_eq!((a.next(), b.next()), ((0, Status::Success), (0, Status::Success)));
    [a, b]
}

/// The options of a device that copies everything, since it has CRC, and those of one whose kernel
/// transfers directly where it can.
fn copied_and_direct() -> [Options; 2] {
    let direct = Options { crc: false, copies: Copies::Direct, ..Options::default() };
    [Options::default(), direct]
}

#[test]
fn everything_works_on_memory_of_the_program() {
    for options in copied_and_direct() {
        let [a, b] = connected(options);
        a.pages.fill(1);
        b.pages.fill(2);
        b.pair.post_recv(RecvRequest::new(7, b.sge(PAGE, LEN / 2))).unwrap();
        a.post(1, SendOp::Write(b.remote(3)), a.sge(5, 20_000));
        a.post(2, SendOp::Send, a.sge(0, LEN / 2));
        assert_eq!((a.next(), a.next()), ((1, Status::Success), (2, Status::Success)));
        assert_eq!(b.next(), (7, Status::Success));
        let expected = [(2, 2), (3, 1), (20_002, 1), (PAGE + LEN / 2 - 1, 1), (PAGE + LEN / 2, 2)];
        assert_eq!(expected.map(|(at, _)| b.pages.byte(at)), expected.map(|(_, byte)| byte));
        b.pages.fill(3);
        a.post(3, SendOp::Read(b.remote(100)), a.sge(1, LEN / 2));
        let word = Remote { addr: b.remote(8).addr, ..b.remote(8) };
        a.post(4, SendOp::FetchAdd { to: word, add: 1, mask: 0 }, a.sge(LEN - 8, 8));
        assert_eq!((a.next(), a.next()), ((3, Status::Success), (4, Status::Success)));
        let expected = [(0, 1), (1, 3), (LEN / 2, 3), (LEN / 2 + 1, 1), (LEN - 8, 3), (LEN - 1, 3)];
        assert_eq!(expected.map(|(at, _)| a.pages.byte(at)), expected.map(|(_, byte)| byte));
        assert_eq!((b.pages.byte(8), b.pages.byte(9)), (4, 3), "little endian, one more");
    }
}

/// The status of the request at the requester, and the completion of its peer's receive 9.
fn outcome(
    options: Options,
    take: fn(&Side, &Side),
    op: fn(&Side) -> SendOp,
) -> (Status, (u64, Status)) {
    let [a, b] = connected(options);
    b.pair.post_recv(RecvRequest::new(9, b.sge(0, LEN))).unwrap();
    take(&a, &b);
    let sge =
        if matches!(op(&b), SendOp::FetchAdd { .. }) { a.sge(40 * PAGE, 8) } else { a.sge(0, LEN) };
    a.post(1, op(&b), sge);
    let theirs = b.next();
    // A Write may have been sent before the peer detects the error.
    a.pair.disconnected(SOON);
    (a.next().1, theirs)
}

#[test]
fn unmapped_memory_is_an_error_of_the_side_that_names_it() {
    let write = |b: &Side| SendOp::Write(b.remote(0));
    let read = |b: &Side| SendOp::Read(b.remote(0));
    let send = |_: &Side| SendOp::Send;
    let add = |b: &Side| SendOp::FetchAdd { to: b.remote(40 * PAGE), add: 1, mask: 0 };
    for options in copied_and_direct() {
        // The requester's source or sink.
        for keep in [0, 40] {
            let cut = if keep == 0 {
                |a: &Side, _: &Side| a.pages.cut(0)
            } else {
                |a: &Side, _: &Side| a.pages.cut(40)
            };
            for op in [write, read, send] {
                let (ours, theirs) = outcome(options, cut, op);
                assert_eq!(
                    (ours, theirs),
                    (Status::LocalProtection, (9, Status::Flushed)),
                    "{keep}"
                );
            }
        }
        let protect = |a: &Side, _: &Side| a.pages.protect(MprotectFlags::READ);
        assert_eq!(
            outcome(options, protect, read),
            (Status::LocalProtection, (9, Status::Flushed))
        );
        // The peer's memory.
        let cut = |_: &Side, b: &Side| b.pages.cut(40);
        assert_eq!(outcome(options, cut, write).1, (9, Status::Flushed));
        assert_eq!(outcome(options, cut, send).1, (9, Status::LocalProtection));
        let protect = |_: &Side, b: &Side| b.pages.protect(MprotectFlags::READ);
        assert_eq!(outcome(options, protect, write).1, (9, Status::Flushed));
        assert_eq!(outcome(options, protect, send).1, (9, Status::LocalProtection));
        assert_eq!(outcome(options, cut, add), (Status::RemoteAccess, (9, Status::Flushed)));
        assert_eq!(outcome(options, protect, add), (Status::RemoteAccess, (9, Status::Flushed)));
    }
    // With copies the response fails as a whole; the kernel may have sent half of a direct one.
    let cut = |_: &Side, b: &Side| b.pages.cut(40);
    assert_eq!(
        outcome(Options::default(), cut, read),
        (Status::RemoteAccess, (9, Status::Flushed))
    );
    let direct = copied_and_direct()[1];
    assert!(matches!(
        outcome(direct, cut, read),
        (Status::RemoteAccess | Status::Flushed, (9, Status::Flushed))
    ));
}

#[test]
fn registering_checks_the_memory() {
    let [a, _b] = connected(Options::default());
    let pages = Pages::new();
    let errno = |result: Result<ForeignRegion, Error>| match result {
        Err(Error::System(error)) => error.raw_os_error(),
        other => panic!("{other:?}"),
    };
    pages.protect(MprotectFlags::READ);
    assert_eq!(errno(register(&a.domain, &pages, Access::LOCAL)), Some(libc::EFAULT));
    assert!(register(&a.domain, &pages, Access { remote_read: true, ..Access::default() }).is_ok());
    pages.cut(3);
    assert_eq!(errno(register(&a.domain, &pages, Access::default())), Some(libc::EFAULT));
    let odd = Access { remote_write: true, ..Access::default() };
    let refused = register(&a.domain, &a.pages, odd);
    assert!(matches!(refused, Err(Error::Refused(PostError::Rights))), "{refused:?}");
}

#[test]
fn a_registration_moves_and_ends() {
    let [mut a, b] = connected(Options::default());
    let other = Pages::new();
    other.fill(6);
    let (old, access) = (a.region.key(), Access { remote_read: true, ..Access::default() });
    a.region.change(None, other.lend(access).unwrap(), 0, access).unwrap();
    assert_ne!(a.region.key(), old);
    let from = Remote { stag: a.region.key(), addr: 17 };
    b.post(1, SendOp::Read(from), b.sge(0, 1));
    assert_eq!((b.next(), b.pages.byte(0)), ((1, Status::Success), 6));
    b.post(2, SendOp::Read(Remote { stag: old, ..from }), b.sge(0, 1));
    assert_eq!(b.next(), (2, Status::RemoteAccess));
    assert_eq!(a.region.release(), Ok(()));
    assert_eq!(a.region.release(), Err(PostError::Invalid));
}

#[test]
fn a_region_with_windows_bound_stays() {
    let [mut a, b] = connected(Options::default());
    let window = a.domain.window(WindowKind::Domain).unwrap();
    let (addr, access) = (a.remote(0).addr, Access { remote_write: true, ..Access::default() });
    let key = window.tag();
    let bind = |len| SendOp::Bind { window: key, region: a.region.key(), addr, len, access };
    let post = |id, op| {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        a.pair
            .post_send(SendRequest { flags, ..SendRequest::new(id, op, Vec::<u8>::new()) })
            .unwrap();
    };
    post(1, bind(64));
    assert_eq!(a.next(), (1, Status::Success));
    assert_eq!(a.region.release(), Err(PostError::Busy));
    let (memory, all) = (a.pages.lend(Access::ALL).unwrap(), Access::ALL);
    let moved = a.region.change(None, memory, a.region.base(), all);
    assert!(matches!(moved, Err(Error::Refused(PostError::Busy))), "{moved:?}");
    b.post(2, SendOp::Write(Remote { stag: key, addr }), b.sge(0, 64));
    assert_eq!(b.next(), (2, Status::Success));
    // The window does not keep its memory mapped.
    a.pages.cut(0);
    b.post(3, SendOp::Write(Remote { stag: key, addr }), b.sge(0, 64));
    b.pair.disconnected(SOON);
    assert!(
        matches!(
            b.pair.connection(),
            sprat_rdma::Connection::Not(sprat_rdma::ConnectError::Disconnected {
                cause: Some(Cause::TAGGED_STAG),
                ours: false
            })
        ),
        "{:?}",
        b.pair.connection()
    );
    drop(window);
    assert_eq!(a.region.release(), Ok(()));
}
