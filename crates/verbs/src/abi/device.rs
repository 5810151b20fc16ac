//! C's structures for extended contexts and for the attributes of devices and ports.

use std::ffi::{c_char, c_int, c_uint};

use super::attr::{CqInit, Gid, ModifyCq, QpInitEx, SrqInitEx};
use super::layout::{Absent, Opaque, layouts};
use super::object::{Context, Cq, CqEx, Qp, Srq};

/// `IBV_PORT_DOWN`: the state of a port that is down.
pub const PORT_DOWN: c_int = 1;
/// `IBV_PORT_ACTIVE`: the state of a port that is up.
pub const PORT_ACTIVE: c_int = 4;
/// `IBV_LINK_LAYER_ETHERNET`: the link layer of an Ethernet port.
pub const LINK_ETHERNET: u8 = 2;

layouts! {
    /// An open device with the functions that later headers added to C's context. The structure
    /// grows at its front: a program finds a function by its distance from `context`, and calls it
    /// if `sz` covers it and it is not null.
    "struct verbs_context" VerbsContext {
        query_port: Option<extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
        advise_mr: Absent,
        alloc_null_mr: Absent,
        read_counters: Absent,
        attach_counters_point_flow: Absent,
        create_counters: Absent,
        destroy_counters: Absent,
        reg_dm_mr: Absent,
        alloc_dm: Absent,
        free_dm: Absent,
        modify_flow_action_esp: Absent,
        destroy_flow_action: Absent,
        create_flow_action_esp: Absent,
        modify_qp_rate_limit: Absent,
        alloc_parent_domain: Absent,
        dealloc_td: Absent,
        alloc_td: Absent,
        modify_cq: Option<extern "C" fn(*mut Cq, *mut ModifyCq) -> c_int>,
        post_srq_ops: Absent,
        destroy_rwq_ind_table: Absent,
        create_rwq_ind_table: Absent,
        destroy_wq: Absent,
        modify_wq: Absent,
        create_wq: Absent,
        query_rt_values: Option<extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
        create_cq_ex: Option<extern "C" fn(*mut Context, *mut CqInit) -> *mut CqEx>,
        private "priv": Opaque,
        query_device_ex: Option<
            extern "C" fn(*mut Context, *const QueryDeviceInput, *mut DeviceAttrEx, usize) -> c_int,
        >,
        destroy_flow "ibv_destroy_flow": Absent,
        placeholder_2 "ABI_placeholder2": Absent,
        create_flow "ibv_create_flow": Absent,
        placeholder_1 "ABI_placeholder1": Absent,
        open_qp: Absent,
        create_qp_ex: Option<extern "C" fn(*mut Context, *mut QpInitEx) -> *mut Qp>,
        get_srq_num: Option<extern "C" fn(*mut Srq, *mut u32) -> c_int>,
        create_srq_ex: Option<extern "C" fn(*mut Context, *mut SrqInitEx) -> *mut Srq>,
        open_xrcd: Absent,
        close_xrcd: Absent,
        placeholder_3 "_ABI_placeholder3": u64,
        sz: usize,
        context: Context,
    }

    /// The attributes of an RDMA device. Fields that begin with `max` are limits.
    "struct ibv_device_attr" DeviceAttr {
        fw_ver: [c_char; 64],
        node_guid: [u8; 8],
        sys_image_guid: [u8; 8],
        /// The length of the longest memory region, in bytes.
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_int,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    /// The input of `ibv_query_device_ex`.
    "struct ibv_query_device_ex_input" QueryDeviceInput {
        comp_mask: u32,
    }

    /// The capabilities of on-demand paging.
    "struct ibv_odp_caps" OdpCaps {
        general_caps: u64,
        per_transport_caps: [u32; 3],
    }

    /// The capabilities of segmentation offload.
    "struct ibv_tso_caps" TsoCaps {
        max_tso: u32,
        supported_qpts: u32,
    }

    /// The capabilities of receive-side scaling.
    "struct ibv_rss_caps" RssCaps {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }

    /// The capabilities of packet pacing.
    "struct ibv_packet_pacing_caps" PacingCaps {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }

    /// The capabilities of tag matching.
    "struct ibv_tm_caps" TmCaps {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }

    /// The capabilities of completion moderation.
    "struct ibv_cq_moderation_caps" ModerationCaps {
        max_cq_count: u16,
        max_cq_period: u16,
    }

    /// The capabilities of PCI atomics.
    "struct ibv_pci_atomic_caps" PciAtomicCaps {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }

    /// [`DeviceAttr`] with the fields that later headers added.
    "struct ibv_device_attr_ex" DeviceAttrEx {
        orig_attr: DeviceAttr,
        comp_mask: u32,
        odp_caps: OdpCaps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: TsoCaps,
        rss_caps: RssCaps,
        max_wq_type_rq: u32,
        packet_pacing_caps: PacingCaps,
        raw_packet_caps: u32,
        tm_caps: TmCaps,
        cq_mod_caps: ModerationCaps,
        max_dm_size: u64,
        pci_atomic_caps: PciAtomicCaps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    /// The attributes of a device's port.
    "struct ibv_port_attr" PortAttr {
        state: c_int,
        max_mtu: c_int,
        active_mtu: c_int,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }

    /// An entry of a port's GID table.
    "struct ibv_gid_entry" GidEntry {
        gid: Gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    /// The current time of a device, if a program asks for it by `comp_mask`.
    "struct ibv_values_ex" ValuesEx {
        comp_mask: u32,
        raw_clock: libc::timespec,
    }
}
