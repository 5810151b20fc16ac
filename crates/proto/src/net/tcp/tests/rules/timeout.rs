//! Rules of the retransmission timeout (RFC 6298). The scripts have no SACK, so that no probe of
//! RFC 8985 comes first.

use super::*;

fn open() -> Script {
    Script::open(|config| config.sack = false)
}

fn timeout(script: &Script) -> u64 {
    script.connection.send.rtt.timeout_ns(0)
}

/// RFC 6298 2.1, 5.1: a second before the first measurement.
#[test]
fn rt1_the_first_timeout_is_a_second() {
    let mut script = Script::connecting(|_| {});
    script.output();
    assert_eq!(times(&script.wait(2 * SECOND)), [1000]);
}

/// RFC 6298 2.2: after a handshake of 100 ms, 100 + 4 × 50.
#[test]
fn rt2_the_first_measurement_makes_the_timeout_three_round_trips() {
    let mut script = open();
    script.write(1000);
    assert_eq!(times(&script.wait(500 * MS)), [300]);
}

/// RFC 6298 2.3: RTTVAR = 3/4 × 50 + 1/4 × 100 = 62.5, and it comes before SRTT = 112.5.
#[test]
fn tm18_rt3_rt7_each_round_trip_makes_the_timeout_better() {
    let mut script = open();
    script.write(1000);
    script.now = script.now.after(200 * MS);
    script.acked(1000);
    assert_eq!(timeout(&script), 362_500 * US);
    script.write(1000);
    script.now = script.now.after(200 * MS);
    script.acked(2000);
    // RTTVAR = 3/4 × 62.5 + 1/4 × 87.5 = 68.75, SRTT = 7/8 × 112.5 + 1/8 × 200 = 123.4375.
    assert_eq!(timeout(&script), 398_437_500);
}

/// RFC 6298 2.5: the longest timeout is 60 seconds at least.
#[test]
fn rt5_the_longest_timeout_is_two_minutes() {
    let mut script = open();
    script.config.user_timeout_ns = 100_000 * SECOND;
    script.write(1000);
    let at = times(&script.wait(3000 * SECOND));
    let waits: Vec<_> = at.windows(2).map(|at| at[1] - at[0]).collect();
    assert_eq!(waits.last(), Some(&120_000), "{waits:?}");
}

/// RFC 6298 3: what was sent again is not measured, be it acknowledged soon or late.
#[test]
fn tm18_rt6_a_segment_that_was_sent_again_is_not_measured() {
    for after in [1, 250] {
        let mut script = open();
        script.write(1000);
        assert_eq!(script.wait(300 * MS).len(), 1);
        script.now = script.now.after(after * MS);
        script.acked(1000);
        assert_eq!(script.connection.send.rtt.smoothed_ns(), Some(TRIP));
    }
    // Timestamps tell which transmission was acknowledged.
    let mut script = Script::open(|config| (config.sack, config.timestamps) = (false, true));
    script.write(900);
    script.wait(300 * MS);
    script.now = script.now.after(20 * MS);
    script.acked(900);
    assert_eq!(script.connection.send.rtt.smoothed_ns(), Some(90 * MS), "7/8 × 100 + 1/8 × 20");
}

/// RFC 6298 4: the variance counts as the granularity of the clock at least.
#[test]
fn rt8_a_path_without_variance_leaves_the_granularity_of_the_clock() {
    let mut script = open();
    for n in 1..=200 {
        script.write(1000);
        script.now = script.now.after(TRIP);
        script.acked(n * MSS);
    }
    assert!((TRIP + US..TRIP + 2 * US).contains(&timeout(&script)), "{}", timeout(&script));
}

/// RFC 6298 5.1: the timer runs from the first segment on, and no other segment restarts it.
#[test]
fn rt9_rt10_the_timer_starts_with_the_first_segment() {
    let mut script = open();
    script.write(1000);
    script.wait(200 * MS);
    script.write(1000);
    let out = script.wait(250 * MS);
    assert_eq!((times(&out), places(&out)), (alloc::vec![300], alloc::vec![0]));
}

/// RFC 6298 5.2: nothing in flight, no timer.
#[test]
fn rt11_no_timer_runs_if_all_is_acknowledged() {
    let mut script = open();
    script.write(3000);
    script.acked(2000);
    assert!(script.connection.deadline().is_some());
    script.acked(3000);
    assert_eq!(script.connection.deadline(), None);
}

/// RFC 6298 5.3: an acknowledgement of new data starts the timer anew, and a duplicate does not.
#[test]
fn rt12_new_data_acknowledged_starts_the_timer_anew() {
    let mut script = open();
    script.write(3000);
    script.now = script.now.after(200 * MS);
    script.acked(1000);
    script.now = script.now.after(300 * MS);
    script.acked(1000);
    let out = script.wait(100 * MS);
    // 200 + 362.5: of RTTVAR 62.5 and SRTT 112.5.
    assert_eq!((times(&out), places(&out)), (alloc::vec![562], alloc::vec![1]));
}

/// RFC 6298 5.4, 5.5, 5.6: the earliest segment is sent again, and the timeout doubles.
#[test]
fn rt13_rt14_the_timeout_sends_the_first_segment_and_doubles() {
    let mut script = open();
    script.write(5000);
    let out = script.wait(5 * SECOND);
    assert_eq!(times(&out), [300, 900, 2100, 4500]);
    assert_eq!(places(&out), [0; 4]);
}

/// RFC 6298 5.7: after a SYN was lost the first timeout of data is three seconds.
#[test]
fn rt15_a_lost_syn_makes_the_first_timeout_of_data_three_seconds() {
    let mut script = Script::connecting(|config| config.sack = false);
    script.output();
    script.wait(1500 * MS);
    script.input(script.answer(), &[]);
    script.start = script.now;
    script.write(1000);
    assert_eq!(times(&script.wait(5 * SECOND)), [3000]);
}
