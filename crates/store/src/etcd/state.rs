//! The state in etcd as one candidate sees it: the watch, the election, the beat, and the writes.
//!
//! Two requests at most are in progress: one about the election, one about the state.

use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use sprat_proto::node::Written;
use sprat_proto::node::machine::Election;
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};

use super::keys::{Keys, Term};
use super::txn::{Compare, Failure, Is, Op, Pair, Reply, Request, Txn};
use super::writes::{Step, Writer};

/// The time between two beats of a leader, and between two looks of a standby.
const BEAT_NS: u64 = 200 * MS;
/// The time for which a standby must see the same beat before it stands.
pub const SILENT_NS: u64 = SECOND;
/// The time for which a leader leads after it sent a good beat. It is shorter than [`SILENT_NS`] by
/// a tenth, since clocks may differ in rate.
pub const VALID_NS: u64 = SILENT_NS - SILENT_NS / 10;
/// The time after which a request without a reply counts as unknown, and is sent again.
pub const TRY_NS: u64 = 400 * MS;
/// The pause after a failed request.
const AGAIN_NS: u64 = 50 * MS;
/// The time between two compactions. etcd keeps all old values up to one.
const COMPACT_NS: u64 = 3600 * SECOND;

/// The purpose of a request about the election.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Purpose {
    Watch,
    Stand(Term),
    Beat,
}

#[derive(Clone, Debug)]
struct Sent<P> {
    id: u64,
    at: Instant,
    /// The highest revision of a reply by then.
    revision: i64,
    purpose: P,
}

/// The last state of the keys `term` and `beat` that a standby saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    term: i64,
    beat: i64,
}

#[derive(Debug)]
enum Role {
    Standby {
        /// The keys, and the time since which they are so.
        seen: Option<(Seen, Instant)>,
        /// The locators of the leader, if the machine knows of it.
        leader: Option<String>,
        /// The term to stand for next.
        next: Option<u64>,
    },
    Leader {
        term: u64,
        /// The revision at which `term` was set.
        revision: i64,
        until: Instant,
        /// The state, once it is loaded and until the machine gets it.
        loaded: Option<Vec<(Vec<u8>, Vec<u8>)>>,
        /// True if the machine knows that it leads.
        announced: bool,
    },
}

/// Returns true if the writes that the machine made before this outcome do not count any more,
/// unless they are confirmed: it was elected, or a write was refused.
#[must_use]
pub fn is_turn(written: &Written) -> bool {
    matches!(written, Written::Refused { .. } | Written::Election(Election::Elected { .. }))
}

/// The state of a cluster's coordinator in etcd, as one candidate sees it.
///
/// The [module](crate::etcd) describes its invariants.
#[derive(Debug)]
pub struct EtcdState {
    keys: Keys,
    locators: String,
    rng: Rng,
    role: Role,
    /// The last attempt to lead, whose outcome may be unknown.
    stood: Option<Term>,
    /// The highest term that this candidate has seen, and the revision at which it was set.
    known: Option<(u64, i64)>,
    asked: Option<Sent<Purpose>>,
    /// The time of the next request about the election.
    due: Instant,
    writer: Writer,
    writing: Option<Sent<bool>>,
    /// The time before which no request about the state is sent.
    pause: Instant,
    compact_at: Instant,
    /// The revision of the last reply.
    revision: i64,
    next_id: u64,
    /// The number of elections and refusals that the machine was informed of.
    turns: u64,
    /// The reason why requests fail, or nothing.
    trouble: String,
    /// True if an attempt to lead has failed since the beat last changed: a look that succeeds does
    /// not end the trouble.
    stuck: bool,
    events: VecDeque<Written>,
    failed: bool,
}

impl EtcdState {
    /// Returns the state of a cluster for a candidate with these locators. `rng` draws numbers that
    /// no other candidate draws.
    #[must_use]
    pub fn new(now: Instant, keys: Keys, locators: String, rng: Rng) -> Self {
        Self {
            keys,
            locators,
            rng,
            role: Role::Standby { seen: None, leader: None, next: None },
            stood: None,
            known: None,
            asked: None,
            due: now,
            writer: Writer::default(),
            writing: None,
            pause: now,
            compact_at: now.after(COMPACT_NS),
            revision: 0,
            next_id: 0,
            turns: 0,
            trouble: String::new(),
            stuck: false,
            events: VecDeque::new(),
            failed: false,
        }
    }

    /// Begins a write of the machine. `turn` is the number of outcomes for which [`is_turn`] is
    /// true that the machine was given: a write that it made before the last of them does not
    /// count.
    pub fn persist(
        &mut self,
        turn: u64,
        seq: u64,
        puts: Vec<(Vec<u8>, Vec<u8>)>,
        deletes: Vec<Vec<u8>>,
    ) {
        if turn == self.turns && matches!(self.role, Role::Leader { announced: true, .. }) {
            self.writer.push(seq, puts, deletes);
        }
    }

    /// Returns the outcome of writes, or a change of the part of this candidate.
    pub fn event(&mut self) -> Option<Written> {
        self.events.pop_front()
    }

    /// Returns true if a write of the machine is not done.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        matches!(self.role, Role::Leader { announced: true, .. }) && self.writer.has_work()
    }

    /// Returns the next request to send, and its number. Call it until `None`.
    pub fn output(&mut self, now: Instant) -> Option<(u64, Request)> {
        if self.failed {
            return None;
        }
        if self.asked.is_none() && self.due <= now {
            let (purpose, txn) = self.ask(now);
            let id = self.id();
            self.asked = Some(Sent { id, at: now, revision: self.revision, purpose });
            return Some((id, Request::Txn(txn)));
        }
        let Role::Leader { revision, .. } = self.role else { return None };
        if self.writing.is_some() || self.pause > now {
            return None;
        }
        let (compacts, request) = match self.writer.request(&self.keys, revision) {
            Some(request) => (false, request),
            None if self.compact_at <= now => (true, Request::Compact(self.revision)),
            None => return None,
        };
        let id = self.id();
        let sent = Sent { id, at: now, revision: self.revision, purpose: compacts };
        self.writing = Some(sent);
        Some((id, request))
    }

    /// Handles the result of the request with this number. The result of a request that was given
    /// up changes nothing.
    pub fn response(&mut self, now: Instant, id: u64, result: Result<Reply, Failure>) {
        let asked = self.asked.take_if(|sent| sent.id == id);
        let writing = self.writing.take_if(|sent| sent.id == id);
        if let Ok(reply) = &result {
            let sent = asked.as_ref().map(|sent| sent.revision);
            let sent = sent.or_else(|| writing.as_ref().map(|sent| sent.revision));
            let before = sent.unwrap_or_default();
            if (1..before).contains(&reply.revision) {
                // Only a restored snapshot is older than a reply that came before the request.
                return self.replaced();
            }
            self.revision = self.revision.max(reply.revision);
        }
        if let Some(sent) = asked {
            self.answered(now, sent, result);
        } else if let Some(sent) = writing {
            self.written(now, sent.purpose, result);
        }
    }

    /// Returns the time when [`EtcdState::tick`] is due, or [`EtcdState::output`] has a request.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        if self.failed {
            return Instant::NEVER;
        }
        let asked = self.asked.as_ref().map_or(self.due, |sent| sent.at.after(TRY_NS));
        let leads = matches!(self.role, Role::Leader { .. });
        let idle =
            if self.writer.has_work() { self.pause } else { self.compact_at.max(self.pause) };
        let writing = self.writing.as_ref().map_or(idle, |sent| sent.at.after(TRY_NS));
        if leads { asked.min(writing) } else { asked }
    }

    /// Gives up the requests that had no reply in time.
    pub fn tick(&mut self, now: Instant) {
        let late = || Failure::Unknown("etcd does not answer in time".into());
        if let Some(sent) = self.asked.take_if(|sent| sent.at.after(TRY_NS) <= now) {
            self.answered(now, sent, Err(late()));
        }
        if let Some(sent) = self.writing.take_if(|sent| sent.at.after(TRY_NS) <= now) {
            self.written(now, sent.purpose, Err(late()));
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

// The election.
impl EtcdState {
    /// Returns the next request about the election.
    fn ask(&mut self, now: Instant) -> (Purpose, Txn) {
        let (term, beat) = (self.keys.term(), self.keys.beat());
        let beat_value = self.rng.u64().to_be_bytes().to_vec();
        match &mut self.role {
            Role::Leader { revision, .. } => {
                let compares = Vec::from([self.keys.in_term(*revision)]);
                let then = Vec::from([Op::Put { key: beat, value: beat_value }]);
                let otherwise = Vec::from([Op::get(term)]);
                (Purpose::Beat, Txn { compares, then, otherwise })
            }
            Role::Standby { seen: Some((seen, since)), next: next @ Some(_), .. }
                if seen.term == 0 || since.after(SILENT_NS) <= now =>
            {
                // If the outcome stays unknown, a look shows it.
                let next = next.take().unwrap_or_default();
                let nonce = self.rng.u64();
                let stand = Term { term: next, nonce, locators: self.locators.clone() };
                let modified =
                    |key: &Vec<u8>, at| Compare { key: key.clone(), is: Is::Modified(at) };
                let compares = Vec::from([modified(&term, seen.term), modified(&beat, seen.beat)]);
                let otherwise = Vec::from([Op::get(term.clone()), Op::get(beat.clone())]);
                let then = Vec::from([
                    Op::Put { key: term, value: stand.emit() },
                    Op::Put { key: beat, value: beat_value },
                    self.keys.put_seq(0),
                ]);
                self.stood = Some(stand.clone());
                (Purpose::Stand(stand), Txn { compares, then, otherwise })
            }
            Role::Standby { .. } => {
                let then = Vec::from([Op::get(term), Op::get(beat)]);
                (Purpose::Watch, Txn { then, ..Txn::default() })
            }
        }
    }

    fn answered(&mut self, now: Instant, sent: Sent<Purpose>, result: Result<Reply, Failure>) {
        self.due = sent.at.after(BEAT_NS).max(now);
        let reply = match result {
            Ok(reply) => reply,
            Err(Failure::Unknown(why) | Failure::Refused(why)) => {
                self.due = now.after(AGAIN_NS);
                self.stuck |= matches!(sent.purpose, Purpose::Stand(_));
                return self.trouble(why);
            }
        };
        if !self.stuck || sent.purpose != Purpose::Watch {
            self.untroubled();
        }
        match sent.purpose {
            Purpose::Beat if reply.succeeded => self.led(now, sent.at),
            Purpose::Beat => {
                let term = reply.read.into_iter().next().unwrap_or_default();
                self.deposed(now, &term);
            }
            Purpose::Stand(term) if reply.succeeded => {
                self.leads(term.term, reply.revision, sent.at.after(VALID_NS));
            }
            Purpose::Stand(_) | Purpose::Watch => self.watched(now, sent.at, &reply.read),
        }
    }

    /// Begins to lead: the state has to be loaded.
    fn leads(&mut self, term: u64, revision: i64, until: Instant) {
        self.known = Some((term, revision));
        let (loaded, announced) = (None, false);
        self.role = Role::Leader { term, revision, until, loaded, announced };
        self.writer = Writer::loading();
        self.writing = None;
    }

    /// Leads on, after a good beat that was sent at this time.
    fn led(&mut self, now: Instant, sent: Instant) {
        let Role::Leader { until, announced, .. } = &mut self.role else { return };
        *until = (*until).max(sent.after(VALID_NS));
        if *announced {
            self.events.push_back(Written::Election(Election::Extended { until: *until }));
        } else {
            self.announce(now);
        }
    }

    /// Informs the machine that it leads, once the state is loaded and a beat holds.
    fn announce(&mut self, now: Instant) {
        let Role::Leader { term, until, loaded, announced, .. } = &mut self.role else { return };
        if *until > now
            && let Some(pairs) = loaded.take()
        {
            *announced = true;
            self.turns += 1;
            let (term, until) = (*term, *until);
            let elected = Election::Elected { term, until, pairs };
            self.events.push_back(Written::Election(elected));
        }
    }

    /// Handles the keys `term` and `beat` that were read after `sent`.
    fn watched(&mut self, now: Instant, sent: Instant, read: &[Vec<Pair>]) {
        let pair = |i: usize| read.get(i).and_then(|pairs| pairs.first());
        let beat = pair(1).map_or(0, |pair| pair.modified);
        let Some(pair) = pair(0) else {
            if self.known.is_some() {
                return self.gone();
            }
            self.role = Role::Standby {
                seen: Some((Seen { term: 0, beat }, now)),
                leader: None,
                next: Some(1),
            };
            self.due = now;
            return;
        };
        let term = match Term::parse(&pair.value) {
            Ok(term) => term,
            Err(why) => return self.fail(why),
        };
        if !self.follows(&term, pair.modified) {
            return;
        }
        if self.stood.as_ref() == Some(&term) {
            // The reply to the attempt was lost. Only a beat shows for how long this one leads.
            self.leads(term.term, pair.modified, Instant::ZERO);
            self.due = now;
            return;
        }
        let new = Seen { term: pair.modified, beat };
        let Role::Standby { seen, leader, next } = &mut self.role else { return };
        let since = seen.filter(|(old, _)| *old == new).map_or(now, |(_, since)| since);
        let beats = seen.is_some_and(|(old, _)| old != new);
        *seen = Some((new, since));
        *next = Some(term.term + 1);
        // The next request is the attempt, if the time is over before the next look is due.
        let silent_at = since.after(SILENT_NS);
        self.due = sent.after(BEAT_NS).max(now);
        if silent_at > now {
            self.due = self.due.min(silent_at);
        }
        if leader.as_ref() != Some(&term.locators) {
            *leader = Some(term.locators.clone());
            let standby = Election::Standby { leader: term.locators };
            self.events.push_back(Written::Election(standby));
            let why = self.trouble.clone();
            if !why.is_empty() {
                self.events.push_back(Written::Election(Election::Unsure { why }));
            }
        }
        if beats {
            self.untroubled();
        }
    }

    /// Becomes a standby, since the term is another one.
    fn deposed(&mut self, now: Instant, term: &[Pair]) {
        let Some(pair) = term.first() else { return self.gone() };
        match Term::parse(&pair.value) {
            Ok(term) if self.follows(&term, pair.modified) => {
                self.stand_by(now, Some(term.locators));
            }
            Ok(_) => {}
            Err(why) => self.fail(why),
        }
    }

    /// Returns true if a term follows those that this candidate has seen. Otherwise the keys are
    /// those of another cluster, or of an earlier time.
    fn follows(&mut self, term: &Term, revision: i64) -> bool {
        let new = (term.term, revision);
        let follows =
            self.known.is_none_or(|known| new == known || new.0 > known.0 && new.1 > known.1);
        if follows {
            self.known = Some(new);
        } else {
            self.replaced();
        }
        follows
    }

    fn replaced(&mut self) {
        let prefix = self.keys.prefix().to_string();
        self.fail(alloc::format!(
            "the cluster's keys at {prefix} were replaced: they are not those of before"
        ));
    }

    fn stand_by(&mut self, now: Instant, leader: Option<String>) {
        let known = leader.clone().unwrap_or_default();
        self.role = Role::Standby { seen: None, leader, next: None };
        (self.writer, self.writing, self.stood) = (Writer::default(), None, None);
        (self.asked, self.due) = (None, now);
        self.events.push_back(Written::Election(Election::Standby { leader: known }));
    }

    fn gone(&mut self) {
        let prefix = self.keys.prefix().to_string();
        self.fail(alloc::format!("the cluster's keys are gone: there is no {prefix}term any more"));
    }

    fn fail(&mut self, why: String) {
        self.failed = true;
        self.events.push_back(Written::Failed(why));
    }

    fn trouble(&mut self, why: String) {
        if self.trouble != why {
            self.trouble = why.clone();
            self.events.push_back(Written::Election(Election::Unsure { why }));
        }
    }

    fn untroubled(&mut self) {
        self.stuck = false;
        if core::mem::take(&mut self.trouble).is_empty() {
            return;
        }
        if let Role::Standby { leader: Some(leader), .. } = &self.role {
            let standby = Election::Standby { leader: leader.clone() };
            self.events.push_back(Written::Election(standby));
        }
    }
}

// The state.
impl EtcdState {
    /// Handles the result of a request about the state, or of a compaction.
    fn written(&mut self, now: Instant, compacts: bool, result: Result<Reply, Failure>) {
        let Role::Leader { revision, .. } = self.role else { return };
        if compacts {
            self.compact_at = now.after(COMPACT_NS);
            return;
        }
        let step = match result {
            Ok(reply) => self.writer.reply(&self.keys, revision, reply),
            Err(failure) => self.writer.failed(&self.keys, failure),
        };
        match step {
            Step::Next => {}
            Step::Loaded(pairs) => {
                if let Role::Leader { loaded, .. } = &mut self.role {
                    *loaded = Some(pairs);
                }
                self.announce(now);
            }
            Step::Durable(seq) => self.events.push_back(Written::Durable(seq)),
            Step::Refused { reason, durable } => {
                self.turns += 1;
                self.events.push_back(Written::Refused { reason, durable });
            }
            Step::Deposed(term) => self.deposed(now, &term),
            Step::Resign(why) => {
                self.stand_by(now, None);
                self.stuck = true;
                self.trouble(why);
            }
            Step::Again(_) => self.pause = now.after(AGAIN_NS),
            Step::Failed(why) => self.fail(why),
        }
    }
}
