//! Network interfaces of the calling thread's network namespace. The functions read their state,
//! and make interfaces in namespaces of our own.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};

use sprat_proto::device::Mac;

use super::Namespace;
use super::message::{CREATE, Message, REPLACE, attributes, u16s, u32_at, u32s};

// linux/rtnetlink.h
const NEWLINK: u16 = 16;
const DELLINK: u16 = 17;
const GETLINK: u16 = 18;
const NEWADDR: u16 = 20;
const NEWNEIGH: u16 = 28;
// linux/if_link.h
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const MASTER: u16 = 10;
const LINKINFO: u16 = 18;
const NET_NS_FD: u16 = 28;
const XDP: u16 = 43;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const TX_QUEUES: u16 = 31;
const RX_QUEUES: u16 = 32;
const XDP_ATTACHED: u16 = 2;
const XDP_DRIVER: u16 = 5;
const XDP_KERNEL: u16 = 6;
// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_NODAD: u8 = 2;
// linux/neighbour.h
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u8 = 0x80;
// linux/if.h
const IFF_UP: u32 = 1;
const IFF_RUNNING: u32 = 0x40;
/// The limit of an interface's name in bytes, with the zero at its end.
const NAME_ROOM: usize = 16;

/// A network interface of the calling thread's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The interface's number (its index).
    pub index: u32,
    /// The interface's hardware address; zero for kinds without a hardware address of six bytes.
    pub mac: Mac,
    /// The interface's MTU, in bytes.
    pub mtu: usize,
    /// True if the interface is switched on.
    pub up: bool,
    /// True if the interface has a carrier: its other end exists and is switched on.
    pub running: bool,
    /// The kind of the interface: `veth`, `tun`, …; empty for hardware.
    pub kind: String,
    /// True if an XDP program is attached to the interface.
    pub xdp: bool,
    /// The numbers of the interface's XDP programs: the one that its driver runs, and the one that
    /// the kernel runs behind the driver.
    pub programs: [Option<u32>; 2],
    /// The most receive queues that the interface can have.
    pub queues: u32,
}

/// Makes an `ifinfomsg`, the fixed part of rtnetlink's messages about interfaces.
fn about(index: u32, flags: u32, change: u32) -> Vec<u8> {
    [&[0; 4], &u32s(index)[..], &u32s(flags), &u32s(change)].concat()
}

fn terminated(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

/// Returns the interface called `name`.
///
/// # Errors
/// `NotFound` if there is none of that name, which the error has.
pub fn find(name: &str) -> io::Result<Link> {
    let named = |e: io::Error| match e.raw_os_error() {
        Some(libc::ENODEV | libc::EINVAL | libc::ERANGE) => {
            io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name:?} here"))
        }
        _ => io::Error::new(e.kind(), format!("interface {name:?}: {e}")),
    };
    if name.is_empty() || name.len() >= NAME_ROOM || name.contains('\0') {
        return Err(named(io::Error::from_raw_os_error(libc::ENODEV)));
    }
    let answer = Message::new(GETLINK, 0, &about(0, 0, 0))
        .attribute(NAME, &terminated(name))
        .ask()
        .map_err(named)?;
    parse(&answer).ok_or_else(|| named(io::ErrorKind::InvalidData.into()))
}

/// Returns the interface with this number. `None` if it is gone.
///
/// # Errors
/// The kernel does not answer.
pub fn of_index(index: u32) -> io::Result<Option<Link>> {
    match Message::new(GETLINK, 0, &about(index, 0, 0)).ask() {
        Ok(answer) => Ok(parse(&answer)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)) => Ok(None),
        Err(e) => Err(e),
    }
}

fn parse(answer: &[u8]) -> Option<Link> {
    let flags = u32_at(answer, 8)?;
    let mut link = Link {
        index: u32_at(answer, 4)?,
        mac: Mac::default(),
        mtu: 0,
        up: flags & IFF_UP != 0,
        running: flags & IFF_RUNNING != 0,
        kind: String::new(),
        xdp: false,
        programs: [None; 2],
        queues: 1,
    };
    for (kind, value) in attributes(answer.get(16..)?) {
        match kind {
            ADDRESS => link.mac = value.try_into().map_or_else(|_| Mac::default(), Mac),
            MTU => link.mtu = u32_at(value, 0)? as usize,
            RX_QUEUES => link.queues = u32_at(value, 0)?,
            LINKINFO => {
                let name = attributes(value)
                    .find(|(kind, _)| *kind == INFO_KIND)
                    .map_or(&[][..], |(_, v)| v);
                link.kind = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
            }
            XDP => {
                link.xdp =
                    attributes(value).any(|(kind, v)| kind == XDP_ATTACHED && v.first() > Some(&0));
                let number = |wanted| attributes(value).find(|(kind, _)| *kind == wanted);
                link.programs = [XDP_DRIVER, XDP_KERNEL]
                    .map(|kind| number(kind).and_then(|(_, v)| u32_at(v, 0)));
            }
            _ => {}
        }
    }
    Some(link)
}

/// Parses any bytes as the kernel's answer about an interface, for the fuzzer.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    if let Some(link) = parse(bytes) {
        assert!(link.kind.len() <= 3 * bytes.len());
    }
}

/// Makes a veth pair: what one end sends, the other one receives. Each end lies in a namespace of
/// ours and is switched on; each has `queues` queues.
///
/// # Errors
/// The kernel has no veth, a name is taken, or the MTU is more than 65,535.
pub fn veth(ends: [(&Namespace, &str); 2], mtu: usize, queues: u32) -> io::Result<()> {
    let [(here, name), (there, peer)] = ends;
    let end = |message: Message, name: &str| {
        let message = message.attribute(NAME, &terminated(name)).attribute(MTU, &u32s(mtu as u32));
        message.attribute(TX_QUEUES, &u32s(queues)).attribute(RX_QUEUES, &u32s(queues))
    };
    let far = u32s(there.as_fd().as_raw_fd() as u32);
    here.run(|| {
        let message = end(Message::new(NEWLINK, CREATE, &about(0, 0, 0)), name);
        message
            .nest(LINKINFO, |m| {
                m.attribute(INFO_KIND, b"veth").nest(INFO_DATA, |m| {
                    m.nest(VETH_PEER, |m| {
                        end(m.raw(&about(0, 0, 0)), peer).attribute(NET_NS_FD, &far)
                    })
                })
            })
            .ask()
    })??;
    for (namespace, name) in ends {
        namespace.run(|| switch(name, true))??;
    }
    Ok(())
}

/// Makes a bridge and switches it on. The bridge passes frames that one attached interface receives
/// on to the others.
///
/// # Errors
/// The kernel has no bridges, the name is taken, or CAP_NET_ADMIN is missing.
pub fn bridge(name: &str, mtu: usize) -> io::Result<()> {
    Message::new(NEWLINK, CREATE, &about(0, 0, 0))
        .attribute(NAME, &terminated(name))
        .attribute(MTU, &u32s(mtu as u32))
        .nest(LINKINFO, |m| m.attribute(INFO_KIND, b"bridge"))
        .ask()?;
    switch(name, true)
}

/// Attaches an interface to a bridge.
///
/// # Errors
/// There is none of one name, the other is no bridge, or CAP_NET_ADMIN is missing.
pub fn attach(name: &str, bridge: &str) -> io::Result<()> {
    let (index, master) = (find(name)?.index, find(bridge)?.index);
    Message::new(NEWLINK, 0, &about(index, 0, 0)).attribute(MASTER, &u32s(master)).ask().map(drop)
}

/// Switches an interface on or off.
///
/// # Errors
/// There is none of that name, or CAP_NET_ADMIN is missing.
pub fn switch(name: &str, on: bool) -> io::Result<()> {
    let index = find(name)?.index;
    let flags = if on { IFF_UP } else { 0 };
    Message::new(NEWLINK, 0, &about(index, flags, IFF_UP)).ask().map(drop)
}

/// Sets the longest payload of an interface's frames.
///
/// # Errors
/// There is none of that name, it cannot have that MTU, or CAP_NET_ADMIN is missing.
pub fn set_mtu(name: &str, mtu: usize) -> io::Result<()> {
    let index = find(name)?.index;
    Message::new(NEWLINK, 0, &about(index, 0, 0)).attribute(MTU, &u32s(mtu as u32)).ask().map(drop)
}

/// Sets an interface's hardware address.
///
/// # Errors
/// There is none of that name, it cannot have that address, or CAP_NET_ADMIN is missing.
pub fn set_mac(name: &str, mac: Mac) -> io::Result<()> {
    let index = find(name)?.index;
    Message::new(NEWLINK, 0, &about(index, 0, 0)).attribute(ADDRESS, &mac.0).ask().map(drop)
}

/// Removes an interface, and with it the other end of a veth pair.
///
/// # Errors
/// There is none of that name, or CAP_NET_ADMIN is missing.
pub fn remove(name: &str) -> io::Result<()> {
    let index = find(name)?.index;
    Message::new(DELLINK, 0, &about(index, 0, 0)).ask().map(drop)
}

/// Gives an interface an address of the kernel's own IP, on a network of the first `prefix` bits.
///
/// # Errors
/// There is none of that name, it has the address, IPv6 is switched off, or CAP_NET_ADMIN is
/// missing.
pub fn address(name: &str, at: IpAddr, prefix: u8) -> io::Result<()> {
    let index = find(name)?.index;
    if at.is_ipv6() {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "0")?;
    }
    let octets = octets(at);
    let body = [&[family(at), prefix, IFA_NODAD, 0][..], &u32s(index)].concat();
    Message::new(NEWADDR, CREATE, &body)
        .attribute(IFA_LOCAL, &octets)
        .attribute(IFA_ADDRESS, &octets)
        .ask()
        .map(drop)
}

/// Gives the kernel a permanent entry for a neighbour: its IP address and its hardware address. It
/// takes the place of an entry for that IP address.
///
/// # Errors
/// There is no interface of that name, or CAP_NET_ADMIN is missing.
pub fn neighbour(name: &str, at: IpAddr, mac: Mac) -> io::Result<()> {
    let index = find(name)?.index;
    let state = u16s(u16::from(NUD_PERMANENT));
    let body = [&[family(at), 0, 0, 0], &u32s(index)[..], &state, &[0, 0]].concat();
    Message::new(NEWNEIGH, REPLACE, &body)
        .attribute(NDA_DST, &octets(at))
        .attribute(NDA_LLADDR, &mac.0)
        .ask()
        .map(drop)
}

fn family(at: IpAddr) -> u8 {
    if at.is_ipv6() { libc::AF_INET6 as u8 } else { libc::AF_INET as u8 }
}

fn octets(at: IpAddr) -> Vec<u8> {
    match at {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}
