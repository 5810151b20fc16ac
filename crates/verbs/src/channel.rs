//! Completion channels: which of several completion queues have something, behind a descriptor.
//!
//! Always holds: an event is of a queue that there is; whoever destroys the queue waits until the events of it that were
//! fetched are acknowledged, and those that were not fetched are gone.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};

use sprat::verbs::CompletionChannel;

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
    /// Completion queues that report to it.
    pub(crate) users: Users,
}

impl Channel {
    /// What a program's pointer is to.
    ///
    /// # Errors
    /// It is null.
    ///
    /// # Safety
    /// If it is not null, it is to a channel that is there and stays so while the reference is used.
    pub(crate) unsafe fn from_seen<'a>(channel: *mut Seen) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        unsafe { at(channel.cast::<Self>()) }
    }

    /// The same for queues of `engine`.
    pub(crate) fn of(&self, engine: &Engine) -> Result<&CompletionChannel, Errno> {
        if std::ptr::eq(self.engine, engine) { Ok(&self.channel) } else { Err(INVALID) }
    }

    /// The next queue that has something, its event counted as told.
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
    /// A channel of an open device.
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
    /// Gives it back; `EBUSY` while queues report to it.
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
    /// The next queue that was armed and has something; waits for one unless the descriptor was made non-blocking.
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
    /// So many events of a queue were taken note of.
    plain fn ibv_ack_cq_events(cq: *mut SeenCq, count: u32) {
        // SAFETY: The program passes null or a live queue.
        unsafe { Cq::from_seen(cq) }?.events.ack(count);
        Ok(())
    }
}
