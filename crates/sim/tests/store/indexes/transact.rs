//! Transactions of several objects that keep the indexes.

use std::sync::atomic::{AtomicU64, Ordering};

use sprat_sim::check::serial;
use sprat_store::client::{Change, Error, TransactionPart};
use sprat_store::index::{self, Error as IndexError, Objects, Part, Seen};
use sprat_store::message::data::RejectRules;

use super::task::{ANY, Task, key_bytes, name_of, tag_of, value};
use super::tasks::{KEYS, expected};

/// The number of transactions that were committed, in all worlds.
pub(super) static COMMITTED: AtomicU64 = AtomicU64::new(0);

/// The most objects of a transaction.
const MOST: u64 = 4;

/// Returns the rules for an object that must be as it was read.
fn as_read(seen: Option<&Seen>) -> RejectRules {
    match seen {
        None => RejectRules { exists: true, ..ANY },
        Some((version, _)) => RejectRules {
            given_version: *version,
            doesnt_exist: true,
            version_ne_given: true,
            ..ANY
        },
    }
}

/// A transaction as a task plans it.
struct Planned {
    /// The number of the transaction in the score.
    number: usize,
    keys: Vec<u64>,
    names: Vec<Vec<u8>>,
    /// The objects as the task has read them; `None` for one that it has not.
    read: Vec<Option<Option<Seen>>>,
    /// The changes: the place of each object, and the tag that is written or `None` for a removal.
    changes: Vec<(usize, Option<u64>)>,
}

impl Task {
    /// Reads some objects, and changes some of them and others in one transaction.
    pub(super) async fn transact(self) {
        let Some(planned) = self.plan().await else { return };
        let Planned { number, keys, names, read, changes } = &planned;
        let values: Vec<Option<Vec<u8>>> = changes.iter().map(|(_, tag)| tag.map(value)).collect();
        let part = |place: usize| {
            let planned = changes.iter().position(|(of, _)| *of == place);
            let change = match planned.map(|planned| &values[planned]) {
                None => Change::Check,
                Some(None) => Change::Remove,
                Some(Some(value)) => Change::Write(value, None),
            };
            let seen = read[place].as_ref();
            let rules = seen.map_or(ANY, |seen| as_read(seen.as_ref()));
            let table = self.tables().0;
            let part = TransactionPart { table, key: &names[place], rules, change };
            Part { part, read: seen.map(|it| it.as_ref().map(|(version, it)| (*version, &it[..]))) }
        };
        let parts: Vec<Part<'_>> = (0..keys.len()).map(part).collect();
        let outcome = index::commit(&self, &[self.indexes()], &parts).await;
        self.score(|score| match outcome {
            Ok(versions) => {
                COMMITTED.fetch_add(1, Ordering::Relaxed);
                let named = |&(place, _): &(usize, _)| (name_of(keys[place]), versions[place].0);
                score.serial.commit(*number, &changes.iter().map(named).collect::<Vec<_>>());
                for (place, tag) in changes {
                    score.known.end(keys[*place], Some((versions[*place].0, *tag)));
                }
            }
            Err(error) if error.maybe_executed() => score.serial.unknown(*number),
            Err(error) => {
                if !matches!(error, Error::Conflict { .. }) {
                    expected(&IndexError::Store(error));
                }
                score.serial.abort(*number);
                changes.iter().for_each(|(place, _)| score.known.end(keys[*place], None));
            }
        });
    }

    /// Reads some objects and plans changes. Returns `None` if a read has failed.
    async fn plan(&self) -> Option<Planned> {
        let mut keys: Vec<u64> = (0..1 + self.below(MOST)).map(|_| self.below(KEYS)).collect();
        keys.sort_unstable();
        keys.dedup();
        let names: Vec<Vec<u8>> = keys.iter().map(|key| key_bytes(*key)).collect();
        let number = self.score(|score| score.serial.begin());
        let mut read = Vec::new();
        for name in &names {
            let reads = self.chance(500_000);
            read.push(match reads {
                false => None,
                true => match self.read(&[(self.tables().0, name)]).await {
                    Ok(seen) => seen.into_iter().next(),
                    Err(_) => {
                        self.score(|score| score.serial.abort(number));
                        return None;
                    }
                },
            });
        }
        let mut changes: Vec<(usize, Option<u64>)> = Vec::new();
        self.score(|score| {
            for (place, key) in keys.iter().enumerate() {
                let name = name_of(*key);
                if let Some(seen) = &read[place] {
                    let seen = seen.as_ref().map(|(version, it)| (version.0, tag_of(it)));
                    score.serial.add(number, serial::Part::Read { name, seen });
                }
                let tag = match self.below(10) {
                    0..3 if read[place].is_some() => continue,
                    0..4 => None,
                    _ => Some(score.tag()),
                };
                score.serial.add(
                    number,
                    match tag {
                        None => serial::Part::Remove { name },
                        Some(tag) => serial::Part::Write { name, tag },
                    },
                );
                changes.push((place, tag));
                score.known.begin(*key);
            }
        });
        Some(Planned { number, keys, names, read, changes })
    }
}
