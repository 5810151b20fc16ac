//! A process that runs a store machine behind an RPC endpoint: what a worker does in production, in virtual time.
//!
//! ```text
//!  turn:  written → datagrams in → events → machine → tick if due → outputs → datagrams out
//! ```
//!
//! Locators are `sim:host=N`. A link's session is opened at its first call, and anew at the first call after it is lost.

use std::collections::BTreeMap;

use sprat_proto::node::machine::{Caller, Link, Machine, Output};
use sprat_proto::rpc::{Config, Endpoint, Event, Message, RequestError, RpcError, SessionId};
use sprat_proto::time::SECOND;
use sprat_proto::{Instant, Rng};

use crate::disk::{Outcome, Write};
use crate::wire::HostId;
use crate::world::{Outside, Process};

/// How long a call waits that could not be taken, because too many wait already, in nanoseconds.
const RETRY_NS: u64 = 1_000_000;

/// The locator of a host.
#[must_use]
pub fn locator(host: HostId) -> String {
    format!("sim:host={host}")
}

fn host_of(locator: &str) -> Option<HostId> {
    locator.split(';').find_map(|l| l.strip_prefix("sim:host=")?.parse().ok())
}

/// The endpoint of a simulated process.
#[must_use]
pub fn config(serve: bool) -> Config {
    // Sessions of dead clients shall end within a test's time.
    Config { serve, idle_expiry_ns: 20 * SECOND, ..Config::default() }
}

/// A machine and its endpoint.
#[derive(Debug)]
pub struct Node<M> {
    /// The machine. A test may call it between [`Node::input`] and [`Node::output`].
    pub machine: M,
    endpoint: Endpoint,
    links: BTreeMap<u32, Peer>,
    more: bool,
}

#[derive(Debug)]
struct Peer {
    host: Option<HostId>,
    session: Option<SessionId>,
}

impl<M: Machine> Node<M> {
    /// A process with an endpoint of this `config`.
    pub fn new(machine: M, config: Config, rng: Rng) -> Self {
        let endpoint = Endpoint::new(config, rng, sprat_proto::tracepoint::NoProbe);
        Self { machine, endpoint, links: BTreeMap::new(), more: false }
    }

    /// What its endpoint has counted.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The first half of a turn: what has arrived goes to the machine.
    pub fn input<S>(&mut self, outside: &mut Outside<'_, S>) {
        let now = outside.now;
        for outcome in outside.completed.drain(..) {
            match outcome {
                Outcome::Safe(seq) => self.machine.persisted(now, seq),
                Outcome::Refused(contents) => {
                    self.machine.rollback(now, "the disk is full", contents.into_iter().collect());
                }
                Outcome::Failed => outside.stop = Some("the disk has failed".into()),
            }
        }
        let arrived = self.endpoint.input(now, &mut outside.port);
        self.events(outside);
        if self.endpoint.deadline().is_some_and(|at| at <= now) {
            self.endpoint.tick(now);
            self.events(outside);
        }
        self.more = (arrived == 0 || self.machine.deadline().is_some_and(|at| at <= now))
            && self.machine.tick(now);
    }

    fn events<S>(&mut self, outside: &Outside<'_, S>) {
        let now = outside.now;
        while let Some(event) = self.endpoint.event(now, &outside.port) {
            match event {
                Event::Request { rpc, payload, deadline } => {
                    let caller = Caller { door: 0, rpc };
                    if let Some(reply) = self.machine.request(now, caller, payload, deadline) {
                        self.endpoint.reply(now, rpc, reply);
                    }
                }
                Event::Response { tag, payload, .. } => {
                    self.machine.response(now, tag, Ok(payload))
                }
                Event::Failed { tag, error, .. } => self.machine.response(now, tag, Err(error)),
                Event::Closed { session, .. } => {
                    for peer in self.links.values_mut().filter(|p| p.session == Some(session)) {
                        peer.session = None;
                    }
                }
            }
        }
    }

    /// The second half: what the machine wants is done, what the endpoint has is sent. True if there is more to do at
    /// once.
    pub fn output<S>(&mut self, outside: &mut Outside<'_, S>) -> bool {
        let now = outside.now;
        while let Some(output) = self.machine.output(now) {
            self.act(output, outside);
        }
        let more = self.endpoint.output(now, &self.machine, &mut outside.port);
        while let Some(slice) = self.endpoint.released() {
            self.machine.released(slice);
        }
        more || self.more
    }

    fn act<S>(&mut self, output: Output, outside: &mut Outside<'_, S>) {
        let now = outside.now;
        match output {
            Output::Connect { link, locator } => {
                self.disconnect(now, link);
                self.links.insert(link.0, Peer { host: host_of(&locator), session: None });
            }
            Output::Disconnect { link } => self.disconnect(now, link),
            Output::Call { link, tag, message, deadline } => {
                if let Err(error) = self.call(outside, link, tag, message, deadline) {
                    self.machine.response(now, tag, Err(error));
                }
            }
            Output::Cancel { rpc, .. } => self.endpoint.cancel(now, rpc),
            Output::Reply { caller, message } => self.endpoint.reply(now, caller.rpc, message),
            Output::Counters { caller, mut message } => {
                message.bytes.push(b'}');
                self.endpoint.reply(now, caller.rpc, message);
            }
            Output::Persist { seq, puts, deletes } => {
                outside.writes.push(Write { seq, puts, deletes })
            }
            Output::Stop { reason } => outside.stop = Some(reason),
        }
    }

    fn disconnect(&mut self, now: Instant, link: Link) {
        if let Some(Peer { session: Some(session), .. }) = self.links.remove(&link.0) {
            self.endpoint.close(now, session);
        }
    }

    fn call<S>(
        &mut self,
        outside: &Outside<'_, S>,
        link: Link,
        tag: u64,
        message: Message,
        deadline: Instant,
    ) -> Result<(), RpcError> {
        let peer = self.links.get_mut(&link.0).ok_or(RpcError::NotExecuted)?;
        let session = match peer.session {
            Some(session) => session,
            None => {
                let addr = peer.host.and_then(|host| outside.port.resolve(host));
                self.endpoint.connect(outside.now, addr.ok_or(RpcError::NotExecuted)?)
            }
        };
        peer.session = Some(session);
        match self.endpoint.request(outside.now, session, tag, message, deadline) {
            Ok(rpc) => {
                self.machine.sent(tag, 0, rpc);
                Ok(())
            }
            Err(RequestError::QueueFull) => Err(RpcError::Busy { retry_after_ns: RETRY_NS }),
            Err(_) => {
                peer.session = None;
                Err(RpcError::NotExecuted)
            }
        }
    }

    /// When it wants a turn although nothing arrives.
    pub fn deadline(&self) -> Option<Instant> {
        self.endpoint.deadline().into_iter().chain(self.machine.deadline()).min()
    }
}

impl<M: Machine, S> Process<S> for Node<M> {
    fn turn(&mut self, outside: &mut Outside<'_, S>) -> bool {
        self.input(outside);
        self.output(outside)
    }

    fn deadline(&self) -> Option<Instant> {
        Self::deadline(self)
    }
}
