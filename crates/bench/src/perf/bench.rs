//! One run of benchmark tests: its options, its report and its processes.

use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use sprat::kv::AsyncClient;
use sprat::locator::Protocol;
use sprat::trace::TraceRing;

use super::lanes::{self, Exchange};
use super::measure::{self, Figures, Lane};
use super::options::{Overwriting, Transacting, Ycsb};
use super::report::{Report, Row};
use super::{local, net};
use crate::baseline::Kernel;
use crate::fail::Fail;
use crate::store::Store;

/// The state of one run, which all its tests share.
pub(crate) struct Bench {
    /// The report that takes the results of the tests.
    pub(crate) report: Report,
    /// Transports that the run measures, in order.
    pub(crate) transports: Vec<String>,
    /// Time of one measured figure, over all rounds.
    pub(crate) time: Duration,
    pub(crate) rounds: u16,
    pub(crate) sizes: Vec<usize>,
    pub(crate) outstanding: usize,
    /// The options of the test `overwrite`.
    pub(crate) overwrite: Overwriting,
    pub(crate) sessions: usize,
    /// The numbers of clients that tests with several clients measure, one after the other.
    pub(crate) clients: Vec<usize>,
    /// The file of the sizes of the test `echo_workload`.
    pub(crate) message_sizes: Option<PathBuf>,
    /// Bits a second that the test `echo_workload` offers each way, in 10⁹.
    pub(crate) gbps: f64,
    /// Number of servers of the tests of ClusterPerf that need several.
    pub(crate) servers: u16,
    /// The options of the test `ycsb`, and of ClusterPerf's tests under a workload.
    pub(crate) ycsb: Ycsb,
    /// The options of ClusterPerf's tests of transactions on several servers.
    pub(crate) transacting: Transacting,
    /// Number of objects in each measured table. `None`: as many as ClusterPerf has.
    pub(crate) objects: Option<u64>,
    /// Bytes of the objects of the tests `recovery` and `restart`.
    pub(crate) bytes: u64,
    /// Coordinator of the running cluster to measure. `None`: the run starts a cluster.
    pub(crate) coordinator: Option<String>,
    pub(crate) local: local::Local,
    /// File that the run writes a breakdown's picture to, as SVG.
    pub(crate) svg: Option<PathBuf>,
}

/// A figure of the product, with the figures of its floor and of kernel TCP for the same bytes. The
/// three are measured in turns.
pub(crate) struct Compared {
    pub(crate) product: Figures,
    pub(crate) floor: &'static str,
    pub(crate) floor_us: Option<f64>,
    pub(crate) tcp_us: Option<f64>,
}

impl Compared {
    /// Returns the report's row with the figures of the product, of its floor and of kernel TCP.
    pub(crate) fn row(&self, test: &str, transport: &str, size: usize) -> Row {
        Row::new(test, transport, Some(size), &self.product).beside(
            self.floor,
            self.floor_us,
            self.tcp_us,
        )
    }
}

/// Time that one of several clients waits for an operation. All of them connect at the same time on
/// one core, and then each has operations in progress there.
const PATIENCE: Duration = Duration::from_secs(30);

/// Opens one of several clients of the cluster with this coordinator, over one transport.
pub(crate) fn one_of_many(coordinator: &str, transport: &str) -> Result<Store, Fail> {
    let mut store = Store::over(coordinator, &[transport.to_owned()])?;
    store.set_timeout(PATIENCE);
    Ok(store)
}

/// Opens an asynchronous client, one of several, as [`one_of_many`] does.
pub(crate) fn one_of_many_async(coordinator: &str, transport: &str) -> Result<AsyncClient, Fail> {
    Store::asynchronous(coordinator, &[transport.to_owned()], PATIENCE)
}

/// The moment at which several clients begin together. A client that ends before it has waited for
/// it waits then, so that it does not keep the others.
pub(crate) struct Start<'b>(&'b Barrier);

impl Start<'_> {
    /// Waits until all clients are ready.
    pub(crate) fn wait(self) {
        drop(self);
    }
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// Runs `count` clients at the same time, each in a thread. `client` gets the number of a client,
/// from 0 on, and the start that it has to wait for. Returns the result of each client, in order.
pub(crate) fn in_threads<R: Send>(
    count: usize,
    client: impl Fn(usize, Start<'_>) -> Result<R, Fail> + Sync,
) -> Result<Vec<R>, Fail> {
    let ready = Barrier::new(count);
    let (ready, client) = (&ready, &client);
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..count).map(|number| scope.spawn(move || client(number, Start(ready)))).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined
            .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

impl Bench {
    /// Measures `product` in turns with the floor of `exchange` over `transport` and with kernel
    /// TCP.
    pub(crate) fn compare(
        &self,
        transport: &str,
        exchange: Exchange,
        product: Lane<'_>,
    ) -> Result<Compared, Fail> {
        let wire = self.local.wire().filter(|_| net::wanted(transport));
        let kernel = wire.as_deref().map_or_else(Kernel::loopback, Kernel::over);
        let mut lanes = vec![product, lanes::tcp_over(kernel, exchange).lane];
        let mut name = "floor.tcp";
        // Over TCP the floor is kernel TCP, also for RDMA, which runs over TCP.
        let over_tcp = Protocol::named(transport).is_some_and(|protocol| protocol.tcp);
        if !over_tcp && let Some(floor) = lanes::under(&self.local, transport, exchange) {
            name = floor.name;
            lanes.push(floor.lane);
        }
        let figures = measure::in_turns(&mut lanes, self.rounds, self.time)?;
        let tcp_us = figures[1].p50_us;
        let floor_us = if over_tcp { tcp_us } else { figures.get(2).and_then(|f| f.p50_us) };
        Ok(Compared { product: figures[0].clone(), floor: name, floor_us, tcp_us })
    }

    /// Returns the coordinator of the measured cluster, which it starts if need be.
    pub(crate) fn coordinator(&mut self) -> Result<String, Fail> {
        match &self.coordinator {
            Some(at) => Ok(at.clone()),
            None => self.local.cluster().map(|cluster| cluster.coordinator().to_owned()),
        }
    }

    /// Opens a client of the measured cluster over these transports. If there are none, it takes
    /// the first transport that a server offers.
    pub(crate) fn store(&mut self, transports: &[String]) -> Result<Store, Fail> {
        let coordinator = self.coordinator()?;
        Store::from(&coordinator, transports, self.local.own()?, None)
    }

    /// Opens a client of the store over one transport. The client records tracepoints.
    pub(crate) fn traced_store(
        &mut self,
        transport: &str,
        trace: &TraceRing,
    ) -> Result<Store, Fail> {
        let coordinator = self.coordinator()?;
        Store::from(&coordinator, &[transport.to_owned()], self.local.own()?, Some(trace.clone()))
    }

    /// Returns the locator of a server that echoes over `transport`. The second part is true if
    /// that server belongs to a store: it then expects the header of a store's message.
    pub(crate) fn echo_at(&mut self, transport: &str) -> Result<(String, bool), Fail> {
        let Some(coordinator) = &self.coordinator else {
            return Ok((self.local.echo()?.at(transport)?, false));
        };
        let servers = Store::over(coordinator, &[])?.servers()?;
        let Some(server) = servers.first() else {
            return Err(
                Fail::new("the cluster has no server").next("start one: sprat server -L LOCATOR")
            );
        };
        Ok((local::pick(&server.data, transport)?, true))
    }

    /// Returns the number of objects that a table of `size`-byte objects has.
    pub(crate) fn objects(&self, size: usize) -> u64 {
        self.objects.unwrap_or(200_000_000 / (size as u64 + 50))
    }

    /// Returns the sizes that the run's options name, or `own` if they name none.
    pub(crate) fn sizes(&self, own: &[usize]) -> Vec<usize> {
        if self.sizes.is_empty() { own.to_vec() } else { self.sizes.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn clients_begin_together_and_a_failed_one_keeps_no_other() {
        let ready = AtomicUsize::new(0);
        let numbers = in_threads(4, |number, start| {
            ready.fetch_add(1, Ordering::Relaxed);
            start.wait();
            Ok((number, ready.load(Ordering::Relaxed)))
        });
        assert_eq!(numbers.expect("none fails"), [(0, 4), (1, 4), (2, 4), (3, 4)]);
        let failed = in_threads(3, |number, start| {
            if number == 1 {
                return Err(Fail::new("client 1 has no store"));
            }
            start.wait();
            Ok(())
        });
        assert!(failed.expect_err("one fails").to_string().contains("client 1"));
    }
}
