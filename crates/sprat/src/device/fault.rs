//! A packet device that treats frames as networks do: [`Faulty`] wraps another device, and loses,
//! doubles, reorders, damages and cuts the frames sent through it. [`Fault`] draws each fault from
//! a seed.
//!
//! A frame that is held back waits for a number of polls, one for each microsecond of its delay. A
//! frame that the device should cut or sum is only lost or doubled: damage would hit the device's
//! result and not the frame.
//!
//! Not here: the model of faults (`proto`), which the simulator's wire shares, and faults of
//! datagrams (`crate::driver::fault`).

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use sprat_proto::Rng;
use sprat_proto::device::{
    Device, HEADER, Headers, Info, Offload, RxOffload, Sent, send_concatenated,
};
use sprat_proto::fault::Fault;

use super::Nic;

/// The most frames that a faulty device holds back. If it has more, it sends the next ones at once.
const MOST_HELD: usize = 1024;

/// A packet device that loses, doubles, reorders and damages frames on their way out.
#[derive(Debug)]
pub struct Faulty<N> {
    inner: N,
    fault: Fault,
    rng: Rng,
    /// Number of polls since the device was made.
    polls: u64,
    held: VecDeque<Held>,
    counted: Counted,
}

#[derive(Debug)]
struct Held {
    /// The number of the poll at which the frame is sent.
    until: u64,
    bytes: Vec<u8>,
    offload: Offload,
}

#[derive(Debug, Default)]
struct Counted {
    dropped: u64,
    doubled: u64,
    delayed: u64,
    damaged: u64,
    cut: u64,
}

impl<N: Nic> Faulty<N> {
    /// Wraps the device `inner`, with faults that `rng` draws by the model `fault`.
    pub fn new(inner: N, fault: Fault, rng: Rng) -> Self {
        Self { inner, fault, rng, polls: 0, held: VecDeque::new(), counted: Counted::default() }
    }

    /// Sends the frames that have been held back long enough.
    fn release(&mut self) {
        for _ in 0..self.held.len() {
            match self.held.pop_front() {
                Some(held) if held.until > self.polls => self.held.push_back(held),
                // A frame that a full device does not take is lost.
                Some(held) => drop(self.inner.send(&[&held.bytes], held.offload)),
                None => break,
            }
        }
        self.inner.flush();
    }
}

impl<N: Nic> Device for Faulty<N> {
    fn recv_burst(&mut self) -> usize {
        self.polls += 1;
        if !self.held.is_empty() {
            self.release();
        }
        self.inner.recv_burst()
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        self.inner.frame(i)
    }

    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        self.inner.append_left(i, range, bytes);
    }

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        let mut bytes = parts.concat();
        let mut fate = self.fault.fate(&mut self.rng, bytes.len());
        if offload != Offload::None {
            (fate.flip_bit, fate.cut_to) = (None, None);
        }
        // Less than a header is no frame, and none arrives.
        let cut = fate.cut_to.map(|n| n.max(HEADER));
        self.counted.dropped += u64::from(fate.copies == 0);
        self.counted.doubled += u64::from(fate.copies > 1);
        self.counted.damaged += u64::from(fate.flip_bit.is_some());
        self.counted.cut += u64::from(cut.is_some());
        for (copy, delay_ns) in
            fate.delay_ns.into_iter().take(usize::from(fate.copies)).enumerate().rev()
        {
            // The first copy goes last, so that the second one is whole.
            if copy == 0 {
                if let Some(bit) = fate.flip_bit {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                bytes.truncate(cut.unwrap_or(usize::MAX));
            }
            let wait = delay_ns.div_ceil(1_000);
            if wait > 0 && self.held.len() < MOST_HELD {
                self.counted.delayed += 1;
                self.held.push_back(Held {
                    until: self.polls + wait,
                    bytes: bytes.clone(),
                    offload,
                });
            } else if let other @ (Sent::Gone | Sent::Full) = self.inner.send(&[&bytes], offload) {
                // Offered again it would draw another fate; a full device that loses a frame is a
                // fault like others.
                if other == Sent::Gone {
                    return Sent::Gone;
                }
                self.counted.dropped += 1;
            }
        }
        Sent::Yes
    }

    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        _: usize,
        offload: Offload,
    ) -> Sent {
        send_concatenated(self, headers, parts, offload)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn info(&self) -> Info {
        self.inner.info()
    }

    fn rx_timestamp_ns(&self, i: usize) -> Option<u64> {
        self.inner.rx_timestamp_ns(i)
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(each);
        each("faults_dropped", self.counted.dropped);
        each("faults_doubled", self.counted.doubled);
        each("faults_delayed", self.counted.delayed);
        each("faults_damaged", self.counted.damaged);
        each("faults_cut", self.counted.cut);
    }
}

impl<N: Nic> Nic for Faulty<N> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn arm(&mut self) -> bool {
        // Delays are counted in polls.
        self.held.is_empty() && self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn has_rx_timestamps(&self) -> bool {
        self.inner.has_rx_timestamps()
    }

    fn carries(&mut self) -> bool {
        self.inner.carries()
    }

    fn queues(&self) -> usize {
        self.inner.queues()
    }
}

#[cfg(test)]
mod tests {
    use sprat_proto::device::Mac;

    use super::*;
    use crate::device::fake::{self, Fake};

    const TENTH: u32 = 100_000;

    /// Sends 1,000 numbered frames with a poll after each. Returns the frames that arrive, and the
    /// device's counters.
    fn thousand(fault: Fault, seed: u64) -> (Vec<Vec<u8>>, Counted) {
        let [a, mut b] = fake::pair([Mac([2; 6]), Mac([4; 6])], 1500).unwrap();
        let mut a: Faulty<Fake> = Faulty::new(a, fault, Rng::seeded(seed));
        let mut got = Vec::new();
        for i in 0..1100_u32 {
            if i < 1000 {
                assert_eq!(a.send(&[&[9; HEADER], &i.to_be_bytes()], Offload::None), Sent::Yes);
            }
            a.recv_burst();
            got.extend((0..b.recv_burst()).map(|i| b.frame(i).0.to_vec()));
        }
        assert!(a.held.is_empty());
        (got, a.counted)
    }

    #[test]
    fn each_fault_does_what_it_says_and_a_seed_repeats() {
        let clean: Vec<Vec<u8>> =
            (0..1000_u32).map(|i| [&[9; HEADER][..], &i.to_be_bytes()].concat()).collect();
        assert_eq!(thousand(Fault::default(), 1).0, clean);

        let (got, n) = thousand(Fault { drop_ppm: TENTH, ..Fault::default() }, 2);
        assert_eq!(got.len() as u64, 1000 - n.dropped);
        assert!((50..200).contains(&n.dropped) && got.is_sorted());

        let (got, n) = thousand(Fault { duplicate_ppm: TENTH, ..Fault::default() }, 3);
        assert_eq!(got.len() as u64, 1000 + n.doubled);

        let (mut got, n) =
            thousand(Fault { reorder_ppm: TENTH, reorder_ns: 20_000, ..Fault::default() }, 4);
        assert!((50..200).contains(&n.delayed) && !got.is_sorted());
        got.sort();
        assert_eq!(got, clean);

        let (got, n) = thousand(Fault { corrupt_ppm: TENTH, ..Fault::default() }, 5);
        assert_eq!(got.iter().zip(&clean).filter(|(a, b)| a != b).count() as u64, n.damaged);

        let all = Fault {
            drop_ppm: TENTH,
            duplicate_ppm: TENTH,
            reorder_ppm: TENTH,
            corrupt_ppm: TENTH,
            truncate_ppm: TENTH,
            reorder_ns: 30_000,
        };
        let (got, n) = thousand(all, 6);
        assert!(n.cut > 50 && got.iter().all(|f| f.len() >= HEADER));
        assert_eq!(got, thousand(all, 6).0);
        assert_ne!(got, thousand(all, 7).0);
    }
}
