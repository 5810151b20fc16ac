//! The part of a node that reaches the servers of its links: sessions by the locator in use and,
//! for a server with several locators, the race that chooses one.
//!
//! A call on a link whose server has a race waits. It is sent when the race is won, and fails when
//! the race is lost or the call's deadline passes.
//!
//! Always: calls wait only for servers that have a race. The machine learns why a server cannot be
//! reached before the calls to it fail.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::held::Held;
use super::host::{Host, Opened};
use super::machine::{Link, Machine};
use super::transport::Transport;
use super::turn::{HELD, Node, Reach};
use crate::Instant;
use crate::rpc::{Message, RpcError, RpcId};
use crate::time::MS;

/// The reason why [`Node::connect`] cannot connect a link to a server.
#[derive(Debug)]
pub enum ConnectError<E> {
    /// The locators of the server are malformed.
    Locators(E),
    /// No attempt to open a session with the server could begin.
    Unreachable {
        /// The host's error for the server's first locator, if it has one.
        first: Option<E>,
        /// The text that lists each locator that the node tried, with its own cause.
        why: String,
    },
}

impl<M: Machine, H: Host> Node<M, H> {
    // Sessions.

    /// Begins a session for a lane, or a race for the locator of its server.
    pub(super) fn open(&mut self, now: Instant, lane: Link) -> Reach {
        let Some(number) = self.links.bound_to(lane) else { return Reach::Failed };
        if self.links.target(number).race.is_some() {
            return Reach::Opening;
        }
        if let Some(candidate) = self.links.target(number).chosen() {
            if let Some(session) = self.attempt(now, number, candidate) {
                self.links.target(number).choose(candidate, session.0);
                self.links.opened(lane, session);
                return Reach::Session(session);
            }
            if self.links.target(number).chosen().is_some() {
                return self.report_unreachable(number, lane);
            }
        }
        self.links.begin_race(now, number, lane);
        match self.race(now, number) {
            Reach::Failed => self.report_unreachable(number, lane),
            // The lane that the race began for has got the session.
            other => other,
        }
    }

    /// Begins a session by one of a server's locators. Returns none if it could not begin.
    fn attempt(&mut self, now: Instant, number: u32, candidate: usize) -> Option<Opened> {
        let target = self.links.target(number);
        target.began(candidate);
        let session = self.host.connect(now, target.locator(candidate));
        // The packet that opens the session has to go out.
        self.unsent = true;
        match session {
            Ok(session) => Some(session),
            Err(error) => {
                target.failed(candidate, error);
                None
            }
        }
    }

    /// Gives the machine the reason why the server of a lane cannot be reached.
    fn report_unreachable(&mut self, number: u32, lane: Link) -> Reach {
        let why = self.links.target(number).why();
        self.machine.unreachable(self.links.link(lane), &why);
        Reach::Failed
    }

    // Races.

    /// Continues the races of all servers. Sends or fails the calls that wait for races which are
    /// over.
    #[cold]
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
                        self.report_unreachable(number, self.links.first(call.link));
                        self.fail(now, &call, RpcError::NotExecuted);
                    }
                }
            }
        }
    }

    /// Continues a server's race: begins the attempts that are due, and ends a race that is won or
    /// lost.
    fn race(&mut self, now: Instant, number: u32) -> Reach {
        loop {
            let Some((race, _)) = &mut self.links.target(number).race else { return Reach::Failed };
            let open = race.opening().find(|(_, (transport, session))| {
                self.host.transport(*transport).is_open(*session)
            });
            if let Some((candidate, session)) = open {
                if !race.wins(now, candidate) {
                    return Reach::Opening;
                }
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

    /// Ends a race that is won: closes the sessions of the other attempts and gives `session` to
    /// the lane that the race began for.
    fn won(&mut self, now: Instant, number: u32, candidate: usize, session: Opened) -> Reach {
        let Some((race, lane)) = self.links.end_race(number) else { return Reach::Failed };
        for (_, (transport, other)) in race.opening().filter(|(_, other)| *other != session) {
            self.host.transport(transport).close(now, other);
        }
        self.links.target(number).choose(candidate, session.0);
        if self.links.bound_to(lane) == Some(number) && self.links.session(lane).is_none() {
            self.links.opened(lane, session);
        } else {
            self.host.transport(session.0).close(now, session.1);
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
        if self.held.is_full() {
            self.release(&message);
            self.machine.response(now, tag, Err(RpcError::Busy { retry_after_ns: MS }));
            self.unsent = true;
            return;
        }
        let id = self.held.push(link, tag, message, deadline);
        self.awaited += 1;
        self.machine.sent(tag, HELD, id);
    }

    /// Cancels a call that waits for a race.
    pub(super) fn cancel_held(&mut self, now: Instant, id: RpcId) {
        for call in self.held.take(|call| call.id == id) {
            self.fail(now, &call, RpcError::Cancelled);
        }
    }

    /// Fails the calls that wait for a race and whose deadline has passed. Returns true if there
    /// were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let late = self.held.take(|call| call.deadline <= now);
        for call in &late {
            let lane = self.links.first(call.link);
            if let Some(number) = self.links.bound_to(lane) {
                self.report_unreachable(number, lane);
            }
            self.fail(now, call, RpcError::Deadline { maybe_executed: false });
        }
        !late.is_empty()
    }

    /// Returns the time at which a race or a call that waits for one needs a turn of the node.
    pub(super) fn race_deadline(&mut self) -> Instant {
        let mut first = self.held.deadline();
        for number in self.links.racing().to_vec() {
            let race = self.links.target(number).race.as_ref();
            first = first.min(race.and_then(|(race, _)| race.deadline()).unwrap_or(Instant::NEVER));
        }
        first
    }

    fn waiting_for(&mut self, number: u32) -> Vec<Held> {
        let links = &self.links;
        self.held.take(|call| links.bound_to(links.first(call.link)) == Some(number))
    }

    fn fail(&mut self, now: Instant, call: &Held, error: RpcError) {
        self.release(&call.message);
        self.awaited -= 1;
        self.unsent = true;
        self.machine.response(now, call.tag, Err(error));
    }

    // Links.

    /// Binds `link` to the server at these locators and connects at once, so that the caller learns
    /// of a mistake in them.
    ///
    /// # Errors
    /// [`ConnectError`] if the locators are malformed or no attempt could begin. The link stays
    /// bound unless the locators are malformed.
    pub fn connect(
        &mut self,
        now: Instant,
        link: Link,
        locators: &str,
    ) -> Result<(), ConnectError<H::Error>> {
        let target = self.learn(locators).map_err(ConnectError::Locators)?;
        self.place(now, link, Some(target));
        match self.open(now, self.links.first(link)) {
            Reach::Failed => {
                let target = self.links.target(target);
                let why = target.why();
                Err(ConnectError::Unreachable { first: target.take_error(), why })
            }
            Reach::Opening | Reach::Session(_) => Ok(()),
        }
    }

    /// Binds `link` to the server at these locators. If they are malformed the link is left
    /// unbound, and its calls fail as not executed.
    pub(super) fn bind(&mut self, now: Instant, link: Link, locators: &str) {
        let target = self.learn(locators);
        if let Err(why) = &target {
            self.machine.unreachable(link, &why.to_string());
        }
        self.place(now, link, target.ok());
    }

    /// Returns the number of the server at these locators in the link table.
    fn learn(&mut self, locators: &str) -> Result<u32, H::Error> {
        match self.links.known(locators) {
            Some(target) => Ok(target),
            None => Ok(self.links.learn(locators, self.host.candidates(locators)?)),
        }
    }

    /// Binds all lanes of `link` to a server, or to none. The node closes their sessions with the
    /// previous server, because a transport has room for a limited number of sessions.
    pub(super) fn place(&mut self, now: Instant, link: Link, target: Option<u32>) {
        for call in self.held.take(|call| call.link == link) {
            self.fail(now, &call, RpcError::NotExecuted);
        }
        for lane in self.links.lanes(link) {
            for (transport, session) in self.links.unbind(lane) {
                self.host.transport(transport).close(now, session);
            }
            if let Some(target) = target {
                self.links.bind(lane, target);
            }
        }
    }
}
