//! Event channels: where what happens to ids arrives, behind a descriptor.

use std::os::fd::{AsFd as _, AsRawFd as _};

use sprat::verbs::ConnectionChannel;

use crate::abi::cm::EventChannel as Seen;
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, at, export};

/// An event channel.
#[repr(C)]
pub(super) struct Channel {
    seen: Seen,
    pub(super) engine: &'static Engine,
    pub(super) channel: ConnectionChannel,
}

impl Channel {
    /// What a program's pointer is to.
    ///
    /// # Errors
    /// It is null, or to one of a parent's.
    ///
    /// # Safety
    /// If it is not null, it is to a channel that is there and stays so while the reference is used.
    pub(super) unsafe fn to_use<'a>(channel: *mut Seen) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        let channel = unsafe { at(channel.cast::<Self>()) }?;
        if channel.engine.is_ours() { Ok(channel) } else { Err(INVALID) }
    }
}

/// A new channel, given up to the program or to an id.
///
/// # Errors
/// No descriptor left.
pub(super) fn create() -> Result<*mut Seen, Errno> {
    let engine = Engine::get()?;
    let channel = engine.device.connection_channel()?;
    let seen = Seen { fd: channel.as_fd().as_raw_fd() };
    Ok(Box::into_raw(Box::new(Channel { seen, engine, channel })).cast())
}

/// Takes a channel back; null is nothing.
///
/// # Safety
/// If it is not null, it was made by [`create`], and nobody uses it any more.
pub(super) unsafe fn destroy(channel: *mut Seen) {
    if channel.is_null() {
        return;
    }
    // SAFETY: The caller guarantees it.
    let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
    if !channel.engine.is_ours() {
        // What a parent has made is not touched; the descriptor is this process's own copy, and closed all the same.
        let fd = channel.seen.fd;
        std::mem::forget(channel);
        // SAFETY: Nothing uses the descriptor any more.
        unsafe { libc::close(fd) };
    }
}

export! {
    /// A channel, whose descriptor is readable while an event waits.
    null fn sprat_rdma_create_event_channel() -> *mut Seen {
        create()
    }
}

export! {
    /// Gives it back. Ids that are left tell nobody any more.
    plain fn sprat_rdma_destroy_event_channel(channel: *mut Seen) {
        // SAFETY: The program passes null or a channel that it does not use afterwards.
        unsafe { destroy(channel) };
        Ok(())
    }
}
