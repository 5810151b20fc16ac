//! Rules of options: the MSS (RFC 9293 3.7.1) and window scaling (RFC 7323 2).

use super::*;
use crate::net::tcp::seq::Seq;

/// RFC 9293 3.7.1: the MSS in a SYN and in the answer to one is what the link carries, and no other
/// segment has it.
#[test]
fn tm14_tm65_tm67_ts5_syns_alone_offer_the_mss_of_the_link() {
    let mut script = Script::connecting(|_| {});
    script.path = PathLimits { mss: 800, link_mss: 8960, most: 0 };
    assert_eq!(script.output()[0].tcp.options.mss, Some(8960));
    let mut script = Script::listening(|config| config.mss = 1300, &Script::syn(&plain()));
    assert_eq!(script.output()[0].tcp.options.mss, Some(1300));
    let mut net = Net::plain();
    net.give(0, 20_000);
    net.complete(SECOND, [20_000, 0]).unwrap();
    let others = net.log.iter().filter(|(.., tcp, _)| !tcp.flags.has(Flags::SYN));
    assert!(others.count() > 10);
    assert!(net.log.iter().all(|(.., t, _)| t.options.mss.is_some() == t.flags.has(Flags::SYN)));
}

/// RFC 9293 3.7.1: a peer that offers no MSS gets 536 bytes at most.
#[test]
fn tm15_a_peer_without_an_mss_gets_536_bytes() {
    let mut script = Script::open_with(|_| {}, |tcp| tcp.options.mss = None);
    assert_eq!(script.write(2000)[0].len, 536);
}

/// RFC 9293 3.7.1: a segment is no longer than the peer's MSS and the path allow, and its options
/// count.
#[test]
fn tm16_ts6_the_least_of_all_limits_and_the_options_bound_a_segment() {
    for (offered, path, timestamps, wanted) in [
        (1000, 1460, false, 1000),
        (1000, 1460, true, 988),
        (1400, 800, false, 800),
        (1400, 800, true, 788),
        (9000, 1460, true, 1448),
    ] {
        let mut script = Script::open_with(
            |config| config.timestamps = timestamps,
            |tcp| tcp.options.mss = Some(offered),
        );
        script.path.mss = path;
        let out = script.write(9000);
        assert_eq!(out[0].len, wanted, "{offered} {path} {timestamps}");
        assert!(out.iter().all(|out| out.len <= wanted));
    }
}

/// RFC 9293 3.1: any segment may have options. Those that only SYNs have change nothing later.
#[test]
fn tm5_hp3_options_of_syns_are_ignored_in_other_segments() {
    let mut script = Script::open(|_| {});
    let mut tcp = script.head(Flags::ACK);
    (tcp.options.mss, tcp.options.window_scale) = (Some(100), Some(7));
    tcp.options.sack_permitted = true;
    tcp.window = 3000;
    script.peer += 5;
    script.input(tcp, b"bytes");
    assert_eq!(script.connection.readable(), 5);
    let out = script.write(10_000);
    assert_eq!(out.iter().map(|out| out.len).collect::<Vec<_>>(), [1000; 3]);
}

/// RFC 7323 2.2: a SYN offers to scale windows, also by nothing, and an answer offers it only to a
/// SYN that did.
#[test]
fn hp1_hp2_an_answer_scales_windows_only_for_a_syn_that_does() {
    let scaling = |config: &mut TcpConfig| config.window_scaling = true;
    for (bytes, shift) in [(10_000, 0), (65_535, 0), (65_536, 1), (1 << 20, 5), (1 << 30, 14)] {
        let mut script = Script::connecting(|config| {
            scaling(config);
            config.receive_bytes = bytes;
        });
        assert_eq!(script.output()[0].tcp.options.window_scale, Some(shift), "{bytes}");
    }
    let with = Script::syn(&TcpConfig { window_scaling: true, ..plain() });
    let mut script = Script::listening(scaling, &with);
    assert_eq!(script.output()[0].tcp.options.window_scale, Some(5));
    let mut script = Script::listening(scaling, &Script::syn(&plain()));
    assert_eq!(script.output()[0].tcp.options.window_scale, None);
}

/// RFC 7323 2.2, 2.3: windows are scaled in both directions if both ends offer that, but never in a
/// SYN.
#[test]
fn hp4_hp5_hp6_windows_are_scaled_if_both_ends_offer_it_but_not_in_syns() {
    let change = |config: &mut TcpConfig| {
        config.window_scaling = true;
        config.receive_bytes = 1 << 20;
    };
    let mut script = Script::connecting(change);
    assert_eq!(script.output()[0].tcp.window, 65_535);
    script.window = 2000;
    let mut tcp = script.answer();
    tcp.options.window_scale = Some(3);
    let out = script.input(tcp, &[]);
    assert_eq!(out[0].tcp.window, 1 << 15, "a mebibyte in units of 32 bytes");
    script.set_window(40);
    assert_eq!(script.write(50_000).len(), 2, "the window of a SYN is as it is");
    assert_eq!(script.acked(2000).len(), 16, "2000 times 8");
    script.data(1000);
    script.data(1000);
    let out = script.read(2000);
    assert!(out.is_empty() || out[0].tcp.window <= (1 << 15));
    let mut script = Script::open_with(change, |tcp| tcp.options.window_scale = None);
    assert_eq!(script.data(1000), []);
    assert_eq!(script.data(1000)[0].tcp.window, 63_535, "not scaled");
    script.window = 3000;
    script.input(script.head(Flags::ACK), &[]);
    assert_eq!(script.write(50_000).len(), 3);
}

/// RFC 7323 2.3: a larger shift than 14 counts as 14.
#[test]
fn hp7_a_shift_of_more_than_14_counts_as_14() {
    let with = |shift| {
        let mut script = Script::open_with(
            |config| config.window_scaling = true,
            |tcp| (tcp.options.window_scale, tcp.window) = (Some(shift), 2),
        );
        script.window = 2;
        script.input(script.head(Flags::ACK), &[]);
        script.set_window(1000);
        script.write(100_000).iter().map(|out| out.len).sum::<u32>()
    };
    assert_eq!([1, 13, 14, 15, 255].map(with), [4, 16_000, 32_000, 32_000, 32_000]);
}

/// RFC 7323 2.4: what was once in the window of an acknowledgement stays in it, and new data is
/// within the window that the peer reported last.
#[test]
fn hp8_hp9_hp10_windows_that_shrink_are_honoured() {
    let mut script = Script::open(|config| {
        config.window_scaling = true;
        config.receive_bytes = 1 << 20;
    });
    // Units of 32 bytes: a window that is rounded down would take back what the peer knows of.
    let edge = |out: &Out| out.ack + (u32::from(out.tcp.window) << 5);
    let mut last = 0;
    for n in 1..200 {
        script.data(2 * n % 7 + 1);
        for out in script.wait(SECOND) {
            assert!(edge(&out) >= last, "{} to {last}", edge(&out));
            last = edge(&out);
        }
    }
    let before = script.connection.readable() as u32;
    assert!(script.connection.receive.is_acceptable(Seq((PEER + 1).wrapping_add(last - 1)), 1));
    script.data_at(last - 1, 1);
    assert_eq!(script.connection.readable() as u32, before);
    let mut script = Script::open(|_| {});
    script.window = 5000;
    script.input(script.head(Flags::ACK), &[]);
    script.window = 2500;
    script.input(script.head(Flags::ACK), &[]);
    assert_eq!(places(&script.write(9000)), [0, 1]);
}
