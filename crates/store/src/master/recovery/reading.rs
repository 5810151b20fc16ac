//! Reads the segments of a crashed master's log from backups, one after the other.
//!
//! Invariants: one segment is read at a time, and one that was read waits. Some reads of it are in
//! progress at a time. A backup whose replica is damaged, short or gone is not asked for it again.
//! One that does not answer is: it may be slow, and have the only replica.

use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::time::MS;

use crate::message::recovery::{MOST_READ, Piece};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The most reads of a segment that are in progress at a time.
const MOST_READS: u32 = 4;
/// The pause after a read that had no answer.
const AGAIN_NS: u64 = 50 * MS;
/// The number of reads of a segment without an answer after which it counts as lacking.
const MOST_FAILURES: u32 = 20;

/// A backup that holds replicas of the log.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) backup: ServerId,
    pub(super) locator: String,
    /// True if this master's link to the backup is connected.
    pub(super) linked: bool,
}

/// A segment that can be replayed.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) piece: Piece,
    /// The bytes of the segment. `None` if the replica on this server has them.
    pub(super) bytes: Option<Vec<u8>>,
    /// The index in `piece.on` of the backup that has the replica.
    source: usize,
}

/// A segment that is being read.
#[derive(Debug)]
struct Open {
    segment: Segment,
    asked: u32,
    received: u32,
    failures: u32,
}

/// The segments to read.
#[derive(Debug)]
pub(super) struct Reading {
    /// The segments to read by id. The last one is next.
    left: Vec<Piece>,
    open: Option<Open>,
    /// The segment that was read.
    ready: Option<Segment>,
    /// The memory of a segment that was replayed, for the next one.
    spare: Vec<u8>,
    /// The number of attempts to read a segment.
    attempt: u32,
    not_before: Instant,
    /// True if a segment cannot be read from any backup.
    lacking: bool,
}

impl Reading {
    pub(super) fn new(left: Vec<Piece>) -> Self {
        Self {
            left,
            open: None,
            ready: None,
            spare: Vec::new(),
            attempt: 0,
            not_before: Instant::ZERO,
            lacking: false,
        }
    }

    /// Returns true if a segment cannot be read from any backup.
    pub(super) fn is_lacking(&self) -> bool {
        self.lacking
    }

    /// Returns true if all segments were read and taken.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty() && self.open.is_none() && self.ready.is_none()
    }

    pub(super) fn not_before(&self) -> Instant {
        self.not_before
    }

    /// Begins to read the next segment if none is being read and none waits.
    pub(super) fn begin(&mut self, me: ServerId, backups: &[Source]) {
        if self.open.is_some() || self.ready.is_some() || self.lacking {
            return;
        }
        let Some(piece) = self.left.pop() else { return };
        let on = |index: &u16| backups.get(usize::from(*index)).map(|source| source.backup);
        let own = piece.on.iter().position(|index| on(index) == Some(me));
        if let Some(source) = own {
            self.ready = Some(Segment { piece, bytes: None, source });
            return;
        }
        let source = piece.segment.0 as usize % piece.on.len().max(1);
        self.open(piece, source, 0);
    }

    /// Begins to read a segment from the backup with the index `source` in `piece.on`.
    fn open(&mut self, piece: Piece, source: usize, failures: u32) {
        if piece.on.is_empty() {
            self.lacking = true;
            return;
        }
        self.attempt += 1;
        let mut bytes = core::mem::take(&mut self.spare);
        bytes.resize(piece.len as usize, 0);
        let source = source % piece.on.len();
        let segment = Segment { piece, bytes: Some(bytes), source };
        self.open = Some(Open { segment, asked: 0, received: 0, failures });
    }

    /// Returns the index of the backup to read from.
    pub(super) fn source(&self) -> Option<usize> {
        let segment = &self.open.as_ref()?.segment;
        segment.piece.on.get(segment.source).map(|&index| index.into())
    }

    /// Returns true if another read may begin.
    pub(super) fn wants_more(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.asked < open.segment.piece.len
                && open.asked - open.received < MOST_READS * MOST_READ
        })
    }

    /// Returns the next read: segment, number of the attempt, offset and length.
    pub(super) fn ask(&mut self) -> Option<(SegmentId, u32, u32, u32)> {
        let open = self.open.as_mut()?;
        let (offset, len) = (open.asked, MOST_READ.min(open.segment.piece.len - open.asked));
        open.asked += len;
        Some((open.segment.piece.segment, self.attempt, offset, len))
    }

    /// Takes the bytes that a read has returned.
    pub(super) fn take(&mut self, attempt: u32, offset: u32, bytes: &[u8]) {
        let Some(open) = self.open.as_mut().filter(|_| attempt == self.attempt) else { return };
        let memory = open.segment.bytes.as_mut();
        let range = offset as usize..offset as usize + bytes.len();
        if let Some(memory) = memory.and_then(|memory| memory.get_mut(range)) {
            memory.copy_from_slice(bytes);
            open.received += bytes.len() as u32;
        }
        if open.received == open.segment.piece.len {
            self.ready = self.open.take().map(|open| open.segment);
        }
    }

    /// Records that a read had no answer: the segment is read again, from the next backup.
    pub(super) fn failed(&mut self, now: Instant, attempt: u32) {
        let Some(open) = self.open.take_if(|_| attempt == self.attempt) else { return };
        let failures = open.failures + 1;
        if failures >= MOST_FAILURES {
            self.lacking = true;
            return;
        }
        self.not_before = now.after(AGAIN_NS);
        let Segment { piece, bytes, source } = open.segment;
        self.spare = bytes.unwrap_or_default();
        self.open(piece, source + 1, failures);
    }

    /// Records that the backup has no such replica.
    pub(super) fn bad(&mut self, attempt: u32) {
        if let Some(open) = self.open.take_if(|_| attempt == self.attempt) {
            self.damaged(open.segment);
        }
    }

    /// Returns the segment that was read.
    pub(super) fn next(&mut self) -> Option<Segment> {
        self.ready.take()
    }

    /// Takes back the memory of a segment that was replayed.
    pub(super) fn done(&mut self, segment: Segment) {
        if let Some(bytes) = segment.bytes {
            self.spare = bytes;
        }
    }

    /// Takes back a segment whose replica is damaged, to read it from another backup.
    pub(super) fn damaged(&mut self, segment: Segment) {
        let Segment { mut piece, source, .. } = segment;
        piece.on.remove(source);
        if piece.on.is_empty() {
            self.lacking = true;
        }
        self.left.push(piece);
    }
}
