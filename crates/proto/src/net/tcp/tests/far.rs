//! Tests of connections that have sent much more than sequence numbers can count.

use super::*;

/// Returns a connection without faults whose ends have sent this many bytes each, all of which is
/// acknowledged. Neither has lost anything so far.
fn after(bytes: u32, config: &TcpConfig) -> Net {
    let mut net = Net::new([config.clone(), config.clone()], Faults::default(), 1);
    net.ends.iter_mut().for_each(|end| end.closes = false);
    let is_open = |net: &Net| (0..2).all(|end| net.state(end) == TcpState::Established);
    assert!(net.run_until(SECOND, is_open));
    net.run_until(SECOND, |_| false);
    for end in 0..2 {
        let connection = net.connection(end);
        let send = &mut connection.send;
        send.initial = send.initial - bytes;
    }
    net.ends.iter_mut().for_each(|end| end.closes = true);
    net
}

/// The distance from the first number says nothing about the order of numbers. It once decided
/// where the data of the send buffer begins: after 2 GiB an end sent old bytes under new numbers.
#[test]
fn a_stream_goes_on_after_any_number_of_bytes() {
    let most = u32::MAX;
    for bytes in [0, 1 << 30, (1 << 31) - 100_000, 1 << 31, 3 << 30, most - 100_000, most, 1] {
        let mut net = after(bytes, &TcpConfig::default());
        net.give(0, 300_000);
        net.give(1, 200_000);
        let done = net.complete(10 * SECOND, [300_000, 200_000]);
        assert!(done.is_ok(), "after {bytes} bytes: {done:?}");
    }
}

/// RFC 6582 3.2 step 1: what was in flight at the start of the last recovery is compared with what
/// is acknowledged, and so it follows.
#[test]
fn the_end_of_the_last_recovery_follows_what_is_acknowledged() {
    let config = TcpConfig { sack: false, ..TcpConfig::default() };
    let mut net = after(0, &config);
    net.give(0, 300_000);
    net.complete(10 * SECOND, [300_000, 0]).unwrap();
    let send = &net.connection(0).send;
    assert!(send.una.since(send.recover) < 100_000, "{:?} {:?}", send.una, send.recover);
}

/// A path that becomes narrow late keeps the congestion window in segments, and what was too long
/// is sent again at once.
#[test]
fn a_path_that_narrows_after_any_number_of_bytes_costs_no_timeout() {
    for bytes in [0, 1 << 31, 3 << 30] {
        let mut net = after(bytes, &TcpConfig::default());
        net.faults.mtus = Vec::from([(net.sent[0] + 40, 1000)]);
        net.give(0, 500_000);
        net.complete(10 * SECOND, [500_000, 0]).unwrap();
        assert_eq!(net.connection(0).send.timeouts, 0, "after {bytes} bytes");
    }
}
