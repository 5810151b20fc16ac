//! The memory of a host's connections: chunks of a few connections each.
//!
//! Always: a connection begins a cache line and stays where it is. A chunk has memory while one of
//! its connections lives.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::Instant;
use crate::net::ip::fields::IpFields;
use crate::net::tcp::connection::{Connection, TcpState};
use crate::net::tcp::flow::Ends;
use crate::net::tcp::id::{TcpChanges, TcpId};
use crate::net::tcp::listeners::Claim;

/// The number of connections of a chunk: 9 KB.
const CHUNK: usize = 16;

/// A connection and what the host has of it. It begins a cache line: `Entry::fetch` reads each.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Entry {
    pub(super) generation: u32,
    pub(super) ends: Ends,
    pub(super) connection: Connection,
    pub(super) changes: TcpChanges,
    /// The fields of IP headers that the program has chosen.
    pub(super) fields: IpFields,
    /// The time under which the connection is in the timers, not after its deadline, or never.
    pub(super) timer: Instant,
    pub(super) is_dirty: bool,
    pub(super) is_ready: bool,
    /// True if a write of the program had not enough room, and no event has told of more since.
    pub(super) wants_room: bool,
    /// True once the program needs the connection no more.
    pub(super) is_released: bool,
    /// True if the end of the connection was reported.
    pub(super) is_reported: bool,
    /// The place among those that a listener counts, until the program knows the connection.
    pub(super) claim: Option<Claim>,
}

impl Entry {
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.connection.state(), TcpState::Closed | TcpState::TimeWait)
    }

    /// Returns true if the program was not told of the connection.
    pub(super) fn is_unknown(&self) -> bool {
        self.claim.is_some_and(Claim::is_half_open)
    }

    /// Puts the connection into the queue of those that may have something to send.
    #[inline]
    pub(super) fn touch(&mut self, index: u32, dirty: &mut VecDeque<u32>) {
        if !self.is_dirty {
            self.is_dirty = true;
            dirty.push_back(index);
        }
    }

    /// Puts a connection at which something has changed into the queue of events. One that lends
    /// data comes later, so that the program reads no byte before those that are lent.
    #[inline]
    pub(super) fn report(&mut self, index: u32, ready: &mut VecDeque<u32>) {
        if self.connection.receive.lent() > 0 || self.is_unknown() {
            return;
        }
        let has_ended = self.has_ended();
        self.changes.ended |= has_ended && !core::mem::replace(&mut self.is_reported, has_ended);
        if self.changes != TcpChanges::default() && !self.is_ready {
            self.is_ready = true;
            ready.push_back(index);
        }
    }

    /// Sets the timer of the connection. One that expires before the connection's deadline stays as
    /// it is, and is set when it expires: so most segments of a busy connection leave the timers
    /// alone. `is_exact` moves the timer of an idle connection, too.
    #[inline]
    pub(super) fn set_timer(
        &mut self,
        index: u32,
        is_exact: bool,
        timers: &mut BTreeSet<(Instant, u32)>,
    ) {
        let deadline = self.connection.deadline().unwrap_or(Instant::NEVER);
        let is_idle = deadline == Instant::NEVER;
        if deadline == self.timer || deadline > self.timer && !(is_exact && is_idle) {
            return;
        }
        if self.timer < Instant::NEVER {
            timers.remove(&(self.timer, index));
        }
        if !is_idle {
            timers.insert((deadline, index));
        }
        self.timer = deadline;
    }
}

/// The connections of a host by their indexes.
#[derive(Debug, Default)]
pub(super) struct Entries {
    chunks: Vec<Chunk>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Chunk {
    entries: Option<Box<[Option<Entry>; CHUNK]>>,
    live: usize,
}

impl Entries {
    pub(super) fn get(&self, index: u32) -> Option<&Entry> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.entries.as_ref()?[at].as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Entry> {
        let (chunk, at) = place(index);
        self.chunks.get_mut(chunk)?.entries.as_mut()?[at].as_mut()
    }

    /// Returns the entry of a connection, unless the index has another connection now.
    pub(super) fn of(&self, id: TcpId) -> Option<&Entry> {
        self.get(id.index).filter(|entry| entry.generation == id.generation)
    }

    pub(super) fn of_mut(&mut self, id: TcpId) -> Option<&mut Entry> {
        self.get_mut(id.index).filter(|entry| entry.generation == id.generation)
    }

    /// Adds a connection. Returns its index.
    pub(super) fn insert(&mut self, entry: Entry) -> u32 {
        if self.free.is_empty() {
            let first = self.chunks.len() * CHUNK;
            self.free.extend((first..first + CHUNK).rev().map(|index| index as u32));
            self.chunks.push(Chunk::default());
        }
        let index = self.free.pop().unwrap_or_default();
        let (chunk, at) = place(index);
        let chunk = &mut self.chunks[chunk];
        let entries = chunk.entries.get_or_insert_with(|| Box::new([const { None }; CHUNK]));
        entries[at] = Some(entry);
        chunk.live += 1;
        index
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Entry> {
        let (chunk, at) = place(index);
        let chunk = self.chunks.get_mut(chunk)?;
        let entry = chunk.entries.as_mut()?[at].take()?;
        chunk.live -= 1;
        if chunk.live == 0 {
            chunk.entries = None;
        }
        self.free.push(index);
        Some(entry)
    }

    /// Returns the connections with their indexes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let chunks = self.chunks.iter().zip(0u32..);
        chunks.flat_map(|(chunk, n)| {
            let entries = chunk.entries.iter().flat_map(|entries| entries.iter());
            let indexed = entries.zip(n * CHUNK as u32..);
            indexed.filter_map(|(entry, index)| Some((index, entry.as_ref()?)))
        })
    }

    /// Returns the size of the memory in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let chunks = self.chunks.iter().filter(|chunk| chunk.entries.is_some()).count();
        chunks * size_of::<[Option<Entry>; CHUNK]>()
            + self.chunks.capacity() * size_of::<Chunk>()
            + self.free.capacity() * size_of::<u32>()
    }
}

const fn place(index: u32) -> (usize, usize) {
    (index as usize / CHUNK, index as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use crate::net::tcp::tests::hosts::{Hosts, PORT, Sender, address};
    use crate::net::tcp::{TcpConfig, TcpId};
    use crate::{Instant, Rng};

    /// Connections come and go at random. Each is found under its name, and no other under a name
    /// that has ended. Chunks without connections have no memory.
    #[test]
    fn connections_are_found_until_they_end() {
        let mut hosts = Hosts::new(&TcpConfig::default(), 0, 1000, 10);
        let host = &mut hosts.hosts[0];
        let (now, mut rng) = (Instant::from_ns(1), Rng::seeded(1));
        let (mut live, mut ended) = (BTreeMap::<TcpId, _>::new(), Vec::new());
        for step in 0..2000u64 {
            let grows = step / 250 % 2 == 0;
            if rng.below(10) < if grows { 8 } else { 2 } {
                let id = host.connect(now, (address(0), 0).into(), (address(1), PORT).into());
                let id = id.unwrap();
                live.insert(id, host.flow(id));
            } else if let Some(&id) = live.keys().nth(rng.below(live.len().max(1) as u64) as usize)
            {
                live.remove(&id);
                host.abort(id);
                host.output(now, &mut Sender(&mut Vec::new()));
                ended.push(id);
            }
            assert_eq!(host.entries.iter().count(), live.len());
            assert!(live.iter().all(|(&id, flow)| host.flow(id) == *flow));
            assert!(ended.iter().all(|&id| host.flow(id).is_none()));
        }
        live.into_keys().for_each(|id| host.abort(id));
        host.output(now, &mut Sender(&mut Vec::new()));
        assert!(host.entries.chunks.iter().all(|chunk| chunk.entries.is_none()));
    }
}
