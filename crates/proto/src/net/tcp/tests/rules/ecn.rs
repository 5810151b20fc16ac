//! Rules of explicit congestion notification (RFC 3168 6.1).

use super::*;

fn open() -> Script {
    Script::open(|config| config.ecn = true)
}

/// Takes a segment of data of the peer, whose packet may be marked.
fn data(script: &mut Script, flags: Flags, len: usize, is_marked: bool) -> Vec<Out> {
    let tcp = script.head(flags);
    script.peer += len as u32;
    let segment = Segment { tcp, data: &alloc::vec![1; len], is_marked };
    script.connection.input(script.now, &script.config, &segment);
    script.output()
}

fn echo(script: &Script, place: u32) -> Tcp {
    let tcp = script.ack(place);
    Tcp { flags: tcp.flags.with(Flags::ECE), ..tcp }
}

/// RFC 3168 6.1.1: a SYN has ECE and CWR, and the answer to such a one ECE. Neither is ECT.
#[test]
fn ec2_ec4_ts8_syns_agree_on_ecn() {
    let setup = Flags::SYN.with(Flags::ECE).with(Flags::CWR);
    let mut script = Script::connecting(|config| config.ecn = true);
    let out = script.output();
    assert_eq!((out[0].tcp.flags, out[0].is_ect), (setup, false));
    script.input(script.answer(), &[]);
    assert!(script.write(3000).iter().all(|out| out.is_ect));
    let both = Flags::ECE.with(Flags::CWR);
    for (flags, answers) in
        [(both, true), (Flags::ECE, false), (Flags::CWR, false), (Flags(0), false)]
    {
        let syn = Tcp { flags: Flags::SYN.with(flags), ..Script::syn(&plain()) };
        let mut script = Script::listening(|config| config.ecn = true, &syn);
        let out = script.output();
        assert_eq!((out[0].has(Flags::ECE), out[0].has(Flags::CWR)), (answers, false));
        assert!(!out[0].is_ect);
    }
}

/// RFC 3168 6.1.1: without the agreement of both ends no packet is ECT, and no mark is answered. An
/// answer that returns both flags agrees to nothing (6.1.1.2).
#[test]
fn ec3_ec15_ec16_without_an_agreement_no_packet_is_ect() {
    for flags in [Flags(0), Flags::CWR, Flags::ECE.with(Flags::CWR)] {
        let mut script = Script::open_with(
            |config| config.ecn = true,
            |tcp| tcp.flags = Flags::SYN.with(Flags::ACK).with(flags),
        );
        assert!(script.write(3000).iter().all(|out| !out.is_ect && !out.has(Flags::CWR)));
        data(&mut script, Flags::ACK, 1000, true);
        assert!(!data(&mut script, Flags::ACK, 1000, true)[0].has(Flags::ECE));
    }
    let mut script = Script::connecting(|config| config.ecn = false);
    assert_eq!(script.output()[0].tcp.flags, Flags::SYN);
    let config = TcpConfig { ecn: true, ..plain() };
    let mut script = Script::listening(|_| {}, &Script::syn(&config));
    assert_eq!(script.output()[0].tcp.flags, Flags::SYN.with(Flags::ACK));
}

/// RFC 3168 6.1.2: an echo of a mark halves the window once a round trip, and opens it by nothing.
/// The next new data tells the peer, once.
#[test]
fn ec6_ec7_an_echo_halves_the_window_once_a_round_trip() {
    let mut script = open();
    script.set_window(20);
    script.write(100_000);
    assert_eq!(script.input(echo(&script, 1000), &[]), []);
    assert_eq!((script.window(), script.threshold()), (10_000, 10_000));
    let mut sent = Vec::new();
    for n in 2..=20 {
        sent.extend(script.input(echo(&script, n * MSS), &[]));
        assert!(script.window() <= 10_000);
    }
    let told: Vec<_> = sent.iter().map(|out| out.has(Flags::CWR)).collect();
    assert!(told.len() > 5 && told[0] && !told[1..].contains(&true), "{told:?}");
    // The next round trip.
    script.input(echo(&script, 21_000), &[]);
    assert!(script.window() <= 5000, "{}", script.window());
}

/// RFC 3168 6.1.2: a round trip with a mark and a loss halves the window once.
#[test]
fn ec19_a_mark_and_a_loss_in_one_round_trip_halve_the_window_once() {
    let mut script = open();
    script.set_window(20);
    script.write(20_000);
    script.now = script.now.after(TRIP);
    script.input(echo(&script, 1000), &[]);
    assert_eq!(script.threshold(), 10_000);
    let mut tcp = script.sack(1000, &[(2000, 6000)]);
    tcp.flags = tcp.flags.with(Flags::ECE);
    assert_eq!(places(&script.input(tcp, &[]))[0], 1, "sent again");
    assert_eq!(script.threshold(), 10_000);
}

/// RFC 3168 6.1.2: CWR reports each reduction of the window, that after a loss or a timeout
/// too, but not on a retransmission.
#[test]
fn ec9_ec18_the_first_new_data_after_any_reduction_tells_the_peer() {
    let mut script = open();
    script.write(40_000);
    script.now = script.now.after(TRIP);
    let mut sent = script.input(script.sack(0, &[(1000, 5000)]), &[]);
    for end in 6..=10 {
        sent.extend(script.input(script.sack(0, &[(1000, end * MSS)]), &[]));
    }
    sent.extend(script.acked(10_000));
    check_told(&sent, 10_000);
    let mut script = open();
    script.write(40_000);
    let mut sent = script.wait(700 * MS);
    assert_eq!(script.window(), 1000);
    let first = sent.iter().map(|out| out.place + out.len).max().unwrap_or(0).max(10_000);
    for n in 1..=5 {
        sent.extend(script.acked(2000 * n));
    }
    sent.extend(script.acked(script.end));
    check_told(&sent, first);
}

/// Checks that no segment before `new` has CWR, and of those from there on the first alone.
fn check_told(sent: &[Out], new: u32) {
    let (again, fresh): (Vec<_>, Vec<_>) = sent.iter().partition(|out| out.place < new);
    assert!(!again.is_empty() && again.iter().all(|out| !out.has(Flags::CWR)), "{sent:?}");
    let told: Vec<_> = fresh.iter().map(|out| out.has(Flags::CWR)).collect();
    assert!(told.len() > 1 && told[0] && !told[1..].contains(&true), "{sent:?}");
}

/// RFC 3168 6.1.3: after a mark all acknowledgements have ECE, until the peer has answered by CWR.
#[test]
fn ec10_ec17_marks_are_echoed_until_the_peer_answers() {
    let mut script = open();
    data(&mut script, Flags::ACK, 1000, true);
    for _ in 0..4 {
        let out = data(&mut script, Flags::ACK, 2000, false);
        assert!(is_ack(&out) && out[0].has(Flags::ECE), "{out:?}");
    }
    assert!(script.write(100)[0].has(Flags::ECE), "data has the echo too");
    let out = data(&mut script, Flags::CWR, 2000, false);
    assert!(!out[0].has(Flags::ECE), "{out:?}");
    let out = data(&mut script, Flags::CWR, 2000, true);
    assert!(out[0].has(Flags::ECE), "the answer was marked itself");
}

/// RFC 3168 6.1.4, 6.1.5, 6.1.6: acknowledgements, retransmissions and probes of a window are not
/// ECT, and have no CWR.
#[test]
fn ec11_ec12_ec14_only_new_data_is_ect() {
    let mut script = open();
    assert!(script.write(3000).iter().all(|out| out.is_ect));
    let out = script.wait(SECOND);
    assert!(!out.is_empty() && out.iter().all(|out| !out.is_ect && out.place < 3000), "{out:?}");
    script.window = 0;
    assert!(!script.data(2000)[0].is_ect);
    script.connection.send.tells_reduced = true;
    script.write(1000);
    let out = script.wait(5 * SECOND);
    assert!(!out.is_empty(), "{out:?}");
    assert!(out.iter().all(|out| !out.is_ect && !out.has(Flags::CWR)), "{out:?}");
}

/// RFC 3168 6.1.5: a mark of a segment out of the window says nothing.
#[test]
fn ec13_the_mark_of_a_segment_out_of_the_window_is_ignored() {
    let mut script = open();
    data(&mut script, Flags::ACK, 2000, false);
    for seq in [PEER.wrapping_sub(5000), PEER.wrapping_add(1 << 30)] {
        let tcp = Tcp { seq, ..script.head(Flags::ACK) };
        let segment = Segment { tcp, data: &[1; 100], is_marked: true };
        script.connection.input(script.now, &script.config, &segment);
        let out = script.output();
        assert!(is_ack(&out) && !out[0].has(Flags::ECE), "{out:?}");
    }
}
