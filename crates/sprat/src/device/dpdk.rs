//! The driver `dpdk`: any poll-mode driver of DPDK, a card by its PCI address or a virtual device
//! by its arguments. Built with the feature `dpdk`, against the DPDK of the system.
//!
//! Frames are lent from DPDK's buffers and given back at the next `recv_burst`; frames to be sent
//! are copied into buffers once. The first device of a process starts DPDK's environment, without
//! its telemetry and shared configuration, with ordinary memory where there are no huge pages.
//!
//! A poll-mode driver has no descriptor that becomes readable with a frame. A timer wakes a sleeper
//! many times a second instead.
//!
//! Not here: segments and checksums, which are left to this side.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use sprat_proto::device::{
    BURST, Device, HEADER, Headers, Info, MAX_PARTS, Mac, Offload, RxOffload, Sent,
    send_concatenated,
};
use sprat_sys::dpdk::Port;

use super::{Nic, Options};

/// The longest time until a sleeping thread finds a frame that has arrived.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

/// A packet device that is a port of DPDK.
#[derive(Debug)]
pub struct Dpdk {
    port: Port,
    info: Info,
    /// The timer that wakes a sleeping thread.
    timer: OwnedFd,
    counted: Counted,
}

#[derive(Clone, Copy, Default, Debug)]
struct Counted {
    received: u64,
    sent: u64,
    refused: u64,
}

/// Returns the arguments that start DPDK's environment.
fn arguments(options: &Options) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["sprat", "--no-telemetry", "--no-shconf"].map(str::to_owned).to_vec();
    let says = |what: &str| options.eal.iter().any(|a| a == what);
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let huge = free.ok().and_then(|n| n.trim().parse().ok()).unwrap_or(0_u64);
    if huge < 64 && !says("--no-huge") {
        arguments.extend(["--no-huge", "-m", "256"].map(str::to_owned));
    }
    // A PCI address has a colon. A program with virtual devices only must not take cards from the
    // kernel.
    if !options.dev.split(',').next().unwrap_or_default().contains(':') && !says("--no-pci") {
        arguments.push("--no-pci".to_owned());
    }
    // DPDK logs what it finds on this machine, which is no news.
    if !options.eal.iter().any(|a| a.starts_with("--log-level")) {
        arguments.push("--log-level=warning".to_owned());
    }
    arguments.extend(options.eal.iter().cloned());
    arguments
}

impl Dpdk {
    /// Opens a DPDK port as a packet device.
    ///
    /// # Errors
    /// DPDK does not start (mostly: no memory, no rights), or knows no such device. DPDK writes the
    /// cause to standard error.
    pub fn open(options: &Options) -> io::Result<Self> {
        let mtu = if options.mtu == 0 { 1500 } else { options.mtu };
        let port = Port::open(&options.dev, mtu, || arguments(options))?;
        let info = Info::without_offloads(Mac(port.mac()), usize::from(port.mtu()));
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { port, info, timer, counted: Counted::default() })
    }

    /// Sends the frames that wait. Returns false if the device has no room for all of them now.
    fn send_collected(&mut self) -> bool {
        self.counted.sent += self.port.send() as u64;
        self.port.pending() == 0
    }
}

impl Device for Dpdk {
    fn recv_burst(&mut self) -> usize {
        let count = self.port.receive();
        self.counted.received += count as u64;
        count
    }

    #[inline]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        let (bytes, checked) = self.port.frame(i);
        (bytes, RxOffload { checksum_valid: checked, segment_size: 0, left: 0 })
    }

    fn append_left(&self, _: usize, _: Range<usize>, _: &mut Vec<u8>) {}

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if !(HEADER..=self.info.max_send).contains(&len)
            || parts.len() > MAX_PARTS
            || offload != Offload::None
        {
            self.counted.refused += 1;
            return Sent::Yes;
        }
        if self.port.pending() >= BURST && !self.send_collected() {
            return Sent::Full;
        }
        if self.port.put(parts) { Sent::Yes } else { Sent::Full }
    }

    #[inline]
    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        _: usize,
        offload: Offload,
    ) -> Sent {
        send_concatenated(self, headers, parts, offload)
    }

    fn flush(&mut self) {
        // Frames without room stay for the next flush.
        self.send_collected();
    }

    fn info(&self) -> Info {
        self.info
    }

    fn rx_timestamp_ns(&self, _: usize) -> Option<u64> {
        None
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("frames_received", self.counted.received);
        each("frames_sent", self.counted.sent);
        each("frames_cut", self.port.dropped());
        each("frames_refused", self.counted.refused);
    }
}

impl Nic for Dpdk {
    fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn arm(&mut self) -> bool {
        let setting =
            Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: SLEEP };
        // Setting the timer anew makes it unreadable. Without a timer the owner must not sleep.
        self.send_collected()
            && timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting).is_ok()
    }

    fn disarm(&mut self) {}

    fn carries(&mut self) -> bool {
        self.port.has_carrier()
    }

    fn has_rx_timestamps(&self) -> bool {
        false
    }

    fn queues(&self) -> usize {
        1
    }
}
