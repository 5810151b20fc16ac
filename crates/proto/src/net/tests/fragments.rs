//! Tests of the reassembly of IP fragments: in any order, duplicated, overlapping, incomplete.

use core::net::Ipv6Addr;

use super::*;
use crate::net::ip::output::udp4_header;
use crate::net::ip::reassembly::{DatagramKey, Fragment, Reassembly};
use crate::wire::ipv4::Ecn;

fn key(ident: u32) -> DatagramKey {
    DatagramKey { from: v4(2).into(), to: v4(1).into(), protocol: 17, ident }
}

fn fragment(bytes: &[u8], start: usize, end: usize) -> Fragment<'_> {
    Fragment { offset: start, more: end < bytes.len(), ecn: Ecn::NotEct, bytes: &bytes[start..end] }
}

fn reassembly(bytes: usize) -> Reassembly {
    Reassembly::new(&StackOptions { max_reassembly_bytes: bytes, ..StackOptions::default() })
}

/// Fragments of random sizes in random order, some of them duplicated, give the datagram once.
#[test]
fn fragments_in_any_order_are_reassembled_once() {
    for seed in 0..300 {
        let mut rng = Rng::seeded(seed);
        let len = 1 + rng.below(4000) as usize;
        let mut bytes = alloc::vec![0; len];
        rng.fill(&mut bytes);
        let mut cuts = alloc::vec![0, len];
        cuts.extend((0..rng.below(20)).map(|_| rng.below(len as u64) as usize / 8 * 8));
        cuts.sort_unstable();
        cuts.dedup();
        let mut parts: Vec<_> = cuts.windows(2).map(|w| (w[0], w[1])).collect();
        let once = parts.len();
        for _ in 0..rng.below(5) {
            parts.push(parts[rng.below(once as u64) as usize]);
        }
        for i in (1..parts.len()).rev() {
            parts.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let (mut reassembly, mut counters) = (reassembly(1 << 20), StackCounters::default());
        let whole = parts.iter().find_map(|&(start, end)| {
            reassembly.input(Instant::ZERO, key(1), fragment(&bytes, start, end), &mut counters)
        });
        assert_eq!(whole, Some((bytes.clone(), Ecn::NotEct)), "seed {seed}");
        assert_eq!((counters.reassembled, counters.drop_fragment), (1, 0));
    }
}

#[test]
fn an_overlap_invalidates_the_datagram() {
    let bytes: Vec<u8> = (0..100).collect();
    let other = [9; 100];
    let good = [(0, 40), (40, 80), (80, 100)];
    let bad = [
        fragment(&other, 0, 40),        // the range of the first, other bytes
        fragment(&bytes, 32, 48),       // overlaps two
        fragment(&bytes, 8, 16),        // lies within one
        fragment(&bytes[..64], 40, 64), // a last fragment that is not the end
        Fragment { offset: 104, more: false, ecn: Ecn::NotEct, bytes: &other[..8] },
    ];
    for (i, bad) in bad.into_iter().enumerate() {
        let (mut reassembly, mut counters) = (reassembly(1 << 20), StackCounters::default());
        let mut parts =
            [good[0], good[2]].map(|(start, end)| fragment(&bytes, start, end)).to_vec();
        parts.push(bad);
        parts.extend(good.map(|(start, end)| fragment(&bytes, start, end)));
        let mut whole =
            parts.iter().map(|p| reassembly.input(Instant::ZERO, key(1), *p, &mut counters));
        assert!(whole.all(|whole| whole.is_none()), "case {i}");
        assert_eq!(counters.drop_fragment, 6, "case {i}");
    }
}

#[test]
fn fragments_that_are_empty_unaligned_or_beyond_the_longest_packet_are_dropped() {
    let (mut reassembly, mut counters) = (reassembly(1 << 20), StackCounters::default());
    let bytes = [1; 64];
    let bad = [
        Fragment { offset: 0, more: true, ecn: Ecn::NotEct, bytes: &[] },
        Fragment { offset: 8, more: false, ecn: Ecn::NotEct, bytes: &[] },
        Fragment { offset: 0, more: true, ecn: Ecn::NotEct, bytes: &bytes[..63] },
        Fragment { offset: 65_528, more: false, ecn: Ecn::NotEct, bytes: &bytes[..8] },
    ];
    for part in bad {
        assert_eq!(reassembly.input(Instant::ZERO, key(1), part, &mut counters), None);
    }
    assert_eq!((counters.drop_fragment, reassembly.deadline()), (4, Instant::NEVER));
}

#[test]
fn incomplete_datagrams_are_limited_in_bytes_number_and_time() {
    let (mut reassembly, mut counters) = (reassembly(10_000), StackCounters::default());
    let bytes = [7; 3000];
    for ident in 0..10 {
        reassembly.input(
            Instant::from_ns(u64::from(ident)),
            key(ident),
            fragment(&bytes, 0, 2000),
            &mut counters,
        );
    }
    assert_eq!(counters.drop_evicted, 6);
    // The newest four remain. A fragment is charged for its bytes, not for its offset.
    let far = Fragment { offset: 60_000, more: true, ecn: Ecn::NotEct, bytes: &bytes[..8] };
    assert_eq!(reassembly.input(Instant::ZERO, key(99), far, &mut counters), None);
    assert_eq!(counters.drop_evicted, 6);
    let whole =
        reassembly.input(Instant::ZERO, key(9), fragment(&bytes, 2000, 3000), &mut counters);
    assert_eq!(whole, Some((bytes.to_vec(), Ecn::NotEct)));
    reassembly.tick(Instant::from_ns(30 * SECOND + 7), &mut counters);
    assert_eq!(counters.drop_incomplete, 2);
    for ident in 100..500 {
        let tiny = Fragment { offset: 8, more: true, ecn: Ecn::NotEct, bytes: &bytes[..8] };
        reassembly.input(Instant::from_ns(SECOND), key(ident), tiny, &mut counters);
    }
    reassembly.tick(Instant::NEVER, &mut counters);
    assert_eq!(reassembly.deadline(), Instant::NEVER);
    assert!(counters.drop_evicted > 300, "{counters:?}");
}

#[test]
fn the_stack_drops_datagrams_that_stay_incomplete() {
    let mut net = Network::new(1500);
    let header =
        crate::wire::ipv4::Ipv4 { more: true, dont_fragment: false, ..udp4_header(v4(2), v4(1)) };
    let mut frame = ip_frame(v4(2), v4(1), 17, &[0; 64]);
    frame[HEADER..HEADER + 20].copy_from_slice(&header.emit(64));
    net.inject(0, frame);
    net.run_for(29 * SECOND);
    assert_eq!(counted(net.stack(0), "drop_incomplete"), 0);
    net.run_for(2 * SECOND);
    assert_eq!(counted(net.stack(0), "drop_incomplete"), 1);
}

/// RFC 6946 section 4: an atomic fragment is a datagram of its own. The bug: it joined the
/// incomplete datagram with the same identification, and both were dropped.
#[test]
fn an_atomic_fragment_leaves_an_incomplete_datagram_alone() {
    let (mut reassembly, mut counters) = (reassembly(1 << 20), StackCounters::default());
    let key = DatagramKey { from: Ipv6Addr::LOCALHOST.into(), ..key(1) };
    let bytes = [1; 64];
    let mut input = |part| reassembly.input(Instant::ZERO, key, part, &mut counters);
    assert_eq!(input(fragment(&bytes, 0, 32)), None);
    assert_eq!(input(fragment(&[2; 16], 0, 16)), Some(([2; 16].into(), Ecn::NotEct)));
    assert_eq!(input(fragment(&bytes, 32, 64)), Some((bytes.into(), Ecn::NotEct)));
}

/// RFC 791: the length of an IPv4 packet, header included, has 16 bits. The bug: fragments could
/// form a longer packet.
#[test]
fn a_reassembled_ipv4_packet_is_no_longer_than_its_length_field_allows() {
    let bytes = [1; 65_535];
    for (len, fits) in [(65_515, true), (65_516, false)] {
        let (mut reassembly, mut counters) = (reassembly(1 << 20), StackCounters::default());
        let mut input = |part| reassembly.input(Instant::ZERO, key(1), part, &mut counters);
        assert_eq!(input(fragment(&bytes[..len], 0, 65_000)), None);
        assert_eq!(input(fragment(&bytes[..len], 65_000, len)).is_some(), fits);
    }
}
