//! The system calls that no safe library offers. They move several datagrams at once, with kernel
//! segmentation: `recvmmsg` with UDP_GRO, `sendmmsg` with UDP_SEGMENT, and their cheaper forms for
//! one datagram.
//!
//! The invariant that makes it sound: every pointer given to the kernel is to a local array or to a
//! slice borrowed for the whole call, its length is given beside it, and the kernel keeps none of
//! them after the call returns.

use std::io::{self, IoSlice};
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

use sprat_proto::datagrams::BURST;

use crate::socket::{self, check};

/// A socket address in the kernel's form: `sockaddr_in` and `sockaddr_in6` laid over each other.
/// The port is big-endian in both; `word` is the IPv4 address in one and the flow label in the
/// other.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Name {
    family: libc::sa_family_t,
    port: [u8; 2],
    word: [u8; 4],
    v6: [u8; 16],
    scope: u32,
}

const V4_LEN: usize = size_of::<libc::sockaddr_in>();
const V6_LEN: usize = size_of::<libc::sockaddr_in6>();
const _: () =
    assert!(size_of::<Name>() == V6_LEN && align_of::<Name>() == align_of::<libc::sockaddr_in6>());

impl Name {
    /// Makes the kernel's form of a socket address.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        let port = addr.port().to_be_bytes();
        match addr {
            SocketAddr::V4(a) => {
                Self { family: libc::AF_INET as _, port, word: a.ip().octets(), ..Self::default() }
            }
            SocketAddr::V6(a) => Self {
                family: libc::AF_INET6 as _,
                port,
                v6: a.ip().octets(),
                scope: a.scope_id(),
                word: [0; 4],
            },
        }
    }

    /// Returns the socket address. `None` if the kernel's address is of a family other than IPv4
    /// and IPv6. The flow label is left out, so that a peer has one address only.
    pub fn addr(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(self.port);
        match i32::from(self.family) {
            libc::AF_INET => {
                Some(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(self.word), port)))
            }
            libc::AF_INET6 => Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(self.v6),
                port,
                0,
                self.scope,
            ))),
            _ => None,
        }
    }

    fn len(&self) -> usize {
        if i32::from(self.family) == libc::AF_INET { V4_LEN } else { V6_LEN }
    }
}

/// A control message with one value: a `cmsghdr`, the value, and the kernel's padding.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
struct Control<T> {
    len: usize,
    level: libc::c_int,
    kind: libc::c_int,
    value: T,
}

/// The result of one receive, whose bytes are in the buffer of the same number.
#[derive(Clone, Copy, Default)]
pub struct Received {
    /// The number of bytes that the receive put into the buffer.
    pub len: usize,
    /// The address of the datagram's sender.
    pub from: Name,
    /// The length in bytes of each datagram but the last, if the kernel joined several datagrams.
    pub segment: Option<usize>,
    /// True if the datagram or its control messages did not fit the buffer.
    pub truncated: bool,
}

/// The most messages that one call of [`recv`] receives.
pub const MAX_RECV: usize = 64;
/// The messages up to which [`recv`] makes a smaller call, whose arrays cost less to prepare.
const FEW: usize = 8;

/// Receives one message into `buffer`. If `named`, the result has the sender's address, which a
/// connected socket knows anyway.
pub fn recv_one(fd: BorrowedFd<'_>, buffer: &mut [u8], named: bool) -> io::Result<Received> {
    let mut name = Name::default();
    let mut control = Control::<libc::c_int>::default();
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `msghdr` is a plain C structure for which all zeros is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    if named {
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = V6_LEN as _;
    }
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points to variables of this function and to `buffer`, all writable, alive
    // during the call, and as long as it says.
    let len = check(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, 0) })?;
    Ok(received(&header, &control, name, len))
}

/// Receives up to `out.len()` messages (at most [`MAX_RECV`]), the i-th into `buffer[i *
/// stride..]`. Returns the number of messages.
pub fn recv(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    stride: usize,
    out: &mut [Received],
) -> io::Result<usize> {
    if out.len() <= FEW {
        recv_most::<FEW>(fd, buffer, stride, out)
    } else {
        recv_most::<MAX_RECV>(fd, buffer, stride, out)
    }
}

/// Receives at most `N` messages as [`recv`] does.
fn recv_most<const N: usize>(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    stride: usize,
    out: &mut [Received],
) -> io::Result<usize> {
    let n = out.len().min(N);
    let mut names = [Name::default(); N];
    let mut controls = [Control::<libc::c_int>::default(); N];
    // SAFETY: `iovec` and `mmsghdr` are plain C structures for which all zeros is a value.
    let (mut iovs, mut msgs): ([libc::iovec; N], [libc::mmsghdr; N]) = unsafe { mem::zeroed() };
    for (i, piece) in buffer.chunks_exact_mut(stride).take(n).enumerate() {
        iovs[i] = libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
        let header = &mut msgs[i].msg_hdr;
        header.msg_name = (&raw mut names[i]).cast();
        header.msg_namelen = V6_LEN as _;
        header.msg_iov = &raw mut iovs[i];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut controls[i]).cast();
        header.msg_controllen = size_of_val(&controls[i]) as _;
    }
    // SAFETY: each of the `n` headers points to arrays of this function and to a piece of `buffer`,
    // all writable, alive during the call, and as long as it says (`buffer` has a piece for each:
    // if it had fewer, the rest would say that they have no room at all).
    let got =
        unsafe { libc::recvmmsg(fd.as_raw_fd(), msgs.as_mut_ptr(), n as _, 0, ptr::null_mut()) };
    let got = check(got as isize)?;
    for (i, msg) in msgs[..got].iter().enumerate() {
        out[i] = received(&msg.msg_hdr, &controls[i], names[i], msg.msg_len as usize);
    }
    Ok(got)
}

fn received(
    header: &libc::msghdr,
    control: &Control<libc::c_int>,
    from: Name,
    len: usize,
) -> Received {
    let joined = header.msg_controllen >= control_len::<libc::c_int>()
        && (control.level, control.kind) == (libc::SOL_UDP, libc::UDP_GRO);
    Received {
        len,
        from,
        segment: joined.then(|| usize::try_from(control.value).unwrap_or(0)).filter(|s| *s > 0),
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
    }
}

/// Datagrams of one length (the last may be shorter) to one peer, which one system call sends.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// The receiver's address. A connected socket does not use it.
    pub to: &'a Name,
    /// The bytes of the datagrams, end to end. If there are several, each piece has whole ones.
    pub pieces: &'a [IoSlice<'a>],
    /// The length in bytes of each datagram, if there are several.
    pub segment: Option<u16>,
}

/// Sends one datagram, to `to` or to the peer of a connected socket.
pub fn send_one(fd: BorrowedFd<'_>, to: Option<&Name>, bytes: &[u8]) -> io::Result<()> {
    let (name, len) =
        to.map_or((ptr::null(), 0), |name| ((&raw const *name).cast(), name.len() as _));
    // SAFETY: both pointers are of borrowed values that are as long as the lengths beside them
    // (`Name` has room for the longer of the two forms), or null with a length of 0; the kernel
    // only reads them.
    let sent =
        unsafe { libc::sendto(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0, name, len) };
    check(sent).map(drop)
}

/// Sends up to [`BURST`] items in one call and returns how many it sent; an error concerns the
/// first item. `named` is false for a connected socket, which needs no addresses.
pub fn send(fd: BorrowedFd<'_>, items: &[Outgoing<'_>], named: bool) -> io::Result<usize> {
    let mut controls = [Control::<u16>::default(); BURST];
    // SAFETY: `mmsghdr` is a plain C structure for which all zeros is a value.
    let mut msgs: [libc::mmsghdr; BURST] = unsafe { mem::zeroed() };
    let n = items.len().min(BURST);
    for (i, item) in items[..n].iter().enumerate() {
        let header = &mut msgs[i].msg_hdr;
        if named {
            header.msg_name = (&raw const *item.to).cast_mut().cast();
            header.msg_namelen = item.to.len() as _;
        }
        // `IoSlice` has the layout of `iovec`.
        header.msg_iov = item.pieces.as_ptr().cast_mut().cast();
        header.msg_iovlen = item.pieces.len() as _;
        if let Some(value) = item.segment {
            controls[i] = Control {
                len: control_len::<u16>() as _,
                level: libc::SOL_UDP,
                kind: libc::UDP_SEGMENT,
                value,
            };
            header.msg_control = (&raw mut controls[i]).cast();
            header.msg_controllen = size_of_val(&controls[i]) as _;
        }
    }
    // SAFETY: the first `n` headers point to an array of this function, and to names and lists of
    // slices that `items` borrows, alive during the call and as long as they say; sending only
    // reads what they point to.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), msgs.as_mut_ptr(), n as _, 0) };
    check(sent as isize)
}

/// The length of a control message with a value of type `T`: the kernel's `CMSG_LEN`.
const fn control_len<T>() -> usize {
    mem::offset_of!(Control<T>, value) + size_of::<T>()
}

/// Turns UDP_GRO on, so that one receive may return several datagrams of one peer.
pub fn set_gro(fd: BorrowedFd<'_>) -> io::Result<()> {
    socket::set(fd, libc::SOL_UDP, libc::UDP_GRO, &1)
}
