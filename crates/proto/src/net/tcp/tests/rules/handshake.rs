//! Rules of how connections begin and end (RFC 9293 3.5, 3.6, 3.8.3).

use super::*;

/// RFC 9293 3.5, figure 8: SYNs cross, and the answers to them too.
#[test]
fn tm10_both_ends_may_connect_to_each_other() {
    let mut script = Script::connecting(|_| {});
    assert!(script.output()[0].tcp.flags == Flags::SYN);
    let out = script.input(Script::syn(&script.config), &[]);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].tcp.flags, Flags::SYN.with(Flags::ACK));
    assert_eq!((out[0].tcp.seq, out[0].tcp.ack), (OWN, PEER + 1));
    assert_eq!(script.connection.state(), TcpState::SynReceived);
    let out = script.input(script.answer(), &[]);
    assert!(is_ack(&out), "{out:?}");
    assert_eq!((out[0].place, out[0].ack), (0, 0));
    assert_eq!(script.connection.state(), TcpState::Established);
    assert_eq!(script.write(1000)[0].place, 0);
    script.data(10);
    assert_eq!(script.connection.readable(), 10);
}

/// RFC 9293 3.5, figure 8, with ends of ours on both sides.
#[test]
fn tm10_both_ends_of_ours_may_connect_to_each_other() {
    let mut net = Net::plain();
    let config = net.ends[1].config.clone();
    net.ends[1].connection = Some(Connection::connect(net.now, &config, (8, 7), 77, 5));
    net.give(0, 5000);
    net.give(1, 5000);
    net.complete(SECOND, [5000, 5000]).unwrap();
    assert!(net.log.len() < 25, "{} segments", net.log.len());
}

/// RFC 9293 3.10.7.4: a reset takes back a connection of a listener, and refuses one of a program.
#[test]
fn tm11_a_reset_in_the_handshake_depends_on_the_end_that_has_begun_it() {
    let mut active = Script::connecting(|_| {});
    active.output();
    active.input(Script::syn(&active.config), &[]);
    assert_eq!(active.connection.state(), TcpState::SynReceived);
    active.input(active.head(Flags::RST), &[]);
    assert_eq!(active.connection.error(), Some(TcpError::Refused));
    let mut passive = Script::listening(|_| {}, &Script::syn(&plain()));
    passive.output();
    passive.input(passive.head(Flags::RST), &[]);
    assert_eq!(passive.connection.state(), TcpState::Closed);
    assert_eq!(passive.connection.error(), Some(TcpError::Reset));
}

/// RFC 9293 3.6: the program can tell an end from an abort.
#[test]
fn tm12_the_program_learns_whether_the_connection_was_reset() {
    let mut script = Script::open(|_| {});
    let fin = script.head(Flags::FIN);
    script.peer += 1;
    script.input(fin, &[]);
    assert!(script.connection.is_finished());
    script.connection.close();
    assert!(script.output()[0].has(Flags::FIN));
    script.acked(script.end);
    assert_eq!((script.connection.state(), script.connection.error()), (TcpState::Closed, None));
    let mut script = Script::open(|_| {});
    script.input(script.head(Flags::RST), &[]);
    assert!(!script.connection.is_finished());
    assert_eq!(script.connection.error(), Some(TcpError::Reset));
}

/// RFC 9293 3.6.1: TIME-WAIT of the end that has closed first lasts 2 MSL.
#[test]
fn tm13_time_wait_lasts_as_long_as_the_options_say() {
    let mut script = Script::open(|config| config.time_wait_ns = 240 * SECOND);
    script.connection.close();
    script.output();
    script.acked(script.end);
    assert_eq!(script.connection.state(), TcpState::FinWait2);
    let fin = script.head(Flags::FIN);
    script.peer += 1;
    let out = script.input(fin, &[]);
    assert!(is_ack(&out) && out[0].ack == 1, "{out:?}");
    script.wait(240 * SECOND - 1);
    assert_eq!(script.connection.state(), TcpState::TimeWait);
    script.wait(1);
    assert_eq!(script.connection.state(), TcpState::Closed);
    assert_eq!(TcpConfig::default().time_wait_ns, 60 * SECOND, "with an MSL of 30 seconds");
}

/// RFC 9293 3.8.3 (d): SYNs are sent again as data is, for at least three minutes.
#[test]
fn tm22_tm23_a_syn_is_sent_again_for_three_minutes() {
    let mut script = Script::connecting(|_| {});
    let first = script.output();
    let out = script.wait(179 * SECOND);
    assert_eq!(script.connection.error(), None);
    assert!(out.iter().all(|out| out.tcp.seq == first[0].tcp.seq && out.has(Flags::SYN)));
    let seconds: Vec<_> = out.iter().map(|out| out.at / SECOND).collect();
    assert_eq!(seconds, [1, 3, 7, 15, 31, 63, 127]);
    script.wait(300 * SECOND);
    assert_eq!(script.connection.error(), Some(TcpError::TimedOut));
}

/// RFC 9293 3.8.3 (a), (c), (d): data without an acknowledgement ends the connection after the time
/// that the program has set, 100 seconds at least by default.
#[test]
fn tm20_ts11_data_that_is_not_acknowledged_ends_the_connection() {
    let mut script = Script::open(|_| {});
    script.write(1000);
    let out = script.wait(100 * SECOND);
    assert!(out.len() >= 3, "{out:?}");
    assert_eq!(script.connection.error(), None);
    script.wait(140 * SECOND);
    assert_eq!(script.connection.error(), Some(TcpError::TimedOut));
    let mut script = Script::open(|config| config.user_timeout_ns = 1000 * SECOND);
    script.write(1000);
    script.wait(990 * SECOND);
    assert_eq!(script.connection.error(), None);
    script.wait(200 * SECOND);
    assert_eq!(script.connection.error(), Some(TcpError::TimedOut));
}

/// RFC 9293 3.8.4: no probe without the option.
#[test]
fn tm25_tm28_there_is_no_keep_alive_by_default() {
    assert_eq!(TcpConfig::default().keep_alive_ns, None);
    let mut script = Script::open(|_| {});
    assert_eq!(script.wait(100_000 * SECOND), []);
    assert_eq!(script.connection.state(), TcpState::Established);
}

/// RFC 9293 3.8.4: probes leave after the time of silence that the program has set, have an old
/// number and no data, and one that is lost is not the end.
#[test]
fn tm27_tm29_ts12_a_silent_peer_is_probed_without_data() {
    let mut script = Script::open(|config| config.keep_alive_ns = Some(7200 * SECOND));
    script.data(10);
    assert!(is_ack(&script.wait(MS * 100)));
    let out = script.wait(5 * 7200 * SECOND);
    assert_eq!(out.len(), 5, "{out:?}");
    assert!(out.iter().all(|o| o.len == 0 && o.place == u32::MAX && o.tcp.flags == Flags::ACK));
    assert_eq!(out[0].at, 7200 * SECOND);
    assert_eq!(script.connection.state(), TcpState::Established);
    script.input(script.head(Flags::ACK), &[]);
    script.wait(30 * 7200 * SECOND);
    assert_eq!(script.connection.error(), Some(TcpError::TimedOut), "a peer that is gone");
}

/// RFC 9293 3.8.4: neither data in flight nor segments that arrive leave room for probes.
#[test]
fn tm26_no_probe_leaves_while_data_is_in_flight_or_arrives() {
    let mut script = Script::open(|config| config.keep_alive_ns = Some(2 * SECOND));
    for _ in 0..10 {
        script.wait(SECOND);
        let out = script.data(2000);
        assert!(is_ack(&out) && out[0].place == 0, "{out:?}");
    }
    script.write(1000);
    let out = script.wait(60 * SECOND);
    assert!(out.len() > 3 && out.iter().all(|out| out.len > 0), "{out:?}");
}
