//! Completion queues as C's programs use them.

pub(crate) mod create;
pub(crate) mod poll;

use std::ffi::c_int;

use sprat_rdma::{Completed, Completion, CompletionQueue, Status};

use crate::abi::object::{Cq as Raw, CqEx};
use crate::engine::Engine;
use crate::entry::{Errno, at};
use crate::log::log;
use crate::object::{EventCounts, References};
use crate::sequence::Sequence;

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    raw: CqEx,
    pub(crate) engine: &'static Engine,
    pub(crate) queue: CompletionQueue,
    /// The queue pairs that complete on the completion queue.
    pub(crate) references: References,
    /// The counts of the completion queue's events on its completion channel.
    pub(crate) events: EventCounts,
    /// The counts of the completion queue's asynchronous events.
    pub(crate) async_events: EventCounts,
    /// The completion that the program reads field by field through the extended interface.
    pub(crate) current: Sequence<Option<Completion>>,
}

impl Cq {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null.
    ///
    /// # Safety
    /// The pointer is null, or the queue stays alive while the reference is in use.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(cq: *mut Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        unsafe { at(cq.cast::<Self>()) }
    }
}

/// The operation of a completion as an `enum ibv_wc_opcode`.
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

/// The status of a completion as an `enum ibv_wc_status`.
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

/// `IBV_WC_WITH_IMM`: the flag of a completion with immediate data.
const WITH_IMMEDIATE: u32 = 1 << 1;
/// `IBV_WC_WITH_INV`: the flag of a completion whose message invalidated a local key.
const WITH_INVALIDATE: u32 = 1 << 3;

/// The flags of a completion (`wc_flags`).
#[inline]
const fn flags(of: &Completion) -> u32 {
    match (of.immediate, of.invalidated) {
        (Some(_), _) => WITH_IMMEDIATE,
        (None, Some(_)) => WITH_INVALIDATE,
        (None, None) => 0,
    }
}

/// The immediate data of a completion in network byte order, or the key that a Send invalidated.
#[inline]
fn immediate(of: &Completion) -> u32 {
    match (of.immediate, of.invalidated) {
        // RFC 7306 carries eight bytes; as on iWARP cards, the first four are verbs's immediate
        // data.
        (Some(bytes), _) => ((bytes >> 32) as u32).to_be(),
        (None, Some(tag)) => tag.0,
        (None, None) => 0,
    }
}

/// Logs a failed work request, unless it was flushed because another one failed.
#[inline]
fn log_failure(of: &Completion) {
    if !matches!(of.status, Status::Success | Status::Flushed) {
        log_failed(of);
    }
}

#[cold]
fn log_failed(of: &Completion) {
    let Completion { qp, id, completed, status, .. } = of;
    log!(Error, "queue pair {}: request {id} ({completed}) fails: {status}", qp.0);
}
