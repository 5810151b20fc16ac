//! DCTCP (RFC 8257) between two ends.

use super::*;

fn config() -> TcpConfig {
    TcpConfig { congestion: CongestionControl::Dctcp, ..TcpConfig::default() }
}

/// Two ends that have exchanged something.
fn open(configs: [TcpConfig; 2]) -> Net {
    let mut net = Net::new(configs, Faults::default(), 1);
    net.ends.iter_mut().for_each(|end| end.closes = false);
    net.give(0, 100);
    assert!(net.run_until(SECOND, |net| net.ends[1].received.len() == 100));
    net.run_until(SECOND, |_| false);
    net.log.clear();
    net
}

/// RFC 8257 3.2: at each change, one acknowledgement of what came before with the old state, and
/// one with the new. Without a change, one for two segments.
#[test]
fn each_change_of_marks_is_acknowledged() {
    let mut net = open([config(), config()]);
    let now = net.now;
    let head = net.connection(0).header(now, Flags::ACK);
    let mss = net.connection(1).send.mss;
    let mut answers = Vec::new();
    for (n, is_marked) in [false, true, true, true, false, false, false].into_iter().enumerate() {
        let tcp = Tcp { seq: head.seq.wrapping_add(n as u32 * mss), ..head };
        let data = alloc::vec![7; mss as usize];
        let segment = Segment { tcp, data: &data, is_marked };
        let End { connection, config, .. } = &mut net.ends[1];
        answers.extend(connection.as_mut().unwrap().input(now, config, &segment).answer);
        let before = net.log.len();
        net.work();
        answers.extend(net.log[before..].iter().map(|(_, _, tcp, _)| *tcp));
    }
    let place = |tcp: &Tcp| (tcp.ack.wrapping_sub(head.seq) / mss, tcp.flags.has(Flags::ECE));
    let places: Vec<_> = answers.iter().map(place).collect();
    let wanted = [(1, false), (2, true), (4, true), (5, false), (7, false)];
    assert_eq!(places, wanted);
}

/// Changes within a burst are reported, too, each by its own acknowledgement.
#[test]
fn changes_within_a_burst_are_acknowledged() {
    let mut net = open([config(), config()]);
    let now = net.now;
    let head = net.connection(0).header(now, Flags::ACK);
    let mut answers = Vec::new();
    for (n, is_marked) in [false, true, false, true].into_iter().enumerate() {
        let tcp = Tcp { seq: head.seq.wrapping_add(n as u32 * 100), ..head };
        let segment = Segment { tcp, data: &[7; 100], is_marked };
        let End { connection, config, .. } = &mut net.ends[1];
        answers.extend(connection.as_mut().unwrap().input(now, config, &segment).answer);
    }
    net.work();
    answers.extend(net.log.iter().map(|(_, _, tcp, _)| *tcp));
    let place = |tcp: &Tcp| (tcp.ack.wrapping_sub(head.seq), tcp.flags.has(Flags::ECE));
    let wanted = [(100, false), (200, true), (300, false), (400, true)];
    assert_eq!(answers.iter().map(place).collect::<Vec<_>>(), wanted);
}

/// With few marks DCTCP keeps most of its window, where others give up a half or a third each time.
#[test]
fn few_marks_cost_little() {
    let sent = |control| {
        let config = TcpConfig { congestion: control, ..TcpConfig::default() };
        let mut net = open([config.clone(), config]);
        net.faults.mark_ppm = 5_000;
        net.give(0, 100_000_000);
        net.run_until(2 * SECOND, |_| false);
        assert!(net.log.iter().any(|(.., tcp, _)| tcp.flags.has(Flags::CWR)));
        net.ends[1].received.len()
    };
    let [reno, cubic, dctcp] =
        [CongestionControl::Reno, CongestionControl::Cubic, CongestionControl::Dctcp].map(sent);
    assert!(dctcp > 2 * reno && dctcp > 2 * cubic, "{reno}, {cubic}, {dctcp}");
}

/// RFC 8257 3.5: a loss costs a half, whatever the marks were.
#[test]
fn a_loss_halves_the_window() {
    let mut net = open([config(), config()]);
    net.connection(0).send.congestion.set_window(100_000);
    net.faults.lost[0] = alloc::vec![net.sent[0]];
    net.give(0, 90_000);
    net.run_until(SECOND, |net| net.ends[1].received.len() == 90_100);
    let threshold = net.connection(0).send.congestion.threshold();
    assert!((44_000..=45_000).contains(&threshold), "{threshold}");
}

/// RFC 8257 4.1: an end whose peer has no ECN falls back to Reno, and an end with ordinary ECN
/// works with one that has DCTCP.
#[test]
fn other_ends_work_too() {
    for (other, ecn) in [(CongestionControl::Cubic, true), (CongestionControl::Reno, false)] {
        let peer = TcpConfig { congestion: other, ecn, ..TcpConfig::default() };
        for configs in [[config(), peer.clone()], [peer, config()]] {
            let faults = Faults { mark_ppm: 100_000, loss_ppm: 1000, ..Faults::default() };
            let mut net = Net::new(configs, faults, 1);
            net.give(0, 1_000_000);
            net.complete(100 * SECOND, [1_000_000, 0]).unwrap();
        }
    }
}
