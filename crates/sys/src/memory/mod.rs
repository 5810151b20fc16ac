//! Memory that another process may write at any moment.
//!
//! A [`Region`] is such memory, mapped; it is never lent as a slice. It is reached by copies
//! ([`Region::copy_in`], [`Region::copy_out`]) and by single atomic words, each of them checked
//! against the region's end. A [`Window`] is a piece of a region whose bounds are checked once. A
//! [`Sealed`] is the file behind a region: no process can shrink it, so that no access can fault.
//! [`Foreign`] is memory that the program has mapped and may unmap: an access that faults is an
//! error of the copy.
//!
//! Not here: the meaning of the bytes (`ring`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

mod copy;
pub mod file;
mod foreign;
mod guard;
pub mod huge;
mod pages;
pub mod populated;
mod sum;
#[cfg(test)]
mod tests;
mod window;

pub use foreign::Foreign;
pub use guard::{Gone, check_handler};
pub use sum::append_summed;
pub use window::Window;

/// The seals that fix the size of a shared file.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The file system of an ordinary memfd (`statfs(2)`): its pages are there or are made on demand,
/// never refused one by one as those of a huge-page file are.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A shared memory file whose size no process can change.
#[derive(Debug)]
pub struct Sealed {
    fd: OwnedFd,
    len: usize,
}

impl Sealed {
    /// Makes a memory file of `len` bytes, all zero and all allocated.
    ///
    /// # Errors
    /// Out of memory or of file descriptors.
    pub fn create(len: usize) -> io::Result<Self> {
        let fd = rustix::fs::memfd_create(
            "sprat-ring",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        // Allocated now, so that a lack of memory is an error here and not a fault at some later
        // access.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok(Self { fd, len })
    }

    /// Accepts a memory file that a peer sent, if it has exactly `len` bytes and no process can
    /// change that.
    ///
    /// # Errors
    /// `InvalidData` if its size, its seals or its file system are not what [`Sealed::create`]
    /// makes.
    pub fn check(fd: OwnedFd, len: usize) -> io::Result<Self> {
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let seals = rustix::fs::fcntl_get_seals(&fd)
            .map_err(|_| bad("the shared file is no memory file"))?;
        if !seals.contains(SEALS) || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(bad("the shared file has the wrong seals"));
        }
        if rustix::fs::fstatfs(&fd)?.f_type != TMPFS_MAGIC {
            return Err(bad("the shared file is on the wrong file system"));
        }
        // After the seals: only now can the size not change any more.
        if u64::try_from(rustix::fs::fstat(&fd)?.st_size) != Ok(len as u64) {
            return Err(bad("the shared file has the wrong size"));
        }
        Ok(Self { fd, len })
    }

    /// Accepts the first `len` bytes of a memory file that another program made, if it can no
    /// longer shrink.
    ///
    /// # Errors
    /// `InvalidData` if it can, is shorter, or is on a file system where a page may be refused
    /// later.
    pub fn unshrinkable(fd: OwnedFd, len: usize) -> io::Result<Self> {
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let seals = rustix::fs::fcntl_get_seals(&fd)
            .map_err(|_| bad("the shared file is no memory file"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("the shared file may shrink: it needs F_SEAL_SHRINK"));
        }
        if rustix::fs::fstatfs(&fd)?.f_type != TMPFS_MAGIC {
            return Err(bad("the shared file is on the wrong file system"));
        }
        if u64::try_from(rustix::fs::fstat(&fd)?.st_size).is_ok_and(|size| size < len as u64) {
            return Err(bad("the shared file is shorter than said"));
        }
        Ok(Self { fd, len })
    }

    /// Returns the memory file's size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the memory file has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Sealed> for File {
    fn from(sealed: Sealed) -> Self {
        sealed.fd.into()
    }
}

/// Mapped memory that other processes write. It is accessed by copies and atomic words only.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the region alone and does not depend on a thread.
unsafe impl Send for Region {}
// SAFETY: `&self` methods access the memory by atomics and by opaque copies, which are made for
// concurrent writers.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a sealed file with all of its pages, so that no later access waits for a page. The file
    /// may be closed afterwards.
    ///
    /// # Errors
    /// The system call failed.
    pub fn map(file: &Sealed) -> io::Result<Self> {
        Self::map_with(file, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// Maps a sealed file whose size the peer chose. A page takes memory only at its first use.
    ///
    /// # Errors
    /// The system call failed.
    pub fn map_sparse(file: &Sealed) -> io::Result<Self> {
        Self::map_with(file, MapFlags::SHARED)
    }

    fn map_with(file: &Sealed, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours;
        // the seals keep the file from shrinking under it.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                file.len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                &file.fd,
                0,
            )?
        };
        Self::own(base, file.len)
    }

    /// Maps `len` bytes at `offset` of `fd`, a file or what a device of the kernel offers, as the
    /// ring of a packet socket.
    ///
    /// # Errors
    /// The system call failed.
    pub(crate) fn of_device(fd: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours; a
        // device's memory does not shrink while it is mapped, and an access behind the end of a
        // file that has become shorter ends the process.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                offset,
            )?
        };
        Self::own(base, len)
    }

    /// Maps the first `len` bytes of a regular file, with all of their pages. If a program cuts the
    /// file off, the next access ends the process with SIGBUS.
    ///
    /// # Errors
    /// `InvalidInput` if it is no regular file of at least that length, or the system call failed.
    pub fn of_file(file: &File, len: usize) -> io::Result<Self> {
        let meta = file.metadata()?;
        if !meta.is_file() || meta.len() < len as u64 {
            let text = "it must be a regular file of the right size";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Self::of_device(file.as_fd(), len, 0)
    }

    /// Maps `len` bytes of zeros, shared with the processes that this one forks.
    ///
    /// # Errors
    /// The system call failed.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        Self::zeros(len, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// Maps `len` bytes of zeros for this process alone. A page takes memory only at its first use.
    ///
    /// # Errors
    /// The system call failed.
    pub fn sparse(len: usize) -> io::Result<Self> {
        Self::zeros(len, MapFlags::PRIVATE)
    }

    fn zeros(len: usize, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        Self::own(base, len)
    }

    fn own(base: *mut core::ffi::c_void, len: usize) -> io::Result<Self> {
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { base, len })
    }

    /// Returns the region's size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the region's byte at `offset`. Panics unless `n` bytes from there lie
    /// in the region.
    #[inline(always)]
    fn at(&self, offset: usize, n: usize) -> *mut u8 {
        if offset > self.len || n > self.len - offset {
            outside(offset, n, self.len);
        }
        // SAFETY: `offset` is within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns the address of the region's byte at `offset`, for a system call that moves `n`
    /// bytes. The address is valid as long as the region; no reference may be made of it.
    ///
    /// # Panics
    /// If the region has fewer bytes there.
    #[inline]
    pub(crate) fn address(&self, offset: usize, n: usize) -> *mut u8 {
        self.at(offset, n)
    }

    /// Copies `bytes` into the region at `offset`.
    ///
    /// # Panics
    /// If they do not fit there.
    #[inline(always)]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let dst = self.at(offset, bytes.len());
        // SAFETY: `at` checked the region's side, the slice is readable, and nothing lends region
        // memory as a slice, so the two do not overlap.
        unsafe { copy::copy(dst, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies words of eight bytes into the region at `offset`, which must be a multiple of eight.
    /// Words that the caller has just computed go there from the processor's registers, without a
    /// detour through the caller's memory.
    ///
    /// # Panics
    /// If they do not fit there, or `offset` is no multiple of eight.
    #[inline(always)]
    pub fn copy_words_in(&self, offset: usize, words: &[[u8; 8]]) {
        assert!(offset.is_multiple_of(8), "a word at an odd place");
        let dst = self.at(offset, 8 * words.len()).cast::<u64>();
        for (i, word) in words.iter().enumerate() {
            // SAFETY: the `i`th of the words that `at` checked, aligned (mappings begin on a page),
            // valid as long as `self`; atomics are made for concurrent writers, also in other
            // processes.
            let to = unsafe { AtomicU64::from_ptr(dst.add(i)) };
            to.store(u64::from_le_bytes(*word).to_le(), Ordering::Relaxed);
        }
    }

    /// Writes one block at `offset`, a multiple of eight: the first `keep` bytes of `words`, and
    /// then `parts`. Returns the length of the block in bytes. Returns `None` if the block does not
    /// fit into `room` bytes or into the region; some of it may have been written.
    #[inline(always)]
    pub fn fill<const N: usize>(
        &self,
        offset: usize,
        room: usize,
        words: &[u64; N],
        keep: usize,
        parts: &[&[u8]],
    ) -> Option<usize> {
        let inside = offset <= self.len && room <= self.len - offset;
        if !inside || !offset.is_multiple_of(8) || room < 8 * N || keep > 8 * N {
            return None;
        }
        let dst = self.at(offset, room);
        for (i, word) in words.iter().enumerate() {
            // SAFETY: within the room, which lies in the mapping, aligned (mappings begin on a
            // page), valid as long as `self`; atomics are made for concurrent writers, also in
            // other processes.
            let to = unsafe { AtomicU64::from_ptr(dst.add(8 * i).cast()) };
            to.store(word.to_le(), Ordering::Relaxed);
        }
        let mut at = keep;
        for part in parts {
            if part.len() > room - at {
                return None;
            }
            // SAFETY: from `at` on the room has this many bytes, the slice is readable, and nothing
            // lends region memory as a slice, so the two do not overlap.
            unsafe { copy::copy(dst.add(at), part.as_ptr(), part.len()) };
            at += part.len();
        }
        Some(at)
    }

    /// Copies the region's bytes from `offset` into `bytes`. If another process writes them
    /// meanwhile, the result is any mixture.
    ///
    /// # Panics
    /// If the region has fewer bytes there.
    #[inline(always)]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let src = self.at(offset, bytes.len());
        // SAFETY: as in `copy_in`, the other way round.
        unsafe { copy::copy(bytes.as_mut_ptr(), src, bytes.len()) }
    }

    /// Appends a copy of the region's `n` bytes from `offset` to `bytes`. While another process
    /// writes them, the result is any mixture.
    ///
    /// # Panics
    /// If the region has fewer bytes there.
    #[inline(always)]
    pub fn append_to(&self, offset: usize, n: usize, bytes: &mut Vec<u8>) {
        let src = self.at(offset, n);
        bytes.reserve(n);
        let len = bytes.len();
        // SAFETY: `at` checked the region's side; the vector has room for `n` bytes behind its
        // first `len`, is borrowed mutably, and is no region's memory, so that the two do not
        // overlap. Afterwards these bytes are written.
        unsafe {
            copy::copy(bytes.as_mut_ptr().add(len), src, n);
            bytes.set_len(len + n);
        }
    }

    /// Appends a copy of the region's `n` bytes from `offset` to `bytes`; returns the CRC32C `crc`
    /// extended over the copy. While another process writes them, the copy is any mixture.
    ///
    /// # Panics
    /// If the region has fewer bytes there.
    #[inline]
    #[must_use]
    pub fn append_summed(&self, offset: usize, n: usize, bytes: &mut Vec<u8>, crc: u32) -> u32 {
        let src = self.at(offset, n);
        // SAFETY: `at` checked that the `n` bytes are mapped; no vector is a region's memory.
        unsafe { sum::append(bytes, src, n, crc) }
    }

    /// Lends the region's `n` bytes from `offset`.
    ///
    /// # Panics
    /// If the region has fewer bytes there.
    ///
    /// # Safety
    /// Nothing writes them while they are borrowed, neither through this region nor elsewhere: a
    /// trusted peer, the kernel, has handed them over.
    #[inline]
    pub(crate) unsafe fn lend(&self, offset: usize, n: usize) -> &[u8] {
        let at = self.at(offset, n);
        // SAFETY: `at` checked that they are mapped, and they stay so as long as `self`; that they
        // do not change is the caller's promise.
        unsafe { std::slice::from_raw_parts(at, n) }
    }

    /// The eight bytes at `offset` as one atomic number in the machine's byte order.
    ///
    /// # Panics
    /// If `offset` is no multiple of eight or too large.
    #[inline]
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word at an odd place");
        let at = self.at(offset, 8).cast();
        // SAFETY: eight bytes within the mapping, aligned (mappings begin on a page), valid as long
        // as `self`; atomics are made for concurrent writers, also in other processes.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// The four bytes at `offset` as one atomic number in the machine's byte order.
    ///
    /// # Panics
    /// If `offset` is no multiple of four or too large.
    #[inline]
    #[must_use]
    pub fn flag(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "a flag at an odd place");
        let at = self.at(offset, 4).cast();
        // SAFETY: as for `word`.
        unsafe { AtomicU32::from_ptr(at) }
    }
}

/// Panics, because an access lies behind the region's end. It is a function of its own, so that the
/// message's arguments cost an access within the region nothing.
#[cold]
fn outside(offset: usize, n: usize, len: usize) -> ! {
    panic!("{n} bytes at {offset} of {len}")
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this very mapping, which nothing borrows any more. The call cannot fail for a
        // whole mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
