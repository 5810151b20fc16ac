//! Rules of congestion control (RFC 5681).

use super::*;

/// RFC 5681 2, 3: neither the congestion window nor that of the peer is exceeded.
#[test]
fn cc1_tm19_both_windows_limit_what_is_sent() {
    let mut script = Script::open(|_| {});
    assert_eq!(script.write(50_000).len(), 10);
    assert_eq!(script.wait(50 * MS), []);
    assert_eq!(places(&script.acked(2000)), [10, 11, 12, 13], "two that left, and two more");
    let mut script = Script::open(|_| {});
    script.window = 3500;
    script.input(script.head(Flags::ACK), &[]);
    assert_eq!(places(&script.write(50_000)), [0, 1, 2]);
    assert_eq!(places(&script.acked(1000)), [3]);
}

/// RFC 6928, which replaces the window of RFC 5681 3.1: ten segments, and not much more than 14,600
/// bytes. The answer to a SYN opens it no further.
#[test]
fn cc3_cc4_the_first_window_has_ten_segments() {
    for (mss, wanted) in [(536, 5360), (1000, 10_000), (1460, 14_600), (8960, 17_920)] {
        let mut script = Script::connecting(|_| {});
        (script.path.mss, script.path.link_mss) = (8960, 8960);
        script.output();
        let mut answer = script.answer();
        answer.options.mss = Some(mss);
        script.input(answer, &[]);
        assert_eq!(script.window(), wanted, "{mss}");
        let sent: u32 = script.write(50_000).iter().map(|out| out.len).sum();
        assert_eq!(sent, wanted / u32::from(mss) * u32::from(mss));
    }
}

/// RFC 5681 3.1: after a SYN was lost the window is one segment.
#[test]
fn cc5_a_lost_syn_leaves_a_window_of_one_segment() {
    let mut script = Script::connecting(|_| {});
    script.output();
    assert_eq!(script.wait(1500 * MS).len(), 1);
    script.input(script.answer(), &[]);
    assert_eq!(script.write(5000).len(), 1);
}

/// RFC 5681 3.1: a path that carries only shorter segments gets no burst of them.
#[test]
fn cc6_shorter_segments_make_the_window_smaller() {
    let mut script = Script::open(|_| {});
    script.set_window(40);
    script.write(1000);
    script.acked(1000);
    script.path.mss = 500;
    assert_eq!(script.write(100_000).len(), 40);
    assert_eq!(script.window(), 20_000);
}

/// RFC 5681 3.1: slow start has no threshold at first, and opens the window by the bytes that are
/// acknowledged.
#[test]
fn cc2_cc7_cc8_slow_start_opens_the_window_by_what_is_acknowledged() {
    let mut script = Script::open(|_| {});
    assert_eq!(script.threshold(), u32::MAX);
    script.write(100_000);
    for n in 1..=10 {
        assert_eq!(script.acked(n * MSS).len(), 2);
        assert_eq!(script.window(), (10 + n) * MSS);
    }
}

/// RFC 5681 3.1: above the threshold the window opens by one segment a round trip.
#[test]
fn cc2_cc9_congestion_avoidance_opens_the_window_by_a_segment_a_round_trip() {
    let mut script = Script::open(|_| {});
    script.connection.send.congestion.reduce(20_000);
    assert_eq!(script.threshold(), 10_000);
    script.write(500_000);
    let mut at = 0;
    for window in 10..20 {
        assert_eq!(script.window(), window * MSS);
        for _ in 0..window {
            at += MSS;
            script.acked(at);
        }
    }
    assert_eq!(script.window(), 20 * MSS);
}

/// RFC 5681 3.1: the timeout leaves a window of one segment, and a threshold of half of what was in
/// flight, which stays while the same data is lost again.
#[test]
fn cc11_cc12_a_timeout_leaves_one_segment_and_half_of_the_flight() {
    let mut script = Script::open(|config| config.sack = false);
    script.set_window(30);
    script.write(8000);
    assert_eq!(places(&script.wait(400 * MS)), [0]);
    assert_eq!((script.window(), script.threshold()), (1000, 4000));
    assert_eq!(places(&script.wait(SECOND)), [0]);
    assert_eq!((script.window(), script.threshold()), (1000, 4000));
    assert_eq!(places(&script.acked(1000)), [1, 2], "slow start");
    let mut script = Script::open(|config| config.sack = false);
    script.write(3000);
    script.wait(400 * MS);
    assert_eq!(script.threshold(), 2000, "two segments at least");
}

/// RFC 5681 3.2, RFC 6582 3.2: fast retransmit and fast recovery, without SACK.
#[test]
fn cc15_cc16_cc18_cc19_cc20_nr5_three_duplicates_prove_a_loss() {
    let mut script = Script::open(|config| config.sack = false);
    assert_eq!(script.write(50_000).len(), 10);
    script.now = script.now.after(TRIP);
    // The first two let new segments out, and the window stays.
    assert_eq!(places(&script.acked(0)), [10]);
    assert_eq!(places(&script.acked(0)), [11]);
    assert_eq!(script.window(), 10_000);
    let out = script.acked(0);
    assert_eq!(places(&out)[0], 0, "{out:?}");
    // Half of the ten segments: the two that the duplicates let out do not count.
    assert_eq!(script.threshold(), 5000);
    let new: Vec<_> = (0..8).flat_map(|_| places(&script.acked(0))).collect();
    assert!((2..=5).contains(&new.len()), "{new:?}");
    assert!(new.windows(2).all(|n| n[1] == n[0] + 1) && new[0] == 12, "{new:?}");
    script.acked(12_000);
    assert_eq!(script.window(), 5000);
    assert_eq!(script.connection.send.phase, connection::Phase::Open);
}

/// RFC 5681 3.2: a duplicate without news of SACK lets nothing out.
#[test]
fn cc17_with_sack_a_duplicate_without_news_lets_nothing_out() {
    let mut script = Script::open(|_| {});
    script.write(50_000);
    script.now = script.now.after(TRIP);
    assert_eq!(script.acked(0), []);
    assert_eq!(places(&script.input(script.sack(0, &[(1000, 2000)]), &[])), [10]);
    assert_eq!(script.input(script.sack(0, &[(1000, 2000)]), &[]), []);
}

/// RFC 5681 4.1: after an idle time the window is not more than the first one.
#[test]
fn cc24_an_idle_time_takes_a_large_window_away() {
    for (idle, wanted) in [(100 * MS, 40), (2 * SECOND, 10)] {
        let mut script = Script::open(|_| {});
        script.set_window(40);
        script.write(1000);
        script.acked(1000);
        script.now = script.now.after(idle);
        assert_eq!(script.write(100_000).len(), wanted);
    }
}
