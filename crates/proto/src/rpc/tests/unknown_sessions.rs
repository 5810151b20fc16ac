//! Tests that packets of unknown and forged sessions change no state.

use super::{Net, Seen, pattern};
use crate::rpc::{Config, SessionId};
use crate::time::{MS, SECOND};
use crate::wire::rpc::{Kind, Packet, TO_CLIENT};
use crate::{Addr, Rng};

/// Opens a session of host 1, whose request at host 0 waits for its reply.
fn waiting() -> (Net, SessionId) {
    let mut net = Net::new(1, 2, false);
    net.hosts[0].echo = false;
    let session = net.connect(1, 0);
    net.request(1, session, 1, pattern(1, 5000));
    net.record();
    assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
    (net, session)
}

/// Checks that the waiting request is answered as if no forged packet had arrived.
fn still_works(net: &mut Net) {
    let Seen::Request(rpc, ref bytes, _) = net.seen(0)[0] else { panic!() };
    assert_eq!(*bytes, pattern(1, 5000));
    net.hosts[0].endpoint.reply(net.now, rpc, pattern(2, 5000).into());
    assert!(net.run(10 * SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert!(
        matches!(&net.seen(1)[..], [Seen::Response(_, 1, bytes)] if *bytes == pattern(2, 5000))
    );
    assert_eq!(net.stats(0).requests, 1);
    assert_eq!(net.stats(0).sessions_opened, 1);
}

#[test]
fn a_storm_of_opens_leaves_nothing_behind() {
    let (mut net, _) = waiting();
    let open = net.sent(1, 0).into_iter().find(|(p, _)| p.kind == Kind::Open).expect("an OPEN");
    let before = net.stats(0);
    for n in 0..5000 {
        // With no cookie, then with a guess, and with a cookie that was another's.
        let (mut packet, mut body) = open.clone();
        packet.token = n;
        body[16..24].copy_from_slice(&(n % 3 * 77).to_be_bytes());
        let datagram = net.datagram(&packet, &body);
        net.inject(Addr::Local(1000 + n), 0, datagram);
        if n % 100 == 0 {
            net.settle();
        }
    }
    net.settle();
    let after = net.stats(0);
    assert_eq!(after.sessions_opened, before.sessions_opened);
    assert_eq!(net.hosts[0].endpoint.sizes(), net.hosts[0].endpoint.sizes());
    assert_eq!(net.hosts[0].endpoint.sizes().peers, 1);
    assert!(after.cookies > 4000 && after.drop_cookie > 3000);
    // Expect: no answer is longer than the question.
    let shared = net.shared.borrow();
    let longest =
        shared.trace.iter().flatten().filter(|d| d.0 == Addr::Local(0)).map(|d| d.2.len()).max();
    let opens = shared.trace.iter().flatten().filter(|d| d.1 == Addr::Local(0)).map(|d| d.2.len());
    assert!(longest <= opens.chain([68]).max());
    drop(shared);
    still_works(&mut net);
}

#[test]
fn a_doubled_open_opens_one_session() {
    let mut net = Net::new(2, 2, false);
    net.fault(crate::fault::Fault {
        duplicate_ppm: 1_000_000,
        reorder_ns: 3 * MS,
        ..Default::default()
    });
    for n in 0..500 {
        let session = net.connect(1, 0);
        net.request(1, session, n, pattern(n, 10));
    }
    assert!(net.run(10 * SECOND, |net| net.hosts[1].seen.len() == 500));
    net.run(100 * MS, |_| false);
    assert_eq!(net.stats(0).sessions_opened, 500);
    assert!(net.stats(0).opens_repeated + net.stats(0).drop_stale > 100);
}

#[test]
fn forged_packets_change_nothing() {
    let (mut net, _) = waiting();
    let mut rng = Rng::seeded(3);
    let real =
        net.sent(1, 0).into_iter().rfind(|(p, _)| p.kind == Kind::Data).expect("a request").0;
    let before = (net.hosts[0].endpoint.sizes(), net.hosts[1].endpoint.sizes());
    for n in 0..20_000 {
        let kinds = [
            Kind::Data,
            Kind::Grant,
            Kind::Nack,
            Kind::Probe,
            Kind::Busy,
            Kind::Unknown,
            Kind::Gone,
            Kind::Done,
            Kind::NeedAck,
            Kind::Cookie,
            Kind::Accept,
            Kind::Close,
            Kind::Reset,
        ];
        let mut packet = Packet { kind: kinds[n % kinds.len()], ..real };
        packet.flags = rng.below(32) as u8;
        packet.seq = real.seq + rng.below(3) as u32;
        packet.channel = rng.below(2) as u8;
        packet.msg_len = 5000;
        packet.offset = rng.below(4) as u32 * 1432;
        // One field is wrong: the token, the session, its generation, or the sender's address.
        let mut from = Addr::Local(1);
        match rng.below(4) {
            0 => packet.token ^= 1 << rng.below(64),
            1 => packet.session = packet.session.wrapping_add(1 + rng.below(1 << 20) as u32),
            2 => packet.session ^= 1 << (24 + rng.below(8)),
            _ => from = Addr::Local(77),
        }
        let len = if packet.offset == 3 * 1432 { 704 } else { 1432 };
        let datagram = net.datagram(&packet, &pattern(7, len));
        let to = usize::from(packet.flags & TO_CLIENT != 0);
        let from = if to == 1 && from == Addr::Local(1) { Addr::Local(0) } else { from };
        net.inject(from, to, datagram);
        if n % 100 == 0 {
            net.settle();
        }
    }
    net.settle();
    assert_eq!(before, (net.hosts[0].endpoint.sizes(), net.hosts[1].endpoint.sizes()));
    let (server, client) = (net.stats(0), net.stats(1));
    assert!(
        server.drop_token > 100 && server.drop_session > 100 && server.drop_address > 100,
        "{server:?}"
    );
    assert!(
        client.drop_token > 100 && client.drop_session > 100 && client.drop_address > 100,
        "{client:?}"
    );
    assert_eq!((client.failures, server.requests), (0, 1));
    assert!(server.resets <= 1000);
    still_works(&mut net);
}

/// Every packet of a real exchange arrives with each bit flipped, cut at each length, and then
/// repeated as it was. No endpoint changes its state.
#[test]
fn damaged_and_repeated_packets_change_nothing() {
    let mut net = Net::new(4, 2, false);
    net.record();
    let session = net.connect(1, 0);
    net.request(1, session, 1, pattern(1, 300));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    net.run(SECOND, |_| false);
    net.seen(0);
    net.seen(1);
    let all = net.shared.borrow_mut().trace.take().expect("recorded");
    assert!(all.len() >= 7, "opening, an echo and its DONE");
    let before = (net.hosts[0].endpoint.sizes(), net.hosts[1].endpoint.sizes());
    for (from, to, bytes) in &all {
        let to = super::local(*to) as usize;
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            net.inject(*from, to, flipped);
        }
        for len in 0..bytes.len() {
            net.inject(*from, to, bytes[..len].to_vec());
        }
        net.inject(*from, to, bytes.clone());
        net.settle();
    }
    assert_eq!(net.seen(0), []);
    assert_eq!(net.seen(1), []);
    assert_eq!(before, (net.hosts[0].endpoint.sizes(), net.hosts[1].endpoint.sizes()));
    let (server, client) = (net.stats(0), net.stats(1));
    assert_eq!((server.requests, server.sessions_opened, client.responses), (1, 1, 1));
    assert!(server.drop_checksum > 1000 && client.drop_checksum > 1000);
}

#[test]
fn a_client_that_does_not_serve_opens_nothing() {
    let mut net = Net::new(5, 3, false);
    let session = net.connect(1, 2);
    assert!(net.run(30 * SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert_eq!(net.seen(1), [Seen::Closed(session, crate::rpc::CloseReason::Unreachable)]);
    assert!(net.stats(2).drop_not_serving > 0);
}

#[test]
fn sessions_have_a_limit() {
    let mut net = Net::new(6, 0, false);
    net.add(Config { max_sessions: 3, ..Config::default() });
    net.add(Config::default());
    let sessions: alloc::vec::Vec<_> = (0..4).map(|_| net.connect(1, 0)).collect();
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert_eq!(net.seen(1), [Seen::Closed(sessions[3], crate::rpc::CloseReason::Reset)]);
    // Expect: one that ends makes room.
    let now = net.now;
    net.hosts[1].endpoint.close(now, sessions[0]);
    net.settle();
    let session = net.connect(1, 0);
    net.request(1, session, 1, pattern(1, 10));
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 2));
}
