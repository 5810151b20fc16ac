//! Long datagrams to one peer, gathered so that a device which cuts segments takes them as one frame.
//!
//! ```text
//! run    headers │ 1472 │ 1472 │ 1472 │ 310          all of one length, the last one perhaps shorter
//! ```
//!
//! Always: what is gathered leaves before anything else of the stack's callers, at the latest when they flush. Short datagrams are
//! not gathered: they are somebody's question.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::paths::Path;
use super::stack::Stack;
use crate::device::{Device, HEADER, MAX_FRAME, Offload, Segmentation, Sent};
use crate::wire::{ipv4, ipv6, udp};

/// Datagrams below this are not worth gathering.
pub(super) const LONG: usize = 1024;
/// Segments in a frame: what kernels take.
const SEGMENTS: usize = 64;

/// See the file.
#[derive(Debug)]
pub(super) struct Run {
    path: Path,
    /// Octets of the first datagram.
    segment: usize,
    /// Datagrams; 0: nothing is gathered.
    count: usize,
    /// It ends in a shorter one, so nothing may follow.
    closed: bool,
    bytes: Vec<u8>,
}

impl Run {
    pub(super) const fn new() -> Self {
        Self { path: super::paths::NOWHERE, segment: 0, count: 0, closed: true, bytes: Vec::new() }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn takes(&self, port: u16, to: &SocketAddr, len: usize, max_send: usize) -> bool {
        // The UDP length of the whole has 16 bits, and so has that of IPv4.
        let longest = max_send.min(MAX_FRAME - (ipv6::HEADER - ipv4::HEADER))
            - ipv6::HEADER
            - udp::HEADER
            - HEADER;
        let open = self.count > 0 && !self.closed && self.count < SEGMENTS;
        let fits = len > 0 && len <= self.segment && self.bytes.len() + len <= longest;
        open && fits && self.path.port == port && self.path.to == *to
    }

    fn append(&mut self, len: usize, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.count += 1;
        self.closed = len < self.segment;
    }
}

impl Stack {
    /// Sends a datagram by a path that holds, or gathers it.
    pub(super) fn gather<D: Device>(
        &mut self,
        place: usize,
        len: usize,
        device: &mut D,
        parts: &[&[u8]],
    ) -> Sent {
        let path = *self.paths.at(place);
        if self.run.takes(path.port, &path.to, len, self.info.max_send) {
            self.run.append(len, parts);
            return Sent::Yes;
        }
        if self.send_run(device) == Sent::Full {
            return Sent::Full;
        }
        if len < LONG {
            let sent = self.send_by(&path, len, device, parts);
            self.stats.datagrams_out += u64::from(sent == Sent::Yes);
            return sent;
        }
        self.run.bytes.clear();
        (self.run.path, self.run.segment) = (path, len);
        self.run.append(len, parts);
        Sent::Yes
    }

    /// Sends what is gathered; [`Sent::Full`] and nothing changes if there is no room.
    pub(super) fn send_run<D: Device>(&mut self, device: &mut D) -> Sent {
        let run = &self.run;
        let (path, len) = (&run.path, run.bytes.len());
        let sent = match run.count {
            0 => return Sent::Yes,
            1 => self.send_by(path, len, device, &[&run.bytes]),
            _ => {
                let start = path.len - udp::HEADER;
                let udp_len = (udp::HEADER + len) as u16;
                let headers = path.headers(udp_len, path.pseudo_sum.word(udp_len).folded());
                let (header, mss) = (path.len as u16, run.segment as u16);
                let offload =
                    Offload::Segments { kind: Segmentation::Udp, start: start as u16, header, mss };
                device.send_with_headers(&headers, &[&run.bytes], len, offload)
            }
        };
        if sent != Sent::Full {
            self.stats.datagrams_out += self.run.count as u64;
            self.run.count = 0;
        }
        sent
    }
}
