//! The backup: the replicas that a server holds of the segments of other masters' logs.
//!
//! ```text
//!  master ── WriteReplica ─► check ─► replica: epoch, length, closed ─► frame: bytes
//!         ── FreeReplica ──► the frame is free
//!  coordinator ── ListReplicas ─► fence the master, then list its replicas
//!              ── FreeReplicas ─► free all replicas of a fenced master
//! ```
//!
//! Invariants:
//! - The bytes of a segment never change, so that replicas of it differ only in their lengths. A
//!   replica has all bytes below its length. A byte that it has is not written again.
//! - The epoch of a replica only grows, by writes that commit it. A write that leaves a gap changes
//!   nothing, not even the epoch: a replica of an epoch has all bytes below the end of the write
//!   that gave it the epoch.
//! - No replica of a fenced master changes any more, apart from being freed.
//! - A replica takes a whole frame, so that the number of replicas is bounded. The number of fenced
//!   masters has a limit, too.
//! - If the frames outlive the process, the header of a frame follows the bytes that it counts. So
//!   the next life of the server finds every replica with all bytes that its master knows of.
//! - A replica that an earlier life of the server has left counts in a recovery of its master's
//!   log, unless its bytes are damaged.
//! - Before a write or a fence changes anything of a master, the backup takes what the master has
//!   posted before.
//!
//! Elsewhere: [`crate::ops`] parses the requests, and checks cluster and server. `frames` is the
//! memory of the replicas.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Bound;

use sprat_proto::wire::checksum::Crc32c;

mod appends;
mod damage;
mod flat;
mod frames;
mod header;
mod journal;
mod posted;
mod replay;
mod restore;
mod round;
mod scrub;
mod survey;
#[cfg(test)]
pub(crate) mod tests;

pub use flat::{
    BLOCK, FlatFrames, Storage, Unusable, flat_bytes, flat_offset, header as flat_header,
    slots as flat_slots,
};
pub use frames::{Block, Frames, MemoryFrames};
pub use header::{FileHeader, Found, FrameHeader, Held, SLOT_BYTES, SLOTS, Slot};
pub use journal::{Content as JournalContent, Journal, Writer as JournalWriter};
pub use posted::{Inbox, Outbox, Posted, Rings};
pub use replay::{replay, set_journal};
pub use survey::{Condition, Content, Counted, Survey, verify};

use crate::message::Status;
use crate::message::control;
use crate::message::recovery::{self, ReplicaPage};
use crate::message::replica::{Target, WriteReplica};
use crate::objects::entry::{self, Entry};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;
use appends::{Appends, Stage};
use posted::{Inboxes, MOST_TAKEN};
use round::Round;
pub(crate) use round::Scrubbed;

/// The most masters that a backup fences: more than a cluster has servers.
pub const MAX_FENCED: usize = 1 << 16;

/// The replicas that a server holds for other masters.
#[derive(Debug)]
pub struct Backup {
    frames: Box<dyn Frames>,
    crc32c: Crc32c,
    /// The header of all frames, if they outlive the process.
    file: Option<FileHeader>,
    /// The number of the last change of each frame's header, if the frames outlive the process.
    sequences: Vec<u64>,
    /// The numbers of the free frames.
    free: Vec<u32>,
    replicas: BTreeMap<(ServerId, SegmentId), Replica>,
    /// The appended bytes since the last sync began, if a journal may carry them.
    appends: Option<Appends>,
    /// The fenced masters: for each index of a server the last fenced generation. The earlier ones
    /// crashed before it.
    fenced: BTreeMap<u32, u32>,
    inboxes: Inboxes,
    /// The lost replicas that their masters have to count as lost.
    unreported: BTreeSet<(ServerId, SegmentId)>,
    /// The damaged replicas that keep their frames until other ones here are committed.
    replaced: BTreeMap<(ServerId, SegmentId), Replica>,
    /// The frames whose bytes the device does not deliver.
    retired: BTreeSet<u32>,
    round: Round,
}

#[derive(Clone, Copy, Debug)]
struct Replica {
    /// The number of the frame that has the bytes of the replica.
    frame: u32,
    epoch: u32,
    len: u32,
    closed: bool,
    /// True if the replica counts in a recovery.
    committed: bool,
    /// True if an earlier life of the server has left the replica, and its master has not written
    /// to it since.
    left: bool,
    /// True if the replica lacks bytes that it had.
    damaged: bool,
}

impl Replica {
    fn stage(&self) -> Stage {
        let &Self { len, epoch, committed, closed, .. } = self;
        Stage { len, epoch, committed, closed }
    }
}

impl Drop for Backup {
    /// Takes what masters have posted: the frames may outlive the process.
    fn drop(&mut self) {
        self.close_rings(|_| true);
    }
}

impl Backup {
    /// Returns the number of replicas, those among them whose place another one takes.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.replicas.len() + self.replaced.len()
    }

    /// Returns the number of frames without a replica.
    #[must_use]
    pub fn free_frames(&self) -> usize {
        self.free.len()
    }

    /// Returns true if the frames outlive the process, so that a sync brings them to a disk.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        self.file.is_some()
    }

    /// Opens, continues, stamps or closes a replica. Returns its length. A length below the start
    /// of the write's data means that bytes are missing before it, and that nothing has changed.
    ///
    /// # Errors
    /// The status to reply with. Nothing has changed.
    pub fn write(&mut self, write: &WriteReplica<'_>) -> Result<u32, Status> {
        self.take_posted(write.target.master);
        self.apply(write)
    }

    /// Executes a write that its master has sent or posted.
    fn apply(&mut self, write: &WriteReplica<'_>) -> Result<u32, Status> {
        let Target { master, segment, .. } = write.target;
        if self.is_fenced(master) {
            return Err(Status::Fenced);
        }
        let end = write.offset as usize + write.data.len();
        if end > self.frames.size() as usize || write.open && write.offset != 0 {
            return Err(Status::BadFormat);
        }
        let end = end as u32;
        if self.frames.has_failed() {
            // NoSpace lets the master look elsewhere for a while.
            return Err(if write.open { Status::NoSpace } else { Status::NoReplica });
        }
        let id = (master, segment);
        let known = self.replicas.get(&id).copied();
        let known = known.filter(|replica| !write.open || self.may_continue(id, replica));
        let mut replica = match known {
            Some(Replica { damaged: true, .. }) => return Err(Status::NoReplica),
            Some(replica) => replica,
            None if write.open => self.open(write)?,
            None => return Err(Status::NoReplica),
        };
        if write.epoch < replica.epoch {
            return Err(Status::WrongEpoch);
        }
        // A write that closes a replica has the last bytes of the segment.
        if replica.closed && end > replica.len || write.close && end < replica.len {
            return Err(Status::BadFormat);
        }
        if write.offset > replica.len {
            return Ok(replica.len);
        }
        if let Some(new) = write.data.get((replica.len - write.offset) as usize..)
            && !new.is_empty()
        {
            if !self.frames.write(replica.frame, replica.len, new) {
                return Err(Status::NoReplica);
            }
            replica.len = end;
        }
        // Until it is whole in the new epoch, the replica counts in the old one.
        if write.commit {
            (replica.epoch, replica.committed) = (write.epoch, true);
        }
        replica.closed |= write.close;
        replica.left = false;
        if let Some(appends) = &mut self.appends {
            appends.add(id, known.as_ref().map(Replica::stage), replica.stage(), write.sync);
        }
        self.record(replica.frame, Some((id, &replica)));
        if write.close {
            // With either slot damaged, it must not look open, as if the log could end there.
            self.record(replica.frame, Some((id, &replica)));
        }
        self.replicas.insert(id, replica);
        if write.commit && !self.replaced.is_empty() {
            self.free_replaced(id, u32::MAX);
        }
        Ok(replica.len)
    }

    /// Takes a frame for the replica that `write` opens. Its data begins with the header of the
    /// segment.
    fn open(&mut self, write: &WriteReplica<'_>) -> Result<Replica, Status> {
        let Target { cluster, master, segment, .. } = write.target;
        let Some((Entry::Header(header), _)) = entry::parse(write.data) else {
            return Err(Status::BadFormat);
        };
        if (header.cluster, header.server, header.segment) != (cluster, master, segment) {
            return Err(Status::BadFormat);
        }
        if header.capacity > self.frames.size() {
            return Err(Status::NoSpace);
        }
        let id = (master, segment);
        if self.free.is_empty() {
            // A replica of the segment that is not as it was written gives its frame.
            self.release(id);
        }
        let &frame = self.free.last().ok_or(Status::NoSpace)?;
        if !self.frames.open(frame) {
            return Err(Status::NoSpace);
        }
        self.free.pop();
        self.replace(id);
        let (epoch, len) = (write.epoch, 0);
        let (closed, committed, left, damaged) = (false, false, false, false);
        Ok(Replica { frame, epoch, len, closed, committed, left, damaged })
    }

    /// Frees a replica if it exists and its epoch is at most `epoch`. A fenced master may free
    /// replicas: a recovery needs none of those that it frees.
    pub fn free(&mut self, master: ServerId, segment: SegmentId, epoch: u32) {
        self.take_posted(master);
        let known = self.replicas.get(&(master, segment));
        if known.is_some_and(|replica| replica.epoch <= epoch) {
            self.release((master, segment));
        }
        self.free_replaced((master, segment), epoch);
    }

    /// Frees a replica if it exists, and one whose place it takes.
    fn release(&mut self, id: (ServerId, SegmentId)) {
        if let Some(replica) = self.replicas.remove(&id) {
            self.appends.iter_mut().for_each(|appends| appends.remove(id));
            self.vacate(replica.frame);
            self.unreported.remove(&id);
        }
        self.free_replaced(id, u32::MAX);
    }

    /// Frees a frame, unless the device does not deliver its bytes.
    fn vacate(&mut self, frame: u32) {
        if self.retired.contains(&frame) {
            return;
        }
        self.record(frame, None);
        self.frames.free(frame);
        self.free.push(frame);
    }

    /// Frees the replicas of `master` that earlier lives of this server have left.
    pub fn free_left(&mut self, master: ServerId) {
        self.take_posted(master);
        let of_master = (master, SegmentId(0))..=(master, SegmentId(u32::MAX));
        let left = self.replicas.range(of_master).filter(|(_, replica)| replica.left);
        let left: Vec<_> = left.map(|(&id, _)| id).collect();
        left.into_iter().for_each(|id| self.release(id));
    }

    /// Frees all replicas of a fenced master. Returns false, and does nothing, if the master is not
    /// fenced: a late write could open a replica again.
    pub fn free_all(&mut self, master: ServerId) -> bool {
        if !self.is_fenced(master) {
            return false;
        }
        let of_master = (master, SegmentId(0))..=(master, SegmentId(u32::MAX));
        let mut all: Vec<_> = self.replicas.range(of_master).map(|(&id, _)| id).collect();
        all.extend(self.replaced_of(master));
        all.into_iter().for_each(|id| self.release(id));
        true
    }

    /// Refuses all later writes of `master`, and of its earlier lives.
    ///
    /// # Errors
    /// [`Status::NoSpace`] if the backup has fenced too many masters. The master is not fenced.
    pub fn fence(&mut self, master: ServerId) -> Result<(), Status> {
        if !self.fenced.contains_key(&master.index) && self.fenced.len() >= MAX_FENCED {
            return Err(Status::NoSpace);
        }
        self.close_rings(|m| m.index == master.index && m.generation <= master.generation);
        let last = self.fenced.entry(master.index).or_default();
        *last = master.generation.max(*last);
        self.forget_fenced();
        Ok(())
    }

    /// Fences a master that the cluster has given up, and frees its replicas. They came here after
    /// the coordinator had all those of its log freed.
    pub fn expel(&mut self, master: ServerId) {
        // Too many masters are fenced: the next life of this server frees them.
        if self.fence(master).is_ok() {
            self.free_all(master);
        }
    }

    /// Lets the backup share memory with masters of its machine through `host`. Takes what masters
    /// have posted to an earlier life of the server.
    pub fn share(&mut self, host: Box<dyn Rings>) {
        self.inboxes.set_host(host);
        while let Some(mut inbox) = self.inboxes.left() {
            inbox.close();
            let (mut write, mut taken) = (Vec::new(), 0);
            while taken < MOST_TAKEN && inbox.take(&mut write) {
                taken += 1;
                self.take_left(&write);
            }
        }
    }

    /// Makes a ring for posted writes of `master`, and returns the text by which the master finds
    /// it.
    ///
    /// # Errors
    /// [`Status::Fenced`] if the backup takes no more writes of the master, [`Status::NoSpace`] if
    /// there is no shared memory for it.
    pub fn open_ring(&mut self, master: ServerId) -> Result<String, Status> {
        if self.is_fenced(master) {
            return Err(Status::Fenced);
        }
        self.close_rings(|owner| owner == master);
        self.inboxes.offer(master)
    }

    /// Returns the writer's end of a ring that a backup has offered to this server. `None` if they
    /// share no memory.
    pub(crate) fn accept_ring(&mut self, offer: &str) -> Option<Box<dyn Outbox>> {
        self.inboxes.accept(offer)
    }

    /// Takes what all masters have posted.
    pub(crate) fn take_all_posted(&mut self) {
        if !self.inboxes.is_empty() {
            for master in self.inboxes.masters() {
                self.take_posted(master);
            }
        }
    }

    /// Returns the number of posted writes that the backup has taken.
    pub(crate) fn posted_writes(&self) -> u64 {
        self.inboxes.taken()
    }

    /// Takes what `master` has posted.
    #[inline]
    fn take_posted(&mut self, master: ServerId) {
        if let Some(ring) = self.inboxes.take_out(master) {
            self.take_from(master, ring, false);
        }
    }

    /// Closes the rings of some masters, and takes what is in them.
    fn close_rings(&mut self, of: impl Fn(ServerId) -> bool) {
        for master in self.inboxes.masters().into_iter().filter(|&master| of(master)) {
            if let Some(ring) = self.inboxes.take_out(master) {
                self.take_from(master, ring, true);
            }
        }
    }

    /// Takes the writes in a ring. If one of them cannot be executed, closes the ring: the master
    /// then writes by messages, whose replies say why.
    fn take_from(
        &mut self,
        master: ServerId,
        (mut inbox, mut write): (Box<dyn Inbox>, Vec<u8>),
        mut close: bool,
    ) {
        let mut taken = 0;
        if close {
            inbox.close();
        }
        while taken < MOST_TAKEN && inbox.take(&mut write) {
            taken += 1;
            let parsed = WriteReplica::parse(&write).ok();
            let parsed = parsed.filter(|w| w.target.master == master && !w.open && !w.close);
            let executed = parsed.is_some_and(|write| {
                let end = write.offset as usize + write.data.len();
                self.apply(&write).is_ok_and(|len| len as usize >= end)
            });
            if !executed && !close {
                close = true;
                inbox.close();
            }
        }
        self.inboxes.put_back(master, (!close).then_some(inbox), (write, taken as u64));
    }

    /// Returns true if the backup takes no more writes of `master`.
    #[must_use]
    pub fn is_fenced(&self, master: ServerId) -> bool {
        self.fenced.get(&master.index).is_some_and(|&last| master.generation <= last)
    }

    /// Returns the committed replicas of `master` behind the segment `after`, as many as fit into a
    /// page.
    #[must_use]
    pub fn list(&self, master: ServerId, after: SegmentId) -> ReplicaPage {
        let from = Bound::Excluded((master, after));
        let to = Bound::Included((master, SegmentId(u32::MAX)));
        let is_sound = !self.frames.has_failed();
        // A range from and to one excluded bound would panic.
        let mut rest = (after < SegmentId(u32::MAX))
            .then(|| self.replicas.range((from, to)))
            .into_iter()
            .flatten()
            .filter(|(_, replica)| replica.committed && !replica.damaged && is_sound)
            .map(|(&(_, segment), replica)| {
                let Replica { epoch, len, closed, .. } = *replica;
                recovery::Replica { segment, epoch, len, closed }
            });
        let replicas = rest.by_ref().take(control::MAX_PAGE).collect();
        ReplicaPage { more: rest.next().is_some(), replicas }
    }

    /// Returns true if the device delivers the `len` bytes at `offset` of a replica, so that they
    /// may be read. A read of other ones may end the process.
    #[must_use]
    pub fn delivers(&self, master: ServerId, segment: SegmentId, offset: u32, len: u32) -> bool {
        let replica = self.replicas.get(&(master, segment));
        let within = replica.filter(|r| offset.checked_add(len).is_some_and(|end| end <= r.len));
        within.is_some_and(|replica| self.frames.delivers(replica.frame, offset, len))
    }

    /// Returns the bytes of a replica, if it exists. [`Backup::delivers`] tells which of them may
    /// be read.
    #[must_use]
    pub fn bytes(&self, master: ServerId, segment: SegmentId) -> Option<&[u8]> {
        let replica = self.replicas.get(&(master, segment)).filter(|replica| !replica.damaged)?;
        if self.frames.has_failed() {
            return None;
        }
        self.frames.bytes(replica.frame).get(..replica.len as usize)
    }
}
