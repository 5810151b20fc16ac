//! Frames that outlive the process: what a backup records in their headers and for their journal,
//! and what it finds there when it starts.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::Crc32c;

use super::appends::Appends;
use super::journal::{Journal, Record};
use super::posted::Inboxes;
use super::round::Round;
use super::{Backup, Block, FileHeader, FrameHeader, Frames, Held, Replica};
use crate::message::replica::WriteReplica;
use crate::objects::entry::{Entries, Entry};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

impl Held {
    /// Returns the length up to which a frame has the bytes that its header names: whole entries of
    /// the segment with correct checksums.
    pub(super) fn intact(&self, crc32c: Crc32c, frame: &[u8]) -> u32 {
        frame.get(..self.len as usize).map_or(0, |bytes| self.whole(crc32c, bytes))
    }

    /// Returns the length up to which a frame has whole entries of the segment with correct
    /// checksums, also behind the length that the header names.
    pub(super) fn whole(&self, crc32c: Crc32c, frame: &[u8]) -> u32 {
        let mut entries = Entries::default();
        while let Some((_, entry)) = entries.next(crc32c, frame) {
            if let Entry::Header(header) = entry
                && (header.cluster, header.server, header.segment)
                    != (self.cluster, self.master, self.segment)
            {
                return 0;
            }
        }
        entries.at() as u32
    }

    /// Returns the length that counts of a replica with `intact` intact bytes. `None` if the
    /// replica is damaged. If `lossy`, an open replica may have lost its last bytes with the power,
    /// but not the first `proven` ones, which the journal proves.
    pub(super) fn end(&self, intact: u32, lossy: bool, proven: u32) -> Option<u32> {
        let is_damaged =
            intact < self.len && (self.closed || !lossy || intact == 0) || lossy && intact < proven;
        (!is_damaged).then_some(intact)
    }
}

/// Returns what the header of a frame says of the replica there.
fn held(cluster: u64, (master, segment): (ServerId, SegmentId), replica: &Replica) -> Held {
    let &Replica { epoch, len, closed, committed, .. } = replica;
    Held { cluster, master, segment, epoch, len, closed, committed }
}

impl Backup {
    /// Returns a backup with the replicas that an earlier life of the server has left in `frames`.
    /// `boot` is a number of this run of the machine: it differs from those of earlier runs.
    ///
    /// The bytes of open replicas are verified, and after a restart of the machine those of all
    /// replicas. Those of the others are when their master goes on with them. After a restart,
    /// which may follow a loss of power, an open replica has the intact bytes at its start. A
    /// replica that lacks bytes otherwise is damaged: it does not count, and keeps its frame until
    /// it is freed. A frame that the device does not deliver is not used.
    #[must_use]
    pub fn new(frames: Box<dyn Frames>, crc32c: Crc32c, boot: u64) -> Self {
        let count = frames.count();
        let (file, free, fenced) = (None, Vec::new(), BTreeMap::new());
        let (replicas, sequences) = (BTreeMap::new(), Vec::new());
        let most = frames.journal().and_then(Journal::most);
        let appends = most.map(Appends::new);
        let (inboxes, round) = (Inboxes::default(), Round::new());
        let mut this = Self {
            frames,
            crc32c,
            file,
            sequences,
            free,
            replicas,
            appends,
            fenced,
            inboxes,
            unreported: BTreeSet::new(),
            replaced: BTreeMap::new(),
            retired: BTreeSet::new(),
            round,
        };
        match this.frames.header(Block::File) {
            None => this.free = (0..count).rev().collect(),
            Some(slots) => {
                let file = FileHeader::parse(crc32c, slots).header().unwrap_or_default();
                this.sequences = vec![0; count as usize];
                this.file = Some(file);
                this.restore(&file, boot);
                this.file = Some(FileHeader { boot, ..file });
            }
        }
        this
    }

    /// Takes over the replicas that the headers of the frames name.
    fn restore(&mut self, file: &FileHeader, boot: u64) {
        for frame in (0..self.frames.count()).rev() {
            let Some(slots) = self.frames.header(Block::Frame(frame)) else {
                // Its content is unknown, and a write to it would read it first.
                self.retired.insert(frame);
                continue;
            };
            let certain = FrameHeader::is_whole(self.crc32c, frame, slots);
            let twice = FrameHeader::is_twice(self.crc32c, frame, slots);
            let header = FrameHeader::parse(self.crc32c, frame, slots).header();
            self.sequences[frame as usize] = header.map_or(0, |header| header.sequence);
            let Some(held) = header.and_then(|header| header.replica) else {
                self.free.push(frame);
                continue;
            };
            let (id, replica) = self.found(frame, &held, boot != file.boot, certain);
            // There are two replicas of a segment if one was to take the other's place, or if the
            // power failed between the header of one frame and that of the other.
            let better = |r: &Replica| (!r.damaged, r.committed, r.epoch, r.len);
            let other = self.replicas.get(&id).copied();
            if other.is_some_and(|other| better(&other) >= better(&replica)) {
                self.discard(frame);
            } else {
                other.into_iter().for_each(|other| self.discard(other.frame));
                if replica.len != held.len || replica.closed && !twice {
                    self.record(frame, Some((id, &replica)));
                }
                self.replicas.insert(id, replica);
            }
        }
    }

    /// Frees a frame whose replica does not count, so that no later life finds it.
    fn discard(&mut self, frame: u32) {
        self.record(frame, None);
        self.free.push(frame);
    }

    /// Returns the replica that a frame's header names. If `lossy`, what was written last may be
    /// lost: an open replica ends where its bytes do. If not `certain`, the last change of the
    /// header may be lost: an open replica has all bytes that are intact behind its length.
    fn found(
        &mut self,
        frame: u32,
        held: &Held,
        lossy: bool,
        certain: bool,
    ) -> ((ServerId, SegmentId), Replica) {
        let &Held { epoch, mut len, closed, committed, .. } = held;
        let size = self.frames.size();
        let mut damaged = len > size;
        // The master of an open replica may write behind its end.
        let read = if closed { len.min(size) } else { size };
        if (lossy || !closed) && !self.frames.delivers(frame, 0, read) {
            self.retired.insert(frame);
            damaged = true;
        }
        if !damaged && (lossy || !closed) {
            let intact = held.intact(self.crc32c, self.frames.bytes(frame));
            let proven = self.frames.journal().map_or(0, |journal| journal.proven(frame, held));
            match held.end(intact, lossy, proven) {
                Some(end) if closed || certain => len = end,
                Some(end) => len = end.max(held.whole(self.crc32c, self.frames.bytes(frame))),
                None => {
                    damaged = true;
                    // Later lives know only by the length that bytes are missing.
                    len = if proven > size { u32::MAX } else { len };
                }
            }
        }
        let replica = Replica { frame, epoch, len, closed, committed, left: true, damaged };
        ((held.master, held.segment), replica)
    }

    /// Returns true if a master may go on with a replica that it opens. The bytes of one that an
    /// earlier life of the server has left are verified: a closed one was not before.
    pub(super) fn may_continue(&mut self, id: (ServerId, SegmentId), replica: &Replica) -> bool {
        let owner = self.file.and_then(|file| file.owner);
        let Some((cluster, _)) = owner.filter(|_| replica.left && !replica.damaged) else {
            return !replica.damaged;
        };
        if !self.frames.delivers(replica.frame, 0, self.frames.size()) {
            self.retired.insert(replica.frame);
            return false;
        }
        let bytes = self.frames.bytes(replica.frame);
        held(cluster, id, replica).intact(self.crc32c, bytes) >= replica.len
    }

    /// Executes a write that a master has posted to an earlier life of the server. The replica
    /// remains one that was left. A write whose replica is gone or has a later epoch does nothing.
    pub(super) fn take_left(&mut self, write: &[u8]) {
        let Ok(write) = WriteReplica::parse(write) else { return };
        let id = (write.target.master, write.target.segment);
        if !write.open && !write.close && self.apply(&write).is_ok() {
            self.replicas.entry(id).and_modify(|replica| replica.left = true);
        }
    }

    /// Returns the cluster and the id of the last server that has used the frames, if they outlive
    /// the process.
    #[must_use]
    pub fn owner(&self) -> Option<(u64, ServerId)> {
        self.file?.owner
    }

    /// Records that the server `server` of `cluster` uses the frames from now on.
    pub fn set_owner(&mut self, cluster: u64, server: ServerId) {
        let Some(file) = &mut self.file else { return };
        if file.owner == Some((cluster, server)) {
            return;
        }
        file.owner = Some((cluster, server));
        file.sequence += 1;
        let (slot, bytes) = file.emit(self.crc32c);
        self.frames.write_header(Block::File, slot, &bytes);
    }

    /// Records in the header of a frame which replica it holds, if the frames outlive the process.
    pub(super) fn record(
        &mut self,
        frame: u32,
        replica: Option<((ServerId, SegmentId), &Replica)>,
    ) {
        let Some((cluster, _)) = self.file.and_then(|file| file.owner) else { return };
        let Some(sequence) = self.sequences.get_mut(frame as usize) else { return };
        if self.retired.contains(&frame) {
            return;
        }
        *sequence += 1;
        let replica = replica.map(|(id, replica)| held(cluster, id, replica));
        let header = FrameHeader { frame, sequence: *sequence, replica };
        let (slot, bytes) = header.emit(self.crc32c);
        self.frames.write_header(Block::Frame(frame), slot, &bytes);
    }

    /// Returns the batch that brings all writes to replicas since the last call to the disk. `None`
    /// if the frames have to be synced for it.
    pub(crate) fn take_batch(&mut self) -> Option<Vec<u8>> {
        let (mut batch, from) = self.appends.as_mut()?.take()?;
        for ((master, segment), offset) in from {
            let Some(replica) = self.replicas.get(&(master, segment)) else { continue };
            let &Replica { frame, epoch, len: end, .. } = replica;
            let sequence = self.sequences.get(frame as usize).copied()?;
            let data = self.frames.bytes(frame).get(offset as usize..end as usize)?;
            let len = end - offset;
            let record = Record { frame, epoch, sequence, master, segment, offset, len };
            if !batch.push(&record, data) {
                return None;
            }
        }
        batch.finish()
    }

    /// Returns the header that the frame of a replica has to have now.
    pub(super) fn header_of(
        &self,
        id: (ServerId, SegmentId),
        replica: &Replica,
    ) -> Option<FrameHeader> {
        let (cluster, _) = self.file.and_then(|file| file.owner)?;
        let &sequence = self.sequences.get(replica.frame as usize)?;
        let held = held(cluster, id, replica);
        Some(FrameHeader { frame: replica.frame, sequence, replica: Some(held) })
    }

    /// Returns the number of replicas that earlier lives of the server have left, and how many of
    /// them are damaged.
    #[must_use]
    pub fn left(&self) -> (usize, usize) {
        let left = self.replicas.values().filter(|replica| replica.left);
        let damaged = left.clone().filter(|replica| replica.damaged);
        (left.count(), damaged.count())
    }

    /// Frees the replicas that earlier lives of the server have left of masters outside `known`.
    /// Those must be all masters of the cluster whose logs may still be needed.
    pub fn free_unknown(&mut self, known: &BTreeSet<ServerId>) {
        let left = self.replicas.iter().filter(|(_, replica)| replica.left);
        let unknown: BTreeSet<_> =
            left.map(|((master, _), _)| *master).filter(|id| !known.contains(id)).collect();
        unknown.into_iter().for_each(|master| self.free_left(master));
    }
}
