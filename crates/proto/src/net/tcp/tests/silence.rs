//! Peers that say nothing for long, and peers that are gone.

use super::*;

/// Returns two ends that have exchanged data and stay open. End 0 probes a silent peer each minute.
fn open(reads: usize) -> Net {
    let config = TcpConfig { keep_alive_ns: Some(60 * SECOND), ..TcpConfig::default() };
    let mut net = Net::new([config, TcpConfig::default()], Faults::default(), 1);
    net.ends.iter_mut().for_each(|end| end.closes = false);
    net.ends[1].reads = reads;
    net.give(0, 1000);
    net.run_until(SECOND, |_| false);
    net
}

/// A peer that answers to keep-alives stays. Once nine of them brought the end, answered or not.
#[test]
fn a_silent_peer_that_answers_stays() {
    let mut net = open(usize::MAX);
    let sent = net.sent;
    net.run_until(24 * 3600 * SECOND, |_| false);
    assert_eq!(net.state(0), TcpState::Established);
    assert!((1430..=1440).contains(&(net.sent[1] - sent[1])), "{:?}", net.sent);
}

/// RFC 9293 3.8.4: one unanswered keep-alive is no proof, and many are.
#[test]
fn a_silent_peer_that_is_gone_times_out() {
    let mut net = open(usize::MAX);
    net.faults.loss_ppm = 1_000_000;
    let start = net.now;
    net.run_until(3600 * SECOND, |net| net.state(0) == TcpState::Closed);
    assert_eq!(net.connection(0).error(), Some(TcpError::TimedOut));
    assert!(net.now.since(start) <= 11 * 60 * SECOND, "{:?}", net.now);
}

/// Data in flight has its own timeout: a keep-alive beside it once ended the connection after nine
/// of them.
#[test]
fn data_in_flight_is_its_own_keep_alive() {
    let mut net = open(usize::MAX);
    net.ends[0].config.user_timeout_ns = 3600 * SECOND;
    net.faults.loss_ppm = 1_000_000;
    net.give(0, 1000);
    net.run_until(1800 * SECOND, |_| false);
    assert_eq!(net.state(0), TcpState::Established);
    net.faults.loss_ppm = 0;
    assert!(net.run_until(130 * SECOND, |net| net.ends[1].received.len() == 2000));
}

/// RFC 9293 3.8.6.1: a peer may keep its window closed as long as it answers to probes. One that
/// does not is gone: its connection once stayed forever.
#[test]
fn a_closed_window_of_a_peer_that_is_gone_times_out() {
    let mut net = open(0);
    net.ends[0].config.keep_alive_ns = None;
    net.give(0, 2 << 20);
    net.run_until(4 * 3600 * SECOND, |_| false);
    assert_eq!(net.state(0), TcpState::Established);
    net.faults.loss_ppm = 1_000_000;
    let start = net.now;
    net.run_until(3600 * SECOND, |net| net.state(0) == TcpState::Closed);
    assert_eq!(net.connection(0).error(), Some(TcpError::TimedOut));
    assert!(net.now.since(start) <= 6 * 60 * SECOND, "{:?}", net.now);
}
