//! The writes to replicas: which replica gets which bytes next.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Output;
use sprat_proto::rpc::Message;
use sprat_proto::time::MS;

use super::segment::{Kind, Segment};
use super::{Call, Replication};
use crate::master::links;
use crate::message::replica::{Target, WriteReplica};
use crate::objects::log::Log;
use crate::objects::segment::{Location, SegmentId, State};
use crate::types::ServerId;

/// The most bytes of a segment in one write to a replica, unless one entry is longer.
const MOST_DATA: u32 = 1 << 20;
/// The most bytes of a segment in one write whose reply waits for the disk, unless one entry is
/// longer: one sync brings all of them there.
const MOST_SYNCED: u32 = 8 << 20;
/// The length up to which the data of a write is copied into the request.
const COPIED: u32 = 4 << 10;
/// The time that a write to a replica has for each byte of its data.
const BYTE_NS: u64 = 20;
/// The most writes to replicas of survivor segments in progress at a time, for each replica of the
/// log. More would delay the writes to the head beyond their time.
const MOST_ASIDE: usize = 2;
/// The pause before the master looks again for a backup.
const LATER_NS: u64 = 100 * MS;

/// The effect of a write on a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The write only appends, in the epoch of the replica. It may be posted.
    Append,
    /// The backup has all. The reply would show that it still lives.
    Confirm,
    /// The write does more, or fills a replica that does not count yet.
    Change,
}

/// The next write to a replica.
struct Planned {
    write: WriteReplica<'static>,
    /// The memory of the segment, if it is in the log.
    slot: Option<u32>,
    /// The number of bytes of the write's data.
    len: u32,
    step: Step,
}

impl Replication {
    pub(super) fn next_write(
        &mut self,
        now: Instant,
        log: &mut Log,
        me: (u64, ServerId),
        tag: u64,
    ) -> Option<Output> {
        // Heads are opened in the order of the log.
        let mut earlier_open = true;
        let aside = self
            .active
            .values()
            .filter(|segment| segment.kind == Kind::Side)
            .map(Segment::calls)
            .sum::<usize>();
        let ids: Vec<SegmentId> = self.active.keys().copied().collect();
        for id in ids {
            let Some(segment) = self.active.get_mut(&id) else { continue };
            match log.slot(id) {
                Some(slot) => {
                    let memory = &log.slots()[slot as usize];
                    if memory.state != State::Open {
                        segment.len = Some(memory.written);
                    }
                }
                None => {
                    // The cleaner may free a segment in the turn in which the log closes it, and
                    // frees none before all replicas have had all of it.
                    segment.len.get_or_insert(segment.needed);
                    if segment.waive() {
                        self.posts.durable = self.durable().or(self.posts.durable);
                    }
                }
            }
            let Some(segment) = self.active.get_mut(&id) else { continue };
            let is_head = segment.kind == Kind::Head;
            if is_head && !earlier_open || !is_head && aside >= MOST_ASIDE * self.replicas {
                continue;
            }
            earlier_open &= !is_head || segment.is_open();
            for index in 0..segment.replicas.len() {
                if let Some(output) = self.write(now, log, me, tag, id, index) {
                    return Some(output);
                }
            }
        }
        None
    }

    /// Returns the next action for one replica of a segment.
    fn write(
        &mut self,
        now: Instant,
        log: &mut Log,
        (cluster, me): (u64, ServerId),
        tag: u64,
        id: SegmentId,
        index: usize,
    ) -> Option<Output> {
        let segment = self.active.get_mut(&id)?;
        let replica = segment.replicas[index];
        let waits = replica.calling && !replica.confirming;
        if waits || (replica.closed && replica.epoch == segment.epoch) {
            return None;
        }
        if now < replica.not_before {
            self.due = self.due.min(replica.not_before);
            return None;
        }
        let backup = match replica.backup.generation {
            0 => self.choose(now, id, index)?,
            _ => replica.backup,
        };
        if let Some(connect) = self.backups.connect(backup) {
            return Some(connect);
        }
        let target = Target { cluster, backup, master: me, segment: id };
        let Planned { write, slot, len, step } = self.plan(log, target, index)?;
        let confirm_at = replica.confirm_at.filter(|_| !replica.calling);
        match (step, slot) {
            (Step::Confirm, _) if confirm_at.is_none_or(|at| now < at) => {
                self.due = self.due.min(confirm_at.unwrap_or(Instant::NEVER));
                return None;
            }
            (Step::Append, Some(slot)) if self.post(now, log, &write, (slot, len), index) => {
                return None;
            }
            _ if replica.calling => return None,
            _ => {}
        }
        let message = match slot {
            Some(slot) => request(&write, log, slot, len),
            None if len == 0 => write.emit_front().to_vec().into(),
            None => return None,
        };
        let replica = &mut self.active.get_mut(&id)?.replicas[index];
        (replica.calling, replica.confirm_at) = (true, None);
        replica.confirming = step == Step::Confirm;
        let (epoch, close) = (write.commit.then_some(write.epoch), write.close);
        let end = write.offset + len;
        self.calls.insert(tag, Call::Write { segment: id, backup, end, epoch, close });
        let deadline = now.after(self.slow_ns + BYTE_NS * u64::from(len));
        Some(Output::Call { link: links::backup(backup), tag, message, deadline })
    }

    /// Returns the next write to a replica, without its data.
    fn plan(&self, log: &Log, target: Target, index: usize) -> Option<Planned> {
        let id = target.segment;
        let (segment, may_close) = (self.active.get(&id)?, self.may_close(id));
        let replica = segment.replicas[index];
        let slot = log.slot(id);
        let written = slot.map_or(replica.acked, |slot| log.slots()[slot as usize].written);
        let only_front = segment.kind == Kind::Head && self.heads.front() != Some(&id);
        let most = if only_front { segment.front } else { written };
        // The first write of a head is its front alone, so that all backups open it at once.
        let most = if replica.opened || segment.kind == Kind::Side { most } else { segment.front };
        let most_data = if self.sync { MOST_SYNCED } else { MOST_DATA };
        let end = match slot {
            // A replica ends with an entry, or a recovery could not tell its end from damage.
            Some(slot) if most > replica.acked + most_data => {
                log.end_of_entries(slot, replica.acked, most_data)
            }
            _ => most.max(replica.acked),
        };
        let close = may_close && segment.len == Some(end);
        let commit = end >= segment.needed;
        let continues = replica.opened && replica.epoch == segment.epoch;
        let step = match end == replica.acked {
            _ if !continues || close && !replica.closed => Step::Change,
            true => Step::Confirm,
            false if commit => Step::Append,
            false => Step::Change,
        };
        let (epoch, offset, open) = (segment.epoch, replica.acked, !replica.opened);
        // A replica that does not count need not survive.
        let sync = self.sync && commit;
        let write = WriteReplica { target, epoch, offset, open, close, commit, sync, data: &[] };
        Some(Planned { write, slot, len: end - offset, step })
    }

    /// Chooses a backup for a replica that has none.
    fn choose(&mut self, now: Instant, id: SegmentId, index: usize) -> Option<ServerId> {
        let segment = self.active.get_mut(&id)?;
        // A server that has lost a replica of the segment keeps its frame until this one is whole.
        let (backups, rng) = (&mut self.backups, &mut self.rng);
        let suits = |server: ServerId| !segment.is_on(server);
        let is_new = |server: ServerId| suits(server) && !segment.had(server);
        let others = segment.others(index);
        let chosen = backups
            .choose(now, rng, &others, is_new)
            .or_else(|| backups.choose(now, rng, &others, suits));
        if let Some(backup) = chosen {
            segment.replicas[index].backup = backup;
            self.lacking_since = None;
        } else {
            self.due = self.due.min(now.after(LATER_NS));
            if segment.kind == Kind::Head {
                self.lacking_since.get_or_insert(now);
            }
        }
        chosen
    }

    /// Returns true if the replicas of a segment may be closed once they have all of it.
    fn may_close(&self, id: SegmentId) -> bool {
        match self.heads.iter().position(|&head| head == id) {
            None => true,
            Some(at) => self
                .heads
                .get(at + 1)
                .and_then(|next| self.active.get(next))
                .is_some_and(Segment::is_open),
        }
    }
}

/// Returns the request of `write` with the next `len` bytes of the segment in `slot`, copied or
/// lent.
fn request(write: &WriteReplica<'_>, log: &mut Log, slot: u32, len: u32) -> Message {
    let mut message = Message::from(write.emit_front().to_vec());
    if len == 0 {
        return message;
    }
    log.seal(slot);
    let at = Location::new(slot, write.offset);
    let lent = if len > COPIED { log.lend(at, len as usize) } else { None };
    match lent {
        Some(slice) => message.slices.push(slice),
        None => message.bytes.extend_from_slice(&log.bytes(at)[..len as usize]),
    }
    message
}
