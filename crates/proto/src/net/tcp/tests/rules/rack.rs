//! Rules of loss detection by time and of the tail loss probe (RFC 8985). The handshake took 100
//! ms, so the reordering window is 25 ms, and the timeout 300 ms.

use super::super::super::connection::Phase;
use super::super::super::rack::Rack;
use super::super::super::rtt::Rtt;
use super::super::super::scoreboard::{Scoreboard, Sent};
use super::super::super::seq::Seq;
use super::*;

/// Returns an end that has seen segments overtake each other: segment 1 before 0.
fn reordered() -> Script {
    let mut script = Script::open(|config| config.min_timeout_ns = SECOND);
    script.set_window(40);
    script.write(2000);
    script.now = script.now.after(TRIP);
    script.input(script.sack(0, &[(1000, 2000)]), &[]);
    assert_eq!(script.acked(2000), []);
    script.start = script.now;
    script
}

/// Lets segments from `place` on leave, and all but the first arrive a round trip later. Returns
/// the time after that at which the first is sent again.
fn wait_of_loss(script: &mut Script, place: u32) -> u64 {
    script.set_window(40);
    script.write(5000);
    script.now = script.now.after(TRIP);
    script.start = script.now;
    let mut out = script.input(script.sack(place, &[(place + 1000, place + 5000)]), &[]);
    out.extend(script.wait(200 * MS));
    assert_eq!(out[0].place, place, "{out:?}");
    let at = out[0].at;
    script.now = script.now.after(TRIP);
    script.acked(place + 5000);
    at
}

/// RFC 8985 4: a peer without SACK gets neither RACK nor a probe.
#[test]
fn rk1_without_sack_there_is_no_probe() {
    let mut script = Script::open(|config| config.sack = false);
    script.write(5000);
    script.now = script.now.after(TRIP);
    script.acked(1000);
    // SRTT 100, RTTVAR 37.5.
    assert_eq!(script.wait(249 * MS), []);
    assert_eq!(places(&script.wait(MS)), [1]);
}

/// RFC 8985 6.2 step 1: the reordering window follows the least round trip of a while.
#[test]
fn rk3_the_least_round_trip_of_a_while_counts() {
    let mut script = Script::open(|_| {});
    for (wait, least) in [(150, 100), (60, 60), (90, 60)] {
        script.write(1000);
        script.now = script.now.after(wait * MS);
        script.acked(script.end);
        assert_eq!(script.connection.send.rtt.least_ns(), Some(least * MS));
    }
    for _ in 0..30 {
        script.now = script.now.after(SECOND);
        script.write(1000);
        script.now = script.now.after(80 * MS);
        script.acked(script.end);
    }
    assert_eq!(script.connection.send.rtt.least_ns(), Some(80 * MS));
}

/// RFC 8985 6.2 step 2: an acknowledgement that comes sooner after a retransmission than any round
/// trip is of the first transmission, and proves nothing about what was sent before it.
#[test]
fn rk4_an_early_acknowledgement_of_a_retransmission_proves_no_loss() {
    let mut script = Script::open(|_| {});
    script.write(6000);
    script.now = script.now.after(TRIP);
    assert_eq!(places(&script.input(script.sack(0, &[(1000, 4000)]), &[])), [0]);
    script.now = script.now.after(MS);
    assert_eq!(script.acked(4000), []);
    assert_eq!(script.wait(50 * MS), []);
}

/// RFC 8985 3.3.2 (1), 6.2 steps 3 to 5: without reordering three reports prove a loss at once.
/// Once segments have overtaken others, the proof waits for a quarter of the least round trip.
#[test]
fn rk5_rk6_rk7_rk10_the_reordering_window_is_a_quarter_of_the_round_trip_once_it_is_needed() {
    let mut script = Script::open(|_| {});
    assert_eq!(wait_of_loss(&mut script, 0), 0);
    let mut script = reordered();
    assert_eq!(wait_of_loss(&mut script, 2000), 25 * MS);
    // One report is no three: the window applies, and its timer finds the loss.
    let mut script = Script::open(|_| {});
    script.write(2000);
    script.now = script.now.after(TRIP);
    script.start = script.now;
    assert_eq!(script.input(script.sack(0, &[(1000, 2000)]), &[]), []);
    assert_eq!(times(&script.wait(50 * MS)), [25]);
}

/// RFC 8985 3.3.2 (2), (3), 6.2 step 4: each round trip with a report of a duplicate makes the
/// window longer, up to SRTT.
#[test]
fn rk8_rk9_duplicates_make_the_reordering_window_longer_up_to_a_round_trip() {
    let mut script = reordered();
    let mut place = 2000;
    for quarters in [1, 2, 3, 4, 4, 4] {
        assert_eq!(wait_of_loss(&mut script, place), quarters * TRIP / 4);
        place += 5000;
        // The peer has received the segment twice.
        script.input(script.sack(place, &[(place - 5000, place - 4000)]), &[]);
        script.write(1000);
        script.now = script.now.after(TRIP);
        place += 1000;
        script.acked(place);
    }
    assert!(script.connection.send.rtt.smoothed_ns().is_some_and(|srtt| srtt < TRIP + 5 * MS));
}

/// RFC 8985 6.3: the timeout proves the first segment lost, and those sent more than a round trip
/// and the reordering window before.
#[test]
fn rk11_a_timeout_proves_lost_what_is_old_enough() {
    let at = |ms| Instant::from_ns(ms * MS);
    let (mut board, mut rack, mut rtt) = (Scoreboard::default(), Rack::default(), Rtt::default());
    rtt.measure(at(100), TRIP);
    rack.delivered(at(100), &Sent::new(Seq(0), 10, at(0)), false, &rtt);
    for (n, ms) in [100, 150, 250, 299].into_iter().enumerate() {
        board.push(Sent::new(Seq(10 + 10 * n as u32), 10, at(ms)));
    }
    assert_eq!(rack.timeout(at(300), &mut board, &rtt, Seq(10)), 20);
    assert_eq!(board.first_lost().map(|sent| sent.seq), Some(Seq(10)));
    board.sent_again(Seq(10), 10, at(300));
    assert_eq!(rack.timeout(at(301), &mut board, &rtt, Seq(10)), 10, "the first, always");
}

/// RFC 8985 7.2: the probe leaves two round trips after the last transmission, later if one segment
/// is in flight, and not later than the timeout would be.
#[test]
fn rk12_rk13_rk15_the_probe_waits_for_two_round_trips_of_silence() {
    let mut script = Script::open(|_| {});
    script.write(2000);
    let out = script.wait(250 * MS);
    assert_eq!((times(&out), places(&out)), (alloc::vec![200], alloc::vec![1]));
    let mut script = Script::open(|_| {});
    script.write(2000);
    script.wait(50 * MS);
    script.write(1000);
    let out = script.wait(220 * MS);
    assert_eq!((times(&out), places(&out)), (alloc::vec![250], alloc::vec![2]));
    let mut script = Script::open(|_| {});
    script.write(1000);
    let out = script.wait(310 * MS);
    assert_eq!((times(&out), places(&out)), (alloc::vec![300], alloc::vec![0]));
    // New data that the congestion window holds back is a better probe.
    let mut script = Script::open(|_| {});
    script.set_window(2);
    script.write(5000);
    let out = script.wait(250 * MS);
    assert_eq!((times(&out), places(&out)), (alloc::vec![200], alloc::vec![2]));
    assert_eq!(script.connection.send.board.segments().len(), 3);
}

/// RFC 8985 7.3: after a probe the timeout runs anew, and no other probe leaves before the fate of
/// the first is known and a round trip was measured.
#[test]
fn rk14_rk16_a_second_probe_needs_a_measurement() {
    let mut script = Script::open(|_| {});
    script.write(2000);
    assert_eq!(times(&script.wait(450 * MS)), [200]);
    assert_eq!(times(&script.wait(100 * MS))[0], 500, "the timeout");
    let mut script = Script::open(|_| {});
    script.write(2000);
    assert_eq!(times(&script.wait(220 * MS)), [200]);
    // What was sent again is not measured. A duplicate shows that the probe was needless.
    script.acked(2000);
    script.acked(2000);
    script.start = script.now;
    script.write(2000);
    assert_eq!(times(&script.wait(310 * MS)), [300], "no probe");
    script.acked(4000);
    script.write(1000);
    script.now = script.now.after(TRIP);
    script.acked(5000);
    script.start = script.now;
    script.write(2000);
    assert_eq!(times(&script.wait(250 * MS)).len(), 1, "a probe");
}

/// RFC 8985 7.4.2: a probe that repaired a loss by itself closes the window. If the peer reports a
/// duplicate, nothing was lost.
#[test]
fn rk17_a_probe_that_repaired_a_loss_closes_the_window() {
    for is_duplicate in [false, true] {
        let mut script = Script::open(|_| {});
        script.write(2000);
        script.wait(250 * MS);
        script.acked(2000);
        assert_eq!(script.threshold(), u32::MAX);
        if is_duplicate {
            script.input(script.sack(2000, &[(1000, 2000)]), &[]);
        }
        script.write(1000);
        script.acked(3000);
        assert_eq!(script.threshold() < u32::MAX, !is_duplicate);
    }
}

/// RFC 8985 8: while the reordering timer runs, no probe leaves.
#[test]
fn rk18_the_reordering_timer_stops_the_probe() {
    let mut script = Script::open(|_| {});
    script.write(3000);
    script.now = script.now.after(190 * MS);
    assert_eq!(script.input(script.sack(0, &[(1000, 2000)]), &[]), []);
    assert_eq!(script.wait(20 * MS), []);
    let out = script.wait(20 * MS);
    assert_eq!(places(&out), [0], "{out:?}");
    assert!(matches!(script.connection.send.phase, Phase::Recovery { .. }));
}
