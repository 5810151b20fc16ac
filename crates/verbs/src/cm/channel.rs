//! Event channels of rdma_cm: a descriptor on which the events of ids arrive.

use std::os::fd::{AsFd as _, AsRawFd as _};

use sprat_rdma::ConnectionChannel;

use crate::abi::cm::EventChannel as Raw;
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, at, export};

/// An event channel of rdma_cm.
#[repr(C)]
pub(super) struct Channel {
    raw: Raw,
    pub(super) engine: &'static Engine,
    pub(super) channel: ConnectionChannel,
}

impl Channel {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null, or a parent process created the channel.
    ///
    /// # Safety
    /// The pointer is null, or the channel stays alive while the reference is in use.
    pub(super) unsafe fn usable<'a>(channel: *mut Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        let channel = unsafe { at(channel.cast::<Self>()) }?;
        if channel.engine.is_current() { Ok(channel) } else { Err(INVALID) }
    }
}

/// Creates an event channel of rdma_cm and leaks it to the program or to an id.
///
/// # Errors
/// The system has no descriptor left.
pub(super) fn create() -> Result<*mut Raw, Errno> {
    let engine = Engine::get()?;
    let channel = engine.device.connection_channel()?;
    let raw = Raw { fd: channel.as_fd().as_raw_fd() };
    Ok(Box::into_raw(Box::new(Channel { raw, engine, channel })).cast())
}

/// Frees an event channel of rdma_cm; ignores null.
///
/// # Safety
/// The pointer is null, or [`create`] returned it and nothing uses it any more.
pub(super) unsafe fn destroy(channel: *mut Raw) {
    if channel.is_null() {
        return;
    }
    // SAFETY: The caller guarantees it.
    let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
    if !channel.engine.is_current() {
        // The engine of a parent process is not touched. The descriptor is this process's copy and
        // is closed.
        let fd = channel.raw.fd;
        std::mem::forget(channel);
        // SAFETY: Nothing uses the descriptor any more.
        unsafe { libc::close(fd) };
    }
}

export! {
    /// Creates an event channel of rdma_cm, whose descriptor is readable while an event waits.
    null fn sprat_rdma_create_event_channel() -> *mut Raw {
        create()
    }
}

export! {
    /// Destroys an event channel of rdma_cm. Events of its remaining ids are discarded.
    plain fn sprat_rdma_destroy_event_channel(channel: *mut Raw) {
        // SAFETY: The program passes null or a channel that it does not use afterwards.
        unsafe { destroy(channel) };
        Ok(())
    }
}
