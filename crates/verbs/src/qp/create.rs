//! Creating and destroying queue pairs.

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::AtomicI32;

use sprat_rdma::{Limits, PairOptions};

use super::{Builder, INIT, Qp, RESET, build};
use crate::abi::attr::{QpAttr, QpCap, QpInit, QpInitEx};
use crate::abi::object::{Context, Pd as RawPd, Qp as Raw, QpEx};
use crate::cq::Cq;
use crate::engine::{Engine, limits};
use crate::entry::{Errno, INVALID, UNSUPPORTED, entry, export};
use crate::object::EventCounts;
use crate::pd::Pd;
use crate::query::PORT;
use crate::sequence::Sequence;
use crate::srq::Srq;

/// `IBV_QPT_RC`: the type of reliable connected queue pairs.
const RC: c_int = 2;
/// `IBV_QP_INIT_ATTR_PD`: the flag by which a queue pair's attributes have a protection domain.
const PD: u32 = 1;
const CREATE_FLAGS: u32 = 1 << 2;
const SEND_OPS: u32 = 1 << 6;
/// The accepted `IBV_QP_EX_WITH_…` flags: all but TSO, flushes and atomic Writes. Programs request
/// Sends with immediate data beside the operations that they use, so the flag is accepted and
/// posting such a Send fails.
const OPERATIONS: u64 = 0x3ff;

/// The parameters of a new queue pair.
struct Parameters {
    pd: *mut RawPd,
    init: QpInit,
    extended: bool,
}

/// The capacities of a new queue pair: the requested ones, at least one element, the maximum of
/// inline data.
fn capacities(cap: &QpCap) -> Result<QpCap, Errno> {
    let within =
        |parameters: u32, most: u32| if parameters > most { Err(INVALID) } else { Ok(parameters) };
    let Limits { requests, elements, inline, .. } = limits();
    let (elements, inline) = (elements as u32, inline as u32);
    within(cap.max_inline_data, inline)?;
    Ok(QpCap {
        max_send_wr: within(cap.max_send_wr, requests)?,
        max_recv_wr: within(cap.max_recv_wr, requests)?,
        max_send_sge: within(cap.max_send_sge, elements)?.max(1),
        max_recv_sge: within(cap.max_recv_sge, elements)?.max(1),
        max_inline_data: inline,
    })
}

fn create(parameters: &Parameters) -> Result<(*mut Qp, QpCap), Errno> {
    let init = parameters.init;
    // SAFETY: The program passes null or a live protection domain.
    let domain = unsafe { Pd::usable(parameters.pd) }?;
    if init.qp_type != RC {
        return Err(UNSUPPORTED);
    }
    // SAFETY: The program passes null or live queues.
    let (send, recv) = unsafe { (Cq::from_raw(init.send_cq)?, Cq::from_raw(init.recv_cq)?) };
    // SAFETY: The program passes null or a live queue.
    let srq = if init.srq.is_null() { None } else { Some(unsafe { Srq::from_raw(init.srq) }?) };
    let is_foreign = |of: &Engine| !std::ptr::eq(of, domain.engine);
    if is_foreign(send.engine)
        || is_foreign(recv.engine)
        || srq.is_some_and(|s| is_foreign(s.engine))
    {
        return Err(INVALID);
    }
    let cap = capacities(&init.cap)?;
    let options = PairOptions {
        send_queue: &send.queue,
        recv_queue: &recv.queue,
        shared: srq.map(|s| &s.queue),
        send_depth: cap.max_send_wr,
        recv_depth: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge as usize,
        max_recv_sge: cap.max_recv_sge as usize,
        max_inline: cap.max_inline_data as usize,
        signal_all: init.sq_sig_all != 0,
    };
    let pair = domain.domain.queue_pair(&options)?;
    pair.report_to(&domain.open()?.events.of(domain.engine));
    let number = pair.number().0;
    let raw = Raw {
        context: domain.context(),
        qp_context: init.qp_context,
        pd: parameters.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: number,
        qp_num: number,
        state: RESET,
        qp_type: RC,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    // SAFETY: All zeros are a valid value of a structure of numbers.
    let attr = QpAttr { cap, port_num: PORT as u8, ..unsafe { std::mem::zeroed() } };
    let (pending_state, attr, events) =
        (AtomicI32::new(INIT), Mutex::new(attr), EventCounts::default());
    let engine = domain.engine;
    let init = QpInit { cap, ..init };
    let (raw, building, extended) =
        (build::extend(raw), Sequence::new(Builder::default()), parameters.extended);
    let qp =
        Box::new(Qp { raw, engine, pair, pending_state, attr, init, events, extended, building });
    let qp = Box::into_raw(qp);
    engine.qps.add(number, qp.cast());
    for references in [&domain.references, &send.references, &recv.references]
        .into_iter()
        .chain(srq.map(|s| &s.references))
    {
        references.add();
    }
    Ok((qp, cap))
}

export! {
    /// Creates a reliable connected queue pair, and writes its capacities back to `init`.
    null fn ibv_create_qp(pd: *mut RawPd, init: *mut QpInit) -> *mut Raw {
        // SAFETY: The program passes null or a valid structure that no other thread uses.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        let (qp, cap) = create(&Parameters { pd, init: *init, extended: false })?;
        init.cap = cap;
        Ok(qp.cast())
    }
}

entry! {
    /// Creates a queue pair, with the functions of the extended interface if the mask requests
    /// them.
    null fn ibv_create_qp_ex(_context: *mut Context, init: *mut QpInitEx) -> *mut Raw {
        // SAFETY: The program passes null or a valid structure that no other thread uses. Fields
        // that its mask does not name are not read.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        let flags = init.comp_mask & CREATE_FLAGS != 0 && init.create_flags != 0;
        let extended = init.comp_mask & SEND_OPS != 0;
        if init.comp_mask & !(PD | CREATE_FLAGS | SEND_OPS) != 0
            || flags
            || (extended && init.send_ops_flags & !OPERATIONS != 0)
        {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & PD == 0 {
            return Err(INVALID);
        }
        let QpInitEx { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } = *init;
        let plain = QpInit { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
        let (qp, cap) = create(&Parameters { pd: init.pd, init: plain, extended })?;
        init.cap = cap;
        Ok(qp.cast())
    }
}

export! {
    /// Destroys a queue pair and ends its connection. Waits until all its events are acknowledged.
    code fn ibv_destroy_qp(qp: *mut Raw) {
        // SAFETY: The program passes null or a live queue pair.
        let own = unsafe { Qp::from_raw(qp) }?;
        let Raw { pd, send_cq, recv_cq, srq, .. } = own.raw.qp_base;
        // SAFETY: The objects that a queue pair refers to stay allocated while it exists.
        unsafe {
            Pd::from_raw(pd)?.references.remove();
            Cq::from_raw(send_cq)?.references.remove();
            Cq::from_raw(recv_cq)?.references.remove();
            if !srq.is_null() {
                Srq::from_raw(srq)?.references.remove();
            }
        }
        if own.engine.is_current() {
            own.engine.qps.remove(own.pair.number().0);
            own.events.wait_acked();
        }
        // SAFETY: The program returns the pointer that the constructor leaked to it.
        let qp = unsafe { Box::from_raw(qp.cast::<Qp>()) };
        if !qp.engine.is_current() {
            std::mem::forget(qp);
        }
        Ok(())
    }
}

export! {
    /// Returns the extended interface of a queue pair that was created with it.
    null fn ibv_qp_to_qp_ex(qp: *mut Raw) -> *mut QpEx {
        // SAFETY: The program passes null or a live queue pair.
        if unsafe { Qp::from_raw(qp) }?.is_extended() { Ok(qp.cast()) } else { Err(UNSUPPORTED) }
    }
}
