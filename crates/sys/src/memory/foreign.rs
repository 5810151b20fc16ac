//! Memory that belongs to the program: an address and a length, of which no reference is ever made.
//!
//! The program may change the memory's protection or unmap it at any time, registered or not. So
//! the code accesses it by copies that may fail ([`guard`]), or by system calls, in which the
//! kernel checks the addresses.
//!
//! Not here: which peers may access the memory (`rdma`).

use std::io;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::guard::{self, Gone};
use super::sum;

/// An address and a length of memory that the program may unmap at any time.
#[derive(Debug)]
pub struct Foreign {
    base: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: An address means the same in every thread; the memory is reached by copies that are made
// for concurrent writers.
unsafe impl Send for Foreign {}
// SAFETY: as above; the methods that take `&self` change nothing of it.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Takes the `len` bytes of the program's memory at `base`. All pages are populated, for
    /// writing too if `writable`, as hardware pins them.
    ///
    /// # Errors
    /// `EFAULT` if part of it is not mapped, or not writable although `writable`; `EINVAL` if it
    /// wraps or is empty; no memory to populate it.
    ///
    /// # Safety
    /// All other users of this memory must expect that it is read, and written if `writable`, at
    /// any time as long as this value lives. It need not stay mapped.
    pub unsafe fn new(base: *mut u8, len: usize, writable: bool) -> io::Result<Self> {
        Self::check(base, len, writable)?;
        Ok(Self { base, len, writable })
    }

    /// Populates the `len` bytes of the program's memory at `base`, whose contents stay as they
    /// are.
    fn check(base: *mut u8, len: usize, writable: bool) -> io::Result<()> {
        let sound =
            len > 0 && isize::try_from(len).is_ok() && base.addr().checked_add(len).is_some();
        if !sound {
            return Err(Errno::INVAL.into());
        }
        guard::check_handler();
        populate(base, len, writable)
    }

    /// Returns the size of the program's memory in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the memory's first byte.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// True if the memory may be written.
    #[inline]
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// True if the memory has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the byte at `offset` for a system call on `n` bytes.
    ///
    /// # Panics
    /// If they do not.
    #[inline]
    pub(crate) fn address(&self, offset: usize, n: usize) -> *mut u8 {
        assert!(
            offset <= self.len && n <= self.len - offset,
            "{n} bytes at {offset} of {}",
            self.len
        );
        self.base.wrapping_add(offset)
    }

    /// Checks that the `n` bytes at `offset` can be read.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn probe(&self, offset: usize, n: usize) -> Result<(), Gone> {
        let first = self.address(offset, n);
        pages(first, n).try_for_each(|at| {
            // SAFETY: nothing is written.
            unsafe { guard::probe(at, false) }
        })
    }

    /// Copies `bytes` into the memory at `offset`, in ascending order.
    ///
    /// # Errors
    /// [`Gone`], also if it may not be written; some bytes may have been copied.
    #[inline]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), Gone> {
        if !self.writable {
            return Err(Gone);
        }
        let to = self.address(offset, bytes.len());
        // SAFETY: A slice of ours is readable; other users expect writes, as the caller of `new`
        // promised.
        unsafe { guard::write(to, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes from the memory at `offset` into `bytes`.
    ///
    /// # Errors
    /// [`Gone`]; some may have been copied.
    #[inline]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Gone> {
        let from = self.address(offset, bytes.len());
        // SAFETY: a slice of ours is writable.
        unsafe { guard::read(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Appends a copy of the memory's `n` bytes at `offset` to `bytes`.
    ///
    /// # Errors
    /// [`Gone`]; nothing was appended.
    #[inline]
    pub fn append_to(&self, offset: usize, n: usize, bytes: &mut Vec<u8>) -> Result<(), Gone> {
        let from = self.address(offset, n);
        bytes.reserve(n);
        let len = bytes.len();
        // SAFETY: The vector has capacity for the bytes behind its own, and it is borrowed mutably.
        unsafe { guard::read(from, bytes.as_mut_ptr().add(len), n) }?;
        // SAFETY: they are written now.
        unsafe { bytes.set_len(len + n) };
        Ok(())
    }

    /// Appends a copy of the memory's `n` bytes at `offset` to `bytes`. Returns the CRC32C `crc`
    /// extended over the copy.
    ///
    /// # Errors
    /// [`Gone`]; nothing was appended.
    #[inline]
    pub fn append_summed(
        &self,
        offset: usize,
        n: usize,
        bytes: &mut Vec<u8>,
        crc: u32,
    ) -> Result<u32, Gone> {
        let from = self.address(offset, n);
        bytes.reserve(n);
        let len = bytes.len();
        // SAFETY: the vector has capacity for the bytes behind its own, and it is borrowed mutably.
        // Afterwards they are written.
        unsafe {
            let sum = sum::read(from, bytes.as_mut_ptr().add(len), n, crc)?;
            bytes.set_len(len + n);
            Ok(sum)
        }
    }

    /// Replaces the eight bytes at `offset`, a number in the machine's byte order, by the result of
    /// `change`. Returns the old number.
    ///
    /// # Errors
    /// [`Gone`], also if their address is no multiple of eight or they may not be written; nothing
    /// was changed.
    pub fn atomic(&self, offset: usize, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Gone> {
        let at = self.address(offset, 8);
        if !self.writable || !at.addr().is_multiple_of(8) {
            return Err(Gone);
        }
        // SAFETY: Other users expect writes, as the caller of `new` promised.
        unsafe { guard::atomic(at.cast(), change) }
    }
}

/// Makes every page of the memory present, and writable if `writable`.
fn populate(base: *mut u8, len: usize, writable: bool) -> io::Result<()> {
    let skip = base.addr() % rustix::param::page_size();
    let advice = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let first = base.wrapping_sub(skip);
    // SAFETY: this advice changes no byte and no right.
    let advise = |len| unsafe { madvise(first.cast(), len, advice) };
    loop {
        match advise(len + skip) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // A kernel that does not know the advice (before 5.14) refuses it for no memory too.
            Err(Errno::INVAL) if advise(0).is_err() => break,
            // Not mapped; no right, or memory of a kind that cannot be; behind a file's end;
            // broken.
            Err(Errno::NOMEM | Errno::INVAL | Errno::FAULT | Errno::HWPOISON | Errno::PERM) => {
                return Err(Errno::FAULT.into());
            }
            Err(other) => return Err(other.into()),
        }
    }
    let touched = pages(base, len).try_for_each(|at| {
        // SAFETY: The caller of `new` promises that others expect writes; this one changes nothing.
        unsafe { guard::probe(at, writable) }
    });
    Ok(touched.map_err(|Gone| Errno::FAULT)?)
}

/// Returns the addresses of the pages that hold the `n` bytes at `first`.
fn pages(first: *mut u8, n: usize) -> impl Iterator<Item = *mut u8> {
    let page = rustix::param::page_size();
    let skip = first.addr() % page;
    (0..n + skip).step_by(page).map(move |at| first.wrapping_sub(skip).wrapping_add(at))
}

#[cfg(test)]
mod tests;
