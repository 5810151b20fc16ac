//! A simulated process, and its environment in a turn and at its start.

use std::any::Any;

use sprat_proto::{Addr, Instant, Rng};
use sprat_store::etcd::Request;

use crate::disk::{self, Outcome, Write};
use crate::etcd;
use crate::wire::{HostId, Port};

/// A process of a simulated host. `S` is the score: the data of the test, outside of all processes.
pub trait Process<S> {
    /// Runs one turn of the process: it takes what has arrived, handles it and sends. Returns true
    /// if it wants another turn although nothing arrives.
    fn turn(&mut self, outside: &mut Outside<'_, S>) -> bool;

    /// Returns the time, by the process's own clock, at which it needs a turn even if nothing
    /// arrives.
    fn deadline(&self) -> Option<Instant>;

    /// Returns the state of the process for the test: the machine of a node, else the process.
    fn state(&mut self) -> &mut dyn Any;
}

/// The environment of a simulated process in one turn.
#[derive(Debug)]
pub struct Outside<'w, S> {
    /// The present time by the clock of the process's host.
    pub now: Instant,
    /// The true time, for the test: no process knows it.
    pub truth: Instant,
    /// The driver of the process's host.
    pub port: Port,
    /// The outcomes of the process's writes that ended since the last turn.
    pub completed: Vec<Outcome>,
    /// The writes to disk that the process begins in this turn.
    pub writes: Vec<Write>,
    /// The results of the process's requests to etcd that arrived since the last turn.
    pub answers: Vec<(u64, etcd::Outcome)>,
    /// The requests to etcd that the process sends in this turn, with its own numbers.
    pub requests: Vec<(u64, Request)>,
    /// The reason why the process ends after this turn, if it does. The world starts it anew after
    /// a while.
    pub stop: Option<String>,
    /// The score: the data of the test, outside of all processes.
    pub score: &'w mut S,
}

/// The environment of a simulated process when it starts.
#[derive(Debug)]
pub struct Start<'w> {
    /// The number of the host at which the process starts.
    pub host: HostId,
    /// The number of the process among those that have lived at this host, from 1.
    pub life: u64,
    /// The network address of the process that starts.
    pub addr: Addr,
    /// The time at which the process starts, by its host's clock.
    pub now: Instant,
    /// The true time at which the process starts, for its wall clock.
    pub truth: Instant,
    /// The driver of the process's host, for a process that keeps one.
    pub port: Port,
    /// The random number generator of the process.
    pub rng: Rng,
    /// The contents of the process's disk.
    pub disk: &'w disk::Contents,
}

/// A function that makes the process of a host, at each start.
pub type Make<S> = Box<dyn FnMut(Start<'_>) -> Box<dyn Process<S>>>;
