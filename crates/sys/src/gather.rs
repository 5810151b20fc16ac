//! Sends from memory that peers and the program may write meanwhile, and receives into it, in one
//! system call.
//!
//! No slice of registered memory may exist, because peers write it while the kernel reads it. The
//! kernel gets plain addresses, as a C program passes them.
//!
//! The invariant that makes it sound: every address lies in a [`Region`], a [`Foreign`] or a slice
//! that stays borrowed until the call returns, the bounds are checked here, and the kernel keeps no
//! address after the call. Memory behind a [`Foreign`] may be gone; then the kernel says `EFAULT`.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

use crate::memory::{Foreign, Region};

/// The most pieces of memory that one call sends.
pub const PIECES: usize = 128;

const NONE: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// The place of bytes to send: a slice, a region, or memory of the program.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The bytes of a slice.
    Bytes(&'a [u8]),
    /// The `len` bytes from `offset` of a region: `(region, offset, len)`.
    Region(&'a Region, usize, usize),
    /// The `len` bytes from `offset` of memory of the program: `(memory, offset, len)`.
    Foreign(&'a Foreign, usize, usize),
}

impl Source<'_> {
    /// Returns the number of bytes to send.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match *self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Region(_, _, len) | Self::Foreign(_, _, len) => len,
        }
    }

    /// True if the source has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the first byte. Panics if the memory has fewer bytes than the source
    /// names.
    #[inline]
    fn address(&self) -> *mut u8 {
        match *self {
            // The kernel only reads what it sends.
            Self::Bytes(bytes) => bytes.as_ptr().cast_mut(),
            Self::Region(region, offset, len) => region.address(offset, len),
            Self::Foreign(memory, offset, len) => memory.address(offset, len),
        }
    }
}

/// A list of pieces of memory that one call sends, one behind the other.
#[derive(Debug)]
pub struct Gather<'a> {
    pieces: [libc::iovec; PIECES],
    count: usize,
    /// Number of bytes that are still to be left out at the beginning of the list.
    skip: usize,
    borrowed: PhantomData<Source<'a>>,
}

impl<'a> Gather<'a> {
    /// Makes an empty list of pieces that leaves out the first `skip` bytes of the pieces added to
    /// it.
    #[inline]
    #[must_use]
    pub fn new(skip: usize) -> Self {
        Self { pieces: [NONE; PIECES], count: 0, skip, borrowed: PhantomData }
    }

    /// Adds a piece of memory to the list. A list of [`PIECES`] pieces ignores further ones.
    ///
    /// # Panics
    /// If the piece ends behind its memory.
    #[inline]
    pub fn add(&mut self, source: Source<'a>) {
        let (at, len) = (source.address(), source.len());
        let gone = self.skip.min(len);
        self.skip -= gone;
        if gone < len && self.count < PIECES {
            let at = at.wrapping_add(gone).cast();
            self.pieces[self.count] = libc::iovec { iov_base: at, iov_len: len - gone };
            self.count += 1;
        }
    }

    /// Sends the pieces on a stream without blocking. Returns the number of bytes that the stream
    /// took.
    ///
    /// # Errors
    /// `WouldBlock`; `EFAULT` if memory of the program is gone; whatever ended the connection.
    #[inline]
    pub fn send(mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: an all-zero `msghdr` is a valid one: no name, no control data, no pieces.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.pieces.as_mut_ptr();
        message.msg_iovlen = self.count as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `message` names `count` pieces, each within memory that is borrowed for `'a`.
        let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// The place that receives bytes from a stream.
#[derive(Debug)]
pub enum Target<'a> {
    /// The `len` bytes from `offset` of a region: `(region, offset, len)`.
    Region(&'a Region, usize, usize),
    /// The `len` bytes from `offset` of memory of the program: `(memory, offset, len)`.
    Foreign(&'a Foreign, usize, usize),
    /// Appends up to `len` bytes to a vector, which has the capacity already: `(vector, len)`.
    Append(&'a mut Vec<u8>, usize),
}

/// Receives from a stream into `target`, and the bytes behind those into `then`, without blocking.
/// Returns the number of bytes received, 0 at the end of the stream.
///
/// # Errors
/// `WouldBlock`; `EFAULT` if memory of the program is gone or must not be written; whatever ended
/// the connection.
///
/// # Panics
/// If the target's memory is shorter than said.
#[inline]
pub fn receive(
    socket: BorrowedFd<'_>,
    mut target: Target<'_>,
    then: &mut [u8],
) -> io::Result<usize> {
    let (at, len) = match &mut target {
        Target::Region(region, offset, len) => (region.address(*offset, *len), *len),
        Target::Foreign(memory, offset, len) if memory.is_writable() => {
            (memory.address(*offset, *len), *len)
        }
        Target::Foreign(..) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Target::Append(bytes, len) => {
            (bytes.spare_capacity_mut()[..*len].as_mut_ptr().cast(), *len)
        }
    };
    let mut pieces = [
        libc::iovec { iov_base: at.cast(), iov_len: len },
        libc::iovec { iov_base: then.as_mut_ptr().cast(), iov_len: then.len() },
    ];
    // SAFETY: an all-zero `msghdr` is a valid one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the first piece lies in a region, which is never lent as a slice, in memory of the
    // program that expects writes, or in the unused capacity of a vector that is borrowed mutably
    // until the end of this function. The second is a slice that is borrowed mutably as long.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    if let Target::Append(bytes, len) = target {
        let filled = bytes.len() + n.min(len);
        // SAFETY: the kernel has written that many bytes behind the vector's own, which its
        // capacity has room for.
        unsafe { bytes.set_len(filled) };
    }
    Ok(n)
}
