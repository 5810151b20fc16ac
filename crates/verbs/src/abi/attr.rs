//! The attributes of verbs objects: the C structures by which programs create, query and modify
//! them.

use std::ffi::{c_int, c_uint};

use super::layout::{Opaque, layouts};
use super::object::{CompChannel, Cq, Pd, Srq};

layouts! {
    /// A GID, the address of a port. C also gives access to it as two 64-bit words.
    #[repr(align(8))]
    "union ibv_gid" Gid {
        raw: [u8; 16],
    }

    /// The capacities of a queue pair.
    "struct ibv_qp_cap" QpCap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    /// The attributes that `ibv_create_qp` takes.
    "struct ibv_qp_init_attr" QpInit {
        qp_context: Opaque,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: c_int,
        sq_sig_all: c_int,
    }

    /// The capacities and the limit of a shared receive queue.
    "struct ibv_srq_attr" SrqAttr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// The attributes that `ibv_create_srq` takes.
    "struct ibv_srq_init_attr" SrqInit {
        srq_context: Opaque,
        attr: SrqAttr,
    }

    /// The attributes that `ibv_create_cq_ex` takes.
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

    /// The attributes that `ibv_modify_cq` takes.
    "struct ibv_modify_cq_attr" ModifyCq {
        attr_mask: u32,
        moderate: Moderation,
    }

    /// The attributes of a completion queue's moderation of events.
    "struct ibv_moderate_cq" Moderation {
        cq_count: u16,
        cq_period: u16,
    }

    /// The tag matching of a shared receive queue.
    "struct ibv_tm_cap" TmCap {
        max_num_tags: u32,
        max_ops: u32,
    }

    /// The attributes that `ibv_create_srq_ex` takes.
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

    /// The receive-side scaling of a queue pair.
    "struct ibv_rx_hash_conf" RxHash {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    /// The attributes that `ibv_create_qp_ex` takes.
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

    /// A global route: the part of an address handle that crosses subnets.
    "struct ibv_global_route" GlobalRoute {
        dgid: Gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// The attributes of an address handle.
    "struct ibv_ah_attr" AhAttr {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// The attributes that `ibv_modify_qp` sets and `ibv_query_qp` returns.
    "struct ibv_qp_attr" QpAttr {
        qp_state: c_int,
        cur_qp_state: c_int,
        path_mtu: c_int,
        path_mig_state: c_int,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: QpCap,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
}

/// The attributes that `ibv_reg_mr_ex` takes. The headers of rdma-core v44 lack this structure.
/// Only the fields that this device reads are declared.
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
    /// `IBV_REG_MR_MASK_IOVA`: the program has set the field `iova` of a registration.
    pub const IOVA: u64 = 1;
    /// `IBV_REG_MR_MASK_ADDR`: the program has set the field `addr` of a registration.
    pub const ADDR: u64 = 1 << 1;
}
