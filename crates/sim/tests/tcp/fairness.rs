//! Flows that share one bottleneck: how evenly, and how fast a late one gets its share.

use sprat_proto::Rng;
use sprat_proto::net::tcp::{CongestionControl, TcpConfig};
use sprat_proto::time::{MS, SECOND};

use super::host::Host;
use super::network::Options;
use super::ours::{Ours, OursOptions};
use super::program::Plan;
use super::world::{PORT, Wish, World};

/// The bytes a second of the bottleneck: 10 Mbit/s.
const RATE: u64 = 1_250_000;
/// The round-trip time without a queue.
const TRIP_NS: u64 = 40 * MS;
/// The bandwidth-delay product.
const PRODUCT: u64 = RATE * TRIP_NS / SECOND;

/// Flows from hosts of their own to one host, whose link is the bottleneck.
struct Race {
    world: World,
    flows: usize,
}

impl Race {
    /// Begins flows at these times. With marks the bottleneck marks packets above half of its
    /// queue.
    fn new(seed: u64, control: &[CongestionControl], starts_ns: &[u64], marks: bool) -> Self {
        let mut rng = Rng::seeded(seed);
        let hosts = (0..=control.len()).map(|host| {
            let congestion = control[host.saturating_sub(1)];
            let tcp = TcpConfig { congestion, ecn: marks, ..TcpConfig::default() };
            let options = OursOptions { tcp, ..OursOptions::default() };
            Box::new(Ours::new(host, options, rng.fork())) as Box<dyn Host>
        });
        let hosts = hosts.collect();
        let options = Options {
            delay_ns: TRIP_NS / 2,
            // A packet's time, so that flows do not run in lockstep.
            jitter_ns: MS,
            rate: RATE,
            queue: PRODUCT,
            mark_above: if marks { PRODUCT / 2 } else { u64::MAX },
            ..Options::default()
        };
        let mut world = World::new(hosts, options, rng.fork());
        world.hosts[0].listen(PORT, 10);
        for (i, start_ns) in starts_ns.iter().enumerate() {
            let (from, to, is_ipv6, is_refused, has_lies) = (i + 1, 0, false, false, false);
            let at = world.now.after(*start_ns);
            let plans = [Plan::plain(u64::MAX), Plan::plain(0)];
            world.wish(Wish { at, from, to, is_ipv6, is_refused, has_lies, plans });
        }
        Self { world, flows: control.len() }
    }

    /// Runs for a while. Returns the bytes that each flow has delivered in it.
    fn run(&mut self, ns: u64) -> Vec<u64> {
        let read = |world: &World| (0..self.flows).map(|flow| world.read(flow, 1)).collect();
        let before: Vec<u64> = read(&self.world);
        self.world.run_until(ns, |_| false);
        let after: Vec<u64> = read(&self.world);
        after.iter().zip(before).map(|(after, before)| after - before).collect()
    }
}

/// Returns Jain's index of fairness: 1 for equal shares, 1/n if one of n flows gets all.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|s| *s as f64).sum();
    let squares: f64 = shares.iter().map(|s| (*s as f64) * (*s as f64)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Returns the share of the bottleneck that was used.
fn used(shares: &[u64], ns: u64) -> f64 {
    shares.iter().sum::<u64>() as f64 * SECOND as f64 / (RATE as f64 * ns as f64)
}

const CONTROLS: [CongestionControl; 2] = [CongestionControl::Reno, CongestionControl::Cubic];

/// Two flows that start together get even shares in the long run, and leave little unused.
#[test]
fn equal_flows_get_equal_shares() {
    for control in CONTROLS {
        for marks in [false, true] {
            let mut race = Race::new(1, &[control; 2], &[0, 100 * MS], marks);
            let shares = race.run(60 * SECOND);
            let (index, used) = (jain(&shares), used(&shares, 60 * SECOND));
            let count = race.world.network.count;
            let what = format!("{control:?} {marks}: {shares:?} {index:.3} {used:.3} {count:?}");
            // A mark halves Reno's window, and half of a small queue does not fill the link.
            let least = if marks { 0.75 } else { 0.9 };
            assert!(index > 0.95 && used > least, "{what}");
            assert!(if marks { count.marked > 100 } else { count.overflowed > 100 }, "{what}");
        }
    }
}

/// A flow that starts late, while another one has all, gets its share soon.
#[test]
fn a_late_flow_gets_its_share() {
    for late in CONTROLS {
        for marks in [false, true] {
            let controls = [CongestionControl::Cubic, late];
            let mut race = Race::new(2, &controls, &[0, 10 * SECOND], marks);
            race.run(30 * SECOND);
            let shares = race.run(40 * SECOND);
            let index = jain(&shares);
            let count = race.world.network.count;
            // CUBIC closes its window by less after a loss, and stays ahead of Reno.
            let least = if late == CongestionControl::Reno { 0.85 } else { 0.9 };
            assert!(index > least, "{late:?} {marks}: {shares:?} {index:.3} {count:?}");
        }
    }
}
