//! Tests of TCP under faults: hosts with an IP stack over devices in memory, a network that loses,
//! doubles, reorders, delays and damages frames, and programs that write, read, stop and end at
//! random. Every byte arrives once and in order, every connection ends, and no host keeps one.

mod edges;
mod fairness;
mod host;
mod liar;
mod network;
mod ours;
mod program;
mod smol;
mod world;

use host::Host;
use network::{Options, Router};
use ours::{Ours, OursOptions};
use program::Plan;
use smol::{Smol, SmolOptions};
use sprat_proto::net::tcp::{CongestionControl, TcpConfig};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::{Instant, Rng};
use sprat_sim::seeds;
use world::{PORT, Wish, World};

/// The time in which all connections of a world end.
const LIMIT_NS: u64 = 24 * 3600 * SECOND;

fn any_tcp(rng: &mut Rng) -> TcpConfig {
    let on = |rng: &mut Rng| rng.chance(700_000);
    TcpConfig {
        mss: [48, 100, 536, 1460, 9000][rng.below(5) as usize],
        receive_bytes: [1000, 20_000, 65_535, 300_000, 1 << 20][rng.below(5) as usize],
        send_bytes: [1000, 20_000, 300_000, 1 << 20][rng.below(4) as usize],
        timestamps: on(rng),
        window_scaling: on(rng),
        sack: on(rng),
        ecn: on(rng),
        no_delay: on(rng),
        congestion: [CongestionControl::Reno, CongestionControl::Cubic, CongestionControl::Dctcp]
            [rng.below(3) as usize],
        delayed_ack_ns: [0, 40 * MS, 200 * MS][rng.below(3) as usize],
        user_timeout_ns: 10 * 3600 * SECOND,
        syn_retries: 250,
        time_wait_ns: [SECOND, 10 * SECOND, 60 * SECOND][rng.below(3) as usize],
        keep_alive_ns: None,
        ..TcpConfig::default()
    }
}

fn any_network(rng: &mut Rng) -> Options {
    let delay_ns = [10 * US, MS, 50 * MS][rng.below(3) as usize];
    let mut fault = seeds::fault(rng, delay_ns + MS);
    if rng.chance(500_000) {
        // Mild faults leave room for what happens at speed.
        for ppm in [&mut fault.drop_ppm, &mut fault.corrupt_ppm, &mut fault.truncate_ppm] {
            *ppm /= 20;
        }
    }
    Options {
        delay_ns,
        jitter_ns: [0, 10 * US, 5 * MS, 100 * MS][rng.below(4) as usize],
        fault,
        rate: [1 << 40, 10_000_000, 1_000_000][rng.below(3) as usize],
        queue: [20_000, 200_000, 1 << 40][rng.below(3) as usize],
        mark_above: [3_000, 50_000, 1 << 40][rng.below(3) as usize],
        ..Options::default()
    }
}

/// Draws the share of packets that the network marks whatever its queues are, so that marks come
/// and go within a window.
fn any_marks(seed: u64) -> u32 {
    [0, 0, 20_000, 300_000][Rng::seeded(seed ^ 0xec4).below(4) as usize]
}

/// Returns the most bytes of a stream through a network: few where most losses cost a timeout.
fn most_bytes(options: &Options) -> u64 {
    let fault = &options.fault;
    match fault.drop_ppm + fault.corrupt_ppm + fault.truncate_ppm {
        0..5_000 => 300_000,
        5_000..30_000 => 100_000,
        _ => 15_000,
    }
}

/// Returns a world of our host 0 and host 1 with smoltcp, and the connections between them.
///
/// smoltcp 0.14 takes the window of an older acknowledgement that another one has overtaken. If
/// that is 0 it waits forever: its retransmission timeout finds no room, and starts no probe. So
/// our window closes only where nothing is overtaken.
fn beside_smoltcp(seed: u64) -> World {
    let mut rng = Rng::seeded(seed ^ 0x5301);
    let mut options = any_network(&mut rng);
    options.mark_ppm = any_marks(seed);
    options.foreign = Some(1);
    let mut tcp = any_tcp(&mut rng);
    let closes = rng.chance(500_000);
    if closes {
        (options.jitter_ns, options.fault.reorder_ppm, options.fault.reorder_ns) = (0, 0, 0);
    } else {
        tcp.receive_bytes = tcp.receive_bytes.max(20_000);
    }
    let aborts = rng.chance(300_000);
    let keep_alive_ns = aborts.then_some(30 * SECOND);
    tcp.keep_alive_ns = keep_alive_ns;
    let mtu = [1280, 1500, 9000][rng.below(3) as usize];
    let smol = SmolOptions {
        mtu,
        receive_bytes: [1000, 20_000, 65_535, 300_000][rng.below(4) as usize],
        send_bytes: [1000, 20_000, 300_000][rng.below(3) as usize],
        has_timestamps: rng.chance(500_000),
        is_cubic: rng.chance(500_000),
        has_nagle: rng.chance(500_000),
        keep_alive_ns,
    };
    let room = [usize::MAX, 1 + rng.below(20) as usize][rng.below(2) as usize];
    let ours = OursOptions { tcp, mtu, room, ..OursOptions::default() };
    let hosts: Vec<Box<dyn Host>> =
        vec![Box::new(Ours::new(0, ours, rng.fork())), Box::new(Smol::new(1, smol, rng.fork()))];
    let most = most_bytes(&options);
    let mut world = World::new(hosts, options, rng.fork());
    world.hosts.iter_mut().for_each(|host| host.listen(PORT, 4));
    for _ in 0..1 + rng.below(3) {
        let from = rng.below(2) as usize;
        let mut plans = Plan::draw(&mut rng, most, if aborts { 300_000 } else { 0 });
        // smoltcp drops what its program has not read when TIME-WAIT is over, after 10 seconds.
        for plan in &mut plans {
            (plan.stops_ns, plan.read_every_ns) = (plan.stops_ns / 8, plan.read_every_ns / 8);
        }
        if !closes {
            let plan = &mut plans[from];
            (plan.reads, plan.read_every_ns, plan.stops_at) = (1 << 16, 0, u64::MAX);
        }
        world.wish(Wish {
            at: world.now.after(rng.below(2 * SECOND)),
            from,
            to: 1 - from,
            is_ipv6: rng.chance(500_000),
            is_refused: rng.chance(100_000),
            has_lies: false,
            plans,
        });
    }
    world
}

/// A TCP that others have written does not share our errors: every byte arrives, both ways.
#[test]
fn with_smoltcp_as_the_peer() {
    seeds::each("with_smoltcp_as_the_peer", 20, |seed| {
        beside_smoltcp(seed).complete(LIMIT_NS);
    });
}

/// Draws a router whose MTU changes. A silent one carries the 1,280 bytes that each path has to.
fn any_router(rng: &mut Rng, start: Instant) -> Router {
    let is_silent = rng.chance(300_000);
    let mut mtus = Vec::new();
    let mut at = start;
    for _ in 0..1 + rng.below(4) {
        let least = if is_silent { 1280 } else { 552 };
        mtus.push((at, [least, 1280, 1400, 1500, 4000][rng.below(5) as usize]));
        let most_ns = [20 * MS, 5 * SECOND][rng.below(2) as usize];
        at = at.after(rng.below(most_ns));
    }
    Router { mtus, is_silent }
}

/// Returns a world of hosts with our stack. A host connects to those before it, so that no two wait
/// for each other while both are full.
fn among_ourselves(seed: u64, is_routed: bool) -> World {
    let mut rng = Rng::seeded(seed ^ 0x7c9);
    let mut options = any_network(&mut rng);
    options.mark_ppm = any_marks(seed);
    if is_routed {
        options.router = Some(any_router(&mut rng, Instant::from_ns(SECOND)));
    }
    let aborts = rng.chance(300_000);
    let count = 2 + rng.below(3) as usize;
    let hosts = (0..count).map(|host| {
        let mut tcp = any_tcp(&mut rng);
        tcp.keep_alive_ns = aborts.then_some(30 * SECOND);
        let room = [usize::MAX, 1 + rng.below(20) as usize][rng.below(2) as usize];
        let most = [1, 2, 5, 1000][rng.below(4) as usize];
        let mtu = [1280, 1500, 9000][rng.below(3) as usize];
        let options = OursOptions { tcp, most, mtu, room, is_routed };
        Box::new(Ours::new(host, options, rng.fork())) as Box<dyn Host>
    });
    let hosts = hosts.collect();
    let most = most_bytes(&options);
    let mut world = World::new(hosts, options, rng.fork());
    for (at, host) in world.hosts.iter_mut().enumerate() {
        let backlog = [1, 2, 100][rng.below(3) as usize];
        host.listen(PORT, backlog);
        if backlog < 100 {
            world.cookies.push(at);
        }
    }
    for _ in 0..1 + rng.below(6) {
        let from = 1 + rng.below(count as u64 - 1) as usize;
        let mut wish = Wish {
            at: world.now.after(rng.below(2 * SECOND)),
            from,
            to: rng.below(from as u64) as usize,
            is_ipv6: rng.chance(500_000),
            is_refused: rng.chance(50_000),
            has_lies: false,
            plans: Plan::draw(&mut rng, most, if aborts { 300_000 } else { 0 }),
        };
        if world.cookies.contains(&wish.to) {
            wish.plans[0].client_speaks();
        }
        world.wish(wish);
    }
    world
}

#[test]
fn among_our_own_hosts() {
    seeds::each("among_our_own_hosts", 100, |seed| {
        among_ourselves(seed, false).complete(LIMIT_NS);
    });
}

/// The MTU of the path changes while connections run, and the router reports what is too big, or
/// drops it without a word.
#[test]
fn through_a_router_with_changing_mtus() {
    seeds::each("through_a_router_with_changing_mtus", 50, |seed| {
        among_ourselves(seed, true).complete(LIMIT_NS);
    });
}

/// Returns a world of host 0, host 1 whose segments lie, and host 2, with connections of 0 to both.
fn beside_a_liar(seed: u64) -> World {
    let mut rng = Rng::seeded(seed ^ 0x11a5);
    let mut options = any_network(&mut rng);
    options.mark_ppm = any_marks(seed);
    options.liar = Some(1);
    let hosts = (0..3).map(|host| {
        let tcp = TcpConfig { keep_alive_ns: Some(30 * SECOND), ..any_tcp(&mut rng) };
        let options = OursOptions { tcp, ..OursOptions::default() };
        Box::new(Ours::new(host, options, rng.fork())) as Box<dyn Host>
    });
    let hosts = hosts.collect();
    let most = most_bytes(&options);
    let mut world = World::new(hosts, options, rng.fork());
    world.hosts.iter_mut().for_each(|host| host.listen(PORT, 100));
    for n in 0..6 {
        let other = 1 + n % 2;
        let (from, to) = if rng.chance(500_000) { (0, other) } else { (other, 0) };
        world.wish(Wish {
            at: world.now.after(rng.below(2 * SECOND)),
            from,
            to,
            is_ipv6: rng.chance(500_000),
            is_refused: false,
            has_lies: other == 1,
            plans: Plan::draw(&mut rng, most, 0),
        });
    }
    world
}

/// A peer that lies gets nothing of the memory of others, and harms no connection beside its own.
#[test]
fn beside_a_peer_that_lies() {
    seeds::each("beside_a_peer_that_lies", 30, |seed| beside_a_liar(seed).complete(LIMIT_NS));
}
