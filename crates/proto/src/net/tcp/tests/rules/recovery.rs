//! Rules of loss recovery: NewReno (RFC 6582), SACK (RFC 6675), proportional rate reduction
//! (RFC 6937).

use super::super::super::connection::Phase;
use super::*;

/// Lets `count` duplicate acknowledgements arrive, and returns the places of what they let out.
fn duplicates(script: &mut Script, place: u32, count: usize) -> Vec<u32> {
    (0..count).flat_map(|_| places(&script.acked(place))).collect()
}

fn newreno() -> Script {
    Script::open(|config| config.sack = false)
}

/// RFC 6582 3.2 steps 1 and 2: what a recovery has sent again may arrive twice, and duplicates of
/// nothing newer than the recovery prove no loss.
#[test]
fn nr1_nr2_duplicates_after_a_recovery_prove_nothing_until_new_data_is_acknowledged() {
    let mut script = newreno();
    script.write(10_000);
    assert_eq!(duplicates(&mut script, 0, 3), [0]);
    script.acked(10_000);
    assert_eq!(script.connection.send.phase, Phase::Open);
    let threshold = script.threshold();
    assert_eq!(script.write(5000).len(), 5);
    assert_eq!(duplicates(&mut script, 10_000, 5), []);
    assert_eq!(script.threshold(), threshold);
    script.acked(11_000);
    assert_eq!(duplicates(&mut script, 11_000, 3), [11]);
}

/// RFC 6582 3.2 step 3: a partial acknowledgement shows the next loss, which is sent again at once,
/// and starts the timer anew.
#[test]
fn nr3_nr4_a_partial_acknowledgement_shows_the_next_loss() {
    let mut script = newreno();
    script.write(10_000);
    script.now = script.now.after(TRIP);
    assert_eq!(duplicates(&mut script, 0, 9), [0]);
    script.now = script.now.after(TRIP);
    assert_eq!(places(&script.acked(3000)), [3]);
    assert!(matches!(script.connection.send.phase, Phase::Recovery { .. }));
    let timeout = script.connection.send.rtt.timeout_ns(script.config.min_timeout_ns);
    assert_eq!(script.connection.deadline(), Some(script.now.after(timeout)));
    script.now = script.now.after(TRIP);
    assert_eq!(places(&script.acked(6000)), [6]);
    script.acked(10_000);
    assert_eq!(script.connection.send.phase, Phase::Open);
}

/// RFC 6582 3.2 step 4: a timeout ends the recovery, and duplicates of what was in flight begin
/// none.
#[test]
fn nr6_nr7_duplicates_after_a_timeout_begin_no_recovery() {
    let mut script = newreno();
    script.write(10_000);
    duplicates(&mut script, 0, 3);
    assert!(matches!(script.connection.send.phase, Phase::Recovery { .. }));
    assert_eq!(places(&script.wait(400 * MS)), [0]);
    assert_eq!(script.connection.send.phase, Phase::Timeout);
    let threshold = script.threshold();
    script.acked(2000);
    duplicates(&mut script, 2000, 6);
    assert_eq!(script.connection.send.phase, Phase::Timeout);
    script.acked(10_000);
    script.write(5000);
    assert_eq!(duplicates(&mut script, 10_000, 6), []);
    assert_eq!(script.connection.send.phase, Phase::Open);
    assert_eq!(script.threshold(), threshold);
    script.acked(11_000);
    assert_eq!(duplicates(&mut script, 11_000, 3), [11]);
}

/// RFC 6675 3, 4: data stays until it is acknowledged, and a peer that drops what it had reported
/// gets it again.
#[test]
fn sk1_data_that_is_reported_stays_until_it_is_acknowledged() {
    let mut script = Script::open(|_| {});
    script.write(4000);
    script.input(script.sack(0, &[(1000, 4000)]), &[]);
    script.acked(1000);
    let mut again = Vec::new();
    let mut at = 1000;
    while at < 4000 {
        let out = script.wait(10 * SECOND);
        assert!(!out.is_empty());
        again.extend(places(&out));
        at += 1000;
        script.acked(at);
    }
    again.dedup();
    assert!(again.contains(&1), "{again:?}");
    assert!(script.connection.send.board.is_empty() && script.connection.error().is_none());
}

/// RFC 6675 4, 5: three segments reported behind a gap begin a recovery, in which the lost segments
/// leave in their order, then new data, and nothing that the peer has.
#[test]
fn sk2_sk3_sk4_sk8_sk10_what_is_lost_leaves_first_and_then_new_data() {
    let mut script = Script::open(|_| {});
    script.write(40_000);
    script.now = script.now.after(TRIP);
    let mut step = |ack: u32, end: u32| {
        script.now = script.now.after(MS);
        let out = places(&script.input(script.sack(ack * MSS, &[(5000, end * MSS)]), &[]));
        let board = &script.connection.send.board;
        (out, script.threshold(), board.pipe(), board.lost())
    };
    // Limited transmit (5, step 3).
    assert_eq!(step(0, 6).0, [10]);
    assert_eq!(step(0, 7).0, [11]);
    // 12 were sent, 3 are reported, 5 are lost, and one of those was sent again.
    assert_eq!(step(0, 8), (alloc::vec![0], 5000, 5000, 4000));
    let mut sent = Vec::new();
    for end in 9..=10 {
        sent.extend(step(0, end).0);
    }
    script.now = script.now.after(TRIP - 5 * MS);
    let mut step = |ack: u32, end: u32| {
        script.now = script.now.after(MS);
        places(&script.input(script.sack(ack * MSS, &[(5000, end * MSS)]), &[]))
    };
    for (ack, end) in [(0, 11), (0, 12), (1, 12), (2, 12), (3, 12), (4, 12), (12, 12)] {
        sent.extend(step(ack, end));
    }
    assert_eq!(sent[..4], [1, 2, 3, 4], "{sent:?}");
    assert!(sent[4] == 12 && sent[4..].windows(2).all(|p| p[1] == p[0] + 1), "{sent:?}");
}

/// RFC 6675 4 (6): without lost or new data nothing leaves.
#[test]
fn sk7_nothing_leaves_if_nothing_is_lost_or_new() {
    let mut script = Script::open(|_| {});
    script.write(6000);
    script.now = script.now.after(TRIP);
    let mut sent = Vec::new();
    for end in 2..=6 {
        sent.extend(places(&script.input(script.sack(0, &[(1000, end * MSS)]), &[])));
    }
    assert_eq!(sent, [0]);
    for _ in 0..5 {
        assert_eq!(script.input(script.sack(0, &[(1000, 6000)]), &[]), []);
    }
}

/// RFC 6675 5 (A): a recovery ends when all that was in flight at its start is acknowledged, and
/// what the peer has reported beyond that stays known.
#[test]
fn sk9_the_end_of_a_recovery_keeps_what_is_reported() {
    let mut script = Script::open(|_| {});
    script.write(40_000);
    script.now = script.now.after(TRIP);
    for end in 2..=10 {
        script.input(script.sack(0, &[(1000, end * MSS)]), &[]);
    }
    let recover = script.connection.send.recover.0.wrapping_sub(OWN + 1);
    assert!(script.end > recover + 1000, "{} and {recover}", script.end);
    let beyond = recover + 1000;
    script.input(script.sack(recover - 1000, &[(beyond, beyond + 1000)]), &[]);
    assert!(matches!(script.connection.send.phase, Phase::Recovery { .. }));
    script.input(script.sack(recover, &[(beyond, beyond + 1000)]), &[]);
    assert_eq!(script.connection.send.phase, Phase::Open);
    assert_eq!(script.connection.send.board.sacked_segments(), 1);
}

/// RFC 6675 5 (C): a segment leaves while the window has room for one.
#[test]
fn sk11_as_much_leaves_as_the_window_has_room_for() {
    let mut script = Script::open(|_| {});
    script.write(40_000);
    script.now = script.now.after(TRIP);
    let mut end = 1000;
    for _ in 0..9 {
        end += 1000;
        script.input(script.sack(0, &[(1000, end)]), &[]);
        let (pipe, window) = (script.connection.pipe(), script.window());
        assert!(pipe <= window.max(10_000) && pipe + MSS > window, "{pipe} of {window}");
    }
}

/// RFC 6675 5.1: after a timeout SACKs show what is lost, and begin no recovery before all that was
/// in flight is acknowledged.
#[test]
fn sk12_a_timeout_is_no_beginning_of_a_recovery() {
    let mut script = Script::open(|_| {});
    script.write(10_000);
    script.wait(600 * MS);
    assert_eq!(script.connection.send.phase, Phase::Timeout);
    let threshold = script.threshold();
    script.now = script.now.after(TRIP);
    for end in 2..=9 {
        script.input(script.sack(1000, &[(2000, 1000 + end * MSS)]), &[]);
        assert_eq!(script.connection.send.phase, Phase::Timeout);
    }
    assert_eq!(script.threshold(), threshold);
    script.acked(10_000);
    assert_eq!(script.connection.send.phase, Phase::Open);
}

/// RFC 6937 3: at its start a recovery has delivered and sent nothing, and remembers what was in
/// flight. The first retransmission leaves at once.
#[test]
fn pr1_pr4_a_recovery_begins_with_the_flight_and_one_segment() {
    let mut script = Script::open(|_| {});
    script.set_window(20);
    script.write(100_000);
    script.now = script.now.after(TRIP);
    let tcp = script.sack(0, &[(1000, 4000)]);
    script.take(tcp, &[]);
    let Phase::Recovery { out, flight, delivered } = script.connection.send.phase else {
        panic!("no recovery");
    };
    assert_eq!((out, flight, delivered), (0, 20_000, 3000));
    let out = script.output();
    assert_eq!(places(&out)[0], 0);
    let sent = MSS * places(&out).len() as u32;
    let is_counted =
        matches!(script.connection.send.phase, Phase::Recovery { out, .. } if out == sent);
    assert!(is_counted, "{:?}", script.connection.send.phase);
    assert!(script.connection.pipe() <= script.window());
}

/// RFC 6937 3: if so much is lost that less is in flight than the threshold, about two segments
/// leave for each that is delivered, up to the threshold.
#[test]
fn pr3_rk19_a_recovery_of_many_losses_grows_as_slow_start_does() {
    let mut script = Script::open(|_| {});
    script.set_window(20);
    script.write(100_000);
    script.now = script.now.after(TRIP);
    let mut sent = places(&script.input(script.sack(0, &[(15_000, 18_000)]), &[])).len();
    assert!((1..=4).contains(&sent), "{sent}");
    for end in 19..=20 {
        let out = places(&script.input(script.sack(0, &[(15_000, end * MSS)]), &[]));
        assert!((1..=2).contains(&out.len()), "{out:?}");
        sent += out.len();
    }
    for ack in 1..sent as u32 {
        script.now = script.now.after(MS);
        script.wait(TRIP);
        let out = places(&script.input(script.sack(ack * MSS, &[(15_000, 20_000)]), &[]));
        assert!(out.len() <= 2, "{out:?}");
        assert!(script.connection.pipe() <= script.threshold() + MSS);
    }
}
