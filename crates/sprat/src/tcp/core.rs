//! The state that the threads of a TCP stack share behind its lock: the interface, the queues of
//! its listeners, and the threads that wait.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Condvar};

use sprat_proto::Instant;
use sprat_proto::net::tcp::{TcpId, TcpState};

use super::native::Interface;

/// An event that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// A change at a connection.
    Connection(TcpId),
    /// A connection at a listener's port.
    Listener(u16),
    /// An address of the stack in use.
    Address,
}

/// The thread that makes progress: it takes turns, and sleeps on the device between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Maker {
    /// No thread makes progress. The progress thread will within a millisecond.
    Nobody,
    /// A thread that calls takes turns.
    Polling,
    /// A thread that calls sleeps on the device, and waits for `key`.
    Sleeping(Key, Sleep),
    /// The progress thread sleeps on the device.
    Thread(Sleep),
}

/// A sleep on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sleep {
    pub(super) until: Instant,
    /// True if its end was asked for.
    pub(super) is_woken: bool,
}

/// The threads that wait for one key without making progress.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    pub(super) condvar: Arc<Condvar>,
    pub(super) sleepers: u32,
}

/// A listener: connections that wait for the program to accept them.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) accepted: VecDeque<TcpId>,
    pub(super) backlog: usize,
    pub(super) waiters: Waiters,
}

/// The state of a stack behind its lock.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) interface: Interface,
    /// The waiters of the connections that the program has, by the connections' index.
    connections: Vec<Option<(TcpId, Waiters)>>,
    pub(super) listeners: BTreeMap<u16, Queue>,
    pub(super) address: Waiters,
    pub(super) maker: Maker,
    /// The turns of calling threads.
    pub(super) turns: u64,
    /// The calling threads that wait without making progress.
    pub(super) sleepers: u32,
    /// True while the progress thread waits until a calling thread makes no more progress.
    pub(super) thread_follows: bool,
    /// True once the last handle is gone.
    pub(super) is_closing: bool,
    /// A copy of the device's descriptor, to sleep on without the lock.
    device: Arc<OwnedFd>,
    device_number: i32,
}

impl Core {
    pub(super) fn new(interface: Interface) -> io::Result<Self> {
        let fd = interface.descriptor();
        let (device, device_number) = (Arc::new(fd.try_clone_to_owned()?), fd.as_raw_fd());
        Ok(Self {
            interface,
            connections: Vec::new(),
            listeners: BTreeMap::new(),
            address: Waiters::default(),
            maker: Maker::Nobody,
            turns: 0,
            sleepers: 0,
            thread_follows: false,
            is_closing: false,
            device,
            device_number,
        })
    }

    /// Returns a copy of the device's present descriptor.
    pub(super) fn device(&mut self) -> io::Result<Arc<OwnedFd>> {
        let fd = self.interface.descriptor();
        if fd.as_raw_fd() != self.device_number {
            self.device_number = fd.as_raw_fd();
            self.device = Arc::new(fd.try_clone_to_owned()?);
        }
        Ok(Arc::clone(&self.device))
    }

    /// Takes a turn: receives a burst of frames, wakes the threads that wait for what it brings,
    /// and sends. Returns true if there was something to do. It ends the notification of the
    /// device, so that a thread that sleeps there has to wake.
    pub(super) fn turn(&mut self) -> bool {
        let worked = self.interface.input();
        while let Some((id, changes)) = self.interface.event() {
            if !self.wake(Key::Connection(id)) {
                if changes.opened {
                    self.opened(id);
                } else if !self.is_queued(id) {
                    self.interface.host().abort(id);
                }
            }
        }
        if self.address.sleepers > 0 {
            self.wake(Key::Address);
        }
        self.interface.output();
        worked
    }

    /// Puts a connection that a peer has opened into the queue of its listener.
    fn opened(&mut self, id: TcpId) {
        let host = self.interface.host();
        let port = host.flow(id).map(|flow| flow.local.port());
        let queue = port.and_then(|port| Some((port, self.listeners.get_mut(&port)?)));
        let Some((port, queue)) = queue else { return host.abort(id) };
        queue.accepted.push_back(id);
        if queue.accepted.len() >= queue.backlog {
            host.pause(port, true);
        }
        self.wake(Key::Listener(port));
    }

    fn is_queued(&self, id: TcpId) -> bool {
        self.listeners.values().any(|queue| queue.accepted.contains(&id))
    }

    /// Takes the next connection of a listener.
    pub(super) fn accept(&mut self, port: u16) -> Option<TcpId> {
        let queue = self.listeners.get_mut(&port)?;
        let id = queue.accepted.pop_front()?;
        if queue.accepted.len() < queue.backlog {
            self.interface.host().pause(port, false);
        }
        self.add(id);
        Some(id)
    }

    /// Adds a connection that the program has from now on.
    pub(super) fn add(&mut self, id: TcpId) {
        let index = id.index();
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some((id, Waiters::default()));
    }

    /// Removes a connection that the program has no more.
    pub(super) fn remove(&mut self, id: TcpId) {
        if let Some(entry) = self.connections.get_mut(id.index()) {
            entry.take_if(|(other, _)| *other == id);
        }
    }

    /// Returns the threads that wait for `key`, if the program has it.
    pub(super) fn waiters(&mut self, key: Key) -> Option<&mut Waiters> {
        match key {
            Key::Connection(id) => {
                let entry = self.connections.get_mut(id.index())?.as_mut();
                entry.filter(|(other, _)| *other == id).map(|(_, waiters)| waiters)
            }
            Key::Listener(port) => self.listeners.get_mut(&port).map(|queue| &mut queue.waiters),
            Key::Address => Some(&mut self.address),
        }
    }

    /// Wakes the threads that wait for `key`. Returns false if the program does not have it.
    pub(super) fn wake(&mut self, key: Key) -> bool {
        let Some(waiters) = self.waiters(key) else { return false };
        if waiters.sleepers > 0 {
            waiters.condvar.notify_all();
        }
        true
    }

    /// True if a thread sleeps on the device and has to wake: for what it waits for, for an earlier
    /// timer, or since another turn has ended the notification. It is true once a sleep.
    pub(super) fn take_wake(&mut self) -> bool {
        let due = self.interface.deadline();
        let is_armed = self.interface.is_armed();
        match &mut self.maker {
            Maker::Sleeping(_, sleep) | Maker::Thread(sleep)
                if !sleep.is_woken && (!is_armed || due < sleep.until) =>
            {
                sleep.is_woken = true;
                true
            }
            _ => false,
        }
    }

    /// True if a peer still has to acknowledge something of a connection.
    pub(super) fn lingers(&mut self) -> bool {
        use TcpState::{Closed, FinWait2, SynReceived, SynSent, TimeWait};
        self.interface
            .host()
            .states()
            .any(|state| !matches!(state, Closed | FinWait2 | SynReceived | SynSent | TimeWait))
    }
}
