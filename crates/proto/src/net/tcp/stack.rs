//! TCP over an IP stack: segments leave by cached paths, straight from the buffers of their
//! connections into the device. Only those to a neighbour that is not resolved are copied.
//!
//! A device that segments TCP takes several segments of a connection as one frame.

use alloc::boxed::Box;
use core::net::{IpAddr, SocketAddr};

use super::config::TcpConfig;
use super::counters::TcpCounters;
use super::flow::TcpFlow;
use super::host::{TcpData, TcpHost, TcpOutput};
use super::id::{TcpId, TcpOpenError};
use super::input::Segment;
use super::output::{Outgoing, PathLimits};
use super::own::TcpReport;
use crate::Instant;
use crate::device::{Device, MAX_FRAME, Mac, Offload, Segmentation, Sent};
use crate::net::context::Context;
use crate::net::ip::fields::IpFields;
use crate::net::ip::icmp::Quoted;
use crate::net::ip::output::{Head, IpOutput, is_broadcast4, next_hop};
use crate::net::ip::paths::{self, Paths};
use crate::net::ip::template::{self, Addresses, Template};
use crate::net::link::Link;
use crate::net::packet::{LentData, Packet};
use crate::net::stack::Stack;
use crate::wire::checksum::Sum;
use crate::wire::ipv4::{self, Ecn};
use crate::wire::tcp::{CHECKSUM, Flags, MAX_HEADER, Tcp};

/// The length of all headers of a segment in bytes, at most.
const MAX_HEADERS: usize = template::MAX + MAX_HEADER;

impl Stack {
    /// Lets the stack have at most `most` TCP connections with these options. Without it the stack
    /// drops all segments.
    pub fn enable_tcp(&mut self, config: TcpConfig, most: usize) {
        let rng = self.cx.rng.fork();
        self.tcp = Some(Box::new(TcpHost::new(config, most, rng)));
    }

    /// Returns the TCP connections of the stack, if it may have any. After a change call
    /// [`Stack::output`].
    pub fn tcp(&mut self) -> Option<&mut TcpHost> {
        self.tcp.as_deref_mut()
    }

    /// Returns the counters of the stack's TCP connections, if it may have any.
    #[must_use]
    pub fn tcp_counters(&self) -> Option<&TcpCounters> {
        self.tcp.as_deref().map(TcpHost::counters)
    }

    /// Begins a TCP connection to `peer` from a port, or from a free dynamic port if it is 0.
    ///
    /// # Errors
    /// [`TcpOpenError`]: also if there is no route to the peer, or the stack has no TCP.
    pub fn connect_tcp(
        &mut self,
        now: Instant,
        port: u16,
        peer: SocketAddr,
    ) -> Result<TcpId, TcpOpenError> {
        let hop = next_hop(&self.cx.options, &self.link, peer.ip());
        let from = SocketAddr::new(hop.ok_or(TcpOpenError::NoRoute)?.from, port);
        let tcp = self.tcp.as_mut().ok_or(TcpOpenError::TooMany)?;
        tcp.connect(now, from, peer)
    }

    /// Prepares the host for the segments of a burst of frames.
    #[inline]
    pub(in crate::net) fn look_ahead_tcp<D: Device>(&mut self, frames: usize, device: &D) {
        if let Some(host) = &mut self.tcp {
            let flow = |i: usize| TcpFlow::of_frame(device.frame(i).0);
            host.look_ahead((0..frames).filter_map(flow));
        }
    }

    /// Takes a received segment. `sum` is that of the pseudo-header.
    pub(in crate::net) fn receive_tcp(&mut self, sum: Sum, packet: &Packet<'_>) {
        let Packet { from, to, bytes, location, start, offload, ecn } = *packet;
        let counters = &mut self.cx.counters;
        let Some(host) = &mut self.tcp else { return counters.drop_protocol += 1 };
        let field = bytes
            .get(CHECKSUM..CHECKSUM + 2)
            .map_or(0, |field| u16::from_be_bytes([field[0], field[1]]));
        let is_partial = self.cx.options.accept_partial_checksum && field == sum.folded();
        if !offload.checksum_valid && !is_partial && sum.bytes(bytes).checksum() != 0 {
            return counters.drop_checksum += 1;
        }
        let Ok((tcp, data)) = Tcp::parse(bytes) else { return counters.drop_length += 1 };
        if tcp.flags.has(Flags::SYN)
            && let IpAddr::V4(addr) = from
            && is_broadcast4(&self.cx.options, addr)
        {
            // RFC 9293 MUST-63. Segments of a connection come from the address of one host.
            return counters.drop_source += 1;
        }
        counters.segments_in += 1;
        let flow = TcpFlow { local: (to, tcp.to).into(), peer: (from, tcp.from).into() };
        let segment = Segment { tcp, data, is_marked: ecn == Ecn::Ce };
        if let Some(TcpData { id, range, ahead }) = host.input(self.cx.now, flow, &segment) {
            let data_start = start + bytes.len() - data.len();
            let (start, end) = (data_start + range.start, data_start + range.end);
            let lent = LentData { id, location, start, end };
            match ahead {
                None => self.lent.push(lent),
                Some(offset) => self.ahead.push((offset, lent)),
            }
        }
    }

    /// Returns the number of pieces of data that connections with [`TcpHost::lend`] have received
    /// by the last `input`, until [`Stack::output`].
    #[inline]
    #[must_use]
    pub const fn lent_tcp(&self) -> usize {
        self.lent.len()
    }

    /// Returns piece `i` of lent data without the bytes that were taken: the connection and the
    /// next bytes of its stream. Pieces of a connection are in order: take all of one before the
    /// next.
    ///
    /// # Panics
    /// If `i` is not below [`Stack::lent_tcp`], or `device` is not the device that `input` read.
    #[inline]
    #[must_use]
    pub fn tcp_data<'b, D: Device>(&'b self, i: usize, device: &'b D) -> (TcpId, &'b [u8]) {
        let lent = &self.lent[i];
        let bytes = self.burst.bytes(lent.location, device);
        (lent.id, bytes.get(lent.start..lent.end).unwrap_or_default())
    }

    /// Takes `count` bytes of piece `i` of lent data.
    #[inline]
    pub fn take_tcp(&mut self, i: usize, count: usize) {
        let lent = &mut self.lent[i];
        let count = count.min(lent.end - lent.start);
        lent.start += count;
        self.tcp.iter_mut().for_each(|tcp| tcp.take_lent(lent.id, count));
    }

    /// Returns the number of pieces of data behind gaps that connections with
    /// [`TcpHost::lend_ahead`] have received by the last `input`, until [`Stack::output`].
    #[inline]
    #[must_use]
    pub const fn ahead_tcp(&self) -> usize {
        self.ahead.len()
    }

    /// Returns piece `i` of the data behind gaps: the connection, the number of bytes of the stream
    /// before the data, modulo 2³², and the data. The connection keeps it for its turn.
    ///
    /// # Panics
    /// If `i` is not below [`Stack::ahead_tcp`], or `device` is not the device that `input` read.
    #[must_use]
    pub fn tcp_ahead<'b, D: Device>(&'b self, i: usize, device: &'b D) -> (TcpId, u32, &'b [u8]) {
        let (offset, lent) = &self.ahead[i];
        let bytes = self.burst.bytes(lent.location, device);
        (lent.id, *offset, bytes.get(lent.start..lent.end).unwrap_or_default())
    }

    /// Copies the lent data that was not taken to the buffers of its connections.
    #[inline]
    pub(in crate::net) fn keep_lent<D: Device>(&mut self, device: &D) {
        self.ahead.clear();
        for lent in self.lent.drain(..).filter(|lent| lent.start < lent.end) {
            let bytes = self.burst.bytes(lent.location, device);
            let rest = bytes.get(lent.start..lent.end).unwrap_or_default();
            self.tcp.iter_mut().for_each(|tcp| tcp.keep_lent(lent.id, rest));
        }
    }

    /// Returns true if a segment that an ICMP error quotes is one of a connection, and is not
    /// acknowledged yet (RFC 5927 4.1).
    pub(in crate::net) fn is_tcp_in_flight(&self, quoted: &Quoted) -> bool {
        let flow = TcpFlow { local: (quoted.from, quoted.port).into(), peer: quoted.to };
        self.tcp.as_ref().is_some_and(|tcp| tcp.is_in_flight(&flow, quoted.seq))
    }

    /// Handles the ICMP error "port unreachable" about a segment.
    pub(in crate::net) fn tcp_refused(&mut self, quoted: &Quoted) {
        let flow = TcpFlow { local: (quoted.from, quoted.port).into(), peer: quoted.to };
        self.tcp.iter_mut().for_each(|tcp| tcp.unreachable(&flow));
    }

    /// Handles an ICMP error about a segment that ends no open connection.
    pub(in crate::net) fn tcp_reported(
        &mut self,
        quoted: &Quoted,
        report: TcpReport,
        is_hard: bool,
    ) {
        let flow = TcpFlow { local: (quoted.from, quoted.port).into(), peer: quoted.to };
        self.tcp.iter_mut().for_each(|tcp| tcp.reported(&flow, report, is_hard));
    }

    /// Handles the ICMP error "packet too big" about a segment: the connection sends it again in
    /// shorter ones at once, by the new path MTU.
    pub(in crate::net) fn tcp_too_big(&mut self, quoted: &Quoted) {
        let flow = TcpFlow { local: (quoted.from, quoted.port).into(), peer: quoted.to };
        self.tcp.iter_mut().for_each(|tcp| tcp.path_changed(&flow));
    }

    /// Sends the segments that connections have to send, as far as the device has room.
    pub(in crate::net) fn output_tcp<D: Device>(&mut self, now: Instant, device: &mut D) {
        let Self { tcp: Some(host), paths, ip, link, cx, .. } = self else { return };
        cx.now = now;
        host.output(now, &mut ToDevice { paths, ip, link, cx, device });
    }
}

/// Sends segments by a device.
struct ToDevice<'a, D> {
    paths: &'a mut Paths,
    ip: &'a mut IpOutput,
    link: &'a mut Link,
    cx: &'a mut Context,
    device: &'a mut D,
}

impl<D: Device> TcpOutput for ToDevice<'_, D> {
    #[inline]
    fn limits(&mut self, flow: &TcpFlow) -> PathLimits {
        let (from, to) = (flow.local.ip(), flow.peer.ip());
        let path = self.paths.get(self.cx, self.link, self.ip, from, to);
        let info = &self.cx.info;
        let Some(path) = path else {
            // What waits for its next hop waits as packets of the path: no device cuts them.
            let mss = paths::path_mss(self.cx, self.ip, to);
            return PathLimits { mss, link_mss: paths::link_mss(info, to.is_ipv4()), most: 0 };
        };
        let most = if info.offloads.tcp_segments { info.max_send.min(MAX_FRAME) } else { 0 };
        let most = most.saturating_sub(MAX_HEADERS) as u32;
        PathLimits { mss: path.mss, link_mss: path.link_mss, most }
    }

    fn emit(&mut self, flow: &TcpFlow, fields: IpFields, outgoing: &Outgoing<'_>) -> bool {
        let Some(path) = self.paths.last() else {
            return self.emit_unresolved(flow, fields, outgoing);
        };
        let mut frame = [0; MAX_HEADERS];
        let (a, b) = outgoing.data;
        let start = path.template.len();
        let header = frame[start..].first_chunk_mut().map_or(0, |head| outgoing.tcp.emit(head));
        let (len, data) = (header + a.len() + b.len(), a.len() + b.len());
        let ecn = if outgoing.is_ect { Ecn::Ect0 } else { Ecn::NotEct };
        path.template.write(&mut frame, len as u16, fields.with(ecn));
        let sum = path.template.pseudo_sum.word(len as u16);
        let is_cut = data > outgoing.mss as usize;
        let (offload, checksum) = if is_cut {
            let v4 = path.template.is_v4();
            let kind = if v4 { Segmentation::Tcp4 } else { Segmentation::Tcp6 };
            let (start, header) = (start as u16, (start + header) as u16);
            let mss = outgoing.mss as u16;
            (Offload::Segments { kind, start, header, mss }, sum.folded())
        } else if self.cx.info.offloads.checksum {
            let offload = Offload::Checksum { start: start as u16, offset: CHECKSUM as u16 };
            (offload, sum.folded())
        } else {
            let sum = sum.bytes(&frame[start..start + header]).bytes(a).bytes(b);
            (Offload::None, sum.checksum())
        };
        let at = start + CHECKSUM;
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        if self.device.send(&[&frame[..start + header], a, b], offload) == Sent::Full {
            return false;
        }
        let segments = if is_cut { data.div_ceil(outgoing.mss as usize) } else { 1 };
        self.cx.counters.segments_out += segments as u64;
        true
    }
}

impl<D: Device> ToDevice<'_, D> {
    /// Sends a segment by the transmit queue, where it waits for its next hop.
    #[cold]
    fn emit_unresolved(
        &mut self,
        flow: &TcpFlow,
        fields: IpFields,
        outgoing: &Outgoing<'_>,
    ) -> bool {
        let (a, b) = outgoing.data;
        let mut head = [0; MAX_HEADER];
        let len = outgoing.tcp.emit(&mut head);
        let mut bytes = [&head[..len], a, b].concat();
        let (from, to) = (flow.local.ip(), flow.peer.ip());
        let (own_mac, next_hop_mac, protocol) = (self.cx.info.mac, Mac::default(), ipv4::TCP);
        let addresses = Addresses { own_mac, next_hop_mac, from, to, protocol };
        let sum = Template::new(&addresses).pseudo_sum.word(bytes.len() as u16);
        let checksum = sum.bytes(&bytes).checksum();
        bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        self.cx.counters.segments_out += 1;
        let head = Head { from, to, protocol, fields };
        self.ip.send(self.cx, self.link, &head, &bytes);
        true
    }
}
