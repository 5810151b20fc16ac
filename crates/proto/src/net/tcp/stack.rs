//! TCP over an IP stack: segments leave by its transmit queue.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::config::TcpConfig;
use super::host::{TcpFlow, TcpHost, TcpId, TcpOpenError};
use super::input::Segment;
use super::output::Outgoing;
use crate::Instant;
use crate::net::ip::output::{next_hop, udp4_header};
use crate::net::options::Ipv4Assignment;
use crate::net::stack::Stack;
use crate::wire::checksum::Sum;
use crate::wire::ipv4::{self, Ipv4};
use crate::wire::ipv6::Ipv6;
use crate::wire::tcp::{CHECKSUM, HEADER, MAX_HEADER, Tcp};
use crate::wire::{ethernet, ipv6};

/// The bytes of a frame before TCP's header, at most.
const BEFORE: usize = ethernet::HEADER + ipv6::HEADER;

impl Stack {
    /// Lets the stack have at most `most` TCP connections with these options. Without it the stack
    /// drops all segments. Segments are no longer than the device's MTU allows.
    pub fn enable_tcp(&mut self, mut config: TcpConfig, most: usize) {
        let rng = self.cx.rng.fork();
        let has_ipv4 = self.cx.options.ipv4 != Ipv4Assignment::None;
        let headers = HEADER + if has_ipv4 { ipv4::HEADER } else { ipv6::HEADER };
        config.mss = config.mss.min(self.cx.info.mtu.saturating_sub(headers) as u16);
        self.tcp = Some(Box::new(TcpHost::new(config, most, rng)));
    }

    /// Returns the TCP connections of the stack, if it may have any. After a change call
    /// [`Stack::output`].
    pub fn tcp(&mut self) -> Option<&mut TcpHost> {
        self.tcp.as_deref_mut()
    }

    /// Begins a TCP connection to `peer`.
    ///
    /// # Errors
    /// [`TcpOpenError`]: also if there is no route to the peer, or the stack has no TCP.
    pub fn connect_tcp(
        &mut self,
        now: Instant,
        peer: core::net::SocketAddr,
    ) -> Result<TcpId, TcpOpenError> {
        let hop = next_hop(&self.cx.options, &self.link, peer.ip());
        let from = hop.ok_or(TcpOpenError::NoRoute)?.from;
        let tcp = self.tcp.as_mut().ok_or(TcpOpenError::TooMany)?;
        tcp.connect(now, from, peer)
    }

    /// Takes a received segment. `sum` is that of the pseudo-header.
    pub(in crate::net) fn receive_tcp(
        &mut self,
        sum: Sum,
        (from, to): (IpAddr, IpAddr),
        bytes: &[u8],
        checksum_valid: bool,
    ) {
        let counters = &mut self.cx.counters;
        let Some(host) = &mut self.tcp else { return counters.drop_protocol += 1 };
        let field = bytes
            .get(CHECKSUM..CHECKSUM + 2)
            .map_or(0, |field| u16::from_be_bytes([field[0], field[1]]));
        let is_partial = self.cx.options.accept_partial_checksum && field == sum.folded();
        if !checksum_valid && !is_partial && sum.bytes(bytes).checksum() != 0 {
            return counters.drop_checksum += 1;
        }
        let Ok((tcp, data)) = Tcp::parse(bytes) else { return counters.drop_length += 1 };
        counters.segments_in += 1;
        let flow = TcpFlow { local: (to, tcp.to).into(), peer: (from, tcp.from).into() };
        host.input(self.cx.now, flow, &Segment { tcp, data, is_marked: false });
    }

    /// Moves the segments that connections have to send to the transmit queue, as far as it has
    /// room.
    pub(in crate::net) fn output_tcp(&mut self, now: Instant) {
        let Self { tcp: Some(host), ip, link, cx, .. } = self else { return };
        cx.now = now;
        let mut emit = |flow: &TcpFlow, outgoing: Outgoing<'_>| {
            let (a, b) = outgoing.data;
            let len = BEFORE + MAX_HEADER + a.len() + b.len();
            if !link.queue.has_room(1, len) {
                return false;
            }
            let bytes = segment(flow, &outgoing);
            cx.counters.segments_out += 1;
            ip.send(cx, link, flow.local.ip(), flow.peer.ip(), ipv4::TCP, &bytes);
            true
        };
        host.output(now, 0, &mut emit);
    }
}

/// Returns the bytes of a segment, with its checksum.
fn segment(flow: &TcpFlow, outgoing: &Outgoing<'_>) -> Vec<u8> {
    let (a, b) = outgoing.data;
    let mut header = [0; MAX_HEADER];
    let len = outgoing.tcp.emit(&mut header);
    let mut bytes = Vec::with_capacity(len + a.len() + b.len());
    bytes.extend_from_slice(&header[..len]);
    bytes.extend_from_slice(a);
    bytes.extend_from_slice(b);
    let sum = match (flow.local.ip(), flow.peer.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            Ipv4 { protocol: ipv4::TCP, ..udp4_header(from, to) }.pseudo(bytes.len())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            Ipv6 { next: ipv4::TCP, hops: 0, from, to }.pseudo(ipv4::TCP, bytes.len())
        }
        // A connection's addresses are of one kind.
        _ => Sum::new(),
    };
    let checksum = sum.bytes(&bytes).checksum();
    bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    bytes
}
