//! Reads the segments of a crashed master's log from backups.
//!
//! Segments that have a replica on this server are replayed while others are read.
//!
//! Invariants: at most two segments are being read or were read and wait. A few reads are in
//! progress at a time. A backup whose replica is damaged, short or gone is not asked for it again.
//! One that does not answer is: it may be slow, and have the only replica.

use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::time::MS;

use crate::message::control::MAX_PAGE;
use crate::message::recovery::{DamagedReplica, MOST_READ, Piece};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The most segments that are being read, or were read and wait: one is read while another one is
/// replayed, or waits for the end of a replay.
const MOST_OPEN: usize = 2;
/// The most reads of segments that are in progress at a time.
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

/// A segment that is being read, or was read and waits.
#[derive(Debug)]
struct Open {
    segment: Segment,
    /// The number of the attempt to read a segment.
    attempt: u32,
    asked: u32,
    received: u32,
    failures: u32,
}

impl Open {
    fn is_read(&self) -> bool {
        self.received == self.segment.piece.len
    }
}

/// The segments to read.
#[derive(Debug)]
pub(super) struct Reading {
    /// The segments to read by id. The last one is next.
    left: Vec<Piece>,
    /// The segments that are being read from other backups.
    open: Vec<Open>,
    /// The memory of segments that were replayed, for the next ones.
    spare: Vec<Vec<u8>>,
    /// The number of attempts to read a segment.
    attempts: u32,
    not_before: Instant,
    /// True if no backup answers for a segment.
    silent: bool,
    /// The replicas that are damaged, short or gone: the index of the backup, and the segment.
    damaged: Vec<(u16, SegmentId)>,
    /// The number of segments all of whose replicas are damaged.
    lost: usize,
}

impl Reading {
    pub(super) fn new(left: Vec<Piece>) -> Self {
        Self {
            left,
            open: Vec::new(),
            spare: Vec::new(),
            attempts: 0,
            not_before: Instant::ZERO,
            silent: false,
            damaged: Vec::new(),
            lost: 0,
        }
    }

    /// Returns true if a segment cannot be read from any backup, and there is no more to read. The
    /// segments behind one whose replicas are damaged are read all the same, so that one report
    /// names all damaged replicas.
    pub(super) fn is_lacking(&self) -> bool {
        self.silent || (self.lost > 0 && self.is_empty())
    }

    /// Returns the first damaged replicas, as many as a report has room for.
    pub(super) fn damaged_replicas(&self, backups: &[Source]) -> Vec<DamagedReplica> {
        let replica = |&(index, segment): &(u16, SegmentId)| {
            let source = backups.get(usize::from(index))?;
            Some(DamagedReplica { backup: source.backup, segment })
        };
        self.damaged.iter().filter_map(replica).take(MAX_PAGE).collect()
    }

    /// Returns true if all segments were read and taken.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty() && self.open.is_empty()
    }

    pub(super) fn not_before(&self) -> Instant {
        self.not_before
    }

    /// Returns the place in `left` of the next segment that has a replica on this server, or of the
    /// next one that has none.
    fn next_left(&self, (me, backups): (ServerId, &[Source]), own: bool) -> Option<usize> {
        let of = |piece: &Piece| own_source(piece, me, backups).is_some();
        self.left.iter().rposition(|piece| of(piece) == own)
    }

    /// Begins to read the next segments of other backups, as long as few enough are being read.
    /// Returns true if it has begun one.
    pub(super) fn begin(&mut self, me: ServerId, backups: &[Source]) -> bool {
        let before = self.attempts;
        while !self.silent
            && self.open.len() < MOST_OPEN
            && let Some(at) = self.next_left((me, backups), false)
        {
            let piece = self.left.remove(at);
            let source = piece.segment.0 as usize % piece.on.len().max(1);
            self.open(piece, source, 0);
        }
        self.attempts > before
    }

    /// Begins to read a segment from the backup with the index `source` in `piece.on`.
    fn open(&mut self, piece: Piece, source: usize, failures: u32) {
        self.attempts += 1;
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(piece.len as usize, 0);
        let source = source % piece.on.len();
        let segment = Segment { piece, bytes: Some(bytes), source };
        let attempt = self.attempts;
        self.open.push(Open { segment, attempt, asked: 0, received: 0, failures });
    }

    /// Returns the place in `open` of the segment of which a further read may begin.
    fn wanting(&self) -> Option<usize> {
        let in_progress: u32 = self.open.iter().map(|open| open.asked - open.received).sum();
        let wants = |open: &Open| open.asked < open.segment.piece.len;
        self.open.iter().position(wants).filter(|_| in_progress < MOST_READS * MOST_READ)
    }

    /// Returns the index of the backup to read from, if another read may begin.
    pub(super) fn source(&self) -> Option<usize> {
        let segment = &self.open[self.wanting()?].segment;
        segment.piece.on.get(segment.source).map(|&index| index.into())
    }

    /// Returns the next read: segment, number of the attempt, offset and length.
    pub(super) fn ask(&mut self) -> Option<(SegmentId, u32, u32, u32)> {
        let at = self.wanting()?;
        let open = &mut self.open[at];
        let (offset, len) = (open.asked, MOST_READ.min(open.segment.piece.len - open.asked));
        open.asked += len;
        Some((open.segment.piece.segment, open.attempt, offset, len))
    }

    /// Takes the bytes that a read has returned.
    pub(super) fn take(&mut self, attempt: u32, offset: u32, bytes: &[u8]) {
        let Some(open) = self.open.iter_mut().find(|open| open.attempt == attempt) else { return };
        let memory = open.segment.bytes.as_mut();
        let range = offset as usize..offset as usize + bytes.len();
        if let Some(memory) = memory.and_then(|memory| memory.get_mut(range)) {
            memory.copy_from_slice(bytes);
            open.received += bytes.len() as u32;
        }
    }

    /// Ends the attempt to read a segment.
    fn close(&mut self, attempt: u32) -> Option<Open> {
        let at = self.open.iter().position(|open| open.attempt == attempt)?;
        Some(self.open.remove(at))
    }

    /// Records that a read had no answer: the segment is read again, from the next backup.
    pub(super) fn failed(&mut self, now: Instant, attempt: u32) {
        let Some(open) = self.close(attempt) else { return };
        let failures = open.failures + 1;
        if failures >= MOST_FAILURES {
            self.silent = true;
            return;
        }
        self.not_before = now.after(AGAIN_NS);
        let Segment { piece, bytes, source } = open.segment;
        self.spare.extend(bytes);
        self.open(piece, source + 1, failures);
    }

    /// Records that the backup has no such replica.
    pub(super) fn bad(&mut self, attempt: u32) {
        if let Some(open) = self.close(attempt) {
            self.damaged(open.segment);
        }
    }

    /// Returns a segment that was read, or the next one that has a replica on this server.
    pub(super) fn next(&mut self, me: ServerId, backups: &[Source]) -> Option<Segment> {
        if self.silent {
            return None;
        }
        if let Some(at) = self.open.iter().position(Open::is_read) {
            return Some(self.open.remove(at).segment);
        }
        let at = self.next_left((me, backups), true)?;
        let piece = self.left.remove(at);
        let source = own_source(&piece, me, backups)?;
        Some(Segment { piece, bytes: None, source })
    }

    /// Takes back the memory of a segment that was replayed.
    pub(super) fn done(&mut self, segment: Segment) {
        self.spare.extend(segment.bytes);
    }

    /// Takes back a segment whose replica is damaged, to read it from another backup.
    pub(super) fn damaged(&mut self, segment: Segment) {
        let Segment { mut piece, source, bytes } = segment;
        self.spare.extend(bytes);
        self.damaged.push((piece.on.remove(source), piece.segment));
        if piece.on.is_empty() {
            self.lost += 1;
        } else {
            self.left.push(piece);
        }
    }
}

/// Returns the place in `piece.on` of this server, if it has a replica.
fn own_source(piece: &Piece, me: ServerId, backups: &[Source]) -> Option<usize> {
    let on = |index: &u16| backups.get(usize::from(*index)).map(|source| source.backup);
    piece.on.iter().position(|index| on(index) == Some(me))
}
