//! Building work requests one call at a time by verbs' extended interface.
//!
//! ```text
//!   ibv_wr_start ─► ibv_wr_send ─► ibv_wr_set_sge ─► … ─► ibv_wr_complete posts all, or none
//! ```

use std::ffi::{c_int, c_void};

use sprat_rdma::{Data, MAX_INLINE, MAX_SGE, Remote, SendOp, SendRequest, Sge, Stag};

use super::{Builder, Qp};
use crate::abi::object::{BindInfo, DataBuf, Mw, Qp as RawQp, QpEx, Sge as RawSge};
use crate::entry::{Errno, INVALID, entry};
use crate::work;

/// Adds the functions of verbs' extended interface to C's queue pair.
pub(crate) fn extend(qp_base: RawQp) -> QpEx {
    QpEx {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp,
        wr_atomic_fetch_add,
        wr_bind_mw,
        wr_local_inv,
        wr_rdma_read,
        wr_rdma_write,
        wr_rdma_write_imm,
        wr_send,
        wr_send_imm,
        wr_send_inv,
        wr_send_tso: None,
        wr_set_ud_addr: None,
        wr_set_xrc_srqn: None,
        wr_set_inline_data,
        wr_set_inline_data_list,
        wr_set_sge,
        wr_set_sge_list,
        wr_start,
        wr_complete,
        wr_abort,
        wr_atomic_write: None,
    }
}

/// Calls `build` with the work requests that the program is building. The program has begun a
/// sequence.
fn build(raw: *mut QpEx, build: impl FnOnce(&mut Builder)) {
    // SAFETY: The program passes null or a live queue pair.
    if let Ok(qp) = unsafe { Qp::from_raw(raw.cast()) } {
        // SAFETY: The program calls this between `ibv_wr_start` and its end.
        build(unsafe { qp.building.value() });
    }
}

/// Starts a work request with the id and the flags that the program has stored in the queue pair.
fn start_request(raw: *mut QpEx, op: Result<SendOp, Errno>) {
    build(raw, |builder| match op {
        Ok(op) => {
            // SAFETY: The queue pair is alive, and the program has written these fields.
            let (id, flags) = unsafe { ((*raw).wr_id, work::flags((*raw).wr_flags)) };
            builder.requests.push(SendRequest {
                id,
                op,
                data: Data::Gather([].into_iter().collect()),
                flags,
            });
        }
        Err(errno) => builder.fail(errno),
    });
}

const fn remote(key: u32, addr: u64) -> Remote {
    Remote { stag: Stag(key), addr }
}

entry! {
    plain fn wr_start(raw: *mut QpEx) {
        // SAFETY: The program passes null or a live queue pair.
        let qp = unsafe { Qp::from_raw(raw.cast()) }?;
        qp.building.begin();
        build(raw, |builder| {
            builder.requests.clear();
            builder.failed = None;
        });
        Ok(())
    }

    plain fn wr_abort(raw: *mut QpEx) {
        // SAFETY: The program passes null or a live queue pair.
        unsafe { Qp::from_raw(raw.cast()) }?.building.end();
        Ok(())
    }

    plain fn wr_atomic_cmp_swp(raw: *mut QpEx, key: u32, addr: u64, compare: u64, swap: u64) {
        let (to, compare_mask, swap_mask) = (remote(key, addr), u64::MAX, u64::MAX);
        start_request(raw, Ok(SendOp::CompareSwap { to, compare, compare_mask, swap, swap_mask }));
        Ok(())
    }

    plain fn wr_atomic_fetch_add(raw: *mut QpEx, key: u32, addr: u64, add: u64) {
        start_request(raw, Ok(SendOp::FetchAdd { to: remote(key, addr), add, mask: 0 }));
        Ok(())
    }

    plain fn wr_bind_mw(raw: *mut QpEx, _window: *mut Mw, key: u32, info: *const BindInfo) {
        // SAFETY: The program passes null or a valid structure that names a registered region.
        let op = unsafe { info.as_ref().ok_or(INVALID).and_then(|info| work::bind(key, info)) };
        start_request(raw, op);
        Ok(())
    }

    plain fn wr_local_inv(raw: *mut QpEx, key: u32) {
        start_request(raw, Ok(SendOp::Invalidate(Stag(key))));
        Ok(())
    }

    plain fn wr_rdma_read(raw: *mut QpEx, key: u32, addr: u64) {
        start_request(raw, Ok(SendOp::Read(remote(key, addr))));
        Ok(())
    }

    plain fn wr_rdma_write(raw: *mut QpEx, key: u32, addr: u64) {
        start_request(raw, Ok(SendOp::Write(remote(key, addr))));
        Ok(())
    }

    plain fn wr_rdma_write_imm(raw: *mut QpEx, key: u32, addr: u64, bytes: u32) {
        start_request(raw, Ok(SendOp::WriteImmediate(remote(key, addr), work::immediate(bytes))));
        Ok(())
    }

    plain fn wr_send(raw: *mut QpEx) {
        start_request(raw, Ok(SendOp::Send));
        Ok(())
    }

    plain fn wr_send_imm(raw: *mut QpEx, _bytes: u32) {
        start_request(raw, Err(INVALID));
        Ok(())
    }

    plain fn wr_send_inv(raw: *mut QpEx, key: u32) {
        start_request(raw, Ok(SendOp::SendInvalidate(Stag(key))));
        Ok(())
    }

    plain fn wr_set_sge(raw: *mut QpEx, key: u32, addr: u64, len: u32) {
        let sge = Sge { stag: Stag(key), addr, len };
        build(raw, |builder| builder.last(|start_request| {
            start_request.data = Data::from(sge);
            Ok(())
        }));
        Ok(())
    }

    plain fn wr_set_sge_list(raw: *mut QpEx, count: usize, list: *const RawSge) {
        build(raw, |builder| builder.last(|start_request| {
            let count = c_int::try_from(count.min(MAX_SGE + 1)).map_err(|_| INVALID)?;
            // SAFETY: The program states the length of its array.
            let list = unsafe { work::elements(list, count) }?;
            start_request.data = Data::Gather(list.iter().map(work::element).collect());
            Ok(())
        }));
        Ok(())
    }

    plain fn wr_set_inline_data(raw: *mut QpEx, addr: *const c_void, len: usize) {
        build(raw, |builder| builder.last(|start_request| {
            let mut bytes = Vec::new();
            // SAFETY: The program states the length of its data.
            unsafe { append_inline(&mut bytes, addr.cast(), len) }?;
            start_request.data = Data::Inline(bytes);
            Ok(())
        }));
        Ok(())
    }

    plain fn wr_set_inline_data_list(raw: *mut QpEx, count: usize, list: *const DataBuf) {
        build(raw, |builder| builder.last(|start_request| {
            let mut bytes = Vec::new();
            if list.is_null() && count > 0 {
                return Err(INVALID);
            }
            for index in 0..count {
                // SAFETY: The program states the length of its array, and each element states the
                // length of its data.
                unsafe {
                    let DataBuf { addr, length } = *list.add(index);
                    append_inline(&mut bytes, addr.cast(), length)?;
                }
            }
            start_request.data = Data::Inline(bytes);
            Ok(())
        }));
        Ok(())
    }
}

/// Appends a copy of the program's inline data.
///
/// # Errors
/// `EINVAL` if the data exceed the limit of inline data.
///
/// # Safety
/// `len` bytes may be read at `addr`.
unsafe fn append_inline(bytes: &mut Vec<u8>, addr: *const u8, len: usize) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    if addr.is_null() || len > MAX_INLINE - bytes.len() {
        return Err(INVALID);
    }
    // SAFETY: The caller guarantees it; the bytes are copied before this call returns.
    bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(addr, len) });
    Ok(())
}

entry! {
    code fn wr_complete(raw: *mut QpEx) {
        // SAFETY: The program passes null or a live queue pair.
        let qp = unsafe { Qp::from_raw(raw.cast()) }?;
        // SAFETY: The program began the sequence, and this call ends it.
        let builder = unsafe { qp.building.value() };
        let posted = match builder.failed {
            Some(errno) => Err(errno),
            None if !qp.engine.is_current() => Err(INVALID),
            None => qp.pair.post_all(&mut builder.requests).map_err(Errno::from),
        };
        qp.building.end();
        posted
    }
}
