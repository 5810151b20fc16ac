//! The short way in against the ordinary one: whatever arrives, both say the same, hand up the same and count the same.

use super::hostile::{mend, udp};
use super::*;

/// What came of a frame: datagrams, and all counters.
type Verdict = (Vec<(u16, SocketAddr, Vec<u8>)>, Stats);

/// Two stacks to which the same happens; the second one never goes the short way.
struct Both {
    now: Instant,
    stacks: [(Stack, Nic); 2],
    /// Frames that went the short way.
    short: u64,
}

impl Both {
    fn new() -> Self {
        let stack = || {
            let nic = Nic::new(1, 1500);
            let mut stack = Stack::new(fixed(1), nic.info(), Rng::seeded(1));
            stack.bind(7).unwrap();
            stack.bind(8).unwrap();
            (stack, nic)
        };
        Self { now: Instant::from_ns(SECOND), stacks: [stack(), stack()], short: 0 }
    }

    fn verdict(&mut self, side: usize, frame: &[u8], arrival: RxOffload) -> Verdict {
        let (stack, nic) = &mut self.stacks[side];
        if side == 1 {
            stack.short = None;
        }
        nic.inbox.push_back((frame.to_vec(), arrival));
        let mut datagrams = Vec::new();
        // A joined frame comes in several bursts.
        loop {
            let n = stack.input(self.now, nic);
            for i in 0..n {
                let (port, from, bytes) = stack.datagram(i, nic);
                datagrams.push((port, from, bytes.to_vec()));
            }
            if n == 0 {
                break;
            }
        }
        (datagrams, *stack.stats())
    }

    fn agree(&mut self, frame: &[u8], arrival: RxOffload) -> usize {
        self.now = self.now.after(SECOND);
        let short = self.stacks[0].0.short.and_then(|short| short.datagram(frame, arrival));
        self.short += u64::from(short.is_some());
        let [short, ordinary] = [0, 1].map(|side| self.verdict(side, frame, arrival));
        assert_eq!(short, ordinary, "{frame:02x?} {arrival:?}");
        let [a, b] = &mut self.stacks;
        assert_eq!(core::mem::take(&mut a.1.sent), core::mem::take(&mut b.1.sent));
        short.0.len()
    }
}

const PLAIN: RxOffload = RxOffload { checksum_valid: false, segment_size: 0 };
const CHECKED: RxOffload = RxOffload { checksum_valid: true, segment_size: 0 };

/// A datagram whose headers are all there, some of them as others may write them.
fn good() -> Vec<u8> {
    [&udp(v4(2), v4(1))[..], b"behind"].concat()
}

#[test]
fn every_bit_of_the_headers() {
    let mut both = Both::new();
    for arrival in [PLAIN, CHECKED] {
        assert_eq!(both.agree(&good(), arrival), 1);
        for bit in 0..8 * (HEADER + 28) {
            for mended in [false, true] {
                let mut frame = good();
                frame[bit / 8] ^= 1 << (bit % 8);
                if mended {
                    mend(&mut frame);
                }
                both.agree(&frame, arrival);
                // The flipped bit may have shown another port: back to ours.
                both.agree(&good(), arrival);
            }
        }
    }
    assert!(both.short > 1400, "{} frames went the short way", both.short);
}

#[test]
fn every_length() {
    let mut both = Both::new();
    let whole = good();
    for len in 0..=whole.len() {
        both.agree(&whole[..len], PLAIN);
    }
    for (ip, udp) in (0..80).flat_map(|ip| (0..40).map(move |udp| (ip, udp))) {
        let mut frame = whole.clone();
        frame[HEADER + 3] = ip;
        frame[HEADER + 20 + 5] = udp;
        mend(&mut frame);
        for len in [whole.len(), whole.len() - 6, whole.len() - 9, HEADER + 28] {
            both.agree(&frame[..len], PLAIN);
        }
    }
    assert!(both.short > 20, "{} frames went the short way", both.short);
}

#[test]
fn joined_frames_and_both_ports() {
    let mut both = Both::new();
    for segment in 0..6 {
        for checked in [false, true] {
            let expected = if segment == 0 { 1 } else { 3usize.div_ceil(usize::from(segment)) };
            assert_eq!(
                both.agree(&good(), RxOffload { checksum_valid: checked, segment_size: segment }),
                expected
            );
        }
    }
    let mut other = good();
    other[HEADER + 20 + 3] = 8;
    for _ in 0..3 {
        assert_eq!((both.agree(&other, PLAIN), both.agree(&good(), PLAIN)), (1, 1));
    }
    assert_eq!(both.agree(&good(), PLAIN), 1);
    for (stack, _) in &mut both.stacks {
        stack.unbind(7);
    }
    assert_eq!((both.agree(&good(), PLAIN), both.agree(&other, PLAIN)), (0, 1));
    assert!(both.short > 5, "{} frames went the short way", both.short);
}

/// Octets of the headers changed at random, to what is nearly right as a rule.
#[test]
fn random_frames() {
    let mut rng = Rng::seeded(3);
    let mut both = Both::new();
    for _ in 0..30_000 {
        let mut frame = good();
        for _ in 0..rng.below(4) {
            let at = rng.below(HEADER as u64 + 28) as usize;
            let near = [0, 0xff, frame[at] ^ 1, frame[at] ^ 0x40, rng.u32() as u8, 0x45, 17, 127];
            frame[at] = near[rng.below(near.len() as u64) as usize];
        }
        if rng.below(4) > 0 {
            mend(&mut frame);
        }
        if rng.below(8) == 0 {
            frame.truncate(rng.below(frame.len() as u64 + 1) as usize);
        }
        let segment = if rng.below(8) == 0 { rng.below(5) as u16 } else { 0 };
        both.agree(&frame, RxOffload { checksum_valid: rng.below(2) == 0, segment_size: segment });
    }
    assert!(both.short > 5000, "{} frames went the short way", both.short);
}
