//! The system calls between a stream and registered memory: bytes go from and to where they lie, in one call.
//!
//! Registered memory is written by others while the kernel reads it, so no slice of it may exist; the kernel gets plain
//! addresses, as it would from a C program. What makes that sound: every address is of a [`Region`](sprat_sys::memory::Region)
//! borrowed for the whole call or of a slice borrowed for the whole call, its length lies within, and the kernel keeps none
//! after the call; or it is of memory of the program, of which the kernel finds out.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::net::SendFlags;
use sprat_proto::rdma::{Part, Record, Span};
use sprat_proto::rpc::Slices;

use super::regions::{Regions, Sink};

/// The most pieces that one call sends.
pub(super) const PIECES: usize = 128;

const NONE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Sends what follows the first `skip` octets of `record`; returns how many octets the stream took.
///
/// # Errors
/// `WouldBlock`, or whatever ended the connection. `InvalidInput` or `EFAULT` if memory of the record has gone.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    record: &Record,
    mut skip: usize,
    regions: &Regions,
    slices: &dyn Slices,
) -> io::Result<usize> {
    if let [Part::Bytes(range)] = &record.parts[..] {
        return send_bytes(socket, record.bytes[range.clone()].get(skip..).unwrap_or_default());
    }
    let mut pieces = [NONE; PIECES];
    let mut count = 0;
    let mut piece = |at: *const u8, len: usize| {
        let gone = skip.min(len);
        skip -= gone;
        if gone < len && count < PIECES {
            // The kernel only reads it.
            let at = at.wrapping_add(gone).cast_mut();
            pieces[count] = libc::iovec { iov_base: at.cast(), iov_len: len - gone };
            count += 1;
        }
    };
    for part in &record.parts {
        match part {
            Part::Bytes(range) => piece(record.bytes[range.clone()].as_ptr(), range.len()),
            Part::Memory(span) => {
                regions
                    .pieces(*span, slices, &mut piece)
                    .map_err(|_| io::ErrorKind::InvalidInput)?;
            }
        }
    }
    // SAFETY: an all-zero `msghdr` is a valid one: no name, no control data, no pieces.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = count;
    // SAFETY: `message` names `count` pieces, each within a slice or a region that is borrowed until the call returns.
    let n = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// True if it was not the connection that failed, but memory.
pub(super) fn is_unmapped(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput || error.raw_os_error() == Some(libc::EFAULT)
}

/// The cheapest form, for what was put together in one piece: no list, no header.
fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
}

/// Receives straight into registered memory, and what comes behind it into `then`; returns how many octets came, 0 at the
/// end of the stream.
///
/// # Errors
/// `WouldBlock`, or whatever ended the connection. `InvalidInput` or `EFAULT` if the region or its memory has gone.
pub(super) fn receive_into(
    socket: BorrowedFd<'_>,
    span: Span,
    regions: &mut Regions,
    then: &mut [u8],
) -> io::Result<usize> {
    let len = span.len as usize;
    let mut sink = regions.sink(span).ok_or(io::ErrorKind::InvalidInput)?;
    let at = match &mut sink {
        Sink::Region(region) => region.address(span.offset as usize, len),
        Sink::Foreign(memory) => memory.address(span.offset as usize, len),
        Sink::Message(message) => message.spare_capacity_mut()[..len].as_mut_ptr().cast(),
    };
    let mut pieces = [
        libc::iovec { iov_base: at.cast(), iov_len: len },
        libc::iovec { iov_base: then.as_mut_ptr().cast(), iov_len: then.len() },
    ];
    // SAFETY: as in `send`: an all-zero `msghdr` is a valid one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len();
    // SAFETY: the first piece lies within a region that is borrowed until the call returns and that nobody has a slice of,
    // or in the unused room of a vector that is borrowed mutably as long, the second is a slice borrowed mutably as long.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    if let Sink::Message(message) = sink {
        // SAFETY: the kernel has written so many octets behind those that were there, not more than there was room for.
        unsafe { message.set_len(message.len() + n.min(len)) };
    }
    Ok(n)
}

/// The most octets that the connection puts into one segment at present.
///
/// # Errors
/// The socket is no TCP socket any more.
pub(super) fn segment(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let (mut value, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the pointers are of two local variables; the value's size is the one given.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(value).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Has a later bind take no port: the connection gets one, which other connections to other peers may have too.
///
/// # Errors
/// The system cannot.
pub(super) fn bind_without_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    let yes = 1_i32;
    // SAFETY: the pointer is of a local variable; its size is the one given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const yes).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Does something with all signals held back that another thread may take: what is started meanwhile never gets one. Those
/// that a thread's own faults raise it keeps, since they end the process when they cannot be delivered.
pub(crate) fn without_signals<T>(act: impl FnOnce() -> T) -> T {
    let faults =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    // SAFETY: sets of signals are plain memory; those given to the C library are local variables.
    let before = unsafe {
        let (mut held, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut held);
        for fault in faults {
            libc::sigdelset(&raw mut held, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const held, &raw mut before);
        before
    };
    let result = act();
    // SAFETY: the set that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}
