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
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

pub use sprat_sys::nic::Nic;

use crate::locator::DeviceFacts;
use sprat_proto::device::{Device, Headers, Info, Mac, Offload, RxOffload, Sent};

pub mod bond;
pub mod bridge;
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

/// A packet device of any kind, as [`open`] returns it. Calls of a memif cost about as much as
/// their work, so they are direct and the compiler inlines them; calls of the others go through a
/// table.
pub enum AnyNic {
    /// A memif, on both sides of which there is only memory.
    Memif(Box<memif::Memif>),
    /// A packet device of another kind, or one with a wrapper around it.
    Other(Box<dyn Nic>),
}

impl AnyNic {
    /// Puts a packet device behind a table of its methods.
    pub fn other(nic: impl Nic + 'static) -> Self {
        Self::Other(Box::new(nic))
    }
}

/// Calls one method of whichever packet device an [`AnyNic`] holds.
macro_rules! on {
    ($any:expr, $nic:ident => $call:expr) => {
        match $any {
            AnyNic::Memif($nic) => $call,
            AnyNic::Other($nic) => $call,
        }
    };
}

// The methods that are called for each frame or at each turn are inlined.
impl Device for AnyNic {
    #[inline(always)]
    fn recv_burst(&mut self) -> usize {
        on!(self, nic => nic.recv_burst())
    }
    #[inline(always)]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        on!(self, nic => nic.frame(i))
    }
    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        on!(self, nic => nic.append_left(i, range, bytes));
    }
    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        on!(self, nic => nic.send(parts, offload))
    }
    #[inline(always)]
    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent {
        on!(self, nic => nic.send_with_headers(headers, parts, len, offload))
    }
    #[inline(always)]
    fn flush(&mut self) {
        on!(self, nic => nic.flush());
    }
    fn info(&self) -> Info {
        on!(self, nic => nic.info())
    }
    fn rx_timestamp_ns(&self, i: usize) -> Option<u64> {
        on!(self, nic => nic.rx_timestamp_ns(i))
    }
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        on!(self, nic => nic.counters(each));
    }
}

impl Nic for AnyNic {
    fn fd(&self) -> BorrowedFd<'_> {
        on!(self, nic => nic.fd())
    }
    fn arm(&mut self) -> bool {
        on!(self, nic => nic.arm())
    }
    fn disarm(&mut self) {
        on!(self, nic => nic.disarm());
    }
    fn has_rx_timestamps(&self) -> bool {
        on!(self, nic => nic.has_rx_timestamps())
    }
    fn carries(&mut self) -> bool {
        on!(self, nic => nic.carries())
    }
    fn queues(&self) -> usize {
        on!(self, nic => nic.queues())
    }
}

/// The frames that a device has to deliver. It may deliver others; a device that shares its
/// interface with the kernel leaves the others to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Steer {
    /// Deliver frames to this IP address, and the frames that find it (ARP, neighbour discovery).
    /// `None`: all frames to the hardware address.
    pub addr: Option<IpAddr>,
    /// Of UDP datagrams and TCP segments to the address, deliver only those to this port. 0: those
    /// to all ports.
    pub port: u16,
}

/// Options of a packet device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The name of the device's interface.
    pub dev: String,
    /// The hardware address of the device; `None` takes the interface's. With an address of our own
    /// the kernel's stack ignores frames to us. Where a switch or a cloud passes only frames of the
    /// known address, ours has to be the interface's.
    pub mac: Option<Mac>,
    /// The frames that the device has to deliver. The default is all frames to the hardware address
    /// and to groups.
    pub steer: Steer,
    /// Deliver every frame, also those to other hardware addresses (`packet`).
    pub promiscuous: bool,
    /// Take received frames beyond the MTU: interfaces of one machine pass on what a kernel leaves
    /// to a card to cut, and drivers join segments (`xdp`; the others always take them).
    pub long_frames: bool,
    /// Compute checksums, and cut and join segments, in this process instead of the device: for
    /// measurements, and for kernels whose offloads are wrong.
    pub no_offload: bool,
    /// The interface's queue that the device uses, counted from 0; `None` uses all (`xdp`).
    pub queue: Option<u32>,
    /// The mode in which frames pass the kernel (`xdp`); `None` takes the fastest mode that works.
    pub xdp_mode: Option<XdpMode>,
    /// The longest payload of a frame in bytes; 0 stands for 1500. Only `dpdk` and a new `tap` use
    /// it; elsewhere the interface has an MTU.
    pub mtu: u16,
    /// Further arguments for DPDK's environment, besides those of the driver (`dpdk`, the first
    /// device of a process). With `dpdk`, `dev` is a PCI address (`0000:03:00.0`), or a virtual
    /// device's name and arguments (`net_af_packet0,iface=eth0`).
    pub eal: Vec<String>,
    /// The options of a `memif` device, which ignores all other options here.
    pub memif: Option<memif::Options>,
    /// The options of a `shm` device, which ignores all other options here.
    pub shm: Option<shm::Options>,
    /// The kernel's bridge that the interface is attached to (`tap`).
    pub bridge: Option<String>,
    /// Write every frame that the device sends or receives to this file ([`pcap`]).
    pub pcap: Option<PathBuf>,
    /// Several devices with this number on one interface share what arrives there, flow by flow
    /// (`packet`).
    pub group: Option<u16>,
}

/// The mode in which frames pass the kernel to an AF_XDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpMode {
    /// Zero-copy: the card writes frames to our memory.
    ZeroCopy,
    /// Native: the card's driver copies frames to our memory.
    Native,
    /// Generic: the kernel copies frames to our memory, behind any driver.
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

/// The reason why a packet device cannot be opened, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The process lacks a capability.
    #[error(
        "{driver} on {dev:?} needs {capability}: run as root, or allow it: setcap {}+ep PROGRAM",
        .capability.to_lowercase()
    )]
    NotPermitted {
        /// The name of the packet device's driver.
        driver: &'static str,
        /// The name of the device's interface.
        dev: String,
        /// The name of the missing capability, as in capabilities(7).
        capability: &'static str,
    },
    /// The user may not open the device node.
    #[error(
        "{driver} on {dev:?} needs {path}, which this user may not open: chmod a+rw {path}, as root"
    )]
    Closed {
        /// The name of the packet device's driver.
        driver: &'static str,
        /// The name of the device's interface.
        dev: String,
        /// The path of the device node.
        path: &'static str,
    },
    /// No interface has this name.
    #[error("there is no interface {dev:?} here; `ip link` shows those that there are")]
    NoDevice {
        /// The name of the missing interface.
        dev: String,
    },
    /// The device's interface is switched off.
    #[error("the interface {dev:?} is down: ip link set {dev} up")]
    Down {
        /// The name of the interface.
        dev: String,
    },
    /// This kernel or this interface lacks an ability that the driver needs.
    #[error("{driver} on {dev:?} is not to be had here: {what}")]
    Unsupported {
        /// The name of the packet device's driver.
        driver: &'static str,
        /// The name of the device's interface.
        dev: String,
        /// The ability that the kernel or the interface lacks.
        what: String,
    },
    /// No driver of packet devices has this name.
    #[error("there is no packet device {driver:?}; there are {all}", all = DeviceFacts::drivers())]
    UnknownDriver {
        /// The driver's name that the caller gave.
        driver: String,
    },
    /// A step of opening the device failed with an error of the kernel.
    #[error("{driver} on {dev:?}: {what}: {source}")]
    Failed {
        /// The name of the packet device's driver.
        driver: &'static str,
        /// The name of the device's interface.
        dev: String,
        /// The step of opening the device that failed.
        what: &'static str,
        /// The kernel's error for the failed step.
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

/// Opens a packet device of the kind `driver`, the part of a locator behind the `+`.
///
/// # Errors
/// [`OpenError`] says what is missing and what mends it.
pub fn open(driver: &str, options: &Options) -> Result<AnyNic, OpenError> {
    let Some(path) = options.pcap.clone().or_else(pcap::next) else {
        return plain(driver, options);
    };
    // A capture has whole frames.
    let memif = options.memif.clone().map(|memif| memif::Options { leaves: false, ..memif });
    let nic = plain(driver, &Options { memif, ..options.clone() })?;
    let capture =
        pcap::Capture::new(nic, &path, pcap::LIMIT).map_err(|source| OpenError::Failed {
            driver: "pcap",
            dev: options.dev.clone(),
            what: "making the capture's file",
            source,
        })?;
    Ok(AnyNic::other(capture))
}

/// Opens a packet device, without the capture that the options may ask for.
fn plain(driver: &str, options: &Options) -> Result<AnyNic, OpenError> {
    match driver {
        "packet" => Ok(AnyNic::other(packet::Packet::open(options)?)),
        "memif" => {
            let options = options.memif.clone().ok_or_else(|| OpenError::Unsupported {
                driver: "memif",
                dev: options.dev.clone(),
                what: "it is opened by a socket's path, not by an interface".into(),
            })?;
            let (driver, dev) = ("memif", options.socket.display().to_string());
            let failed = |source| OpenError::Failed { driver, dev, what: "opening", source };
            Ok(AnyNic::Memif(Box::new(memif::Memif::open(options).map_err(failed)?)))
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
            Ok(AnyNic::other(shm::Frames::open(&options).map_err(failed)?))
        }
        "tap" => Ok(AnyNic::other(tap::Tap::open(options)?)),
        "xdp" => Ok(AnyNic::other(xdp::Xdp::open(options)?)),
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
    Ok(AnyNic::other(dpdk::Dpdk::open(options).map_err(failed)?))
}

#[cfg(not(feature = "dpdk"))]
fn dpdk(options: &Options) -> Result<AnyNic, OpenError> {
    let what =
        "this program was built without it: apt-get install libdpdk-dev pkg-config, and then \
        cargo build --release -p sprat-cli --features dpdk"
            .into();
    Err(OpenError::Unsupported { driver: "dpdk", dev: options.dev.clone(), what })
}

/// Finds the interface that the options name, and checks that it is switched on.
fn interface(options: &Options) -> Result<sprat_sys::netns::link::Link, OpenError> {
    let dev = options.dev.clone();
    match sprat_sys::netns::link::find(&dev) {
        Ok(link) if link.up => Ok(link),
        Ok(_) => Err(OpenError::Down { dev }),
        Err(_) => Err(OpenError::NoDevice { dev }),
    }
}

/// Makes a random hardware address for a device that has none of its own: one station, locally
/// administered.
///
/// # Errors
/// No random numbers.
pub(crate) fn random_mac() -> io::Result<Mac> {
    let mut octets = [0; 6];
    getrandom::fill(&mut octets).map_err(io::Error::other)?;
    octets[0] = octets[0] & !1 | 2;
    Ok(Mac(octets))
}
