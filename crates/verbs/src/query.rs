//! Queries of an open RDMA device: its attributes, its port, its addresses.
//!
//! The limits are those that the engine enforces (`engine::limits`). A limit that the engine lacks
//! is a number that no program reaches.

use std::ffi::{c_int, c_uint};

use sprat_rdma::Interface;

use crate::abi::attr::Gid;
use crate::abi::device::{
    DeviceAttr, DeviceAttrEx, GidEntry, LINK_ETHERNET, ModerationCaps, OdpCaps, PORT_ACTIVE,
    PORT_DOWN, PacingCaps, PciAtomicCaps, PortAttr, QueryDeviceInput, RssCaps, TmCaps, TsoCaps,
    ValuesEx,
};
use crate::abi::object::Context;
use crate::context::OpenDevice;
use crate::device::{Device, chars};
use crate::engine::{Engine, limits};
use crate::entry::{Errno, INVALID, entry, export, put, put_part};

/// The number of a device's only port.
pub(crate) const PORT: u32 = 1;
/// The only partition key of a device's port, which every iWARP card has.
const KEY: u16 = 0xffff;
/// The capabilities of every device: `IBV_DEVICE_MEM_WINDOW`, `_MEM_MGT_EXTENSIONS` (local
/// invalidation, Sends with invalidation), `_MEM_WINDOW_TYPE_2B`.
const CAPABILITIES: c_uint = 1 << 17 | 1 << 21 | 1 << 24;
/// The size in bytes of `ibv_port_attr` that the symbol `ibv_query_port` may write. verbs.h passes
/// the size of its own `ibv_port_attr`.
const PORT_ATTR_THEN: usize = 48;
/// The vendor id by which programs with lists of devices recognise software iWARP.
const VENDOR: u32 = 0x62_6d74;
/// `IBV_VALUES_MASK_RAW_CLOCK`: the flag by which a program requests the device's clock.
const RAW_CLOCK: u32 = 1;
/// The values of `enum ibv_mtu`: n stands for 256 << (n - 1) bytes.
const MTUS: std::ops::RangeInclusive<c_int> = 1..=5;

/// A device's limit as a C int.
fn number<T: TryInto<c_int>>(number: T) -> c_int {
    number.try_into().unwrap_or(c_int::MAX)
}

fn attributes(device: &Device) -> DeviceAttr {
    let guid = device.guid();
    let most = limits();
    DeviceAttr {
        fw_ver: chars(env!("CARGO_PKG_VERSION")),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: i64::MAX.cast_unsigned(),
        page_size_cap: 4096,
        vendor_id: VENDOR,
        vendor_part_id: 1,
        hw_ver: 1,
        max_qp: number(most.queue_pairs),
        max_qp_wr: number(most.requests),
        device_cap_flags: CAPABILITIES,
        max_sge: number(most.elements),
        // An iWARP Read has one sink.
        max_sge_rd: 1,
        max_cq: number(most.completion_queues),
        max_cqe: number(most.completions),
        max_mr: number(most.tags),
        max_pd: number(most.protection_domains),
        max_qp_rd_atom: number(most.read_depth),
        max_ee_rd_atom: 0,
        max_res_rd_atom: number(usize::from(most.read_depth) * most.queue_pairs),
        max_qp_init_rd_atom: number(most.read_depth),
        max_ee_init_rd_atom: 0,
        // IBV_ATOMIC_HCA: atomic among the operations of this device.
        atomic_cap: 1,
        max_ee: 0,
        max_rdd: 0,
        // Windows and regions share the tags.
        max_mw: number(most.tags),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: 0,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: number(most.shared_receive_queues),
        max_srq_wr: number(most.requests),
        max_srq_sge: number(most.elements),
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: PORT as u8,
    }
}

fn attributes_ex(device: &Device) -> DeviceAttrEx {
    DeviceAttrEx {
        orig_attr: attributes(device),
        comp_mask: 0,
        odp_caps: OdpCaps { general_caps: 0, per_transport_caps: [0; 3] },
        completion_timestamp_mask: u64::MAX,
        // In kHz, since timestamps count nanoseconds.
        hca_core_clock: 1_000_000,
        device_cap_flags_ex: 0,
        tso_caps: TsoCaps { max_tso: 0, supported_qpts: 0 },
        rss_caps: RssCaps {
            supported_qpts: 0,
            max_rwq_indirection_tables: 0,
            max_rwq_indirection_table_size: 0,
            rx_hash_fields_mask: 0,
            rx_hash_function: 0,
        },
        max_wq_type_rq: 0,
        packet_pacing_caps: PacingCaps {
            qp_rate_limit_min: 0,
            qp_rate_limit_max: 0,
            supported_qpts: 0,
        },
        raw_packet_caps: 0,
        tm_caps: TmCaps { max_rndv_hdr_size: 0, max_num_tags: 0, flags: 0, max_ops: 0, max_sge: 0 },
        cq_mod_caps: ModerationCaps { max_cq_count: 0, max_cq_period: 0 },
        max_dm_size: 0,
        pci_atomic_caps: PciAtomicCaps { fetch_add: 0, swap: 0, compare_swap: 0 },
        xrc_odp_caps: 0,
        phys_port_cnt_ex: PORT,
    }
}

/// The largest `enum ibv_mtu` that fits a packet of `bytes` bytes.
fn mtu(bytes: u32) -> c_int {
    MTUS.rev().find(|n| bytes >= 256 << (n - 1)).unwrap_or(*MTUS.start())
}

/// The speed, in units of 100 Mb/s, that [`width_and_speed`] returns for an unknown rate.
const UNKNOWN_SPEED: u64 = 400;

/// The lanes of a port (1 or 4) and the rate of each (2.5, 10 or 25 Gb/s), as the `active_width`
/// and `active_speed` of iWARP cards.
pub(crate) fn width_and_speed(mbps: Option<u32>) -> (u8, u8) {
    match mbps {
        Some(0..5_000) => (1, 1),
        Some(5_000..20_000) => (1, 4),
        Some(20_000..40_000) => (1, 32),
        Some(100_000..) => (2, 32),
        // Also if the interface has no rate: loopback, a bridge.
        _ => (2, 4),
    }
}

fn port(interface: Option<&Interface>) -> PortAttr {
    let up = interface.is_some_and(|i| i.up);
    let (active_width, active_speed) = width_and_speed(interface.and_then(|i| i.mbps));
    PortAttr {
        state: if up { PORT_ACTIVE } else { PORT_DOWN },
        max_mtu: *MTUS.end(),
        active_mtu: mtu(interface.map_or(0, |i| i.mtu)),
        gid_tbl_len: interface.map_or(0, |i| i.addresses.len() as c_int),
        port_cap_flags: 0,
        max_msg_sz: 1 << 31,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 0,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width,
        active_speed,
        // Link up, or disabled.
        phys_state: if up { 5 } else { 3 },
        link_layer: LINK_ETHERNET,
        flags: 0,
        port_cap_flags2: 0,
    }
}

fn write_port(
    context: *mut Context,
    number: u8,
    attr: *mut PortAttr,
    room: usize,
) -> Result<(), Errno> {
    // SAFETY: The program passes null or an open context.
    let open = unsafe { OpenDevice::from_raw(context) }?;
    if u32::from(number) != PORT {
        return Err(INVALID);
    }
    // SAFETY: The program passes null or memory of the size that it states.
    unsafe { put_part(attr, room, &port(open.device.interface().ok().as_ref())) }
}

/// The GID at an index of the port's GID table.
fn gid(open: &OpenDevice, port: u32, index: usize) -> Result<(Gid, u32), Errno> {
    if port != PORT {
        return Err(INVALID);
    }
    let interface = open.device.interface()?;
    let raw = interface.gids().nth(index).ok_or(INVALID)?;
    Ok((Gid { raw }, interface.index))
}

fn entry_at(open: &OpenDevice, port: u32, index: u32) -> Result<GidEntry, Errno> {
    let (gid, ndev_ifindex) = gid(open, port, index as usize).map_err(|_| Errno(libc::ENODATA))?;
    Ok(GidEntry { gid, gid_index: index, port_num: port, gid_type: 0, ndev_ifindex })
}

entry! {
    /// Returns the attributes of a port to programs whose verbs.h passes the size of the structure.
    code fn query_port(context: *mut Context, number: u8, attr: *mut PortAttr, room: usize) {
        write_port(context, number, attr, room)
    }

    /// Returns the extended attributes of an RDMA device.
    code fn ibv_query_device_ex(
        context: *mut Context,
        input: *const QueryDeviceInput,
        attr: *mut DeviceAttrEx,
        room: usize,
    ) {
        // SAFETY: The program passes null or a valid structure.
        let asks_for_more = unsafe { input.as_ref() }.is_some_and(|i| i.comp_mask != 0);
        if asks_for_more || room < size_of::<DeviceAttr>() {
            return Err(INVALID);
        }
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        // SAFETY: The program passes null or memory of the size that it states.
        unsafe { put_part(attr, room, &attributes_ex(open.device)) }
    }
}

export! {
    /// Returns the attributes of an RDMA device.
    code fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { put(attr, attributes(open.device)) }
    }

    /// Returns the speed of a device's port in units of 100 Mb/s.
    code fn ibv_query_port_speed(context: *mut Context, port: u32, speed: *mut u64) {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        if port != PORT {
            return Err(INVALID);
        }
        let known = open.device.interface().ok().and_then(|i| i.mbps);
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { put(speed, known.map_or(UNKNOWN_SPEED, |mbps| u64::from(mbps / 100).max(1))) }
    }

    /// Returns the attributes of a device's port to programs that were compiled with old headers.
    code fn ibv_query_port(context: *mut Context, number: u8, attr: *mut PortAttr) {
        write_port(context, number, attr, PORT_ATTR_THEN)
    }

    /// Returns an entry of a port's GID table; `room` is the size of the caller's structure.
    code fn _ibv_query_gid_ex(
        context: *mut Context,
        port: u32,
        index: u32,
        to: *mut GidEntry,
        flags: u32,
        room: usize,
    ) {
        if flags != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        // SAFETY: The program passes null or memory of the size that it states.
        unsafe { put_part(to, room, &entry_at(open, port, index)?) }
    }
}

export! {
    /// Returns the GID at an index of a port's GID table.
    minus fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, to: *mut Gid) -> c_int {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        let (gid, _) = gid(open, port.into(), usize::try_from(index).map_err(|_| INVALID)?)?;
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { put(to, gid) }?;
        Ok(0)
    }

    /// Returns the type of a GID: 0, as for all types but the second version of RoCE.
    minus fn ibv_query_gid_type(
        context: *mut Context,
        port: u8,
        index: u32,
        to: *mut c_int,
    ) -> c_int {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        gid(open, port.into(), index as usize)?;
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { put(to, 0) }?;
        Ok(0)
    }

    /// Returns a partition key of a port; iWARP has one.
    minus fn ibv_query_pkey(context: *mut Context, port: u8, index: c_int, to: *mut u16) -> c_int {
        // SAFETY: The program passes null or an open context.
        unsafe { OpenDevice::from_raw(context) }?;
        if u32::from(port) != PORT || index != 0 {
            return Err(INVALID);
        }
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { put(to, KEY) }?;
        Ok(0)
    }

    /// Returns the index of a port's partition key.
    minus fn ibv_get_pkey_index(context: *mut Context, port: u8, key: u16) -> c_int {
        // SAFETY: The program passes null or an open context.
        unsafe { OpenDevice::from_raw(context) }?;
        if u32::from(port) == PORT && key == KEY { Ok(0) } else { Err(INVALID) }
    }
}

export! {
    /// Returns the GID table of a device and the number of its entries, or a negated errno:
    /// `EINVAL` if `entries` is too small.
    plain fn _ibv_query_gid_table(
        context: *mut Context,
        to: *mut GidEntry,
        entries: usize,
        flags: u32,
        room: usize,
    ) -> isize {
        let table = || {
            // SAFETY: The program passes null or an open context.
            let open = unsafe { OpenDevice::from_raw(context) }?;
            if flags != 0 || room < size_of::<GidEntry>() {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            let count = open.device.interface().map_or(0, |i| i.addresses.len());
            if count > entries {
                return Err(INVALID);
            }
            for index in 0..count {
                // SAFETY: The program passes null or an array of `entries` elements of `room` bytes
                // each.
                unsafe {
                    let to = to.byte_add(index * room);
                    put_part(to, room, &entry_at(open, PORT, index as u32)?)?;
                }
            }
            Ok(count as isize)
        };
        Ok(table().unwrap_or_else(|errno: Errno| -(errno.0 as isize)))
    }
}

entry! {
    /// Returns the device's clock, which counts nanoseconds as timestamps do.
    code fn ibv_query_rt_values_ex(context: *mut Context, values: *mut ValuesEx) {
        // SAFETY: The program passes null or an open context.
        unsafe { OpenDevice::from_raw(context) }?;
        // SAFETY: The program passes null or memory that it lets this call write.
        let values = unsafe { values.as_mut() }.ok_or(INVALID)?;
        if values.comp_mask & RAW_CLOCK != 0 {
            let now_ns = Engine::get()?.device.now().as_ns();
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now_ns.cast_signed() };
        }
        values.comp_mask &= RAW_CLOCK;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::limits;

    /// Formats a number in groups of three digits.
    fn grouped(number: usize) -> String {
        let digits = number.to_string();
        let groups: Vec<&str> =
            digits.as_bytes().rchunks(3).rev().map(|g| str::from_utf8(g).unwrap()).collect();
        groups.join(",")
    }

    #[test]
    fn the_page_tells_the_limits() {
        let page = include_str!("../../../docs/verbs.md");
        let most = limits();
        for (of, number) in [
            ("queue pairs, and connections", most.queue_pairs),
            ("queue pairs, and connections", most.connections),
            ("completion queues", most.completion_queues),
            ("shared receive queues", most.shared_receive_queues),
            ("protection domains", most.protection_domains),
            ("memory regions and windows", most.tags),
            ("work requests of a queue, receives of a shared one", most.requests as usize),
            ("scatter/gather elements of a request", most.elements),
            ("bytes of inline data", most.inline),
            ("entries of a completion queue", most.completions as usize),
            (
                "Reads and atomics in progress of a queue pair, in each direction",
                most.read_depth.into(),
            ),
        ] {
            let row = format!("| {of} | {} |", grouped(number));
            assert!(page.contains(&row), "no {row}");
        }
    }
}
