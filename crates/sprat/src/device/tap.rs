//! The driver `tap`: an interface of the kernel whose other end is this program (the kernel's
//! Documentation/networking/tuntap). Frames that the kernel sends on the interface arrive here.
//! Frames sent here arrive at the kernel, which may bridge them on.
//!
//! Each frame in either direction has a `virtio_net_hdr` (`vnet`) before it. Checksums, and the
//! cutting and joining of segments, are left to the receiver, which is this machine: without a wire
//! between, nothing computes them.
//!
//! Always holds: an interface that a device made ends with the device. Not here: queues, and IP
//! without Ethernet (tun).

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sprat_proto::device::{
    BURST, Device, HEADER, Headers, Info, MAX_FRAME, MAX_PARTS, Mac, Offload, Offloads, RxOffload,
    Sent, send_concatenated,
};

use super::{Nic, OpenError, Options, vnet};
use sprat_sys::netns::link;
use sprat_sys::socket;

const DRIVER: &str = "tap";
const NODE: &str = "/dev/net/tun";
/// The most bytes of one frame with the `virtio_net_hdr` before it.
const ROOM: usize = vnet::LEN + MAX_FRAME;

/// A packet device that is the outer end of a tap interface.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
    info: Info,
    offload: bool,
    bytes: Box<[u8]>,
    /// The offset and length in `bytes` of each frame of the last burst, and its offloads.
    burst: Vec<(usize, usize, RxOffload)>,
    gone: bool,
    counted: Counted,
}

#[derive(Debug, Default)]
struct Counted {
    received: u64,
    sent: u64,
    refused: u64,
    broken: u64,
    unsent: u64,
}

impl Tap {
    /// Opens the tap interface `options.dev`. Makes it and switches it on if it does not exist, and
    /// attaches it to `options.bridge`, if there is one. The device has the hardware address
    /// `options.mac`, or one made of the interface's.
    ///
    /// # Errors
    /// There is no /dev/net/tun or no such bridge, the node's mode keeps this user out,
    /// CAP_NET_ADMIN is missing, or another program has the interface.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let dev = || options.dev.clone();
        let failed =
            |what| move |source| OpenError::Failed { driver: DRIVER, dev: dev(), what, source };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(NODE, flags, Mode::empty()).map_err(|e| match e {
            Errno::NOENT | Errno::NODEV => OpenError::Unsupported {
                driver: DRIVER,
                dev: dev(),
                what: "there is no /dev/net/tun: modprobe tun".into(),
            },
            Errno::ACCESS | Errno::PERM => {
                OpenError::Closed { driver: DRIVER, dev: dev(), path: NODE }
            }
            e => failed(NODE)(e.into()),
        })?;
        socket::make_tap(file.as_fd(), &options.dev).map_err(|e| match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                OpenError::NotPermitted { driver: DRIVER, dev: dev(), capability: "CAP_NET_ADMIN" }
            }
            Some(libc::EBUSY) => OpenError::Unsupported {
                driver: DRIVER,
                dev: dev(),
                what: "another program has it open".into(),
            },
            Some(libc::EINVAL) => OpenError::Unsupported {
                driver: DRIVER,
                dev: dev(),
                what: "an interface of that name exists and is no tap, or the name is none".into(),
            },
            _ => failed("to make the interface")(e),
        })?;
        // Kernels before 6.2 know no segments of UDP.
        let udp = !options.no_offload && socket::tap_offload(file.as_fd(), true).is_ok();
        let offload =
            udp || (!options.no_offload && socket::tap_offload(file.as_fd(), false).is_ok());
        if options.mtu != 0 {
            link::set_mtu(&options.dev, usize::from(options.mtu))
                .map_err(failed("to set the MTU"))?;
        }
        if let Some(bridge) = &options.bridge {
            let no_bridge = |_| OpenError::NoDevice { dev: bridge.clone() };
            let bridge_mac = link::find(bridge).map_err(no_bridge)?.mac;
            keep_bridge_address(&options.dev, bridge_mac)
                .map_err(failed("to set the hardware address"))?;
            link::attach(&options.dev, bridge).map_err(failed("to attach it to the bridge"))?;
        }
        link::switch(&options.dev, true).map_err(failed("to switch the interface on"))?;
        let link = link::find(&options.dev).map_err(failed("to find the interface"))?;
        // The interface's own belongs to the kernel's side.
        let [a, b, c, d, e, f] = link.mac.0;
        let mac = options.mac.unwrap_or(Mac([a & !1 | 2, b, c, d, e, f ^ 1]));
        let offloads = Offloads { checksum: offload, tcp_segments: offload, udp_segments: udp };
        let max_send = if offload { MAX_FRAME } else { HEADER + link.mtu };
        Ok(Self {
            file,
            info: Info { mac, mtu: link.mtu, max_send, offloads },
            offload,
            bytes: vec![0; (BURST + 1) * ROOM].into(),
            burst: Vec::with_capacity(BURST),
            gone: false,
            counted: Counted::default(),
        })
    }

    /// Handles the loss of the interface. A dead tap fd polls readable forever; an eventfd that
    /// never fires replaces it.
    #[cold]
    fn lose(&mut self) {
        self.gone = true;
        if let Ok(silent) = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC) {
            self.file = silent;
        }
    }
}

/// Gives the interface `dev` a hardware address above the bridge's before it joins that bridge.
///
/// A bridge without an address of its own has the lowest of its members'. If it were the tap's, the
/// bridge's address would change when the tap comes and goes, and its neighbours would send to the
/// old one until they ask again.
fn keep_bridge_address(dev: &str, bridge: Mac) -> std::io::Result<()> {
    let mac = link::find(dev)?.mac;
    let high = above(mac, bridge);
    if high == mac { Ok(()) } else { link::set_mac(dev, high) }
}

/// Returns the address `mac` with a high first byte, the one of libvirt's taps, and with as many
/// high bytes after it as put it above `bridge`. The last three bytes stay.
fn above(mut mac: Mac, bridge: Mac) -> Mac {
    const FIRST: u8 = 0xfe;
    mac.0[0] = FIRST;
    for at in 1..3 {
        if mac.0 < bridge.0 {
            mac.0[at] = 0xff;
        }
    }
    mac
}

impl Device for Tap {
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        let mut at = 0;
        while self.burst.len() < BURST && !self.gone {
            match rustix::io::read(&self.file, &mut self.bytes[at..at + ROOM]) {
                Ok(n) if n >= vnet::LEN + HEADER => {
                    let mut header = [0; vnet::LEN];
                    header.copy_from_slice(&self.bytes[at..at + vnet::LEN]);
                    self.burst.push((at + vnet::LEN, at + n, vnet::arrival(header)));
                    at += n;
                }
                Ok(_) => self.counted.broken += 1,
                Err(Errno::INTR) => {}
                Err(Errno::BADFD) => self.lose(),
                Err(_) => break,
            }
        }
        self.counted.received += self.burst.len() as u64;
        self.burst.len()
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        let (start, end, arrival) = self.burst[i];
        (&self.bytes[start..end], arrival)
    }

    fn append_left(&self, _: usize, _: Range<usize>, _: &mut Vec<u8>) {}

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        if self.gone {
            return Sent::Gone;
        }
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let longest = match offload {
            Offload::Segments { .. } => self.info.max_send,
            _ => HEADER + self.info.mtu,
        };
        let fits = (HEADER..=longest).contains(&len) && parts.len() <= MAX_PARTS;
        if !fits || (offload != Offload::None && !self.offload) {
            self.counted.refused += 1;
            return Sent::Yes;
        }
        let vnet = vnet::emit(offload);
        let mut slices = [IoSlice::new(&[]); MAX_PARTS + 1];
        slices[0] = IoSlice::new(&vnet);
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match rustix::io::writev(&self.file, &slices[..=parts.len()]) {
            Ok(_) => {
                self.counted.sent += 1;
                return Sent::Yes;
            }
            Err(Errno::AGAIN) => return Sent::Full,
            Err(Errno::BADFD) => self.lose(),
            Err(_) => {}
        }
        self.counted.unsent += 1;
        if self.gone { Sent::Gone } else { Sent::Yes }
    }

    /// Sends a frame of headers and parts at once: no system call takes several.
    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        _: usize,
        offload: Offload,
    ) -> Sent {
        send_concatenated(self, headers, parts, offload)
    }

    fn flush(&mut self) {}

    fn info(&self) -> Info {
        self.info
    }

    fn rx_timestamp_ns(&self, _: usize) -> Option<u64> {
        None
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("frames_received", self.counted.received);
        each("frames_sent", self.counted.sent);
        each("frames_refused", self.counted.refused);
        each("frames_broken", self.counted.broken);
        each("frames_unsent", self.counted.unsent);
    }
}

impl Nic for Tap {
    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn disarm(&mut self) {}

    fn has_rx_timestamps(&self) -> bool {
        false
    }

    fn carries(&mut self) -> bool {
        true
    }

    fn queues(&self) -> usize {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_refused() {
        let error =
            Tap::open(&Options { dev: "a name that is far too long".into(), ..Options::default() });
        assert!(
            matches!(error, Err(OpenError::Unsupported { .. } | OpenError::Failed { .. })),
            "{error:?}"
        );
    }

    #[test]
    fn the_address_of_a_tap_is_above_its_bridges() {
        let above = |mac, bridge| above(Mac(mac), Mac(bridge)).0;
        let tap = [0x2a, 0x27, 0xc1, 0x4a, 0xf0, 0x50];
        let high = |mac: [u8; 3]| [mac[0], mac[1], mac[2], 0x4a, 0xf0, 0x50];
        assert_eq!(above(tap, [0x76, 9, 9, 9, 9, 9]), high([0xfe, 0x27, 0xc1]));
        // A bridge whose lowest member has the same first byte.
        let bridge = [0xfe, 0x35, 0xf4, 0xba, 0x50, 0x07];
        assert_eq!(above(tap, bridge), high([0xfe, 0xff, 0xc1]));
        assert_eq!(above(tap, [0xfe, 0xff, 0xc2, 0, 0, 0]), high([0xfe, 0xff, 0xff]));
        // A tap that is in the bridge already, whose address the bridge has.
        assert_eq!(above(bridge, bridge), bridge);
    }
}
