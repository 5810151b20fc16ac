//! Events that programs wait for, kept until a program takes them: states of connections, requests,
//! completion queues that have completions, and asynchronous errors.
//!
//! Always holds: every list has a limit; what a program does not take costs that program alone.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use sprat_proto::rdma::{Cq, Event, Qp, Srq};

use super::cm::{self, CmIds};
use super::event_queue::EventQueue;
use super::state::ConnectionState;

/// The most asynchronous events that wait in one queue. In the queue for objects without a channel,
/// a new event beyond the limit drops the oldest one.
const MAX_ASYNC_EVENTS: usize = 4096;

/// An object that an asynchronous event can belong to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum EventSource {
    /// The event belongs to a completion queue.
    Cq(Cq),
    /// The event belongs to a queue pair.
    Qp(Qp),
    /// The event belongs to a shared receive queue.
    Srq(Srq),
}

impl EventSource {
    /// The object that an asynchronous event belongs to.
    pub(crate) const fn of(event: &Event) -> Option<Self> {
        match event {
            Event::CqOverflow(cq) => Some(Self::Cq(*cq)),
            Event::QpFailed { qp, .. } | Event::LastWqe(qp) => Some(Self::Qp(*qp)),
            Event::SrqLimit(srq) => Some(Self::Srq(*srq)),
            _ => None,
        }
    }
}

/// The events that the programs of one device wait for.
#[derive(Debug, Default)]
pub struct Events {
    pub connections: BTreeMap<Qp, ConnectionState>,
    /// The address of the last peer of each queue pair. It is kept only if the device logs
    /// failures.
    pub(super) peers: BTreeMap<Qp, SocketAddr>,
    /// The queue pairs whose connection has changed its state, in order, if a program wants them.
    pub changed: Option<VecDeque<Qp>>,
    /// The ids of rdma_cm. Each gets the events of its own connections.
    pub(crate) cm: CmIds,
    /// The channel of each completion queue that notifies one.
    pub(crate) channel_of: BTreeMap<Cq, u32>,
    /// The completion queues with completions, by the channel that they notify.
    pub(crate) channels: BTreeMap<u32, EventQueue<Cq>>,
    /// The asynchronous events of objects without a channel: overflows, limits, failures.
    pub async_events: VecDeque<Event>,
    /// The asynchronous event queues of the channels, by number.
    pub(crate) async_queues: BTreeMap<u32, EventQueue<Event>>,
    /// The number of the asynchronous event queue of each object that has one.
    pub(crate) owners: BTreeMap<EventSource, u32>,
}

impl Events {
    /// Takes an event of the engine about an object. The core handles the events of streams and
    /// requests.
    pub(super) fn put(&mut self, event: Event) {
        match event {
            Event::Established { qp, private_data, ird, ord, .. } => {
                self.set_state(qp, ConnectionState::Connected { private_data, ird, ord });
            }
            Event::Rejected { qp, private_data, ird, ord, .. } => {
                self.set_state(qp, ConnectionState::Rejected { private_data, ird, ord });
            }
            Event::Failed { qp: Some(qp), why, .. } => {
                self.set_state(qp, ConnectionState::Failed(why))
            }
            Event::Disconnected { qp } => {
                if !matches!(self.connections.get(&qp), Some(ConnectionState::Disconnected(_))) {
                    self.set_state(qp, ConnectionState::Disconnected(None));
                }
            }
            Event::CqReady(cq) => self.notify_channel(cq),
            other => {
                if let Event::QpFailed { qp, cause, ours } = other {
                    self.set_state(qp, ConnectionState::Disconnected(Some((cause, ours))));
                }
                self.put_async(other);
            }
        }
    }

    /// Sets the state of a queue pair's connection; does nothing if the pair is destroyed.
    pub(super) fn set_state(&mut self, qp: Qp, state: ConnectionState) {
        if let Some(slot) = self.connections.get_mut(&qp) {
            self.cm.connection_changed(qp, &state);
            *slot = state;
            if let Some(changed) = &mut self.changed {
                changed.push_back(qp);
            }
        }
    }

    /// Forgets a destroyed queue pair and ends its connection, if it has one.
    pub(crate) fn pair_destroyed(&mut self, qp: Qp) {
        self.pair_reset(qp);
        self.connections.remove(&qp);
        self.peers.remove(&qp);
        self.cm.clear_pair(qp);
        self.forget(EventSource::Qp(qp));
    }

    /// Forgets the connection of a queue pair that was reset.
    pub(crate) fn pair_reset(&mut self, qp: Qp) {
        if let Some(link) = self.connections.get_mut(&qp)
            && let Some(last) = cm::state_without_pair(&std::mem::take(link))
        {
            self.cm.connection_changed(qp, &last);
        }
    }

    /// Notifies the channel of an armed completion queue that the queue has completions.
    pub(crate) fn notify_channel(&mut self, cq: Cq) {
        if let Some(channel) = self.channel_of.get(&cq).and_then(|id| self.channels.get_mut(id)) {
            channel.put(cq);
        }
    }

    fn put_async(&mut self, event: Event) {
        let own = EventSource::of(&event).and_then(|object| self.owners.get(&object));
        if let Some(own) = own.and_then(|number| self.async_queues.get_mut(number)) {
            if own.len() < MAX_ASYNC_EVENTS {
                own.put(event);
            }
            return;
        }
        if self.async_events.len() == MAX_ASYNC_EVENTS {
            self.async_events.pop_front();
        }
        self.async_events.push_back(event);
    }

    /// A number that is not in use as a key of this map.
    pub(crate) fn free_number<T>(of: &BTreeMap<u32, T>) -> u32 {
        of.last_key_value().map_or(0, |(n, _)| n + 1)
    }

    /// Puts the asynchronous events of `object` into the queue with this number from now on.
    pub(crate) fn set_owner(&mut self, object: EventSource, number: u32) {
        self.owners.insert(object, number);
    }

    /// Forgets a destroyed object, and drops the events that wait for it.
    pub(crate) fn forget(&mut self, object: EventSource) {
        if let Some(own) =
            self.owners.remove(&object).and_then(|number| self.async_queues.get_mut(&number))
        {
            own.retain(|event| EventSource::of(event) != Some(object));
        }
        if let EventSource::Cq(cq) = object
            && let Some(channel) =
                self.channel_of.remove(&cq).and_then(|number| self.channels.get_mut(&number))
        {
            channel.retain(|ready| *ready != cq);
        }
    }
}
