//! The part of bpf(2) that a device needs: a map of sockets, programs, a table of programs, and the
//! link that holds a program on an interface.
//!
//! A link is a file descriptor: when the last one is closed, also by the process's death, the
//! kernel takes the program off the interface. So none stays behind, which would slow every path on
//! that interface.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

// linux/bpf.h
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const PROG_BY_ID: libc::c_long = 13;
const MAP_BY_ID: libc::c_long = 14;
const INFO_BY_FD: libc::c_long = 15;
const LINK_CREATE: libc::c_long = 28;
const LINK_BY_ID: libc::c_long = 30;
const LINK_NEXT_ID: libc::c_long = 31;
const XSKMAP: u32 = 17;
const PROG_ARRAY: u32 = 3;
const LINK_TYPE_XDP: u32 = 6;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const HAS_FRAGS: u32 = 1 << 5;

/// One instruction of an eBPF program (`bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// The opcode of the eBPF instruction.
    pub code: u8,
    /// The registers of the eBPF instruction: the destination in the low half, the source in the
    /// high half.
    pub registers: u8,
    /// The distance of a jump in instructions, or of an access in bytes.
    pub offset: i16,
    /// The immediate operand of the eBPF instruction.
    pub value: i32,
}

/// The place where an XDP program runs on an interface: in the driver, or in the kernel behind any
/// driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The program runs in the driver (XDP_FLAGS_DRV_MODE).
    Native,
    /// The program runs in the kernel, behind any driver (XDP_FLAGS_SKB_MODE).
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

/// The attributes of a bpf(2) command: the part of `union bpf_attr` that the command reads, and
/// zeros behind it.
#[repr(C, align(8))]
struct Attr([u64; 16]);

impl Attr {
    const fn zero() -> Self {
        Self([0; 16])
    }

    /// Sets two numbers of four bytes each, which fill the `n`th eight bytes of the attributes.
    fn pair(mut self, n: usize, first: u32, second: u32) -> Self {
        let (low, high) =
            if cfg!(target_endian = "little") { (first, second) } else { (second, first) };
        self.0[n] = u64::from(low) | u64::from(high) << 32;
        self
    }

    /// Sets the `n`th number of eight bytes of the attributes.
    fn word(mut self, n: usize, value: u64) -> Self {
        self.0[n] = value;
        self
    }
}

/// Makes the system call bpf(2) with a command and its attributes.
///
/// # Safety
/// All addresses in `attr`, as the command understands it, point to memory that is as long as the
/// command wants and lives during the call; a command that writes there must be allowed to.
unsafe fn bpf(command: libc::c_long, attr: &mut Attr) -> io::Result<i32> {
    // SAFETY: `attr` is as long as said, and all zeros where it is not set; the rest is the
    // caller's promise.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<Attr>()) };
    i32::try_from(done).ok().filter(|n| *n >= 0).ok_or_else(io::Error::last_os_error)
}

/// Makes the system call bpf(2) with a command that returns a new file descriptor.
///
/// # Safety
/// All addresses in `attr` must meet the conditions of [`bpf`]. The command must return a new file
/// descriptor.
unsafe fn bpf_fd(command: libc::c_long, mut attr: Attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise, passed on.
    let fd = unsafe { bpf(command, &mut attr)? };
    // SAFETY: A fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a map from queue numbers below `queues` to AF_XDP sockets.
pub fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    let attr = Attr::zero().pair(0, XSKMAP, 4).pair(1, 4, queues);
    // SAFETY: the command's attributes hold no addresses.
    unsafe { bpf_fd(MAP_CREATE, attr) }
}

/// Makes a map from queue numbers below `queues` to programs.
pub fn program_map(queues: u32) -> io::Result<OwnedFd> {
    let attr = Attr::zero().pair(0, PROG_ARRAY, 4).pair(1, 4, queues);
    // SAFETY: the command's attributes hold no addresses.
    unsafe { bpf_fd(MAP_CREATE, attr) }
}

/// Puts a socket or a program into the map at `queue`.
pub fn put(map: BorrowedFd<'_>, queue: u32, what: BorrowedFd<'_>) -> io::Result<()> {
    let (key, value) = (queue, what.as_raw_fd());
    let attr = Attr::zero().pair(0, map.as_raw_fd().cast_unsigned(), 0);
    let at = |number: *const u32| number.expose_provenance() as u64;
    let mut attr = attr.word(1, at(&raw const key)).word(2, at((&raw const value).cast()));
    // SAFETY: key and value are locals of four bytes each, as the map was made for; the kernel only
    // reads them.
    unsafe { bpf(MAP_UPDATE, &mut attr) }.map(drop)
}

/// Returns the first eight bytes as a number that lies in memory as they do.
fn word_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |eight| u64::from_le(u64::from_le_bytes(*eight)))
}

/// Loads a program under a name; the kernel's verifier proves that it ends and stays within the
/// frame.
pub fn load(program: &[Insn], name: [u8; 16], frags: bool) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0 OR MIT";
    let attr = Attr::zero()
        .pair(0, PROG_TYPE_XDP, program.len() as u32)
        .word(1, program.as_ptr().expose_provenance() as u64)
        .word(2, license.as_ptr().expose_provenance() as u64)
        .pair(5, 0, if frags { HAS_FRAGS } else { 0 })
        .word(6, word_of(&name))
        .word(7, word_of(&name[8..]))
        .pair(8, 0, ATTACH_XDP);
    // SAFETY: the program is borrowed during the call and as long as said, `Insn` is laid out as
    // `bpf_insn`; the licence ends with a zero; the kernel only reads them.
    unsafe { bpf_fd(PROG_LOAD, attr) }
}

/// Attaches a program to interface number `index` until the link is closed.
pub fn attach(program: BorrowedFd<'_>, index: u32, mode: Mode) -> io::Result<OwnedFd> {
    let attr = Attr::zero().pair(0, program.as_raw_fd().cast_unsigned(), index).pair(
        1,
        ATTACH_XDP,
        mode.flag(),
    );
    // SAFETY: the command's attributes hold no addresses.
    unsafe { bpf_fd(LINK_CREATE, attr) }
}

// Objects of other processes by their numbers in the kernel; needs CAP_SYS_ADMIN.

/// Opens the program with this number in the kernel.
pub fn program_of(number: u32) -> io::Result<OwnedFd> {
    // SAFETY: the command's attributes hold no addresses.
    unsafe { bpf_fd(PROG_BY_ID, Attr::zero().pair(0, number, 0)) }
}

/// Opens the map with this number in the kernel.
pub fn map_of(number: u32) -> io::Result<OwnedFd> {
    // SAFETY: the command's attributes hold no addresses.
    unsafe { bpf_fd(MAP_BY_ID, Attr::zero().pair(0, number, 0)) }
}

/// The kernel's information about a program, a map or a link: at most 256 bytes, of which unknown
/// ones are zero.
type Information = [u64; 32];

/// Returns the `n`th number of four bytes of the kernel's information.
fn number_at(info: &Information, n: usize) -> u32 {
    let word = info[n / 2];
    let low = n.is_multiple_of(2) == cfg!(target_endian = "little");
    if low { word as u32 } else { (word >> 32) as u32 }
}

/// Reads the kernel's information about a program, a map or a link.
///
/// # Safety
/// Each address in `info` points to memory that the kernel may write, as much of it as the number
/// beside the address says.
unsafe fn inform(fd: BorrowedFd<'_>, info: &mut Information) -> io::Result<()> {
    let attr =
        Attr::zero().pair(0, fd.as_raw_fd().cast_unsigned(), size_of::<Information>() as u32);
    let mut attr = attr.word(1, (&raw mut *info).expose_provenance() as u64);
    // SAFETY: `info` is borrowed mutably during the call and as long as said; the rest is the
    // caller's promise.
    unsafe { bpf(INFO_BY_FD, &mut attr) }.map(drop)
}

/// Returns the number of the map that `program` uses. `None` if the program's name is not `name`,
/// or if it uses no map.
pub fn table_of(program: BorrowedFd<'_>, name: [u8; 16]) -> io::Result<Option<u32>> {
    // `bpf_prog_info`: at 52 how many numbers of maps there is room for, at 56 where, at 64 the
    // name.
    let mut map = 0_u32;
    let mut info: Information = [0; 32];
    info[6] = Attr::zero().pair(0, 0, 1).0[0];
    info[7] = (&raw mut map).expose_provenance() as u64;
    // SAFETY: `map` has room for one number, and `info` says so.
    unsafe { inform(program, &mut info)? };
    let named = [info[8], info[9]] == [word_of(&name), word_of(&name[8..])];
    Ok((named && map != 0).then_some(map))
}

/// Opens the link that holds the program of this number on an interface. `None` if no link does.
pub fn link_of(program: u32) -> io::Result<Option<OwnedFd>> {
    let mut last = 0;
    loop {
        let mut attr = Attr::zero().pair(0, last, 0);
        // SAFETY: the command's attributes hold no addresses.
        match unsafe { bpf(LINK_NEXT_ID, &mut attr) } {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            other => other?,
        };
        // It is the second number.
        last = if cfg!(target_endian = "little") {
            (attr.0[0] >> 32) as u32
        } else {
            attr.0[0] as u32
        };
        // SAFETY: the command's attributes hold no addresses.
        let link = match unsafe { bpf_fd(LINK_BY_ID, Attr::zero().pair(0, last, 0)) } {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EAGAIN)) => continue,
            other => other?,
        };
        let mut info: Information = [0; 32];
        // SAFETY: there are no addresses.
        unsafe { inform(link.as_fd(), &mut info)? };
        // `bpf_link_info`: its type, its own number, its program's.
        if number_at(&info, 0) == LINK_TYPE_XDP && number_at(&info, 2) == program {
            return Ok(Some(link));
        }
    }
}
