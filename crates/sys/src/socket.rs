//! The system calls on sockets that no safe library offers: raw sockets, options whose values are C
//! structures, taps, and the process at the other end of a Unix socket.
//!
//! The invariant that makes it sound: every pointer given to the kernel is to a value borrowed for
//! the whole call, its length is given beside it, and the kernel keeps none of them after the call
//! returns.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// Opens a raw socket of `family` that is non-blocking and closed on exec.
pub fn raw(family: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    check(fd as isize)?;
    // SAFETY: A fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a socket to an address that is a plain C structure.
pub fn bind<A: Plain>(fd: BorrowedFd<'_>, address: &A) -> io::Result<()> {
    let len = size_of::<A>() as libc::socklen_t;
    // SAFETY: the address is borrowed during the call and `len` long; the kernel only reads it.
    let done = unsafe { libc::bind(fd.as_raw_fd(), (&raw const *address).cast(), len) };
    check(done as isize).map(drop)
}

/// Sets a socket option to a value that is a plain C structure.
pub fn set<V: Plain>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &V,
) -> io::Result<()> {
    let len = size_of::<V>() as libc::socklen_t;
    // SAFETY: the value is borrowed during the call, `len` long and without pointers in it; the
    // kernel only reads it.
    let done =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) };
    check(done as isize).map(drop)
}

/// Reads a socket option into `value`.
pub fn get<V: Plain>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut V,
) -> io::Result<()> {
    let mut len = size_of::<V>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the value, which is borrowed mutably, that
    // long, and has no bytes that it must not hold.
    let done = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut *value).cast(), &raw mut len)
    };
    check(done as isize).map(drop)
}

/// Returns the ids of the process at the other end of a Unix socket: its process id in this
/// process's pid namespace, 0 if it has none there, and its user id. (rustix has this too, but
/// takes the number for one that is never 0.)
///
/// # Errors
/// The socket is not of that kind.
pub fn peer_ids(fd: BorrowedFd<'_>) -> io::Result<(libc::pid_t, libc::uid_t)> {
    // As `ucred` has them.
    let mut ids: [libc::c_int; 3] = [0; 3];
    get(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut ids)?;
    Ok((ids[0], ids[1].cast_unsigned()))
}

/// Returns a pidfd of the process at the other end of a Unix socket. It is closed on exec.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5.
pub fn peer_pidfd(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut made: libc::c_int = -1;
    get(fd, libc::SOL_SOCKET, libc::SO_PEERPIDFD, &mut made)?;
    // SAFETY: the kernel made this descriptor for this call, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// One instruction of a classic filter program (`sock_filter`): an opcode, two distances of jumps,
/// and an operand.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The opcode of the filter instruction.
    pub code: u16,
    /// Number of instructions to skip if the instruction's test holds.
    pub yes: u8,
    /// Number of instructions to skip if the instruction's test does not hold.
    pub no: u8,
    /// The operand of the filter instruction.
    pub k: u32,
}

/// Attaches a classic filter program to a socket.
pub fn set_filter(fd: BorrowedFd<'_>, program: &[Op]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let header = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    let size = size_of_val(&header) as libc::socklen_t;
    // SAFETY: the header and the program that it points to live during the call and are as long as
    // they say; `Op` is laid out as `sock_filter`; the kernel only reads them.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const header).cast(),
            size,
        )
    };
    check(done as isize).map(drop)
}

/// Makes `fd`, a fresh /dev/net/tun, a tap interface called `name`, or joins the interface of that
/// name.
pub fn make_tap(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    if name.len() >= libc::IFNAMSIZ || name.is_empty() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: a plain C structure for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the request reads and writes one `ifreq`, which lives during the call; its name ends
    // with a zero.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    check(done as isize).map(drop)
}

/// Sets the offloads of a tap (`TUNSETOFFLOAD`): the kernel then delivers frames without checksums
/// and TCP data unsegmented. If `udp`, it also delivers UDP data unsegmented.
pub fn tap_offload(fd: BorrowedFd<'_>, udp: bool) -> io::Result<()> {
    // linux/if_tun.h: TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6; TUN_F_USO4, TUN_F_USO6.
    let flags: libc::c_ulong = if udp { 0x67 } else { 0x07 };
    // SAFETY: the request takes a number.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, flags) };
    check(done as isize).map(drop)
}

/// A plain C structure of numbers: it has no pointers and no padding that matters, and every
/// pattern of bits is a value.
///
/// # Safety
/// The type must be just that.
pub unsafe trait Plain: Copy {}

// SAFETY: a number.
unsafe impl Plain for libc::c_int {}
// SAFETY: three numbers.
unsafe impl Plain for [libc::c_int; 3] {}
// SAFETY: two numbers.
unsafe impl Plain for libc::tpacket_stats {}
// SAFETY: numbers and an array of bytes.
unsafe impl Plain for libc::sockaddr_ll {}
// SAFETY: numbers.
unsafe impl Plain for libc::sockaddr_xdp {}
// SAFETY: four numbers.
unsafe impl Plain for libc::tpacket_req {}
// SAFETY: numbers and an array of bytes.
unsafe impl Plain for libc::packet_mreq {}

/// Turns the result of a system call into a count, or −1 into the error in `errno`.
///
/// # Errors
/// The call has failed.
pub(crate) fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
