//! Segments that a peer should not send, or that another host sends in its name (RFC 5961).

use super::*;
use crate::wire::tcp::{SackBlocks, TcpOptions};

/// Two ends that have exchanged some data.
fn established() -> Net {
    let mut net = Net::plain();
    net.ends.iter_mut().for_each(|end| end.closes = false);
    net.give(0, 5000);
    net.give(1, 3000);
    let is_done =
        |net: &Net| net.ends[0].received.len() == 3000 && net.ends[1].received.len() == 5000;
    assert!(net.run_until(SECOND, is_done));
    net.run_until(SECOND, |_| false);
    net.log.clear();
    net
}

/// The header of a segment that end 1 would send now.
fn of_peer(net: &mut Net, flags: Flags) -> Tcp {
    let now = net.now;
    net.connection(1).header(now, flags)
}

/// Gives a segment to end 0. Returns what it sends.
fn inject(net: &mut Net, tcp: Tcp, data: &[u8]) -> Vec<Tcp> {
    let (now, before) = (net.now, net.log.len());
    let segment = Segment { tcp, data, is_marked: false };
    let End { connection, config, .. } = &mut net.ends[0];
    let refusal = connection.as_mut().unwrap().input(now, config, &segment).answer;
    net.work();
    let sent = net.log[before..].iter().filter(|(_, end, ..)| *end == 0).map(|(_, _, tcp, _)| *tcp);
    sent.chain(refusal).collect()
}

fn is_challenge(sent: &[Tcp]) -> bool {
    sent.len() == 1 && sent[0].flags.without(Flags::ECE) == Flags::ACK
}

/// RFC 5961 3.2: only a reset at exactly the next number ends the connection.
#[test]
fn ba1_ba2_ba3_a_reset_must_have_the_exact_number() {
    let mut net = established();
    let reset = of_peer(&mut net, Flags::RST);
    for distance in [1, 1000, 60_000] {
        let sent = inject(&mut net, Tcp { seq: reset.seq.wrapping_add(distance), ..reset }, &[]);
        assert!(is_challenge(&sent), "{distance}: {sent:?}");
    }
    for distance in [-1_i32, -70_000, i32::MIN, 1 << 24] {
        let seq = reset.seq.wrapping_add(distance as u32);
        assert_eq!(inject(&mut net, Tcp { seq, ..reset }, &[]), [], "{distance}");
    }
    assert_eq!(net.state(0), TcpState::Established);
    assert_eq!(inject(&mut net, reset, &[]), []);
    assert_eq!(net.connection(0).error(), Some(TcpError::Reset));
}

/// RFC 5961 4.2: a SYN never ends a connection.
#[test]
fn ba4_a_syn_is_challenged() {
    let mut net = established();
    let syn = of_peer(&mut net, Flags::SYN);
    for distance in [0_i32, 100, -100, 1 << 30] {
        let seq = syn.seq.wrapping_add(distance as u32);
        let sent = inject(&mut net, Tcp { seq, ..syn }, &[]);
        assert!(is_challenge(&sent), "{distance}: {sent:?}");
    }
    assert_eq!(net.state(0), TcpState::Established);
}

/// RFC 5961 7: at most ten challenges a second.
#[test]
fn ba7_challenges_are_limited() {
    let mut net = established();
    let syn = of_peer(&mut net, Flags::SYN);
    let sent = (0..1000).map(|_| inject(&mut net, syn, &[]).len()).sum::<usize>();
    assert_eq!(sent, 10);
    net.now = net.now.after(SECOND);
    assert_eq!(inject(&mut net, syn, &[]).len(), 1);
}

/// Two ends whose numbers do not fit answered each other's acknowledgements without an end, when
/// one forged segment had begun it.
#[test]
fn acknowledgements_that_are_out_of_the_window_are_answered_rarely() {
    let mut net = established();
    let head = of_peer(&mut net, Flags::ACK);
    let wrong = Tcp { seq: head.seq.wrapping_sub(1000), ..head };
    let sent = (0..1000).map(|_| inject(&mut net, wrong, &[]).len()).sum::<usize>();
    assert_eq!(sent, 10);
    let sent = (0..1000).map(|_| inject(&mut net, wrong, b"data").len()).sum::<usize>();
    assert_eq!(sent, 1000, "data that comes again shows that an acknowledgement was lost");
}

/// RFC 5961 5.2: an acknowledgement of what was never sent, or of long ago, brings no data in.
#[test]
fn ba6_data_needs_a_sound_acknowledgement() {
    let mut net = established();
    let data = of_peer(&mut net, Flags::ACK);
    for distance in [1_i32, 1000, i32::MAX, -(1 << 26)] {
        let ack = data.ack.wrapping_add(distance as u32);
        let sent = inject(&mut net, Tcp { ack, ..data }, b"forged");
        assert!(is_challenge(&sent), "{distance}: {sent:?}");
    }
    let no_ack = Tcp { flags: Flags::default(), ..data };
    assert_eq!(inject(&mut net, no_ack, b"forged"), []);
    assert_eq!(net.ends[0].received.len(), 3000);
    inject(&mut net, data, b"genuine");
    assert_eq!(net.ends[0].received.len(), 3007);
}

/// RFC 7323 5.3: a segment with an old time is an old duplicate, and one without a time is dropped.
#[test]
fn hp13_hp22_old_duplicates_are_dropped() {
    let mut net = established();
    let data = of_peer(&mut net, Flags::ACK);
    let (time, echo) = data.options.timestamps.unwrap();
    let old = TcpOptions { timestamps: Some((time.wrapping_sub(5000), echo)), ..data.options };
    let sent = inject(&mut net, Tcp { options: old, ..data }, b"old");
    assert!(is_challenge(&sent), "{sent:?}");
    let none = Tcp { options: TcpOptions::default(), ..data };
    assert_eq!(inject(&mut net, none, b"old"), []);
    assert_eq!(net.ends[0].received.len(), 3000);
}

/// Data behind a gap takes no more memory than the buffer, and few ranges.
#[test]
fn data_behind_gaps_is_limited() {
    let mut net = established();
    let head = of_peer(&mut net, Flags::ACK);
    for n in 1..2000_u32 {
        let seq = head.seq.wrapping_add(2 * n);
        inject(&mut net, Tcp { seq, ..head }, b"x");
    }
    for far in [1 << 20, 1 << 24, 1 << 31] {
        inject(&mut net, Tcp { seq: head.seq.wrapping_add(far), ..head }, b"x");
    }
    assert_eq!(net.connection(0).readable(), 0);
    inject(&mut net, head, b"ab");
    assert_eq!(net.ends[0].received.len(), 3003, "the first gap is filled, and no other");
}

/// SACK blocks that name nothing, or what was never sent, change nothing.
#[test]
fn blocks_that_lie_are_ignored() {
    let mut net = established();
    net.faults.loss_ppm = 1_000_000;
    net.ends[0].to_send.extend([7; 20_000]);
    net.work();
    let flight = net.connection(0).pipe();
    assert!(flight > 5000, "{flight}");
    let head = of_peer(&mut net, Flags::ACK);
    for (left, right) in [(0, 0), (10, 10), (100, 50), (0, 1 << 20), (1 << 31, 1 << 30)] {
        let mut sack = SackBlocks::default();
        sack.push((head.ack.wrapping_add(left), head.ack.wrapping_add(right)));
        inject(&mut net, Tcp { options: TcpOptions { sack, ..head.options }, ..head }, &[]);
        assert_eq!(net.connection(0).pipe(), flight, "{left} {right}");
    }
}

/// Acknowledgements of every single byte open the window by no more than the bytes (RFC 5681 9).
#[test]
fn cc8_divided_acknowledgements_gain_nothing() {
    let mut net = established();
    net.faults.loss_ppm = 1_000_000;
    let before = net.connection(0).send.congestion.window();
    net.ends[0].to_send.extend([7; 1400]);
    net.work();
    let head = of_peer(&mut net, Flags::ACK);
    for n in 1..=1400_u32 {
        inject(&mut net, Tcp { ack: head.ack.wrapping_add(n), ..head }, &[]);
    }
    assert!(net.connection(0).send.congestion.window() <= before + 1400);
}

/// RFC 9293 3.8.6.1: a window that stays closed is probed for ever, ever more rarely.
#[test]
fn tm36_tm37_ts30_a_closed_window_is_probed() {
    let mut net = established();
    net.ends[1].reads = 0;
    net.ends[0].to_send.extend(core::iter::repeat_n(7, 3_000_000));
    net.run_until(1000 * SECOND, |_| false);
    let times: Vec<_> = net.log.iter().filter(|l| l.1 == 0).map(|l| l.0).collect();
    let waits: Vec<_> = times.windows(2).map(|t| t[1].since(t[0])).collect();
    let last = waits[waits.len() - 3..].to_vec();
    assert!(last.iter().all(|ns| *ns >= 100 * SECOND && *ns <= 130 * SECOND), "{last:?}");
    assert_eq!(net.connection(0).error(), None);
    net.ends[1].reads = usize::MAX;
    assert!(net.run_until(200 * SECOND, |net| net.ends[1].received.len() == 3_005_000));
}

/// RFC 9293 3.10.7.1: there is no connection, so a segment is refused, and a reset is not.
#[test]
fn segments_without_a_connection_are_refused() {
    let of = |flags, seq, ack| {
        let tcp = Tcp { from: 1, to: 2, seq, ack, flags, ..Tcp::default() };
        refusal(&Segment { tcp, data: b"abc", is_marked: false })
    };
    let head = Tcp { from: 2, to: 1, ..Tcp::default() };
    let syn = Tcp { ack: 14, flags: Flags::RST.with(Flags::ACK), ..head };
    assert_eq!(of(Flags::SYN, 10, 0), Some(syn));
    assert_eq!(of(Flags::ACK, 10, 99), Some(Tcp { seq: 99, flags: Flags::RST, ..head }));
    assert_eq!(of(Flags::RST, 10, 99), None);
}

/// Any segment at all: nothing panics, and what the programs get is a part of what was sent.
#[test]
fn any_segment() {
    for seed in 0..200 {
        let mut net = established();
        let mut rng = Rng::seeded(seed);
        net.ends[0].to_send.extend([7; 9000]);
        net.work();
        for _ in 0..100 {
            let head = of_peer(&mut net, Flags(rng.u32() as u8));
            let near = |value: u32, rng: &mut Rng| {
                let far = [1, 2000, 1 << 16, 1 << 31][rng.below(4) as usize];
                value.wrapping_add(rng.below(far) as u32).wrapping_sub(rng.below(far) as u32)
            };
            let mut sack = SackBlocks::default();
            for _ in 0..rng.below(5) {
                let left = near(head.ack, &mut rng);
                sack.push((left, near(left, &mut rng)));
            }
            let options = TcpOptions {
                sack,
                mss: rng.chance(100_000).then(|| rng.u32() as u16),
                timestamps: head.options.timestamps.filter(|_| rng.chance(900_000)),
                ..TcpOptions::default()
            };
            let (seq, ack) = (near(head.seq, &mut rng), near(head.ack, &mut rng));
            let window = rng.u32() as u16;
            let data = alloc::vec![1; rng.below(2000) as usize];
            inject(&mut net, Tcp { seq, ack, window, options, ..head }, &data);
            net.now = net.now.after(rng.below(SECOND));
            let now = net.now;
            let End { connection, config, .. } = &mut net.ends[0];
            connection.as_mut().unwrap().tick(now, config);
            net.work();
        }
    }
}

/// Without SACK each duplicate acknowledgement counts as a segment that was delivered, however many
/// a peer sends while it acknowledges nothing. Their bytes once passed 2³².
#[test]
fn duplicates_without_end_do_no_harm() {
    let config = TcpConfig { sack: false, ..TcpConfig::default() };
    let mut net = Net::new([config.clone(), config.clone()], Faults::default(), 1);
    net.ends.iter_mut().for_each(|end| end.closes = false);
    net.run_until(SECOND, |net| net.state(1) == TcpState::Established);
    let duplicate = of_peer(&mut net, Flags::ACK);
    assert_eq!(net.connection(0).write(&config, &[1; 1000]), 1000);
    net.work();
    for many in [3_000_000, u32::MAX - 1] {
        net.connection(0).send.duplicates = many;
        (0..3).for_each(|_| _ = inject(&mut net, duplicate, &[]));
    }
    assert_eq!(net.connection(0).send.duplicates, u32::MAX);
    assert_eq!(net.connection(0).pipe(), 0);
}
