//! IPv6 neighbour discovery (RFC 4861): solicitations and advertisements, received and sent.

use core::net::{IpAddr, Ipv6Addr};

use super::Link;
use crate::device::Mac;
use crate::net::context::Context;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::icmpv6::Icmpv6;
use crate::wire::ipv4::Ecn;
use crate::wire::ipv6::{self, Ipv6};

impl Link {
    /// Returns true if an IPv6 packet with this header may belong to neighbour discovery although
    /// its destination is a group or an address that is not in use yet.
    #[cold]
    pub(in crate::net) fn may_be_ndp(&self, header: &Ipv6) -> bool {
        let to = header.to;
        let tentative = !to.is_multicast() && self.addresses.is_candidate(to.into());
        let solicited = to.is_multicast() && self.addresses.is_candidate_group(to);
        header.next == ipv6::ICMPV6 && (to == ipv6::ALL_NODES || solicited || tentative)
    }

    /// Handles a neighbour solicitation (RFC 4861 section 7.2.3, RFC 4862 section 5.4.3).
    pub(in crate::net) fn solicitation(
        &mut self,
        cx: &mut Context,
        ethernet: &Ethernet,
        ip: &Ipv6,
        target: Ipv6Addr,
        mac: Option<Mac>,
    ) {
        let addr = IpAddr::V6(target);
        if !self.addresses.is_candidate(addr) {
            return cx.counters.drop_address += 1;
        }
        // A solicitation from the unspecified address is a probe of duplicate address detection.
        let is_probe = ip.from.is_unspecified();
        let mac = mac.filter(|mac| mac.is_unicast());
        if is_probe && (mac.is_some() || ip.to != ipv6::solicited(target)) {
            return cx.counters.drop_neighbour += 1;
        }
        if is_probe && !self.addresses.has(addr) {
            return self.conflict(cx, addr, ethernet.from);
        }
        if !self.addresses.has(addr) || !cx.options.respond {
            return;
        }
        if let (false, Some(mac)) = (is_probe, mac) {
            self.neighbours.request_received(cx.now, ip.from.into(), mac, &mut cx.counters);
        }
        let (to, to_mac) = match is_probe {
            true => (ipv6::ALL_NODES, ipv6::group_mac(ipv6::ALL_NODES)),
            false => (ip.from, mac.unwrap_or(ethernet.from)),
        };
        self.send_advertisement(cx, target, to, to_mac, !is_probe, true);
    }

    /// Handles a neighbour advertisement (RFC 4861 section 7.2.5, RFC 4862 section 5.4.4).
    pub(in crate::net) fn advertisement(
        &mut self,
        cx: &mut Context,
        ethernet: &Ethernet,
        target: Ipv6Addr,
        mac: Option<Mac>,
        solicited: bool,
    ) {
        let addr = IpAddr::V6(target);
        if self.addresses.is_candidate(addr) {
            return self.conflict(cx, addr, ethernet.from);
        }
        if mac.is_some_and(|mac| !mac.is_unicast()) {
            return cx.counters.drop_neighbour += 1;
        }
        if solicited {
            self.neighbours.reply_received(cx.now, addr, mac, &mut cx.counters);
        } else {
            self.neighbours.claim_received(cx.now, addr, mac, &mut cx.counters);
        }
    }

    /// Sends a neighbour solicitation that probes for `target` (RFC 4862 section 5.4.2).
    pub(super) fn send_ndp_probe(&mut self, cx: &mut Context, target: Ipv6Addr) {
        let to = ipv6::solicited(target);
        let message = Icmpv6::Solicit { target, mac: None };
        self.send_ndp(cx, ipv6::group_mac(to), Ipv6Addr::UNSPECIFIED, to, &message);
    }

    /// Sends an unsolicited neighbour advertisement of `target` to all nodes (RFC 4861 section
    /// 7.2.6).
    pub(super) fn send_ndp_announcement(&mut self, cx: &mut Context, target: Ipv6Addr) {
        let to_mac = ipv6::group_mac(ipv6::ALL_NODES);
        self.send_advertisement(cx, target, ipv6::ALL_NODES, to_mac, false, false);
    }

    /// Sends a neighbour solicitation of `target` to one MAC address or to its solicited-node
    /// group.
    pub(super) fn send_ndp_solicitation(
        &mut self,
        cx: &mut Context,
        target: Ipv6Addr,
        to: Option<Mac>,
    ) {
        let Some(from) = self.addresses.v6() else { return };
        let message = Icmpv6::Solicit { target, mac: Some(cx.info.mac) };
        match to {
            Some(mac) => self.send_ndp(cx, mac, from, target, &message),
            None => {
                let group = ipv6::solicited(target);
                self.send_ndp(cx, ipv6::group_mac(group), from, group, &message);
            }
        }
    }

    fn send_advertisement(
        &mut self,
        cx: &mut Context,
        target: Ipv6Addr,
        to: Ipv6Addr,
        to_mac: Mac,
        solicited: bool,
        replaces: bool,
    ) {
        let (mac, router) = (Some(cx.info.mac), false);
        let message = Icmpv6::Advertise { target, mac, router, solicited, replaces };
        self.send_ndp(cx, to_mac, target, to, &message);
    }

    fn send_ndp(
        &mut self,
        cx: &mut Context,
        to_mac: Mac,
        from: Ipv6Addr,
        to: Ipv6Addr,
        message: &Icmpv6,
    ) {
        let ip = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: ipv6::ICMPV6, hops: 255, from, to };
        let message = message.emit(&ip, &[]);
        let header = Ethernet { to: to_mac, from: cx.info.mac, kind: ethernet::IPV6 };
        let frame = [&header.emit()[..], &ip.emit(message.len()), &message].concat();
        self.queue.push(frame, &mut cx.counters);
    }
}
