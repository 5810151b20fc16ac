//! The edges of windows, which never move back (RFC 9293 3.8.6.2.1). A stream gets over one that
//! does, so that only a look at the segments finds it.

use std::collections::HashMap;
use std::net::SocketAddr;

use sprat_proto::wire::ethernet::{self, Ethernet};
use sprat_proto::wire::ipv4::{self, Ipv4};
use sprat_proto::wire::ipv6::Ipv6;
use sprat_proto::wire::tcp::{Flags, Tcp};

/// One direction of a connection: its sender and its receiver.
type Direction = (SocketAddr, SocketAddr);

/// The scale of a sender's windows, and the edge that it has announced last.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    scale: Option<u8>,
    edge: Option<u32>,
}

/// The windows of all connections.
#[derive(Debug, Default)]
pub(crate) struct Edges(HashMap<Direction, Told>);

impl Edges {
    /// Takes a frame that a host sends.
    ///
    /// # Panics
    /// It takes back a part of a window.
    pub(crate) fn check(&mut self, frame: &[u8]) {
        let Some((direction, tcp)) = parse(frame) else { return };
        let (from, to) = direction;
        if tcp.flags.has(Flags::SYN) {
            self.0.insert(direction, Told { scale: tcp.options.window_scale, edge: None });
            return;
        }
        if tcp.flags.has(Flags::RST) {
            return;
        }
        let peer = self.0.get(&(to, from)).and_then(|told| told.scale);
        let told = self.0.entry(direction).or_default();
        let shift = if peer.is_some() { told.scale.unwrap_or(0) } else { 0 };
        let edge = tcp.ack.wrapping_add(u32::from(tcp.window) << shift);
        let before = told.edge.replace(edge).unwrap_or(edge);
        assert!(
            edge.wrapping_sub(before) as i32 >= 0,
            "the window from {from} to {to} ends at {edge} after {before}: {tcp:?}"
        );
    }
}

fn parse(frame: &[u8]) -> Option<(Direction, Tcp)> {
    let (ethernet, packet) = Ethernet::parse(frame)?;
    match ethernet.kind {
        ethernet::IPV4 => {
            let (ip, segment) = Ipv4::parse(packet).ok()?;
            let (tcp, _) = Tcp::parse(segment).ok().filter(|_| ip.protocol == ipv4::TCP)?;
            Some((((ip.from, tcp.from).into(), (ip.to, tcp.to).into()), tcp))
        }
        ethernet::IPV6 => {
            let (ip, segment) = Ipv6::parse(packet).ok()?;
            let (tcp, _) = Tcp::parse(segment).ok().filter(|_| ip.next == ipv4::TCP)?;
            Some((((ip.from, tcp.from).into(), (ip.to, tcp.to).into()), tcp))
        }
        _ => None,
    }
}
