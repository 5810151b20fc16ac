//! The driver `dpdk`: any poll-mode driver of DPDK, a card by its PCI address or a virtual device by its arguments. Built with the
//! feature `dpdk`, against the DPDK of the system.
//!
//! Frames are lent from DPDK's buffers and given back at the next `recv_burst`; frames to be sent are copied into buffers once.
//! DPDK's environment is started once for a process, when the first device is opened, without its telemetry and shared
//! configuration, with ordinary memory where there are no huge pages.
//!
//! Always holds: a device is used by one thread at a time, who owns it; its buffers by nobody else. (A virtual device that shares
//! its buffers with another process, as `net_memif` with `zero-copy=yes`, breaks that: it is refused.)
//!
//! A poll-mode driver has nothing that wakes who sleeps, so that a timer does, many times a second.
//!
//! Not here: segments and checksums, which are left to this side.

use std::ffi::{CString, c_char, c_int};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use sprat_proto::device::{
    BURST, Device, HEADER, Headers, Info, MAX_PARTS, Mac, Offload, RxOffload, Sent,
    send_concatenated,
};

use super::{Nic, Options};

/// A buffer of DPDK's.
#[repr(C)]
struct Mbuf {
    _opaque: [u8; 0],
}

/// As in the shim.
#[repr(C)]
struct Port {
    mac: [u8; 6],
    mtu: u16,
    id: u16,
    pool: *mut Mbuf,
}

/// As in the shim.
#[repr(C)]
#[derive(Clone, Copy)]
struct Frame {
    bytes: *const u8,
    len: u32,
    checked: u32,
    mbuf: *mut Mbuf,
}

unsafe extern "C" {
    fn sprat_dpdk_start(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn sprat_dpdk_open(device: *const c_char, mtu: u16, frames: u16, out: *mut Port) -> c_int;
    fn sprat_dpdk_receive(port: u16, frames: *mut Frame, room: u16, dropped: *mut u64) -> u16;
    fn sprat_dpdk_free(mbuf: *mut Mbuf);
    fn sprat_dpdk_take(pool: *mut Mbuf, len: u16, room: *mut *mut u8) -> *mut Mbuf;
    fn sprat_dpdk_send(port: u16, mbufs: *mut *mut Mbuf, count: u16) -> u16;
    fn sprat_dpdk_carries(port: u16) -> c_int;
    fn sprat_dpdk_close(port: *mut Port);
}

/// How long a sleeper may be unaware of a frame.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

/// Whether the environment was started; it cannot be twice.
static STARTED: Mutex<bool> = Mutex::new(false);

/// A port of DPDK's.
pub struct Dpdk {
    port: Port,
    info: Info,
    /// Frames of the last burst, which are DPDK's until the next one.
    burst: [Frame; BURST],
    count: usize,
    out: Vec<NonNull<Mbuf>>,
    /// What wakes a sleeper.
    timer: OwnedFd,
    counted: Counted,
}

#[derive(Clone, Copy, Default, Debug)]
struct Counted {
    received: u64,
    sent: u64,
    dropped: u64,
    refused: u64,
}

// SAFETY: DPDK's ports and buffers may be used by any thread, as long as it is one at a time: the one that has `&mut self`.
unsafe impl Send for Dpdk {}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

fn checked(code: c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(()) }
}

/// What the environment is started with.
fn arguments(options: &Options) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["sprat", "--no-telemetry", "--no-shconf"].map(str::to_owned).to_vec();
    let says = |what: &str| options.eal.iter().any(|a| a == what);
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let huge = free.ok().and_then(|n| n.trim().parse().ok()).unwrap_or(0_u64);
    if huge < 64 && !says("--no-huge") {
        arguments.extend(["--no-huge", "-m", "256"].map(str::to_owned));
    }
    // A PCI address has a colon; whoever wants virtual devices only does not want cards taken from the kernel.
    if !options.dev.split(',').next().unwrap_or_default().contains(':') && !says("--no-pci") {
        arguments.push("--no-pci".to_owned());
    }
    // What it has found on this machine is not news.
    if !options.eal.iter().any(|a| a.starts_with("--log-level")) {
        arguments.push("--log-level=warning".to_owned());
    }
    arguments.extend(options.eal.iter().cloned());
    arguments
}

/// The environment, started if need be. Devices come and go one at a time, while this is held.
fn start(options: &Options) -> io::Result<MutexGuard<'static, bool>> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if *started {
        return Ok(started);
    }
    let arguments: Result<Vec<CString>, _> =
        arguments(options).into_iter().map(CString::new).collect();
    let arguments = arguments.map_err(|_| invalid("an argument for DPDK has a zero in it"))?;
    // They are leaked: DPDK keeps pointers to them.
    let mut pointers: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
    let count = pointers.len() as c_int;
    pointers.push(ptr::null_mut());
    let before = rustix::thread::sched_getaffinity(None);
    // SAFETY: as many strings as said and a null behind them, none of which is ever freed; the environment was not started before,
    // as the lock's value shows.
    let code = unsafe { sprat_dpdk_start(count, pointers.leak().as_mut_ptr()) };
    // It binds the thread that starts it to one processor, which is not its business here.
    if let Ok(before) = before {
        let _ = rustix::thread::sched_setaffinity(None, &before);
    }
    // A start that failed cannot be tried again in the same process.
    *started = true;
    checked(code).map(|()| started)
}

impl Dpdk {
    /// Opens a device.
    ///
    /// # Errors
    /// DPDK does not start (mostly: no memory, no rights), or knows no such device; what it has to say about that, it writes to
    /// standard error.
    pub fn open(options: &Options) -> io::Result<Self> {
        if options.dev.contains("zero-copy=yes") {
            return Err(invalid(
                "zero-copy=yes: a peer could change frames while they are looked at",
            ));
        }
        let device = CString::new(options.dev.as_str())
            .map_err(|_| invalid("a zero in the device's name"))?;
        let _started = start(options)?;
        let mut port = Port { mac: [0; 6], mtu: 0, id: 0, pool: ptr::null_mut() };
        let mtu = if options.mtu == 0 { 1500 } else { options.mtu };
        // SAFETY: a string that ends, and a structure that the shim fills in.
        checked(unsafe { sprat_dpdk_open(device.as_ptr(), mtu, BURST as u16, &raw mut port) })?;
        let info = Info::without_offloads(Mac(port.mac), usize::from(port.mtu));
        let none = Frame { bytes: ptr::null(), len: 0, checked: 0, mbuf: ptr::null_mut() };
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let (burst, out) = ([none; BURST], Vec::with_capacity(BURST));
        Ok(Self { port, info, burst, count: 0, out, timer, counted: Counted::default() })
    }

    fn give_back(&mut self) {
        for frame in &self.burst[..self.count] {
            // SAFETY: a buffer of the last burst, which is given back once: the count is reset below.
            unsafe { sprat_dpdk_free(frame.mbuf) };
        }
        self.count = 0;
    }

    /// Sends what is collected; false if the device has no room for all of it now.
    fn send_collected(&mut self) -> bool {
        if self.out.is_empty() {
            return true;
        }
        let count = self.out.len() as u16;
        // SAFETY: as many buffers as said, ours until the device takes them: those are forgotten below.
        let taken = unsafe { sprat_dpdk_send(self.port.id, self.out.as_mut_ptr().cast(), count) };
        self.counted.sent += u64::from(taken);
        self.out.drain(..usize::from(taken));
        self.out.is_empty()
    }
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        self.give_back();
        for mbuf in self.out.drain(..) {
            // SAFETY: a buffer that was filled and not sent.
            unsafe { sprat_dpdk_free(mbuf.as_ptr()) };
        }
        let _started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the port that was opened, once.
        unsafe { sprat_dpdk_close(&raw mut self.port) };
    }
}

impl Device for Dpdk {
    fn recv_burst(&mut self) -> usize {
        self.give_back();
        let dropped = &raw mut self.counted.dropped;
        // SAFETY: room for as many frames as said, and a counter.
        let got = unsafe {
            sprat_dpdk_receive(self.port.id, self.burst.as_mut_ptr(), BURST as u16, dropped)
        };
        self.count = usize::from(got);
        self.counted.received += u64::from(got);
        self.count
    }

    #[inline]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        let frame = &self.burst[..self.count][i];
        // SAFETY: a buffer that was received and not yet given back, which needs `self` mutably; that long, and nobody else's.
        let bytes = unsafe { std::slice::from_raw_parts(frame.bytes, frame.len as usize) };
        (bytes, RxOffload { checksum_valid: frame.checked != 0, segment_size: 0 })
    }

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if !(HEADER..=self.info.max_send).contains(&len)
            || parts.len() > MAX_PARTS
            || offload != Offload::None
        {
            self.counted.refused += 1;
            return Sent::Yes;
        }
        if self.out.len() >= BURST && !self.send_collected() {
            return Sent::Full;
        }
        let mut room = ptr::null_mut();
        // SAFETY: the pool of this port; a frame's length fits, as the MTU is 16 bits long and the shim made room for it.
        let mbuf = unsafe { sprat_dpdk_take(self.port.pool, len as u16, &raw mut room) };
        let Some(mbuf) = NonNull::new(mbuf) else { return Sent::Full };
        for part in parts {
            // SAFETY: the parts are `len` octets together, which is how much room there is; the buffer is nobody else's.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), room, part.len());
                room = room.add(part.len());
            }
        }
        self.out.push(mbuf);
        Sent::Yes
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
        // What finds no room stays for the next time.
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
        each("frames_cut", self.counted.dropped);
        each("frames_refused", self.counted.refused);
    }
}

impl Nic for Dpdk {
    fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn doze(&mut self) -> bool {
        let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: NAP };
        // Setting it anew takes back that it is readable. Without a timer nobody may sleep.
        self.send_collected()
            && timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting).is_ok()
    }

    fn wake(&mut self) {}

    fn carries(&mut self) -> bool {
        // SAFETY: a port that is open.
        unsafe { sprat_dpdk_carries(self.port.id) != 0 }
    }

    fn stamps(&self) -> bool {
        false
    }

    fn queues(&self) -> usize {
        1
    }
}
