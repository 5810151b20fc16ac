//! Tests of two IP stacks over a network that drops, duplicates, reorders, corrupts and truncates
//! frames: every datagram delivered was sent, and after the faults end all datagrams arrive.

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

/// Builds a datagram's payload from its number and its length, with bytes that follow from both.
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
    let mut net = Network::of([1, 2].map(static_ipv4), mtu, offloads, seed);
    net.fault = fault();
    let six = |last| crate::wire::ipv6::link_local(mac(last)).into();
    let mut sent = [Vec::new(), Vec::new()];
    for n in 0..150 {
        let side = rng.below(2) as usize;
        let longest = [64, 1400, 9000][rng.below(3) as usize];
        let len = 8 + rng.below(longest) as usize;
        let peer = 2 - side as u8;
        let ip = if rng.chance(500_000) { v4(peer).into() } else { six(peer) };
        let bytes = payload(n, len);
        net.send(side, SocketAddr::new(ip, 7), &bytes);
        sent[1 - side].push(bytes);
        net.run_for(rng.below(3 * MS));
        if rng.chance(50_000) {
            let _ = net.ping(side, ip, 8 + rng.below(4000) as usize);
        }
        if rng.chance(20_000) {
            net.run_for(40 * SECOND);
        }
    }
    net.run_for(60 * SECOND);
    for (got, sent) in net.delivered.iter().zip(&sent) {
        for (_, bytes) in got {
            // The checksum detects every single flipped bit, but not two that cancel out, one in
            // each of two fragments.
            let flips =
                |a: &Vec<u8>| a.iter().zip(bytes).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
            let matches = |a: &Vec<u8>| {
                a.len() == bytes.len() && (flips(a) == 0 || flips(a) == 2 && a.len() > mtu)
            };
            assert!(
                sent.iter().any(matches),
                "seed {seed}: {} bytes that were never sent",
                bytes.len()
            );
        }
        assert!(got.len() * 2 > sent.len(), "seed {seed}: {}", got.len());
    }
    // Without faults each datagram arrives, at the latest after the neighbour was solicited again.
    net.fault = Fault::default();
    for len in [10, 8192] {
        for ip in [v4(2).into(), six(2)] {
            net.run_for(10 * SECOND);
            net.delivered[1].clear();
            net.send(0, SocketAddr::new(ip, 7), &payload(1 << 20, len));
            net.run_for(10 * SECOND);
            assert_eq!(net.delivered[1].len(), 1, "seed {seed}");
        }
    }
}

#[test]
fn every_datagram_delivered_over_a_faulty_network_was_sent() {
    (0..60).for_each(run);
}
