//! Two devices over our own TCP, on packet devices that are wired to each other in memory.
//!
//! Frames arrive in order, unless a test has another [`Fate`] for them. A full wire refuses frames
//! ([`Sent::Full`]), and a bell wakes a receiver that sleeps.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use sprat_proto::Rng;
use sprat_proto::device::{
    BURST, Device as Frames, Headers, Info, Mac, Offload, RxOffload, Sent, send_concatenated,
};
use sprat_proto::net::{Interface, Ipv4Assignment, StackOptions};
use sprat_rdma::{Device, Options};
use sprat_sys::clock;
use sprat_sys::nic::Nic;

/// The number of frames that the wire holds in each direction.
const WIRE: usize = 256;
const MTU: usize = 1500;

/// Returns the frames that arrive when one is sent.
pub(crate) type Fate = Box<dyn FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send>;

/// One direction of the wire.
pub(crate) struct Half {
    frames: Mutex<VecDeque<Vec<u8>>>,
    fate: Mutex<Fate>,
    bell: OwnedFd,
}

impl Half {
    fn new() -> Self {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let fate: Fate = Box::new(|frame| vec![frame]);
        Self { frames: Mutex::default(), fate: Mutex::new(fate), bell }
    }

    /// Sets the fate of the frames that are sent from now on.
    pub(crate) fn set_fate(&self, fate: Fate) {
        *self.fate.lock().unwrap() = fate;
    }

    /// Lets a frame arrive.
    pub(crate) fn deliver(&self, frame: Vec<u8>) {
        self.frames().push_back(frame);
        // A full counter rings as well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_le_bytes());
    }

    fn frames(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One end of the wire.
struct End {
    info: Info,
    incoming: Arc<Half>,
    outgoing: Arc<Half>,
    burst: Vec<Vec<u8>>,
}

impl Frames for End {
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        let mut frames = self.incoming.frames();
        let count = frames.len().min(BURST);
        self.burst.extend(frames.drain(..count));
        count
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        (&self.burst[i], RxOffload::default())
    }

    fn append_left(&self, _: usize, _: Range<usize>, _: &mut Vec<u8>) {}

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        let bytes = parts.concat();
        assert!(offload == Offload::None && bytes.len() <= self.info.max_send, "a frame fits");
        if self.outgoing.frames().len() >= WIRE {
            return Sent::Full;
        }
        let arriving = self.outgoing.fate.lock().unwrap()(bytes);
        arriving.into_iter().for_each(|frame| self.outgoing.deliver(frame));
        Sent::Yes
    }

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

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

impl Nic for End {
    fn fd(&self) -> BorrowedFd<'_> {
        self.incoming.bell.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.disarm();
        self.incoming.frames().is_empty()
    }

    fn disarm(&mut self) {
        let _ = rustix::io::read(&self.incoming.bell, &mut [0; 8]);
    }

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

/// Two devices on a wire of their own, 10.0.0.1 and 10.0.0.2.
pub(crate) fn devices(options: Options) -> [Device; 2] {
    wired(options).0
}

/// Two devices, and the wire from the first to the second and back.
pub(crate) fn wired(options: Options) -> ([Device; 2], [Arc<Half>; 2]) {
    let (there, back) = (Arc::new(Half::new()), Arc::new(Half::new()));
    let devices = [(1, &back, &there), (2, &there, &back)].map(|(number, incoming, outgoing)| {
        let end = End {
            info: Info::without_offloads(Mac([2, 0, 0, 0, 0, number]), MTU),
            incoming: Arc::clone(incoming),
            outgoing: Arc::clone(outgoing),
            burst: Vec::new(),
        };
        let addr = Ipv4Addr::new(10, 0, 0, number);
        let ipv4 = Ipv4Assignment::Static { addr, prefix: 24 };
        let stack = StackOptions { ipv4, ..StackOptions::default() };
        let rng = Rng::seeded(number.into());
        let mut interface = Interface::new(stack, Box::new(end) as Box<dyn Nic>, rng);
        interface.tick(clock::now());
        Device::open_on(options, interface).unwrap()
    });
    (devices, [there, back])
}
