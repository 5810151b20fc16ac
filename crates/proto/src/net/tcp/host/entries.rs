//! The memory of a host's connections: chunks of a few connections each.
//!
//! Always: a connection begins a cache line and stays where it is. A chunk has memory while one of
//! its connections lives.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Entry, TcpId};

/// The number of connections of a chunk: 9 KB.
const CHUNK: usize = 16;

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
