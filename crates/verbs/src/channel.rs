//! Completion channels: a descriptor that tells which completion queues have completions.
//!
//! Invariant: every event refers to a live queue. Destroying a queue waits until the program has
//! acknowledged the events that it fetched, and discards the others.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};

use sprat_rdma::CompletionChannel;

use crate::abi::object::{CompChannel as Raw, Context, Cq as RawCq};
use crate::context::OpenDevice;
use crate::cq::Cq;
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, at, export, put};
use crate::object::References;

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    raw: Raw,
    engine: &'static Engine,
    channel: CompletionChannel,
    /// The completion queues that report to the completion channel.
    pub(crate) references: References,
}

impl Channel {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null.
    ///
    /// # Safety
    /// The pointer is null, or the channel stays alive while the reference is in use.
    pub(crate) unsafe fn from_raw<'a>(channel: *mut Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        unsafe { at(channel.cast::<Self>()) }
    }

    /// The engine's part of this completion channel, if the channel belongs to `engine`.
    pub(crate) fn of(&self, engine: &Engine) -> Result<&CompletionChannel, Errno> {
        if std::ptr::eq(self.engine, engine) { Ok(&self.channel) } else { Err(INVALID) }
    }

    /// Waits for the next completion queue with completions, and counts its event as received.
    fn next(&self) -> Result<*mut Cq, Errno> {
        if !self.engine.is_current() {
            return Err(INVALID);
        }
        loop {
            let number = self.channel.read()?;
            let found = self.engine.cqs.find(number.0, |cq| {
                let cq = cq.cast::<Cq>();
                // SAFETY: A queue leaves the directory, which is locked now, before it is freed.
                unsafe { &*cq }.events.deliver();
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
    null fn ibv_create_comp_channel(context: *mut Context) -> *mut Raw {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        let engine = Engine::get()?;
        let channel = engine.device.completion_channel()?;
        let fd = channel.as_fd().as_raw_fd();
        open.add();
        let raw = Raw { context, fd, refcnt: 0 };
        let references = References::default();
        Ok(Box::into_raw(Box::new(Channel { raw, engine, channel, references })).cast())
    }
}

export! {
    /// Destroys a completion channel; `EBUSY` while completion queues report to it.
    code fn ibv_destroy_comp_channel(channel: *mut Raw) {
        // SAFETY: The program passes null or a live channel.
        let own = unsafe { Channel::from_raw(channel) }?;
        own.references.check_none()?;
        let context = own.raw.context;
        // SAFETY: The program returns the pointer that the constructor leaked to it.
        let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
        if !channel.engine.is_current() {
            std::mem::forget(channel);
        }
        // SAFETY: A context stays allocated while it is referenced.
        unsafe { OpenDevice::from_raw(context)?.remove() };
        Ok(())
    }
}

export! {
    /// Waits for the next armed completion queue that has completions, unless the descriptor is
    /// non-blocking.
    blocking fn ibv_get_cq_event(
        channel: *mut Raw,
        cq: *mut *mut RawCq,
        user: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: The program passes null or a live channel.
        let channel = unsafe { Channel::from_raw(channel) }?;
        if cq.is_null() || user.is_null() {
            return Err(INVALID);
        }
        let found = channel.next()?.cast::<RawCq>();
        // SAFETY: A queue stays allocated while one of its events is not acknowledged. The program
        // lets this call write through both pointers.
        unsafe { put(user, (*found).cq_context).and_then(|()| put(cq, found)) }?;
        Ok(0)
    }
}

export! {
    /// Acknowledges `count` events of a completion queue.
    plain fn ibv_ack_cq_events(cq: *mut RawCq, count: u32) {
        // SAFETY: The program passes null or a live queue.
        unsafe { Cq::from_raw(cq) }?.events.ack(count);
        Ok(())
    }
}
