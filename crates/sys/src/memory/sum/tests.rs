//! Compares copies that are summed with the portable CRC.

use std::sync::atomic::{AtomicBool, Ordering};

use sprat_proto::Rng;
use sprat_proto::wire::checksum;

use super::append_summed;
use crate::memory::{Foreign, Region};

fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::seeded(2).fill(&mut bytes);
    bytes
}

#[test]
fn copies_and_sums_every_length_at_any_place() {
    let (mut source, mut rng) = (random(80_000), Rng::seeded(3));
    let region = Region::anonymous(source.len()).expect("memory");
    region.copy_in(0, &source);
    // SAFETY: nothing writes the vector as long as this value lives.
    let foreign = unsafe { Foreign::new(source.as_mut_ptr(), source.len(), false) }.expect("ours");
    for len in (0..1_400).chain([4_095, 4_096, 8_192, 64_750, 65_536, 79_900]) {
        let (from, front) = (rng.below(64) as usize, rng.below(64) as usize);
        let part = &source[from..from + len];
        let before = checksum::crc32c(0, &source[..front]);
        let expected = ([&source[..front], part].concat(), checksum::crc32c(before, part));
        let check = |what: &str, append: &dyn Fn(&mut Vec<u8>) -> u32| {
            let mut bytes = source[..front].to_vec();
            let sum = append(&mut bytes);
            assert!((bytes, sum) == expected, "{what}: {len} bytes at {from} behind {front}");
        };
        check("slice", &|bytes| append_summed(bytes, part, before));
        check("region", &|bytes| region.append_summed(from, len, bytes, before));
        check("foreign", &|bytes| foreign.append_summed(from, len, bytes, before).expect("ours"));
    }
}

#[test]
fn pieces_of_any_length_have_the_sum_of_the_whole() {
    let (source, mut rng) = (random(40_000), Rng::seeded(4));
    let whole = checksum::crc32c(0, &source);
    for _ in 0..50 {
        let (mut bytes, mut sum) = (Vec::new(), 0);
        while bytes.len() < source.len() {
            let left = source.len() - bytes.len();
            let part = &source[bytes.len()..][..left.min(rng.below(6_000) as usize)];
            sum = append_summed(&mut bytes, part, sum);
        }
        assert_eq!((bytes == source, sum), (true, whole));
    }
}

/// Sums copies of memory that another thread writes. If the routine read a byte twice, the sum
/// could be that of another value than the copy has.
#[test]
fn the_sum_is_that_of_the_copy_while_another_thread_writes() {
    const LEN: usize = 8_192;
    let (region, done) = (Region::anonymous(LEN).expect("memory"), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut value = 0_u64;
            while !done.load(Ordering::Relaxed) {
                value = value.wrapping_add(0x0101_0101_0101_0101);
                for at in (0..LEN).step_by(8) {
                    region.word(at).store(value, Ordering::Relaxed);
                }
            }
        });
        let (mut bytes, mut wrong) = (Vec::new(), 0);
        for _ in 0..2_000 {
            bytes.clear();
            let sum = region.append_summed(0, LEN, &mut bytes, 0);
            wrong += u32::from(sum != checksum::crc32c(0, &bytes));
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(wrong, 0);
    });
}

#[test]
fn memory_that_is_gone_is_an_error_and_appends_nothing() {
    const PAGE: usize = 4_096;
    // Kept in a region, so that its address stays in use behind the page that is taken away.
    let region = Region::sparse(4 * PAGE).expect("memory");
    let base = region.address(0, 4 * PAGE);
    // SAFETY: the memory is reached by copies alone.
    let foreign = unsafe { Foreign::new(base, 4 * PAGE, false) }.expect("mapped");
    // SAFETY: the third page of the region, which the loop below does not expect to be readable.
    unsafe {
        rustix::mm::mprotect(base.add(2 * PAGE).cast(), PAGE, rustix::mm::MprotectFlags::empty())
    }
    .expect("a page can be protected");
    let mut bytes = b"sprat".to_vec();
    for (from, n) in [(0, 3 * PAGE), (PAGE, PAGE + 1), (PAGE, PAGE + 2_048), (2 * PAGE, 1_024)] {
        assert!(foreign.append_summed(from, n, &mut bytes, 0).is_err(), "{n} bytes at {from}");
        assert_eq!(bytes, b"sprat");
    }
    assert!(foreign.append_summed(0, 2 * PAGE, &mut bytes, 0).is_ok());
}
