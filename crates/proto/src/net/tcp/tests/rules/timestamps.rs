//! Rules of timestamps (RFC 7323 3 to 5).

use super::super::hosts::{Hosts, Packet};
use super::*;

const DAY: u64 = 24 * 3600 * SECOND;

fn open() -> Script {
    Script::open(|config| config.timestamps = true)
}

/// Returns the times of a segment.
fn times(out: &Out) -> (u32, u32) {
    out.tcp.options.timestamps.expect("the segment has times")
}

/// RFC 7323 3.2: a SYN echoes nothing, and the answer to it, as all that follows, what the peer has
/// sent.
#[test]
fn hp11_a_segment_echoes_the_peers_time_if_it_acknowledges() {
    let mut script = Script::connecting(|config| config.timestamps = true);
    assert_eq!(times(&script.output()[0]).1, 0);
    script.now = script.now.after(TRIP);
    let answer = script.answer();
    let out = script.input(answer, &[]);
    assert_eq!(Some(times(&out[0]).1), answer.options.timestamps.map(|(value, _)| value));
    let config = TcpConfig { timestamps: true, ..plain() };
    // A SYN has no time to echo, whatever stands there.
    let mut syn = Script::syn(&config);
    syn.options.timestamps = Some((77, 123_456));
    let mut script = Script::listening(|config| config.timestamps = true, &syn);
    assert_eq!(times(&script.output()[0]).1, 77);
    assert_eq!(script.connection.send.rtt.smoothed_ns(), None);
}

/// RFC 7323 3.2: once both ends have agreed, every segment has times, resets too.
#[test]
fn hp12_every_segment_has_times_once_both_ends_agree() {
    let mut script = open();
    let mut out = script.write(3000);
    out.extend(script.data(1000));
    out.extend(script.wait(5 * SECOND));
    script.connection.close();
    out.extend(script.output());
    assert!(out.len() > 5, "{out:?}");
    assert!(out.iter().all(|out| out.tcp.options.timestamps.is_some()));
    let reset = script.connection.abort().expect("a reset");
    assert!(reset.options.timestamps.is_some());
}

/// RFC 7323 3.2: the time of a reset is that at which it is sent. It was once that of the last
/// data.
#[test]
fn hp12_a_reset_has_the_time_at_which_it_is_sent() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 10, 10);
    let id = hosts.connect(1);
    hosts.hosts[1].write(id, b"data");
    hosts.run(SECOND);
    let time = |packet: &Packet| packet.tcp.options.timestamps.map(|(time, _)| time);
    let data = hosts.log.iter().find(|packet| packet.data == b"data").and_then(time).unwrap();
    let sent = hosts.now;
    hosts.log.clear();
    hosts.run(9 * SECOND);
    hosts.hosts[1].abort(id);
    hosts.work();
    let reset = hosts.log.iter().find(|packet| packet.tcp.flags.has(Flags::RST)).and_then(time);
    let passed = reset.unwrap().wrapping_sub(data);
    let least = (hosts.now.since(sent) / MS) as u32;
    assert!((least..least + 1001).contains(&passed), "{passed} ms");
}

/// RFC 7323 3.2: a segment without times is dropped, and ends nothing.
#[test]
fn hp13_a_segment_without_times_is_dropped() {
    let mut script = open();
    let tcp = Tcp { options: TcpOptions::default(), ..script.head(Flags::ACK) };
    assert_eq!(script.input(tcp, b"data"), []);
    assert_eq!(script.connection.readable(), 0);
    assert_eq!(script.connection.state(), TcpState::Established);
}

/// RFC 7323 3.2: without the agreement of both ends no segment has times, and those of the peer
/// are ignored.
#[test]
fn hp14_times_are_ignored_if_one_end_has_not_offered_them() {
    let mut script =
        Script::open_with(|config| config.timestamps = true, |tcp| tcp.options.timestamps = None);
    for time in [1, 1 << 30, 5, u32::MAX] {
        let mut tcp = script.head(Flags::ACK);
        tcp.options.timestamps = Some((time, time));
        script.peer += 1;
        script.input(tcp, b"x");
    }
    assert_eq!(script.connection.readable(), 4);
    assert!(script.write(100)[0].tcp.options.timestamps.is_none());
    let mut script = Script::listening(|config| config.timestamps = true, &Script::syn(&plain()));
    assert!(script.output()[0].tcp.options.timestamps.is_none());
}

/// RFC 7323 4.1, 5.4: the clock advances by one a millisecond and never goes back. It takes 49 days
/// to return, which is far more than a segment lives.
#[test]
fn hp15_the_clock_advances_each_millisecond() {
    let mut script = open();
    let first = times(&script.write(10)[0]).0;
    for ms in [1, 2, 1000, 86_400_000] {
        script.acked(script.end);
        script.now = script.now.after(ms * MS);
        let before = script.time;
        let value = times(&script.write(10)[0]).0;
        assert_eq!(value.wrapping_sub(before), ms as u32);
    }
    assert!(script.time.wrapping_sub(first) < 1 << 31);
}

/// RFC 7323 4.3 (A): an acknowledgement of several segments echoes the time of the first of them.
#[test]
fn hp17_a_delayed_acknowledgement_echoes_the_first_segment() {
    let mut script = open();
    let first = script.peer_time();
    assert_eq!(script.data(988), []);
    script.now = script.now.after(5 * MS);
    let out = script.data(988);
    assert_eq!((out[0].ack, times(&out[0]).1), (1976, first));
    script.now = script.now.after(5 * MS);
    script.data(988);
    let next = script.peer_time();
    script.now = script.now.after(5 * MS);
    assert_eq!(times(&script.data(988)[0]).1, next);
}

/// RFC 7323 4.3 (B), (C): behind a gap the time of the last segment in order is echoed, and the
/// segment that fills the gap has its own time echoed.
#[test]
fn hp18_hp19_a_gap_keeps_the_time_to_echo_until_it_is_filled() {
    let mut script = open();
    let first = script.peer_time();
    script.data(500);
    script.wait(SECOND);
    for place in [1500, 2500] {
        let out = script.data_at(place, 1000);
        assert_eq!(times(&out[0]).1, first);
    }
    script.now = script.now.after(5 * MS);
    let filler = script.peer_time();
    let out = script.data(1000);
    assert_eq!((out[0].ack, times(&out[0]).1), (3500, filler));
}

/// RFC 7323 5.2: a reset that answers to a segment echoes its time, and has none of its own.
#[test]
fn hp20_a_reset_that_answers_echoes_the_time() {
    let mut tcp = Tcp { from: 1, to: 2, seq: 5, ack: 9, flags: Flags::ACK, ..Tcp::default() };
    let answer = |tcp: &Tcp| {
        refusal(&Segment { tcp: *tcp, data: &[], is_marked: false }).expect("a reset").options
    };
    assert_eq!(answer(&tcp), TcpOptions::default());
    tcp.options.timestamps = Some((33, 44));
    assert_eq!(answer(&tcp).timestamps, Some((0, 33)));
}

/// RFC 7323 5.2: the times of a reset are neither checked nor kept.
#[test]
fn hp21_the_times_of_a_reset_do_not_count() {
    let mut script = open();
    let head = script.head(Flags::RST);
    let time = script.peer_time();
    let with = |value: u32| TcpOptions { timestamps: Some((value, 0)), ..head.options };
    // Out of the window, with a time far ahead.
    let far = Tcp { seq: head.seq.wrapping_sub(9), options: with(time + 100_000), ..head };
    script.input(far, &[]);
    assert_eq!(times(&script.write(10)[0]).1, time);
    script.input(Tcp { options: with(time - 5000), ..head }, &[]);
    assert_eq!(script.connection.error(), Some(TcpError::Reset));
}

/// RFC 7323 5.3 R1: an old segment is acknowledged and dropped before anything else is checked.
#[test]
fn hp22_an_old_segment_changes_nothing() {
    let mut script = open();
    script.data(100);
    script.wait(SECOND);
    script.data(100);
    script.write(1000);
    let mut old = script.head(Flags::ACK);
    old.options.timestamps = Some((script.peer_time() - 10, script.time));
    let out = script.input(old, b"old");
    assert!(is_ack(&out) && out[0].ack == 200, "{out:?}");
    assert_eq!(script.connection.readable(), 200);
    assert!(!script.connection.send.board.is_empty(), "its acknowledgement did not count");
    old.options.timestamps = Some((script.peer_time(), script.time));
    script.input(old, b"new");
    assert_eq!(script.connection.readable(), 203);
}

/// RFC 7323 5.3: the time of a segment behind a gap is compared when it arrives, and does not make
/// those that fill the gap old.
#[test]
fn hp23_a_segment_behind_a_gap_makes_no_other_old() {
    let mut script = open();
    let time = script.peer_time();
    script.now = script.now.after(50 * MS);
    script.data_at(1000, 1000);
    let mut tcp = script.head(Flags::ACK);
    tcp.options.timestamps = Some((time, script.time));
    script.peer += 1000;
    let out = script.input(tcp, &[1; 1000]);
    assert_eq!((out[0].ack, script.connection.readable()), (2000, 2000));
}

/// RFC 7323 5.5: after 24 days of silence any time is newer.
#[test]
fn hp24_after_24_days_a_time_is_too_old_to_compare() {
    for (days, is_taken) in [(23, false), (25, true)] {
        let mut script = open();
        script.data(100);
        script.wait(days * DAY);
        let mut tcp = script.head(Flags::ACK);
        let recent = script.connection.receive.echoed();
        tcp.options.timestamps = Some((recent.wrapping_sub(1000), script.time));
        script.input(tcp, b"data");
        assert_eq!(script.connection.readable() == 104, is_taken, "{days} days");
    }
}
