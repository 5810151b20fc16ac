//! A bridge between two packet devices that treats frames as long and bad lines do: it loses,
//! doubles, reorders and delays them, sends them no faster than a rate, and marks congestion.
//!
//! ```text
//!   device 0 ─► lost? ─► queue of the rate (drops or marks beyond its limits) ─► delay ─► device 1
//!            ◄──────────────────────── the same with another seed ◄────────────
//! ```
//!
//! Open the devices with [`Options::promiscuous`](super::Options::promiscuous) and without
//! offloads, and switch the offloads of the other ends off: the bridge forwards frames of the wire,
//! not those that a kernel leaves to a card to cut.
//!
//! Not here: addresses. Each frame of one device leaves by the other one.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat_proto::device::{BURST, Device as _, HEADER, Offload, Sent};
use sprat_proto::fault::Fault;
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};
use sprat_sys::clock;

use super::{AnyNic, Nic as _};

/// The most frames that one direction holds.
const MOST_HELD: usize = 65_536;
/// The longest sleep, after which the bridge checks if it shall stop.
const LONGEST_SLEEP_NS: u64 = 50 * MS;
/// The bits that a frame takes on a line beside its bytes: preamble, frame check sequence, gap.
const LINE_BITS: u64 = 8 * 24;

/// The faults, the delay and the rate of one direction of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Losses, copies, reordering and damage.
    pub fault: Fault,
    /// The time that each frame takes, in nanoseconds.
    pub delay_ns: u64,
    /// Bits a second, or `None` for as many as come.
    pub rate: Option<u64>,
    /// The most frames that wait because of the rate. The bridge drops those beyond.
    pub queue: usize,
    /// The number of waiting frames from which on the bridge marks congestion on frames whose ends
    /// understand marks (RFC 3168), or `None`.
    pub mark_from: Option<usize>,
    /// Frames that the bridge marks at random, per million.
    pub mark_ppm: u32,
}

impl Default for Line {
    fn default() -> Self {
        let fault = Fault::default();
        Self { fault, delay_ns: 0, rate: None, queue: 1000, mark_from: None, mark_ppm: 0 }
    }
}

/// Counters of one direction of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounters {
    /// Frames that were forwarded, copies included.
    pub forwarded: u64,
    /// Frames that were lost at random.
    pub lost: u64,
    /// Frames that had no room in the queue, or that the device did not take.
    pub dropped: u64,
    /// Frames that were marked.
    pub marked: u64,
}

#[derive(Debug)]
struct Direction {
    line: Line,
    rng: Rng,
    /// Frames by the time at which they leave; the number keeps those of one time in order.
    held: BTreeMap<(Instant, u64), Vec<u8>>,
    number: u64,
    /// The times at which the frames that wait because of the rate are sent.
    leaving: VecDeque<Instant>,
    counters: LineCounters,
}

impl Direction {
    fn new(line: Line, rng: Rng) -> Self {
        Self {
            line,
            rng,
            held: BTreeMap::new(),
            number: 0,
            leaving: VecDeque::new(),
            counters: LineCounters::default(),
        }
    }

    /// Takes a frame that has arrived.
    fn take(&mut self, now: Instant, frame: &[u8]) {
        let fate = self.line.fault.fate(&mut self.rng, frame.len());
        self.counters.lost += u64::from(fate.copies == 0);
        for copy in 0..usize::from(fate.copies) {
            let mut bytes = frame.to_vec();
            if copy == 0 {
                if let Some(bit) = fate.flip_bit {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                bytes.truncate(fate.cut_to.unwrap_or(usize::MAX).max(HEADER));
            }
            self.hold(now, bytes, fate.delay_ns[copy]);
        }
    }

    fn hold(&mut self, now: Instant, mut bytes: Vec<u8>, more_ns: u64) {
        let mut sent = now;
        if let Some(rate) = self.line.rate {
            while self.leaving.front().is_some_and(|at| *at <= now) {
                self.leaving.pop_front();
            }
            if self.leaving.len() >= self.line.queue {
                self.counters.dropped += 1;
                return;
            }
            let bits = bytes.len() as u64 * 8 + LINE_BITS;
            let begin = self.leaving.back().copied().unwrap_or(now).max(now);
            sent = begin.after(bits * SECOND / rate.max(1));
            self.leaving.push_back(sent);
        }
        let is_late = self.line.mark_from.is_some_and(|from| self.leaving.len() > from);
        if (is_late || self.rng.chance(self.line.mark_ppm)) && mark(&mut bytes) {
            self.counters.marked += 1;
        }
        if self.held.len() >= MOST_HELD {
            self.counters.dropped += 1;
            return;
        }
        self.number += 1;
        let leaves = sent.after(self.line.delay_ns + more_ns);
        self.held.insert((leaves, self.number), bytes);
    }

    /// Sends the frames whose time has come.
    fn release(&mut self, now: Instant, to: &mut AnyNic) -> bool {
        let mut worked = false;
        while let Some(first) = self.held.first_entry() {
            if first.key().0 > now {
                break;
            }
            match to.send(&[first.get()], Offload::None) {
                Sent::Full => break,
                Sent::Yes => self.counters.forwarded += 1,
                Sent::Gone => self.counters.dropped += 1,
            }
            first.remove();
            worked = true;
        }
        to.flush();
        worked
    }
}

/// Marks congestion on an IP packet whose ends understand marks. Returns true if it did.
fn mark(frame: &mut [u8]) -> bool {
    match frame.get(12..14) {
        Some([8, 0]) if frame.len() >= HEADER + 20 && matches!(frame[15] & 3, 1 | 2) => {
            let (before, after) = (frame[15], frame[15] | 3);
            frame[15] = after;
            // RFC 1624: the sum changes by the difference of the field.
            let sum = !u16::from_be_bytes([frame[24], frame[25]]);
            let sum = u32::from(sum) + u32::from(after - before);
            let sum = !((sum & 0xffff) as u16 + (sum >> 16) as u16);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            true
        }
        Some([0x86, 0xdd]) if frame.len() >= HEADER + 40 && matches!(frame[15] >> 4 & 3, 1 | 2) => {
            frame[15] |= 0x30;
            true
        }
        _ => false,
    }
}

/// A bridge between two packet devices.
pub struct Bridge {
    devices: [AnyNic; 2],
    /// The directions from each device to the other one.
    directions: [Direction; 2],
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bridge").field("directions", &self.directions).finish_non_exhaustive()
    }
}

impl Bridge {
    /// Makes a bridge. `lines` are the directions from device 0 and from device 1; `seed` decides
    /// about each frame.
    #[must_use]
    pub fn new(devices: [AnyNic; 2], lines: [Line; 2], seed: u64) -> Self {
        let mut rng = Rng::seeded(seed);
        let directions = lines.map(|line| Direction::new(line, rng.fork()));
        Self { devices, directions }
    }

    /// Receives a burst of each device, and sends the frames whose time has come. Returns true if
    /// there was something to do.
    pub fn turn(&mut self, now: Instant) -> bool {
        let [a, b] = &mut self.devices;
        let [there, back] = &mut self.directions;
        let worked = forward(there, now, a, b);
        forward(back, now, b, a) || worked
    }

    /// Returns the time at which the next frame leaves.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let first = |direction: &Direction| Some(direction.held.first_key_value()?.0.0);
        self.directions.iter().filter_map(first).min()
    }

    /// Returns what the direction from device `i` has done.
    ///
    /// # Panics
    /// If `i` is neither 0 nor 1.
    #[must_use]
    pub const fn counters(&self, i: usize) -> LineCounters {
        self.directions[i].counters
    }

    /// Forwards frames until `stop`.
    ///
    /// # Errors
    /// The kernel does not let the thread sleep on the devices.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let now = clock::now();
            if self.turn(now) {
                continue;
            }
            let due = self.deadline().unwrap_or(Instant::NEVER);
            let ns = due.since(clock::now()).min(LONGEST_SLEEP_NS);
            if ns > 0 && self.devices.iter_mut().all(|device| device.arm()) {
                let timeout = Timespec { tv_sec: 0, tv_nsec: ns as i64 };
                let [a, b] = &self.devices;
                let mut fds = [
                    PollFd::from_borrowed_fd(a.fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(b.fd(), PollFlags::IN),
                ];
                match poll(&mut fds, Some(&timeout)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.devices.iter_mut().for_each(|device| device.disarm());
        }
        Ok(())
    }
}

fn forward(direction: &mut Direction, now: Instant, from: &mut AnyNic, to: &mut AnyNic) -> bool {
    let count = from.recv_burst().min(BURST);
    for i in 0..count {
        direction.take(now, from.frame(i).0);
    }
    direction.release(now, to) || count > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::fake::{self, Fake};
    use sprat_proto::device::Mac;

    const MACS: [Mac; 2] = [Mac([2; 6]), Mac([4; 6])];

    fn bridge(line: Line) -> (Fake, Bridge, Fake) {
        let [a, left] = fake::pair(MACS, 1500).unwrap();
        let [right, b] = fake::pair(MACS, 1500).unwrap();
        let devices = [AnyNic::other(left), AnyNic::other(right)];
        (a, Bridge::new(devices, [line, Line::default()], 1), b)
    }

    fn frame(number: u8, traffic_class: u8) -> Vec<u8> {
        let mut bytes = vec![number; HEADER + 20];
        bytes[12..16].copy_from_slice(&[8, 0, 0x45, traffic_class]);
        bytes
    }

    fn arrived(nic: &mut Fake) -> Vec<Vec<u8>> {
        (0..nic.recv_burst()).map(|i| nic.frame(i).0.to_vec()).collect()
    }

    #[test]
    fn a_rate_and_a_delay_set_the_time_and_a_full_queue_drops() {
        // A frame of 34 bytes and 24 of the line take 464 ns at 1 Gbit/s.
        let rate = Some(1_000_000_000);
        let (mut a, mut bridge, mut b) =
            bridge(Line { rate, delay_ns: 10_000, queue: 2, ..Line::default() });
        for number in 0..3 {
            a.send(&[&frame(number, 0)], Offload::None);
        }
        assert!(bridge.turn(Instant::ZERO));
        assert_eq!(bridge.deadline(), Some(Instant::from_ns(10_464)));
        bridge.turn(Instant::from_ns(10_463));
        assert!(arrived(&mut b).is_empty());
        bridge.turn(Instant::from_ns(10_464));
        assert_eq!(arrived(&mut b), [frame(0, 0)]);
        bridge.turn(Instant::from_ns(10_928));
        assert_eq!(arrived(&mut b), [frame(1, 0)]);
        let counters = bridge.counters(0);
        assert_eq!((counters.forwarded, counters.dropped), (2, 1));
    }

    #[test]
    fn frames_of_both_directions_pass() {
        let (mut a, mut bridge, mut b) = bridge(Line::default());
        a.send(&[&frame(1, 0)], Offload::None);
        b.send(&[&frame(2, 0)], Offload::None);
        bridge.turn(Instant::ZERO);
        assert_eq!((arrived(&mut a), arrived(&mut b)), (vec![frame(2, 0)], vec![frame(1, 0)]));
    }

    #[test]
    fn marks_keep_the_checksum_right_and_spare_others() {
        use sprat_proto::wire::checksum::Sum;
        for class in [0, 1, 2, 3, 0xfe] {
            let mut packet = frame(7, class);
            packet[24..26].fill(0);
            let sum = Sum::default().bytes(&packet[HEADER..]).checksum();
            packet[24..26].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(mark(&mut packet), matches!(class & 3, 1 | 2), "{class}");
            assert_eq!(Sum::default().bytes(&packet[HEADER..]).checksum(), 0);
            assert_eq!(packet[15], if class & 3 == 0 { class } else { class | 3 });
        }
        let mut v6 = vec![0; HEADER + 40];
        v6[12..16].copy_from_slice(&[0x86, 0xdd, 0x60, 0x20]);
        assert!(mark(&mut v6) && v6[15] == 0x30);
    }
}
