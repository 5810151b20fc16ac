//! One run of tests: its options, its report and its processes.

use std::path::PathBuf;
use std::time::Duration;

use sprat::locator::Protocol;
use sprat::trace::Marks;

use super::lanes::{self, Exchange};
use super::measure::{self, Figures, Lane};
use super::report::{Report, Row};
use super::{local, net};
use crate::baseline::Kernel;
use crate::fail::Fail;
use crate::store::Store;

/// The state of one run, which all tests share.
pub(crate) struct Bench {
    /// Where results go.
    pub(crate) report: Report,
    /// In the order that was asked for.
    pub(crate) transports: Vec<String>,
    /// Of one figure, over all rounds.
    pub(crate) time: Duration,
    pub(crate) rounds: u16,
    pub(crate) sizes: Vec<usize>,
    pub(crate) outstanding: usize,
    pub(crate) sessions: usize,
    /// Of each set; ClusterPerf's own number if unset.
    pub(crate) objects: Option<u64>,
    /// The running cluster that is measured; one of our own if unset.
    pub(crate) coordinator: Option<String>,
    pub(crate) local: local::Local,
    /// Where the picture of a breakdown goes.
    pub(crate) svg: Option<PathBuf>,
}

/// A figure of the product, and beside it, measured in turns, its floor and kernel TCP moving the same bytes.
pub(crate) struct Compared {
    pub(crate) product: Figures,
    pub(crate) floor: &'static str,
    pub(crate) floor_us: Option<f64>,
    pub(crate) tcp_us: Option<f64>,
}

impl Compared {
    /// The row of these figures.
    pub(crate) fn row(&self, test: &str, transport: &str, size: usize) -> Row {
        Row::new(test, transport, Some(size), &self.product).beside(
            self.floor,
            self.floor_us,
            self.tcp_us,
        )
    }
}

impl Bench {
    /// Measures `product` in turns with the floor of `exchange` over `transport` and with kernel TCP.
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
        // Over TCP the two are one, also for RDMA, which goes over it.
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

    /// Where the cluster that is measured has its coordinator.
    pub(crate) fn coordinator(&mut self) -> Result<String, Fail> {
        match &self.coordinator {
            Some(at) => Ok(at.clone()),
            None => self.local.cluster().map(|cluster| cluster.coordinator().to_owned()),
        }
    }

    /// A client of the cluster that is measured, over these transports; over whatever the servers name first, if none.
    pub(crate) fn store(&mut self, transports: &[String]) -> Result<Store, Fail> {
        let coordinator = self.coordinator()?;
        Store::from(&coordinator, transports, self.local.own()?, None)
    }

    /// The same over one transport, with marks.
    pub(crate) fn marked_store(&mut self, transport: &str, marks: &Marks) -> Result<Store, Fail> {
        let coordinator = self.coordinator()?;
        Store::from(&coordinator, &[transport.to_owned()], self.local.own()?, Some(marks.clone()))
    }

    /// Who echoes over `transport`, and whether it is a server of a store, which wants the store's own message.
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

    /// How many objects of `size` bytes a set has.
    pub(crate) fn objects(&self, size: usize) -> u64 {
        self.objects.unwrap_or(200_000_000 / (size as u64 + 50))
    }

    /// The sizes that were asked for, or the test's own.
    pub(crate) fn sizes(&self, own: &[usize]) -> Vec<usize> {
        if self.sizes.is_empty() { own.to_vec() } else { self.sizes.clone() }
    }
}
