//! Posting work requests: the lists of C programs become requests of the engine.
//!
//! Invariant: requests are posted in order. The first invalid one ends the call and is returned to
//! the program; the requests before it stay posted.

use std::ffi::c_int;

use sprat_rdma::{
    Data, MAX_SGE, PostError, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge, Stag,
};

use crate::abi::object::{BindInfo, Qp as RawQp, RecvWr, SendWr, Sge as RawSge, Srq as RawSrq};
use crate::entry::{Errno, INVALID, entry};
use crate::mr::{ZERO_BASED, access};
use crate::qp::Qp;
use crate::srq::Srq;

/// `IBV_WR_RDMA_WRITE`, an operation of `enum ibv_wr_opcode`.
const WRITE: c_int = 0;
const WRITE_WITH_IMM: c_int = 1;
const SEND: c_int = 2;
const READ: c_int = 4;
const COMPARE_AND_SWAP: c_int = 5;
const FETCH_AND_ADD: c_int = 6;
const LOCAL_INVALIDATE: c_int = 7;
const BIND: c_int = 8;
const SEND_WITH_INVALIDATE: c_int = 9;

/// `IBV_SEND_FENCE`, a flag of `enum ibv_send_flags`.
const FENCE: u32 = 1;
const SIGNALED: u32 = 1 << 1;
const SOLICITED: u32 = 1 << 2;
const INLINE: u32 = 1 << 3;

/// Translates the flags of a send work request.
#[inline]
pub(crate) const fn flags(of: u32) -> SendFlags {
    SendFlags {
        signaled: of & SIGNALED != 0,
        fence: of & FENCE != 0,
        solicited: of & SOLICITED != 0,
    }
}

/// Converts C's immediate data to the wire's: the four bytes of verbs, then four zeros.
#[inline]
pub(crate) fn immediate(bytes: u32) -> u64 {
    u64::from(u32::from_be(bytes)) << 32
}

/// Translates a request to bind a memory window.
///
/// # Errors
/// `EINVAL` without a region for a range that is not empty, and for a window whose addresses count
/// from zero, which this device lacks.
///
/// # Safety
/// The region is null or registered.
pub(crate) unsafe fn bind(key: u32, info: &BindInfo) -> Result<SendOp, Errno> {
    // SAFETY: The caller guarantees it.
    let region = unsafe { info.mr.as_ref() };
    let region = match region {
        Some(region) => region.lkey,
        None if info.length == 0 => 0,
        None => return Err(INVALID),
    };
    let (window, region) = (Stag(key), Stag(region));
    if info.mw_access_flags & ZERO_BASED != 0 {
        return Err(INVALID);
    }
    let access = access(info.mw_access_flags);
    Ok(SendOp::Bind { window, region, addr: info.addr, len: info.length, access })
}

/// Translates the operation of a send work request.
///
/// # Safety
/// The region that a request to bind names is null or registered.
#[inline]
unsafe fn operation(wr: &SendWr) -> Result<SendOp, Errno> {
    // The key occupies the first four bytes of the word.
    let key = |word: u64| if cfg!(target_endian = "big") { word >> 32 } else { word };
    let remote = || Remote { stag: Stag(key(wr.rkey_or_operand) as u32), addr: wr.remote_addr };
    let word = || Remote { stag: Stag(wr.atomic_rkey), addr: wr.remote_addr };
    Ok(match wr.opcode {
        SEND => SendOp::Send,
        SEND_WITH_INVALIDATE => SendOp::SendInvalidate(Stag(wr.imm_data)),
        WRITE => SendOp::Write(remote()),
        WRITE_WITH_IMM => SendOp::WriteImmediate(remote(), immediate(wr.imm_data)),
        READ => SendOp::Read(remote()),
        COMPARE_AND_SWAP => SendOp::CompareSwap {
            to: word(),
            compare: wr.rkey_or_operand,
            compare_mask: u64::MAX,
            swap: wr.swap,
            swap_mask: u64::MAX,
        },
        FETCH_AND_ADD => SendOp::FetchAdd { to: word(), add: wr.rkey_or_operand, mask: 0 },
        LOCAL_INVALIDATE => SendOp::Invalidate(Stag(wr.imm_data)),
        // SAFETY: The caller guarantees it.
        BIND => unsafe { bind(wr.bind_rkey, &wr.bind) }?,
        // Sends with immediate data are invalid too: iWARP lacks them.
        _ => return Err(INVALID),
    })
}

/// The scatter/gather elements of a C work request.
///
/// # Errors
/// `EINVAL` if there are more than a queue accepts, or fewer than 0.
///
/// # Safety
/// `list` refers to `count` elements.
#[inline]
pub(crate) unsafe fn elements<'a>(
    list: *const RawSge,
    count: c_int,
) -> Result<&'a [RawSge], Errno> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_SGE).ok_or(INVALID)?;
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(INVALID);
    }
    // SAFETY: The caller guarantees it.
    Ok(unsafe { std::slice::from_raw_parts(list, count) })
}

#[inline]
pub(crate) const fn element(sge: &RawSge) -> Sge {
    Sge { stag: Stag(sge.lkey), addr: sge.addr, len: sge.length }
}

/// Copies the inline data of a work request, whose elements name them by address alone.
///
/// # Errors
/// `EINVAL` if the data exceed the limit of inline data.
///
/// # Safety
/// The memory that the elements name may be read.
unsafe fn copy_inline(list: &[RawSge]) -> Result<Vec<u8>, Errno> {
    let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
    if total > sprat_rdma::MAX_INLINE as u64 {
        return Err(INVALID);
    }
    let mut bytes = Vec::with_capacity(total as usize);
    for sge in list.iter().filter(|sge| sge.length > 0) {
        let at = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        if at.is_null() {
            return Err(INVALID);
        }
        // SAFETY: The caller guarantees it; the bytes are copied before this call returns.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, sge.length as usize) });
    }
    Ok(bytes)
}

/// Translates a send work request.
///
/// # Safety
/// The elements and regions that the request names are valid.
#[inline]
unsafe fn send_request(wr: &SendWr) -> Result<SendRequest, Errno> {
    // SAFETY: The caller guarantees it.
    let op = unsafe { operation(wr) }?;
    let data = if matches!(op, SendOp::Invalidate(_) | SendOp::Bind { .. }) {
        Data::Inline(Vec::new())
    } else {
        // SAFETY: The caller guarantees it.
        let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
        if wr.send_flags & INLINE != 0 {
            // SAFETY: The caller guarantees it.
            Data::Inline(unsafe { copy_inline(list) }?)
        } else {
            Data::Gather(list.iter().map(element).collect())
        }
    };
    Ok(SendRequest { id: wr.wr_id, op, data, flags: flags(wr.send_flags) })
}

/// Translates a receive work request.
///
/// # Safety
/// The elements that the request names are valid.
#[inline]
unsafe fn recv_request(wr: &RecvWr) -> Result<RecvRequest, Errno> {
    // SAFETY: The caller guarantees it.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    Ok(RecvRequest { id: wr.wr_id, list: list.iter().map(element).collect() })
}

/// An iterator over a C list of work requests that remembers the one that failed.
struct RequestList<W> {
    /// The next work request of the list.
    at: *mut W,
    /// The work request that the iterator returned last.
    last: *mut W,
    error: Option<Errno>,
}

impl<W> RequestList<W> {
    const fn new(at: *mut W) -> Self {
        Self { at, last: at, error: None }
    }

    /// Translates the next work request of a C list.
    ///
    /// # Safety
    /// The list consists of readable requests. Each has the address of the next, the last one null.
    #[inline]
    unsafe fn next<'a, R>(
        &mut self,
        next: fn(&W) -> *mut W,
        make: unsafe fn(&W) -> Result<R, Errno>,
    ) -> Option<R>
    where
        W: 'a,
    {
        // SAFETY: The caller guarantees it.
        let wr: &'a W = unsafe { self.at.as_ref() }?;
        self.last = self.at;
        // SAFETY: The caller guarantees it.
        match unsafe { make(wr) } {
            Ok(request) => {
                self.at = next(wr);
                Some(request)
            }
            Err(errno) => {
                self.error = Some(errno);
                None
            }
        }
    }

    /// Returns the result of a post, and writes the failed work request to `bad`.
    ///
    /// # Safety
    /// `bad` is null or may be written.
    #[inline]
    unsafe fn end(
        &self,
        posted: Result<usize, (usize, PostError)>,
        bad: *mut *mut W,
    ) -> Result<(), Errno> {
        let failed = match posted {
            Ok(_) => self.error,
            Err((_, error)) => Some(error.into()),
        };
        let Some(failed) = failed else { return Ok(()) };
        if !bad.is_null() {
            // SAFETY: The caller guarantees it.
            unsafe { bad.write(self.last) };
        }
        Err(failed)
    }
}

entry! {
    /// Posts a list of send work requests to a queue pair.
    code fn ibv_post_send(qp: *mut RawQp, list: *mut SendWr, bad: *mut *mut SendWr) {
        // SAFETY: The program passes null or a live queue pair.
        let qp = unsafe { Qp::from_raw(qp) }?;
        let mut posting = RequestList::new(list);
        if !qp.engine.is_current() {
            // SAFETY: The program passes null or memory that it lets this call write.
            return unsafe { posting.end(Err((0, PostError::Invalid)), bad) };
        }
        // SAFETY: The program passes a valid list of work requests.
        let requests = std::iter::from_fn(|| unsafe { posting.next(|wr| wr.next, send_request) });
        let posted = qp.pair.post_sends(requests);
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { posting.end(posted, bad) }
    }
}

entry! {
    /// Posts a list of receive work requests to a queue pair.
    code fn ibv_post_recv(qp: *mut RawQp, list: *mut RecvWr, bad: *mut *mut RecvWr) {
        // SAFETY: The program passes null or a live queue pair.
        let qp = unsafe { Qp::from_raw(qp) }?;
        let mut posting = RequestList::new(list);
        if !qp.engine.is_current() {
            // SAFETY: The program passes null or memory that it lets this call write.
            return unsafe { posting.end(Err((0, PostError::Invalid)), bad) };
        }
        // SAFETY: The program passes a valid list of work requests.
        let requests = std::iter::from_fn(|| unsafe { posting.next(|wr| wr.next, recv_request) });
        let posted = qp.pair.post_recvs(requests);
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { posting.end(posted, bad) }
    }
}

entry! {
    /// Posts a list of receive work requests to a shared receive queue.
    code fn ibv_post_srq_recv(srq: *mut RawSrq, list: *mut RecvWr, bad: *mut *mut RecvWr) {
        // SAFETY: The program passes null or a live queue.
        let srq = unsafe { Srq::from_raw(srq) }?;
        let mut posting = RequestList::new(list);
        if !srq.engine.is_current() {
            // SAFETY: The program passes null or memory that it lets this call write.
            return unsafe { posting.end(Err((0, PostError::Invalid)), bad) };
        }
        // SAFETY: The program passes a valid list of work requests.
        let requests = std::iter::from_fn(|| unsafe { posting.next(|wr| wr.next, recv_request) });
        let posted = srq.queue.post_recvs(requests);
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { posting.end(posted, bad) }
    }
}
