//! C's structures for devices, contexts, the objects of an open device, work requests and
//! completions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::layout::{Absent, Opaque, layouts};

/// `IBV_NODE_RNIC`: the node type of an iWARP card.
pub const NODE_RNIC: c_int = 4;
/// `IBV_TRANSPORT_IWARP`: the transport type of an iWARP device.
pub const TRANSPORT_IWARP: c_int = 1;
/// `__VERBS_ABI_IS_EXTENDED`: the value by which a context shows that it is the last field of a
/// `VerbsContext`.
pub const EXTENDED: usize = usize::MAX;

layouts! {
    /// An RDMA device as C's programs see it.
    "struct ibv_device" Device {
        /// Two function pointers of a device that old drivers used.
        ops "_ops": [Absent; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    /// An open RDMA device as C's programs see it.
    "struct ibv_context" Context {
        device: *mut Device,
        ops: ContextOps,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: libc::pthread_mutex_t,
        abi_compat: Opaque,
    }

    /// The functions that inline functions of verbs.h call through the context.
    "struct ibv_context_ops" ContextOps {
        query_device "_compat_query_device": Absent,
        query_port "_compat_query_port": Absent,
        alloc_pd "_compat_alloc_pd": Absent,
        dealloc_pd "_compat_dealloc_pd": Absent,
        reg_mr "_compat_reg_mr": Absent,
        rereg_mr "_compat_rereg_mr": Absent,
        dereg_mr "_compat_dereg_mr": Absent,
        alloc_mw: extern "C" fn(*mut Pd, c_int) -> *mut Mw,
        bind_mw: extern "C" fn(*mut Qp, *mut Mw, *mut Bind) -> c_int,
        dealloc_mw: extern "C" fn(*mut Mw) -> c_int,
        create_cq "_compat_create_cq": Absent,
        poll_cq: extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
        req_notify_cq: extern "C" fn(*mut Cq, c_int) -> c_int,
        cq_event "_compat_cq_event": Absent,
        resize_cq "_compat_resize_cq": Absent,
        destroy_cq "_compat_destroy_cq": Absent,
        create_srq "_compat_create_srq": Absent,
        modify_srq "_compat_modify_srq": Absent,
        query_srq "_compat_query_srq": Absent,
        destroy_srq "_compat_destroy_srq": Absent,
        post_srq_recv: extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
        create_qp "_compat_create_qp": Absent,
        query_qp "_compat_query_qp": Absent,
        modify_qp "_compat_modify_qp": Absent,
        destroy_qp "_compat_destroy_qp": Absent,
        post_send: extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
        post_recv: extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
        create_ah "_compat_create_ah": Absent,
        destroy_ah "_compat_destroy_ah": Absent,
        attach_mcast "_compat_attach_mcast": Absent,
        detach_mcast "_compat_detach_mcast": Absent,
        async_event "_compat_async_event": Absent,
    }

    /// A protection domain as C's programs see it.
    "struct ibv_pd" Pd {
        context: *mut Context,
        handle: u32,
    }

    /// A memory region as C's programs see it.
    "struct ibv_mr" Mr {
        context: *mut Context,
        pd: *mut Pd,
        addr: Opaque,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// A memory window as C's programs see it.
    "struct ibv_mw" Mw {
        context: *mut Context,
        pd: *mut Pd,
        rkey: u32,
        handle: u32,
        kind "type": c_int,
    }

    /// A completion channel, on which completion queues report to C's programs.
    "struct ibv_comp_channel" CompChannel {
        context: *mut Context,
        fd: c_int,
        refcnt: c_int,
    }

    /// A completion queue as C's programs see it.
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

    /// A completion queue with the functions of verbs' extended interface.
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

    /// The input of `ibv_start_poll`; no flag of it is defined.
    "struct ibv_poll_cq_attr" PollCq {
        comp_mask: u32,
    }

    /// A shared receive queue as C's programs see it.
    "struct ibv_srq" Srq {
        context: *mut Context,
        srq_context: Opaque,
        pd: *mut Pd,
        handle: u32,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    /// A queue pair as C's programs see it.
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

    /// A queue pair with the functions of verbs' extended interface.
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

    /// A scatter/gather element of a work request in C's layout.
    "struct ibv_sge" Sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// A buffer of inline data in C's layout.
    "struct ibv_data_buf" DataBuf {
        addr: Opaque,
        length: usize,
    }

    /// A completion in C's layout.
    "struct ibv_wc" Wc {
        wr_id: u64,
        status: c_int,
        opcode: c_int,
        vendor_err: u32,
        byte_len: u32,
        /// The immediate data of the message, or the key that a Send invalidated.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    /// A receive work request in C's layout.
    "struct ibv_recv_wr" RecvWr {
        wr_id: u64,
        next: *mut Self,
        sg_list: *mut Sge,
        num_sge: c_int,
    }

    /// A send work request in C's layout. The fields are those of Writes, Reads and atomics; C's
    /// union gives the same bytes other names for other operations.
    "struct ibv_send_wr" SendWr {
        wr_id: u64,
        next: *mut Self,
        sg_list: *mut Sge,
        num_sge: c_int,
        opcode: c_int,
        send_flags: c_uint,
        /// The immediate data of the request, or the key to invalidate.
        imm_data: u32,
        remote_addr "wr.rdma.remote_addr": u64,
        /// The key of a Write or a Read in the lower half of the word, or the operand of an atomic.
        rkey_or_operand "wr.atomic.compare_add": u64,
        swap "wr.atomic.swap": u64,
        atomic_rkey "wr.atomic.rkey": u32,
        gap "": u32,
        qp_type: u32,
        bind_window "bind_mw.mw": *mut Mw,
        bind_rkey "bind_mw.rkey": u32,
        bind "bind_mw.bind_info": BindInfo,
    }

    /// The range and the rights of a memory window.
    "struct ibv_mw_bind_info" BindInfo {
        mr: *mut Mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// A request to bind a memory window.
    "struct ibv_mw_bind" Bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: BindInfo,
    }

    /// An asynchronous event. `element` points to the object, or holds the number of a port.
    "struct ibv_async_event" AsyncEvent {
        element: Opaque,
        event_type: c_int,
    }
}
