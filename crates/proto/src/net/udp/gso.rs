//! Generic segmentation offload (GSO): long datagrams to one peer, batched into one frame that the
//! device cuts into segments.
//!
//! ```text
//! batch    headers │ 1472 │ 1472 │ 1472 │ 310     segments of one length; the last may be shorter
//! ```
//!
//! Always: the batch leaves before any later datagram of the callers, and at the latest when they
//! flush. Short datagrams are not batched, because a caller may wait for the answer.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::routes::{NOWHERE, Route};
use crate::device::{Device, HEADER, MAX_FRAME, Offload, Segmentation, Sent};
use crate::net::context::Context;
use crate::wire::{ipv4, ipv6, udp};

/// The length in bytes of the shortest datagram that starts a GSO batch.
pub(in crate::net) const MIN_SEGMENT: usize = 1024;
/// The most segments of a GSO frame (UDP_MAX_SEGMENTS in Linux).
const MAX_SEGMENTS: usize = 64;

/// A GSO batch of datagrams to one peer.
#[derive(Debug)]
pub(in crate::net) struct GsoBatch {
    route: Route,
    /// The length in bytes of the first datagram in the GSO batch.
    segment_size: usize,
    /// The number of datagrams in the GSO batch.
    count: usize,
    /// The last datagram of the GSO batch is shorter than the others, so no further one may follow.
    closed: bool,
    bytes: Vec<u8>,
}

impl GsoBatch {
    pub(in crate::net) const fn new() -> Self {
        Self { route: NOWHERE, segment_size: 0, count: 0, closed: true, bytes: Vec::new() }
    }

    #[inline]
    pub(in crate::net) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn accepts(&self, port: u16, to: &SocketAddr, len: usize, max_send: usize) -> bool {
        // The lengths of UDP and of IPv4 have 16 bits and count the whole frame.
        let max_bytes = max_send.min(MAX_FRAME - (ipv6::HEADER - ipv4::HEADER))
            - ipv6::HEADER
            - udp::HEADER
            - HEADER;
        let open = self.count > 0 && !self.closed && self.count < MAX_SEGMENTS;
        let fits = len > 0 && len <= self.segment_size && self.bytes.len() + len <= max_bytes;
        open && fits && self.route.port == port && self.route.to == *to
    }

    fn append(&mut self, len: usize, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.count += 1;
        self.closed = len < self.segment_size;
    }

    /// Adds a datagram of `len` bytes to the GSO batch, or flushes the batch and sends the datagram
    /// or starts another batch with it. The route must be valid.
    pub(in crate::net) fn send<D: Device>(
        &mut self,
        cx: &mut Context,
        mut route: Route,
        len: usize,
        device: &mut D,
        parts: &[&[u8]],
    ) -> Sent {
        if self.accepts(route.port, &route.to, len, cx.info.max_send) {
            self.append(len, parts);
            return Sent::Yes;
        }
        if self.flush(cx, device) == Sent::Full {
            return Sent::Full;
        }
        if len < MIN_SEGMENT {
            let sent = route.send(cx, len, device, parts);
            cx.counters.datagrams_out += u64::from(sent == Sent::Yes);
            return sent;
        }
        self.bytes.clear();
        (self.route, self.segment_size) = (route, len);
        self.append(len, parts);
        Sent::Yes
    }

    /// Sends the GSO batch. If the device has no room, it returns [`Sent::Full`] and keeps the
    /// batch.
    pub(in crate::net) fn flush<D: Device>(&mut self, cx: &mut Context, device: &mut D) -> Sent {
        let (route, len) = (&mut self.route, self.bytes.len());
        let sent = match self.count {
            0 => return Sent::Yes,
            1 => route.send(cx, len, device, &[&self.bytes]),
            _ => {
                let udp_len = (udp::HEADER + len) as u16;
                let (header, sum) = (route.headers_len(), route.pseudo_sum.word(udp_len));
                let offload = Offload::Segments {
                    kind: Segmentation::Udp,
                    start: (header - udp::HEADER) as u16,
                    header: header as u16,
                    mss: self.segment_size as u16,
                };
                let headers = route.headers(udp_len, sum.folded());
                device.send_with_headers(headers, &[&self.bytes], len, offload)
            }
        };
        if sent != Sent::Full {
            cx.counters.datagrams_out += self.count as u64;
            self.count = 0;
        }
        sent
    }
}
