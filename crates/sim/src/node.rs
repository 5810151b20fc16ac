//! A simulated process that runs a store machine in a [`node::Node`], the same node that a worker
//! of production runs.
//!
//! ```text
//!  turn:  what the disk wrote → Node::receive → (the test calls the machine) → Node::finish
//!         → more turns while there is work, some idle ones → Node::pause, until something arrives
//! ```
//!
//! A locator is `sim:host=N`. With `,is=refused` the attempt to connect fails at once, with
//! `,is=silent` it reaches an address where nothing answers.

use std::any::Any;
use std::collections::VecDeque;

use sprat_proto::node::machine::Machine;
use sprat_proto::node::{self, Fast, Host, Opened, Pairs, Written};
use sprat_proto::rpc::{Config, Endpoint};
use sprat_proto::time::SECOND;
use sprat_proto::tracepoint::NoProbe;
use sprat_proto::{Instant, Rng};

use sprat_store::etcd::{EtcdState, is_turn};

use crate::disk::{Outcome, Write};
use crate::process::{Outside, Process};
use crate::wire::{HostId, Port};

/// The locator of a simulated host.
#[must_use]
pub fn locator(host: HostId) -> String {
    format!("sim:host={host}")
}

/// A list of locators of a simulated host, in a random order. At some of them nothing answers.
#[must_use]
pub fn locators(host: HostId, rng: &mut Rng) -> String {
    let mut list = vec![locator(host)];
    for way in ["refused", "silent"] {
        if rng.chance(300_000) {
            let at = rng.below(list.len() as u64 + 1) as usize;
            list.insert(at, format!("sim:host={host},is={way}"));
        }
    }
    list.join(";")
}

/// The options of a simulated process's endpoint.
#[must_use]
pub fn config(serve: bool) -> Config {
    // Sessions of dead clients end within a test's time.
    Config { serve, idle_expiry_ns: 20 * SECOND, ..Config::default() }
}

/// A simulated process: a machine in its node.
#[derive(Debug)]
pub struct Node<M: Machine> {
    node: node::Node<M, Net>,
    /// The number of idle turns before the node pauses, and the number since the last work.
    patience: u32,
    idle: u32,
    worked: bool,
    /// The time at which the node's pause ends, while it pauses.
    until: Option<Instant>,
}

impl<M: Machine> Node<M> {
    /// Makes a process with an endpoint of this `config` over `port`. The random numbers choose the
    /// lanes of a link, and how long the process polls before it sleeps.
    pub fn new(machine: M, config: Config, mut rng: Rng, port: Port) -> Self {
        let lanes = [1, 1, 2, 8][rng.below(4) as usize];
        let patience = [0, 0, 2, 30][rng.below(4) as usize];
        Self::with(machine, config, rng, port, lanes, patience)
    }

    /// Makes a process with this number of lanes for each link, which pauses after `patience` idle
    /// turns.
    pub fn with(
        machine: M,
        config: Config,
        mut rng: Rng,
        port: Port,
        lanes: u16,
        patience: u32,
    ) -> Self {
        let transport = Fast::new(port, config, rng.fork(), NoProbe);
        let (written, writes) = (VecDeque::new(), Vec::new());
        let net = Net { transport, rng, written, writes, etcd: None, turns: 0 };
        let node = node::Node::new(machine, net, lanes);
        Self { node, patience, idle: 0, worked: false, until: None }
    }

    /// Keeps the state of the process's machine in the simulated etcd.
    #[must_use]
    pub fn over(mut self, etcd: EtcdState) -> Self {
        self.node.host_mut().etcd = Some(etcd);
        self
    }

    /// Returns the endpoint of the simulated process, to read its counters.
    pub fn endpoint(&self) -> &Endpoint {
        self.node.host().transport.endpoint()
    }

    /// Returns the machine of the simulated process, for calls that make no output.
    pub fn machine(&mut self) -> &mut M {
        self.node.machine()
    }

    /// Returns the machine of the simulated process, for calls that make output, between
    /// [`Node::input`] and [`Node::output`].
    pub fn command(&mut self) -> &mut M {
        self.node.mark_unsent();
        self.node.machine()
    }

    /// Runs the first half of the node's turn: what has arrived goes to the machine.
    pub fn input<S>(&mut self, outside: &mut Outside<'_, S>) {
        let host = self.node.host_mut();
        host.written.extend(outside.completed.drain(..));
        if let Some(etcd) = &mut host.etcd {
            etcd.tick(outside.now);
            for (id, outcome) in outside.answers.drain(..) {
                etcd.response(outside.now, id, outcome);
            }
        }
        if self.until.take().is_some() {
            self.node.resume();
        }
        self.worked = self.node.receive(outside.now);
    }

    /// Runs the second half of the node's turn: does the actions that the machine asks for, and
    /// sends what the endpoint has queued. Returns true if there is more to do at once.
    pub fn output<S>(&mut self, outside: &mut Outside<'_, S>) -> bool {
        let now = outside.now;
        self.node.finish(now, &[]);
        self.idle = if self.worked { 0 } else { self.idle + 1 };
        if !self.worked && self.idle > self.patience {
            self.until = self.node.pause(now, &[]);
        }
        let host = self.node.host_mut();
        outside.writes.append(&mut host.writes);
        if let Some(etcd) = &mut host.etcd {
            outside.requests.extend(std::iter::from_fn(|| etcd.output(now)));
        }
        if let Some(reason) = self.node.take_stopped() {
            outside.stop = Some(reason);
        }
        self.until.is_none()
    }

    /// Returns the time of the node's next turn if nothing arrives.
    pub fn deadline(&self) -> Option<Instant> {
        let etcd = self.node.host().etcd.as_ref().map(EtcdState::deadline);
        let until = self.until.into_iter().chain(etcd).min();
        until.filter(|at| *at < Instant::NEVER)
    }
}

impl<M: Machine + 'static, S> Process<S> for Node<M> {
    fn turn(&mut self, outside: &mut Outside<'_, S>) -> bool {
        self.input(outside);
        self.output(outside)
    }

    fn deadline(&self) -> Option<Instant> {
        Self::deadline(self)
    }

    fn state(&mut self) -> &mut dyn Any {
        self.machine()
    }
}

/// The host of a simulated node: one transport, and the disk of its machine.
#[derive(Debug)]
struct Net {
    transport: Fast<Port>,
    rng: Rng,
    written: VecDeque<Outcome>,
    writes: Vec<Write>,
    /// The state of the machine in the simulated etcd, which takes the place of the disk.
    etcd: Option<EtcdState>,
    /// The number of elections and refusals that the machine was informed of.
    turns: u64,
}

impl Host for Net {
    type Transport = Fast<Port>;
    type Error = String;

    fn transports(&self) -> usize {
        1
    }

    fn transport(&mut self, _: usize) -> &mut Fast<Port> {
        &mut self.transport
    }

    fn is_due(&mut self, _: usize, _: Instant) -> bool {
        // A worker does not poll a socket at each turn while another transport is active.
        !self.rng.chance(20_000)
    }

    fn received(&mut self, _: usize, _: Instant) {}

    fn candidates(&self, locators: &str) -> Result<Vec<String>, String> {
        Ok(locators.split(';').map(str::to_owned).collect())
    }

    fn connect(&mut self, now: Instant, candidate: &str) -> Result<Opened, String> {
        let text = candidate.strip_prefix("sim:host=").unwrap_or_default();
        let (host, is) = text.split_once(",is=").unwrap_or((text, ""));
        let port = self.transport.driver();
        let addr = match (host.parse().ok(), is) {
            (Some(host), "") => port.resolve(host).ok_or("the host is down")?,
            (Some(_), "silent") => port.nowhere(),
            (Some(_), _) => return Err("refused".to_owned()),
            (None, _) => return Err("no locator".to_owned()),
        };
        Ok((0, self.transport.open(now, addr)))
    }

    fn has_ended(&mut self, candidate: &str) -> bool {
        let host = candidate.strip_prefix("sim:host=").and_then(|text| text.parse().ok());
        host.is_some_and(|host| self.transport.driver().resolve(host).is_none())
    }

    fn persist(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>) -> bool {
        match &mut self.etcd {
            Some(etcd) => etcd.persist(self.turns, seq, puts, deletes),
            None => self.writes.push(Write { seq, puts, deletes }),
        }
        false
    }

    fn written(&mut self) -> Option<Written> {
        if let Some(etcd) = &mut self.etcd {
            let written = etcd.event()?;
            self.turns += u64::from(is_turn(&written));
            return Some(written);
        }
        Some(match self.written.pop_front()? {
            Outcome::Safe(seq) => Written::Durable(seq),
            Outcome::Refused(contents) => Written::Refused {
                reason: "the disk is full".to_owned(),
                durable: contents.into_iter().collect(),
            },
            Outcome::Failed => Written::Failed("the disk has failed".to_owned()),
        })
    }

    fn counters(&self, _: &mut dyn FnMut(&str, &'static str, u64)) {}
}
