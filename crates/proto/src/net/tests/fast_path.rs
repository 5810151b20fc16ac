//! Tests of the receive fast path against the slow path: both deliver, send and count alike for
//! every frame.

use super::hostile::{fix_checksum, udp};
use super::*;

/// The effects of a received frame: the datagrams delivered, and all counters.
type Effects = (Vec<(u16, SocketAddr, Vec<u8>)>, StackCounters);

/// Two IP stacks that receive the same frames. The second one never uses the receive fast path.
struct Both {
    now: Instant,
    stacks: [(Stack, Nic); 2],
    /// The number of frames that the receive fast path took.
    fast: u64,
}

impl Both {
    fn new() -> Self {
        let stack = || {
            let nic = Nic::new(1, 1500);
            let mut stack = Stack::new(static_ipv4(1), nic.info(), Rng::seeded(1));
            stack.bind(7).unwrap();
            stack.bind(8).unwrap();
            (stack, nic)
        };
        Self { now: Instant::from_ns(SECOND), stacks: [stack(), stack()], fast: 0 }
    }

    fn effects(&mut self, side: usize, frame: &[u8], offload: RxOffload) -> Effects {
        let (stack, nic) = &mut self.stacks[side];
        if side == 1 {
            stack.fast_path = None;
        }
        nic.inbox.push_back((frame.to_vec(), offload));
        let mut datagrams = Vec::new();
        // A coalesced frame may fill several bursts.
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
        (datagrams, *stack.counters())
    }

    fn agree(&mut self, frame: &[u8], offload: RxOffload) -> usize {
        self.now = self.now.after(SECOND);
        let taken = self.stacks[0].0.fast_path.and_then(|mut path| path.datagram(frame, offload));
        self.fast += u64::from(taken.is_some());
        let [fast, slow] = [0, 1].map(|side| self.effects(side, frame, offload));
        assert_eq!(fast, slow, "{frame:02x?} {offload:?}");
        let [a, b] = &mut self.stacks;
        assert_eq!(core::mem::take(&mut a.1.sent), core::mem::take(&mut b.1.sent));
        fast.0.len()
    }
}

const UNCHECKED: RxOffload = RxOffload { checksum_valid: false, segment_size: 0, left: 0 };
const CHECKED: RxOffload = RxOffload { checksum_valid: true, segment_size: 0, left: 0 };

/// Builds a valid frame with a UDP datagram for port 7, and padding behind it.
fn good() -> Vec<u8> {
    [&udp(v4(2), v4(1))[..], b"behind"].concat()
}

#[test]
fn both_paths_agree_on_every_bit_of_the_headers() {
    let mut both = Both::new();
    for offload in [UNCHECKED, CHECKED] {
        assert_eq!(both.agree(&good(), offload), 1);
        for bit in 0..8 * (HEADER + 28) {
            for fixed in [false, true] {
                let mut frame = good();
                frame[bit / 8] ^= 1 << (bit % 8);
                if fixed {
                    fix_checksum(&mut frame);
                }
                both.agree(&frame, offload);
                // The flipped bit may have moved the fast path to another port; move it back.
                both.agree(&good(), offload);
            }
        }
    }
    assert!(both.fast > 1400, "{} frames took the fast path", both.fast);
}

#[test]
fn both_paths_agree_on_every_length() {
    let mut both = Both::new();
    let whole = good();
    for len in 0..=whole.len() {
        both.agree(&whole[..len], UNCHECKED);
    }
    for (ip, udp) in (0..80).flat_map(|ip| (0..40).map(move |udp| (ip, udp))) {
        let mut frame = whole.clone();
        frame[HEADER + 3] = ip;
        frame[HEADER + 20 + 5] = udp;
        fix_checksum(&mut frame);
        for len in [whole.len(), whole.len() - 6, whole.len() - 9, HEADER + 28] {
            both.agree(&frame[..len], UNCHECKED);
        }
    }
    assert!(both.fast > 20, "{} frames took the fast path", both.fast);
}

#[test]
fn both_paths_agree_on_coalesced_frames_and_two_ports() {
    let mut both = Both::new();
    for segment in 0..6 {
        for checked in [false, true] {
            let expected = if segment == 0 { 1 } else { 3usize.div_ceil(usize::from(segment)) };
            assert_eq!(
                both.agree(
                    &good(),
                    RxOffload { checksum_valid: checked, segment_size: segment, left: 0 }
                ),
                expected
            );
        }
    }
    let mut other = good();
    other[HEADER + 20 + 3] = 8;
    for _ in 0..3 {
        assert_eq!((both.agree(&other, UNCHECKED), both.agree(&good(), UNCHECKED)), (1, 1));
    }
    assert_eq!(both.agree(&good(), UNCHECKED), 1);
    for (stack, _) in &mut both.stacks {
        stack.unbind(7);
    }
    assert_eq!((both.agree(&good(), UNCHECKED), both.agree(&other, UNCHECKED)), (0, 1));
    assert!(both.fast > 5, "{} frames took the fast path", both.fast);
}

/// The receive fast path and the slow path agree on frames with random header bytes, most of them
/// nearly valid.
#[test]
fn both_paths_agree_on_random_frames() {
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
            fix_checksum(&mut frame);
        }
        if rng.below(8) == 0 {
            frame.truncate(rng.below(frame.len() as u64 + 1) as usize);
        }
        let segment = if rng.below(8) == 0 { rng.below(5) as u16 } else { 0 };
        both.agree(
            &frame,
            RxOffload { checksum_valid: rng.below(2) == 0, segment_size: segment, left: 0 },
        );
    }
    assert!(both.fast > 5000, "{} frames took the fast path", both.fast);
}
