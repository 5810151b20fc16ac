//! `ibv_open_device`, `ibv_close_device`, and the tables of functions in a context.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::abi::device::VerbsContext;
use crate::abi::object::{Context, ContextOps, Device as Seen, EXTENDED};
use crate::context::{OURS, Open, VECTORS};
use crate::device::Device;
use crate::engine::Engine;
use crate::entry::{INVALID, export};
use crate::events::Events;
use crate::log::log;
use crate::{cq, mw, qp, query, srq, work};

/// The functions that inline functions of verbs.h call through the context.
const OPS: ContextOps = ContextOps {
    query_device: None,
    query_port: None,
    alloc_pd: None,
    dealloc_pd: None,
    reg_mr: None,
    rereg_mr: None,
    dereg_mr: None,
    alloc_mw: mw::alloc,
    bind_mw: mw::bind,
    dealloc_mw: mw::dealloc,
    create_cq: None,
    poll_cq: cq::poll::poll,
    req_notify_cq: cq::poll::arm,
    cq_event: None,
    resize_cq: None,
    destroy_cq: None,
    create_srq: None,
    modify_srq: None,
    query_srq: None,
    destroy_srq: None,
    post_srq_recv: work::post_srq_recv,
    create_qp: None,
    query_qp: None,
    modify_qp: None,
    destroy_qp: None,
    post_send: work::post_send,
    post_recv: work::post_recv,
    create_ah: None,
    destroy_ah: None,
    attach_mcast: None,
    detach_mcast: None,
    async_event: None,
};

fn verbs_context(device: &'static Device, async_fd: c_int) -> VerbsContext {
    VerbsContext {
        query_port: Some(query::query_port),
        advise_mr: None,
        alloc_null_mr: None,
        read_counters: None,
        attach_counters_point_flow: None,
        create_counters: None,
        destroy_counters: None,
        reg_dm_mr: None,
        alloc_dm: None,
        free_dm: None,
        modify_flow_action_esp: None,
        destroy_flow_action: None,
        create_flow_action_esp: None,
        modify_qp_rate_limit: None,
        alloc_parent_domain: None,
        dealloc_td: None,
        alloc_td: None,
        modify_cq: Some(cq::create::modify),
        post_srq_ops: None,
        destroy_rwq_ind_table: None,
        create_rwq_ind_table: None,
        destroy_wq: None,
        modify_wq: None,
        create_wq: None,
        query_rt_values: Some(query::query_values),
        create_cq_ex: Some(cq::create::create_ex),
        private: std::ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        destroy_flow: None,
        placeholder_2: None,
        create_flow: None,
        placeholder_1: None,
        open_qp: None,
        create_qp_ex: Some(qp::create::create_ex),
        get_srq_num: Some(srq::number),
        create_srq_ex: Some(srq::create_ex),
        open_xrcd: None,
        close_xrcd: None,
        placeholder_3: 0,
        sz: size_of::<VerbsContext>(),
        context: Context {
            device: device.seen(),
            ops: OPS,
            cmd_fd: OURS,
            async_fd,
            num_comp_vectors: VECTORS as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: std::ptr::without_provenance_mut(EXTENDED),
        },
    }
}

export! {
    /// Opens a device.
    null fn ibv_open_device(device: *mut Seen) -> *mut Context {
        let device = Device::from_seen(device)?;
        let events = Events::new()?;
        let seen = verbs_context(device, events.fd());
        log!(Info, "opens the device of interface {}", device.interface_name());
        let (holders, closed) = (AtomicU32::new(1), AtomicBool::new(false));
        let open = Box::into_raw(Box::new(Open { seen, device, events, holders, closed }));
        // SAFETY: The address of a field of a live allocation.
        Ok(unsafe { &raw mut (*open).seen.context })
    }
}

export! {
    /// Closes a device, even while objects of it exist.
    ///
    /// Its queue pairs enter the error state, so no peer reaches memory any more. The program can
    /// still destroy the objects, as programs do that close the device first.
    code fn ibv_close_device(context: *mut Context) {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { Open::from_seen(context) }?;
        if open.closed.swap(true, Ordering::AcqRel) {
            return Err(INVALID);
        }
        if let Some(engine) = Engine::present() {
            qp::fail_all_of(engine, context);
        }
        // SAFETY: `ibv_open_device` added the reference that this removes.
        unsafe { open.leave() };
        Ok(())
    }
}
