//! A driver that does to its datagrams what networks do: [`Faulty`] wraps a real one and loses,
//! doubles, reorders, damages and cuts what is sent through it, as drawn from a seed by [`Fault`].
//!
//! A datagram that is held back waits for a number of polls, one for each microsecond that its fate
//! asks for: a driver has no clock. The same seed and the same order of sends and polls give the
//! same faults.
//!
//! Not here: the model (`proto`), which the simulator's wire shares.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::datagrams::{LeftDatagram, PaddedHeader, Sent};
use sprat_proto::fault::Fault;
use sprat_proto::{Addr, Datagrams, Instant, Rng, TimedDatagrams};

use crate::driver::Driver;
use crate::locator::Locator;

/// The maximum of datagrams held back; further ones go at once.
const MOST_HELD: usize = 1024;

/// The counters of the faults that a driver made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The number of datagrams that the caller sent through the driver.
    pub offered: u64,
    /// The number of datagrams that the driver lost.
    pub dropped: u64,
    /// The number of datagrams that the driver sent twice.
    pub duplicated: u64,
    /// The number of datagrams that the driver held back, so that later ones could overtake them.
    pub delayed: u64,
    /// The number of datagrams that the driver sent with a flipped bit.
    pub corrupted: u64,
    /// The number of datagrams that the driver cut short.
    pub truncated: u64,
}

/// A driver that makes faults in the datagrams sent through it.
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    fault: Fault,
    rng: Rng,
    /// The number of polls since the driver was made.
    polls: u64,
    held: VecDeque<Held>,
    /// Copies of the burst's datagrams that the driver `inner` has left in its memory, by their
    /// index. Their checksum covers all bytes, so all are copied before any is parsed.
    whole: Vec<(usize, Vec<u8>)>,
    counters: Counters,
}

#[derive(Debug)]
struct Held {
    /// The number of the poll at which the datagram is sent.
    until: u64,
    to: Addr,
    bytes: Vec<u8>,
}

impl<D: Datagrams> Faulty<D> {
    /// Wraps the driver `inner`, with faults in sent datagrams drawn from `rng`.
    pub fn new(inner: D, fault: Fault, rng: Rng) -> Self {
        Self {
            inner,
            fault,
            rng,
            polls: 0,
            held: VecDeque::new(),
            whole: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the counters of the faults that the driver made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sends the datagrams that have been held back long enough.
    fn release(&mut self) {
        for _ in 0..self.held.len() {
            match self.held.pop_front() {
                Some(held) if held.until > self.polls => self.held.push_back(held),
                // A datagram that a full ring does not take is lost.
                Some(held) => drop(self.inner.send(held.to, &[&held.bytes])),
                None => break,
            }
        }
    }
}

impl<D: Datagrams> Datagrams for Faulty<D> {
    fn recv_burst(&mut self) -> usize {
        self.polls += 1;
        if !self.held.is_empty() {
            self.release();
            self.inner.flush();
        }
        let n = self.inner.recv_burst();
        self.whole.clear();
        for i in (0..n).filter(|&i| self.inner.left(i).is_some()) {
            let mut bytes = Vec::new();
            self.inner.append_left(i, 0, &mut bytes);
            self.whole.push((i, bytes));
        }
        n
    }

    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        let (from, bytes) = self.inner.datagram(i);
        let whole = self.whole.iter().find(|(index, _)| *index == i);
        (from, whole.map_or(bytes, |(_, bytes)| bytes))
    }

    fn left(&self, _: usize) -> Option<LeftDatagram<'_>> {
        None
    }

    fn append_left(&self, _: usize, _: usize, _: &mut Vec<u8>) {}

    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        let bytes = parts.concat();
        let fate = self.fault.fate(&mut self.rng, bytes.len());
        self.counters.offered += 1;
        self.counters.dropped += u64::from(fate.copies == 0);
        self.counters.duplicated += u64::from(fate.copies > 1);
        self.counters.corrupted += u64::from(fate.flip_bit.is_some());
        self.counters.truncated += u64::from(fate.cut_to.is_some());
        for (copy, delay_ns) in fate.delay_ns.iter().take(usize::from(fate.copies)).enumerate() {
            let mut bytes = bytes.clone();
            if copy == 0 {
                if let Some(bit) = fate.flip_bit {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                bytes.truncate(fate.cut_to.unwrap_or(usize::MAX));
            }
            let wait = delay_ns.div_ceil(1_000);
            if wait > 0 && self.held.len() < MOST_HELD {
                self.counters.delayed += 1;
                self.held.push_back(Held { until: self.polls + wait, to, bytes });
            } else if self.inner.send(to, &[&bytes]) == Sent::Gone {
                return Sent::Gone;
            }
        }
        Sent::Yes
    }

    #[inline]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.send(to, &[head, body])
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn gone(&mut self) -> Option<Addr> {
        self.inner.gone()
    }

    fn max_payload(&self) -> usize {
        self.inner.max_payload()
    }

    fn max_loopback_payload(&self) -> usize {
        self.inner.max_loopback_payload()
    }

    fn lossless(&self) -> bool {
        false
    }

    #[inline]
    fn intact(&self) -> bool {
        false
    }
}

impl<D: Driver> TimedDatagrams for Faulty<D> {
    fn set_now(&mut self, now: Instant) {
        self.inner.set_now(now);
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.inner.tick(now);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(each);
    }
}

impl<D: Driver> Driver for Faulty<D> {
    fn resolve(&mut self, to: &Locator) -> io::Result<Addr> {
        self.inner.resolve(to)
    }

    fn locator(&self) -> Option<String> {
        self.inner.locator()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn arm(&mut self) -> bool {
        // What is held back goes by polls.
        self.held.is_empty() && self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that keeps the datagrams sent through it.
    #[derive(Default)]
    struct Sink(Vec<Vec<u8>>);

    impl Datagrams for Sink {
        /// Receives a datagram that is copied, and one that the driver leaves in its memory.
        fn recv_burst(&mut self) -> usize {
            2
        }
        fn datagram(&self, i: usize) -> (Addr, &[u8]) {
            (Addr::Local(9), [&b"copied"[..], b""][i])
        }
        fn left(&self, i: usize) -> Option<LeftDatagram<'_>> {
            (i == 1).then_some(LeftDatagram { head: b"lef", len: 4 })
        }
        fn append_left(&self, _: usize, from: usize, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(&b"left"[from..]);
        }
        fn send(&mut self, _: Addr, parts: &[&[u8]]) -> Sent {
            self.0.push(parts.concat());
            Sent::Yes
        }
        fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
            self.send(to, &[head, body])
        }
        fn flush(&mut self) {}
        fn gone(&mut self) -> Option<Addr> {
            None
        }
        fn max_payload(&self) -> usize {
            1000
        }

        fn max_loopback_payload(&self) -> usize {
            self.max_payload()
        }
        fn lossless(&self) -> bool {
            true
        }
        fn intact(&self) -> bool {
            true
        }
    }

    /// The endpoint checks the checksum of each datagram of a driver with faults, so it must find
    /// all bytes of the datagrams that the inner driver leaves in its memory.
    #[test]
    fn a_datagram_that_the_inner_driver_leaves_is_copied_whole() {
        let mut faulty = Faulty::new(Sink::default(), Fault::default(), Rng::seeded(1));
        for _ in 0..2 {
            assert_eq!(faulty.recv_burst(), 2);
            assert_eq!(faulty.datagram(0), (Addr::Local(9), &b"copied"[..]));
            assert_eq!(faulty.datagram(1), (Addr::Local(9), &b"left"[..]));
            assert_eq!(faulty.left(1), None);
        }
    }

    /// Sends 1,000 numbered datagrams through faults, a poll after each, and polls until nothing is
    /// held back. Returns the datagrams that came out.
    fn thousand(fault: Fault, seed: u64) -> (Vec<Vec<u8>>, Counters) {
        let mut faulty = Faulty::new(Sink::default(), fault, Rng::seeded(seed));
        assert!(!faulty.lossless());
        for i in 0..1000_u32 {
            assert_eq!(faulty.send(Addr::Local(1), &[&i.to_be_bytes(), b"rest"]), Sent::Yes);
            faulty.recv_burst();
        }
        for _ in 0..100 {
            faulty.recv_burst();
        }
        assert!(faulty.held.is_empty());
        (faulty.inner.0, faulty.counters)
    }

    fn clean() -> Vec<Vec<u8>> {
        (0..1000_u32).map(|i| [&i.to_be_bytes()[..], b"rest"].concat()).collect()
    }

    #[test]
    fn no_fault_changes_nothing() {
        let (got, counters) = thousand(Fault::default(), 1);
        assert_eq!(got, clean());
        assert_eq!(counters, Counters { offered: 1000, ..Counters::default() });
    }

    #[test]
    fn each_fault_does_what_it_says_and_nothing_else() {
        let tenth = 100_000;
        let (got, counters) = thousand(Fault { drop_ppm: tenth, ..Fault::default() }, 2);
        assert_eq!(got.len() as u64, 1000 - counters.dropped);
        assert!((50..200).contains(&counters.dropped) && got.is_sorted());

        let (got, counters) = thousand(Fault { duplicate_ppm: tenth, ..Fault::default() }, 3);
        assert_eq!(got.len() as u64, 1000 + counters.duplicated);
        assert!((50..200).contains(&counters.duplicated) && got.is_sorted());

        let fault = Fault { reorder_ppm: tenth, reorder_ns: 20_000, ..Fault::default() };
        let (mut got, counters) = thousand(fault, 4);
        assert!((50..200).contains(&counters.delayed) && !got.is_sorted());
        got.sort();
        assert_eq!(got, clean());

        let (got, counters) = thousand(Fault { corrupt_ppm: tenth, ..Fault::default() }, 5);
        let damaged = got.iter().zip(clean()).filter(|(a, b)| *a != b).count() as u64;
        assert_eq!(damaged, counters.corrupted);
        assert!((50..200).contains(&damaged));

        let (got, counters) = thousand(Fault { truncate_ppm: tenth, ..Fault::default() }, 6);
        assert_eq!(got.iter().filter(|d| d.len() < 8).count() as u64, counters.truncated);
        assert!((50..200).contains(&counters.truncated));
    }

    #[test]
    fn a_seed_repeats() {
        let fault = Fault {
            drop_ppm: 100_000,
            duplicate_ppm: 100_000,
            reorder_ppm: 100_000,
            corrupt_ppm: 100_000,
            truncate_ppm: 100_000,
            reorder_ns: 30_000,
        };
        assert_eq!(thousand(fault, 7), thousand(fault, 7));
        assert_ne!(thousand(fault, 7).0, thousand(fault, 8).0);
    }
}
