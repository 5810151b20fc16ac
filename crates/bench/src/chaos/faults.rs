//! The faults of a run in a real cluster: injected when their time has come, and mended later.
//!
//! ```text
//! round ──► due ── inject ──► lasting ── mend ──► the cluster becomes whole
//! ```
//!
//! The processes are children of this process, so only its main thread may inject and mend: a child
//! ends with the thread that started it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sprat::server::{MAX_SHARDS, shard_directory};
use sprat_proto::Rng;
use sprat_sys::tmpfs::Tmpfs;

use super::disks;
use super::network::{Network, Place};
use super::plan::{Action, Fault, Kind};
use crate::cluster::{Cluster, Part, server_directory};
use crate::fail::{Fail, Named as _};
use crate::store::Store;

/// The time that the search for the coordinator that leads may take.
const SEARCH: Duration = Duration::from_millis(500);

/// A cluster that is attacked, and what faults need besides.
pub(super) struct Attacked {
    pub(super) cluster: Cluster,
    /// All processes of the cluster.
    pub(super) parts: Vec<Part>,
    pub(super) leaders: Leaders,
    pub(super) network: Option<Network>,
    /// The file system of the cluster's directory, if it is the run's own, and its size.
    pub(super) disk: Option<(Tmpfs, u64)>,
    /// The cluster's directory.
    pub(super) directory: Option<PathBuf>,
    /// Draws the bits that change.
    pub(super) rng: Rng,
}

/// The leaders of a run: the coordinators that answered as such when a fault came.
pub(super) struct Leaders {
    /// The client that asks. `None`: there is one coordinator, which needs no question.
    store: Option<Store>,
    last: Part,
    /// The number of leaders that were killed.
    pub(super) killed: u64,
}

impl Leaders {
    /// Makes the leaders of a run that begins. `store` asks several coordinators.
    pub(super) fn new(store: Option<Store>) -> Self {
        Self { store, last: Part::Coordinator(1), killed: 0 }
    }

    /// Returns the coordinator that leads, and true. If none says so in time, returns the last one
    /// that did, and false.
    fn find(&mut self, cluster: &Cluster) -> (Part, bool) {
        let Some(store) = &mut self.store else { return (self.last, true) };
        store.set_timeout(SEARCH);
        let leader = store.leader().ok();
        let found = leader.and_then(|leader| cluster.coordinator_at(&leader.locators));
        self.last = found.unwrap_or(self.last);
        (self.last, found.is_some())
    }
}

/// A fault that was injected.
#[derive(Clone, Debug)]
pub(super) struct Injected {
    pub(super) fault: Fault,
    /// The processes that it is about.
    pub(super) parts: Vec<Part>,
}

/// The faults of a round that are not over yet.
#[derive(Debug, Default)]
pub(super) struct Faults {
    due: Vec<Fault>,
    lasting: Vec<(Instant, Injected)>,
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
        attacked: &mut Attacked,
        since: Duration,
        now: Instant,
    ) -> Result<Vec<Injected>, Fail> {
        let (over, lasting): (Vec<_>, _) =
            self.lasting.drain(..).partition(|(until, _)| *until <= now);
        self.lasting = lasting;
        for (_, injected) in over {
            attacked.mend(&injected, now)?;
        }
        let (begun, due): (Vec<_>, _) = self.due.drain(..).partition(|fault| fault.at <= since);
        self.due = due;
        begun
            .into_iter()
            .map(|fault| {
                let parts = attacked.parts(&fault);
                let injected = Injected { fault, parts };
                attacked.inject(&injected, now)?;
                self.lasting.push((now + injected.fault.lasts, injected.clone()));
                Ok(injected)
            })
            .collect()
    }

    /// Mends all faults at once. Those that were not injected yet are left out.
    pub(super) fn end(&mut self, attacked: &mut Attacked, now: Instant) -> Result<(), Fail> {
        self.due.clear();
        self.lasting.drain(..).try_for_each(|(_, injected)| attacked.mend(&injected, now))
    }
}

impl Attacked {
    fn inject(&mut self, injected: &Injected, now: Instant) -> Result<(), Fail> {
        let Injected { fault, parts } = injected;
        match fault.kind.action() {
            Action::Pause => {
                parts.iter().for_each(|part| self.cluster.pause(*part));
                Ok(())
            }
            Action::Kill => {
                self.cluster.hold(parts);
                Ok(())
            }
            Action::Cut => {
                let cuts = self.cuts(injected);
                let network = self.network.as_mut();
                network.map_or(Ok(()), |network| network.cut(&cuts)).named("cannot cut a network")
            }
            Action::Fill => match &self.disk {
                Some((disk, _)) => disk.fill().named("cannot fill the disk"),
                None => Ok(()),
            },
            Action::Damage => {
                self.cluster.hold(parts);
                self.damage(fault).named("cannot damage a server's files")
            }
            Action::Restore => {
                self.cluster.hold(parts);
                let kept = self.damage(fault).named("cannot copy a server's files");
                parts.iter().for_each(|part| self.cluster.release(*part, now));
                kept
            }
        }
    }

    fn mend(&mut self, injected: &Injected, now: Instant) -> Result<(), Fail> {
        let Injected { fault, parts } = injected;
        match fault.kind.action() {
            Action::Pause => {
                parts.iter().for_each(|part| self.cluster.resume(*part));
                Ok(())
            }
            Action::Cut => {
                let cuts = self.cuts(injected);
                let network = self.network.as_mut();
                network.map_or(Ok(()), |network| network.mend(&cuts)).named("cannot mend a network")
            }
            Action::Fill => match &self.disk {
                Some((disk, size)) => disk.limit(*size).named("cannot make room on the disk"),
                None => Ok(()),
            },
            Action::Restore => {
                self.cluster.hold(parts);
                let put = self.put_back(fault).named("cannot replace a server's files");
                parts.iter().for_each(|part| self.cluster.release(*part, now));
                put
            }
            Action::Kill | Action::Damage => {
                parts.iter().for_each(|part| self.cluster.release(*part, now));
                Ok(())
            }
        }
    }

    /// Returns the processes that a fault is about. If that is the coordinator that leads, it is
    /// asked for.
    fn parts(&mut self, fault: &Fault) -> Vec<Part> {
        match fault.kind {
            Kind::CoordinatorKill | Kind::CoordinatorStop | Kind::CutLeader => {
                let (leader, leads) = self.leaders.find(&self.cluster);
                self.leaders.killed += u64::from(leads && fault.kind == Kind::CoordinatorKill);
                vec![leader]
            }
            Kind::EtcdKill | Kind::EtcdStop => vec![Part::Etcd],
            Kind::KillAll => self.parts.clone(),
            _ => fault.servers.iter().copied().map(Part::Server).collect(),
        }
    }

    /// Returns the pairs of hosts between which a fault cuts the network.
    fn cuts(&self, injected: &Injected) -> Vec<(Place, Place)> {
        let Some(network) = &self.network else { return Vec::new() };
        let kind = injected.fault.kind;
        let mut cuts = Vec::new();
        for victim in injected.parts.iter().copied().map(Place::Process) {
            for peer in network.places().filter(|peer| *peer != victim) {
                let concerns = match kind {
                    Kind::CutCoordinator => matches!(peer, Place::Process(Part::Coordinator(_))),
                    Kind::CutBackups => matches!(peer, Place::Process(Part::Server(_))),
                    _ => true,
                };
                if concerns && kind != Kind::CutIn {
                    cuts.push((victim, peer));
                }
                if concerns && kind != Kind::CutOut {
                    cuts.push((peer, victim));
                }
            }
        }
        cuts
    }

    /// Damages or keeps the files of a fault's servers, which are down.
    fn damage(&mut self, fault: &Fault) -> std::io::Result<()> {
        for (directory, copy) in self.directories(fault) {
            match fault.kind {
                Kind::Flip => disks::flip(&directory, &mut self.rng).map(drop)?,
                Kind::Delete => disks::delete(&directory)?,
                _ => disks::keep(&directory, &copy)?,
            }
        }
        Ok(())
    }

    fn put_back(&self, fault: &Fault) -> std::io::Result<()> {
        let mut directories = self.directories(fault).into_iter();
        directories.try_for_each(|(directory, copy)| disks::put_back(&directory, &copy))
    }

    /// Returns the directory of each shard of the servers of a fault, and the place of a copy of
    /// its replicas.
    fn directories(&self, fault: &Fault) -> Vec<(PathBuf, PathBuf)> {
        let Some(all) = &self.directory else { return Vec::new() };
        let of = |&server: &u16| {
            let own = server_directory(all, server);
            let shards = (0..MAX_SHARDS).map(move |shard| (shard, shard_directory(&own, shard)));
            let there = shards.take_while(|(_, directory)| directory.exists());
            there.map(move |(i, own)| (own, all.join(format!("copy-of-{server}-{i}"))))
        };
        fault.servers.iter().flat_map(of).collect()
    }
}
