//! Baseline of long turns: a loop that only touches memory, in turns as long as a busy server's.
//!
//! Where a processor is virtual, the time for which its host takes it away counts as the thread's
//! own. So some turns of any loop are long there, more of them the more memory the loop touches.

use std::hint::black_box;
use std::thread;

use sprat_sys::clock::{self, Clock};

/// The random accesses in one turn of the loop: about 20 µs of them.
const TOUCHES: usize = 1000;
/// The length of a page of memory, in words.
const PAGE: usize = 512;

/// Touches random words among `footprint_bytes` for `time_ns` nanoseconds, on two threads at once,
/// as a server and its client keep two processors busy. Returns the number of turns of the first
/// thread's loop that used the processor for at least each time of `from_ns`, in nanoseconds.
#[must_use]
pub fn long_turns<const N: usize>(
    footprint_bytes: usize,
    time_ns: u64,
    from_ns: [u64; N],
) -> [u64; N] {
    let words = (footprint_bytes / 2 / size_of::<u64>()).max(PAGE);
    thread::scope(|scope| {
        scope.spawn(|| touch(words, time_ns, from_ns));
        touch(words, time_ns, from_ns)
    })
}

fn touch<const N: usize>(words: usize, time_ns: u64, from_ns: [u64; N]) -> [u64; N] {
    let mut memory = vec![0_u64; words];
    // Every page is written, so that it exists.
    memory.iter_mut().step_by(PAGE).for_each(|word| *word = black_box(1));
    let mut x = 0x9E37_79B9_7F4A_7C15_u64;
    let mut counts = [0; N];
    let clock = Clock::new();
    let end = clock.now().after(time_ns);
    let mut used = clock::thread_ns();
    while clock.now() < end {
        for _ in 0..TOUCHES {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = ((u128::from(x) * words as u128) >> 64) as usize;
            memory[at] = memory[at].wrapping_add(x);
        }
        let before = std::mem::replace(&mut used, clock::thread_ns());
        for (count, least) in counts.iter_mut().zip(from_ns) {
            *count += u64::from(used - before >= least);
        }
    }
    black_box(&memory);
    counts
}
