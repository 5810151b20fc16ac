//! bpf(2), as much as a device needs: a map of sockets, a program, and the link that holds it on an interface.
//!
//! A link is a file descriptor: when the last one is closed, also by the process's death, the kernel takes the program off the
//! interface. So none stays behind, which would slow every path on that interface.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::program::Insn;

// linux/bpf.h
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const HAS_FRAGS: u32 = 1 << 5;

/// How a program is run on an interface: by the driver, or by the kernel behind every driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// XDP_FLAGS_DRV_MODE.
    Native,
    /// XDP_FLAGS_SKB_MODE.
    Generic,
}

impl Mode {
    const fn flag(self) -> u32 {
        match self {
            Self::Native => 4,
            Self::Generic => 2,
        }
    }
}

/// The part of `union bpf_attr` that a command looks at, zeros behind it.
#[repr(C, align(8))]
struct Attr([u64; 16]);

impl Attr {
    const fn zero() -> Self {
        Self([0; 16])
    }

    /// Two numbers of four octets in a row, the `n`th pair.
    fn pair(mut self, n: usize, first: u32, second: u32) -> Self {
        let (low, high) = if cfg!(target_endian = "little") { (first, second) } else { (second, first) };
        self.0[n] = u64::from(low) | u64::from(high) << 32;
        self
    }

    /// A number of eight octets, the `n`th.
    fn word(mut self, n: usize, value: u64) -> Self {
        self.0[n] = value;
        self
    }
}

/// # Safety
/// Whatever addresses are in `attr`, as the command understands it, point to memory that is as long as the command wants and
/// lives during the call; a command that writes there must be allowed to.
unsafe fn bpf(command: libc::c_long, mut attr: Attr) -> io::Result<i32> {
    // SAFETY: `attr` is a local as long as said, and all zeros where it is not set; the rest is the caller's promise.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size_of::<Attr>()) };
    i32::try_from(done).ok().filter(|n| *n >= 0).ok_or_else(io::Error::last_os_error)
}

/// # Safety
/// As for [`bpf`]; the command gives a new file descriptor.
unsafe fn bpf_fd(command: libc::c_long, attr: Attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise, passed on.
    let fd = unsafe { bpf(command, attr)? };
    // SAFETY: a fresh descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A map from queue numbers below `queues` to AF_XDP sockets.
pub(super) fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    let attr = Attr::zero().pair(0, XSKMAP, 4).pair(1, 4, queues);
    // SAFETY: the command's attributes hold no addresses.
    unsafe { bpf_fd(MAP_CREATE, attr) }
}

/// Puts `socket` into the map at `queue`.
pub(super) fn put(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let (key, value) = (queue, socket.as_raw_fd());
    let attr = Attr::zero().pair(0, map.as_raw_fd().cast_unsigned(), 0);
    let at = |number: *const u32| number.expose_provenance() as u64;
    let attr = attr.word(1, at(&raw const key)).word(2, at((&raw const value).cast()));
    // SAFETY: key and value are locals of four octets each, as the map was made for; the kernel only reads them.
    unsafe { bpf(MAP_UPDATE, attr) }.map(drop)
}

/// Loads a program; the kernel's verifier proves that it ends and stays within the frame.
pub(super) fn load(program: &[Insn], frags: bool) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0 OR MIT";
    let attr = Attr::zero()
        .pair(0, PROG_TYPE_XDP, program.len() as u32)
        .word(1, program.as_ptr().expose_provenance() as u64)
        .word(2, license.as_ptr().expose_provenance() as u64)
        .pair(5, 0, if frags { HAS_FRAGS } else { 0 })
        .pair(8, 0, ATTACH_XDP);
    // SAFETY: the program is borrowed during the call and as long as said, `Insn` is laid out as `bpf_insn`; the licence ends
    // with a zero; the kernel only reads them.
    unsafe { bpf_fd(PROG_LOAD, attr) }
}

/// Attaches a program to interface number `index` until the link is closed.
pub(super) fn attach(program: BorrowedFd<'_>, index: u32, mode: Mode) -> io::Result<OwnedFd> {
    let attr =
        Attr::zero().pair(0, program.as_raw_fd().cast_unsigned(), index).pair(1, ATTACH_XDP, mode.flag());
    // SAFETY: the command's attributes hold no addresses.
    unsafe { bpf_fd(LINK_CREATE, attr) }
}
