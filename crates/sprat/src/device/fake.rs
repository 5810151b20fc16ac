//! Two packet devices that are wired to each other in memory. Tests use them, since they need no
//! root.
//!
//! Frames arrive in order. A full wire refuses frames ([`Sent::Full`]). Once one end is dropped,
//! the frames of the other end are lost, as on a cable.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use sprat_proto::device::{
    BURST, Device, HEADER, Headers, Info, MAX_PARTS, Mac, Offload, RxOffload, Sent,
    send_concatenated,
};

use super::Nic;

/// Number of frames that the wire holds in each direction.
const WIRE: usize = 256;

#[derive(Debug)]
struct Half {
    frames: Mutex<VecDeque<Vec<u8>>>,
    /// An eventfd that counts up when a frame arrives while the receiver sleeps.
    bell: OwnedFd,
}

impl Half {
    fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { frames: Mutex::new(VecDeque::new()), bell })
    }

    fn frames(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One end of a wire in memory, as a packet device.
#[derive(Debug)]
pub struct Fake {
    info: Info,
    incoming: Arc<Half>,
    outgoing: Arc<Half>,
    burst: Vec<Vec<u8>>,
    refused: u64,
}

/// Makes a wire with the MTU `mtu`, whose ends have the addresses `macs`.
///
/// # Errors
/// No file descriptors are left.
pub fn pair(macs: [Mac; 2], mtu: usize) -> io::Result<[Fake; 2]> {
    let (a, b) = (Arc::new(Half::new()?), Arc::new(Half::new()?));
    let end = |mac, incoming: &Arc<Half>, outgoing: &Arc<Half>| Fake {
        info: Info::without_offloads(mac, mtu),
        incoming: Arc::clone(incoming),
        outgoing: Arc::clone(outgoing),
        burst: Vec::new(),
        refused: 0,
    };
    Ok([end(macs[0], &a, &b), end(macs[1], &b, &a)])
}

impl Device for Fake {
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        let mut frames = self.incoming.frames();
        let n = frames.len().min(BURST);
        self.burst.extend(frames.drain(..n));
        n
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        (&self.burst[i], RxOffload::default())
    }

    fn append_left(&self, _: usize, _: Range<usize>, _: &mut Vec<u8>) {}

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        let bytes = parts.concat();
        let fits = (HEADER..=self.info.max_send).contains(&bytes.len()) && parts.len() <= MAX_PARTS;
        if !fits || offload != Offload::None {
            self.refused += 1;
            return Sent::Yes;
        }
        let mut frames = self.outgoing.frames();
        if frames.len() >= WIRE {
            return Sent::Full;
        }
        frames.push_back(bytes);
        drop(frames);
        // A full counter rings as well.
        let _ = rustix::io::write(&self.outgoing.bell, &1_u64.to_le_bytes());
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

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("frames_refused", self.refused);
    }
}

impl Nic for Fake {
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
