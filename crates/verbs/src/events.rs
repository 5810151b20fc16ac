//! What happened that no completion tells, behind a descriptor that programs wait on.
//!
//! Always holds: the descriptor counts what waits, so that it is readable exactly while an event does; a program makes it
//! non-blocking, if it wants so, and getting an event honours that. What happens comes here by the engine's own thread,
//! without the program's help.

use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use sprat::verbs::{Notice, NoticeChannel};

use crate::engine::Engine;
use crate::entry::{Errno, INVALID};
use crate::object::locked;

/// The events of one open device.
pub(crate) struct Events {
    fd: Arc<OwnedFd>,
    /// Where the engine puts them, once it has been asked to.
    channel: Mutex<Option<(&'static Engine, Arc<NoticeChannel>)>>,
}

impl Events {
    /// None yet.
    ///
    /// # Errors
    /// No descriptor left.
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

    /// Where objects of `engine` report to.
    pub(crate) fn of(&self, engine: &'static Engine) -> Arc<NoticeChannel> {
        let mut channel = locked(&self.channel);
        if let Some((of, channel)) = &*channel
            && std::ptr::eq(*of, engine)
        {
            return Arc::clone(channel);
        }
        let new = Arc::new(engine.device.notice_channel(Arc::clone(&self.fd)));
        // A parent's is not touched, not even to be dropped.
        std::mem::forget(channel.replace((engine, Arc::clone(&new))));
        new
    }

    /// The context closes.
    pub(crate) fn end(&self) {
        let channel = locked(&self.channel).take();
        if channel.as_ref().is_some_and(|(engine, _)| !engine.is_ours()) {
            std::mem::forget(channel);
        }
    }
    /// The next notice; waits for it, unless the program has made the descriptor non-blocking.
    ///
    /// # Errors
    /// `EAGAIN` if there is none and it has, `EINTR` if a signal came.
    pub(crate) fn next(&self) -> Result<(&'static Engine, Notice), Errno> {
        loop {
            let channel = locked(&self.channel)
                .as_ref()
                .map(|(engine, channel)| (*engine, Arc::clone(channel)));
            match channel {
                Some((engine, channel)) if engine.is_ours() => {
                    return Ok((engine, channel.read()?));
                }
                Some(other) => {
                    std::mem::forget(other);
                    return Err(INVALID);
                }
                // Nobody has made anything yet that could have one. The system's own waiting is not for here: a thread that is
                // cancelled in it would leave without what is on the stack.
                None => drop(self.of(Engine::get()?)),
            }
        }
    }
}
