//! Copying from and to memory that may be unmapped, protected or cut off at any moment: a fault is
//! an error of the copy and not a signal.
//!
//! ```text
//!   Routine   our own instructions (`routine`); after SIGSEGV or SIGBUS at one of them, the thread
//!             continues at their end
//!   Kernel    process_vm_readv and process_vm_writev on this very process, which return EFAULT
//! ```
//!
//! Our handler of SIGSEGV and SIGBUS replaces the program's, and passes on to it every fault that
//! is not the routine's. [`check_handler`] installs it at the first registration. A program that
//! installs a handler later replaces ours: [`check_handler`], called at each registration, finds
//! that, and from then on the kernel copies. The kernel also copies for a thread that blocks one of
//! these signals when it first copies, since a fault would then end the process. One case is not
//! covered: a program replaces the handler, or blocks the signals in a thread that has copied
//! before, and then unmaps memory that is still in use, without a registration in between. The
//! program's own handler then gets the fault. Where a sandbox forbids the two system calls, every
//! copy that the kernel has to make fails.
//!
//! Always holds: bytes are written in ascending order, the last sixteen after all others, so that
//! a reader of the last one sees the others too.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod handler;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) mod routine;
#[cfg(test)]
mod tests;

/// The handler of machines without the copy routine: it is never installed, and the kernel copies.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod handler {
    pub(super) fn is_ours() -> bool {
        false
    }
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod routine {
    /// Fails, since this machine has no copy routine.
    ///
    /// # Safety
    /// None is needed: it does nothing.
    pub(super) unsafe fn copy(
        _to: *mut u8,
        _from: *const u8,
        _n: usize,
    ) -> Result<(), super::Gone> {
        Err(super::Gone)
    }
    /// Fails, since this machine has no copy routine.
    ///
    /// # Safety
    /// None is needed: it does nothing.
    pub(super) unsafe fn swap(
        _at: *mut u64,
        _old: &mut u64,
        _new: u64,
    ) -> Result<bool, super::Gone> {
        Err(super::Gone)
    }
}

/// The error of a copy whose memory is not mapped any more, lies behind its file's end, or must not
/// be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone;

impl From<Gone> for sprat_proto::rdma::Unmapped {
    fn from(_: Gone) -> Self {
        Self
    }
}

/// True if the kernel calls our handler for SIGSEGV and SIGBUS.
static HANDLED: AtomicBool = AtomicBool::new(false);

/// Says whether a thread blocks SIGSEGV or SIGBUS, as far as that was checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mask {
    Unknown,
    Open,
    Blocked,
}

thread_local! {
    static MASK: Cell<Mask> = const { Cell::new(Mask::Unknown) };
}

/// Checks whether the kernel still calls our handler, which decides how copies are made. Callers
/// call it before they use memory for the first time, and each time that they register some.
pub fn check_handler() {
    HANDLED.store(handler::is_ours(), Ordering::Relaxed);
}

/// True if this thread may copy by the routine now; otherwise the kernel copies.
#[inline]
pub(super) fn by_routine() -> bool {
    HANDLED.load(Ordering::Relaxed)
        && match MASK.get() {
            Mask::Open => true,
            Mask::Blocked => false,
            Mask::Unknown => by_mask(),
        }
}

#[cold]
fn by_mask() -> bool {
    // SAFETY: an all-zero set is a valid one, and asking changes nothing.
    let open = unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask) == 0
            && libc::sigismember(&raw const mask, libc::SIGSEGV) == 0
            && libc::sigismember(&raw const mask, libc::SIGBUS) == 0
    };
    MASK.set(if open { Mask::Open } else { Mask::Blocked });
    open
}

/// Copies `n` bytes from memory of the program.
///
/// # Errors
/// [`Gone`]; some bytes may have been copied.
///
/// # Safety
/// `to` must be writable for `n` bytes, and the two must not overlap.
#[inline]
pub(super) unsafe fn read(from: *const u8, to: *mut u8, n: usize) -> Result<(), Gone> {
    if by_routine() {
        // SAFETY: the caller's promise for `to`; of `from` the routine finds out, and the handler
        // is there.
        return unsafe { routine::copy(to, from, n) };
    }
    // SAFETY: the caller's promise for `to`; of `from` the kernel finds out.
    whole(n, |done, left| unsafe {
        let local = libc::iovec { iov_base: to.add(done).cast(), iov_len: left };
        let remote =
            libc::iovec { iov_base: from.wrapping_add(done).cast_mut().cast(), iov_len: left };
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    })
}

/// Copies `n` bytes to memory of the program.
///
/// # Errors
/// [`Gone`]; some bytes may have been copied.
///
/// # Safety
/// `from` must be readable for `n` bytes, and the two must not overlap. All other users of the
/// memory at `to` must expect that it is written.
#[inline]
pub(super) unsafe fn write(to: *mut u8, from: *const u8, n: usize) -> Result<(), Gone> {
    if by_routine() {
        // SAFETY: the caller's promise for `from`; of `to` the routine finds out, and the handler
        // is there.
        return unsafe { routine::copy(to, from, n) };
    }
    // SAFETY: the caller's promise for `from`; of `to` the kernel finds out.
    whole(n, |done, left| unsafe {
        let local = libc::iovec { iov_base: from.add(done).cast_mut().cast(), iov_len: left };
        let remote = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: left };
        libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    })
}

/// Replaces the word at `at`, a multiple of eight, by the result of `change`; returns the old word.
/// If the kernel copies, the step is atomic only for callers of this function under the same lock.
///
/// # Errors
/// [`Gone`]; nothing was changed.
///
/// # Safety
/// The rules of [`write()`].
pub(super) unsafe fn atomic(at: *mut u64, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Gone> {
    let mut old = 0_u64;
    // SAFETY: a local variable of eight bytes; the rest is the caller's promise.
    unsafe { read(at.cast(), (&raw mut old).cast(), 8) }?;
    if by_routine() {
        loop {
            let new = change(old);
            // SAFETY: the caller's promise; the address is aligned, and the handler is there.
            if unsafe { routine::swap(at, &mut old, new) }? {
                return Ok(old);
            }
        }
    }
    let new = change(old);
    // SAFETY: a local variable of eight bytes; the rest is the caller's promise.
    unsafe { write(at.cast(), (&raw const new).cast(), 8) }?;
    Ok(old)
}

/// Checks that a page can be read, and written if `writable`, for kernels that cannot check a whole
/// range. The page's bytes stay as they are.
///
/// # Errors
/// [`Gone`].
///
/// # Safety
/// The rules of [`write()`], if `writable`. `at` is a multiple of eight.
pub(super) unsafe fn probe(at: *mut u8, writable: bool) -> Result<(), Gone> {
    let mut byte = 0_u8;
    // SAFETY: a local variable.
    unsafe { read(at, &raw mut byte, 1) }?;
    if writable && by_routine() {
        // A word is replaced by itself, in one step. The kernel could only do that in two: there a
        // first write will tell. SAFETY: the caller's promise.
        unsafe { atomic(at.cast(), &mut |word| word) }?;
    }
    Ok(())
}

/// Calls `copy` with the number of bytes copied and the number left, until all `n` are copied.
fn whole(n: usize, mut copy: impl FnMut(usize, usize) -> isize) -> Result<(), Gone> {
    let mut done = 0;
    while done < n {
        match copy(done, n - done) {
            0 => return Err(Gone),
            more if more > 0 => done += more as usize,
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return Err(Gone),
        }
    }
    Ok(())
}
