//! The state, the queues and the offloads of an interface, by a socket in the socket's network
//! namespace.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::socket::check;

/// The state of a network interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The interface does not exist any more.
    Gone,
    /// The interface or its other end is switched off.
    Down,
    /// The interface carries frames.
    Up,
}

/// The part of the kernel's `ifreq` that the requests here need: an interface's name, and a number,
/// flags or a pointer.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: Value,
}

#[repr(C)]
union Value {
    number: u32,
    flags: u16,
    ethtool: *mut u32,
    /// Makes the union as long as the kernel's.
    octets: [u64; 3],
}

/// The ethtool command that reads whether an interface has a carrier. The second number of the
/// answer says it.
const GET_LINK: u32 = 10;
/// The ethtool command that reads the numbers of queues (`ethtool_channels`). The last four of the
/// answer's nine numbers count the queues that receive, those that send, others, and those that do
/// both.
const GET_CHANNELS: u32 = 0x3c;

/// The ethtool command that reads whether an interface cuts TCP's segments.
const GET_TSO: u32 = 0x1e;
/// The ethtool commands that switch an offload: a checksum or a segmentation by the card, and the
/// joining of received segments (linux/ethtool.h).
const SET_TX_CHECKSUM: u32 = 0x17;
const SET_TSO: u32 = 0x1f;
const SET_GSO: u32 = 0x24;
const SET_GRO: u32 = 0x2c;

/// An offload of an interface that [`set_offload`] switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterfaceOffload {
    /// The interface computes the checksums of what it sends. Off means that the kernel does, and
    /// that the kernel cuts TCP's segments too.
    TransmitChecksum,
    /// The interface cuts TCP's segments (TSO).
    TcpSegmentation,
    /// The kernel cuts packets as late as it can (GSO).
    GenericSegmentation,
    /// The kernel joins received segments (GRO).
    GenericReceive,
}

impl InterfaceOffload {
    /// All offloads that make frames longer than the MTU, or leave them incomplete.
    pub const ALL: [Self; 4] = [
        Self::GenericReceive,
        Self::GenericSegmentation,
        Self::TcpSegmentation,
        Self::TransmitChecksum,
    ];
}

/// Returns true if the interface with this number cuts TCP's segments. For one that does not, the
/// kernel loses the frames of AF_PACKET that it has to cut itself (seen in 6.18).
///
/// # Errors
/// Its driver does not answer.
pub fn cuts_segments(socket: BorrowedFd<'_>, index: u32) -> io::Result<bool> {
    let mut request = named(socket, index)?;
    let mut value = [GET_TSO, 0];
    request.value.ethtool = value.as_mut_ptr();
    ask(socket, libc::SIOCETHTOOL, &mut request)?;
    Ok(value[1] != 0)
}

/// Switches an offload of the interface with this number on or off.
///
/// # Errors
/// The interface has no such offload, or CAP_NET_ADMIN is missing.
pub fn set_offload(
    socket: BorrowedFd<'_>,
    index: u32,
    offload: InterfaceOffload,
    is_on: bool,
) -> io::Result<()> {
    let command = match offload {
        InterfaceOffload::TransmitChecksum => SET_TX_CHECKSUM,
        InterfaceOffload::TcpSegmentation => SET_TSO,
        InterfaceOffload::GenericSegmentation => SET_GSO,
        InterfaceOffload::GenericReceive => SET_GRO,
    };
    let mut request = named(socket, index)?;
    let mut value = [command, u32::from(is_on)];
    request.value.ethtool = value.as_mut_ptr();
    ask(socket, libc::SIOCETHTOOL, &mut request)
}

fn ask(socket: BorrowedFd<'_>, what: libc::c_ulong, request: &mut Request) -> io::Result<()> {
    // SAFETY: the requests that are made here read and write one `ifreq`, which is borrowed mutably
    // and as long as the kernel's; what it points to, where it points to anything, outlives the
    // call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), what as libc::Ioctl, &raw mut *request) };
    check(done as isize).map(drop)
}

/// Returns the state of the interface with this number.
///
/// # Errors
/// The kernel does not answer.
pub fn presence(socket: BorrowedFd<'_>, index: u32) -> io::Result<Presence> {
    match is_up(socket, index) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
            Ok(Presence::Gone)
        }
        other => Ok(if other? { Presence::Up } else { Presence::Down }),
    }
}

/// Makes a request that has the name of the interface with this number.
fn named(socket: BorrowedFd<'_>, index: u32) -> io::Result<Request> {
    let mut request = Request { name: [0; libc::IFNAMSIZ], value: Value { octets: [0; 3] } };
    request.value.number = index;
    ask(socket, libc::SIOCGIFNAME, &mut request)?;
    Ok(request)
}

/// The numbers of an interface's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queues {
    /// Number of queues that receive.
    pub receive: u32,
    /// Number of queues that send.
    pub send: u32,
}

/// Returns the numbers of queues that the interface with this number uses.
///
/// # Errors
/// Its driver does not answer.
pub fn queues(socket: BorrowedFd<'_>, index: u32) -> io::Result<Queues> {
    let mut request = named(socket, index)?;
    let mut channels = [0; 9];
    channels[0] = GET_CHANNELS;
    request.value.ethtool = channels.as_mut_ptr();
    ask(socket, libc::SIOCETHTOOL, &mut request)?;
    let [.., receive, send, _, both] = channels;
    let all = Queues { receive: receive.saturating_add(both), send: send.saturating_add(both) };
    if all.receive == 0 || all.send == 0 { Err(io::ErrorKind::Unsupported.into()) } else { Ok(all) }
}

fn is_up(socket: BorrowedFd<'_>, index: u32) -> io::Result<bool> {
    let mut request = named(socket, index)?;
    ask(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the kernel wrote the flags; every pattern of bits is a number.
    let flags = libc::c_int::from(unsafe { request.value.flags });
    if flags & libc::IFF_UP == 0 {
        return Ok(false);
    }
    // The flags show a lost carrier up to a second later; the driver knows it at once, if it tells.
    let mut link = [GET_LINK, 0];
    request.value.ethtool = link.as_mut_ptr();
    match ask(socket, libc::SIOCETHTOOL, &mut request) {
        Ok(()) => Ok(link[1] != 0),
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(flags & libc::IFF_RUNNING != 0),
        Err(e) => Err(e),
    }
}
