//! How a worker reaches the servers that its links are bound to: sessions by the locator in use, and where a server has
//! several locators, the race that decides which one that is.
//!
//! A call on a link whose server has a race waits here. It goes out when the race is won, and fails when the race is lost
//! or its own deadline passes.
//!
//! Always: calls wait only for servers that have a race. What is known of why a server cannot be reached is given to the
//! machine before the call fails.

use std::collections::VecDeque;
use std::io;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Machine};
use sprat_proto::rpc::{Message, RpcError, RpcId};
use sprat_proto::time::MS;

use super::Worker;
use crate::links::Opened;
use crate::locator::Locator;

/// The most calls that wait for races. They are the program's own, in its own memory: the limit only has to be one.
const HELD_MOST: usize = 1 << 20;
/// What a machine is given as the door of a call that waits for a race, to cancel it by.
pub(super) const HELD: u32 = u32::MAX;

/// A call that waits for a race.
#[derive(Debug)]
pub(super) struct Held {
    id: u64,
    link: Link,
    tag: u64,
    message: Message,
    deadline: Instant,
}

/// The calls that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    calls: VecDeque<Held>,
    ids: u64,
}

/// What there is for a strand.
pub(super) enum Reach {
    Session(Opened),
    /// A race that is not decided yet.
    Opening,
    Failed,
}

impl<M: Machine> Worker<M> {
    /// The session that stands for a strand, begun if there is none.
    #[inline]
    pub(super) fn reach(&mut self, now: Instant, strand: Link) -> Reach {
        match self.links.session(strand) {
            Some(session) => Reach::Session(session),
            None => self.open(now, strand),
        }
    }

    /// Begins a session for a strand, or a race for its server.
    fn open(&mut self, now: Instant, strand: Link) -> Reach {
        let Some(number) = self.links.bound_to(strand) else { return Reach::Failed };
        if self.links.target(number).race.is_some() {
            return Reach::Opening;
        }
        if let Some(candidate) = self.links.target(number).chosen() {
            if let Some(session) = self.attempt(now, number, candidate) {
                self.choose(number, candidate, session);
                self.links.opened(strand, session);
                return Reach::Session(session);
            }
            if self.links.target(number).chosen().is_some() {
                return self.cannot(number, strand);
            }
        }
        self.links.begin_race(now, number, strand);
        match self.race(now, number) {
            Reach::Failed => self.cannot(number, strand),
            // The strand that the race began for has got the session.
            other => other,
        }
    }

    /// Begins a session by one of a server's locators.
    fn attempt(&mut self, now: Instant, number: u32, candidate: usize) -> Option<Opened> {
        let target = self.links.target(number);
        target.began(candidate);
        let to = target.locator(candidate);
        let door = self.doors.towards(to);
        let session = door.and_then(|door| Ok((door, self.doors.at(door).connect(now, to)?)));
        // What opens the session has to go out.
        self.unsent = true;
        match session {
            Ok(session) => Some(session),
            Err(why) => {
                target.failed(candidate, why);
                None
            }
        }
    }

    fn choose(&mut self, number: u32, candidate: usize, (door, _): Opened) {
        let channels = self.doors.at(door).channels();
        self.links.target(number).choose(candidate, door, channels);
    }

    /// The machine learns why the server of a strand cannot be reached.
    fn cannot(&mut self, number: u32, strand: Link) -> Reach {
        let why = self.links.target(number).why();
        self.machine.unreachable(self.links.link(strand), &why.to_string());
        Reach::Failed
    }

    // Races.

    /// Goes on with all races, and with the calls that wait for those that are over.
    pub(super) fn races(&mut self, now: Instant) {
        for number in self.links.racing().to_vec() {
            match self.race(now, number) {
                Reach::Opening => {}
                Reach::Session(_) => {
                    for call in self.waiting_for(number) {
                        self.awaited -= 1;
                        self.call(now, call.link, call.tag, call.message, call.deadline);
                    }
                }
                Reach::Failed => {
                    for call in self.waiting_for(number) {
                        self.cannot(number, self.links.first(call.link));
                        self.fail(now, &call, RpcError::NotExecuted);
                    }
                }
            }
        }
    }

    /// Goes on with a server's race: begins what is due, and ends it if it is won or lost.
    fn race(&mut self, now: Instant, number: u32) -> Reach {
        loop {
            let target = self.links.target(number);
            let Some((race, _)) = &target.race else { return Reach::Failed };
            let open =
                race.opening().find(|(_, (door, session))| self.doors.at(*door).is_open(*session));
            if let Some((candidate, session)) = open {
                return self.won(now, number, candidate, session);
            }
            if race.is_lost() {
                self.links.end_race(number);
                return Reach::Failed;
            }
            let Some(candidate) = race.due(now) else { return Reach::Opening };
            let session = self.attempt(now, number, candidate);
            let Some((race, _)) = &mut self.links.target(number).race else { return Reach::Failed };
            match session {
                Some(session) => race.began(now, candidate, session),
                None => race.failed(now, candidate),
            }
        }
    }

    /// A race is won: the other sessions are closed, the strand that it began for gets this one.
    fn won(&mut self, now: Instant, number: u32, candidate: usize, session: Opened) -> Reach {
        let Some((race, strand)) = self.links.end_race(number) else { return Reach::Failed };
        for (_, (door, other)) in race.opening().filter(|(_, other)| *other != session) {
            self.doors.at(door).close(now, other);
        }
        self.choose(number, candidate, session);
        if self.links.bound_to(strand) == Some(number) && self.links.session(strand).is_none() {
            self.links.opened(strand, session);
        } else {
            self.doors.at(session.0).close(now, session.1);
        }
        Reach::Session(session)
    }

    // Calls that wait.

    /// Keeps a call until the race of its server is over.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        link: Link,
        tag: u64,
        message: Message,
        deadline: Instant,
    ) {
        if self.waiting.calls.len() >= HELD_MOST {
            self.machine.response(now, tag, Err(RpcError::Busy { retry_after_ns: MS }));
            self.unsent = true;
            return;
        }
        self.awaited += 1;
        self.waiting.ids += 1;
        let id = self.waiting.ids;
        self.waiting.calls.push_back(Held { id, link, tag, message, deadline });
        self.machine.sent(tag, HELD, RpcId(id));
    }

    /// Gives up a call that waits.
    pub(super) fn cancel_held(&mut self, now: Instant, rpc: RpcId) {
        for call in self.waiting.take(|call| call.id == rpc.0) {
            self.fail(now, &call, RpcError::Cancelled);
        }
    }

    /// The calls that wait and whose time is over fail; true if there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let late = self.waiting.take(|call| call.deadline <= now);
        for call in &late {
            let strand = self.links.first(call.link);
            if let Some(number) = self.links.bound_to(strand) {
                self.cannot(number, strand);
            }
            self.fail(now, call, RpcError::Deadline { maybe_executed: false });
        }
        !late.is_empty()
    }

    /// When a race or a call that waits for one wants another turn.
    pub(super) fn race_deadline(&mut self) -> Instant {
        let call = self.waiting.calls.iter().map(|call| call.deadline).min();
        let mut first = call.unwrap_or(Instant::NEVER);
        for number in self.links.racing().to_vec() {
            let race = self.links.target(number).race.as_ref();
            first = first.min(race.and_then(|(race, _)| race.deadline()).unwrap_or(Instant::NEVER));
        }
        first
    }

    fn waiting_for(&mut self, number: u32) -> Vec<Held> {
        let links = &self.links;
        self.waiting.take(|call| links.bound_to(links.first(call.link)) == Some(number))
    }

    fn fail(&mut self, now: Instant, call: &Held, error: RpcError) {
        self.awaited -= 1;
        self.unsent = true;
        self.machine.response(now, call.tag, Err(error));
    }

    // Links.

    /// Binds `link` to the server at these locators and connects at once, so that a mistake shows here.
    pub(crate) fn connect(&mut self, link: Link, locators: &str) -> io::Result<()> {
        let target = self.learn(locators)?;
        let now = self.clock.now();
        self.place(now, link, Some(target));
        let strand = self.links.strand(link, 0);
        match self.open(now, strand) {
            Reach::Failed => Err(self.links.target(target).why()),
            Reach::Opening | Reach::Session(_) => Ok(()),
        }
    }

    /// Binds `link` to the server at these locators; by a list that is none it is left unbound, so that its calls fail as
    /// not executed.
    pub(super) fn bind(&mut self, now: Instant, link: Link, locators: &str) {
        let target = self.learn(locators);
        if let Err(why) = &target {
            self.machine.unreachable(link, &why.to_string());
        }
        self.place(now, link, target.ok());
    }

    /// The number of the server at these locators.
    fn learn(&mut self, locators: &str) -> io::Result<u32> {
        match self.links.known(locators) {
            Some(target) => Ok(target),
            None => Ok(self.links.learn(locators, Locator::list(locators)?)),
        }
    }

    /// Binds all strands of `link`, or none; whatever they were bound to before, they are not any more.
    pub(super) fn place(&mut self, now: Instant, link: Link, target: Option<u32>) {
        for call in self.waiting.take(|call| call.link == link) {
            self.fail(now, &call, RpcError::NotExecuted);
        }
        for strand in self.links.strands(link) {
            self.unbind(now, strand);
            if let Some(target) = target {
                self.links.bind(strand, target);
            }
        }
    }

    /// Closes the session of a strand: nothing would hear of it any more, and its door has room for so many only.
    fn unbind(&mut self, now: Instant, strand: Link) {
        for (door, session) in self.links.unbind(strand) {
            self.doors.at(door).close(now, session);
        }
    }
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Takes those out that `wanted` names, in order.
    fn take(&mut self, wanted: impl Fn(&Held) -> bool) -> Vec<Held> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let (taken, left): (Vec<_>, Vec<_>) = self.calls.drain(..).partition(wanted);
        self.calls = left.into();
        taken
    }
}
