//! Rules of windows, and of when to send and to acknowledge (RFC 9293 3.7, 3.8.6).

use super::*;

/// RFC 9293 3.1: the window has no sign.
#[test]
fn tm1_a_window_of_more_than_half_its_range_is_large() {
    let mut script = Script::open(|_| {});
    script.set_window(100);
    script.window = u16::MAX;
    script.input(script.head(Flags::ACK), &[]);
    let out = script.write(80_000);
    assert_eq!(out.iter().map(|out| out.len).sum::<u32>(), 65_000);
}

/// RFC 9293 3.7.4: Nagle's algorithm holds a short segment back while data is in flight, unless the
/// program does not want it. Short writes leave together in segments of full length.
#[test]
fn ts7_ts27_ts28_short_segments_wait_for_an_acknowledgement() {
    let mut script = Script::open(|config| config.no_delay = false);
    let out = script.write(10);
    assert_eq!((out.len(), out[0].len), (1, 10));
    for _ in 0..11 {
        assert_eq!(script.write(90), []);
    }
    let out = script.acked(10);
    assert_eq!(out.iter().map(|out| out.len).collect::<Vec<_>>(), [990]);
    script.write(900);
    let out = script.write(900);
    assert_eq!(out.iter().map(|out| out.len).collect::<Vec<_>>(), [1000], "a full one leaves");
    assert_eq!(script.acked(2000)[0].len, 800);
    let mut script = Script::open(|config| config.no_delay = true);
    assert!((0..5).all(|_| script.write(10).len() == 1));
}

/// RFC 9293 3.8.6: the right edge of this end's window never moves to the left.
#[test]
fn ts14_the_window_never_shrinks() {
    for seed in 0..50 {
        let mut rng = Rng::seeded(seed);
        let mut script = Script::open(|config| {
            config.window_scaling = rng.clone().chance(500_000);
            config.receive_bytes = 10_000 + rng.clone().below(900_000) as u32;
        });
        let scaled = script.config.window_scaling;
        let shift = if scaled { script.config.window_shift() } else { 0 };
        let edge = |out: &Out| i64::from(out.ack) + (i64::from(out.tcp.window) << shift);
        let mut last = 0;
        for _ in 0..200 {
            let room = script.connection.receive.window();
            let out = match rng.below(3) {
                0 => script.data(room.min(1 + rng.below(1000) as u32)),
                1 => script.wait(rng.below(50 * MS)),
                _ => {
                    let count = rng.below(script.connection.readable() as u64 + 1);
                    script.read(count as u32)
                }
            };
            for out in &out {
                assert!(edge(out) >= last, "seed {seed}: {} to {last}", edge(out));
                last = edge(out);
            }
        }
    }
}

/// RFC 9293 3.8.6: a peer that takes its window back gets no new data, and the old data again up to
/// its new edge.
#[test]
fn tm34_ts15_ts16_a_window_that_shrinks_is_no_harm() {
    let mut script = Script::open(|config| config.sack = false);
    assert_eq!(script.write(12_000).len(), 10);
    script.window = 3000;
    assert_eq!(script.acked(2000), []);
    assert_eq!(script.write(500), []);
    let out = script.wait(SECOND);
    assert_eq!(places(&out)[..1], [2], "{out:?}");
    assert!(out.iter().all(|out| out.place + out.len <= 10_000), "no new data");
    for place in 3..=5 {
        script.window -= 1000;
        script.acked(place * MSS);
    }
    script.window = 20_000;
    let out = script.acked(10_000);
    assert_eq!(out.iter().map(|out| out.place).min(), Some(10_000), "{out:?}");
}

/// RFC 9293 3.8.6: a peer that closes its window below what is in flight, and answers, keeps the
/// connection.
#[test]
fn tm35_tm37_ts17_a_window_that_shrinks_to_nothing_ends_no_connection() {
    let mut script = Script::open(|config| config.user_timeout_ns = 100 * SECOND);
    script.write(5000);
    script.window = 0;
    script.acked(2000);
    let mut sent = 0;
    for _ in 0..1000 {
        let out = script.wait(SECOND);
        sent += out.len();
        if !out.is_empty() {
            assert!(out.iter().all(|out| out.place <= 5000));
            script.acked(2000);
        }
    }
    assert_eq!(script.connection.error(), None);
    assert!((5..200).contains(&sent), "{sent}");
    script.window = 10_000;
    script.acked(2000);
    script.wait(50 * SECOND);
    script.acked(5000);
    assert_eq!(script.write(1000).len(), 1);
}

/// RFC 9293 3.8.6.1: a closed window is probed, first after the retransmission timeout, then ever
/// more rarely, and as long as the peer answers.
#[test]
fn tm36_ts29_ts30_the_first_probe_of_a_window_waits_for_the_timeout() {
    let mut script = Script::open(|_| {});
    script.write(1000);
    script.window = 0;
    script.acked(1000);
    let timeout = script.connection.send.rtt.timeout_ns(script.config.min_timeout_ns) / MS;
    script.start = script.now;
    assert_eq!(script.write(3000), []);
    let mut at = Vec::new();
    for _ in 0..12_000 {
        for out in script.wait(10 * MS) {
            assert!(out.len <= 1, "{out:?}");
            at.push(out.at / MS);
            script.acked(1000);
        }
    }
    let waits: Vec<_> = at.windows(2).map(|at| at[1] - at[0]).collect();
    assert_eq!(at[0], timeout);
    assert!(waits.windows(2).all(|w| w[1].abs_diff(2 * w[0]) <= 10), "{waits:?}");
    assert!(waits.len() >= 5);
    script.window = 2000;
    assert_eq!(places(&script.acked(1000)), [1, 2]);
}

/// RFC 9293 3.8.6.2.1: a window that is too small holds data back, for 0.1 to 1 second.
#[test]
fn tm38_a_small_window_holds_data_back_for_a_while() {
    let mut script = Script::open(|_| {});
    script.window = 10_000;
    script.write(1000);
    script.window = 300;
    script.acked(1000);
    script.start = script.now;
    assert_eq!(script.write(3000), []);
    let out = script.wait(2 * SECOND);
    assert_eq!((out[0].place, out[0].len), (1000, 300));
    assert!((100..=1000).contains(&(out[0].at / MS)), "{out:?}");
    // Half of the largest window is enough.
    let mut script = Script::open_with(|_| {}, |tcp| tcp.window = 1200);
    script.window = 1200;
    script.write(1000);
    script.window = 700;
    assert_eq!(script.write(2000), []);
    assert_eq!(script.acked(1000)[0].len, 700);
}

/// RFC 9293 3.8.6.2.2: the window opens by a segment, or half of the buffer, and not by less.
#[test]
fn tm39_the_window_opens_by_whole_segments() {
    let mut script = Script::open(|config| config.receive_bytes = 10_000);
    for _ in 0..9 {
        script.data(1000);
    }
    let out = script.data(1000);
    assert_eq!(out[0].tcp.window, 0);
    for _ in 0..9 {
        assert_eq!(script.read(100), []);
    }
    let probe = Tcp { seq: script.head(Flags::ACK).seq.wrapping_sub(1), ..script.head(Flags::ACK) };
    assert_eq!(script.input(probe, &[])[0].tcp.window, 0, "900 bytes are free");
    let out = script.read(100);
    assert!(is_ack(&out) && out[0].tcp.window == 1000, "{out:?}");
    let mut script = Script::open(|config| config.receive_bytes = 1200);
    script.data(1000);
    script.data(200);
    assert_eq!(script.read(500), []);
    assert_eq!(script.read(100)[0].tcp.window, 600, "half of the buffer");
}

/// RFC 9293 3.8.6.3, RFC 5681 4.2: an acknowledgement waits for a second segment, or less than half
/// a second.
#[test]
fn tm40_ts18_ts19_cc21_cc22_an_acknowledgement_waits_for_the_second_segment() {
    let mut script = Script::open(|_| {});
    assert_eq!(script.data(1000), []);
    let out = script.data(1000);
    assert!(is_ack(&out) && out[0].ack == 2000, "{out:?}");
    script.start = script.now;
    assert_eq!(script.data(1000), []);
    let out = script.wait(SECOND);
    assert!(is_ack(&out) && out[0].ack == 3000 && out[0].at < 500 * MS, "{out:?}");
}

/// RFC 9293 3.10.7.4: segments that arrive together are acknowledged together, after all of them.
#[test]
fn tm58_tm59_segments_of_a_burst_are_acknowledged_together() {
    let mut script = Script::open(|_| {});
    for _ in 0..6 {
        let tcp = script.head(Flags::ACK);
        script.peer += 1000;
        script.take(tcp, &[1; 1000]);
    }
    let out = script.output();
    assert!(is_ack(&out) && out[0].ack == 6000, "{out:?}");
    // Data that leaves has the acknowledgement.
    script.data(2000 - 1000);
    let tcp = script.head(Flags::ACK);
    script.peer += 1000;
    script.take(tcp, &[1; 1000]);
    let out = script.write(100);
    assert_eq!((out.len(), out[0].len, out[0].ack), (1, 100, 8000));
}

/// RFC 9293 3.9.1: there is no PUSH flag in the interface, so all data leaves at once, and the last
/// segment of it has PSH.
#[test]
fn tm60_tm61_the_last_segment_that_is_written_has_push() {
    let mut script = Script::open(|_| {});
    let out = script.write(2500);
    let push: Vec<_> = out.iter().map(|out| (out.len, out.has(Flags::PSH))).collect();
    assert_eq!(push, [(1000, false), (1000, false), (500, true)]);
    script.connection.close();
    assert!(script.output()[0].has(Flags::FIN));
}

/// RFC 9293 3.10.7.4: with a closed window a reset is handled, and so is an acknowledgement.
#[test]
fn tm66_a_closed_window_lets_resets_and_acknowledgements_in() {
    let mut script = Script::open(|config| config.receive_bytes = 1000);
    script.data(1000);
    assert_eq!(script.wait(100 * MS)[0].tcp.window, 0);
    script.write(1000);
    script.acked(1000);
    assert!(script.connection.send.board.is_empty());
    script.write(1000);
    // Data has no place, and what comes with it counts.
    script.input(script.head(Flags::ACK), b"x");
    assert!(script.connection.send.board.is_empty());
    assert_eq!(script.connection.readable(), 1000);
    script.input(script.head(Flags::RST), &[]);
    assert_eq!(script.connection.error(), Some(TcpError::Reset));
}

/// RFC 9293 3.10.7.4: data behind a gap is kept.
#[test]
fn ts31_data_behind_a_gap_is_kept() {
    let mut script = Script::open(|_| {});
    script.data_at(1000, 1000);
    script.data_at(3000, 1000);
    assert_eq!(script.connection.readable(), 0);
    script.data(1000);
    assert_eq!(script.connection.readable(), 2000);
    let out = script.data_at(2000, 1000);
    assert_eq!((script.connection.readable(), out[0].ack), (4000, 4000));
}
