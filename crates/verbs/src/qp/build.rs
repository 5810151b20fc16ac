//! Building work requests one call at a time by the extended interface.
//!
//! ```text
//!   ibv_wr_start ─► ibv_wr_send ─► ibv_wr_set_sge ─► … ─► ibv_wr_complete        all are posted, or none
//! ```

use std::ffi::{c_int, c_void};

use sprat_rdma::{Data, MAX_INLINE, MAX_SGE, Remote, SendOp, SendRequest, Sge, Stag};

use super::{Builder, Qp};
use crate::abi::object::{BindInfo, DataBuf, Mw, Qp as SeenQp, QpEx, Sge as SeenSge};
use crate::entry::{Errno, INVALID, entry};
use crate::work;

/// Extends C's queue pair by the functions of the extended interface.
pub(crate) fn with_functions(qp_base: SeenQp) -> QpEx {
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

/// Passes the requests being built to `build`. The program has begun a sequence.
fn build(seen: *mut QpEx, build: impl FnOnce(&mut Builder)) {
    // SAFETY: The program passes null or a live queue pair.
    if let Ok(qp) = unsafe { Qp::from_seen(seen.cast()) } {
        // SAFETY: The program calls this between `ibv_wr_start` and its end.
        build(unsafe { qp.building.value() });
    }
}

/// Starts a request with the id and the flags that the program has stored in the queue pair.
fn request(seen: *mut QpEx, op: Result<SendOp, Errno>) {
    build(seen, |builder| match op {
        Ok(op) => {
            // SAFETY: The queue pair is alive, and the program has written these fields.
            let (id, flags) = unsafe { ((*seen).wr_id, work::flags((*seen).wr_flags)) };
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
    plain fn wr_start(seen: *mut QpEx) {
        // SAFETY: The program passes null or a live queue pair.
        let qp = unsafe { Qp::from_seen(seen.cast()) }?;
        qp.building.begin();
        build(seen, |builder| {
            builder.requests.clear();
            builder.failed = None;
        });
        Ok(())
    }

    plain fn wr_abort(seen: *mut QpEx) {
        // SAFETY: The program passes null or a live queue pair.
        unsafe { Qp::from_seen(seen.cast()) }?.building.end();
        Ok(())
    }

    plain fn wr_atomic_cmp_swp(seen: *mut QpEx, key: u32, addr: u64, compare: u64, swap: u64) {
        let (to, compare_mask, swap_mask) = (remote(key, addr), u64::MAX, u64::MAX);
        request(seen, Ok(SendOp::CompareSwap { to, compare, compare_mask, swap, swap_mask }));
        Ok(())
    }

    plain fn wr_atomic_fetch_add(seen: *mut QpEx, key: u32, addr: u64, add: u64) {
        request(seen, Ok(SendOp::FetchAdd { to: remote(key, addr), add, mask: 0 }));
        Ok(())
    }

    plain fn wr_bind_mw(seen: *mut QpEx, _window: *mut Mw, key: u32, info: *const BindInfo) {
        // SAFETY: The program passes null or a valid structure that names a registered region.
        request(seen, unsafe { info.as_ref().ok_or(INVALID).and_then(|info| work::bind(key, info)) });
        Ok(())
    }

    plain fn wr_local_inv(seen: *mut QpEx, key: u32) {
        request(seen, Ok(SendOp::Invalidate(Stag(key))));
        Ok(())
    }

    plain fn wr_rdma_read(seen: *mut QpEx, key: u32, addr: u64) {
        request(seen, Ok(SendOp::Read(remote(key, addr))));
        Ok(())
    }

    plain fn wr_rdma_write(seen: *mut QpEx, key: u32, addr: u64) {
        request(seen, Ok(SendOp::Write(remote(key, addr))));
        Ok(())
    }

    plain fn wr_rdma_write_imm(seen: *mut QpEx, key: u32, addr: u64, octets: u32) {
        request(seen, Ok(SendOp::WriteImmediate(remote(key, addr), work::immediate(octets))));
        Ok(())
    }

    plain fn wr_send(seen: *mut QpEx) {
        request(seen, Ok(SendOp::Send));
        Ok(())
    }

    plain fn wr_send_imm(seen: *mut QpEx, _octets: u32) {
        request(seen, Err(INVALID));
        Ok(())
    }

    plain fn wr_send_inv(seen: *mut QpEx, key: u32) {
        request(seen, Ok(SendOp::SendInvalidate(Stag(key))));
        Ok(())
    }

    plain fn wr_set_sge(seen: *mut QpEx, key: u32, addr: u64, len: u32) {
        let sge = Sge { stag: Stag(key), addr, len };
        build(seen, |builder| builder.last(|request| {
            request.data = Data::from(sge);
            Ok(())
        }));
        Ok(())
    }

    plain fn wr_set_sge_list(seen: *mut QpEx, count: usize, list: *const SeenSge) {
        build(seen, |builder| builder.last(|request| {
            let count = c_int::try_from(count).ok().filter(|count| *count as usize <= MAX_SGE).ok_or(INVALID)?;
            // SAFETY: The program states the length of its array.
            let list = unsafe { work::elements(list, count) }?;
            request.data = Data::Gather(list.iter().map(work::element).collect());
            Ok(())
        }));
        Ok(())
    }

    plain fn wr_set_inline_data(seen: *mut QpEx, addr: *const c_void, len: usize) {
        build(seen, |builder| builder.last(|request| {
            let mut octets = Vec::new();
            // SAFETY: The program states the length of its data.
            unsafe { gather(&mut octets, addr.cast(), len) }?;
            request.data = Data::Inline(octets);
            Ok(())
        }));
        Ok(())
    }

    plain fn wr_set_inline_data_list(seen: *mut QpEx, count: usize, list: *const DataBuf) {
        build(seen, |builder| builder.last(|request| {
            let mut octets = Vec::new();
            if list.is_null() && count > 0 {
                return Err(INVALID);
            }
            for index in 0..count {
                // SAFETY: The program states the length of its array, and each element states the
                // length of its data.
                unsafe {
                    let DataBuf { addr, length } = *list.add(index);
                    gather(&mut octets, addr.cast(), length)?;
                }
            }
            request.data = Data::Inline(octets);
            Ok(())
        }));
        Ok(())
    }
}

/// Appends a copy of the program's data.
///
/// # Errors
/// `EINVAL` if the data exceed the limit of inline data.
///
/// # Safety
/// `len` bytes may be read at `addr`.
unsafe fn gather(octets: &mut Vec<u8>, addr: *const u8, len: usize) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    if addr.is_null() || len > MAX_INLINE - octets.len() {
        return Err(INVALID);
    }
    // SAFETY: The caller guarantees it; the bytes are copied before this call returns.
    octets.extend_from_slice(unsafe { std::slice::from_raw_parts(addr, len) });
    Ok(())
}

entry! {
    code fn wr_complete(seen: *mut QpEx) {
        // SAFETY: The program passes null or a live queue pair.
        let qp = unsafe { Qp::from_seen(seen.cast()) }?;
        // SAFETY: The program began the sequence, and this call ends it.
        let builder = unsafe { qp.building.value() };
        let posted = match builder.failed {
            Some(errno) => Err(errno),
            None if !qp.engine.is_ours() => Err(INVALID),
            None => qp.pair.post_all(&mut builder.requests).map_err(Errno::from),
        };
        qp.building.end();
        posted
    }
}
