//! Tests of the sequence numbers of requests, past, present and future, at the server, one crafted
//! packet at a time.

use alloc::vec::Vec;

use super::{Host, Net, Seen};
use crate::Addr;
use crate::rpc::{Config, Message, ServerRpc};
use crate::time::{MS, SECOND};
use crate::wire::rpc::{
    AcceptBody, DoneEntry, EXECUTING, Kind, OpenBody, Packet, ProbeBody, SEQ_MAX, TTL,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// A client that sends crafted packets: it has host 1's address and no endpoint.
struct Bare {
    net: Net,
    session: u32,
    token: u64,
}

impl Bare {
    fn new(config: Config) -> Self {
        let mut net = Net::new(1, 0, true);
        net.add(config);
        net.hosts[0].echo = false;
        net.record();
        let mut open = Packet::new(Kind::Open);
        open.token = 99;
        open.offset = 7;
        let body = OpenBody {
            features: 0.into(),
            max_payload: 8192.into(),
            unscheduled: 65536.into(),
            epoch: 0.into(),
            cookie: 0.into(),
            incarnation: 5.into(),
        };
        let datagram = net.datagram(&open, body.as_bytes());
        net.inject(Addr::Local(1), 0, datagram);
        net.settle();
        let answers = net.sent(0, 1);
        assert_eq!(
            (answers[0].0.kind, answers[0].0.session, answers[0].0.token),
            (Kind::Accept, 7, 99)
        );
        let accept = AcceptBody::ref_from_bytes(&answers[0].1).expect("its body");
        Self { session: accept.session.get(), token: accept.token.get(), net }
    }

    fn packet(&self, kind: Kind, seq: u32) -> Packet {
        let mut packet = Packet::new(kind);
        packet.session = self.session;
        packet.token = self.token;
        packet.channel = 2;
        packet.seq = seq;
        packet
    }

    /// Sends a packet to the server; returns the kinds and sequence numbers of the packets that the
    /// server sends back.
    fn send(&mut self, packet: &Packet, body: &[u8]) -> Vec<(Kind, u32)> {
        let datagram = self.net.datagram(packet, body);
        self.net.inject(Addr::Local(1), 0, datagram);
        self.net.settle();
        self.net.sent(0, 1).iter().map(|(packet, _)| (packet.kind, packet.seq)).collect()
    }

    fn data(&mut self, seq: u32) -> Vec<(Kind, u32)> {
        let mut packet = self.packet(Kind::Data, seq);
        packet.msg_len = 1;
        self.send(&packet, &[seq as u8])
    }

    fn probe(&mut self, seq: u32) -> Vec<(Kind, u32)> {
        let packet = self.packet(Kind::Probe, seq);
        let body = ProbeBody { client: 7.into(), received: 0.into(), granted: 100.into() };
        self.send(&packet, body.as_bytes())
    }

    /// The requests that the server's application got since the last call.
    fn requests(&mut self) -> Vec<ServerRpc> {
        let seen = self.net.seen(0).into_iter();
        seen.map(|seen| if let Seen::Request(rpc, ..) = seen { rpc } else { panic!("{seen:?}") })
            .collect()
    }

    fn reply(&mut self, rpc: ServerRpc) -> Vec<(Kind, u32)> {
        self.net.hosts[0].endpoint.reply(self.net.now, rpc, Message::from(&b"yes"[..]));
        self.net.settle();
        self.net.sent(0, 1).iter().map(|(packet, _)| (packet.kind, packet.seq)).collect()
    }

    /// Makes the wire one that may lose packets, and so one whose server retains replies.
    fn set_lossy(&self) {
        self.net.shared.borrow_mut().lossless = false;
    }

    /// Answers a request that is idempotent.
    fn reply_idempotent(&mut self, rpc: ServerRpc, message: &[u8]) -> Vec<(Kind, u32)> {
        let Host { endpoint, port, .. } = &mut self.net.hosts[0];
        endpoint.reply_over(self.net.now, rpc, &mut message.into(), true, port);
        self.net.settle();
        self.net.sent(0, 1).iter().map(|(packet, _)| (packet.kind, packet.seq)).collect()
    }
}

#[test]
fn a_number_is_taken_once() {
    let mut bare = Bare::new(Config::default());
    // Expect: the first request is handed up, and again it is not.
    assert_eq!(bare.data(1), []);
    assert_eq!(bare.requests().len(), 1);
    assert_eq!(bare.data(1), []);
    assert_eq!(bare.requests(), []);
    assert_eq!(bare.net.stats(0).drop_duplicate, 1);
    // Expect: nor after a later one has begun.
    bare.data(2);
    let second = bare.requests();
    assert_eq!(bare.data(1), []);
    assert_eq!(bare.requests(), []);
    assert_eq!(bare.net.stats(0).drop_stale, 1);
    // Expect: nor after the reply is out and gone.
    assert_eq!(bare.reply(second[0]), [(Kind::Data, 2)]);
    bare.data(2);
    assert_eq!(bare.requests(), []);
    // Expect: numbers may be skipped (the client gave those up), and then they are past.
    bare.data(9);
    assert_eq!(bare.requests().len(), 1);
    for past in 3..9 {
        bare.data(past);
    }
    assert_eq!(bare.requests(), []);
}

#[test]
fn numbers_wrap() {
    let mut bare = Bare::new(Config::default());
    // Expect: less than half the numbers ahead is the future, more is the past.
    for seq in [(1 << 28) - 1, (1 << 29) - 2, SEQ_MAX, 0, 1] {
        bare.data(seq);
        assert_eq!(bare.requests().len(), 1, "{seq:#x}");
    }
    bare.data(SEQ_MAX);
    bare.data(1 + (1 << 28));
    assert_eq!(bare.requests(), []);
    assert_eq!(bare.net.stats(0).drop_stale, 2);
}

#[test]
fn a_probe_is_told_where_the_request_is() {
    let mut bare = Bare::new(Config::default());
    // Expect: never seen, so send it again.
    assert_eq!(bare.probe(1), [(Kind::Unknown, 1)]);
    bare.data(1);
    let rpc = bare.requests()[0];
    // Expect: with the application.
    let packet = bare.packet(Kind::Probe, 1);
    let body = ProbeBody { client: 7.into(), received: 0.into(), granted: 100.into() };
    let datagram = bare.net.datagram(&packet, body.as_bytes());
    bare.net.inject(Addr::Local(1), 0, datagram);
    bare.net.settle();
    let answers = bare.net.sent(0, 1);
    assert_eq!(answers[0].0.kind, Kind::Busy);
    assert_eq!(answers[0].0.flags & EXECUTING, EXECUTING);
    // Expect: a lossless driver took the reply, so nothing is kept.
    bare.reply(rpc);
    assert_eq!(bare.probe(1), [(Kind::Gone, 1)]);
    // Expect: about the past nothing is said.
    bare.data(5);
    assert_eq!(bare.probe(4), []);
    assert_eq!(bare.probe(6), [(Kind::Unknown, 6)]);
}

#[test]
fn a_half_received_request_gives_way_to_the_next() {
    let mut bare = Bare::new(Config::default());
    let mut packet = bare.packet(Kind::Data, 1);
    packet.msg_len = 10_000;
    let full = [7; 8156];
    // Expect: a first packet of two is kept, a packet that does not fit it is not.
    assert_eq!(bare.send(&packet, &full), []);
    assert_eq!(bare.send(&Packet { msg_len: 10_001, offset: 8156, ..packet }, &[7; 1845]), []);
    assert_eq!(bare.send(&Packet { offset: 100, ..packet }, &full), []);
    assert_eq!(bare.net.stats(0).drop_misfit, 2);
    assert_eq!(bare.send(&packet, &full), []);
    assert_eq!(bare.net.stats(0).drop_duplicate, 1);
    // Expect: the next number is taken, and the half one is past.
    bare.data(2);
    assert_eq!(bare.requests().len(), 1);
    assert_eq!(bare.send(&Packet { offset: 8156, ..packet }, &[7; 1844]), []);
    assert_eq!(bare.requests(), []);
    assert_eq!(bare.net.stats(0).drop_stale, 1);
}

#[test]
fn a_reply_to_a_past_request_goes_nowhere() {
    let mut bare = Bare::new(Config::default());
    bare.data(1);
    let old = bare.requests()[0];
    bare.data(2);
    let new = bare.requests()[0];
    // Expect: the old one is ignored, the new one sent, and neither twice.
    assert_eq!(bare.reply(old), []);
    assert_eq!(bare.reply(new), [(Kind::Data, 2)]);
    assert_eq!(bare.reply(new), []);
    bare.net.hosts[0].endpoint.refuse(bare.net.now, new, MS);
    assert_eq!(bare.net.stats(0).drop_reply, 3);
    // Expect: after the session is closed, all are stale.
    bare.data(3);
    let last = bare.requests()[0];
    let close = bare.packet(Kind::Close, 0);
    bare.send(&close, &[]);
    assert_eq!(bare.reply(last), []);
    assert_eq!(bare.net.stats(0).sessions_ended, 1);
    assert_eq!(bare.data(4), []);
    assert_eq!(bare.net.stats(0).drop_session, 1);
}

#[test]
fn a_refused_number_is_dead() {
    let mut bare = Bare::new(Config { max_executing: 1, ..Config::default() });
    bare.data(1);
    let first = bare.requests()[0];
    let mut packet = bare.packet(Kind::Data, 1);
    packet.channel = 3;
    packet.msg_len = 1;
    // Expect: no room, and no room for its double either, even when there is room again.
    assert_eq!(bare.send(&packet, &[1]), [(Kind::Busy, 1)]);
    bare.reply(first);
    assert_eq!(bare.send(&packet, &[1]), []);
    assert_eq!(bare.requests(), []);
    // Expect: the same request under another number is executed.
    packet.seq = 2;
    assert_eq!(bare.send(&packet, &[1]), []);
    assert_eq!(bare.requests().len(), 1);
}

#[test]
fn a_dead_request_is_dropped() {
    let mut bare = Bare::new(Config::default());
    let mut packet = bare.packet(Kind::Data, 1);
    packet.msg_len = 1;
    packet.flags = TTL;
    // Expect: no time left, no request.
    assert_eq!(bare.send(&packet, &[1]), []);
    assert_eq!(bare.requests(), []);
    assert_eq!(bare.net.stats(0).drop_dead, 1);
    // Expect: some time left, and the application learns how much.
    packet.seq = 2;
    packet.ttl_us = 500;
    bare.send(&packet, &[1]);
    let deadline = bare.net.now.after(500_000);
    assert!(matches!(bare.net.seen(0)[..], [Seen::Request(_, _, at)] if at == deadline));
}

#[test]
fn done_frees_only_what_it_names() {
    let mut bare = Bare::new(Config::default());
    bare.set_lossy();
    bare.data(1);
    let rpc = bare.requests()[0];
    assert_eq!(bare.reply(rpc), [(Kind::Data, 1)]);
    let entry = DoneEntry {
        session: bare.session.into(),
        token: bare.token.into(),
        channels: 1 << 2,
        padding: [0; 3],
    };
    let done = |bare: &mut Bare, entry: DoneEntry, seq: u32| {
        bare.send(&Packet::new(Kind::Done), &[entry.as_bytes(), &seq.to_be_bytes()].concat())
    };
    // Expect: another number, token or channel frees nothing; the reply can still be had.
    done(&mut bare, entry, 2);
    done(&mut bare, DoneEntry { token: 1.into(), ..entry }, 1);
    done(&mut bare, DoneEntry { channels: 1 << 3, ..entry }, 1);
    assert_eq!(bare.net.stats(0).done, 0);
    // What has just left may be on its way: it is not sent again at once.
    assert_eq!(bare.probe(1), []);
    bare.net.now = bare.net.now.after(10 * MS);
    assert_eq!(bare.probe(1), [(Kind::Data, 1)]);
    // Expect: cut short it is dropped.
    bare.send(&Packet::new(Kind::Done), entry.as_bytes());
    assert_eq!(bare.net.stats(0).drop_short, 1);
    // Expect: the right one frees it.
    done(&mut bare, entry, 1);
    assert_eq!(bare.net.stats(0).done, 1);
    assert_eq!(bare.probe(1), [(Kind::Gone, 1)]);
    assert!(bare.net.run(SECOND, |net| net.now.as_ns() > 0));
}

/// Opens a session and has its first request, number 1, answered as not idempotent and number 2 as
/// idempotent.
fn answered() -> Bare {
    let mut bare = Bare::new(Config::default());
    bare.set_lossy();
    bare.data(1);
    let rpc = bare.requests()[0];
    assert_eq!(bare.reply(rpc), [(Kind::Data, 1)]);
    bare.data(2);
    let rpc = bare.requests()[0];
    assert_eq!(bare.reply_idempotent(rpc, b"yes"), [(Kind::Data, 2)]);
    bare
}

#[test]
fn a_forgotten_reply_holds_nothing() {
    let mut bare = answered();
    let sizes = bare.net.hosts[0].endpoint.sizes();
    assert_eq!((sizes.slots, sizes.blocks, sizes.executing), (0, 0, 0));
    // Expect: neither DONE nor GRANT nor NACK finds a reply.
    let entry = DoneEntry {
        session: bare.session.into(),
        token: bare.token.into(),
        channels: 1 << 2,
        padding: [0; 3],
    };
    bare.send(&Packet::new(Kind::Done), &[entry.as_bytes(), &2u32.to_be_bytes()].concat());
    bare.send(&bare.packet(Kind::Grant, 2), &[]);
    bare.send(&bare.packet(Kind::Nack, 2), &[255; 32]);
    let stats = bare.net.stats(0);
    assert_eq!((stats.done, stats.drop_stale, stats.forgotten), (0, 2, 0));
    // Expect: the session ends as any other.
    bare.send(&bare.packet(Kind::Close, 0), &[]);
    assert_eq!(bare.net.hosts[0].endpoint.sizes().sessions, 0);
    assert_eq!(bare.data(2), []);
    assert_eq!(bare.requests(), []);
}

/// A duplicate that the network made asks for nothing: only a client that misses the reply does.
#[test]
fn an_idempotent_request_is_executed_again_after_a_probe() {
    let mut bare = answered();
    assert_eq!(bare.data(2), []);
    assert_eq!(bare.requests(), []);
    for answered in 1..3 {
        // Expect: each probe is answered alike, and only the first forgets the request.
        assert_eq!(bare.probe(2), [(Kind::Unknown, 2)]);
        assert_eq!(bare.probe(2), [(Kind::Unknown, 2)]);
        assert_eq!(bare.net.stats(0).forgotten, answered);
        // Expect: the request is new, once.
        bare.data(2);
        let rpcs = bare.requests();
        assert_eq!(rpcs.len(), 1);
        bare.data(2);
        assert_eq!(bare.requests(), []);
        assert_eq!(bare.probe(2), [(Kind::Busy, 2)]);
        assert_eq!(bare.reply_idempotent(rpcs[0], b"and again"), [(Kind::Data, 2)]);
        bare.data(2);
        assert_eq!(bare.requests(), []);
    }
}

#[test]
fn a_forgotten_request_leaves_the_one_before_it_executed() {
    let mut bare = answered();
    assert_eq!(bare.probe(2), [(Kind::Unknown, 2)]);
    // Expect: number 1 was executed for good, though the channel is as it was then.
    bare.data(1);
    assert_eq!(bare.requests(), []);
    assert_eq!(bare.probe(1), [(Kind::Gone, 1)]);
    // Expect: number 3 is new, and ends number 2 for good.
    bare.data(3);
    let rpc = bare.requests()[0];
    bare.data(2);
    assert_eq!(bare.requests(), []);
    // Expect: number 3 is not idempotent, so its reply is retained.
    assert_eq!(bare.reply(rpc), [(Kind::Data, 3)]);
    bare.net.now = bare.net.now.after(10 * MS);
    assert_eq!(bare.probe(3), [(Kind::Data, 3)]);
    bare.data(3);
    bare.data(2);
    assert_eq!(bare.requests(), []);
}

#[test]
fn a_forgotten_request_is_refused_like_a_new_one() {
    let mut bare = Bare::new(Config { max_executing: 1, ..Config::default() });
    bare.set_lossy();
    bare.data(1);
    let rpc = bare.requests()[0];
    bare.reply_idempotent(rpc, b"yes");
    bare.probe(1);
    let mut other = bare.packet(Kind::Data, 1);
    other.channel = 3;
    other.msg_len = 1;
    bare.send(&other, &[1]);
    assert_eq!(bare.requests().len(), 1);
    assert_eq!(bare.data(1), [(Kind::Busy, 1)]);
    // Expect: the refused number is dead.
    assert_eq!(bare.data(1), []);
    assert_eq!(bare.requests(), []);
}

#[test]
fn a_late_fragment_of_an_answered_request_begins_nothing() {
    let mut bare = Bare::new(Config::default());
    bare.set_lossy();
    let mut packet = bare.packet(Kind::Data, 1);
    packet.msg_len = 10_000;
    let last = Packet { offset: 8156, ..packet };
    let full = [7; 8156];
    bare.send(&packet, &full);
    bare.send(&last, &[7; 1844]);
    let rpc = bare.requests()[0];
    assert_eq!(bare.reply_idempotent(rpc, b"yes"), [(Kind::Data, 1)]);
    assert_eq!(bare.send(&last, &[7; 1844]), []);
    assert_eq!(bare.net.hosts[0].endpoint.sizes().slots, 0);
    assert_eq!(bare.net.stats(0).drop_duplicate, 1);
    // Expect: after a probe the request is received anew.
    assert_eq!(bare.probe(1), [(Kind::Unknown, 1)]);
    bare.send(&last, &[7; 1844]);
    bare.send(&packet, &full);
    assert_eq!(bare.requests().len(), 1);
}

/// The packets of two executions may differ, and a client would join them to one reply.
#[test]
fn a_reply_of_several_packets_is_retained_though_the_request_is_idempotent() {
    let mut bare = answered();
    bare.probe(2);
    bare.data(2);
    let rpc = bare.requests()[0];
    bare.reply_idempotent(rpc, &[1; 20_000]);
    bare.net.now = bare.net.now.after(10 * MS);
    assert_eq!(bare.probe(2), [(Kind::Data, 2); 3]);
    assert_eq!(bare.net.stats(0).forgotten, 1);
    bare.data(2);
    assert_eq!(bare.requests(), []);
}

#[test]
fn a_number_can_be_forgotten_where_numbers_wrap() {
    let mut bare = Bare::new(Config::default());
    bare.set_lossy();
    for seq in [(1 << 28) - 1, (1 << 29) - 2, SEQ_MAX, 0] {
        bare.data(seq);
        let rpc = bare.requests()[0];
        assert_eq!(bare.reply_idempotent(rpc, b"yes"), [(Kind::Data, seq)]);
    }
    assert_eq!(bare.probe(0), [(Kind::Unknown, 0)]);
    bare.data(SEQ_MAX);
    assert_eq!(bare.requests(), []);
    bare.data(0);
    assert_eq!(bare.requests().len(), 1);
}
