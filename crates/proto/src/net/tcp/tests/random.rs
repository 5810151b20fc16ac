//! Random connections through networks that misbehave.

use alloc::string::String;

use super::*;

fn any_config(rng: &mut Rng) -> TcpConfig {
    use CongestionControl::{Cubic, Dctcp, Reno};
    TcpConfig {
        mss: [48, 100, 536, 1460, 9000, 65_000][rng.below(6) as usize],
        receive_bytes: [1000, 20_000, 65_535, 300_000, 1 << 20][rng.below(5) as usize],
        send_bytes: [1000, 20_000, 300_000, 1 << 20][rng.below(4) as usize],
        timestamps: on(rng),
        window_scaling: on(rng),
        sack: on(rng),
        ecn: on(rng),
        no_delay: on(rng),
        congestion: [Reno, Cubic, Dctcp][rng.below(3) as usize],
        user_timeout_ns: 3600 * SECOND,
        syn_retries: 50,
        time_wait_ns: 600 * SECOND,
        ..TcpConfig::default()
    }
}

/// Returns the MTUs of a router that changes its routes.
fn any_mtus(rng: &mut Rng) -> Vec<(u64, u16)> {
    let mut at = 0;
    let next = |_| {
        at += rng.below(100);
        (at, [1280, 1500, 9000][rng.below(3) as usize])
    };
    (0..4).map(next).collect()
}

fn on(rng: &mut Rng) -> bool {
    rng.chance(700_000)
}

fn any_faults(rng: &mut Rng) -> Faults {
    let rate = [1 << 40, 10_000_000, 1_000_000][rng.below(3) as usize];
    Faults {
        delay_ns: [10 * US, MS, 50 * MS][rng.below(3) as usize],
        jitter_ns: [0, 10 * US, 5 * MS, 100 * MS][rng.below(4) as usize],
        loss_ppm: [0, 1_000, 20_000, 200_000][rng.below(4) as usize],
        duplicate_ppm: [0, 10_000, 200_000][rng.below(3) as usize],
        mark_ppm: [0, 10_000, 300_000][rng.below(3) as usize],
        rate,
        queue: [20_000, 200_000, 1 << 40][rng.below(3) as usize],
        mtus: if on(rng) { Vec::new() } else { any_mtus(rng) },
        reports: on(rng),
        ..Faults::default()
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut rng = Rng::seeded(seed);
    let configs = [any_config(&mut rng), any_config(&mut rng)];
    let faults = any_faults(&mut rng);
    let lens = [0, 1].map(|_| {
        let most = [1, 100, 10_000, 300_000][rng.below(4) as usize];
        // Every fifth segment lost: without SACK most losses cost a timeout.
        rng.below(if faults.loss_ppm > 100_000 { most.min(20_000) } else { most }) as usize
    });
    let mut net = Net::new(configs, faults, rng.u64());
    for (end, len) in lens.into_iter().enumerate() {
        net.give(end, len);
        (net.ends[end].mtu, net.ends[end].link_mtu) = (65_535, 65_535);
        net.ends[end].most = [0, 65_000][rng.below(2) as usize];
        net.ends[end].reads = [1 + rng.below(3000) as usize, usize::MAX][rng.below(2) as usize];
    }
    net.complete(100_000 * SECOND, lens)
}

#[test]
fn every_byte_arrives_once_and_in_order() {
    for seed in 0..1_000 {
        if let Err(why) = run(seed) {
            panic!("seed {seed}: {why}");
        }
    }
}
