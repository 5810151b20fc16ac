//! The context of an IP stack: the state that all its layers share. Each call hands it down.

use alloc::collections::VecDeque;

use super::counters::StackCounters;
use super::event::StackEvent;
use super::options::StackOptions;
use crate::device::Info;
use crate::{Instant, Rng};

/// The most events of an IP stack that wait for the caller.
const MAX_EVENTS: usize = 64;

/// The state that all layers of an IP stack share: options, device properties, time, randomness,
/// counters and events.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) options: StackOptions,
    pub(super) info: Info,
    /// The latest time that the caller passed to the IP stack.
    pub(super) now: Instant,
    pub(super) rng: Rng,
    pub(super) counters: StackCounters,
    events: VecDeque<StackEvent>,
}

impl Context {
    pub(super) fn new(options: StackOptions, info: Info, rng: Rng) -> Self {
        let (now, counters) = (Instant::ZERO, StackCounters::default());
        Self { options, info, now, rng, counters, events: VecDeque::new() }
    }

    /// Queues an event of the IP stack for the caller, or drops it if too many wait.
    pub(super) fn report(&mut self, event: StackEvent) {
        if self.events.len() == MAX_EVENTS {
            self.counters.drop_event += 1;
            return;
        }
        self.events.push_back(event);
    }

    /// Takes the oldest event of the IP stack.
    pub(super) fn event(&mut self) -> Option<StackEvent> {
        self.events.pop_front()
    }
}
