//! `rdma_getaddrinfo`: resolves names by the C library's `getaddrinfo`.
//!
//! Results are allocated by the C library, piece by piece, and [`sprat_rdma_freeaddrinfo`] frees
//! them.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::cm::AddrInfo;
use crate::entry::{Errno, INVALID, UNSUPPORTED, export};

/// `ENOENT`: no address has this name.
pub(super) const UNKNOWN: Errno = Errno(libc::ENOENT);

/// `RAI_PASSIVE`, a flag of `struct rdma_addrinfo`: the address is to listen at.
const PASSIVE: c_int = 1;
const NUMERIC: c_int = 1 << 1;
/// `RAI_SA`, a flag of `struct rdma_addrinfo`: a subnet administrator resolves the name.
pub(super) const SA: c_int = 1 << 4;
/// `RAI_DNS`, a flag of `struct rdma_addrinfo`: the C library resolves the name.
pub(super) const DNS: c_int = 1 << 5;
/// `RDMA_PS_TCP`, a value of `enum rdma_port_space`.
pub(super) const TCP: c_int = 0x0106;
pub(super) const UDP: c_int = 0x0111;
pub(super) const IPOIB: c_int = 0x0002;
/// `IBV_QPT_RC`: the type of reliable connected queue pairs.
pub(super) const RC: c_int = 2;
const UD: c_int = 4;
/// `AF_IB`: the address family of InfiniBand, which no resolver knows.
const IB: c_int = 27;

/// Allocates zeroed memory for a result that the program will free.
fn room<T>(bytes: usize) -> Result<*mut T, Errno> {
    // SAFETY: `calloc` accepts any size.
    let room: *mut c_void = unsafe { libc::calloc(1, bytes.max(1)) };
    if room.is_null() { Err(Errno(libc::ENOMEM)) } else { Ok(room.cast()) }
}

/// Copies a socket address into memory that the program will free.
///
/// # Safety
/// `bytes` bytes may be read at `from`.
unsafe fn copy(from: *const libc::sockaddr, bytes: u32) -> Result<*mut libc::sockaddr, Errno> {
    let to: *mut libc::sockaddr = room(bytes as usize)?;
    // SAFETY: The caller guarantees the source, and the destination was allocated with that size.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), bytes as usize) };
    Ok(to)
}

/// Translates the program's hints into those of C's `getaddrinfo`.
fn translate(hints: &AddrInfo) -> libc::addrinfo {
    let mut flags = 0;
    if hints.ai_flags & PASSIVE != 0 {
        flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & NUMERIC != 0 {
        flags |= libc::AI_NUMERICHOST;
    }
    let datagrams = hints.ai_qp_type == UD;
    let protocol = match hints.ai_port_space {
        TCP => libc::IPPROTO_TCP,
        UDP | IPOIB => libc::IPPROTO_UDP,
        _ => 0,
    };
    libc::addrinfo {
        ai_flags: flags,
        ai_family: if hints.ai_family == IB { 0 } else { hints.ai_family },
        ai_socktype: match hints.ai_qp_type {
            0 => 0,
            _ if datagrams => libc::SOCK_DGRAM,
            _ => libc::SOCK_STREAM,
        },
        ai_protocol: protocol,
        ai_addrlen: 0,
        ai_addr: std::ptr::null_mut(),
        ai_canonname: std::ptr::null_mut(),
        ai_next: std::ptr::null_mut(),
    }
}

/// Translates a result of C's `getaddrinfo` into a `struct rdma_addrinfo`.
///
/// # Safety
/// `resolved` is a result of a successful `getaddrinfo`.
unsafe fn fill(
    to: &mut AddrInfo,
    resolved: &libc::addrinfo,
    hints: Option<&AddrInfo>,
) -> Result<(), Errno> {
    let hint = |of: fn(&AddrInfo) -> c_int| hints.map(of).filter(|hint| *hint != 0);
    let stream = resolved.ai_socktype == libc::SOCK_STREAM;
    to.ai_qp_type = hint(|h| h.ai_qp_type).unwrap_or(if stream { RC } else { UD });
    to.ai_port_space = hint(|h| h.ai_port_space).unwrap_or(if stream { TCP } else { UDP });
    to.ai_family = resolved.ai_family;
    // SAFETY: The caller guarantees it.
    let address = unsafe { copy(resolved.ai_addr, resolved.ai_addrlen) }?;
    let name = if resolved.ai_canonname.is_null() {
        std::ptr::null_mut()
    } else {
        // SAFETY: The pointer is not null, and the C library returns a string.
        unsafe { libc::strdup(resolved.ai_canonname) }
    };
    if hints.is_some_and(|h| h.ai_flags & PASSIVE != 0) {
        to.ai_flags = PASSIVE;
        (to.ai_src_addr, to.ai_src_len, to.ai_src_canonname) = (address, resolved.ai_addrlen, name);
    } else {
        (to.ai_dst_addr, to.ai_dst_len, to.ai_dst_canonname) = (address, resolved.ai_addrlen, name);
    }
    Ok(())
}

/// Resolves names by `getaddrinfo`; returns its code.
///
/// # Safety
/// Names are null or strings, and the hints are valid.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
    to: &mut AddrInfo,
) -> Result<c_int, Errno> {
    let wanted = hints.map(translate);
    let wanted = wanted.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut resolved = std::ptr::null_mut();
    // SAFETY: The caller guarantees it; the other pointers are to local variables.
    let code = unsafe { libc::getaddrinfo(node, service, wanted, &raw mut resolved) };
    if code != 0 {
        return Ok(code);
    }
    // SAFETY: `getaddrinfo` succeeded, so the list is not empty; it is freed below.
    let filled = unsafe { fill(to, &*resolved, hints) };
    // SAFETY: The list is not empty, and is freed once.
    unsafe { libc::freeaddrinfo(resolved) };
    filled.map(|()| 0)
}

/// Resolves names, or copies the hints if there are none; returns a code of `getaddrinfo`.
///
/// # Safety
/// Names are null or strings, and the hints are valid.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
    to: &mut AddrInfo,
) -> Result<c_int, Errno> {
    if !node.is_null() || !service.is_null() {
        // SAFETY: The caller guarantees it.
        let code = unsafe { look_up(node, service, hints, to) }?;
        if code != 0 {
            return Ok(code);
        }
    } else if let Some(hints) = hints {
        to.ai_flags = hints.ai_flags;
        to.ai_family = hints.ai_family;
        to.ai_qp_type = hints.ai_qp_type;
        to.ai_port_space = hints.ai_port_space;
        if hints.ai_dst_len > 0 && !hints.ai_dst_addr.is_null() {
            // SAFETY: The program states the length of its memory.
            to.ai_dst_addr = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) }?;
            to.ai_dst_len = hints.ai_dst_len;
        }
    }
    if let Some(hints) = hints
        && to.ai_src_len == 0
        && hints.ai_src_len > 0
        && !hints.ai_src_addr.is_null()
    {
        // SAFETY: The program states the length of its address.
        to.ai_src_addr = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) }?;
        to.ai_src_len = hints.ai_src_len;
    }
    Ok(0)
}

export! {
    /// Resolves a name and a service; returns a code of `getaddrinfo` if that fails.
    minus fn sprat_rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const AddrInfo,
        to: *mut *mut AddrInfo,
    ) -> c_int {
        // SAFETY: The program passes null or a valid structure.
        let hints = unsafe { hints.as_ref() };
        if to.is_null() || (node.is_null() && service.is_null() && hints.is_none()) {
            return Err(INVALID);
        }
        if hints.is_some_and(|h| h.ai_flags & SA != 0) {
            // iWARP has no subnet administrator that could resolve the service.
            let both = !node.is_null() || hints.is_some_and(|h| h.ai_flags & DNS != 0);
            return Err(if both {
                UNSUPPORTED
            } else if service.is_null() {
                INVALID
            } else {
                UNKNOWN
            });
        }
        // SAFETY: The program passes null or valid names and hints.
        match unsafe { resolved(node, service, hints) }? {
            Ok(resolved) => {
                // SAFETY: The pointer is not null, and the program lets this call write there.
                unsafe { to.write(resolved) };
                Ok(0)
            }
            Err(code) => Ok(code),
        }
    }
}

/// Resolves names into a new structure, or returns a code of `getaddrinfo`.
///
/// # Safety
/// Names are null or strings, and the hints are valid.
pub(super) unsafe fn resolved(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Result<Result<*mut AddrInfo, c_int>, Errno> {
    let resolved: *mut AddrInfo = room(size_of::<AddrInfo>())?;
    // SAFETY: The memory was allocated above, and all zeros are a valid `AddrInfo`. The caller
    // guarantees the rest.
    let code = unsafe { find(node, service, hints, &mut *resolved) };
    if code != Ok(0) {
        sprat_rdma_freeaddrinfo(resolved);
    }
    Ok(match code? {
        0 => Ok(resolved),
        code => Err(code),
    })
}

/// The state of an rdma_cm id's name resolution.
pub(super) enum Lookup {
    /// The id has no name resolution, or the program took its result.
    None,
    /// A name resolution of the rdma_cm id is running.
    UnderWay,
    /// The result of the rdma_cm id's name resolution waits for the program.
    Found(*mut AddrInfo),
}

impl Drop for Lookup {
    fn drop(&mut self) {
        if let Self::Found(resolved) = self {
            sprat_rdma_freeaddrinfo(*resolved);
        }
    }
}

export! {
    /// Frees a list of results of a name resolution.
    plain fn sprat_rdma_freeaddrinfo(first: *mut AddrInfo) {
        let mut at = first;
        // SAFETY: The pointer is null or a result of `rdma_getaddrinfo`; each piece is freed once.
        while let Some(info) = unsafe { at.as_ref() } {
            let pieces = [
                info.ai_connect,
                info.ai_route,
                info.ai_src_canonname.cast(),
                info.ai_dst_canonname.cast(),
                info.ai_src_addr.cast(),
                info.ai_dst_addr.cast(),
                at.cast(),
            ];
            at = info.ai_next;
            for piece in pieces {
                // SAFETY: Each piece is null or was allocated by the C library: programs that add
                // pieces of their own allocate them there too.
                unsafe { libc::free(piece) };
            }
        }
        Ok(())
    }
}
