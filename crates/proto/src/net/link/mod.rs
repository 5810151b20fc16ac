//! The link layer of an IP stack: own addresses, neighbours, and frames that wait for the device.
//!
//! `dad` detects address conflicts, `neighbours` caches MAC addresses, and `queue` holds frames for
//! the device. `arp` and `ndp` receive and send the packets of both protocols.

use core::net::IpAddr;

use super::context::Context;
use crate::device::{Device, Mac};
use dad::{Addresses, Announcement};
use neighbours::{NeighbourCache, Solicitation};
use queue::TransmitQueue;

mod arp;
pub(super) mod dad;
mod ndp;
pub(super) mod neighbours;
pub(super) mod queue;

/// The link layer of an IP stack.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) addresses: Addresses,
    pub(super) neighbours: NeighbourCache,
    pub(super) queue: TransmitQueue,
}

impl Link {
    pub(super) fn new(cx: &Context) -> Self {
        Self {
            addresses: Addresses::new(&cx.options, cx.info.mac),
            neighbours: NeighbourCache::new(&cx.options),
            queue: TransmitQueue::default(),
        }
    }

    /// Returns true if the link layer has an announcement, a solicitation or a resolved frame that
    /// is not yet in the transmit queue.
    #[inline]
    pub(super) fn has_packets(&self) -> bool {
        self.neighbours.has_output() || self.addresses.has_output()
    }

    /// Sends the link layer's waiting frames, as far as the device has room.
    #[cold]
    pub(super) fn output<D: Device>(&mut self, cx: &mut Context, device: &mut D) {
        while let Some(announcement) = self.addresses.next_announcement() {
            self.announce(cx, announcement);
        }
        while let Some(solicitation) = self.neighbours.next_solicitation() {
            self.solicit(cx, solicitation);
        }
        while let Some(frame) = self.neighbours.next_frame() {
            self.queue.push(frame, &mut cx.counters);
        }
        self.queue.output(cx.now, device, &mut cx.counters);
    }

    fn announce(&mut self, cx: &mut Context, announcement: Announcement) {
        match announcement {
            Announcement::Rarp => self.send_rarp_request(cx),
            Announcement::Probe(IpAddr::V4(addr)) => self.send_arp_probe(cx, addr),
            Announcement::Announce(IpAddr::V4(addr)) => self.send_arp_announcement(cx, addr),
            Announcement::Probe(IpAddr::V6(addr)) => self.send_ndp_probe(cx, addr),
            Announcement::Announce(IpAddr::V6(addr)) => self.send_ndp_announcement(cx, addr),
        }
    }

    fn solicit(&mut self, cx: &mut Context, Solicitation { target, to }: Solicitation) {
        match target {
            IpAddr::V4(target) => self.send_arp_request(cx, target, to),
            IpAddr::V6(target) => self.send_ndp_solicitation(cx, target, to),
        }
    }

    /// Handles a received packet that shows that the host at `mac` uses or probes `addr`, which is
    /// our own address.
    fn conflict(&mut self, cx: &mut Context, addr: IpAddr, mac: Mac) {
        cx.counters.address_conflicts += 1;
        if let Some(event) = self.addresses.conflict(cx.now, addr, mac) {
            cx.report(event);
        }
    }
}
