//! A checker for linearizability: can the operations of a history have happened one after the
//! other, each at one moment between its call and its answer, with these answers?
//!
//! The checker follows the history in time (the search of Wing and Gong, with Lowe's sets of
//! configurations). A configuration is one explanation of the history so far: the set of open
//! operations (called, not answered) that have happened, and the resulting state. At an answer,
//! only those configurations survive in which the operation has happened with that answer; if none
//! survives, the history is not linearizable. An operation without an answer stays open: it may
//! happen at any time after its call, or never.
//!
//! A configuration is dropped if another one allows every continuation that it allows, or if an
//! open operation can get its answer no more; and an operation without effect happens at once. That
//! keeps the set small although some operations stay open forever, or many for long.
//!
//! Always: the checker returns [`Verdict::Broken`] for no linearizable history, and
//! [`Verdict::Good`] for no other. It returns [`Verdict::TooHard`] if the set grows beyond its
//! limit.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

mod cycles;
pub mod history;
pub mod names;
mod order;
pub mod serial;
pub mod store;
pub mod stream;

/// A sequential specification for the linearizability checker: the operations, their answers, and
/// the states between them.
pub trait Model {
    /// The type of an operation of the specification.
    type Op: Clone + PartialEq + Debug;
    /// The type of the answer to an operation.
    type Answer: Clone + Debug;
    /// The type of the state of the specified object.
    type State: Clone + Eq + Debug;

    /// Returns the initial state of the specified object.
    fn initial(&self) -> Self::State;

    /// Adds to `next` the states to which the operation `op` may lead from `state` with this
    /// answer, or none if the answer is impossible there. Without an answer, it adds the states for
    /// all possible answers, except for `state` itself.
    fn step(
        &self,
        state: &Self::State,
        op: &Self::Op,
        answer: Option<&Self::Answer>,
        next: &mut Vec<Self::State>,
    );

    /// Adds to `next` the states to which an earlier try of the operation `op`, whose answer was
    /// lost, may lead from `state`. The operation then happens once more.
    fn earlier_try(
        &self,
        _state: &Self::State,
        _op: &Self::Op,
        _answer: Option<&Self::Answer>,
        _next: &mut Vec<Self::State>,
    ) {
    }

    /// Returns true if the operation `op` with this answer that does not change the state may
    /// happen at once, because it would have no other effect later.
    fn is_idle(&self, _op: &Self::Op, _answer: &Self::Answer) -> bool {
        false
    }

    /// Returns true if the operation `op` with this answer can happen neither in `state` nor in any
    /// state that follows it.
    fn is_over(&self, _state: &Self::State, _op: &Self::Op, _answer: &Self::Answer) -> bool {
        false
    }

    /// Returns true if every continuation of a history that is possible from the state `other` is
    /// possible from `state` too.
    fn covers(&self, state: &Self::State, other: &Self::State) -> bool {
        state == other
    }
}

/// An operation in a history, with the times of its call and its answer.
#[derive(Clone, Debug)]
pub struct Entry<O, A> {
    /// The operation that the client called.
    pub op: O,
    /// The time of the operation's call. All times of a history differ.
    pub called: u64,
    /// The operation's answer and its time; none if no answer came or it does not show the outcome.
    pub answer: Option<(u64, A)>,
}

/// The verdict of the linearizability checker about a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The history is linearizable.
    Good,
    /// The history is not linearizable, with an explanation.
    Broken(String),
    /// The checker does not know whether the history is linearizable: the set of configurations
    /// exceeded its limit.
    TooHard,
}

/// The most configurations that the linearizability checker keeps at once.
const MAX_CONFIGURATIONS: usize = 200_000;

/// A set of open operations: the bit of an operation's slot is set.
type Mask = u128;

/// A configuration: the open operations that have happened, and the resulting state.
type Configuration<S> = (Mask, S);

/// Checks linearizability: searches for an order of `history` that `model` allows.
pub fn linearizable<M: Model>(model: M, history: &[Entry<M::Op, M::Answer>]) -> Verdict {
    Checker::new(model).extend(history)
}

/// A checker of a history that comes in parts, as a long run records them. It keeps the operations
/// without an answer and the configurations, and forgets the rest of each part.
#[derive(Clone, Debug)]
pub struct Checker<M: Model> {
    model: M,
    /// The open operation in each slot.
    slots: Vec<Option<Entry<M::Op, M::Answer>>>,
    configurations: Vec<Configuration<M::State>>,
    next: Vec<M::State>,
}

impl<M: Model> Checker<M> {
    /// Makes a checker for a history that begins in the model's initial state.
    pub fn new(model: M) -> Self {
        let configurations = vec![(0, model.initial())];
        Self { model, slots: Vec::new(), configurations, next: Vec::new() }
    }

    /// Checks the next part of the history. All calls of a part come after all answers of the parts
    /// before it. After a verdict that is not [`Verdict::Good`] the checker has no further use.
    pub fn extend(&mut self, part: &[Entry<M::Op, M::Answer>]) -> Verdict {
        let mut moments: BTreeMap<u64, (usize, bool)> = BTreeMap::new();
        for (i, entry) in part.iter().enumerate() {
            moments.insert(entry.called, (i, false));
            if let Some((at, _)) = &entry.answer {
                moments.insert(*at, (i, true));
            }
        }
        for (_, (i, answered)) in moments {
            if !answered {
                if !self.open(&part[i]) {
                    return Verdict::TooHard;
                }
                continue;
            }
            match self.close(&part[i]) {
                Verdict::Good => {}
                other => return other,
            }
        }
        Verdict::Good
    }

    /// Handles the call of an operation. Returns false if no slot is free for it.
    fn open(&mut self, entry: &Entry<M::Op, M::Answer>) -> bool {
        let slot = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(entry.clone());
        slot < Mask::BITS as usize
    }

    /// Handles the answer to an operation: keeps the configurations in which the operation has
    /// happened.
    fn close(&mut self, entry: &Entry<M::Op, M::Answer>) -> Verdict {
        let is_it = |open: &Option<Entry<M::Op, M::Answer>>| {
            open.as_ref().is_some_and(|open| open.called == entry.called)
        };
        let Some(slot) = self.slots.iter().position(is_it) else { return Verdict::Good };
        let bit = 1 << slot;
        let unanswered = self.unanswered();
        let mut todo: VecDeque<Configuration<M::State>> =
            std::mem::take(&mut self.configurations).into();
        let example = todo.front().cloned();
        let (mut seen, mut survivors) = (Configurations::default(), Configurations::default());
        while let Some((mask, state)) = todo.pop_front() {
            if mask & bit != 0 {
                survivors.add(&self.model, unanswered, (mask & !bit, state));
                continue;
            }
            if !seen.add(&self.model, unanswered, (mask, state.clone())) {
                continue;
            }
            if seen.0.len() + survivors.0.len() > MAX_CONFIGURATIONS {
                return Verdict::TooHard;
            }
            self.happen(mask, &state, &mut todo);
        }
        self.slots[slot] = None;
        self.configurations = survivors.0;
        if self.configurations.is_empty() {
            Verdict::Broken(self.explain(entry, example))
        } else {
            Verdict::Good
        }
    }

    /// Returns the slots of open operations that never get an answer.
    fn unanswered(&self) -> Mask {
        let slots = self.slots.iter().enumerate();
        let open =
            slots.filter(|(_, open)| open.as_ref().is_some_and(|open| open.answer.is_none()));
        open.fold(0, |mask, (slot, _)| mask | 1 << slot)
    }

    /// Adds the configurations in which one more open operation has happened.
    fn happen(
        &mut self,
        mask: Mask,
        state: &M::State,
        todo: &mut VecDeque<Configuration<M::State>>,
    ) {
        let before = todo.len();
        for (slot, entry) in self.slots.iter().enumerate() {
            let Some(entry) = entry else { continue };
            if mask & (1 << slot) != 0 || self.twin_waits(mask, entry) {
                continue;
            }
            let answer = entry.answer.as_ref().map(|(_, answer)| answer);
            self.model.step(state, &entry.op, answer, &mut self.next);
            let is_idle = answer.is_some_and(|answer| self.model.is_idle(&entry.op, answer));
            if is_idle && self.next[..] == [state.clone()] {
                // Every other continuation allows no more than this one.
                self.next.clear();
                todo.truncate(before);
                todo.push_back((mask | 1 << slot, state.clone()));
                return;
            }
            let done = mask | 1 << slot;
            let (model, slots) = (&self.model, &self.slots);
            let next = self.next.drain(..).filter(|state| !misses(model, slots, done, state));
            todo.extend(next.map(|state| (done, state)));
            self.model.earlier_try(state, &entry.op, answer, &mut self.next);
            todo.extend(self.next.drain(..).map(|state| (mask, state)));
        }
    }

    /// Returns true if an operation equal to `entry`, also without an answer and called before it,
    /// has not happened yet. Of such equal operations the first happens first, which keeps the set
    /// of configurations small.
    fn twin_waits(&self, mask: Mask, entry: &Entry<M::Op, M::Answer>) -> bool {
        entry.answer.is_none()
            && self.slots.iter().enumerate().any(|(slot, other)| {
                other.as_ref().is_some_and(|other| {
                    mask & (1 << slot) == 0
                        && other.answer.is_none()
                        && other.called < entry.called
                        && other.op == entry.op
                })
            })
    }

    /// Returns the configurations as text: the possible states of the object.
    fn describe(&self) -> String {
        let states: Vec<_> = self.configurations.iter().map(|(_, state)| state).collect();
        format!("{states:?}")
    }

    fn explain(
        &self,
        entry: &Entry<M::Op, M::Answer>,
        example: Option<Configuration<M::State>>,
    ) -> String {
        let open: Vec<_> = self.slots.iter().flatten().collect();
        format!("no order explains {entry:?}; before it, possibly: {example:?}; open: {open:#?}")
    }
}

/// Returns true if an open operation that has an answer has not happened, and cannot any more.
fn misses<M: Model>(
    model: &M,
    slots: &[Option<Entry<M::Op, M::Answer>>],
    done: Mask,
    state: &M::State,
) -> bool {
    slots.iter().enumerate().any(|(slot, open)| {
        let answered = open.as_ref().and_then(|open| Some((&open.op, &open.answer.as_ref()?.1)));
        done & (1 << slot) == 0 && answered.is_some_and(|(op, a)| model.is_over(state, op, a))
    })
}

/// A set of configurations of the linearizability checker of which none covers another.
#[derive(Debug)]
struct Configurations<S>(Vec<Configuration<S>>);

impl<S> Default for Configurations<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S> Configurations<S> {
    /// Adds a configuration unless another one covers it: the other's state covers its state, and
    /// the same operations have happened except for some `unanswered` ones, which need not happen
    /// at all. Returns true if it was added.
    fn add<M: Model<State = S>>(
        &mut self,
        model: &M,
        unanswered: Mask,
        (mask, state): Configuration<S>,
    ) -> bool {
        let covered = |(m, s): &Configuration<S>| {
            m & !mask == 0 && (mask & !m) & !unanswered == 0 && model.covers(s, &state)
        };
        if self.0.iter().any(covered) {
            return false;
        }
        self.0.retain(|(m, s)| {
            mask & !m != 0 || (m & !mask) & !unanswered != 0 || !model.covers(&state, s)
        });
        self.0.push((mask, state));
        true
    }
}

#[cfg(test)]
mod tests;
