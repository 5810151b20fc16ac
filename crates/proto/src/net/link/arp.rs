//! ARP (RFC 826) and RARP (RFC 903): packets received and sent.

use core::net::{IpAddr, Ipv4Addr};

use super::Link;
use crate::device::Mac;
use crate::net::context::Context;
use crate::wire::arp::{Arp, ArpOperation};
use crate::wire::ethernet::{self, Ethernet};

impl Link {
    /// Handles an ARP packet: resolves a neighbour or answers its request, and detects conflicts
    /// with own addresses.
    pub(in crate::net) fn arp(&mut self, cx: &mut Context, ethernet: &Ethernet, packet: &[u8]) {
        let valid = |arp: &Arp| arp.sender_mac.is_unicast() && arp.sender_mac == ethernet.from;
        let Some(arp) = Arp::parse(packet).filter(valid) else {
            cx.counters.drop_neighbour += 1;
            return;
        };
        let (sender, target) = (IpAddr::V4(arp.sender), IpAddr::V4(arp.target));
        // RFC 5227 section 2.1.1: another host uses our address, or probes for it as we do.
        let probes_ours = arp.op == ArpOperation::Request
            && arp.sender.is_unspecified()
            && self.addresses.is_candidate(target);
        let contested = if self.addresses.is_candidate(sender) {
            Some(sender)
        } else {
            probes_ours.then_some(target)
        };
        if let Some(addr) = contested.filter(|addr| *addr == sender || !self.addresses.has(*addr)) {
            return self.conflict(cx, addr, arp.sender_mac);
        }
        let is_host = !matches!(arp.sender.octets()[0], 0 | 127 | 224..);
        let (now, counters) = (cx.now, &mut cx.counters);
        match arp.op {
            ArpOperation::Request if self.addresses.has(target) => {
                if is_host {
                    self.neighbours.request_received(now, sender, arp.sender_mac, counters);
                }
                if cx.options.respond {
                    self.send_arp_reply(cx, &arp);
                }
            }
            ArpOperation::Reply if self.addresses.has(target) && is_host => {
                self.neighbours.reply_received(now, sender, Some(arp.sender_mac), counters);
            }
            // A packet for another host may show that a known neighbour has moved.
            ArpOperation::Request | ArpOperation::Reply => {
                self.neighbours.claim_received(now, sender, Some(arp.sender_mac), counters);
            }
            ArpOperation::ReverseRequest | ArpOperation::ReverseReply => {
                counters.drop_neighbour += 1
            }
        }
    }

    /// Handles a RARP packet: takes the IPv4 address that a server assigns.
    pub(in crate::net) fn rarp(&mut self, cx: &mut Context, packet: &[u8]) {
        let own = cx.info.mac;
        let is_ours = |arp: &Arp| arp.op == ArpOperation::ReverseReply && arp.target_mac == own;
        let Some(arp) = Arp::parse(packet).filter(is_ours) else {
            cx.counters.drop_neighbour += 1;
            return;
        };
        if let Some(event) = self.addresses.assigned(arp.target) {
            cx.report(event);
        }
    }

    fn send_arp_reply(&mut self, cx: &mut Context, request: &Arp) {
        let reply = Arp {
            op: ArpOperation::Reply,
            sender_mac: cx.info.mac,
            sender: request.target,
            target_mac: request.sender_mac,
            target: request.sender,
        };
        self.send_arp(cx, request.sender_mac, &reply);
    }

    /// Sends a RARP request for our own address.
    pub(super) fn send_rarp_request(&mut self, cx: &mut Context) {
        let (own, unspecified) = (cx.info.mac, Ipv4Addr::UNSPECIFIED);
        let request = Arp {
            op: ArpOperation::ReverseRequest,
            sender_mac: own,
            sender: unspecified,
            target_mac: own,
            target: unspecified,
        };
        self.send_arp(cx, Mac::BROADCAST, &request);
    }

    /// Sends an ARP probe for `addr` (RFC 5227 section 2.1.1).
    pub(super) fn send_arp_probe(&mut self, cx: &mut Context, addr: Ipv4Addr) {
        self.broadcast_arp_request(cx, Ipv4Addr::UNSPECIFIED, addr);
    }

    /// Sends an ARP announcement of `addr` (RFC 5227 section 2.3).
    pub(super) fn send_arp_announcement(&mut self, cx: &mut Context, addr: Ipv4Addr) {
        self.broadcast_arp_request(cx, addr, addr);
    }

    fn broadcast_arp_request(&mut self, cx: &mut Context, sender: Ipv4Addr, target: Ipv4Addr) {
        let (sender_mac, target_mac) = (cx.info.mac, Mac::default());
        let request = Arp { op: ArpOperation::Request, sender_mac, sender, target_mac, target };
        self.send_arp(cx, Mac::BROADCAST, &request);
    }

    /// Sends an ARP request for `target` to one MAC address or to all hosts.
    pub(super) fn send_arp_request(&mut self, cx: &mut Context, target: Ipv4Addr, to: Option<Mac>) {
        let Some(sender) = self.addresses.v4() else { return };
        let (sender_mac, target_mac) = (cx.info.mac, to.unwrap_or_default());
        let request = Arp { op: ArpOperation::Request, sender_mac, sender, target_mac, target };
        self.send_arp(cx, to.unwrap_or(Mac::BROADCAST), &request);
    }

    fn send_arp(&mut self, cx: &mut Context, to: Mac, arp: &Arp) {
        let reverse = matches!(arp.op, ArpOperation::ReverseRequest | ArpOperation::ReverseReply);
        let kind = if reverse { ethernet::RARP } else { ethernet::ARP };
        let header = Ethernet { to, from: cx.info.mac, kind };
        self.queue.push([&header.emit()[..], &arp.emit()].concat(), &mut cx.counters);
    }
}
