//! The copying of a survivor's entries by a thread of the host.
//!
//! ```text
//!  cleaner ── Job: shared sources, memory of a survivor ──► helper: copies plain objects
//!  cleaner ◄── what was copied where, what was left ─────── helper
//! ```
//!
//! Most of the time of cleaning goes into reading old segments and writing new ones, which nothing
//! else in memory depends on. A helper does that. The table, the records and everything that
//! changes stay with the cleaner.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::ops::Range;

use crate::objects::entry::{self, HEADER, Head};
use crate::objects::log::narrow;
use crate::objects::segment::SegmentId;
use crate::objects::table::spread;
use crate::objects::tablet::Hashers;
use crate::types::WallTime;

/// A thread of the host that helps the cleaner of one log.
pub trait Copier: Debug + Send {
    /// Lets the thread run [`Job::run`]. It has no other job.
    ///
    /// # Errors
    /// The job, if there is no thread.
    fn start(&mut self, job: Box<Job>) -> Result<(), Box<Job>>;

    /// Returns the job if it is done. The thread has nothing of it any more.
    fn done(&mut self) -> Option<Box<Job>>;
}

/// The entries to copy to one survivor, and what became of them.
#[derive(Debug)]
pub struct Job {
    pub(super) sources: Vec<Source>,
    /// The memory of the survivor.
    pub(super) target: Vec<u8>,
    /// The end of the copies in the survivor.
    pub(super) written: usize,
    /// The length of the longest copy.
    pub(super) longest: usize,
    /// The earliest time at which a copied object expires.
    pub(super) expires: WallTime,
    pub(super) present: Vec<SegmentId>,
    pub(super) hashers: Hashers,
}

/// A segment whose entries are copied.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) slot: u32,
    pub(super) id: SegmentId,
    pub(super) bytes: Arc<Vec<u8>>,
    /// The offsets of the first entry to copy and the next one, and the end of the last.
    pub(super) from: usize,
    pub(super) next: usize,
    pub(super) end: usize,
    /// The number of bytes that were copied.
    pub(super) copied: usize,
    pub(super) finds: Vec<Find>,
}

/// An entry of a source that is probably live.
#[derive(Clone, Copy, Debug)]
pub(super) struct Find {
    /// The hash of the object for the hash table.
    pub(super) hash: u64,
    pub(super) offset: u32,
    /// The length of the copy. It is 0 if the entry is left to the cleaner.
    pub(super) len: u32,
}

impl Source {
    /// Returns the entries in `range` of a segment, of which none is copied.
    pub(super) fn new(
        (slot, id): (u32, SegmentId),
        bytes: Arc<Vec<u8>>,
        range: Range<usize>,
    ) -> Self {
        let Range { start, end } = range;
        Self { slot, id, bytes, from: start, next: start, end, copied: 0, finds: Vec::new() }
    }
}

impl Default for Job {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new(), Hashers::default())
    }
}

impl Job {
    /// Copies live objects of the sources to the survivor until it is full. Takes some ten
    /// milliseconds.
    pub fn run(&mut self) {
        for index in 0..self.sources.len() {
            if !self.copy_source(index) {
                break;
            }
        }
    }

    /// Copies a source. Returns false if the survivor is full.
    fn copy_source(&mut self, index: usize) -> bool {
        let Self { sources, target, written, longest, expires, present, hashers } = self;
        let source = &mut sources[index];
        while source.next < source.end
            && let Some(entry) = source.bytes.get(source.next..source.end)
            && let Some(head) = Head::of(entry)
        {
            let offset = source.next as u32;
            if head.is_all_dead() {
                source.next += head.entry_len();
                continue;
            }
            let mut find = Find { hash: 0, offset, len: 0 };
            if head.is_object() && !head.has_live_record() {
                let object = entry::object(entry);
                if let Some(hash) = hashers.hash(object.table, object.key) {
                    let len = object.entry_len();
                    let Some(copy) = target.get_mut(*written..*written + len) else { return false };
                    entry::copy(copy, entry, narrow(present, object.older, source.id));
                    *written += len;
                    *longest = len.max(*longest);
                    *expires = object.expires.min(*expires);
                    source.copied += len;
                    find = Find { hash: spread(object.table, hash), offset, len: len as u32 };
                }
            }
            source.finds.push(find);
            source.next += head.entry_len();
        }
        true
    }

    /// Adds a segment to the sources.
    pub(super) fn add(&mut self, source: Source) {
        self.sources.push(source);
    }

    /// Returns a job without sources for a survivor with this memory.
    pub(super) fn new(target: Vec<u8>, present: Vec<SegmentId>, hashers: Hashers) -> Self {
        let (sources, expires) = (Vec::new(), WallTime::NEVER);
        Self { sources, target, written: HEADER, longest: HEADER, expires, present, hashers }
    }
}
