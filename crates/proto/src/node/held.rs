//! Calls that wait until a race has chosen the locator of their server.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::machine::Link;
use crate::Instant;
use crate::rpc::{Message, RpcId};

/// The most calls that wait for a race. They are the program's own, in its own memory: any limit
/// will do.
const MOST: usize = 1 << 20;

/// A call that waits until a race has chosen its server's locator.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) id: RpcId,
    pub(crate) link: Link,
    pub(crate) tag: u64,
    pub(crate) message: Message,
    pub(crate) deadline: Instant,
}

/// The calls that wait for a race, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    calls: VecDeque<Held>,
    ids: u64,
}

impl Calls {
    /// True if no call waits for a race.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns true if no more calls may wait.
    pub(crate) fn is_full(&self) -> bool {
        self.calls.len() >= MOST
    }

    /// Keeps a call until the race of its server is over. Returns its number.
    pub(crate) fn push(
        &mut self,
        link: Link,
        tag: u64,
        message: Message,
        deadline: Instant,
    ) -> RpcId {
        self.ids += 1;
        let id = RpcId(self.ids);
        self.calls.push_back(Held { id, link, tag, message, deadline });
        id
    }

    /// Removes and returns the waiting calls for which `wanted` is true, in order.
    pub(crate) fn take(&mut self, wanted: impl Fn(&Held) -> bool) -> Vec<Held> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let (taken, left): (Vec<_>, Vec<_>) = self.calls.drain(..).partition(wanted);
        self.calls = left.into();
        taken
    }

    /// The earliest deadline of a call that waits for a race.
    pub(crate) fn deadline(&self) -> Instant {
        self.calls.iter().map(|call| call.deadline).min().unwrap_or(Instant::NEVER)
    }
}
