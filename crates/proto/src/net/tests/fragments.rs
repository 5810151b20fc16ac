//! Fragments: in any order, twice, overlapping, without end.

use super::*;
use crate::net::reassembly::{Key, Part, Reassembly};

fn key(ident: u32) -> Key {
    Key { from: v4(2).into(), to: v4(1).into(), protocol: 17, ident }
}

fn part(bytes: &[u8], start: usize, end: usize) -> Part<'_> {
    Part { offset: start, more: end < bytes.len(), bytes: &bytes[start..end] }
}

fn reassembly(bytes: usize) -> Reassembly {
    Reassembly::new(&Config { reassembly_bytes: bytes, ..Config::default() })
}

/// Random cuts in random order, with fragments that come twice, give the datagram back, once.
#[test]
fn fragments_in_any_order_become_the_datagram() {
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
        let (mut reassembly, mut stats) = (reassembly(1 << 20), Stats::default());
        let whole = parts.iter().find_map(|&(start, end)| {
            reassembly.input(Instant::ZERO, key(1), part(&bytes, start, end), &mut stats)
        });
        assert_eq!(whole.as_deref(), Some(&bytes[..]), "seed {seed}");
        assert_eq!((stats.reassembled, stats.drop_fragment), (1, 0));
    }
}

#[test]
fn an_overlap_spoils_the_datagram_for_good() {
    let bytes: Vec<u8> = (0..100).collect();
    let other = [9; 100];
    let good = [(0, 40), (40, 80), (80, 100)];
    let bad = [
        part(&other, 0, 40),        // the same place, other octets
        part(&bytes, 32, 48),       // across two
        part(&bytes, 8, 16),        // within one
        part(&bytes[..64], 40, 64), // an end before the end
        Part { offset: 104, more: false, bytes: &other[..8] },
    ];
    for (i, bad) in bad.into_iter().enumerate() {
        let (mut reassembly, mut stats) = (reassembly(1 << 20), Stats::default());
        let mut parts = [good[0], good[2]].map(|(start, end)| part(&bytes, start, end)).to_vec();
        parts.push(bad);
        parts.extend(good.map(|(start, end)| part(&bytes, start, end)));
        let mut whole =
            parts.iter().map(|p| reassembly.input(Instant::ZERO, key(1), *p, &mut stats));
        assert!(whole.all(|whole| whole.is_none()), "case {i}");
        assert_eq!(stats.drop_fragment, 6, "case {i}");
    }
}

#[test]
fn no_fragment_is_empty_odd_or_beyond_the_end() {
    let (mut reassembly, mut stats) = (reassembly(1 << 20), Stats::default());
    let bytes = [1; 64];
    let bad = [
        Part { offset: 0, more: true, bytes: &[] },
        Part { offset: 8, more: false, bytes: &[] },
        Part { offset: 0, more: true, bytes: &bytes[..63] },
        Part { offset: 65_528, more: false, bytes: &bytes[..8] },
    ];
    for part in bad {
        assert_eq!(reassembly.input(Instant::ZERO, key(1), part, &mut stats), None);
    }
    assert_eq!((stats.drop_fragment, reassembly.deadline()), (4, Instant::NEVER));
}

#[test]
fn fragments_that_wait_are_limited_in_octets_in_number_and_in_time() {
    let (mut reassembly, mut stats) = (reassembly(10_000), Stats::default());
    let bytes = [7; 3000];
    for ident in 0..10 {
        reassembly.input(
            Instant::from_ns(u64::from(ident)),
            key(ident),
            part(&bytes, 0, 2000),
            &mut stats,
        );
    }
    assert_eq!(stats.drop_evicted, 6);
    // The newest four are still there; a far offset costs what came, not what it claims.
    let far = Part { offset: 60_000, more: true, bytes: &bytes[..8] };
    assert_eq!(reassembly.input(Instant::ZERO, key(99), far, &mut stats), None);
    assert_eq!(stats.drop_evicted, 6);
    let whole = reassembly.input(Instant::ZERO, key(9), part(&bytes, 2000, 3000), &mut stats);
    assert_eq!(whole.as_deref(), Some(&bytes[..]));
    reassembly.tick(Instant::from_ns(30 * SECOND + 7), &mut stats);
    assert_eq!(stats.drop_incomplete, 2);
    for ident in 100..500 {
        let tiny = Part { offset: 8, more: true, bytes: &bytes[..8] };
        reassembly.input(Instant::from_ns(SECOND), key(ident), tiny, &mut stats);
    }
    reassembly.tick(Instant::NEVER, &mut stats);
    assert_eq!(reassembly.deadline(), Instant::NEVER);
    assert!(stats.drop_evicted > 300, "{stats:?}");
}

#[test]
fn fragments_that_never_complete_are_given_up_by_the_stack() {
    let mut link = Link::new(1500);
    let header =
        crate::wire::ipv4::Ipv4 { more: true, dont_fragment: false, ..paths::v4(v4(2), v4(1)) };
    let mut frame = basic::ip_frame(v4(2), v4(1), 17, &[0; 64]);
    frame[HEADER..HEADER + 20].copy_from_slice(&header.emit(64));
    link.inject(0, frame);
    link.pass(29 * SECOND);
    assert_eq!(counted(link.ports[0].stack(), "drop_incomplete"), 0);
    link.pass(2 * SECOND);
    assert_eq!(counted(link.ports[0].stack(), "drop_incomplete"), 1);
}
