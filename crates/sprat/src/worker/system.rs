//! The host of a worker's node: the transports of this machine and a disk.

use std::io;

use sprat_proto::Instant;
use sprat_proto::node::{Host, Opened, Pairs, Written};
use sprat_proto::time::SECOND;

use crate::disk::Disk;
use crate::locator::Locator;
use crate::transport::any::AnyTransport;
use crate::transports::Transports;
use sprat_sys::clock::Clock;

use super::stalls::Turns;

/// The transports of a worker and its disk. Without a disk, what the machine persists counts as
/// durable.
#[derive(Debug)]
pub(crate) struct System {
    pub(crate) transports: Transports,
    pub(crate) disk: Option<Box<dyn Disk>>,
    /// The turns of the worker's loop that took long.
    pub(crate) turns: Turns,
    /// The clock, and the start of the worker.
    pub(crate) started: (Clock, Instant),
}

impl Host for System {
    type Transport = AnyTransport;
    type Error = io::Error;

    #[inline(always)]
    fn transports(&self) -> usize {
        self.transports.len()
    }

    #[inline(always)]
    fn transport(&mut self, index: usize) -> &mut AnyTransport {
        self.transports.at(index)
    }

    #[inline(always)]
    fn is_due(&mut self, index: usize, now: Instant) -> bool {
        self.transports.is_due(index, now)
    }

    #[inline(always)]
    fn received(&mut self, index: usize, now: Instant) {
        self.transports.received(index, now);
    }

    fn candidates(&self, locators: &str) -> io::Result<Vec<String>> {
        Ok(Locator::list(locators)?.iter().map(ToString::to_string).collect())
    }

    fn connect(&mut self, now: Instant, candidate: &str) -> io::Result<Opened> {
        self.transports.connect(now, &candidate.parse()?)
    }

    fn has_ended(&mut self, candidate: &str) -> bool {
        candidate.parse().is_ok_and(|locator| crate::open::has_ended(&locator))
    }

    fn persist(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>) -> bool {
        match &mut self.disk {
            Some(disk) => disk.persist(seq, puts, deletes),
            None => return true,
        }
        false
    }

    fn written(&mut self) -> Option<Written> {
        self.disk.as_mut()?.completed()
    }

    fn counters(&self, each: &mut dyn FnMut(&str, &'static str, u64)) {
        let (clock, start) = &self.started;
        each("", "uptime_seconds", clock.now().since(*start) / SECOND);
        self.turns.counters(&mut |name, value| each("", name, value));
        self.transports.counters(each);
    }
}
