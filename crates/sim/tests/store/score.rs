//! The operations of a simulated store's users and their answers, and the check of both.

use std::collections::{BTreeMap, BTreeSet};

use sprat_proto::Instant;
use sprat_sim::check::history::History;
use sprat_sim::check::names::{self, Name};
use sprat_sim::check::serial::Serial;
use sprat_sim::check::{Entry, Verdict, linearizable};
use sprat_sim::wire::HostId;

use crate::known::Known;

/// The operations and answers of all users of a simulated store.
#[derive(Debug, Default)]
pub(crate) struct Score {
    /// The history of all objects of the simulated store.
    pub(crate) history: History,
    /// The history of the transactions.
    pub(crate) serial: Serial,
    /// The states of the objects that have indexes.
    pub(crate) known: Known,
    /// The history of each table name of the simulated store.
    names: BTreeMap<u64, Vec<Entry<names::Op, names::Answer>>>,
    by_number: Vec<(u64, usize)>,
    /// The drops of tables in progress, each with the tables of that name that were known at its
    /// call.
    drops: BTreeMap<usize, Vec<u64>>,
    /// The table names whose table a user has tried to drop.
    dropped: BTreeSet<u64>,
    time: u64,
    tags: u64,
    /// The name of each table whose id an answer reported.
    pub(crate) tables: BTreeMap<u64, u64>,
    /// The tables whose changes do not wait for their replicas.
    pub(crate) hasty: BTreeSet<u64>,
    /// The number of operations that each user has yet to start.
    pub(crate) left: BTreeMap<HostId, u32>,
    /// The number of operations in progress of each user, and whether it has read all objects at
    /// the end.
    pub(crate) open: BTreeMap<HostId, (usize, bool)>,
    /// The last time at which the value with this tag may exist, for a write whose end is known.
    pub(crate) expires: BTreeMap<u64, Instant>,
    /// The tags and lifetimes, in milliseconds, of writes in progress.
    pub(crate) lifetimes: BTreeMap<usize, (u64, u64)>,
    /// The calls of reads in progress of objects that expire.
    pub(crate) reads: BTreeMap<usize, Instant>,
    /// True if users may split tables and move parts of them.
    pub(crate) arranged: bool,
    /// True once the faults have ended and the users read all objects.
    pub(crate) finale: bool,
}

impl Score {
    /// Returns a new tag: a number that identifies a value.
    pub(crate) fn tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags
    }

    pub(crate) fn call_name(&mut self, name: u64, op: names::Op) -> usize {
        self.time += 1;
        let entries = self.names.entry(name).or_default();
        entries.push(Entry { op, called: self.time, answer: None });
        self.by_number.push((name, entries.len() - 1));
        let number = self.by_number.len() - 1;
        if let names::Op::Drop { .. } = op {
            let known = self.tables.iter().filter(|(_, n)| **n == name).map(|(id, _)| *id);
            self.drops.insert(number, known.collect());
            self.dropped.insert(name);
        }
        number
    }

    /// Returns true if a user has tried to drop `table`.
    pub(crate) fn may_be_dropped(&self, table: u64) -> bool {
        self.dropped.contains(&self.tables[&table])
    }

    pub(crate) fn end_name(&mut self, number: usize, answer: Option<names::Answer>) {
        self.time += 1;
        let (name, index) = self.by_number[number];
        let Some(entry) = self.names.get_mut(&name).map(|entries| &mut entries[index]) else {
            return;
        };
        assert!(entry.answer.is_none());
        entry.answer = answer.map(|answer| (self.time, answer));
        let called = entry.called;
        // Another drop in progress freed the name of an earlier table, which servers may still
        // serve meanwhile.
        let is_alone = !self.names[&name].iter().enumerate().any(|(i, e)| {
            i != index
                && matches!(e.op, names::Op::Drop { .. })
                && e.answer.is_none_or(|(at, _)| at > called)
        });
        if let Some(tables) = self.drops.remove(&number)
            && answer == Some(names::Answer::Dropped)
            && is_alone
        {
            // The drop ends this table and every earlier one of that name.
            tables.into_iter().for_each(|table| self.history.drop_table(table));
        }
    }

    /// Checks that the histories of all objects and table names are linearizable.
    pub(crate) fn verdict(&self, span: u32) -> Verdict {
        for (name, entries) in &self.names {
            match linearizable(Name, &with_rivals(entries)) {
                Verdict::Good => {}
                Verdict::Broken(why) => return Verdict::Broken(format!("table {name}: {why}")),
                Verdict::TooHard => return Verdict::TooHard,
            }
        }
        if let Err(fault) = self.serial.check() {
            return Verdict::Broken(fault.to_string());
        }
        // Only the cluster knows the tablet of a key, unless the table has a single one.
        let is_whole = span == 1 && !self.arranged;
        self.history.verdict(|(table, key)| (table, if is_whole { 0 } else { key }))
    }
}

/// Returns the history of a table name with the overlapping drops marked as shared. It omits
/// unanswered look-ups, which prove nothing, and all unanswered creations but the first, which may
/// happen any number of times.
fn with_rivals(
    entries: &[Entry<names::Op, names::Answer>],
) -> Vec<Entry<names::Op, names::Answer>> {
    let end = |e: &Entry<_, names::Answer>| e.answer.map_or(u64::MAX, |(at, _)| at);
    let drops: Vec<_> = entries.iter().filter(|e| matches!(e.op, names::Op::Drop { .. })).collect();
    let rivals = |e: &Entry<_, _>| {
        drops.iter().any(|d| d.called != e.called && d.called < end(e) && e.called < end(d))
    };
    let marked = |e: &Entry<_, _>| match e.op {
        names::Op::Drop { .. } => Entry { op: names::Op::Drop { shared: rivals(e) }, ..e.clone() },
        _ => e.clone(),
    };
    let mut unheard = false;
    let proves = |e: &&Entry<_, _>| match e.op {
        _ if e.answer.is_some() => true,
        names::Op::Lookup => false,
        names::Op::Create => !std::mem::replace(&mut unheard, true),
        names::Op::Drop { .. } => true,
    };
    entries.iter().filter(proves).map(marked).collect()
}
