//! `ibv_open_device`, `ibv_close_device`, and the tables of functions in a context.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::abi::device::VerbsContext;
use crate::abi::object::{Context, ContextOps, Device as Raw, EXTENDED};
use crate::context::{NO_FD, OpenDevice, VECTORS};
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
    alloc_mw: mw::ibv_alloc_mw,
    bind_mw: mw::ibv_bind_mw,
    dealloc_mw: mw::ibv_dealloc_mw,
    create_cq: None,
    poll_cq: cq::poll::ibv_poll_cq,
    req_notify_cq: cq::poll::ibv_req_notify_cq,
    cq_event: None,
    resize_cq: None,
    destroy_cq: None,
    create_srq: None,
    modify_srq: None,
    query_srq: None,
    destroy_srq: None,
    post_srq_recv: work::ibv_post_srq_recv,
    create_qp: None,
    query_qp: None,
    modify_qp: None,
    destroy_qp: None,
    post_send: work::ibv_post_send,
    post_recv: work::ibv_post_recv,
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
        modify_cq: Some(cq::create::ibv_modify_cq),
        post_srq_ops: None,
        destroy_rwq_ind_table: None,
        create_rwq_ind_table: None,
        destroy_wq: None,
        modify_wq: None,
        create_wq: None,
        query_rt_values: Some(query::ibv_query_rt_values_ex),
        create_cq_ex: Some(cq::create::ibv_create_cq_ex),
        private: std::ptr::null_mut(),
        query_device_ex: Some(query::ibv_query_device_ex),
        destroy_flow: None,
        placeholder_2: None,
        create_flow: None,
        placeholder_1: None,
        open_qp: None,
        create_qp_ex: Some(qp::create::ibv_create_qp_ex),
        get_srq_num: Some(srq::ibv_get_srq_num),
        create_srq_ex: Some(srq::ibv_create_srq_ex),
        open_xrcd: None,
        close_xrcd: None,
        placeholder_3: 0,
        sz: size_of::<VerbsContext>(),
        context: Context {
            device: device.raw(),
            ops: OPS,
            cmd_fd: NO_FD,
            async_fd,
            num_comp_vectors: VECTORS as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: std::ptr::without_provenance_mut(EXTENDED),
        },
    }
}

export! {
    /// Opens an RDMA device.
    null fn ibv_open_device(device: *mut Raw) -> *mut Context {
        let device = Device::from_raw(device)?;
        let events = Events::new()?;
        let raw = verbs_context(device, events.fd());
        log!(Info, "opens the device of interface {}", device.interface_name());
        let (references, closed) = (AtomicU32::new(1), AtomicBool::new(false));
        let open = Box::into_raw(Box::new(OpenDevice { raw, device, events, references, closed }));
        // SAFETY: The address of a field of a live allocation.
        Ok(unsafe { &raw mut (*open).raw.context })
    }
}

export! {
    /// Closes an RDMA device, even while objects of it exist.
    ///
    /// Its queue pairs enter the error state, so no peer reaches memory any more. The program can
    /// still destroy the objects, as programs do that close the device first.
    code fn ibv_close_device(context: *mut Context) {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        if open.closed.swap(true, Ordering::AcqRel) {
            return Err(INVALID);
        }
        if let Some(engine) = Engine::existing() {
            qp::fail_all_of(engine, context);
        }
        // SAFETY: `ibv_open_device` added the reference that this removes.
        unsafe { open.remove() };
        Ok(())
    }
}
