//! The memory that the processes of one simulated machine share: rings for posted writes.
//!
//! A process that crashes leaves its rings open, as `kill -9` does. Its peers go on to post into
//! them, until a message fails. If its frames survive, its next life finds what they have posted.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sprat_proto::Instant;
use sprat_store::backup::{Inbox, Outbox, Posted, Rings};

use crate::process::{Outside, Process};
use crate::wire::HostId;

/// The memory of one simulated machine.
#[derive(Clone, Debug, Default)]
pub struct SharedMemory(Arc<Mutex<BTreeMap<u64, Ring>>>);

#[derive(Debug)]
struct Ring {
    writes: VecDeque<Vec<u8>>,
    /// The most writes that the ring holds.
    room: usize,
    closed: bool,
    /// The host whose later lives find the ring.
    left_to: Option<HostId>,
}

/// True until the process that has it crashes.
type Alive = Arc<AtomicBool>;

impl SharedMemory {
    fn rings(&self) -> MutexGuard<'_, BTreeMap<u64, Ring>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rings of a process of `host`, which hold `room` writes each, and what ends
    /// their use when the process crashes. If `keeps`, the next process of the host finds them.
    #[must_use]
    pub fn process(&self, host: HostId, keeps: bool, room: usize) -> (Box<dyn Rings>, Crash) {
        let alive = Alive::new(AtomicBool::new(true));
        let crash = Crash(Arc::clone(&alive));
        let rings = self.rings();
        let left = rings.iter().filter(|(_, ring)| ring.left_to == Some(host));
        let left = left.map(|(id, _)| *id).collect();
        drop(rings);
        let memory = self.clone();
        let left_to = keeps.then_some(host);
        (Box::new(HostRings { memory, left_to, room, left, alive }), crash)
    }
}

/// Ends the use of a process's rings when it is dropped.
#[derive(Debug)]
pub struct Crash(Alive);

impl Drop for Crash {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A process that shares memory with others until it crashes.
#[derive(Debug)]
pub struct Sharing<P> {
    // In this order: a crash takes nothing from the rings.
    _crash: Crash,
    process: P,
}

impl<P> Sharing<P> {
    /// Makes a process whose rings end with `crash`.
    pub fn new(process: P, crash: Crash) -> Self {
        Self { _crash: crash, process }
    }
}

impl<S, P: Process<S>> Process<S> for Sharing<P> {
    fn turn(&mut self, outside: &mut Outside<'_, S>) -> bool {
        self.process.turn(outside)
    }

    fn deadline(&self) -> Option<Instant> {
        self.process.deadline()
    }

    fn state(&mut self) -> &mut dyn Any {
        self.process.state()
    }
}

/// The rings of one process.
#[derive(Debug)]
struct HostRings {
    memory: SharedMemory,
    left_to: Option<HostId>,
    room: usize,
    left: Vec<u64>,
    alive: Alive,
}

impl HostRings {
    fn inbox(&self, id: u64) -> Box<dyn Inbox> {
        Box::new(RingIn { memory: self.memory.clone(), id, alive: Arc::clone(&self.alive) })
    }
}

impl Rings for HostRings {
    fn offer(&mut self) -> Option<(String, Box<dyn Inbox>)> {
        let mut rings = self.memory.rings();
        let id = rings.last_key_value().map_or(1, |(last, _)| last + 1);
        let (writes, closed) = (VecDeque::new(), false);
        rings.insert(id, Ring { writes, room: self.room, closed, left_to: self.left_to });
        drop(rings);
        Some((id.to_string(), self.inbox(id)))
    }

    fn accept(&mut self, offer: &str) -> Option<Box<dyn Outbox>> {
        Some(Box::new(RingOut { memory: self.memory.clone(), id: offer.parse().ok()? }))
    }

    fn left(&mut self) -> Option<Box<dyn Inbox>> {
        let id = self.left.pop()?;
        Some(self.inbox(id))
    }
}

#[derive(Debug)]
struct RingIn {
    memory: SharedMemory,
    id: u64,
    alive: Alive,
}

impl Inbox for RingIn {
    fn take(&mut self, into: &mut Vec<u8>) -> bool {
        if !self.alive.load(Ordering::Relaxed) {
            return false;
        }
        let write = self.memory.rings().get_mut(&self.id).and_then(|ring| ring.writes.pop_front());
        write.map(|write| *into = write).is_some()
    }

    fn close(&mut self) {
        if self.alive.load(Ordering::Relaxed)
            && let Some(ring) = self.memory.rings().get_mut(&self.id)
        {
            (ring.closed, ring.left_to) = (true, None);
        }
    }
}

#[derive(Debug)]
struct RingOut {
    memory: SharedMemory,
    id: u64,
}

impl Outbox for RingOut {
    fn post(&mut self, parts: [&[u8]; 2]) -> Posted {
        match self.memory.rings().get_mut(&self.id) {
            Some(ring) if !ring.closed => {
                if ring.writes.len() >= ring.room {
                    return Posted::Full;
                }
                ring.writes.push_back(parts.concat());
                Posted::Done
            }
            _ => Posted::Closed,
        }
    }
}
