//! The network of the tests of TCP: the kernel's end, a bridge that treats frames as bad lines do,
//! and our end, each in a namespace of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};

use rustix::net::{AddressFamily, SocketType, socket};
use sprat::internals::device::bridge::{Bridge, Line, LineCounters};
use sprat::internals::device::{self, AnyNic};
use sprat::tcp::{Options, Stack};
use sprat_proto::fault::Fault;
use sprat_proto::time::MS;
use sprat_sys::ethtool::{InterfaceOffload, set_offload};
use sprat_sys::netns::{Namespace, link};

/// The addresses of the kernel and of our stack.
pub(crate) const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 1);
pub(crate) const OURS: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 9);

/// Returns a port of the kernel.
pub(crate) fn kernel(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(KERNEL), port)
}

/// Returns a port of our stack.
pub(crate) fn ours(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(OURS), port)
}

/// Returns a line that loses this percentage of frames and takes half a millisecond.
pub(crate) fn lossy(percent: u32) -> Line {
    let fault = Fault { drop_ppm: percent * 10_000, ..Fault::default() };
    Line { fault, delay_ns: MS / 2, ..Line::default() }
}

/// The kernel's end, the bridge and our end.
pub(crate) struct Network {
    pub(crate) kernel: Namespace,
    ours: Namespace,
    stop: Arc<AtomicBool>,
    bridge: Option<JoinHandle<Bridge>>,
}

/// Switches the offloads of an interface off, so that what leaves it are frames of the wire.
pub(crate) fn without_offloads(dev: &str) {
    let index = link::find(dev).unwrap().index;
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    for offload in InterfaceOffload::ALL {
        set_offload(any.as_fd(), index, offload, false).unwrap();
    }
}

impl Network {
    /// Makes the network. The seed decides what becomes of each frame.
    pub(crate) fn new(line: Line, seed: u64) -> Self {
        let [kernel, middle, ours] = [(); 3].map(|()| Namespace::new().unwrap());
        link::veth([(&kernel, "end"), (&middle, "left")], 1500, 1).unwrap();
        link::veth([(&middle, "right"), (&ours, "end")], 1500, 1).unwrap();
        kernel.run(|| link::address("end", KERNEL.into(), 24)).unwrap().unwrap();
        for end in [&kernel, &ours] {
            end.run(|| without_offloads("end")).unwrap();
        }
        let open = |dev: &str| -> AnyNic {
            without_offloads(dev);
            let options = device::Options {
                dev: dev.to_owned(),
                promiscuous: true,
                no_offload: true,
                ..device::Options::default()
            };
            device::open("packet", &options).unwrap()
        };
        let devices = middle.run(|| [open("left"), open("right")]).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let mut bridge = Bridge::new(devices, [line; 2], seed);
        let bridge = spawn(move || {
            bridge.run(&stopping).unwrap();
            bridge
        });
        Self { kernel, ours, stop, bridge: Some(bridge) }
    }

    /// Opens our stack at its end, on a device of this kind.
    pub(crate) fn stack(&self, driver: &str, options: &Options) -> Stack {
        let open = || {
            let dev = match driver {
                "tap" => {
                    link::bridge("br0", 1500).unwrap();
                    link::attach("end", "br0").unwrap();
                    "dev=tap0,bridge=br0"
                }
                _ => "dev=end",
            };
            Stack::open(&format!("utcp+{driver}:{dev},host={OURS}"), options).unwrap()
        };
        self.ours.run(open).unwrap()
    }

    /// Ends the bridge, and returns what it has done to frames from the kernel and from us.
    pub(crate) fn end(mut self) -> [LineCounters; 2] {
        self.stop.store(true, Ordering::Relaxed);
        let bridge = self.bridge.take().unwrap().join().unwrap();
        [bridge.counters(0), bridge.counters(1)]
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.bridge.take().map(JoinHandle::join);
    }
}
