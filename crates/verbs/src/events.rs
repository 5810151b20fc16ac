//! What happened that no completion tells: a queue behind a descriptor that programs wait on.
//!
//! Always holds: the descriptor counts what is in the queue, so that it is readable exactly while an event waits, and one
//! read takes one event. A program makes it non-blocking, if it wants so, and reading honours that.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};

use crate::abi::device::{AsyncEvent, Context};
use crate::context::Open;
use crate::entry::{Errno, export, put};

/// The events of one open device.
pub(crate) struct Events {
    fd: OwnedFd,
    queue: Mutex<VecDeque<AsyncEvent>>,
}

impl Events {
    /// None yet.
    ///
    /// # Errors
    /// No descriptor left.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: numbers alone.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: a descriptor that was made just now and that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, queue: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// The next event; waits for it, unless the program has made the descriptor non-blocking.
    ///
    /// # Errors
    /// `EAGAIN` if there is none and it has, `EINTR` if a signal came.
    fn next(&self) -> Result<AsyncEvent, Errno> {
        let mut count = [0_u8; 8];
        // SAFETY: the octets are a local array's, as long as is said.
        if unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) } != 8 {
            return Err(std::io::Error::last_os_error().into());
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front().ok_or(Errno(libc::EIO))
    }
}

export! {
    /// The next event of an open device.
    minus fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
        // SAFETY: null, or a context that the program has open during this call.
        let next = unsafe { Open::from_seen(context) }?.events.next()?;
        // SAFETY: null, or room for an event of the caller's.
        unsafe { put(event, next) }?;
        Ok(0)
    }
}

export! {
    /// An event was taken note of. Nothing that can be destroyed has any yet.
    plain fn ibv_ack_async_event(_event: *mut AsyncEvent) {
        Ok(())
    }
}
