//! Scripts of loss recovery in virtual time, with the paragraph of the RFC that each follows.

use super::super::scoreboard::{Scoreboard, Sent};
use super::super::seq::Seq;
use super::*;

/// The round-trip time of these networks.
const TRIP: u64 = 20 * MS;

/// A connection of segments of 1,000 bytes over a path of 20 ms, with its handshake done, whose end
/// 0 has a congestion window that is large enough.
fn warm(change: impl Fn(&mut TcpConfig)) -> Net {
    let mut config = TcpConfig { mss: 1012, delayed_ack_ns: 0, ..TcpConfig::default() };
    change(&mut config);
    let faults = Faults { delay_ns: TRIP / 2, ..Faults::default() };
    let mut net = Net::new([config.clone(), config], faults, 1);
    net.ends.iter_mut().for_each(|end| end.closes = false);
    net.give(0, 100_000);
    assert!(net.run_until(10 * SECOND, |net| net.ends[1].received.len() == 100_000));
    net.run_until(SECOND / 2, |_| false);
    net.log.clear();
    net
}

/// Lets the network lose some of the next segments of an end, counted from the next one.
fn lose(net: &mut Net, end: usize, numbers: &[u64]) {
    let sent = net.sent[end];
    net.faults.lost[end] = numbers.iter().map(|number| sent + number).collect();
}

/// Sends `segments` segments at once and runs until the peer has them. Returns the times at which
/// end 0 sent something again, from the start on, with the place of the data in segments.
fn exchange(net: &mut Net, segments: u64) -> Vec<(u64, u32)> {
    let (start, before) = (net.now, net.ends[1].received.len());
    net.ends[0].to_send.extend((before..before + 1000 * segments as usize).map(byte));
    let first = net.connection(0).send.next;
    let wanted = before + 1000 * segments as usize;
    assert!(net.run_until(60 * SECOND, |net| net.ends[1].received.len() == wanted));
    net.run_until(SECOND / 2, |_| false);
    let mut highest = first;
    let mut again = Vec::new();
    for (at, end, tcp, len) in &net.log {
        let seq = Seq(tcp.seq);
        if *end != 0 || *len == 0 {
            continue;
        }
        if seq.is_before(highest) {
            again.push((at.since(start), seq.since(first) / 1000));
        }
        highest = highest.max(seq + *len as u32);
    }
    again
}

/// RFC 8985 6.2: a segment is lost once three behind it are delivered: a round trip after it was
/// sent, and no timeout.
#[test]
fn rk6_a_lost_segment_is_sent_again_after_a_round_trip() {
    let mut net = warm(|_| {});
    lose(&mut net, 0, &[3]);
    let again = exchange(&mut net, 10);
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(again[0].1 == 3 && again[0].0 < TRIP + MS, "{again:?}");
}

/// RFC 8985 3.3: a lost retransmission is found by time, too.
#[test]
fn rk2_a_retransmission_that_is_lost_needs_no_timeout() {
    let mut net = warm(|_| {});
    net.connection(0).send.congestion.set_window(40_000);
    lose(&mut net, 0, &[0, 40]);
    let again = exchange(&mut net, 100);
    let of_first = again.iter().filter(|(_, segment)| *segment == 0).count();
    assert_eq!(of_first, 2, "{again:?}");
    assert!(again.iter().all(|(at, _)| *at < 3 * TRIP), "{again:?}");
}

/// RFC 8985 7.2: the probe of a lost tail leaves two round trips after the last segment.
#[test]
fn rk12_rk15_a_lost_tail_is_probed_after_two_round_trips() {
    let mut net = warm(|_| {});
    lose(&mut net, 0, &[8, 9]);
    let again = exchange(&mut net, 10);
    // The probe is the last segment. Its SACK shows the loss of the one before.
    assert_eq!(again.iter().map(|(_, segment)| *segment).collect::<Vec<_>>(), [9, 8]);
    let probe = again[0].0;
    assert!((2 * TRIP..3 * TRIP + MS).contains(&probe), "{again:?}");
    assert!(again[1].0 < probe + TRIP + 6 * MS, "{again:?}");
}

/// RFC 8985 7.4: a probe that repaired the loss of the one segment it repeats closes the window.
#[test]
fn rk17_a_probe_that_repairs_a_loss_closes_the_window() {
    let mut net = warm(|_| {});
    let before = net.connection(0).send.congestion.window();
    lose(&mut net, 0, &[9]);
    let again = exchange(&mut net, 10);
    assert_eq!(again.len(), 1);
    exchange(&mut net, 1);
    assert!(net.connection(0).send.congestion.threshold() < before);
}

/// RFC 6298 5: without SACK the loss of the last segment costs the timeout, which doubles.
#[test]
fn rt6_rt14_the_timeout_doubles_and_then_measures_anew() {
    let mut net = warm(|config| (config.sack, config.timestamps) = (false, false));
    lose(&mut net, 0, &[0, 1, 2]);
    let again = exchange(&mut net, 1);
    let times: Vec<_> = again.iter().map(|(at, _)| at / MS).collect();
    assert_eq!(times.len(), 3, "{times:?}");
    let first = times[0];
    assert!((200..230).contains(&first) && times[1] == 3 * first && times[2] == 7 * first);
    // Karn: the round trip of a segment that was sent again is not measured.
    assert!(net.connection(0).send.rtt.smoothed_ns().is_some_and(|srtt| srtt < 2 * TRIP));
}

/// RFC 6298 5.5 and 5.6, RFC 9293 3.8.3: SYNs after 1, 3, 7 seconds and so on, then an error.
#[test]
fn rt1_rt14_a_syn_without_an_answer_is_sent_again_and_given_up() {
    let config = TcpConfig { syn_retries: 3, ..TcpConfig::default() };
    let faults = Faults { loss_ppm: 1_000_000, ..Faults::default() };
    let mut net = Net::new([config.clone(), config], faults, 1);
    net.run_until(60 * SECOND, |_| false);
    let times: Vec<_> = net.log.iter().map(|(at, ..)| at.as_ns() / SECOND).collect();
    assert_eq!(times, [1, 2, 4, 8]);
    assert_eq!(net.connection(0).error(), Some(TcpError::TimedOut));
    assert_eq!(net.now, Instant::from_ns(16 * SECOND));
}

/// RFC 6582: without SACK three duplicates send the first loss again, and each partial
/// acknowledgement the next one: one a round trip.
#[test]
fn nr3_without_sack_each_round_trip_repairs_one_loss() {
    let mut net = warm(|config| config.sack = false);
    lose(&mut net, 0, &[2, 5, 8]);
    let again = exchange(&mut net, 30);
    assert_eq!(again.iter().map(|(_, segment)| *segment).collect::<Vec<_>>(), [2, 5, 8]);
    for (n, (at, _)) in again.iter().enumerate() {
        let trips = n as u64 + 1;
        assert!((trips * TRIP..trips * TRIP + 3 * MS).contains(at), "{again:?}");
    }
}

/// RFC 9937 6: during a recovery about as many segments leave as the new window is of the old one,
/// evenly, and at its end the window is the threshold.
#[test]
fn cc25_pr2_pr5_a_recovery_sends_in_proportion() {
    let mut net = warm(|config| config.congestion = CongestionControl::Reno);
    net.connection(0).send.congestion.set_window(40_000);
    lose(&mut net, 0, &[0]);
    exchange(&mut net, 100);
    let send = &net.connection(0).send;
    assert_eq!(send.congestion.threshold(), 20_000);
    let start = net.log[0].0;
    // In the round trip of the recovery: the lost one, and half of the others.
    let of_trip = |trip: u64| {
        let is_in = |at: Instant| at.since(start) / TRIP == trip;
        net.log.iter().filter(|(at, end, _, len)| *end == 0 && *len > 0 && is_in(*at)).count()
    };
    assert_eq!(of_trip(0), 40);
    assert!((18..=22).contains(&of_trip(1)), "{}", of_trip(1));
    assert!((19..=22).contains(&of_trip(2)), "{}", of_trip(2));
}

/// RFC 6937 3: a recovery that RACK's timer begins sends one segment, and more in proportion to
/// what is delivered. The window of before the loss once let all that was lost out at once.
#[test]
fn a_recovery_that_a_timer_begins_sends_one_segment() {
    let mut net = warm(|_| {});
    net.connection(0).send.congestion.set_window(10_000);
    lose(&mut net, 0, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let again = exchange(&mut net, 10);
    let first = again[0].0;
    assert!((TRIP + 1..2 * TRIP).contains(&first), "{again:?}");
    assert_eq!(again.iter().filter(|(at, _)| *at == first).count(), 1, "{again:?}");
}

/// RFC 3042: each of the first two duplicates lets one new segment out. Each once opened the window
/// of slow start besides, which let two out.
#[test]
fn a_duplicate_lets_one_new_segment_out() {
    for has_sack in [true, false] {
        let mut net = warm(|config| config.sack = has_sack);
        net.connection(0).send.congestion.set_window(10_000);
        net.ends[0].to_send.extend([7; 20_000]);
        net.work();
        assert_eq!(net.connection(0).pipe(), 10_000);
        net.now = net.now.after(TRIP);
        let (now, before) = (net.now, net.log.len());
        let head = net.connection(1).header(now, Flags::ACK);
        for n in 1..=2_u32 {
            let mut tcp = head;
            if has_sack {
                tcp.options.sack.push((head.ack + 1000, head.ack + 1000 * (n + 1)));
            }
            let segment = Segment { tcp, data: &[], is_marked: false };
            let End { connection, config, .. } = &mut net.ends[0];
            connection.as_mut().unwrap().input(now, config, &segment);
            net.work();
            assert_eq!(net.log.len() - before, n as usize, "{has_sack}");
        }
    }
}

/// RFC 8985 6.2 step 4: segments that overtake others by less than a quarter of the round trip do
/// not count as lost, once that was seen.
#[test]
fn rk5_reordering_is_no_loss() {
    let mut net = warm(|_| {});
    net.faults.jitter_ns = TRIP / 5;
    let mut again = 0;
    for _ in 0..20 {
        net.log.clear();
        again += exchange(&mut net, 20).len();
    }
    assert!(again < 20, "{again} of 400 segments were sent again");
}

/// RFC 3168 6.1.2: a mark closes the window once a round trip, and nothing is sent again.
#[test]
fn ec6_ec7_ec10_a_mark_closes_the_window_without_a_loss() {
    let mut net = warm(|_| {});
    let before = net.connection(0).send.congestion.window();
    net.faults.mark_ppm = 1_000_000;
    assert_eq!(exchange(&mut net, 10), []);
    net.faults.mark_ppm = 0;
    let window = net.connection(0).send.congestion.window();
    assert!(window < before && window >= 2000, "{before} to {window}");
    let has = |flags: Flags, end: usize| {
        net.log.iter().any(|(_, from, tcp, _)| *from == end && tcp.flags.has(flags))
    };
    assert!(has(Flags::ECE, 1) && !has(Flags::CWR, 0));
    net.log.clear();
    exchange(&mut net, 10);
    let cwr: Vec<_> = net.log.iter().filter(|(.., tcp, _)| tcp.flags.has(Flags::CWR)).collect();
    assert_eq!(cwr.len(), 1, "the next new data tells the peer");
    net.log.clear();
    exchange(&mut net, 10);
    assert!(net.log.iter().all(|(.., tcp, _)| !tcp.flags.has(Flags::ECE)), "and that ends it");
}

/// RFC 2018 8: a peer that drops what it has reported gets it again after the timeout.
#[test]
fn sk1_a_peer_that_drops_what_it_reported_gets_it_again() {
    let mut board = Scoreboard::default();
    board.push(Sent::new(Seq(0), 10, Instant::ZERO));
    board.sack(Seq(0), Seq(10), |_| {});
    assert_eq!(board.pipe(), 0);
    board.forget_sacks();
    assert_eq!(board.declare(|_| Some(true)), 10);
}

/// RFC 9937 6.1: while a recovery proves more losses, a segment leaves for each that arrives. With
/// one more each time, half of what was sent again was lost again, and the recovery never ended.
#[test]
fn a_recovery_does_not_fill_the_queue_that_began_it() {
    for seed in 0..5 {
        let config = TcpConfig { congestion: CongestionControl::Reno, ..TcpConfig::default() };
        let faults = Faults {
            delay_ns: 20 * MS,
            jitter_ns: MS,
            rate: 1_250_000,
            queue: 50_000,
            ..Faults::default()
        };
        let mut net = Net::new([config, TcpConfig::default()], faults, seed);
        net.give(0, 3_000_000);
        net.complete(60 * SECOND, [3_000_000, 0]).unwrap();
        let needed = 3_000_000 / 1448;
        assert!(net.sent[0] < needed * 11 / 10, "{} instead of {needed}", net.sent[0]);
    }
}
