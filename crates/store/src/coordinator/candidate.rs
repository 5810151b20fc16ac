//! A candidate: one of several coordinators of a cluster, of which one leads.
//!
//! ```text
//!  standby ── Elected { term, until, pairs } ─► leads: a Coordinator restored from the pairs
//!     ▲                                           │ until passes ─► silent ── Extended ─► leads on
//!     └───────────────── Standby ◄────────────────┴───────────────────┘
//! ```
//! Invariants:
//! - A candidate answers from its state only up to the time for which it surely leads. From then on
//!   it gives no reply, calls no master, and lets no lease end, until it leads for longer.
//! - A candidate that leads no more drops its coordinator. Requests without a reply get
//!   `Status::NotLeader`, and may have been executed.
//! - A standby answers every request with the locators of the coordinator that leads.
//!
//! Elsewhere: the election, and the proof that a write is that of the leader ([`crate::etcd`]).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::node::machine::{Caller, Election, Link, Machine, Output, Replied};
use sprat_proto::rpc::{Message, Payload, RpcError, Slice, Slices};
use sprat_proto::{Instant, Rng};

use super::durable::RestoreError;
use super::state::{Config, Coordinator};
use crate::done::Done;
use crate::message::control;

/// One of several coordinators of a cluster.
///
/// The [module](self) describes its invariants.
#[derive(Debug)]
pub struct Candidate {
    config: Config,
    rng: Rng,
    /// The coordinator, while this candidate leads.
    leading: Option<Box<Coordinator>>,
    /// The time up to which this candidate surely leads.
    until: Instant,
    /// True if `until` has passed, as of the last call with a time.
    silent: bool,
    /// True if this candidate was silent since it began to lead, or since it led on.
    was_silent: bool,
    /// The locators of the coordinator that leads, or nothing.
    leader: String,
    /// The reason why no coordinator is known to lead, or nothing.
    why: String,
    /// The tag of the first call of the present coordinator, and the one behind the last call so
    /// far. The result of a call of an earlier coordinator is none of the present one.
    tags: (u64, u64),
    done: Done,
    out: VecDeque<Output>,
}

impl Candidate {
    /// Returns a candidate that does not lead yet.
    #[must_use]
    pub fn new(config: Config, rng: Rng) -> Self {
        Self {
            config,
            rng,
            leading: None,
            until: Instant::ZERO,
            silent: false,
            was_silent: false,
            leader: String::new(),
            why: String::from("no coordinator was elected yet"),
            tags: (0, 0),
            done: Done::default(),
            out: VecDeque::new(),
        }
    }

    /// Returns the only candidate of a cluster, which leads from the start: it continues from the
    /// durable state `pairs`, or starts a new cluster if there are none.
    ///
    /// # Errors
    /// [`RestoreError`] if the state is malformed.
    pub fn alone(
        now: Instant,
        config: Config,
        mut rng: Rng,
        pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<Self, RestoreError> {
        let leading = Coordinator::restore(now, config.clone(), rng.fork(), pairs)?;
        let this = Self::new(config, rng);
        Ok(Self { leading: Some(Box::new(leading)), until: Instant::NEVER, ..this })
    }

    /// Returns the coordinator, if this candidate surely leads at `now`.
    pub fn leading(&mut self, now: Instant) -> Option<&mut Coordinator> {
        self.silent = self.leading.is_some() && now >= self.until;
        self.was_silent |= self.silent;
        self.leading.as_deref_mut().filter(|_| !self.silent)
    }

    fn not_leader(&self) -> Message {
        control::not_leader(&self.leader, &self.why).into()
    }

    /// Becomes a standby: ends the coordinator and answers its requests.
    fn step_down(&mut self) {
        let callers = self.leading.take().map_or_else(Vec::new, |leading| leading.abandon());
        (self.silent, self.was_silent) = (false, false);
        for caller in callers {
            let message = self.not_leader();
            self.out.push_back(Output::Reply { caller, message });
        }
    }

    fn elected(&mut self, now: Instant, term: u64, pairs: Vec<(Vec<u8>, Vec<u8>)>) {
        self.step_down();
        self.tags.0 = self.tags.1;
        let (config, rng) = (self.config.clone(), self.rng.fork());
        match Coordinator::lead(now, config, rng, pairs, term) {
            Ok(coordinator) => self.leading = Some(Box::new(coordinator)),
            Err(error) => self.out.push_back(Output::Stop { reason: format!("{error}") }),
        }
    }
}

impl Slices for Candidate {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

impl Machine for Candidate {
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        deadline: Instant,
        reply: &mut Message,
    ) -> Replied {
        self.done.operation(now, &payload);
        if let Some(coordinator) = self.leading(now) {
            return coordinator.request(now, caller, payload, deadline, reply);
        }
        *reply = self.not_leader();
        Replied::Now
    }

    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        if let Some(tag) = tag.checked_sub(self.tags.0)
            && let Some(coordinator) = &mut self.leading
        {
            coordinator.response(now, tag, result);
        }
    }

    fn unreachable(&mut self, link: Link, why: &str) {
        if let Some(coordinator) = &mut self.leading {
            coordinator.unreachable(link, why);
        }
    }

    fn ended(&mut self, now: Instant, link: Link) {
        if let Some(coordinator) = self.leading(now) {
            coordinator.ended(now, link);
        }
    }

    fn has_output(&self) -> bool {
        let leading = self.leading.as_ref().filter(|_| !self.silent);
        !self.out.is_empty() || leading.is_some_and(|coordinator| coordinator.has_output())
    }

    fn output(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        let mut output = self.leading(now)?.output(now)?;
        if let Output::Call { tag, .. } = &mut output {
            *tag += self.tags.0;
            self.tags.1 = self.tags.1.max(*tag + 1);
        }
        Some(output)
    }

    fn persisted(&mut self, now: Instant, seq: u64) {
        if let Some(coordinator) = &mut self.leading {
            coordinator.persisted(now, seq);
        }
    }

    fn rollback(&mut self, now: Instant, reason: &str, durable: Vec<(Vec<u8>, Vec<u8>)>) {
        if let Some(coordinator) = &mut self.leading {
            coordinator.rollback(now, reason, durable);
        }
    }

    fn election(&mut self, now: Instant, election: Election) {
        match election {
            Election::Elected { term, until, pairs } => {
                self.until = until;
                (self.leader, self.why) = (String::new(), String::new());
                self.elected(now, term, pairs);
            }
            Election::Extended { until } => {
                (self.until, self.silent) = (until, false);
                self.why.clear();
                if self.was_silent
                    && let Some(coordinator) = &mut self.leading
                {
                    // Renewals were refused meanwhile.
                    coordinator.excuse(now);
                    self.was_silent = false;
                }
            }
            Election::Standby { leader } => {
                (self.leader, self.why) = (leader, String::new());
                self.step_down();
            }
            Election::Unsure { why } => self.why = why,
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let leading = self.leading.as_ref().filter(|_| !self.silent);
        leading.map_or_else(|| [("leads".into(), 0)].into(), |coordinator| coordinator.counters())
    }

    fn done(&self, now: Instant, names: &mut Vec<String>) {
        self.done.names(now, names);
    }

    fn deadline(&self) -> Option<Instant> {
        let leading = self.leading.as_ref().filter(|_| !self.silent)?;
        Some(leading.deadline().unwrap_or(Instant::NEVER).min(self.until))
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.leading(now).is_some_and(|coordinator| coordinator.tick(now))
    }
}

#[cfg(test)]
mod tests;
