//! Events of rdma_cm as C's programs receive them.
//!
//! Invariant: an event belongs to an id, or to the listener for a connection request, until the
//! program acknowledges it. Its private data live as long.

use std::ffi::c_int;
use std::io::ErrorKind;

use sprat_rdma::MAX_READ_DEPTH;

use crate::abi::cm::{ConnParam, Event as Raw, Id as RawId};
use crate::entry::{Errno, INVALID, export};
use crate::log::log;
use crate::object::EventCounts;
use crate::text;

/// `RDMA_CM_EVENT_ADDR_RESOLVED`, an event of `enum rdma_cm_event_type`.
pub(super) const ADDR_RESOLVED: c_int = 0;
pub(super) const ADDR_ERROR: c_int = 1;
pub(super) const ROUTE_RESOLVED: c_int = 2;
pub(super) const CONNECT_REQUEST: c_int = 4;
pub(super) const CONNECT_ERROR: c_int = 6;
pub(super) const UNREACHABLE: c_int = 7;
pub(super) const REJECTED: c_int = 8;
pub(super) const ESTABLISHED: c_int = 9;
pub(super) const DISCONNECTED: c_int = 10;
pub(super) const ADDRINFO_RESOLVED: c_int = 16;
pub(super) const USER: c_int = 18;

/// The most bytes of private data in an event of rdma_cm. Programs receive their number in a byte.
pub(super) const MAX_PRIVATE_DATA: usize = u8::MAX as usize;

/// An event of rdma_cm that a program holds until it acknowledges it.
#[repr(C)]
struct Event {
    raw: Raw,
    /// The counter of events that counts the acknowledgement of this one.
    of: *const EventCounts,
    private_data: [u8; MAX_PRIVATE_DATA],
}

/// The content of an event of rdma_cm.
pub(super) struct Content {
    pub(super) event: c_int,
    pub(super) status: c_int,
    pub(super) private_data: Vec<u8>,
    /// The argument of an event that the program wrote.
    pub(super) argument: u64,
    /// The fields `initiator_depth` and `responder_resources` of an event of rdma_cm.
    pub(super) depths: (u8, u8),
}

impl Content {
    pub(super) const fn plain(event: c_int, status: c_int) -> Self {
        Self { event, status, private_data: Vec::new(), argument: 0, depths: (0, 0) }
    }
}

/// Encodes an event of rdma_cm without argument in the words that the engine stores.
pub(super) fn own(event: c_int, status: c_int) -> [u64; 2] {
    encode_with_argument(event, status, 0)
}

pub(super) fn encode_with_argument(event: c_int, status: c_int, argument: u64) -> [u64; 2] {
    [u64::from(event.cast_unsigned()) << 32 | u64::from(status.cast_unsigned()), argument]
}

pub(super) fn decode([word, argument]: [u64; 2]) -> Content {
    Content { argument, ..Content::plain((word >> 32) as c_int, (word as u32).cast_signed()) }
}

/// A depth of Reads as programs state it, in a byte.
pub(super) fn depth(depth: u16) -> u8 {
    depth.min(MAX_READ_DEPTH) as u8
}

/// The event of rdma_cm and the status for a failed connection attempt of TCP.
pub(super) fn unreachable(kind: ErrorKind) -> (c_int, c_int) {
    match kind {
        ErrorKind::ConnectionRefused => (REJECTED, -libc::ECONNREFUSED),
        ErrorKind::ConnectionReset => (REJECTED, -libc::ECONNRESET),
        ErrorKind::TimedOut => (UNREACHABLE, -libc::ETIMEDOUT),
        ErrorKind::HostUnreachable => (UNREACHABLE, -libc::EHOSTUNREACH),
        ErrorKind::NetworkUnreachable => (UNREACHABLE, -libc::ENETUNREACH),
        ErrorKind::InvalidInput => (CONNECT_ERROR, -libc::EINVAL),
        _ => (CONNECT_ERROR, -libc::EIO),
    }
}

/// Allocates an event of rdma_cm for a program.
pub(super) fn allocate(
    of: &EventCounts,
    id: *mut RawId,
    listener: *mut RawId,
    content: &Content,
) -> *mut Raw {
    log!(
        Debug,
        "event {} of id {id:p}, status {}",
        text::connection_event(content.event),
        content.status
    );
    // SAFETY: All zeros are a valid value of a structure of numbers and pointers.
    let zeros: Raw = unsafe { std::mem::zeroed() };
    let raw =
        Raw { id, listen_id: listener, event: content.event, status: content.status, ..zeros };
    let event = Box::into_raw(Box::new(Event { raw, of, private_data: [0; MAX_PRIVATE_DATA] }));
    let len = content.private_data.len().min(MAX_PRIVATE_DATA);
    // SAFETY: The event was allocated above, and no other reference exists.
    unsafe { (&mut (*event).private_data)[..len].copy_from_slice(&content.private_data[..len]) };
    // SAFETY: The event was allocated above; only an address is taken.
    let place = unsafe { &raw const (*event).private_data };
    let private_data = if len == 0 { std::ptr::null() } else { place.cast() };
    let param = ConnParam {
        private_data,
        private_data_len: len as u8,
        responder_resources: content.depths.1,
        initiator_depth: content.depths.0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    };
    // SAFETY: The event was allocated above. The field has room for the largest member of C's
    // union.
    unsafe {
        let place = &raw mut (*event).raw.param;
        if content.event == USER {
            place.cast::<u64>().write(content.argument);
        } else {
            place.cast::<ConnParam>().write(param);
        }
    }
    event.cast()
}

/// The outcome of a synchronous call that waited for an event.
///
/// # Errors
/// The errno of the event's status.
///
/// # Safety
/// The event was delivered and is not acknowledged.
pub(super) unsafe fn outcome(event: *const Raw) -> Result<(), Errno> {
    // SAFETY: The caller guarantees it.
    let (event, status) = unsafe { ((*event).event, (*event).status) };
    match (event, status) {
        (_, 0) => Ok(()),
        (REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.abs())),
    }
}

/// True if an event of rdma_cm is a connection request.
///
/// # Safety
/// The event was delivered and is not acknowledged.
pub(super) unsafe fn is_connect_request(event: *const Raw) -> bool {
    // SAFETY: The caller guarantees it.
    unsafe { (*event).event == CONNECT_REQUEST }
}

/// Frees an event of rdma_cm and counts its acknowledgement; ignores null.
///
/// # Safety
/// The pointer is null, or the event was delivered and is not acknowledged.
pub(super) unsafe fn acknowledge(event: *mut Raw) {
    if event.is_null() {
        return;
    }
    // SAFETY: The caller guarantees it.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    // SAFETY: The id waits for this acknowledgement before it is freed.
    unsafe { (*event.of).ack(1) };
}

export! {
    /// Acknowledges an event of rdma_cm, which frees it.
    minus fn sprat_rdma_ack_cm_event(event: *mut Raw) -> c_int {
        if event.is_null() {
            return Err(INVALID);
        }
        // SAFETY: The pointer is not null, and the program returns an event that it received.
        unsafe { acknowledge(event) };
        Ok(0)
    }
}
