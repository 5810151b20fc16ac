//! Tests of clients that begin long requests and send a packet only now and then: other clients get
//! their room and their grants.

use alloc::vec::Vec;

use super::{Net, Seen, pattern};
use crate::Addr;
use crate::rpc::incoming::claim;
use crate::rpc::{Config, SessionId};
use crate::time::{MS, SECOND};
use crate::wire::rpc::{Kind, Packet};

/// A long request of which a test sends packets slowly: its host, its last packet and that packet's
/// body.
struct Drip {
    host: usize,
    packet: Packet,
    body: Vec<u8>,
}

impl Drip {
    /// Begins a long request of `len` bytes on `host`, and stops the host after its first packets.
    fn begin(net: &mut Net, host: usize, session: SessionId, len: usize) -> Self {
        net.record();
        net.request(host, session, 0, pattern(0, len));
        let before = net.hosts[0].endpoint.sizes().assembling_bytes;
        assert!(
            net.run(MS, |net| net.hosts[0].endpoint.sizes().assembling_bytes > before),
            "{host}"
        );
        net.hosts[host].up = false;
        let (packet, body) = net.sent(host, 0).pop().expect("a packet");
        assert_eq!(packet.kind, Kind::Data);
        Self { host, packet, body }
    }

    /// Sends the next packet of the slow request.
    fn next(&mut self, net: &Net) {
        self.packet.offset += self.body.len() as u32;
        net.inject(Addr::Local(self.host as u64), 0, net.datagram(&self.packet, &self.body));
    }
}

/// Sends `count` long requests of one host, while each slow request gets a packet every `every_ns`.
/// Returns true if all are answered in less than `limit_ns`.
fn comes_through(
    net: &mut Net,
    (host, session): (usize, SessionId),
    (count, len): (u64, usize),
    drips: &mut [Drip],
    (every_ns, limit_ns): (u64, u64),
) -> bool {
    let begin = net.now;
    let (mut answered, mut next_drip) = (0, begin);
    while answered < count {
        net.request(host, session, answered, pattern(answered, len));
        while net.hosts[host].seen.is_empty() {
            if net.now.since(begin) > limit_ns {
                return false;
            }
            if net.now >= next_drip {
                drips.iter_mut().for_each(|drip| drip.next(net));
                next_drip = net.now.after(every_ns);
            }
            net.run(next_drip.since(net.now), |net| !net.hosts[host].seen.is_empty());
        }
        answered += u64::from(matches!(net.seen(host)[..], [Seen::Response(..)]));
    }
    true
}

/// Eight requests of which a packet came every 10 ms held the eight places of messages that receive
/// grants, and the credit: the server received no other long request before they ended, which may
/// be hours.
#[test]
fn requests_that_drip_keep_no_place_from_others() {
    let mut net = Net::new(1, 0, false);
    net.shared.borrow_mut().max_payload = 500;
    (0..10).for_each(|host| _ = net.add(Config { serve: host == 0, ..Config::default() }));
    let sessions: Vec<_> = (1..=9).map(|host| net.connect(host, 0)).collect();
    net.run(MS, |_| false);
    let mut drips: Vec<_> =
        (1..=8).map(|host| Drip::begin(&mut net, host, sessions[host - 1], 4 << 20)).collect();
    net.run(MS, |_| false);
    let in_time =
        comes_through(&mut net, (9, sessions[8]), (5, 300_000), &mut drips, (10 * MS, 3 * SECOND));
    assert!(in_time, "{:?}", net.stats(0));
}

/// Four requests of which a packet came every 400 ms held all the room for incomplete requests, and
/// would have for an hour: the server refused other requests.
#[test]
fn requests_that_drip_keep_no_room_from_others() {
    for lossless in [false, true] {
        let mut net = Net::new(2, 0, lossless);
        net.add(Config { max_assembling_bytes: 4 * claim(4 << 20), ..Config::default() });
        (1..=5).for_each(|_| _ = net.add(Config { serve: false, ..Config::default() }));
        let sessions: Vec<_> = (1..=5).map(|host| net.connect(host, 0)).collect();
        net.run(MS, |_| false);
        let mut drips: Vec<_> =
            (1..=4).map(|host| Drip::begin(&mut net, host, sessions[host - 1], 4 << 20)).collect();
        net.run(MS, |_| false);
        let honest = (5, sessions[4]);
        let in_time =
            comes_through(&mut net, honest, (1, 100_000), &mut drips, (400 * MS, 4 * SECOND));
        assert!(in_time, "lossless {lossless}: {:?}", net.stats(0));
        assert!(net.stats(0).abandoned > 0);
    }
}

/// Half a request of 40 bytes counted 40 bytes against the limit of 256 MiB, and took ten times as
/// much memory: the limit allowed some 50 GB of such requests.
#[test]
fn the_room_for_half_received_requests_counts_what_they_take() {
    let mut net = Net::new(3, 0, false);
    net.shared.borrow_mut().max_payload = 77;
    net.add(Config { max_assembling_bytes: 64 << 10, ..Config::default() });
    net.add(Config { serve: false, ..Config::default() });
    net.record();
    for n in 0..20 {
        let session = net.connect(1, 0);
        net.request(1, session, n, pattern(n, 40));
    }
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 20));
    let first = |(packet, _): &(Packet, Vec<u8>)| packet.kind == Kind::Data && packet.offset == 0;
    let begun: Vec<_> = net.sent(1, 0).into_iter().filter(first).collect();
    assert_eq!(begun.len(), 20);
    for (mut packet, body) in begun {
        packet.seq += 1;
        for channel in 0..8 {
            packet.channel = channel;
            net.inject(Addr::Local(1), 0, net.datagram(&packet, &body));
        }
    }
    net.settle();
    assert_eq!(net.hosts[0].endpoint.sizes().slots, (64 << 10) / claim(40));
}
