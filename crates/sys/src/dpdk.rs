//! DPDK's ports, by a shim in C (`dpdk/shim.c`): most of DPDK's calls for frames are inline
//! functions in headers. Built with the feature `dpdk`.
//!
//! DPDK's environment is started once in a process, with the first port.
//!
//! Always holds: a port is used by one thread at a time, the one that has it mutably, and no other
//! process writes its buffers. A virtual device that shares its buffers (`net_memif` with
//! `zero-copy=yes`) would break that, so [`Port::open`] refuses it.
//!
//! Not here: which arguments the environment needs, and how to sleep.

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sprat_proto::device::BURST;

/// A buffer of DPDK (`rte_mbuf`) or a pool of buffers.
#[repr(C)]
struct Mbuf {
    _opaque: [u8; 0],
}

/// An open port, as the C shim has it (`struct sprat_port`).
#[repr(C)]
struct Raw {
    mac: [u8; 6],
    mtu: u16,
    id: u16,
    pool: *mut Mbuf,
}

/// A received frame, as the C shim has it (`struct sprat_frame`).
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
    fn sprat_dpdk_open(device: *const c_char, mtu: u16, frames: u16, out: *mut Raw) -> c_int;
    fn sprat_dpdk_receive(port: u16, frames: *mut Frame, room: u16, dropped: *mut u64) -> u16;
    fn sprat_dpdk_free(mbuf: *mut Mbuf);
    fn sprat_dpdk_take(pool: *mut Mbuf, len: u16, room: *mut *mut u8) -> *mut Mbuf;
    fn sprat_dpdk_send(port: u16, mbufs: *mut *mut Mbuf, count: u16) -> u16;
    fn sprat_dpdk_carries(port: u16) -> c_int;
    fn sprat_dpdk_close(port: *mut Raw);
}

/// True once DPDK's environment was started. A process can start it only once.
static STARTED: Mutex<bool> = Mutex::new(false);

/// An open DPDK port with its pool of buffers.
pub struct Port {
    raw: Raw,
    /// Frames of the last burst, which DPDK gets back before the next burst.
    burst: [Frame; BURST],
    count: usize,
    out: Vec<NonNull<Mbuf>>,
    dropped: u64,
}

// SAFETY: DPDK's ports and buffers may be used by any thread, one at a time: the thread that has
// `&mut self`, or those that read lent frames.
unsafe impl Send for Port {}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({})", self.raw.id)
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

fn checked(code: c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(()) }
}

/// Locks DPDK's environment, and starts it if it has not been started. Ports are opened and closed
/// one at a time, under this lock.
fn start(arguments: impl FnOnce() -> Vec<String>) -> io::Result<MutexGuard<'static, bool>> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if *started {
        return Ok(started);
    }
    let arguments: Result<Vec<CString>, _> = arguments().into_iter().map(CString::new).collect();
    let arguments = arguments.map_err(|_| invalid("an argument for DPDK has a zero byte in it"))?;
    // They are leaked: DPDK keeps pointers to them.
    let mut pointers: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
    let count = pointers.len() as c_int;
    pointers.push(ptr::null_mut());
    let before = rustix::thread::sched_getaffinity(None);
    // SAFETY: `count` strings and a null behind them, none of which is ever freed. The environment
    // was not started before, as the lock's value shows.
    let code = unsafe { sprat_dpdk_start(count, pointers.leak().as_mut_ptr()) };
    // DPDK binds the thread that starts it to one processor.
    if let Ok(before) = before {
        let _ = rustix::thread::sched_setaffinity(None, &before);
    }
    // A start that failed cannot be tried again in the same process.
    *started = true;
    checked(code).map(|()| started)
}

impl Port {
    /// Opens the port of `device`: a PCI address, or a virtual device's name and arguments. The
    /// first port of a process starts DPDK's environment with `arguments`.
    ///
    /// # Errors
    /// DPDK does not start (mostly: no memory, no rights), or knows no such device. DPDK writes the
    /// cause to standard error.
    pub fn open(
        device: &str,
        mtu: u16,
        arguments: impl FnOnce() -> Vec<String>,
    ) -> io::Result<Self> {
        if device.contains("zero-copy=yes") {
            return Err(invalid("zero-copy=yes: a peer could change frames while they are read"));
        }
        let device =
            CString::new(device).map_err(|_| invalid("the device's name has a zero byte in it"))?;
        let _started = start(arguments)?;
        let mut raw = Raw { mac: [0; 6], mtu: 0, id: 0, pool: ptr::null_mut() };
        // SAFETY: a string that ends with a zero, and a structure that the shim fills in.
        checked(unsafe { sprat_dpdk_open(device.as_ptr(), mtu, BURST as u16, &raw mut raw) })?;
        let none = Frame { bytes: ptr::null(), len: 0, checked: 0, mbuf: ptr::null_mut() };
        let out = Vec::with_capacity(BURST);
        Ok(Self { raw, burst: [none; BURST], count: 0, out, dropped: 0 })
    }

    /// Returns the port's hardware address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.raw.mac
    }

    /// Returns the longest payload of the port's frames, in bytes.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.raw.mtu
    }

    /// Returns the number of frames that arrived in several buffers and could not be joined.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Gives the frames of the last burst back to DPDK.
    fn release(&mut self) {
        for frame in &self.burst[..std::mem::take(&mut self.count)] {
            // SAFETY: a buffer of the last burst, which is given back once: the count is 0 now.
            unsafe { sprat_dpdk_free(frame.mbuf) };
        }
    }

    /// Gives the frames of the last burst back to DPDK and receives the next burst. Returns its
    /// number of frames.
    #[inline]
    pub fn receive(&mut self) -> usize {
        self.release();
        let (frames, dropped) = (self.burst.as_mut_ptr(), &raw mut self.dropped);
        // SAFETY: room for as many frames as said, and a counter.
        let got = unsafe { sprat_dpdk_receive(self.raw.id, frames, BURST as u16, dropped) };
        self.count = usize::from(got);
        self.count
    }

    /// Returns the bytes of frame `i` of the last burst, and whether the device has verified the
    /// transport's checksum.
    ///
    /// # Panics
    /// If the burst has fewer frames.
    #[inline]
    #[must_use]
    pub fn frame(&self, i: usize) -> (&[u8], bool) {
        let frame = &self.burst[..self.count][i];
        // SAFETY: a buffer that was received and not yet released, which needs `self` mutably; no
        // one else has it.
        let bytes = unsafe { std::slice::from_raw_parts(frame.bytes, frame.len as usize) };
        (bytes, frame.checked != 0)
    }

    /// Returns the number of frames that were put and not yet sent.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> usize {
        self.out.len()
    }

    /// Copies a frame into a buffer, for the next [`Port::send`]. Returns false if no buffer is
    /// free, or if the frame is too long for one.
    #[inline]
    #[must_use]
    pub fn put(&mut self, parts: &[&[u8]]) -> bool {
        let Ok(len) = u16::try_from(parts.iter().map(|p| p.len()).sum::<usize>()) else {
            return false;
        };
        let mut room = ptr::null_mut();
        // SAFETY: the pool of this port. The shim returns a buffer with room for `len` bytes, or
        // null.
        let mbuf = unsafe { sprat_dpdk_take(self.raw.pool, len, &raw mut room) };
        let Some(mbuf) = NonNull::new(mbuf) else { return false };
        for part in parts {
            // SAFETY: the parts are `len` bytes together, which is how much room there is. The
            // buffer belongs to this port alone.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), room, part.len());
                room = room.add(part.len());
            }
        }
        self.out.push(mbuf);
        true
    }

    /// Sends pending frames, and returns the number of frames that the device took.
    #[inline]
    pub fn send(&mut self) -> usize {
        let count = self.out.len().min(usize::from(u16::MAX)) as u16;
        if count == 0 {
            return 0;
        }
        // SAFETY: as many buffers as said, ours until the device takes them. Those that it has
        // taken are forgotten below.
        let taken = unsafe { sprat_dpdk_send(self.raw.id, self.out.as_mut_ptr().cast(), count) };
        self.out.drain(..usize::from(taken));
        usize::from(taken)
    }

    /// True if the port has a carrier.
    #[must_use]
    pub fn has_carrier(&self) -> bool {
        // SAFETY: a port that is open.
        unsafe { sprat_dpdk_carries(self.raw.id) != 0 }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.release();
        for mbuf in self.out.drain(..) {
            // SAFETY: a buffer that was filled and not sent.
            unsafe { sprat_dpdk_free(mbuf.as_ptr()) };
        }
        let _started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the port that was opened, once.
        unsafe { sprat_dpdk_close(&raw mut self.raw) };
    }
}
