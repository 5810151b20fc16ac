//! Conversion of socket addresses between C and Rust.

use std::ffi::c_int;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Once;

use crate::abi::attr::Gid;
use crate::entry::{Errno, INVALID};

/// Reads a socket address from C's memory.
///
/// # Errors
/// `EINVAL` if the pointer is null or the family is neither IPv4 nor IPv6.
///
/// # Safety
/// The pointer is null, or refers to an address of its family's size.
pub(super) unsafe fn read(at: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    if at.is_null() {
        return Err(INVALID);
    }
    // SAFETY: The pointer is not null; the read needs no alignment.
    match c_int::from(unsafe { (&raw const (*at).sa_family).read_unaligned() }) {
        libc::AF_INET => {
            // SAFETY: An address of this family has this size.
            let v4 = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: An address of this family has this size.
            let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => Err(INVALID),
    }
}

/// Writes a socket address to C's memory. An IPv4-mapped IPv6 address is written as IPv4.
///
/// # Safety
/// `to` may be written.
pub(super) unsafe fn write(to: *mut libc::sockaddr_storage, address: SocketAddr) {
    match SocketAddr::new(address.ip().to_canonical(), address.port()) {
        SocketAddr::V4(v4) => {
            let shape = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: v4.ip().to_bits().to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: The caller guarantees it. The storage has room and alignment for any address.
            unsafe { to.cast::<libc::sockaddr_in>().write(shape) };
        }
        SocketAddr::V6(v6) => {
            let (flow, scope) = match address {
                SocketAddr::V6(whole) => (whole.flowinfo(), whole.scope_id()),
                SocketAddr::V4(_) => (0, 0),
            };
            let shape = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: flow,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: scope,
            };
            // SAFETY: The caller guarantees it. The storage has room and alignment for any address.
            unsafe { to.cast::<libc::sockaddr_in6>().write(shape) };
        }
    }
}

/// The GID of an IP address.
pub(super) fn gid(ip: IpAddr) -> Gid {
    let raw = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    Gid { raw }
}

/// The wildcard address of the address family of `like`.
pub(super) fn wildcard(like: SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Prints once on standard error the reason why another machine is not served or reached, and how
/// to permit it.
pub(super) fn explain_restriction(address: SocketAddr, effect: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = writeln!(
            std::io::stderr(),
            "sprat: {} {effect}, because nothing is encrypted. \
             next: sprat exec --insecure-network, or SPRAT_INSECURE_NETWORK=1",
            address.ip()
        );
    });
}
