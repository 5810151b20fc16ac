//! The `virtio_net_hdr` of AF_PACKET and tap: ten bytes before a frame that say which checksums and
//! segments are left to compute.
//!
//! ```text
//! flags(1) kind(1) bytes of headers(2) bytes of a segment(2) checksum starts(2) and goes(2)
//! ```
//!
//! Numbers are in the machine's byte order.

use sprat_proto::device::{Offload, RxOffload, Segmentation};

/// Bytes of a `virtio_net_hdr`.
pub(super) const LEN: usize = 10;

// linux/virtio_net.h
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;
const UDP: u8 = 5;

/// Returns the `virtio_net_hdr` that asks for `offload`.
pub(super) fn emit(offload: Offload) -> [u8; LEN] {
    let half = |value: u16| value.to_le().to_le_bytes();
    let (kind, header, size, start, offset) = match offload {
        Offload::None => return [0; LEN],
        Offload::Checksum { start, offset } => (0, 0, 0, start, offset),
        Offload::Segments { kind, start, header, mss } => {
            let of = match kind {
                Segmentation::Tcp4 => TCPV4,
                Segmentation::Tcp6 => TCPV6,
                Segmentation::Udp => UDP,
            };
            (of, header, mss, start, kind.checksum_at())
        }
    };
    let [[a, b], [c, d], [e, f], [g, h]] = [half(header), half(size), half(start), half(offset)];
    [NEEDS_CSUM, kind, a, b, c, d, e, f, g, h]
}

/// Returns the offloads that the `virtio_net_hdr` of a received frame names.
pub(super) fn arrival(header: [u8; LEN]) -> RxOffload {
    let segment = u16::from_le(u16::from_le_bytes([header[4], header[5]]));
    RxOffload {
        checksum_valid: header[0] & (NEEDS_CSUM | DATA_VALID) != 0,
        segment_size: if header[1] == 0 { 0 } else { segment },
        left: 0,
    }
}
