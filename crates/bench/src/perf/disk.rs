//! Writes whose replicas are on disk (`--durability disk`), beside the disk's own group commit.
//!
//! The floor has as many writers in progress as the product's test, and as many replicas: one
//! program commits all their records together, by a mapped file or by direct writes. The better of
//! the two is the floor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sprat::server::Durability;
use sprat_store::objects::entry::{OBJECT, Record};

use super::measure::{Figures, Lane, Sample, in_turns};
use super::report::{Report, Row};
use crate::baseline::{Batch, Limits, commit_direct, commit_mapped};
use crate::fail::{Fail, Named as _};

/// The floors' names, and the functions that measure them.
const WAYS: [(&str, Commit); 2] =
    [("floor.disk.mapped", commit_mapped), ("floor.disk.direct", commit_direct)];

type Commit = fn(&Path, Batch, Limits) -> std::io::Result<Vec<u32>>;

/// The replicas of a cluster that a run starts, and the cores of its servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copies {
    /// The number of cores of each server. With several, servers and clients share all cores of the
    /// machine.
    pub cores: u16,
    /// The number of replicas of each object.
    pub replicas: u16,
    /// The time at which a change is acknowledged. `None`: the servers' default.
    pub durability: Option<Durability>,
    /// The directory in which the run makes the cluster's own, which it removes afterwards. `None`:
    /// that of temporary files, if the durability needs one.
    pub directory: Option<PathBuf>,
}

impl Default for Copies {
    fn default() -> Self {
        Self { cores: 1, replicas: 0, durability: None, directory: None }
    }
}

impl Copies {
    /// Returns the directory in which that of the cluster is made. `None` if it needs none.
    pub(crate) fn parent(&self) -> Option<PathBuf> {
        let needed = self.directory.is_some()
            || matches!(self.durability, Some(Durability::Process | Durability::Disk));
        needed.then(|| self.directory.clone().unwrap_or_else(std::env::temp_dir))
    }

    /// Returns the floors of writes whose keys and values have `size` bytes, `outstanding` of them
    /// in progress. `None` if no write waits for a disk.
    pub(crate) fn floors(&self, size: usize, outstanding: usize) -> Option<Floors> {
        let entry = OBJECT + size + Record::size(false);
        let batch = Batch { records: outstanding, bytes: entry * usize::from(self.replicas) };
        let folder = self.parent().filter(|_| self.durability == Some(Durability::Disk))?;
        Some(Floors { folder, batch })
    }
}

/// The disk's own group commit.
#[derive(Clone, Debug)]
pub(crate) struct Floors {
    folder: PathBuf,
    batch: Batch,
}

/// The figures of writes that wait for a disk, and of the disk's own group commit. All are measured
/// in turns.
pub(crate) struct Durable {
    pub(crate) product: Figures,
    floors: Vec<Figures>,
}

impl Floors {
    /// Measures `product` in turns with the disk's group commit.
    pub(crate) fn compare(
        &self,
        product: Lane<'_>,
        rounds: u16,
        time: Duration,
    ) -> Result<Durable, Fail> {
        let mut lanes = vec![product];
        lanes.extend(WAYS.map(|(_, commit)| self.lane(commit)));
        let mut figures = in_turns(&mut lanes, rounds, time)?;
        let floors = figures.split_off(1);
        Ok(Durable { product: figures.remove(0), floors })
    }

    fn lane(&self, commit: Commit) -> Lane<'_> {
        Box::new(move |time| {
            let limits = Limits { count: 10_000_000, time_ns: time.as_nanos() as u64 };
            let commits = commit(&self.folder, self.batch, limits)
                .named(format_args!("cannot measure the disk of {}", self.folder.display()))?;
            let mut sample = Sample::new();
            let bytes = (self.batch.records * self.batch.bytes) as u64;
            let ns: u64 = commits.iter().map(|&ns| u64::from(ns)).sum();
            commits.iter().for_each(|&ns| sample.record(ns.into(), bytes));
            sample.operations *= self.batch.records as u64;
            sample.elapsed = Duration::from_nanos(ns);
            Ok(sample)
        })
    }
}

impl Durable {
    /// Adds the row of the product, with its share of the disk's rate, and the rows of the floors.
    pub(crate) fn report(
        &self,
        report: &mut Report,
        (test, transport): (&str, &str),
        size: usize,
    ) -> Result<(), Fail> {
        let best = |of: &dyn Fn(&Figures) -> Option<f64>| {
            self.floors.iter().filter_map(of).reduce(f64::max)
        };
        let fastest = self.floors.iter().filter_map(|f| f.p50_us).reduce(f64::min);
        let mut row = Row::new(test, transport, Some(size), &self.product);
        row = row.beside("raw group commit", fastest, None);
        row.value = share(self.product.ops_per_s, best(&|f| f.ops_per_s));
        row.unit = row.value.map(|_| "% of the disk".to_owned());
        report.row(row)?;
        for ((name, _), figures) in WAYS.iter().zip(&self.floors) {
            report.row(Row::new(*name, "disk", Some(size), figures))?;
        }
        Ok(())
    }
}

/// Returns `rate` in percent of the floor's.
fn share(rate: Option<f64>, floor: Option<f64>) -> Option<f64> {
    Some(rate? * 100.0 / floor.filter(|floor| *floor > 0.0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(durability: Option<Durability>, directory: Option<&str>) -> Copies {
        let directory = directory.map(PathBuf::from);
        Copies { replicas: 2, durability, directory, ..Copies::default() }
    }

    #[test]
    fn only_what_survives_processes_needs_a_directory() {
        let tmp = std::env::temp_dir();
        for (durability, directory) in [
            (None, None),
            (Some(Durability::Memory), None),
            (Some(Durability::Process), Some(tmp.clone())),
            (Some(Durability::Disk), Some(tmp)),
        ] {
            assert_eq!(copies(durability, None).parent(), directory, "{durability:?}");
        }
        let named = copies(Some(Durability::Disk), Some("here"));
        assert_eq!(named.parent().as_deref(), Some(Path::new("here")));
    }

    #[test]
    fn the_floor_of_a_disk_has_the_records_of_all_writers_and_replicas() {
        assert!(copies(Some(Durability::Process), None).floors(130, 64).is_none());
        let floors = copies(Some(Durability::Disk), None).floors(130, 64).expect("a floor");
        let entry = OBJECT + 130 + Record::size(false);
        assert_eq!(floors.batch, Batch { records: 64, bytes: 2 * entry });
    }

    #[test]
    fn the_share_is_that_of_the_rates() {
        assert_eq!(share(Some(40.0), Some(50.0)), Some(80.0));
        assert_eq!((share(None, Some(1.0)), share(Some(1.0), Some(0.0))), (None, None));
    }
}
