//! A checker for strict serializability: can the transactions of a history have happened one after
//! the other, each at one moment between its begin and its answer, with these observations?
//!
//! ```text
//! tags ──► versions of all writes ──► an Order for each object ──► Graph ──► a cycle is a fault
//! ```
//!
//! The checker follows Adya's theory and the checker Elle. The store gives each write a version,
//! and the versions of an object only grow. So the observations determine which transaction comes
//! before which other one: `ww` (both changed an object), `wr` (the second saw the change of the
//! first), `rw` (the first saw the version before the change of the second), and real time (the
//! first was answered before the second began). A history is at fault if these make a cycle.
//!
//! A transaction without an answer has committed if any read saw a tag of it; otherwise the checker
//! ignores it. The version of a write that neither an answer nor a read reported is unknown. Its
//! place is known if its transaction read the object.
//!
//! Always: the checker reports no fault in a history that is strictly serializable. It misses
//! faults that only a search of several explanations would find: for example among observations
//! that an object does not exist while an unanswered removal may happen at any time. Objects do not
//! exist before their first write in the history.

use std::collections::BTreeMap;
use std::fmt;

use super::cycles::{Graph, Step};
use super::history::Name;
use super::order::{Link, Order, Span};

/// A part of a transaction: what it observed or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The transaction read an object before it changed anything.
    Read {
        /// The object that the transaction read.
        name: Name,
        /// The version and the tag that the read saw; none if the object did not exist.
        seen: Option<(u64, u64)>,
    },
    /// The transaction writes an object.
    Write {
        /// The object that the transaction writes.
        name: Name,
        /// The tag that identifies the written value; no other write of the history has it.
        tag: u64,
    },
    /// The transaction removes an object, or does nothing to it if it does not exist.
    Remove {
        /// The object that the transaction removes.
        name: Name,
    },
}

impl Part {
    /// Returns the object that the part changes, if it changes one.
    fn changes(&self) -> Option<Name> {
        match *self {
            Self::Read { .. } => None,
            Self::Write { name, .. } | Self::Remove { name } => Some(name),
        }
    }
}

/// A kind of fault in a history of transactions, with its name in the literature if it has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// An observation of a value that no transaction wrote to the object.
    Garbage,
    /// G1a: a read saw a write of an aborted transaction.
    AbortedRead,
    /// One version of an object has two writes, one write has two versions, or a write has version
    /// 0.
    Versions,
    /// P2: a committed transaction saw two states of one object.
    FuzzyRead,
    /// G0: a cycle of `ww`.
    G0,
    /// G1c: a cycle of `ww` and `wr`.
    G1c,
    /// G-single: a cycle with one `rw`, for example a lost update or a read of a part of a
    /// transaction.
    GSingle,
    /// G2: a cycle with two `rw` or more, for example write skew.
    G2,
}

/// A fault in a history of transactions. Its text shows the cycle and the transactions in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The kind of the fault.
    pub kind: Kind,
    /// True if the history is serializable as far as the checker knows, and only the order in real
    /// time makes the fault.
    pub real_time: bool,
    text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let real_time = if self.real_time { " against real time" } else { "" };
        write!(f, "{:?}{real_time}: {}", self.kind, self.text)
    }
}

impl std::error::Error for Fault {}

fn fault(kind: Kind, text: String) -> Fault {
    Fault { kind, real_time: false, text }
}

/// A history of transactions on versioned objects, for the check that it is strictly serializable.
///
/// ```
/// use sprat_sim::check::serial::{Kind, Part, Serial};
///
/// let (x, mut history) = ((1, 1), Serial::default());
/// let first = history.write(x, 100);
/// history.commit(first, &[(x, 1)]);
/// // Two transactions see version 1, and both write.
/// let numbers = [history.begin(), history.begin()];
/// for (number, tag) in numbers.into_iter().zip([101, 102]) {
///     history.add(number, Part::Read { name: x, seen: Some((1, 100)) });
///     history.add(number, Part::Write { name: x, tag });
/// }
/// history.commit(numbers[0], &[(x, 2)]);
/// let mut good = history.clone();
/// good.abort(numbers[1]);
/// assert!(good.check().is_ok());
/// history.commit(numbers[1], &[(x, 3)]);
/// assert_eq!(history.check().unwrap_err().kind, Kind::GSingle);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Serial {
    transactions: Vec<Transaction>,
    /// The transaction and the object of each tag.
    tags: BTreeMap<u64, (usize, Name)>,
    time: u64,
}

#[derive(Clone, Debug)]
struct Transaction {
    begin: u64,
    /// The time of the answer; [`u64::MAX`] without one.
    end: u64,
    outcome: Outcome,
    parts: Vec<Part>,
    /// The versions that the answer reported.
    versions: BTreeMap<Name, u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Open,
    Committed,
    Aborted,
    Unknown,
}

/// A label of an edge: the link and the object that gives it, or none for real time.
type Label = Option<(Name, Link)>;

/// Facts that the whole history determines: the versions of the writes, and the transactions that
/// committed.
#[derive(Debug, Default)]
struct Facts {
    /// The version of each tag.
    versions: BTreeMap<u64, u64>,
    /// The tag of each version.
    tags: BTreeMap<(Name, u64), u64>,
    committed: Vec<bool>,
}

impl Serial {
    /// Begins a transaction at the call of its first operation, and returns its number.
    pub fn begin(&mut self) -> usize {
        self.time += 1;
        self.transactions.push(Transaction {
            begin: self.time,
            end: u64::MAX,
            outcome: Outcome::Open,
            parts: Vec::new(),
            versions: BTreeMap::new(),
        });
        self.transactions.len() - 1
    }

    /// Adds a part to transaction `number`: a read after its answer, a change before the commit is
    /// called. A read that was answered counts as evidence whatever becomes of its transaction.
    ///
    /// # Panics
    /// If the transaction has ended or changes the object already, or another write has the tag.
    pub fn add(&mut self, number: usize, part: Part) {
        let transaction = &mut self.transactions[number];
        assert!(transaction.outcome == Outcome::Open, "{number} has ended: {transaction:?}");
        let name = part.changes();
        let again = name.is_some() && transaction.parts.iter().any(|p| p.changes() == name);
        assert!(!again, "{number} changes an object again: {part:?}");
        transaction.parts.push(part);
        if let Part::Write { name, tag } = part {
            let other = self.tags.insert(tag, (number, name));
            assert!(other.is_none(), "{number} writes the tag of {other:?}: {part:?}");
        }
    }

    /// Begins a plain write of an object and returns its number, for [`Serial::commit`] with the
    /// new version.
    pub fn write(&mut self, name: Name, tag: u64) -> usize {
        let number = self.begin();
        self.add(number, Part::Write { name, tag });
        number
    }

    /// Begins a plain removal of an object and returns its number, for [`Serial::commit`] with the
    /// removed version.
    pub fn remove(&mut self, name: Name) -> usize {
        let number = self.begin();
        self.add(number, Part::Remove { name });
        number
    }

    /// Ends the plain read `number`, which [`Serial::begin`] began, with the version and the tag
    /// that it saw; none if the object did not exist.
    pub fn read(&mut self, number: usize, name: Name, seen: Option<(u64, u64)>) {
        self.add(number, Part::Read { name, seen });
        self.commit(number, &[]);
    }

    /// Ends transaction `number` with the answer that it committed, and the versions that the
    /// answer reports: the new version of a written object, the version that was removed, or 0 if a
    /// removal found no object. The answer need not report all of them.
    ///
    /// # Panics
    /// If the transaction has ended, or does not change an object in `versions`.
    pub fn commit(&mut self, number: usize, versions: &[(Name, u64)]) {
        self.time += 1;
        let time = self.time;
        let transaction = self.end(number, Outcome::Committed);
        transaction.end = time;
        for &(name, version) in versions {
            let known = transaction.parts.iter().any(|part| part.changes() == Some(name));
            assert!(known, "{number} does not change {name:?}: {transaction:?}");
            transaction.versions.insert(name, version);
        }
    }

    /// Ends transaction `number` with the answer that it did not commit and never will.
    ///
    /// # Panics
    /// If the transaction has ended.
    pub fn abort(&mut self, number: usize) {
        self.end(number, Outcome::Aborted);
    }

    /// Ends transaction `number` without an answer: it may have committed, or may commit at any
    /// later time. A transaction that has not ended counts as one that ended so.
    ///
    /// # Panics
    /// If the transaction has ended.
    pub fn unknown(&mut self, number: usize) {
        self.end(number, Outcome::Unknown);
    }

    fn end(&mut self, number: usize, outcome: Outcome) -> &mut Transaction {
        let transaction = &mut self.transactions[number];
        assert!(transaction.outcome == Outcome::Open, "{number} ends again: {transaction:?}");
        transaction.outcome = outcome;
        transaction
    }

    /// Returns the number of transactions in the history.
    #[must_use]
    pub fn len(&self) -> usize {
        self.transactions.len()
    }

    /// Returns true if the history has no transactions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// Checks that the history is strictly serializable.
    ///
    /// # Errors
    /// The history is not strictly serializable; the fault explains it.
    pub fn check(&self) -> Result<(), Fault> {
        let facts = self.facts()?;
        let orders = self.orders(&facts)?;
        for real_time in [false, true] {
            let graph = self.graph(&facts, &orders, real_time);
            let cycle = graph.cycle(|from, to| {
                // Every cycle has an edge against the order of the begins; one against real time
                // closes a short cycle.
                let (from, to) = (self.transactions.get(from)?, self.transactions.get(to)?);
                Some(i128::from(to.end) - i128::from(from.begin))
            });
            if let Some(cycle) = cycle {
                return Err(self.explain(&cycle, &facts, real_time));
            }
        }
        Ok(())
    }

    /// Returns the facts of the history, from its answers and from all reads.
    fn facts(&self) -> Result<Facts, Fault> {
        let is_committed = |t: &Transaction| t.outcome == Outcome::Committed;
        let committed = self.transactions.iter().map(is_committed).collect();
        let mut facts = Facts { committed, ..Facts::default() };
        for (number, transaction) in self.transactions.iter().enumerate() {
            for part in &transaction.parts {
                match *part {
                    Part::Read { name, seen: Some((version, tag)) } => {
                        let writer = self.writer(number, name, version, tag)?;
                        facts.committed[writer] = true;
                        facts.add(name, version, tag, number)?;
                    }
                    Part::Write { name, tag } => {
                        if let Some(&version) = transaction.versions.get(&name) {
                            facts.add(name, version, tag, number)?;
                        }
                    }
                    Part::Read { seen: None, .. } | Part::Remove { .. } => {}
                }
            }
        }
        Ok(facts)
    }

    /// Returns the transaction that wrote what a read saw.
    fn writer(&self, reader: usize, name: Name, version: u64, tag: u64) -> Result<usize, Fault> {
        let saw = format!("T{reader} saw version {version} of {name:?} with tag {tag}");
        match self.tags.get(&tag) {
            Some((writer, _)) if *writer == reader => {
                Err(fault(Kind::Garbage, format!("{saw}, which it had not yet written")))
            }
            Some((writer, written)) if *written == name => {
                if self.transactions[*writer].outcome == Outcome::Aborted {
                    let text = format!("{saw} of T{writer}, which was aborted");
                    return Err(fault(Kind::AbortedRead, text));
                }
                Ok(*writer)
            }
            other => Err(fault(Kind::Garbage, format!("{saw}, which belongs to {other:?}"))),
        }
    }

    /// Returns the order of each object's changes and observations.
    fn orders(&self, facts: &Facts) -> Result<BTreeMap<Name, Order>, Fault> {
        let mut orders: BTreeMap<Name, Order> = BTreeMap::new();
        let mut removed = Vec::new();
        // The first begin of the writes of each object whose versions are not known.
        let mut unplaced: BTreeMap<Name, u64> = BTreeMap::new();
        for (number, transaction) in self.transactions.iter().enumerate() {
            if transaction.outcome == Outcome::Aborted {
                continue;
            }
            let committed = facts.committed[number];
            if committed {
                self.repeats(number)?;
            }
            for part in &transaction.parts {
                let name = part.changes();
                let own = name.and_then(|name| transaction.saw(name));
                match *part {
                    Part::Read { name, seen } if committed => {
                        let order = orders.entry(name).or_default();
                        match seen {
                            Some((version, _)) => order.read(version, number),
                            None => order.absent(number),
                        }
                    }
                    Part::Read { .. } => {}
                    Part::Write { name, tag } => {
                        let order = orders.entry(name).or_default();
                        if let Some(&version) = facts.versions.get(&tag) {
                            order.write(version, number);
                            continue;
                        }
                        unplaced.entry(name).or_insert(transaction.begin);
                        match own {
                            _ if !committed => {}
                            Some(Some((version, _))) => order.write_after(version, number),
                            _ => order.write_unknown(number),
                        }
                    }
                    Part::Remove { name } => {
                        let order = orders.entry(name).or_default();
                        match (transaction.versions.get(&name), own) {
                            (Some(0), _) => order.absent(number),
                            (Some(&version), _) => {
                                order.remove(version, number);
                                removed.push((number, name, version));
                            }
                            (None, Some(None)) => {}
                            (None, Some(Some((version, _)))) if committed => {
                                order.remove(version, number);
                            }
                            (None, Some(Some((version, _)))) => order.perhaps_remove(version),
                            (None, None) => order.remove_unknown(transaction.begin),
                        }
                    }
                }
            }
        }
        for (number, name, version) in removed {
            let end = self.transactions[number].end;
            let perhaps = unplaced.get(&name).is_some_and(|begin| *begin < end);
            if !facts.tags.contains_key(&(name, version)) && !perhaps {
                let text =
                    format!("T{number} removed version {version} of {name:?}: never written");
                return Err(fault(Kind::Garbage, text));
            }
        }
        Ok(orders)
    }

    /// Checks that a transaction saw one state of each object; a removal that was answered sees one
    /// too.
    fn repeats(&self, number: usize) -> Result<(), Fault> {
        let transaction = &self.transactions[number];
        for part in &transaction.parts {
            let (name, version) = match *part {
                Part::Read { name, seen } => (name, Some(seen.map_or(0, |(version, _)| version))),
                Part::Remove { name } => (name, transaction.versions.get(&name).copied()),
                Part::Write { .. } => continue,
            };
            let other = transaction.saw(name).map(|seen| seen.map_or(0, |(version, _)| version));
            if let (Some(version), Some(other)) = (version, other)
                && version != other
            {
                let text =
                    format!("T{number} saw versions {version} and {other} of {name:?} (0: none)");
                return Err(fault(Kind::FuzzyRead, text));
            }
        }
        Ok(())
    }

    /// Returns the graph of the transactions that committed. With `real_time`, each end has a node
    /// too: a path along these nodes, in the order of time, leads from each transaction to those
    /// that began after its end.
    fn graph(
        &self,
        facts: &Facts,
        orders: &BTreeMap<Name, Order>,
        real_time: bool,
    ) -> Graph<Label> {
        let count = self.transactions.len();
        let spans: Vec<Span> =
            self.transactions.iter().map(|t| Span { begin: t.begin, end: t.end }).collect();
        let mut ends: Vec<(u64, usize)> = (0..count)
            .filter(|&number| real_time && spans[number].end < u64::MAX)
            .map(|number| (spans[number].end, number))
            .collect();
        ends.sort_unstable();
        let mut graph = Graph::new(count + ends.len());
        for (&name, order) in orders {
            order.links(&spans, real_time, |from, to, link| {
                graph.edge(from, to, 1, Some((name, link)));
            });
        }
        for (i, &(_, number)) in ends.iter().enumerate() {
            graph.edge(number, count + i, 0, None);
            if i + 1 < ends.len() {
                graph.edge(count + i, count + i + 1, 0, None);
            }
        }
        for number in (0..count).filter(|&number| facts.committed[number]) {
            let before = ends.partition_point(|(end, _)| *end < spans[number].begin);
            if before > 0 {
                graph.edge(count + before - 1, number, 1, None);
            }
        }
        graph
    }

    /// Explains a cycle: each of its edges, and all that is known of its transactions.
    fn explain(&self, cycle: &[Step<Label>], facts: &Facts, real_time: bool) -> Fault {
        let count = self.transactions.len();
        let first = cycle.iter().position(|step| step.from < count).unwrap_or(0);
        let (mut edges, mut members, mut from) = (Vec::new(), Vec::new(), 0);
        let (mut rw, mut wr) = (0, 0);
        for step in cycle[first..].iter().chain(&cycle[..first]) {
            if step.from < count {
                from = step.from;
                members.push(self.describe(from, facts));
            }
            let to = step.to;
            let why = match step.label {
                Some((name, Link::Ww(a, b))) => {
                    format!("ww: {a} of {name:?}, then {b}")
                }
                Some((name, Link::Wr(place))) => {
                    wr += 1;
                    format!("wr: T{to} saw {place} of {name:?}")
                }
                Some((name, Link::Rw(seen, next))) => {
                    rw += 1;
                    let seen = seen.map_or_else(|| "no version".into(), |v| format!("version {v}"));
                    let next = next.map_or_else(|| "a write".into(), |next| next.to_string());
                    format!("rw: T{from} saw {seen} of {name:?}, then came {next}")
                }
                None if to < count => {
                    let (end, begin) = (self.transactions[from].end, self.transactions[to].begin);
                    format!("real time: T{from} ended at {end}, T{to} began at {begin}")
                }
                None => continue,
            };
            edges.push(format!("  T{from} -> T{to}  {why}"));
        }
        let kind = match (rw, wr) {
            (0, 0) => Kind::G0,
            (0, _) => Kind::G1c,
            (1, _) => Kind::GSingle,
            _ => Kind::G2,
        };
        let (edges, members) = (edges.join("\n"), members.join("\n"));
        let text = format!("these transactions have no order:\n{edges}\n{members}");
        Fault { kind, real_time, text }
    }

    /// Returns all that is known of a transaction, as text.
    fn describe(&self, number: usize, facts: &Facts) -> String {
        let Transaction { begin, end, outcome, parts, versions } = &self.transactions[number];
        let end = if *end == u64::MAX { "never".into() } else { end.to_string() };
        let mut lines = vec![format!("T{number}, {outcome:?}, begin {begin}, end {end}:")];
        for part in parts {
            lines.push(match part {
                Part::Read { name, seen: None } => format!("  read {name:?}: no object"),
                Part::Read { name, seen: Some((version, tag)) } => {
                    format!("  read {name:?}: version {version}, tag {tag}")
                }
                Part::Write { name, tag } => {
                    let version = facts.versions.get(tag);
                    format!("  wrote {name:?}: version {version:?}, tag {tag}")
                }
                Part::Remove { name } => format!("  removed {name:?}: {:?}", versions.get(name)),
            });
        }
        lines.join("\n")
    }
}

impl Transaction {
    /// Returns the last observation of an object by the transaction, if it read the object.
    fn saw(&self, name: Name) -> Option<Option<(u64, u64)>> {
        self.parts.iter().rev().find_map(|part| match part {
            Part::Read { name: read, seen } if *read == name => Some(*seen),
            _ => None,
        })
    }
}

impl Facts {
    /// Adds the fact that a write has a version.
    fn add(&mut self, name: Name, version: u64, tag: u64, number: usize) -> Result<(), Fault> {
        if version == 0 {
            let text = format!("tag {tag} of {name:?} has version 0 in T{number}");
            return Err(fault(Kind::Versions, text));
        }
        let other = *self.tags.entry((name, version)).or_insert(tag);
        if other != tag {
            let text = format!(
                "version {version} of {name:?} has tag {other}, and tag {tag} in T{number}"
            );
            return Err(fault(Kind::Versions, text));
        }
        let other = *self.versions.entry(tag).or_insert(version);
        if other != version {
            let text =
                format!("tag {tag} of {name:?} has version {other}, and {version} in T{number}");
            return Err(fault(Kind::Versions, text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
