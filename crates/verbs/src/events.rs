//! The asynchronous events of an open device, behind a descriptor that programs wait on.
//!
//! Invariant: the descriptor is a semaphore that counts the waiting events, so it is readable
//! exactly while one waits. A program may make it non-blocking, and reading honours that. The
//! engine's thread delivers events without the program's help.

use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use sprat_rdma::{AsyncEvent as DeviceEvent, AsyncEventChannel};

use crate::engine::Engine;
use crate::entry::{Errno, INVALID};
use crate::object::lock;

/// The asynchronous events of one open device.
pub(crate) struct Events {
    fd: Arc<OwnedFd>,
    /// The channel on which the engine delivers asynchronous events, once an object reports to it.
    channel: Mutex<Option<(&'static Engine, Arc<AsyncEventChannel>)>>,
}

impl Events {
    /// Creates an event channel without events for an open device.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: The arguments are numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: The descriptor was created above and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd: Arc::new(fd), channel: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// The channel on which objects of `engine` report their asynchronous events.
    pub(crate) fn of(&self, engine: &'static Engine) -> Arc<AsyncEventChannel> {
        let mut channel = lock(&self.channel);
        if let Some((of, channel)) = &*channel
            && std::ptr::eq(*of, engine)
        {
            return Arc::clone(channel);
        }
        let new = Arc::new(engine.device.async_event_channel(Arc::clone(&self.fd)));
        // A channel of the parent process is forgotten, since dropping it would touch the parent's
        // engine.
        std::mem::forget(channel.replace((engine, Arc::clone(&new))));
        new
    }

    /// Releases the channel of asynchronous events when the context is freed.
    pub(crate) fn end(&self) {
        let channel = lock(&self.channel).take();
        if channel.as_ref().is_some_and(|(engine, _)| !engine.is_current()) {
            std::mem::forget(channel);
        }
    }
    /// Waits for the next asynchronous event, unless the program has made the descriptor
    /// non-blocking.
    ///
    /// # Errors
    /// `EAGAIN` if nothing waits on a non-blocking descriptor, `EINTR` after a signal.
    pub(crate) fn next(&self) -> Result<(&'static Engine, DeviceEvent), Errno> {
        loop {
            let channel = lock(&self.channel)
                .as_ref()
                .map(|(engine, channel)| (*engine, Arc::clone(channel)));
            match channel {
                Some((engine, channel)) if engine.is_current() => {
                    return Ok((engine, channel.read()?));
                }
                Some(other) => {
                    std::mem::forget(other);
                    return Err(INVALID);
                }
                // No object reports yet. Create the channel and wait on it: a thread that is
                // cancelled in a plain `read` would leak the values on its stack.
                None => drop(self.of(Engine::get()?)),
            }
        }
    }
}
