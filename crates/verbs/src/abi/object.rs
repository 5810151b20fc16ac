//! The objects of an open device.

use std::ffi::{c_int, c_uint};

use super::device::Context;
use super::{Absent, Opaque, layouts};

layouts! {
    /// A protection domain.
    "struct ibv_pd" Pd {
        context: *mut Context,
        handle: u32,
    }

    /// A memory region.
    "struct ibv_mr" Mr {
        context: *mut Context,
        pd: *mut Pd,
        addr: Opaque,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// A memory window.
    "struct ibv_mw" Mw {
        context: *mut Context,
        pd: *mut Pd,
        rkey: u32,
        handle: u32,
        kind "type": c_int,
    }

    /// What tells of completions.
    "struct ibv_comp_channel" CompChannel {
        context: *mut Context,
        fd: c_int,
        refcnt: c_int,
    }

    /// A completion queue.
    "struct ibv_cq" Cq {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: Opaque,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// A completion queue that is read by functions.
    "struct ibv_cq_ex" CqEx {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: Opaque,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_int,
        wr_id: u64,
        start_poll: Absent,
        next_poll: Absent,
        end_poll: Absent,
        read_opcode: Absent,
        read_vendor_err: Absent,
        read_byte_len: Absent,
        read_imm_data: Absent,
        read_qp_num: Absent,
        read_src_qp: Absent,
        read_wc_flags: Absent,
        read_slid: Absent,
        read_sl: Absent,
        read_dlid_path_bits: Absent,
        read_completion_ts: Absent,
        read_cvlan: Absent,
        read_flow_tag: Absent,
        read_tm_info: Absent,
        read_completion_wallclock_ns: Absent,
    }

    /// A shared receive queue.
    "struct ibv_srq" Srq {
        context: *mut Context,
        srq_context: Opaque,
        pd: *mut Pd,
        handle: u32,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    /// A queue pair.
    "struct ibv_qp" Qp {
        context: *mut Context,
        qp_context: Opaque,
        pd: *mut Pd,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        handle: u32,
        qp_num: u32,
        state: c_int,
        qp_type: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    /// A queue pair that is posted to by functions.
    "struct ibv_qp_ex" QpEx {
        qp_base: Qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Absent,
        wr_atomic_fetch_add: Absent,
        wr_bind_mw: Absent,
        wr_local_inv: Absent,
        wr_rdma_read: Absent,
        wr_rdma_write: Absent,
        wr_rdma_write_imm: Absent,
        wr_send: Absent,
        wr_send_imm: Absent,
        wr_send_inv: Absent,
        wr_send_tso: Absent,
        wr_set_ud_addr: Absent,
        wr_set_xrc_srqn: Absent,
        wr_set_inline_data: Absent,
        wr_set_inline_data_list: Absent,
        wr_set_sge: Absent,
        wr_set_sge_list: Absent,
        wr_start: Absent,
        wr_complete: Absent,
        wr_abort: Absent,
        wr_atomic_write: Absent,
    }

    /// How much a queue pair holds.
    "struct ibv_qp_cap" QpCap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    /// How a queue pair is to be.
    "struct ibv_qp_init_attr" QpInit {
        qp_context: Opaque,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: c_int,
        sq_sig_all: c_int,
    }

    /// How much a shared receive queue holds.
    "struct ibv_srq_attr" SrqAttr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// How a shared receive queue is to be.
    "struct ibv_srq_init_attr" SrqInit {
        srq_context: Opaque,
        attr: SrqAttr,
    }

    /// How a completion queue is to be.
    "struct ibv_cq_init_attr_ex" CqInit {
        cqe: u32,
        cq_context: Opaque,
        channel: *mut CompChannel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut Pd,
    }
}

/// `struct ibv_mr_init_attr`: what is to be registered. Headers of rdma-core v44 do not have it; only as much of it is here
/// as this device may look at.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the manual pages of verbs say what each field is")]
pub struct MrInit {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: Opaque,
}

impl MrInit {
    /// `IBV_REG_MR_MASK_IOVA`: there is an address that the memory is to be known by.
    pub const IOVA: u64 = 1;
    /// `IBV_REG_MR_MASK_ADDR`: it is memory of the program.
    pub const ADDR: u64 = 1 << 1;
}
