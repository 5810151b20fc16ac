//! Is a history linearizable: could the operations have happened one after the other, each at one moment between its
//! call and its answer, and given these answers?
//!
//! The history is walked in time. What is kept is every way in which the operations so far may have happened: which of
//! the open ones (called, not answered yet) have happened already, and the state that this led to. At an answer, only
//! the ways survive in which the answered operation has happened with that answer; if none survives, the history is
//! not linearizable, and that answer is named. An operation without an answer stays open for ever: it may happen at any
//! time after its call, or never. (The search of Wing and Gong, with Lowe's sets of configurations.)
//!
//! Of two ways one is dropped when the other can go on wherever it can, and what changes nothing happens as soon as it
//! can: that keeps their number small although many operations are open, some for ever.
//!
//! What always holds: [`Verdict::Broken`] is never said of a linearizable history, nor [`Verdict::Good`] of another
//! one. When there are too many ways to keep, the answer is [`Verdict::TooHard`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

pub mod history;
pub mod names;
pub mod store;

/// What a history is held against.
pub trait Model {
    /// What is asked.
    type Op: Clone + PartialEq + Debug;
    /// What is answered.
    type Answer: Clone + Debug;
    /// What there is.
    type State: Clone + Eq + Debug;

    /// What there is at first.
    fn initial(&self) -> Self::State;

    /// Adds to `next` every state that `op` may lead to from `state` if it is answered so; nothing if it cannot be
    /// answered so there. Without an answer: the states that it may lead to whatever the answer is, except `state`
    /// itself.
    fn step(
        &self,
        state: &Self::State,
        op: &Self::Op,
        answer: Option<&Self::Answer>,
        next: &mut Vec<Self::State>,
    );

    /// Adds to `next` every state that `op` may lead to from `state` and yet happen once more: an earlier try, whose
    /// answer was lost.
    fn earlier_try(
        &self,
        _state: &Self::State,
        _op: &Self::Op,
        _answer: Option<&Self::Answer>,
        _next: &mut Vec<Self::State>,
    ) {
    }

    /// Whether an `op` with this answer, when it leaves the state as it is, might as well happen at once: it could not do
    /// anything else later.
    fn is_idle(&self, _op: &Self::Op, _answer: &Self::Answer) -> bool {
        false
    }

    /// Whether whatever may follow `other` may follow `state` too.
    fn covers(&self, state: &Self::State, other: &Self::State) -> bool {
        state == other
    }
}

/// An operation in a history.
#[derive(Clone, Debug)]
pub struct Entry<O, A> {
    /// What was asked.
    pub op: O,
    /// When; all times of one history differ.
    pub called: u64,
    /// The answer and its time; `None` if it never came or did not tell.
    pub answer: Option<(u64, A)>,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Linearizable.
    Good,
    /// Not linearizable: a text for people.
    Broken(String),
    /// Not known: more than the limit of ways to follow.
    TooHard,
}

/// Most ways to keep at once.
const MAX_WAYS: usize = 200_000;

/// A set of open operations, by slot.
type Mask = u128;

type Way<S> = (Mask, S);

/// Searches for an order of `history` that `model` allows.
pub fn linearizable<M: Model>(model: &M, history: &[Entry<M::Op, M::Answer>]) -> Verdict {
    let mut moments: BTreeMap<u64, (usize, bool)> = BTreeMap::new();
    for (i, entry) in history.iter().enumerate() {
        moments.insert(entry.called, (i, false));
        if let Some((at, _)) = &entry.answer {
            moments.insert(*at, (i, true));
        }
    }
    let mut search = Search {
        model,
        history,
        slots: Vec::new(),
        ways: vec![(0, model.initial())],
        next: Vec::new(),
    };
    for (_, (i, answered)) in moments {
        if !answered {
            if !search.open(i) {
                return Verdict::TooHard;
            }
            continue;
        }
        match search.close(i) {
            Verdict::Good => {}
            other => return other,
        }
    }
    Verdict::Good
}

struct Search<'h, M: Model> {
    model: &'h M,
    history: &'h [Entry<M::Op, M::Answer>],
    /// Which operation of the history is open in which slot.
    slots: Vec<Option<usize>>,
    ways: Vec<Way<M::State>>,
    next: Vec<M::State>,
}

impl<M: Model> Search<'_, M> {
    /// Operation `i` is called. False if there is no slot for it.
    fn open(&mut self, i: usize) -> bool {
        let slot = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(i);
        slot < Mask::BITS as usize
    }

    /// Operation `i` is answered: keeps the ways in which it has happened.
    fn close(&mut self, i: usize) -> Verdict {
        let Some(slot) = self.slots.iter().position(|s| *s == Some(i)) else {
            return Verdict::Good;
        };
        let bit = 1 << slot;
        let unanswered = self.unanswered();
        let mut todo: VecDeque<Way<M::State>> = std::mem::take(&mut self.ways).into();
        let example = todo.front().cloned();
        let (mut seen, mut survivors) = (Ways::default(), Ways::default());
        while let Some((mask, state)) = todo.pop_front() {
            if mask & bit != 0 {
                survivors.add(self.model, unanswered, (mask & !bit, state));
                continue;
            }
            if !seen.add(self.model, unanswered, (mask, state.clone())) {
                continue;
            }
            if seen.0.len() + survivors.0.len() > MAX_WAYS {
                return Verdict::TooHard;
            }
            self.extend(mask, &state, &mut todo);
        }
        self.slots[slot] = None;
        self.ways = survivors.0;
        if self.ways.is_empty() { Verdict::Broken(self.explain(i, example)) } else { Verdict::Good }
    }

    /// The slots of operations without an answer.
    fn unanswered(&self) -> Mask {
        let slots = self.slots.iter().enumerate();
        let open = slots.filter(|(_, i)| i.is_some_and(|i| self.history[i].answer.is_none()));
        open.fold(0, |mask, (slot, _)| mask | 1 << slot)
    }

    /// Every way that is one operation longer.
    fn extend(&mut self, mask: Mask, state: &M::State, todo: &mut VecDeque<Way<M::State>>) {
        let before = todo.len();
        for (slot, i) in self.slots.iter().enumerate() {
            let Some(i) = *i else { continue };
            if mask & (1 << slot) != 0 || self.twin_waits(mask, i) {
                continue;
            }
            let entry = &self.history[i];
            let answer = entry.answer.as_ref().map(|(_, answer)| answer);
            self.model.step(state, &entry.op, answer, &mut self.next);
            let is_idle = answer.is_some_and(|answer| self.model.is_idle(&entry.op, answer));
            if is_idle && self.next[..] == [state.clone()] {
                // No other way is better than this one.
                self.next.clear();
                todo.truncate(before);
                todo.push_back((mask | 1 << slot, state.clone()));
                return;
            }
            todo.extend(self.next.drain(..).map(|state| (mask | 1 << slot, state)));
            self.model.earlier_try(state, &entry.op, answer, &mut self.next);
            todo.extend(self.next.drain(..).map(|state| (mask, state)));
        }
    }

    /// Whether an operation that is the same as `i`, also without an answer, and was called before it, has not happened
    /// yet. Of such twins the first may as well happen first, which keeps the number of ways small.
    fn twin_waits(&self, mask: Mask, i: usize) -> bool {
        let entry = &self.history[i];
        entry.answer.is_none()
            && self.slots.iter().enumerate().any(|(slot, other)| {
                other.is_some_and(|o| {
                    let other = &self.history[o];
                    mask & (1 << slot) == 0
                        && other.answer.is_none()
                        && other.called < entry.called
                        && other.op == entry.op
                })
            })
    }

    fn explain(&self, i: usize, example: Option<Way<M::State>>) -> String {
        let entry = &self.history[i];
        let open: Vec<_> = self.slots.iter().flatten().map(|&o| &self.history[o]).collect();
        format!("no order explains {entry:?}; before it, possibly: {example:?}; open: {open:#?}")
    }
}

/// Ways of which none makes another one needless.
#[derive(Debug)]
struct Ways<S>(Vec<Way<S>>);

impl<S> Default for Ways<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S> Ways<S> {
    /// Adds a way, unless one that is there makes it needless: one whose state covers its state, and in which the same
    /// operations have happened but for some of the `unanswered`, which need not happen at all.
    fn add<M: Model<State = S>>(
        &mut self,
        model: &M,
        unanswered: Mask,
        (mask, state): Way<S>,
    ) -> bool {
        let needless = |(m, s): &Way<S>| {
            m & !mask == 0 && (mask & !m) & !unanswered == 0 && model.covers(s, &state)
        };
        if self.0.iter().any(needless) {
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
