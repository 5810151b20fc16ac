//! Work requests and completions.

use std::ffi::{c_int, c_uint};

use super::device::Gid;
use super::layouts;
use super::object::{Mr, Mw, QpCap};

layouts! {
    /// A piece of a region.
    "struct ibv_sge" Sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// A completion.
    "struct ibv_wc" Wc {
        wr_id: u64,
        status: c_int,
        opcode: c_int,
        vendor_err: u32,
        byte_len: u32,
        /// Or the key that was invalidated.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    /// A receive.
    "struct ibv_recv_wr" RecvWr {
        wr_id: u64,
        next: *mut Self,
        sg_list: *mut Sge,
        num_sge: c_int,
    }

    /// A send, as it is for Writes, Reads and atomics. What else it may be lies in the same octets.
    "struct ibv_send_wr" SendWr {
        wr_id: u64,
        next: *mut Self,
        sg_list: *mut Sge,
        num_sge: c_int,
        opcode: c_int,
        send_flags: c_uint,
        /// Or the key to invalidate.
        imm_data: u32,
        remote_addr "wr.rdma.remote_addr": u64,
        /// A Write's or a Read's key, in its lower half as the machine counts; or an atomic's operand.
        rkey_or_operand "wr.atomic.compare_add": u64,
        swap "wr.atomic.swap": u64,
        atomic_rkey "wr.atomic.rkey": u32,
        gap "": u32,
        qp_type: u32,
        bind_window "bind_mw.mw": *mut Mw,
        bind_rkey "bind_mw.rkey": u32,
        bind "bind_mw.bind_info": BindInfo,
    }

    /// What a window is to show.
    "struct ibv_mw_bind_info" BindInfo {
        mr: *mut Mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// A request to bind a window.
    "struct ibv_mw_bind" Bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: BindInfo,
    }

    /// A way through a routed network.
    "struct ibv_global_route" GlobalRoute {
        dgid: Gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// A way to a peer.
    "struct ibv_ah_attr" AhAttr {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// How a queue pair is, or is to become.
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
