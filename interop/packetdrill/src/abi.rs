//! The functions of `struct packetdrill_interface` (packetdrill.h): C's calling convention on the
//! outside, slices and `Result` on the inside. All unsafe code of the library stands here.
//!
//! Always: a pointer that packetdrill passes with a length is valid for it during the call, as for
//! the system calls whose places the functions take. It may be null where a script wants to see
//! EFAULT, so each function looks at that first.

use std::ffi::{CStr, OsStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use libc::{epoll_event, iovec, msghdr, pollfd, sockaddr, socklen_t, ssize_t, timeval};
use sprat_proto::Instant;

use crate::attempt::Call;
use crate::options;
use crate::sockets::{Kind, Reply, Watched};
use crate::world::{call, look, note, start, with};

type Data = *mut c_void;

/// `struct packetdrill_interface`: the order of the fields is part of the interface.
#[repr(C)]
#[derive(Debug)]
pub struct Interface {
    userdata: Data,
    free: extern "C" fn(Data),
    socket: extern "C" fn(Data, c_int, c_int, c_int) -> c_int,
    bind: extern "C" fn(Data, c_int, *const sockaddr, socklen_t) -> c_int,
    listen: extern "C" fn(Data, c_int, c_int) -> c_int,
    accept: extern "C" fn(Data, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    connect: extern "C" fn(Data, c_int, *const sockaddr, socklen_t) -> c_int,
    read: extern "C" fn(Data, c_int, *mut c_void, usize) -> ssize_t,
    readv: extern "C" fn(Data, c_int, *const iovec, c_int) -> ssize_t,
    recv: extern "C" fn(Data, c_int, *mut c_void, usize, c_int) -> ssize_t,
    recvfrom: extern "C" fn(
        Data,
        c_int,
        *mut c_void,
        usize,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    recvmsg: extern "C" fn(Data, c_int, *mut msghdr, c_int) -> ssize_t,
    write: extern "C" fn(Data, c_int, *const c_void, usize) -> ssize_t,
    writev: extern "C" fn(Data, c_int, *const iovec, c_int) -> ssize_t,
    send: extern "C" fn(Data, c_int, *const c_void, usize, c_int) -> ssize_t,
    sendto: extern "C" fn(
        Data,
        c_int,
        *const c_void,
        usize,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    sendmsg: extern "C" fn(Data, c_int, *const msghdr, c_int) -> ssize_t,
    /// Variadic in C. On 64-bit Linux an integer argument after the named ones is passed like a
    /// named one; it is used only for commands that have it.
    fcntl: extern "C" fn(Data, c_int, c_int, c_long) -> c_int,
    /// Variadic in C, like `fcntl`.
    ioctl: extern "C" fn(Data, c_int, c_ulong, *mut c_int) -> c_int,
    close: extern "C" fn(Data, c_int) -> c_int,
    shutdown: extern "C" fn(Data, c_int, c_int) -> c_int,
    getsockopt: extern "C" fn(Data, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    setsockopt: extern "C" fn(Data, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    poll: extern "C" fn(Data, *mut pollfd, c_ulong, c_int) -> c_int,
    netdev_send: extern "C" fn(Data, *const c_void, usize) -> c_int,
    netdev_receive: extern "C" fn(Data, *mut c_void, *mut usize, *mut c_longlong) -> c_int,
    usleep: extern "C" fn(Data, c_uint) -> c_int,
    gettimeofday: extern "C" fn(Data, *mut timeval, *mut c_void) -> c_int,
    epoll_create: extern "C" fn(Data, c_int) -> c_int,
    epoll_ctl: extern "C" fn(Data, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    epoll_wait: extern "C" fn(Data, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pipe: extern "C" fn(Data, *mut c_int) -> c_int,
    splice: extern "C" fn(Data, c_int, *mut i64, c_int, *mut i64, usize, c_uint) -> ssize_t,
}

/// Fills in the interface. `flags` is what `--so_flags` says: the file of system controls.
///
/// # Safety
/// `flags` is null or a string of C, `interface` is valid for writes.
// SAFETY: no other object has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut Interface,
) {
    // SAFETY: the caller's duty.
    let flags = (!flags.is_null()).then(|| unsafe { CStr::from_ptr(flags) });
    start(flags.map(|flags| OsStr::from_bytes(flags.to_bytes()).into()));
    let filled = Interface {
        userdata: std::ptr::null_mut(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    };
    // SAFETY: the caller's duty.
    unsafe { interface.write(filled) };
}

// The border: pointers, lengths and errno. Each function is safe to call with what packetdrill
// passes, for the reason at the top of the file.

fn fail(error: i32) -> c_int {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = error };
    -1
}

fn result(result: Result<i64, i32>) -> ssize_t {
    result.map_or_else(|error| fail(error) as ssize_t, |value| value as ssize_t)
}

fn status(result: Result<(), i32>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

/// Returns the bytes at a pointer, or `None` if it is null and there should be some.
fn bytes<'a>(at: *const c_void, len: usize) -> Option<&'a [u8]> {
    if len == 0 {
        return Some(&[]);
    }
    // SAFETY: the pointer is not null, so it is valid for the length.
    (!at.is_null()).then(|| unsafe { from_raw_parts(at.cast(), len) })
}

/// Copies bytes to a pointer that is valid for their length, or returns EFAULT if it is null.
fn fill(at: *mut c_void, from: &[u8]) -> Result<(), i32> {
    if from.is_empty() {
        return Ok(());
    }
    if at.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the pointer is not null, so it is valid for the length, and packetdrill's memory does
    // not overlap ours.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at.cast(), from.len()) };
    Ok(())
}

/// Returns the vectors of `readv` and the like.
fn vectors<'a>(at: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: as for `bytes`: an array of `count` vectors.
    (!at.is_null()).then(|| unsafe { from_raw_parts(at, count) })
}

/// Copies bytes to vectors, one after the other.
fn scatter(vectors: &[iovec], mut from: &[u8]) -> Result<(), i32> {
    for vector in vectors {
        let (part, rest) = from.split_at(from.len().min(vector.iov_len));
        fill(vector.iov_base, part)?;
        from = rest;
    }
    Ok(())
}

/// Returns the bytes of vectors.
fn gather(vectors: &[iovec]) -> Option<Vec<u8>> {
    let parts = vectors.iter().map(|vector| bytes(vector.iov_base, vector.iov_len));
    parts.collect::<Option<Vec<_>>>().map(|parts| parts.concat())
}

/// Reads an address of IPv4 or IPv6.
fn address(at: *const sockaddr, len: socklen_t) -> Result<SocketAddr, i32> {
    let bytes = bytes(at.cast(), len as usize).ok_or(libc::EFAULT)?;
    let family = bytes.first_chunk().map(|two| i32::from(u16::from_ne_bytes(*two)));
    let port = || bytes.get(2..4).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let (ip, port) = match family {
        Some(libc::AF_INET) => {
            let ip: [u8; 4] = *bytes.get(4..).and_then(|b| b.first_chunk()).ok_or(libc::EINVAL)?;
            (Ipv4Addr::from(ip).into(), port())
        }
        Some(libc::AF_INET6) => {
            let ip: [u8; 16] = *bytes.get(8..).and_then(|b| b.first_chunk()).ok_or(libc::EINVAL)?;
            (Ipv6Addr::from(ip).to_canonical(), port())
        }
        _ => return Err(libc::EAFNOSUPPORT),
    };
    Ok(SocketAddr::new(ip, port.ok_or(libc::EINVAL)?))
}

/// Writes an address, and its length.
fn put_address(peer: SocketAddr, is_v6: bool, at: *mut sockaddr, len: *mut socklen_t) {
    if at.is_null() || len.is_null() {
        return;
    }
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    let head = [(family as u16).to_ne_bytes(), peer.port().to_be_bytes()].concat();
    let bytes = match peer.ip() {
        std::net::IpAddr::V4(ip) if !is_v6 => [&head[..], &ip.octets(), &[0; 8]].concat(),
        std::net::IpAddr::V4(ip) => {
            [&head[..], &[0; 4], &ip.to_ipv6_mapped().octets(), &[0; 4]].concat()
        }
        std::net::IpAddr::V6(ip) => [&head[..], &[0; 4], &ip.octets(), &[0; 4]].concat(),
    };
    // SAFETY: the length is not null, so it is valid.
    let room = unsafe { len.replace(bytes.len() as socklen_t) };
    // It was looked at: the pointer is not null.
    let _ = fill(at.cast(), &bytes[..bytes.len().min(room as usize)]);
}

fn value(reply: Result<Reply, i32>) -> ssize_t {
    result(reply.map(|reply| reply.value))
}

// Sockets.

extern "C" fn free(_: Data) {}

extern "C" fn socket(_: Data, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_tcp = matches!(protocol, 0 | libc::IPPROTO_TCP);
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    if kind & !flags != libc::SOCK_STREAM || !is_tcp {
        note("not supported: sockets that are not TCP's");
        return fail(libc::EPROTONOSUPPORT);
    }
    let opened = with(|world| {
        world.stack();
        let fd = world.open(Kind::New, domain == libc::AF_INET6)?;
        if let Some(socket) = world.sockets.get_mut(&fd) {
            socket.flags |= kind & libc::SOCK_NONBLOCK;
        }
        Ok(i64::from(fd))
    });
    result(opened) as c_int
}

extern "C" fn bind(_: Data, fd: c_int, at: *const sockaddr, len: socklen_t) -> c_int {
    status(address(at, len).and_then(|local| {
        with(|world| {
            let socket = world.sockets.get_mut(&fd).ok_or(libc::EBADF)?;
            socket.port = local.port();
            Ok(())
        })
    }))
}

extern "C" fn listen(_: Data, fd: c_int, backlog: c_int) -> c_int {
    status(with(|world| {
        let port = world.sockets.get(&fd).ok_or(libc::EBADF)?.port;
        // Linux accepts one more than the backlog.
        let backlog = backlog.max(0) as u32 + 1;
        world.listen(port, backlog)?;
        let socket = world.sockets.get_mut(&fd).ok_or(libc::EBADF)?;
        socket.kind = Kind::Listener(Default::default());
        Ok(())
    }))
}

extern "C" fn accept(_: Data, fd: c_int, at: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let reply = call(Call::Accept(fd));
    if let Ok(Reply { peer: Some((peer, is_v6)), .. }) = &reply {
        put_address(*peer, *is_v6, at, len);
    }
    value(reply) as c_int
}

extern "C" fn connect(_: Data, fd: c_int, at: *const sockaddr, len: socklen_t) -> c_int {
    match address(at, len) {
        Ok(to) => value(call(Call::Connect { fd, to, is_begun: false })) as c_int,
        Err(error) => fail(error),
    }
}

extern "C" fn close(_: Data, fd: c_int) -> c_int {
    status(with(|world| world.close(fd)))
}

extern "C" fn shutdown(_: Data, fd: c_int, how: c_int) -> c_int {
    status(with(|world| world.shut_down(fd, how)))
}

// Bytes.

/// Receives bytes into vectors.
fn receive(fd: c_int, vectors: &[iovec], flags: c_int) -> ssize_t {
    let len = vectors.iter().map(|vector| vector.iov_len).sum();
    if vectors.iter().any(|vector| vector.iov_len > 0 && vector.iov_base.is_null()) {
        return fail(libc::EFAULT) as ssize_t;
    }
    let reply = call(Call::Read { fd, len, flags });
    result(reply.and_then(|reply| scatter(vectors, &reply.bytes).map(|()| reply.value)))
}

extern "C" fn read(_: Data, fd: c_int, at: *mut c_void, len: usize) -> ssize_t {
    receive(fd, &[iovec { iov_base: at, iov_len: len }], 0)
}

extern "C" fn readv(_: Data, fd: c_int, at: *const iovec, count: c_int) -> ssize_t {
    match vectors(at, count.max(0) as usize) {
        Some(vectors) => receive(fd, vectors, 0),
        None => fail(libc::EFAULT) as ssize_t,
    }
}

extern "C" fn recv(_: Data, fd: c_int, at: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    receive(fd, &[iovec { iov_base: at, iov_len: len }], flags)
}

extern "C" fn recvfrom(
    data: Data,
    fd: c_int,
    at: *mut c_void,
    len: usize,
    flags: c_int,
    _: *mut sockaddr,
    _: *mut socklen_t,
) -> ssize_t {
    recv(data, fd, at, len, flags)
}

extern "C" fn recvmsg(_: Data, fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: packetdrill passes a message of its own, or null.
    let Some(message) = (unsafe { message.as_mut() }) else {
        return fail(libc::EFAULT) as ssize_t;
    };
    let Some(vectors) = vectors(message.msg_iov, message.msg_iovlen) else {
        return fail(libc::EFAULT) as ssize_t;
    };
    message.msg_controllen = 0;
    message.msg_flags = 0;
    receive(fd, vectors, flags)
}

fn transmit(fd: c_int, bytes: Option<Vec<u8>>, flags: c_int) -> ssize_t {
    match bytes {
        Some(bytes) => value(call(Call::Write { fd, bytes, flags, done: 0 })),
        None => fail(libc::EFAULT) as ssize_t,
    }
}

extern "C" fn write(_: Data, fd: c_int, at: *const c_void, len: usize) -> ssize_t {
    transmit(fd, bytes(at, len).map(<[u8]>::to_vec), 0)
}

extern "C" fn writev(_: Data, fd: c_int, at: *const iovec, count: c_int) -> ssize_t {
    transmit(fd, vectors(at, count.max(0) as usize).and_then(gather), 0)
}

extern "C" fn send(_: Data, fd: c_int, at: *const c_void, len: usize, flags: c_int) -> ssize_t {
    transmit(fd, bytes(at, len).map(<[u8]>::to_vec), flags)
}

extern "C" fn sendto(
    data: Data,
    fd: c_int,
    at: *const c_void,
    len: usize,
    flags: c_int,
    _: *const sockaddr,
    _: socklen_t,
) -> ssize_t {
    send(data, fd, at, len, flags)
}

extern "C" fn sendmsg(_: Data, fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: packetdrill passes a message of its own, or null.
    let Some(message) = (unsafe { message.as_ref() }) else {
        return fail(libc::EFAULT) as ssize_t;
    };
    if message.msg_controllen > 0 {
        note("not supported: control messages of sendmsg");
        return fail(libc::EOPNOTSUPP) as ssize_t;
    }
    transmit(fd, vectors(message.msg_iov, message.msg_iovlen).and_then(gather), flags)
}

// Options.

extern "C" fn fcntl(_: Data, fd: c_int, command: c_int, argument: c_long) -> c_int {
    let done = with(|world| {
        let socket = world.sockets.get_mut(&fd).ok_or(libc::EBADF)?;
        match command {
            libc::F_GETFL => Ok(socket.flags.into()),
            libc::F_SETFL => {
                socket.flags = libc::O_RDWR | argument as c_int & libc::O_NONBLOCK;
                Ok(0)
            }
            _ => Err(libc::EINVAL),
        }
    });
    result(done) as c_int
}

extern "C" fn ioctl(_: Data, fd: c_int, request: c_ulong, into: *mut c_int) -> c_int {
    let read = with(|world| {
        let id = world.sockets.get(&fd).ok_or(libc::EBADF)?.id().ok_or(libc::EINVAL)?;
        let tcp = world.tcp();
        match request {
            // SIOCINQ and SIOCOUTQ.
            libc::FIONREAD => Ok(tcp.connection(id).map_or(0, |c| c.readable())),
            libc::TIOCOUTQ => Ok(tcp.info(id).map_or(0, |i| i.unacknowledged_bytes as usize)),
            _ => Err(libc::EINVAL),
        }
    });
    status(read.and_then(|count| fill(into.cast(), &(count as c_int).to_ne_bytes())))
}

extern "C" fn getsockopt(
    _: Data,
    fd: c_int,
    level: c_int,
    name: c_int,
    into: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let read = with(|world| options::read(world, fd, (level, name)));
    status(read.and_then(|bytes| {
        // SAFETY: packetdrill passes a length of its own, or null.
        let len = unsafe { len.as_mut() }.ok_or(libc::EFAULT)?;
        let bytes = &bytes[..bytes.len().min(*len as usize)];
        *len = bytes.len() as socklen_t;
        fill(into, bytes)
    }))
}

extern "C" fn setsockopt(
    _: Data,
    fd: c_int,
    level: c_int,
    name: c_int,
    at: *const c_void,
    len: socklen_t,
) -> c_int {
    status(match bytes(at, len as usize) {
        Some(bytes) => with(|world| world.set_option(fd, (level, name), bytes)),
        None => Err(libc::EFAULT),
    })
}

// Waiting.

extern "C" fn poll(_: Data, fds: *mut pollfd, count: c_ulong, wait_ms: c_int) -> c_int {
    if fds.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: an array of `count`, which packetdrill leaves to the call.
    let fds = unsafe { from_raw_parts_mut(fds, count as usize) };
    let asked = fds.iter().map(|one| (one.fd, one.events)).collect();
    let reply = call(Call::Poll { fds: asked, wait_ms, until: Instant::NEVER });
    if let Ok(reply) = &reply {
        fds.iter_mut().zip(&reply.polled).for_each(|(one, events)| one.revents = *events);
    }
    value(reply) as c_int
}

extern "C" fn epoll_create(_: Data, _: c_int) -> c_int {
    result(with(|world| world.open(Kind::Set(Vec::new()), false).map(i64::from))) as c_int
}

extern "C" fn epoll_ctl(
    _: Data,
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: packetdrill passes an event of its own, or null.
    let event = unsafe { event.as_ref() };
    let (events, data) = event.map_or((0, 0), |event| (event.events, event.u64));
    status(with(|world| {
        let seen = match world.sockets.get(&fd) {
            // What has happened before counts as news.
            Some(socket) => socket.changes - 1,
            None => return Err(libc::EBADF),
        };
        let set = world.sockets.get_mut(&set).ok_or(libc::EBADF)?;
        let Kind::Set(watched) = &mut set.kind else { return Err(libc::EINVAL) };
        watched.retain(|one| one.fd != fd);
        if operation != libc::EPOLL_CTL_DEL {
            watched.push(Watched { fd, events, data, seen });
        }
        Ok(())
    }))
}

extern "C" fn epoll_wait(
    _: Data,
    fd: c_int,
    into: *mut epoll_event,
    most: c_int,
    wait_ms: c_int,
) -> c_int {
    let most = most.max(0) as usize;
    let reply = call(Call::EpollWait { fd, most, wait_ms, until: Instant::NEVER });
    if let Ok(reply) = &reply {
        for (i, (events, data)) in reply.watched.iter().enumerate() {
            // SAFETY: there are at most `most` events, for which the array has room.
            unsafe { into.add(i).write(epoll_event { events: *events, u64: *data }) };
        }
    }
    value(reply) as c_int
}

extern "C" fn pipe(_: Data, _: *mut c_int) -> c_int {
    note("not supported: pipe");
    fail(libc::ENOSYS)
}

extern "C" fn splice(
    _: Data,
    _: c_int,
    _: *mut i64,
    _: c_int,
    _: *mut i64,
    _: usize,
    _: c_uint,
) -> ssize_t {
    note("not supported: splice");
    fail(libc::ENOSYS) as ssize_t
}

// Packets and time.

extern "C" fn netdev_send(_: Data, at: *const c_void, len: usize) -> c_int {
    status(match bytes(at, len) {
        Some(packet) => {
            with(|world| world.inject(packet));
            Ok(())
        }
        None => Err(libc::EFAULT),
    })
}

extern "C" fn netdev_receive(
    _: Data,
    into: *mut c_void,
    len: *mut usize,
    time_us: *mut c_longlong,
) -> c_int {
    let (at, packet) = with(|world| world.next_packet()).unwrap_or_else(|| {
        note("the stack would never send a packet");
        (Instant::ZERO, Vec::new())
    });
    // SAFETY: packetdrill passes a length and a time of its own.
    let room = unsafe {
        time_us.write((at.as_ns() / 1000) as c_longlong);
        len.replace(packet.len())
    };
    status(if packet.len() > room { Err(libc::EMSGSIZE) } else { fill(into, &packet) })
}

extern "C" fn usleep(_: Data, us: c_uint) -> c_int {
    with(|world| world.advance(world.now.after(u64::from(us) * 1000)));
    0
}

extern "C" fn gettimeofday(_: Data, into: *mut timeval, _: *mut c_void) -> c_int {
    let us = look().as_ns() / 1000;
    let time = timeval { tv_sec: (us / 1_000_000) as _, tv_usec: (us % 1_000_000) as _ };
    // SAFETY: packetdrill passes a place of its own; nothing reads it before.
    unsafe { into.cast::<MaybeUninit<timeval>>().write(MaybeUninit::new(time)) };
    0
}
