//! Completion queues.

pub(crate) mod create;
pub(crate) mod poll;

use std::ffi::c_int;

use sprat::verbs::{Completed, Completion, CompletionQueue, Status};

use crate::abi::object::{Cq as Seen, CqEx};
use crate::engine::Engine;
use crate::entry::{Errno, at};
use crate::log::log;
use crate::object::{Acks, Users};
use crate::sequence::Sequence;

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
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        unsafe { at(cq.cast::<Self>()) }
    }
}

/// What completed, as programs know it.
#[inline]
const fn opcode(completed: Completed) -> c_int {
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
const fn status(status: Status) -> c_int {
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
const fn flags(of: &Completion) -> u32 {
    match (of.immediate, of.invalidated) {
        (Some(_), _) => WITH_IMMEDIATE,
        (None, Some(_)) => WITH_INVALIDATE,
        (None, None) => 0,
    }
}

/// The immediate data as it came, or the tag that was invalidated.
#[inline]
fn immediate(of: &Completion) -> u32 {
    match (of.immediate, of.invalidated) {
        // Four octets in the first half of the eight, as iWARP cards put them, in the order of the network.
        (Some(octets), _) => ((octets >> 32) as u32).to_be(),
        (None, Some(tag)) => tag.0,
        (None, None) => 0,
    }
}

/// A request that fails is told, if that is wanted; not one that is flushed because another did.
#[inline]
fn note(of: &Completion) {
    if !matches!(of.status, Status::Success | Status::Flushed) {
        failed(of);
    }
}

#[cold]
fn failed(of: &Completion) {
    let Completion { qp, id, completed, status, .. } = of;
    log!(Error, "queue pair {}: request {id} ({completed}) fails: {status}", qp.0);
}
