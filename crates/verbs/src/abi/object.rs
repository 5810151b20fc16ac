//! The objects of an open device.

use std::ffi::{c_int, c_uint, c_void};

use super::device::Context;
use super::work::{BindInfo, Sge};
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
        start_poll: extern "C" fn(*mut Self, *mut PollCq) -> c_int,
        next_poll: extern "C" fn(*mut Self) -> c_int,
        end_poll: extern "C" fn(*mut Self),
        read_opcode: extern "C" fn(*mut Self) -> c_int,
        read_vendor_err: extern "C" fn(*mut Self) -> u32,
        read_byte_len: extern "C" fn(*mut Self) -> u32,
        read_imm_data: extern "C" fn(*mut Self) -> u32,
        read_qp_num: extern "C" fn(*mut Self) -> u32,
        read_src_qp: extern "C" fn(*mut Self) -> u32,
        read_wc_flags: extern "C" fn(*mut Self) -> c_uint,
        read_slid: extern "C" fn(*mut Self) -> u32,
        read_sl: extern "C" fn(*mut Self) -> u8,
        read_dlid_path_bits: extern "C" fn(*mut Self) -> u8,
        read_completion_ts: extern "C" fn(*mut Self) -> u64,
        read_cvlan: Absent,
        read_flow_tag: Absent,
        read_tm_info: Absent,
        read_completion_wallclock_ns: extern "C" fn(*mut Self) -> u64,
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
        wr_atomic_cmp_swp: extern "C" fn(*mut Self, u32, u64, u64, u64),
        wr_atomic_fetch_add: extern "C" fn(*mut Self, u32, u64, u64),
        wr_bind_mw: extern "C" fn(*mut Self, *mut Mw, u32, *const BindInfo),
        wr_local_inv: extern "C" fn(*mut Self, u32),
        wr_rdma_read: extern "C" fn(*mut Self, u32, u64),
        wr_rdma_write: extern "C" fn(*mut Self, u32, u64),
        wr_rdma_write_imm: extern "C" fn(*mut Self, u32, u64, u32),
        wr_send: extern "C" fn(*mut Self),
        wr_send_imm: extern "C" fn(*mut Self, u32),
        wr_send_inv: extern "C" fn(*mut Self, u32),
        wr_send_tso: Absent,
        wr_set_ud_addr: Absent,
        wr_set_xrc_srqn: Absent,
        wr_set_inline_data: extern "C" fn(*mut Self, *const c_void, usize),
        wr_set_inline_data_list: extern "C" fn(*mut Self, usize, *const DataBuf),
        wr_set_sge: extern "C" fn(*mut Self, u32, u64, u32),
        wr_set_sge_list: extern "C" fn(*mut Self, usize, *const Sge),
        wr_start: extern "C" fn(*mut Self),
        wr_complete: extern "C" fn(*mut Self) -> c_int,
        wr_abort: extern "C" fn(*mut Self),
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
    /// What a poll by functions is asked for: nothing yet.
    "struct ibv_poll_cq_attr" PollCq {
        comp_mask: u32,
    }

    /// How a completion queue is to become.
    "struct ibv_modify_cq_attr" ModifyCq {
        attr_mask: u32,
        moderate: Moderation,
    }

    /// How completion events are held back.
    "struct ibv_moderate_cq" Moderation {
        cq_count: u16,
        cq_period: u16,
    }

    /// Octets of the program's own.
    "struct ibv_data_buf" DataBuf {
        addr: Opaque,
        length: usize,
    }

    /// Tags that a shared receive queue matches.
    "struct ibv_tm_cap" TmCap {
        max_num_tags: u32,
        max_ops: u32,
    }

    /// How a shared receive queue is to be, with what came later.
    "struct ibv_srq_init_attr_ex" SrqInitEx {
        srq_context: Opaque,
        attr: SrqAttr,
        comp_mask: u32,
        srq_type: c_int,
        pd: *mut Pd,
        xrcd: Opaque,
        cq: *mut Cq,
        tm_cap: TmCap,
    }

    /// How receives are spread.
    "struct ibv_rx_hash_conf" RxHash {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    /// How a queue pair is to be, with what came later.
    "struct ibv_qp_init_attr_ex" QpInitEx {
        qp_context: Opaque,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: c_int,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut Pd,
        xrcd: Opaque,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: Opaque,
        rx_hash_conf: RxHash,
        source_qpn: u32,
        send_ops_flags: u64,
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
