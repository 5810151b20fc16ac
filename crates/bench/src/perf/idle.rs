//! The test `idle`: the processor time of an idle cluster, and the latency of the first request
//! after a pause.
//!
//! The cluster has a coordinator and three servers, or more if the object needs them for its
//! replicas. This process is its client, connected and silent.

use std::time::Duration;

use sprat::kv::Condition;
use sprat_sys::clock::Clock;

use super::bench::Bench;
use super::disk::Copies;
use super::local;
use super::measure::{Figures, Sample};
use super::procfs::processor_time;
use super::report::Row;
use crate::cluster::{Cluster, LEASE, Plan, ports};
use crate::fail::Fail;
use crate::store::Store;

/// Time in which the cluster is idle and the test measures its processor time.
const QUIET: Duration = Duration::from_secs(10);
/// Pause before each request that is timed.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of requests that the test times.
const REQUESTS: usize = 30;
/// The least number of the idle cluster's servers.
const SERVERS: u16 = 3;

/// Runs the test `idle`.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let Copies { replicas, durability, .. } = *bench.local.copies();
    let servers = SERVERS.max(replicas + 1);
    bench.report.begin(format!(
        "idle: a coordinator, {servers} servers and a client that have nothing to do for 10 s"
    ));
    let name = format!("idle-{}", std::process::id());
    let plan = Plan {
        name: &name,
        port: local::free_ports(ports(servers))?,
        servers,
        memory: 64 << 20,
        leaving: 0,
        replicas,
        durability,
        directory: bench.local.directory(),
        state: None,
        core: None,
        host: None,
        etcd: None,
        hosts: Vec::new(),
        besides: Vec::new(),
        lease: LEASE,
        rebalance: None,
        tracepoints: false,
        populate: false,
        scrub: None,
        metrics: None,
        log_format: None,
    };
    let cluster = Cluster::start(&plan)?;
    for transport in bench.transports.clone() {
        let mut store = Store::over(cluster.coordinator(), std::slice::from_ref(&transport))?;
        let table = store.create_table("idle", u32::from(servers))?;
        store.write(table, b"key", &[7; 100], Condition::always())?;
        let processes: Vec<u32> = cluster.ids().into_iter().chain([std::process::id()]).collect();
        let used = |id: &u32| processor_time(*id);
        std::thread::sleep(PAUSE);
        let before = processes.iter().map(used).sum::<Result<Duration, Fail>>()?;
        std::thread::sleep(QUIET);
        let after = processes.iter().map(used).sum::<Result<Duration, Fail>>()?;
        let percent = 100.0 * after.saturating_sub(before).as_secs_f64() / QUIET.as_secs_f64();
        bench.report.row(Row::value("idle.processor", &transport, percent, "% of a core"))?;
        let mut sample = Sample::new();
        let clock = Clock::new();
        for _ in 0..REQUESTS {
            std::thread::sleep(PAUSE);
            let begin = clock.now();
            store.read(table, b"key", Condition::always())?;
            sample.record(clock.now().since(begin), 100);
        }
        bench.report.row(Row::new("idle.first", &transport, Some(100), &Figures::of(&[sample])))?;
    }
    bench.report.end()
}
