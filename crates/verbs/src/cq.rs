//! Completion queues.

use std::ffi::{c_int, c_void};

use sprat::verbs::{Completed, Completion, CompletionQueue, Status};

use crate::abi::object::{CompChannel, Context, Cq as Seen, CqEx, Wc};
use crate::channel::Channel;
use crate::context::{Open, VECTORS};
use crate::engine::{Engine, limits};
use crate::entry::{Errno, INVALID, at, entry, export};
use crate::extended::{Readers, Sequence};
use crate::log::log;
use crate::pd::{Acks, Users};

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    seen: CqEx,
    pub(crate) engine: &'static Engine,
    pub(crate) queue: CompletionQueue,
    /// Queues that complete here.
    pub(crate) users: Users,
    /// Events of its channel.
    pub(crate) events: Acks,
    /// Events of the device.
    pub(crate) mishaps: Acks,
    /// What is read by functions.
    pub(crate) current: Sequence<Option<Completion>>,
}

impl Cq {
    /// What a program's pointer is to.
    ///
    /// # Errors
    /// It is null.
    ///
    /// # Safety
    /// If it is not null, it is to a queue that is there and stays so while the reference is used.
    #[inline]
    pub(crate) unsafe fn from_seen<'a>(cq: *mut Seen) -> Result<&'a Self, Errno> {
        // SAFETY: the caller's promise; what is seen is the whole's first field.
        unsafe { at(cq.cast::<Self>()) }
    }

    /// A new one, given up to the program.
    pub(crate) fn create(
        context: *mut Context,
        depth: u32,
        user: *mut c_void,
        channel: *mut CompChannel,
        vector: u32,
    ) -> Result<*mut Self, Errno> {
        // SAFETY: null, or a context that the program has open.
        let open = unsafe { Open::from_seen(context) }?;
        if !(1..=limits().completions).contains(&depth) || vector >= VECTORS {
            return Err(INVALID);
        }
        let engine = Engine::get()?;
        let queue = if channel.is_null() {
            engine.device.completion_queue(depth)
        } else {
            // SAFETY: not null, so it is to a channel that is there.
            let channel = unsafe { Channel::from_seen(channel) }?;
            channel.of(engine)?.completion_queue(depth)
        };
        let queue = queue?;
        queue.report_to(&open.events.of(engine));
        let seen = Seen {
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
        let (users, events, mishaps) = (Users::default(), Acks::default(), Acks::default());
        let (seen, current) = (Readers::seen(seen), Sequence::new(None));
        let cq =
            Box::into_raw(Box::new(Self { seen, engine, queue, users, events, mishaps, current }));
        engine.cqs.add(number, cq);
        open.enter();
        if !channel.is_null() {
            // SAFETY: as above.
            unsafe { Channel::from_seen(channel) }?.users.enter();
        }
        Ok(cq)
    }
}

/// What completed, as programs know it.
#[inline]
pub(crate) const fn opcode(completed: Completed) -> c_int {
    match completed {
        Completed::Send => 0,
        Completed::Write => 1,
        Completed::Read => 2,
        Completed::CompareSwap => 3,
        Completed::FetchAdd => 4,
        Completed::Bind => 5,
        Completed::Invalidate | Completed::FastRegister => 6,
        Completed::Recv => 128,
        Completed::RecvImmediate => 129,
    }
}

/// How it ended, as programs know it.
#[inline]
pub(crate) const fn status(status: Status) -> c_int {
    match status {
        Status::Success => 0,
        Status::LocalLength => 1,
        Status::LocalOperation => 2,
        Status::LocalProtection => 4,
        Status::Flushed => 5,
        Status::Bind => 6,
        Status::RemoteAccess => 10,
        Status::RemoteOperation => 11,
    }
}

/// `IBV_WC_WITH_IMM`, `IBV_WC_WITH_INV`.
const WITH_IMMEDIATE: u32 = 1 << 1;
const WITH_INVALIDATE: u32 = 1 << 3;

/// `wc_flags`.
#[inline]
pub(crate) const fn flags(of: &Completion) -> u32 {
    match (of.immediate, of.invalidated) {
        (Some(_), _) => WITH_IMMEDIATE,
        (None, Some(_)) => WITH_INVALIDATE,
        (None, None) => 0,
    }
}

/// The immediate data as it came, or the tag that was invalidated.
#[inline]
pub(crate) fn immediate(of: &Completion) -> u32 {
    match (of.immediate, of.invalidated) {
        // Four octets in the first half of the eight, as iWARP cards put them, in the order of the network.
        (Some(octets), _) => ((octets >> 32) as u32).to_be(),
        (None, Some(tag)) => tag.0,
        (None, None) => 0,
    }
}

/// A request that fails is told, if that is wanted; not one that is flushed because another did.
#[inline]
pub(crate) fn note(of: &Completion) {
    if !matches!(of.status, Status::Success | Status::Flushed) {
        failed(of);
    }
}

#[cold]
fn failed(of: &Completion) {
    let Completion { qp, id, completed, status, .. } = of;
    log!(Error, "queue pair {}: request {id} ({completed}) fails: {status}", qp.0);
}

#[inline]
fn wc(of: &Completion) -> Wc {
    note(of);
    Wc {
        wr_id: of.id,
        status: status(of.status),
        opcode: opcode(of.completed),
        vendor_err: 0,
        byte_len: of.len,
        imm_data: immediate(of),
        qp_num: of.qp.0,
        src_qp: 0,
        wc_flags: flags(of),
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

export! {
    /// A queue for so many completions, which tells `channel` of them once it is armed.
    null fn ibv_create_cq(
        context: *mut Context,
        depth: c_int,
        user: *mut c_void,
        channel: *mut CompChannel,
        vector: c_int,
    ) -> *mut Seen {
        let depth = u32::try_from(depth).map_err(|_| INVALID)?;
        let vector = u32::try_from(vector).map_err(|_| INVALID)?;
        Cq::create(context, depth, user, channel, vector).map(<*mut Cq>::cast)
    }
}

export! {
    /// Another depth; `EINVAL` if more completions wait.
    code fn ibv_resize_cq(cq: *mut Seen, depth: c_int) {
        // SAFETY: null, or a queue that is there.
        let own = unsafe { Cq::from_seen(cq) }?;
        let depth = u32::try_from(depth).ok().filter(|depth| (1..=limits().completions).contains(depth));
        let depth = depth.ok_or(INVALID)?;
        if !own.engine.is_ours() {
            return Err(INVALID);
        }
        own.queue.resize(depth).map_err(|_| INVALID)?;
        // SAFETY: not null; a field that the program leaves to us.
        unsafe { (*cq).cqe = depth as c_int };
        Ok(())
    }

    /// Gives it back; `EBUSY` while queue pairs complete here. Waits until all its events are acknowledged.
    code fn ibv_destroy_cq(cq: *mut Seen) {
        // SAFETY: null, or a queue that is there.
        let own = unsafe { Cq::from_seen(cq) }?;
        own.users.none()?;
        let (context, channel) = (own.seen.context, own.seen.channel);
        if !channel.is_null() {
            // SAFETY: its channel stays as long as it has users.
            unsafe { Channel::from_seen(channel) }?.users.leave();
        }
        if own.engine.is_ours() {
            own.engine.cqs.remove(own.queue.number().0);
            own.events.wait();
            own.mishaps.wait();
        }
        // SAFETY: the pointer that was given up when it was made, which the program gives back.
        let cq = unsafe { Box::from_raw(cq.cast::<Cq>()) };
        if !cq.engine.is_ours() {
            std::mem::forget(cq);
        }
        // SAFETY: its context is open as long as it has holders.
        unsafe { Open::from_seen(context)?.leave() };
        Ok(())
    }
}

entry! {
    /// `ibv_poll_cq`.
    minus fn poll(cq: *mut Seen, room: c_int, to: *mut Wc) -> c_int {
        // SAFETY: null, or a queue that is there.
        let cq = unsafe { Cq::from_seen(cq) }?;
        let room = usize::try_from(room).map_err(|_| INVALID)?;
        if to.is_null() && room > 0 {
            return Err(INVALID);
        }
        if !cq.engine.is_ours() {
            return Ok(0);
        }
        let mut next = to;
        let count = cq.queue.poll_many(room, |completion| {
            // SAFETY: the program's array has room for as many as it says, and this is called not more often.
            unsafe {
                next.write(wc(&completion));
                next = next.add(1);
            }
        });
        Ok(count as c_int)
    }
}

entry! {
    /// `ibv_req_notify_cq`.
    code fn arm(cq: *mut Seen, solicited_only: c_int) {
        // SAFETY: null, or a queue that is there.
        let cq = unsafe { Cq::from_seen(cq) }?;
        if cq.engine.is_ours() {
            cq.queue.arm(solicited_only != 0);
        }
        Ok(())
    }
}
