//! Packet devices: Ethernet frames in bursts, in and out, past the kernel's own network stack.
//!
//! [`open`] opens any of them as a [`Nic`]: the protocol's [`Device`], and a file descriptor to
//! sleep on, which the protocol must not see.
//!
//! | driver | device | rights |
//! | --- | --- | --- |
//! | `packet` | AF_PACKET, mapped: any interface, beside the kernel's stack | CAP_NET_RAW |
//! | `tap` | an interface of the kernel whose other end is this process | CAP_NET_ADMIN |
//! | `xdp` | AF_XDP: frames past the kernel's stack, by a program on the interface | see [`xdp`] |
//! | `dpdk` | any poll-mode driver of DPDK, in builds with the feature `dpdk` | by driver |
//! | `memif` | memory shared with another process, in the format of VPP and DPDK | none |
//! | `shm` | memory shared with other processes of Sprat | none |
//!
//! [`bond::Bond`] makes one device of two.
//!
//! Always holds: whatever a device holds in the kernel (sockets, rings, programs) ends with the
//! process, however the process ends. Not here: the meaning of frames (`sprat_proto::net`).

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::locator::DeviceFacts;
use sprat_proto::device::{Device, Headers, Info, Mac, Offload, RxOffload, Sent};

pub mod bond;
mod burst;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod fake;
pub mod fault;
mod filter;
pub mod memif;
pub mod packet;
pub mod pcap;
pub mod shm;
pub mod tap;
mod vnet;
pub mod xdp;

/// A [`Device`] of the real world. Never blocks; belongs to one thread. No method has a default,
/// which a wrapper could forget.
pub trait Nic: Device + Send {
    /// Readable when `recv_burst` has something after [`Nic::arm`] returned true.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The owner wants to sleep on [`Nic::fd`]: arrange to be woken. False if something has arrived
    /// meanwhile, so that it must not sleep; it then goes on as after [`Nic::disarm`].
    fn arm(&mut self) -> bool;

    /// The owner is awake and polls. Harmless without a `arm` before it.
    fn disarm(&mut self);

    /// True if each frame carries its time of arrival ([`Device::rx_timestamp_ns`]), by the
    /// kernel's time of day.
    fn stamps(&self) -> bool;

    /// True if it has a carrier: frames may reach the other end. Costs a system call or two.
    fn carries(&mut self) -> bool;

    /// The queues of its interface or link that it takes frames from.
    fn queues(&self) -> usize;
}

/// A device of whatever kind, as [`open`] gives it.
pub type AnyNic = Box<dyn Nic>;

impl Device for AnyNic {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        (**self).recv_burst()
    }
    #[inline]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        (**self).frame(i)
    }
    #[inline]
    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        (**self).send(parts, offload)
    }
    #[inline]
    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent {
        (**self).send_with_headers(headers, parts, len, offload)
    }
    #[inline]
    fn flush(&mut self) {
        (**self).flush();
    }
    fn info(&self) -> Info {
        (**self).info()
    }
    fn rx_timestamp_ns(&self, i: usize) -> Option<u64> {
        (**self).rx_timestamp_ns(i)
    }
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        (**self).counters(each);
    }
}

impl Nic for AnyNic {
    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }
    fn arm(&mut self) -> bool {
        (**self).arm()
    }
    fn disarm(&mut self) {
        (**self).disarm();
    }
    fn stamps(&self) -> bool {
        (**self).stamps()
    }
    fn carries(&mut self) -> bool {
        (**self).carries()
    }
    fn queues(&self) -> usize {
        (**self).queues()
    }
}

/// Which frames are wanted. A device delivers these and may deliver others; one that shares its
/// interface with the kernel leaves the others to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Steer {
    /// Frames to this IP address, and what finds it (ARP, neighbour discovery).
    pub addr: Option<IpAddr>,
    /// Of UDP datagrams and TCP segments to the address only those to this port. 0: all.
    pub port: u16,
}

/// Options of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The interface's name.
    pub dev: String,
    /// The address that we take; the interface's own if none is given. With an address of our own
    /// the kernel's stack does not touch frames to us; where a switch or a cloud lets only the
    /// known address pass, ours has to be the interface's.
    pub mac: Option<Mac>,
    /// Which frames are wanted: all to the hardware address, and those to groups, if it says
    /// nothing.
    pub steer: Steer,
    /// Leave checksums, and cutting and joining of segments, to this side: for measurements, and
    /// for kernels that have them wrong.
    pub no_offload: bool,
    /// Only this one of the interface's queues, counted from 0; all of them, if none is named
    /// (`xdp`).
    pub queue: Option<u32>,
    /// The mode in which frames pass the kernel (`xdp`); the fastest mode that works, if none is
    /// named.
    pub xdp_mode: Option<XdpMode>,
    /// The longest payload of a frame, 1500 if it is 0 (`dpdk` and a new `tap`; elsewhere the
    /// interface has one).
    pub mtu: u16,
    /// Arguments for DPDK's environment, besides those that the driver gives it (`dpdk`, the first
    /// device of a process). There `dev` is a PCI address (`0000:03:00.0`), or a virtual device's
    /// name and arguments (`net_af_packet0,iface=eth0`).
    pub eal: Vec<String>,
    /// The options of a `memif`, which ignores all others here.
    pub memif: Option<memif::Options>,
    /// The options of a `shm` device, which ignores all others here.
    pub shm: Option<shm::Options>,
    /// The kernel's bridge that the interface is attached to (`tap`).
    pub bridge: Option<String>,
    /// Write every frame to this file ([`pcap`]).
    pub pcap: Option<PathBuf>,
    /// Several devices with this number on one interface share what arrives there, flow by flow
    /// (`packet`).
    pub group: Option<u16>,
}

/// The mode in which frames pass the kernel to an AF_XDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpMode {
    /// The card writes them to our memory.
    ZeroCopy,
    /// The card's driver copies them.
    Native,
    /// The kernel copies them, behind any driver.
    Generic,
}

impl std::fmt::Display for XdpMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zero-copy mode",
            Self::Native => "native mode",
            Self::Generic => "generic mode",
        })
    }
}

/// The cause why a device cannot be opened, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A capability is missing.
    #[error(
        "{driver} on {dev:?} needs {capability}: run as root, or allow it: setcap {}+ep PROGRAM",
        .capability.to_lowercase()
    )]
    NotPermitted {
        /// The driver.
        driver: &'static str,
        /// The interface.
        dev: String,
        /// As capabilities(7) calls it.
        capability: &'static str,
    },
    /// The mode of a device node keeps this user out.
    #[error(
        "{driver} on {dev:?} needs {path}, which this user may not open: chmod a+rw {path}, as root"
    )]
    Closed {
        /// The driver.
        driver: &'static str,
        /// The interface.
        dev: String,
        /// The device node.
        path: &'static str,
    },
    /// There is no such interface.
    #[error("there is no interface {dev:?} here; `ip link` shows those that there are")]
    NoDevice {
        /// The device's name.
        dev: String,
    },
    /// The interface is switched off.
    #[error("the interface {dev:?} is down: ip link set {dev} up")]
    Down {
        /// The device's name.
        dev: String,
    },
    /// This kernel, or this interface, cannot.
    #[error("{driver} on {dev:?} is not to be had here: {what}")]
    Unsupported {
        /// The driver.
        driver: &'static str,
        /// The interface.
        dev: String,
        /// The missing ability.
        what: String,
    },
    /// There is no driver of that name.
    #[error("there is no packet device {driver:?}; there are {all}", all = DeviceFacts::drivers())]
    UnknownDriver {
        /// The name that was given.
        driver: String,
    },
    /// The machine failed.
    #[error("{driver} on {dev:?}: {what}: {source}")]
    Failed {
        /// The driver.
        driver: &'static str,
        /// The interface.
        dev: String,
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl From<OpenError> for io::Error {
    fn from(e: OpenError) -> Self {
        let kind = match &e {
            OpenError::NotPermitted { .. } | OpenError::Closed { .. } => {
                io::ErrorKind::PermissionDenied
            }
            OpenError::NoDevice { .. } => io::ErrorKind::NotFound,
            OpenError::Down { .. } => io::ErrorKind::NetworkDown,
            OpenError::Unsupported { .. } => io::ErrorKind::Unsupported,
            OpenError::UnknownDriver { .. } => io::ErrorKind::InvalidInput,
            OpenError::Failed { source, .. } => source.kind(),
        };
        Self::new(kind, e)
    }
}

/// Opens a device of the kind `driver`, the part of a locator behind the `+`.
///
/// # Errors
/// [`OpenError`] says what is missing and what mends it.
pub fn open(driver: &str, options: &Options) -> Result<AnyNic, OpenError> {
    let nic = plain(driver, options)?;
    let Some(path) = options.pcap.clone().or_else(pcap::next) else { return Ok(nic) };
    let capture =
        pcap::Capture::new(nic, &path, pcap::LIMIT).map_err(|source| OpenError::Failed {
            driver: "pcap",
            dev: options.dev.clone(),
            what: "making the capture's file",
            source,
        })?;
    Ok(Box::new(capture))
}

/// The device without anything around it.
fn plain(driver: &str, options: &Options) -> Result<AnyNic, OpenError> {
    match driver {
        "packet" => Ok(Box::new(packet::Packet::open(options)?)),
        "memif" => {
            let options = options.memif.clone().ok_or_else(|| OpenError::Unsupported {
                driver: "memif",
                dev: options.dev.clone(),
                what: "it is opened by a socket's path, not by an interface".into(),
            })?;
            let (driver, dev) = ("memif", options.socket.display().to_string());
            let failed = |source| OpenError::Failed { driver, dev, what: "opening", source };
            Ok(Box::new(memif::Memif::open(options).map_err(failed)?))
        }
        "shm" => {
            let options = options.shm.clone().ok_or_else(|| OpenError::Unsupported {
                driver: "shm",
                dev: options.dev.clone(),
                what: "it is opened by a name, not by an interface".into(),
            })?;
            let failed = |source| OpenError::Failed {
                driver: "shm",
                dev: options.name.clone(),
                what: "opening",
                source,
            };
            Ok(Box::new(shm::Frames::open(&options).map_err(failed)?))
        }
        "tap" => Ok(Box::new(tap::Tap::open(options)?)),
        "xdp" => Ok(Box::new(xdp::Xdp::open(options)?)),
        "dpdk" => dpdk(options),
        other => Err(OpenError::UnknownDriver { driver: other.into() }),
    }
}

#[cfg(feature = "dpdk")]
fn dpdk(options: &Options) -> Result<AnyNic, OpenError> {
    let failed = |source| OpenError::Failed {
        driver: "dpdk",
        dev: options.dev.clone(),
        what: "opening",
        source,
    };
    Ok(Box::new(dpdk::Dpdk::open(options).map_err(failed)?))
}

#[cfg(not(feature = "dpdk"))]
fn dpdk(options: &Options) -> Result<AnyNic, OpenError> {
    let what =
        "this program was built without it: apt-get install libdpdk-dev pkg-config, and then \
        cargo build --release -p sprat-cli --features dpdk"
            .into();
    Err(OpenError::Unsupported { driver: "dpdk", dev: options.dev.clone(), what })
}

/// The interface that `driver` is to be opened on, found and switched on.
fn interface(options: &Options) -> Result<sprat_sys::netns::link::Link, OpenError> {
    let dev = options.dev.clone();
    match sprat_sys::netns::link::find(&dev) {
        Ok(link) if link.up => Ok(link),
        Ok(_) => Err(OpenError::Down { dev }),
        Err(_) => Err(OpenError::NoDevice { dev }),
    }
}

/// An address for a device that has none of its own: one station, locally administered.
///
/// # Errors
/// No random numbers.
pub(crate) fn random_mac() -> io::Result<Mac> {
    let mut octets = [0; 6];
    getrandom::fill(&mut octets).map_err(io::Error::other)?;
    octets[0] = octets[0] & !1 | 2;
    Ok(Mac(octets))
}
