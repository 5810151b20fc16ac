//! The sending side of an IP stack: datagrams leave by cached routes, all other packets by the
//! transmit queue.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::ip::output::{Head, next_hop};
use super::stack::Stack;
use super::udp::gso::MIN_SEGMENT;
use super::udp::routes::{Ends, Route, canonical};
use crate::Instant;
use crate::device::{Device, MAX_PARTS, Mac, Sent};
use crate::wire::{ipv4, udp};

/// The longest payload of a UDP datagram in bytes: the length field of IPv4 counts all headers.
const MAX_PAYLOAD: usize = 65_535 - ipv4::HEADER - udp::HEADER;

impl Stack {
    /// Sends a UDP datagram, the concatenation of at most [`crate::datagrams::MAX_PARTS`] parts,
    /// from a bound port. The stack fragments a datagram that exceeds the path MTU, and keeps one
    /// whose next hop is not resolved yet. It returns [`Sent::Full`] if the device has no room and
    /// took nothing.
    #[inline]
    pub fn send<D: Device>(
        &mut self,
        now: Instant,
        device: &mut D,
        port: u16,
        to: SocketAddr,
        parts: &[&[u8]],
    ) -> Sent {
        let (key, generation) = (self.routes.key(port, &to), self.generation());
        let route = self.routes.get_mut(key);
        let mut len = 0_usize;
        for part in parts {
            // The lengths of a few slices do not overflow; a check would cost instructions.
            len = len.wrapping_add(part.len());
        }
        let is_usable = route.leads(key, port, &to) && route.is_valid(generation, now);
        if !is_usable || len > route.max_payload || parts.len() >= MAX_PARTS {
            return self.send_uncached(now, device, port, to, parts);
        }
        if !self.batch.is_empty() || len >= MIN_SEGMENT && self.cx.info.offloads.udp_segments {
            return self.batch.send(&mut self.cx, *route, len, device, parts);
        }
        let sent = route.send(&self.cx, len, device, parts);
        self.cx.counters.datagrams_out += u64::from(sent == Sent::Yes);
        sent
    }

    /// Sends a UDP datagram for which there is no valid route: makes a route, or sends it by the
    /// transmit queue.
    #[cold]
    fn send_uncached<D: Device>(
        &mut self,
        now: Instant,
        device: &mut D,
        port: u16,
        to: SocketAddr,
        parts: &[&[u8]],
    ) -> Sent {
        // The batch leaves first, so that datagrams to one peer stay in order.
        if self.batch.flush(&mut self.cx, device) == Sent::Full {
            return Sent::Full;
        }
        let cx = &mut self.cx;
        cx.now = now;
        let to = canonical(to);
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > MAX_PAYLOAD || parts.len() >= MAX_PARTS || to.port() == 0 {
            cx.counters.drop_invalid += 1;
            return Sent::Yes;
        }
        let Some(hop) = next_hop(&cx.options, &self.link, to.ip()) else {
            cx.counters.drop_no_route += 1;
            return Sent::Yes;
        };
        let resolved = self.link.neighbours.lookup(now, hop.neighbour, &mut cx.counters);
        let ends = Ends {
            key: self.routes.key(port, &to),
            own_mac: cx.info.mac,
            next_hop_mac: resolved.map_or_else(Mac::default, |(mac, _)| mac),
            from: hop.from,
            port,
            to,
            mtu: self.ip.path_mtus.get(now, to.ip(), cx.info.mtu),
        };
        let neighbour_until = resolved.map_or(Instant::ZERO, |(_, until)| until);
        let valid_until = neighbour_until.min(self.ip.path_mtus.valid_until(to.ip()));
        let mut route = Route::new(&ends, self.generation(), valid_until);
        // A route without a neighbour is never valid, but records for ICMP errors that a datagram
        // was sent there.
        self.routes.insert(route);
        if len <= route.max_payload && resolved.is_some() {
            let sent = route.send(&self.cx, len, device, parts);
            self.cx.counters.datagrams_out += u64::from(sent == Sent::Yes);
            return sent;
        }
        let header = udp::Udp { from: port, to: to.port(), checksum: 0 }.emit(len);
        let mut datagram = Vec::with_capacity(udp::HEADER + len);
        datagram.extend(header);
        parts.iter().for_each(|part| datagram.extend_from_slice(part));
        let sum = route.udp_sum.word(datagram.len() as u16).bytes(&datagram[4..]);
        datagram[6..8].copy_from_slice(&udp::to_field(sum).to_be_bytes());
        let head = Head::new(hop.from, to.ip(), ipv4::UDP);
        self.ip.send(&mut self.cx, &mut self.link, &head, &datagram);
        Sent::Yes
    }

    /// Sends the frames that wait in the IP stack, as far as the device has room. Returns true if
    /// frames still wait.
    #[inline(always)]
    pub fn output<D: Device>(&mut self, now: Instant, device: &mut D) -> bool {
        if self.has_lent() {
            self.keep_lent(device);
        }
        let is_empty = self.link.queue.is_empty() && !self.link.has_packets();
        if is_empty && self.batch.is_empty() && !self.has_tcp_output() {
            device.flush();
            return false;
        }
        self.send_waiting(now, device)
    }

    /// Sends the frames that wait in the IP stack. Returns true if frames still wait.
    #[inline(never)]
    fn send_waiting<D: Device>(&mut self, now: Instant, device: &mut D) -> bool {
        self.output_tcp(now, device);
        if !self.link.queue.is_empty() || self.link.has_packets() {
            self.cx.now = now;
            self.link.output(&mut self.cx, device);
        }
        if !self.batch.is_empty() {
            self.batch.flush(&mut self.cx, device);
        }
        device.flush();
        !self.link.queue.is_empty() || !self.batch.is_empty() || self.has_tcp_output()
    }
}
