//! Two stacks over a wire that loses, doubles, reorders, damages and cuts: what arrives was sent, and in the end all is well.

use super::*;

fn fault() -> Fault {
    Fault {
        drop_ppm: 50_000,
        duplicate_ppm: 30_000,
        reorder_ppm: 100_000,
        corrupt_ppm: 20_000,
        truncate_ppm: 20_000,
        reorder_ns: 2 * MS,
    }
}

/// A payload that says what it is: its number, its length, and octets that follow from both.
fn payload(n: u32, len: usize) -> Vec<u8> {
    let mut bytes = n.to_be_bytes().to_vec();
    bytes.extend((len as u32).to_be_bytes());
    bytes.extend((8..len).map(|i| (i as u32).wrapping_mul(n | 1) as u8));
    bytes
}

fn run(seed: u64) {
    let mut rng = Rng::seeded(seed);
    let offloads = Offloads { checksum: rng.chance(500_000), ..Offloads::default() };
    let mtu = [1280, 1500, 9000][rng.below(3) as usize];
    let mut link = Link::of([1, 2].map(fixed), mtu, offloads, seed);
    link.fault = fault();
    let six = |last| crate::wire::ipv6::link_local(mac(last)).into();
    let mut sent = [Vec::new(), Vec::new()];
    for n in 0..150 {
        let side = rng.below(2) as usize;
        let longest = [64, 1400, 9000][rng.below(3) as usize];
        let len = 8 + rng.below(longest) as usize;
        let peer = 2 - side as u8;
        let ip = if rng.chance(500_000) { v4(peer).into() } else { six(peer) };
        let bytes = payload(n, len);
        link.send(side, SocketAddr::new(ip, 7), &bytes);
        sent[1 - side].push(bytes);
        link.pass(rng.below(3 * MS));
        if rng.chance(50_000) {
            let now = link.now;
            let _ = link.ports[side].stack_mut().ping(now, ip, 8 + rng.below(4000) as usize);
        }
        if rng.chance(20_000) {
            link.pass(40 * SECOND);
        }
    }
    link.pass(60 * SECOND);
    for (got, sent) in link.got.iter().zip(&sent) {
        for (_, bytes) in got {
            // A sum of 16 bits finds every single flip, but not two that cancel out, as may happen to two fragments.
            let flips =
                |a: &Vec<u8>| a.iter().zip(bytes).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
            let like = |a: &Vec<u8>| {
                a.len() == bytes.len() && (flips(a) == 0 || flips(a) == 2 && a.len() > mtu)
            };
            assert!(sent.iter().any(like), "seed {seed}: {} octets that nobody sent", bytes.len());
        }
        assert!(got.len() * 2 > sent.len(), "seed {seed}: {}", got.len());
    }
    // The wire is mended: a datagram of each kind arrives at once, or after the neighbour was asked again.
    link.fault = Fault::default();
    for len in [10, 8192] {
        for ip in [v4(2).into(), six(2)] {
            link.pass(10 * SECOND);
            link.got[1].clear();
            link.send(0, SocketAddr::new(ip, 7), &payload(1 << 20, len));
            link.pass(10 * SECOND);
            assert_eq!(link.got[1].len(), 1, "seed {seed}");
        }
    }
}

#[test]
fn what_arrives_over_a_bad_wire_was_sent() {
    (0..60).for_each(run);
}
