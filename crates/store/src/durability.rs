//! [`Durability`]: when a cluster acknowledges a change, and [`TableDurability`] for one table.
//!
//! `docs/durability.md` has the failures that each mode survives.

use core::fmt;
use core::str::FromStr;

/// The time at which a change counts as made: what must have it before a client gets its answer.
/// All servers of a cluster have the same mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Durability {
    /// The master has the change. No other server does.
    #[default]
    None,
    /// The master has the change. Its replicas get it soon: the master lets clients wait if they
    /// lag behind.
    Async,
    /// All replicas have the change, in the memory of other processes.
    Memory,
    /// All replicas have the change, in mapped files that survive the processes. The disks get it
    /// within about a second.
    Process,
    /// The disks of all replicas have the change.
    Disk,
}

/// The time at which a change of a table's objects is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TableDurability {
    /// The mode of the cluster decides.
    #[default]
    Cluster,
    /// A change does not wait for its replicas, as with [`Durability::Async`]. They get it as the
    /// mode of the cluster says.
    Async,
}

/// The reason why a server cannot have a mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contradiction {
    /// The mode has replicas, and their number is 0.
    NoReplicas(Durability),
    /// The mode has no replicas, and their number is not 0.
    Replicas,
    /// The mode keeps replicas in files, and there is no directory for them.
    NoDirectory(Durability),
    /// The mode keeps replicas in memory, and there is a directory for them.
    Directory(Durability),
}

impl Durability {
    /// All modes, from the weakest to the strongest.
    pub const ALL: [Self; 5] = [Self::None, Self::Async, Self::Memory, Self::Process, Self::Disk];

    /// Returns the mode of a server that names none: the strongest that its replicas allow without
    /// a wait for a disk.
    #[must_use]
    pub fn of(replicas: usize, has_directory: bool) -> Self {
        match (replicas, has_directory) {
            (0, _) => Self::None,
            (_, false) => Self::Memory,
            (_, true) => Self::Process,
        }
    }

    /// Checks that a server with this number of replicas can have the mode.
    ///
    /// # Errors
    /// The options contradict each other.
    pub fn check(self, replicas: usize, has_directory: bool) -> Result<(), Contradiction> {
        match self {
            Self::None if replicas > 0 => Err(Contradiction::Replicas),
            Self::None if has_directory => Err(Contradiction::Directory(self)),
            Self::None => Ok(()),
            _ if replicas == 0 => Err(Contradiction::NoReplicas(self)),
            Self::Memory if has_directory => Err(Contradiction::Directory(self)),
            Self::Process | Self::Disk if !has_directory => Err(Contradiction::NoDirectory(self)),
            Self::Async | Self::Memory | Self::Process | Self::Disk => Ok(()),
        }
    }

    /// Returns the name of the mode: one word in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Async => "async",
            Self::Memory => "memory",
            Self::Process => "process",
            Self::Disk => "disk",
        }
    }

    /// Returns the number by which messages and files name the mode.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the mode that a message or file names by this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Durability {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|mode| mode.name() == text);
        named.ok_or("the modes are none, async, memory, process and disk")
    }
}

impl TableDurability {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Async];

    /// Returns the name of the value: one word in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Async => "async",
        }
    }

    /// Returns the number by which messages and files name the value.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the value that a message or file names by this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl FromStr for TableDurability {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|value| value.name() == text);
        named.ok_or("a table's durability is cluster or async")
    }
}

impl Contradiction {
    /// Returns what resolves the contradiction.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NoReplicas(_) => "give --replicas 1 or more, or --durability none",
            Self::Replicas => "give --replicas 0, or another --durability",
            Self::NoDirectory(_) => "name a directory with --dir, or give --durability memory",
            Self::Directory(Durability::None) => {
                "leave the directory out (sprat up --ephemeral), or give --replicas 1"
            }
            Self::Directory(_) => {
                "leave the directory out (sprat up --ephemeral), or give --durability process"
            }
        }
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReplicas(mode) => write!(f, "durability {mode} needs replicas"),
            Self::Replicas => f.write_str("durability none has no replicas"),
            Self::NoDirectory(mode) => write!(f, "durability {mode} needs a directory"),
            Self::Directory(mode) => write!(f, "durability {mode} has no use for a directory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_named_by_a_word_and_by_a_number() {
        for mode in Durability::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(Durability::from_code(mode.code()), Some(mode));
        }
        assert!("Disk".parse::<Durability>().is_err());
        assert_eq!(Durability::from_code(5), None);
        for value in TableDurability::ALL {
            assert_eq!(value.name().parse(), Ok(value));
            assert_eq!(TableDurability::from_code(value.code()), Some(value));
        }
        assert!("disk".parse::<TableDurability>().is_err());
        assert_eq!(TableDurability::from_code(2), None);
    }

    #[test]
    fn a_mode_without_a_name_never_contradicts_the_replicas() {
        for (replicas, has_directory) in [(0, false), (1, false), (1, true), (3, true)] {
            let mode = Durability::of(replicas, has_directory);
            assert_eq!(mode.check(replicas, has_directory), Ok(()), "{mode}");
        }
    }

    #[test]
    fn modes_contradict_what_they_cannot_use() {
        use Contradiction::{Directory, NoDirectory, NoReplicas, Replicas};
        use Durability::{Async, Disk, Memory, None, Process};
        assert_eq!(None.check(1, false), Err(Replicas));
        assert_eq!(None.check(0, true), Err(Directory(None)));
        for mode in [Async, Memory, Process, Disk] {
            assert_eq!(mode.check(0, false), Err(NoReplicas(mode)));
        }
        assert_eq!(Memory.check(1, true), Err(Directory(Memory)));
        assert_eq!(Process.check(1, false), Err(NoDirectory(Process)));
        assert_eq!(Disk.check(2, false), Err(NoDirectory(Disk)));
        assert_eq!((Async.check(1, true), Async.check(1, false)), (Ok(()), Ok(())));
        assert_eq!(Disk.check(2, true), Ok(()));
    }
}
