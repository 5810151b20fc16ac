//! Polling completion queues: into an array, or one field at a time by the extended interface.
//!
//! ```text
//!   ibv_start_poll ─► ibv_wc_read_… ─► ibv_next_poll ─► … ─► ibv_end_poll
//!   0, or ENOENT without a (further) completion
//! ```

use std::ffi::{c_int, c_uint};

use sprat_rdma::Completion;
use sprat_sys::clock;

use super::{Cq, flags, immediate, log_failure, opcode, status};
use crate::abi::object::{Cq as Raw, CqEx, PollCq, Wc};
use crate::entry::{Errno, INVALID, entry};

/// `ENOENT`: the completion queue has no (further) completion.
const NOTHING: Errno = Errno(libc::ENOENT);

#[inline]
fn wc(of: &Completion) -> Wc {
    log_failure(of);
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

entry! {
    /// Reads up to `room` completions from a completion queue; returns their number.
    minus fn ibv_poll_cq(cq: *mut Raw, room: c_int, to: *mut Wc) -> c_int {
        // SAFETY: The program passes null or a live queue.
        let cq = unsafe { Cq::from_raw(cq) }?;
        let room = usize::try_from(room).map_err(|_| INVALID)?;
        if to.is_null() && room > 0 {
            return Err(INVALID);
        }
        if !cq.engine.is_current() {
            return Ok(0);
        }
        let mut next = to;
        let count = cq.queue.poll_many(room, |completion| {
            // SAFETY: The program's array has room for `room` completions, and the closure runs at
            // most `room` times.
            unsafe {
                next.write(wc(&completion));
                next = next.add(1);
            }
        });
        Ok(count as c_int)
    }
}

entry! {
    /// Arms a completion queue: its next completion is reported on its channel.
    code fn ibv_req_notify_cq(cq: *mut Raw, solicited_only: c_int) {
        // SAFETY: The program passes null or a live queue.
        let cq = unsafe { Cq::from_raw(cq) }?;
        if cq.engine.is_current() {
            cq.queue.arm(solicited_only != 0);
        }
        Ok(())
    }
}

/// Adds the functions of verbs' extended interface to C's completion queue.
pub(crate) fn extend(plain: Raw) -> CqEx {
    let Raw { context, channel, cq_context, handle, cqe, mutex, cond, .. } = plain;
    CqEx {
        context,
        channel,
        cq_context,
        handle,
        cqe,
        mutex,
        cond,
        comp_events_completed: 0,
        async_events_completed: 0,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll,
        next_poll,
        end_poll,
        read_opcode,
        read_vendor_err: read_zero,
        read_byte_len,
        read_imm_data,
        read_qp_num,
        read_src_qp: read_zero,
        read_wc_flags,
        read_slid: read_zero,
        read_sl: read_zero_u8,
        read_dlid_path_bits: read_zero_u8,
        read_completion_ts,
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns,
    }
}

/// Makes the next completion of a sequence the current one.
///
/// # Safety
/// The program has begun a sequence on `cq`.
#[inline]
unsafe fn advance(raw: *mut CqEx, cq: &Cq, next: Option<Completion>) -> Result<(), Errno> {
    let next = next.ok_or(NOTHING)?;
    // SAFETY: The caller guarantees it. Programs read these fields and do not write them.
    unsafe {
        log_failure(&next);
        (*raw).status = status(next.status);
        (*raw).wr_id = next.id;
        *cq.current.value() = Some(next);
    }
    Ok(())
}

/// The current completion of a completion queue whose sequence has begun.
#[inline]
fn current(raw: *mut CqEx) -> Option<Completion> {
    // SAFETY: The program passes null or a live queue, and calls this between `ibv_start_poll` and
    // `ibv_end_poll`.
    unsafe { *Cq::from_raw(raw.cast()).ok()?.current.value() }
}

entry! {
    code fn start_poll(raw: *mut CqEx, attr: *mut PollCq) {
        // SAFETY: The program passes null or a live queue.
        let cq = unsafe { Cq::from_raw(raw.cast()) }?;
        // SAFETY: The program passes null or a valid structure.
        if unsafe { attr.as_ref() }.is_some_and(|a| a.comp_mask != 0) {
            return Err(INVALID);
        }
        if !cq.engine.is_current() {
            return Err(NOTHING);
        }
        cq.current.begin();
        // SAFETY: The sequence was begun above.
        unsafe { advance(raw, cq, cq.queue.poll()) }.inspect_err(|_| cq.current.end())
    }

    code fn next_poll(raw: *mut CqEx) {
        // SAFETY: The program passes null or a live queue, after `ibv_start_poll`.
        unsafe {
            let cq = Cq::from_raw(raw.cast())?;
            advance(raw, cq, cq.queue.poll_ready())
        }
    }
}

entry! {
    plain fn end_poll(raw: *mut CqEx) {
        // SAFETY: The program passes null or a live queue.
        unsafe { Cq::from_raw(raw.cast()) }?.current.end();
        Ok(())
    }

    plain fn read_opcode(raw: *mut CqEx) -> c_int {
        Ok(current(raw).map_or(0, |c| opcode(c.completed)))
    }

    plain fn read_byte_len(raw: *mut CqEx) -> u32 {
        Ok(current(raw).map_or(0, |c| c.len))
    }

    plain fn read_imm_data(raw: *mut CqEx) -> u32 {
        Ok(current(raw).map_or(0, |c| immediate(&c)))
    }

    plain fn read_qp_num(raw: *mut CqEx) -> u32 {
        Ok(current(raw).map_or(0, |c| c.qp.0))
    }

    plain fn read_wc_flags(raw: *mut CqEx) -> c_uint {
        Ok(current(raw).map_or(0, |c| flags(&c)))
    }

    plain fn read_completion_ts(raw: *mut CqEx) -> u64 {
        Ok(current(raw).map_or(0, |c| c.at.as_ns()))
    }

    plain fn read_completion_wallclock_ns(raw: *mut CqEx) -> u64 {
        // SAFETY: The program passes null or a live queue.
        let cq = unsafe { Cq::from_raw(raw.cast()) }?;
        let ago_ns = current(raw).map_or(0, |c| cq.engine.device.now().since(c.at));
        Ok(clock::wall_ns().saturating_sub(ago_ns))
    }

    plain fn read_zero(_cq: *mut CqEx) -> u32 {
        Ok(0)
    }

    plain fn read_zero_u8(_cq: *mut CqEx) -> u8 {
        Ok(0)
    }
}
