//! Creating, resizing and destroying completion queues.

use std::ffi::{c_int, c_void};

use super::{Cq, poll};
use crate::abi::attr::{CqInit, ModifyCq};
use crate::abi::object::{CompChannel, Context, Cq as Raw, CqEx};
use crate::channel::Channel;
use crate::context::{OpenDevice, VECTORS};
use crate::engine::{Engine, limits};
use crate::entry::{Errno, INVALID, UNSUPPORTED, entry, export};
use crate::object::{EventCounts, References};
use crate::sequence::Sequence;

/// The supported `IBV_WC_EX_WITH_…` flags of completion queues: the standard fields and the
/// timestamps.
const FIELDS: u64 = 0x7f | 1 << 7 | 1 << 11;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`: the flag by which a completion queue's attributes have flags.
const FLAGS: u32 = 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`: the flag of a completion queue that one thread uses.
const SINGLE_THREADED: u32 = 1;

/// Creates a completion queue and leaks it to the program.
fn create(
    context: *mut Context,
    depth: u32,
    user: *mut c_void,
    channel: *mut CompChannel,
    vector: u32,
) -> Result<*mut Cq, Errno> {
    // SAFETY: The program passes null or an open context.
    let open = unsafe { OpenDevice::from_raw(context) }?;
    if !(1..=limits().completions).contains(&depth) || vector >= VECTORS {
        return Err(INVALID);
    }
    let engine = Engine::get()?;
    let queue = if channel.is_null() {
        engine.device.completion_queue(depth)
    } else {
        // SAFETY: The pointer is not null, and the program passes a live channel.
        let channel = unsafe { Channel::from_raw(channel) }?;
        channel.of(engine)?.completion_queue(depth)
    };
    let queue = queue?;
    queue.report_to(&open.events.of(engine));
    let raw = Raw {
        context,
        channel,
        cq_context: user,
        handle: queue.number().0,
        cqe: depth as c_int,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let number = queue.number().0;
    let (references, events, async_events) =
        (References::default(), EventCounts::default(), EventCounts::default());
    let (raw, current) = (poll::extend(raw), Sequence::new(None));
    let cq = Box::into_raw(Box::new(Cq {
        raw,
        engine,
        queue,
        references,
        events,
        async_events,
        current,
    }));
    engine.cqs.add(number, cq.cast());
    open.add();
    if !channel.is_null() {
        // SAFETY: The pointer is not null, and the program passes a live channel.
        unsafe { Channel::from_raw(channel) }?.references.add();
    }
    Ok(cq)
}
export! {
    /// Creates a completion queue of the given depth. An armed queue reports its completions on
    /// `channel`.
    null fn ibv_create_cq(
        context: *mut Context,
        depth: c_int,
        user: *mut c_void,
        channel: *mut CompChannel,
        vector: c_int,
    ) -> *mut Raw {
        let depth = u32::try_from(depth).map_err(|_| INVALID)?;
        let vector = u32::try_from(vector).map_err(|_| INVALID)?;
        create(context, depth, user, channel, vector).map(<*mut Cq>::cast)
    }
}

export! {
    /// Changes the depth of a completion queue; `EINVAL` if more completions wait.
    code fn ibv_resize_cq(cq: *mut Raw, depth: c_int) {
        // SAFETY: The program passes null or a live queue.
        let own = unsafe { Cq::from_raw(cq) }?;
        let depth = u32::try_from(depth).ok();
        let depth = depth.filter(|depth| (1..=limits().completions).contains(depth));
        let depth = depth.ok_or(INVALID)?;
        if !own.engine.is_current() {
            return Err(INVALID);
        }
        own.queue.resize(depth).map_err(|_| INVALID)?;
        // SAFETY: The pointer is not null, and programs do not write this field.
        unsafe { (*cq).cqe = depth as c_int };
        Ok(())
    }

    /// Destroys a completion queue; `EBUSY` while queue pairs use it. Waits until all its events
    /// are acknowledged.
    code fn ibv_destroy_cq(cq: *mut Raw) {
        // SAFETY: The program passes null or a live queue.
        let own = unsafe { Cq::from_raw(cq) }?;
        own.references.check_none()?;
        let (context, channel) = (own.raw.context, own.raw.channel);
        if !channel.is_null() {
            // SAFETY: A channel stays allocated while queues report to it.
            unsafe { Channel::from_raw(channel) }?.references.remove();
        }
        if own.engine.is_current() {
            own.engine.cqs.remove(own.queue.number().0);
            own.events.wait_acked();
            own.async_events.wait_acked();
        }
        // SAFETY: The program returns the pointer that the constructor leaked to it.
        let cq = unsafe { Box::from_raw(cq.cast::<Cq>()) };
        if !cq.engine.is_current() {
            std::mem::forget(cq);
        }
        // SAFETY: A context stays allocated while it is referenced.
        unsafe { OpenDevice::from_raw(context)?.remove() };
        Ok(())
    }
}

entry! {
    /// Creates a completion queue with the functions of verbs' extended interface.
    null fn ibv_create_cq_ex(context: *mut Context, init: *mut CqInit) -> *mut CqEx {
        // SAFETY: The program passes null or a valid structure.
        let init = unsafe { init.as_ref() }.ok_or(INVALID)?;
        let flags = if init.comp_mask & FLAGS != 0 { init.flags } else { 0 };
        let unknown = init.wc_flags & !FIELDS != 0 || init.comp_mask & !FLAGS != 0;
        if unknown || flags & !SINGLE_THREADED != 0 {
            return Err(UNSUPPORTED);
        }
        let cq = create(context, init.cqe, init.cq_context, init.channel, init.comp_vector)?;
        Ok(cq.cast())
    }
}

entry! {
    /// Fails with `EOPNOTSUPP`: an armed completion queue reports each completion at once, so its
    /// events cannot be moderated.
    code fn ibv_modify_cq(_cq: *mut Raw, _attr: *mut ModifyCq) {
        Err(UNSUPPORTED)
    }
}
