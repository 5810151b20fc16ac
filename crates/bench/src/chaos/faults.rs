//! The faults of a run in a real cluster: injected when their time has come, and mended later.
//!
//! ```text
//! round ──► due ── inject ──► lasting ── mend ──► the cluster becomes whole
//! ```
//!
//! The processes are children of this process, so only its main thread may inject and mend: a child
//! ends with the thread that started it.

use std::time::{Duration, Instant};

use super::plan::{Fault, Kind};
use crate::cluster::{Cluster, Part};

/// The faults of a round that are not over yet.
#[derive(Debug, Default)]
pub(super) struct Faults {
    due: Vec<Fault>,
    lasting: Vec<(Instant, Fault)>,
}

impl Faults {
    /// Makes the faults of a round that has not begun.
    pub(super) fn new(round: Vec<Fault>) -> Self {
        Self { due: round, lasting: Vec::new() }
    }

    /// True if all faults were injected and mended.
    pub(super) fn is_over(&self) -> bool {
        self.due.is_empty() && self.lasting.is_empty()
    }

    /// Mends the faults whose time is over, and injects those whose time has come, which it
    /// returns. `since` is the time since the start of the round.
    pub(super) fn advance(
        &mut self,
        cluster: &mut Cluster,
        servers: u16,
        since: Duration,
        now: Instant,
    ) -> Vec<Fault> {
        let (over, lasting) = self.lasting.drain(..).partition(|(until, _)| *until <= now);
        self.lasting = lasting;
        for (_, fault) in over {
            mend(cluster, servers, &fault, now);
        }
        let (begun, due) = self.due.drain(..).partition(|fault| fault.at <= since);
        self.due = due;
        for fault in &begun {
            inject(cluster, servers, fault);
            self.lasting.push((now + fault.lasts, fault.clone()));
        }
        begun
    }

    /// Mends all faults at once. Those that were not injected yet are left out.
    pub(super) fn end(&mut self, cluster: &mut Cluster, servers: u16, now: Instant) {
        self.due.clear();
        for (_, fault) in self.lasting.drain(..) {
            mend(cluster, servers, &fault, now);
        }
    }
}

/// Returns the parts of the cluster that a fault is about.
fn parts(fault: &Fault, servers: u16) -> Vec<Part> {
    match fault.kind {
        Kind::CoordinatorKill | Kind::CoordinatorStop => vec![Part::Coordinator],
        Kind::KillAll => {
            let all = (1..=servers).map(Part::Server);
            std::iter::once(Part::Coordinator).chain(all).collect()
        }
        Kind::Kill | Kind::Stop => fault.servers.iter().copied().map(Part::Server).collect(),
    }
}

fn inject(cluster: &mut Cluster, servers: u16, fault: &Fault) {
    let parts = parts(fault, servers);
    match fault.kind {
        Kind::Stop | Kind::CoordinatorStop => {
            parts.into_iter().for_each(|part| cluster.pause(part));
        }
        Kind::Kill | Kind::KillAll | Kind::CoordinatorKill => cluster.hold(&parts),
    }
}

fn mend(cluster: &mut Cluster, servers: u16, fault: &Fault, now: Instant) {
    for part in parts(fault, servers) {
        match fault.kind {
            Kind::Stop | Kind::CoordinatorStop => cluster.resume(part),
            Kind::Kill | Kind::KillAll | Kind::CoordinatorKill => cluster.release(part, now),
        }
    }
}
