//! Copying from and to memory that may be unmapped, protected or cut off at any moment: a fault is an error and not a signal.
//!
//! Always holds: what is copied goes through the kernel, which looks at the mapping as it copies, and says `EFAULT`.

use std::io;

/// The memory is not mapped (any more), not behind its file's end, or must not be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gone;

/// Copies `n` bytes from memory of the program.
///
/// # Errors
/// [`Gone`]; some bytes may have been copied.
///
/// # Safety
/// `to` must be writable for `n` bytes, and the two must not overlap.
pub(super) unsafe fn read(from: *const u8, to: *mut u8, n: usize) -> Result<(), Gone> {
    // SAFETY: the caller's promise for `to`; of `from` the kernel finds out.
    whole(n, |done, left| unsafe {
        let local = libc::iovec { iov_base: to.add(done).cast(), iov_len: left };
        let remote = libc::iovec { iov_base: from.wrapping_add(done).cast_mut().cast(), iov_len: left };
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    })
}

/// Copies `n` bytes to memory of the program.
///
/// # Errors
/// [`Gone`]; some bytes may have been copied.
///
/// # Safety
/// `from` must be readable for `n` bytes, and the two must not overlap. Whoever else uses the memory at `to` must expect that
/// it is written.
pub(super) unsafe fn write(to: *mut u8, from: *const u8, n: usize) -> Result<(), Gone> {
    // SAFETY: the caller's promise for `from`; of `to` the kernel finds out.
    whole(n, |done, left| unsafe {
        let local = libc::iovec { iov_base: from.add(done).cast_mut().cast(), iov_len: left };
        let remote = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: left };
        libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    })
}

/// Replaces the word at `at`, a multiple of eight, by what `change` makes of it; returns what was there.
///
/// # Errors
/// [`Gone`]; nothing was changed.
///
/// # Safety
/// As [`write`].
pub(super) unsafe fn atomic(at: *mut u64, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Gone> {
    let mut old = 0_u64;
    // SAFETY: a local variable of eight bytes; the rest is the caller's promise.
    unsafe { read(at.cast(), (&raw mut old).cast(), 8) }?;
    let new = change(old);
    // SAFETY: as above, the other way round.
    unsafe { write(at.cast(), (&raw const new).cast(), 8) }?;
    Ok(old)
}

/// Calls `copy` with what is done and what is left until all is done.
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
