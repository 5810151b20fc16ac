//! Tests of paths whose MTU is less than that of the link, or changes (RFC 1191, 8201, 8899).

use super::*;

/// Returns a network whose links have a larger MTU than a router on the way.
fn narrow(mtus: Vec<(u64, u16)>, reports: bool) -> Net {
    let faults = Faults { mtus, reports, ..Faults::default() };
    let mut net = Net::new(Default::default(), faults, 3);
    for end in &mut net.ends {
        (end.mtu, end.link_mtu) = (9000, 9000);
    }
    net
}

/// RFC 6691: the MSS that an end offers is that of its link, without options.
#[test]
fn tm67_the_link_and_not_the_path_limits_the_offered_mss() {
    let mut net = narrow(Vec::new(), true);
    (net.ends[0].mtu, net.ends[1].link_mtu) = (1500, 4000);
    net.complete(10 * SECOND, [0, 0]).unwrap();
    let offered: Vec<_> = net.log.iter().filter_map(|(_, _, tcp, _)| tcp.options.mss).collect();
    assert_eq!(offered, [8960, 3960]);
    assert_eq!([0, 1].map(|end| net.connection(end).mss()), [1448, 8948]);
}

/// RFC 1191 6.4, RFC 8201 5.4: what was too big is sent again at once in shorter segments, and the
/// congestion window stays.
#[test]
fn hp25_segments_that_are_too_big_are_sent_again_in_parts() {
    let mut net = narrow(Vec::from([(40, 1500)]), true);
    net.give(0, 2_000_000);
    net.complete(10 * SECOND, [2_000_000, 0]).unwrap();
    assert!(net.now < Instant::from_ns(2 * SECOND), "no timeout: {:?}", net.now);
    assert_eq!(net.connection(0).mss(), 1448);
    let longest = net.log.iter().map(|l| l.3).max();
    assert_eq!(longest, Some(8948));
}

/// RFC 8899 4.3: a router that drops long packets without a report costs two timeouts.
#[test]
fn a_black_hole_is_passed_by_short_segments() {
    let mut net = narrow(Vec::from([(0, 1280)]), false);
    net.give(0, 300_000);
    net.complete(60 * SECOND, [300_000, 0]).unwrap();
    assert_eq!(net.connection(0).mss(), 1024 - 12);
    assert!(net.now < Instant::from_ns(6 * SECOND), "{:?}", net.now);
}
