//! Completion channels: a descriptor that tells which completion queues have completions.
//!
//! Invariant: every event refers to a live queue. Destroying a queue waits until the program has
//! acknowledged the events that it fetched, and discards the others.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};

use sprat_rdma::CompletionChannel;

use crate::abi::object::{CompChannel as Seen, Context, Cq as SeenCq};
use crate::context::Open;
use crate::cq::Cq;
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, at, export, put};
use crate::object::Users;

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    seen: Seen,
    engine: &'static Engine,
    channel: CompletionChannel,
    /// The completion queues that report to the channel.
    pub(crate) users: Users,
}

impl Channel {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null.
    ///
    /// # Safety
    /// The pointer is null, or the channel stays alive while the reference is in use.
    pub(crate) unsafe fn from_seen<'a>(channel: *mut Seen) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        unsafe { at(channel.cast::<Self>()) }
    }

    /// The engine's channel, if its queues belong to `engine`.
    pub(crate) fn of(&self, engine: &Engine) -> Result<&CompletionChannel, Errno> {
        if std::ptr::eq(self.engine, engine) { Ok(&self.channel) } else { Err(INVALID) }
    }

    /// Waits for the next queue with completions, and counts its event as received.
    fn next(&self) -> Result<*mut Cq, Errno> {
        if !self.engine.is_ours() {
            return Err(INVALID);
        }
        loop {
            let number = self.channel.read()?;
            let found = self.engine.cqs.find(number.0, |cq| {
                let cq = cq.cast::<Cq>();
                // SAFETY: A queue leaves the directory, which is locked now, before it is freed.
                unsafe { &*cq }.events.tell();
                cq
            });
            if let Some(cq) = found {
                return Ok(cq);
            }
        }
    }
}

export! {
    /// Creates a completion channel of an open device.
    null fn ibv_create_comp_channel(context: *mut Context) -> *mut Seen {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { Open::from_seen(context) }?;
        let engine = Engine::get()?;
        let channel = engine.device.completion_channel()?;
        let fd = channel.as_fd().as_raw_fd();
        open.enter();
        let seen = Seen { context, fd, refcnt: 0 };
        Ok(Box::into_raw(Box::new(Channel { seen, engine, channel, users: Users::default() })).cast())
    }
}

export! {
    /// Destroys a channel; `EBUSY` while queues report to it.
    code fn ibv_destroy_comp_channel(channel: *mut Seen) {
        // SAFETY: The program passes null or a live channel.
        let own = unsafe { Channel::from_seen(channel) }?;
        own.users.none()?;
        let context = own.seen.context;
        // SAFETY: The program returns the pointer that the constructor leaked to it.
        let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
        if !channel.engine.is_ours() {
            std::mem::forget(channel);
        }
        // SAFETY: A context stays allocated while it is referenced.
        unsafe { Open::from_seen(context)?.leave() };
        Ok(())
    }
}

export! {
    /// Waits for the next armed queue that has completions, unless the descriptor is non-blocking.
    waits fn ibv_get_cq_event(channel: *mut Seen, cq: *mut *mut SeenCq, user: *mut *mut c_void) -> c_int {
        // SAFETY: The program passes null or a live channel.
        let channel = unsafe { Channel::from_seen(channel) }?;
        if cq.is_null() || user.is_null() {
            return Err(INVALID);
        }
        let found = channel.next()?.cast::<SeenCq>();
        // SAFETY: A queue stays allocated while one of its events is not acknowledged. The program
        // lets this call write through both pointers.
        unsafe { put(user, (*found).cq_context).and_then(|()| put(cq, found)) }?;
        Ok(0)
    }
}

export! {
    /// Acknowledges `count` events of a queue.
    plain fn ibv_ack_cq_events(cq: *mut SeenCq, count: u32) {
        // SAFETY: The program passes null or a live queue.
        unsafe { Cq::from_seen(cq) }?.events.ack(count);
        Ok(())
    }
}
