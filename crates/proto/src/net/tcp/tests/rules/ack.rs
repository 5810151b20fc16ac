//! Rules of the acknowledgements that a receiver sends (RFC 5681 4.2).

use super::*;

/// RFC 5681 3.2, 4.2: a segment behind a gap is acknowledged at once, and so is one that fills a
/// part of the gap.
#[test]
fn cc13_cc14_segments_around_a_gap_are_acknowledged_at_once() {
    for sack in [false, true] {
        let mut script = Script::open(|config| config.sack = sack);
        for place in [1000, 3000, 2000] {
            let out = script.data_at(place, 1000);
            assert!(is_ack(&out) && out[0].ack == 0, "{out:?}");
        }
        let out = script.data_at(5000, 1000);
        assert!(is_ack(&out) && out[0].ack == 0, "{out:?}");
        let out = script.data(1000);
        assert!(is_ack(&out) && out[0].ack == 4000, "{out:?}");
        script.peer = 4000;
        let out = script.data(500);
        assert!(is_ack(&out) && out[0].ack == 4500, "a part of the gap: {out:?}");
    }
}

/// RFC 5681 4.2: a segment causes one acknowledgement at most, apart from news of the window.
#[test]
fn cc23_a_segment_causes_one_acknowledgement_at_most() {
    for seed in 0..50 {
        let mut rng = Rng::seeded(seed);
        let sack = rng.chance(500_000);
        let mut script = Script::open(|config| config.sack = sack);
        let (mut segments, mut acks) = (0, 0);
        for _ in 0..300 {
            if rng.chance(100_000) {
                acks += script.wait(SECOND).len();
            }
            let burst = 1 + rng.below(4);
            for _ in 0..burst {
                let place = 100 * rng.below(300) as u32;
                let seq = (PEER + 1).wrapping_add(place);
                let tcp = Tcp { seq, ..script.head(Flags::ACK) };
                script.take(tcp, &[1; 100]);
            }
            segments += burst;
            acks += script.output().len();
            assert!(acks as u64 <= segments, "seed {seed}: {acks} for {segments}");
        }
    }
}
