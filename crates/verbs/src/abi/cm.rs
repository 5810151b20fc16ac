//! The C structures of librdmacm's interface.

use std::ffi::{c_char, c_int};

use super::attr::{AhAttr, Gid};
use super::layout::{Opaque, layouts};
use super::object::{CompChannel, Context, Cq, Pd, Qp, Srq};

layouts! {
    /// A channel on which the events of rdma_cm ids arrive.
    "struct rdma_event_channel" EventChannel {
        fd: c_int,
    }

    /// An InfiniBand address in C's rdma_cm interface.
    "struct rdma_ib_addr" IbAddr {
        sgid: Gid,
        dgid: Gid,
        pkey: u16,
    }

    /// The addresses of both ends of an rdma_cm connection.
    "struct rdma_addr" Addr {
        source "src_storage": libc::sockaddr_storage,
        destination "dst_storage": libc::sockaddr_storage,
        ib "addr.ibaddr": IbAddr,
    }

    /// The route of an rdma_cm connection.
    "struct rdma_route" Route {
        addr: Addr,
        path_rec: Opaque,
        num_paths: c_int,
    }

    /// An rdma_cm id: one end of a connection, or a listener.
    "struct rdma_cm_id" Id {
        verbs: *mut Context,
        channel: *mut EventChannel,
        context: Opaque,
        qp: *mut Qp,
        route: Route,
        ps: c_int,
        port_num: u8,
        event: *mut Event,
        send_cq_channel: *mut CompChannel,
        send_cq: *mut Cq,
        recv_cq_channel: *mut CompChannel,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        pd: *mut Pd,
        qp_type: c_int,
    }

    /// The parameters of `rdma_connect` and `rdma_accept`.
    "struct rdma_conn_param" ConnParam {
        private_data: *const u8,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    /// The parameters of a datagram event of rdma_cm.
    "struct rdma_ud_param" UdParam {
        private_data: *const u8,
        private_data_len: u8,
        ah_attr: AhAttr,
        qp_num: u32,
        qkey: u32,
    }

    /// An event of an rdma_cm id. The union of parameters has the size of [`UdParam`], its largest
    /// member.
    "struct rdma_cm_event" Event {
        id: *mut Id,
        listen_id: *mut Id,
        event: c_int,
        status: c_int,
        param: UdParam,
    }

    /// The options of enhanced connection establishment.
    "struct ibv_ece" Ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }

    /// An address to connect to or to listen at, as `rdma_getaddrinfo` returns it.
    "struct rdma_addrinfo" AddrInfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: u32,
        ai_dst_len: u32,
        ai_src_addr: *mut libc::sockaddr,
        ai_dst_addr: *mut libc::sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: Opaque,
        ai_connect_len: usize,
        ai_connect: Opaque,
        ai_next: *mut Self,
    }
}
