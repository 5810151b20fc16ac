//! Several packet devices used as one. They share the flows. If a device loses its carrier or
//! vanishes, its flows use the others. Sessions lose only the frames of that moment.
//!
//! ```text
//! out  a flow (addresses, protocol, ports) ─► one device with a carrier;  to a group ─► all
//! in   a burst of one device, then of the next
//! ```
//!
//! The devices have one hardware address. Each leads to a network of its own, on which the peer has
//! the same address too (two cables between two machines, two switches). One switch would see the
//! address move.
//!
//! Always holds: questions about a frame go to the device that it came from. Nothing is sent on a
//! device without a carrier while another one has a carrier. Not here: other faults of a path with
//! a carrier, which transports find and repair.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use sprat_proto::Instant;
use sprat_proto::device::{Device, Headers, Info, Mac, Offload, RxOffload, Sent};
use sprat_proto::time::MS;

use super::{AnyNic, Nic};
use sprat_sys::clock::Clock;

/// The time between two checks of the devices' carriers, in nanoseconds. A check costs some
/// microseconds for each device.
const EVERY_NS: u64 = MS;
/// Number of bytes at a frame's beginning that identify its flow: Ethernet, IPv6, ports.
const MARKS: usize = 58;

/// One of the devices of a bond.
struct Member {
    device: AnyNic,
    carries: bool,
    sent: u64,
}

/// Several packet devices that are used as one.
pub struct Bond {
    members: Vec<Member>,
    info: Info,
    epoll: OwnedFd,
    /// The device that the last burst came from. The field `next` has the device whose turn is
    /// next.
    current: usize,
    next: usize,
    clock: Clock,
    check_at: Instant,
    failovers: u64,
}

impl Bond {
    /// Makes a bond of the devices. It offers only the abilities that all of them have.
    ///
    /// # Errors
    /// There are none; they have different hardware addresses; no descriptors left.
    pub fn new(devices: Vec<AnyNic>) -> io::Result<Self> {
        let bad = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let mut infos = devices.iter().map(Device::info);
        let Some(mut info) = infos.next() else { return bad("a bond of no devices") };
        for other in infos {
            if other.mac != info.mac {
                return bad("the devices of a bond need one hardware address: give them mac=");
            }
            info.mtu = info.mtu.min(other.mtu);
            info.max_send = info.max_send.min(other.max_send);
            info.offloads.checksum &= other.offloads.checksum;
            info.offloads.tcp_segments &= other.offloads.tcp_segments;
            info.offloads.udp_segments &= other.offloads.udp_segments;
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (n, device) in devices.iter().enumerate() {
            epoll::add(
                &epoll,
                device.fd(),
                epoll::EventData::new_u64(n as u64),
                epoll::EventFlags::IN,
            )?;
        }
        let members =
            devices.into_iter().map(|device| Member { device, carries: true, sent: 0 }).collect();
        let (clock, check_at) = (Clock::new(), Instant::ZERO);
        Ok(Self { members, info, epoll, current: 0, next: 0, clock, check_at, failovers: 0 })
    }

    /// Checks the devices' carriers if [`EVERY_NS`] has passed since the last check.
    fn check_carriers(&mut self) {
        let now = self.clock.now();
        if now < self.check_at {
            return;
        }
        self.check_at = now.after(EVERY_NS);
        for member in &mut self.members {
            let carries = member.device.carries();
            self.failovers += u64::from(member.carries && !carries);
            member.carries = carries;
        }
    }

    /// Returns the device that sends a flow's frames. It changes only when a carrier changes.
    fn choose(&self, flow: u32) -> usize {
        let carrying = self.members.iter().filter(|m| m.carries).count();
        let (count, any) =
            if carrying == 0 { (self.members.len(), true) } else { (carrying, false) };
        let nth = ((u64::from(flow) * count as u64) >> 32) as usize;
        let mut those = self.members.iter().enumerate().filter(|(_, m)| any || m.carries);
        those.nth(nth).map_or(0, |(i, _)| i)
    }

    /// Sends a frame that begins with `bytes`: a frame to a group by all devices, any other by the
    /// device of its flow.
    fn send_by(&mut self, bytes: &[u8], send: impl Fn(&mut AnyNic) -> Sent) -> Sent {
        self.check_carriers();
        let mac = bytes.first_chunk().map(|m| Mac(*m)).unwrap_or_default();
        if mac.is_multicast() {
            let mut result = Sent::Gone;
            for i in 0..self.members.len() {
                // A device without room loses a group's frame: another device may have taken it
                // already.
                if self.members[i].carries && self.send_by_one(i, &send) != Sent::Gone {
                    result = Sent::Yes;
                }
            }
            return if result == Sent::Gone { self.send_by_one(0, &send) } else { result };
        }
        let mut sent = Sent::Gone;
        // As often as one may turn out to be gone.
        for _ in 0..self.members.len() {
            let i = self.choose(flow(bytes));
            sent = self.send_by_one(i, &send);
            if sent != Sent::Gone {
                break;
            }
        }
        sent
    }

    fn send_by_one(&mut self, i: usize, send: impl Fn(&mut AnyNic) -> Sent) -> Sent {
        let member = &mut self.members[i];
        let sent = send(&mut member.device);
        match sent {
            Sent::Yes => member.sent += 1,
            Sent::Gone if member.carries => {
                member.carries = false;
                self.failovers += 1;
            }
            _ => {}
        }
        sent
    }
}

/// Returns the first bytes of a frame, which identify its flow, and their number.
fn marks(parts: &[&[u8]]) -> ([u8; MARKS], usize) {
    let mut marks = [0; MARKS];
    let mut len = 0;
    for part in parts {
        let n = part.len().min(MARKS - len);
        marks[len..len + n].copy_from_slice(&part[..n]);
        len += n;
    }
    (marks, len)
}

/// Returns a hash of a frame's flow: all frames of a flow have the same one.
fn flow(frame: &[u8]) -> u32 {
    let (Some(ends), Some(kind)) = (frame.get(..12), frame.get(12..14)) else { return 0 };
    let port = |at: usize| frame.get(at..at + 4).unwrap_or_default();
    let [addresses, ports] = match (kind, frame.get(14)) {
        ([0x08, 0x00], Some(first)) => {
            // A fragment has its ports in the first one alone: so none counts.
            let is_fragment = frame.get(20..22).is_none_or(|f| f[0] & 0x3f != 0 || f[1] != 0);
            let header = 4 * usize::from(first & 0x0f);
            let has_ports = matches!(frame.get(23), Some(6 | 17)) && !is_fragment;
            [frame.get(26..34).unwrap_or_default(), if has_ports { port(14 + header) } else { &[] }]
        }
        ([0x86, 0xdd], _) => {
            let has_ports = matches!(frame.get(20), Some(6 | 17));
            [frame.get(22..54).unwrap_or_default(), if has_ports { port(54) } else { &[] }]
        }
        _ => [ends, &[]],
    };
    // FNV-1a, and a last mixing, since its upper bits are those that count.
    let hash = addresses
        .iter()
        .chain(ports)
        .fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 15)).wrapping_mul(0x2c1b_3c6d)
}

impl Device for Bond {
    fn recv_burst(&mut self) -> usize {
        for _ in 0..self.members.len() {
            self.current = self.next;
            self.next = (self.next + 1) % self.members.len();
            let n = self.members[self.current].device.recv_burst();
            if n > 0 {
                return n;
            }
        }
        self.check_carriers();
        0
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        self.members[self.current].device.frame(i)
    }

    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        self.members[self.current].device.append_left(i, range, bytes);
    }

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        let (bytes, len) = marks(parts);
        self.send_by(&bytes[..len], |device| device.send(parts, offload))
    }

    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent {
        let octets = headers.to_bytes();
        self.send_by(&octets[..headers.len()], |device| {
            device.send_with_headers(headers, parts, len, offload)
        })
    }

    fn flush(&mut self) {
        for member in &mut self.members {
            member.device.flush();
        }
    }

    fn info(&self) -> Info {
        self.info
    }

    fn rx_timestamp_ns(&self, i: usize) -> Option<u64> {
        self.members[self.current].device.rx_timestamp_ns(i)
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        const SENT: [&str; 4] = [
            "frames_by_device_0",
            "frames_by_device_1",
            "frames_by_device_2",
            "frames_by_device_3",
        ];
        each("failovers", self.failovers);
        for (name, member) in SENT.iter().zip(&self.members) {
            each(name, member.sent);
        }
        for member in &self.members {
            member.device.counters(each);
        }
    }
}

impl Nic for Bond {
    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.check_carriers();
        // Every member must be armed, even if one has something already.
        self.members.iter_mut().filter_map(|m| (!m.device.arm()).then_some(())).count() == 0
    }

    fn disarm(&mut self) {
        for member in &mut self.members {
            member.device.disarm();
        }
    }

    fn has_rx_timestamps(&self) -> bool {
        self.members.iter().all(|m| m.device.has_rx_timestamps())
    }

    fn carries(&mut self) -> bool {
        self.members.iter_mut().any(|m| m.device.carries())
    }

    fn queues(&self) -> usize {
        self.members.iter().map(|m| m.device.queues()).sum()
    }
}

#[cfg(test)]
mod tests {
    use sprat_proto::device::BURST;

    use super::super::fake;
    use super::*;

    const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

    /// Makes a bond of two devices. Returns it with the other ends of their wires.
    fn bond() -> (Bond, Vec<fake::Fake>) {
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let [a, b] = fake::pair(MACS, 1500).unwrap();
            near.push(AnyNic::other(a));
            far.push(b);
        }
        (Bond::new(near).unwrap(), far)
    }

    fn datagram(port: u16) -> Vec<u8> {
        let mut bytes = vec![0; 60];
        bytes[..6].copy_from_slice(&MACS[1].0);
        bytes[6..12].copy_from_slice(&MACS[0].0);
        bytes[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
        bytes[23] = 17;
        bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[34..36].copy_from_slice(&port.to_be_bytes());
        bytes
    }

    fn heard(far: &mut fake::Fake) -> Vec<Vec<u8>> {
        let n = far.recv_burst();
        (0..n).map(|i| far.frame(i).0.to_vec()).collect()
    }

    #[test]
    fn flows_are_shared_and_each_keeps_its_device() {
        let (mut bond, mut far) = bond();
        let mut counts = [0, 0];
        for port in 0..200 {
            let frame = datagram(port);
            for _ in 0..3 {
                assert_eq!(bond.send(&[&frame[..34], &frame[34..]], Offload::None), Sent::Yes);
            }
            let (first, second) = (heard(&mut far[0]).len(), heard(&mut far[1]).len());
            assert!([first, second] == [3, 0] || [first, second] == [0, 3]);
            counts[usize::from(second == 3)] += 1;
        }
        assert!(counts.iter().all(|c| *c > 60), "{counts:?}");
    }

    #[test]
    fn fragments_of_a_flow_stay_together() {
        let mut first = datagram(7);
        first[20] = 0x20;
        let mut second = datagram(8);
        second[21] = 0x10;
        assert_eq!(flow(&first), flow(&second));
        assert_ne!(flow(&datagram(7)), flow(&datagram(8)));
        for len in 0..60 {
            flow(&datagram(1)[..len]);
        }
    }

    #[test]
    fn groups_are_reached_by_all_devices() {
        let (mut bond, mut far) = bond();
        let mut frame = datagram(1);
        frame[..6].copy_from_slice(&Mac::BROADCAST.0);
        assert_eq!(bond.send(&[&frame], Offload::None), Sent::Yes);
        for end in &mut far {
            assert_eq!(heard(end), [frame.clone()]);
        }
    }

    #[test]
    fn what_arrives_is_heard_whichever_way_it_came() {
        let (mut bond, mut far) = bond();
        for round in 0..3 {
            for (n, end) in far.iter_mut().enumerate() {
                for port in 0..BURST as u16 + 3 {
                    end.send(&[&datagram(1000 * n as u16 + port + round)], Offload::None);
                }
            }
            let mut got = Vec::new();
            for _ in 0..8 {
                let n = bond.recv_burst();
                got.extend((0..n).map(|i| bond.frame(i).0.to_vec()));
            }
            assert_eq!(got.len(), 2 * (BURST + 3));
        }
    }

    #[test]
    fn devices_of_one_address_make_a_bond() {
        let [a, b] = fake::pair(MACS, 1500).unwrap();
        let error = Bond::new(vec![AnyNic::other(a), AnyNic::other(b)]).err().unwrap();
        assert!(error.to_string().contains("mac="), "{error}");
        assert!(Bond::new(Vec::new()).is_err());
    }

    #[test]
    fn flows_of_a_device_that_carries_no_more_go_by_the_other_one() {
        let (mut bond, mut far) = bond();
        bond.check_at = Instant::NEVER;
        bond.members[0].carries = false;
        for port in 0..50 {
            assert_eq!(bond.send(&[&datagram(port)], Offload::None), Sent::Yes);
            assert_eq!((heard(&mut far[0]).len(), heard(&mut far[1]).len()), (0, 1));
        }
        // Without any carrier the frames go where they may be heard one day.
        bond.members[1].carries = false;
        assert_eq!(bond.send(&[&datagram(1)], Offload::None), Sent::Yes);
    }
}
