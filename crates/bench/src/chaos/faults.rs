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

use sprat_proto::Rng;
use sprat_sys::tmpfs::Tmpfs;

use super::disks;
use super::network::{HostNumber, Network};
use super::plan::{Fault, Kind};
use crate::cluster::{Cluster, Part, server_directory};
use crate::fail::{Fail, Named as _};

/// A cluster that is attacked, and what faults need besides.
pub(super) struct Attacked {
    pub(super) cluster: Cluster,
    pub(super) servers: u16,
    pub(super) network: Option<Network>,
    /// The file system of the cluster's directory, if it is the run's own, and its size.
    pub(super) disk: Option<(Tmpfs, u64)>,
    /// The cluster's directory.
    pub(super) directory: Option<PathBuf>,
    /// Draws the bits that change.
    pub(super) rng: Rng,
}

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
        attacked: &mut Attacked,
        since: Duration,
        now: Instant,
    ) -> Result<Vec<Fault>, Fail> {
        let (over, lasting): (Vec<_>, _) =
            self.lasting.drain(..).partition(|(until, _)| *until <= now);
        self.lasting = lasting;
        for (_, fault) in over {
            attacked.mend(&fault, now)?;
        }
        let (begun, due): (Vec<_>, _) = self.due.drain(..).partition(|fault| fault.at <= since);
        self.due = due;
        for fault in &begun {
            attacked.inject(fault, now)?;
            self.lasting.push((now + fault.lasts, fault.clone()));
        }
        Ok(begun)
    }

    /// Mends all faults at once. Those that were not injected yet are left out.
    pub(super) fn end(&mut self, attacked: &mut Attacked, now: Instant) -> Result<(), Fail> {
        self.due.clear();
        self.lasting.drain(..).try_for_each(|(_, fault)| attacked.mend(&fault, now))
    }
}

impl Attacked {
    fn inject(&mut self, fault: &Fault, now: Instant) -> Result<(), Fail> {
        let parts = self.parts(fault);
        match fault.kind {
            Kind::Stop | Kind::CoordinatorStop => {
                parts.into_iter().for_each(|part| self.cluster.pause(part));
                Ok(())
            }
            Kind::Kill | Kind::KillAll | Kind::CoordinatorKill => {
                self.cluster.hold(&parts);
                Ok(())
            }
            Kind::Cut | Kind::CutOut | Kind::CutIn | Kind::CutCoordinator | Kind::CutBackups => {
                let cuts = self.cuts(fault);
                let network = self.network.as_mut();
                network.map_or(Ok(()), |network| network.cut(&cuts)).named("cannot cut a network")
            }
            Kind::DiskFull => match &self.disk {
                Some((disk, _)) => disk.fill().named("cannot fill the disk"),
                None => Ok(()),
            },
            Kind::Flip | Kind::Delete => {
                self.cluster.hold(&parts);
                self.damage(fault).named("cannot damage a server's files")
            }
            Kind::OldCopy => {
                self.cluster.hold(&parts);
                let kept = self.damage(fault).named("cannot copy a server's files");
                parts.into_iter().for_each(|part| self.cluster.release(part, now));
                kept
            }
        }
    }

    fn mend(&mut self, fault: &Fault, now: Instant) -> Result<(), Fail> {
        let parts = self.parts(fault);
        match fault.kind {
            Kind::Stop | Kind::CoordinatorStop => {
                parts.into_iter().for_each(|part| self.cluster.resume(part));
                Ok(())
            }
            Kind::Cut | Kind::CutOut | Kind::CutIn | Kind::CutCoordinator | Kind::CutBackups => {
                let cuts = self.cuts(fault);
                let network = self.network.as_mut();
                network.map_or(Ok(()), |network| network.mend(&cuts)).named("cannot mend a network")
            }
            Kind::DiskFull => match &self.disk {
                Some((disk, size)) => disk.limit(*size).named("cannot make room on the disk"),
                None => Ok(()),
            },
            Kind::OldCopy => {
                self.cluster.hold(&parts);
                let put = self.put_back(fault).named("cannot replace a server's files");
                parts.into_iter().for_each(|part| self.cluster.release(part, now));
                put
            }
            Kind::Kill | Kind::KillAll | Kind::CoordinatorKill | Kind::Flip | Kind::Delete => {
                parts.into_iter().for_each(|part| self.cluster.release(part, now));
                Ok(())
            }
        }
    }

    /// Returns the parts of the cluster that a fault is about.
    fn parts(&self, fault: &Fault) -> Vec<Part> {
        match fault.kind {
            Kind::CoordinatorKill | Kind::CoordinatorStop => vec![Part::Coordinator],
            Kind::KillAll => {
                let all = (1..=self.servers).map(Part::Server);
                std::iter::once(Part::Coordinator).chain(all).collect()
            }
            _ => fault.servers.iter().copied().map(Part::Server).collect(),
        }
    }

    /// Returns the pairs of hosts between which a fault cuts the network.
    fn cuts(&self, fault: &Fault) -> Vec<(HostNumber, HostNumber)> {
        let (coordinator, clients) = (0, self.servers + 1);
        let mut cuts = Vec::new();
        for &server in &fault.servers {
            let peers = (coordinator..=clients).filter(|peer| *peer != server);
            for peer in peers {
                let concerns = match fault.kind {
                    Kind::CutCoordinator => peer == coordinator,
                    Kind::CutBackups => peer != coordinator && peer != clients,
                    _ => true,
                };
                if concerns && fault.kind != Kind::CutIn {
                    cuts.push((server, peer));
                }
                if concerns && fault.kind != Kind::CutOut {
                    cuts.push((peer, server));
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

    /// Returns the directory of each server of a fault, and the place of a copy of its replicas.
    fn directories(&self, fault: &Fault) -> Vec<(PathBuf, PathBuf)> {
        let Some(all) = &self.directory else { return Vec::new() };
        let of =
            |server: &u16| (server_directory(all, *server), all.join(format!("copy-of-{server}")));
        fault.servers.iter().map(of).collect()
    }
}
