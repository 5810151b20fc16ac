//! The writes to replicas: which replica gets which bytes next.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Output;
use sprat_proto::rpc::Message;
use sprat_proto::time::MS;

use super::segment::{Kind, Segment};
use super::{Call, Replication};
use crate::master::replication::backups::link;
use crate::message::replica::{Target, WriteReplica};
use crate::objects::log::Log;
use crate::objects::segment::{Location, SegmentId, State};
use crate::types::ServerId;

/// The most bytes of a segment in one write to a replica.
const MOST_DATA: u32 = 1 << 20;
/// The length up to which the data of a write is copied into the request.
const COPIED: u32 = 4 << 10;
/// The time that a write to a replica has for each byte of its data.
const BYTE_NS: u64 = 20;
/// The most writes to replicas of survivor segments in progress at a time, for each replica of the
/// log. More would delay the writes to the head beyond their time.
const MOST_ASIDE: usize = 2;
/// The pause before the master looks again for a backup.
const LATER_NS: u64 = 100 * MS;

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
            let segment = self.active.get_mut(&id)?;
            if let Some(slot) = log.slot(id) {
                let memory = &log.slots()[slot as usize];
                if memory.state != State::Open {
                    segment.len = Some(memory.written);
                }
            }
            let is_head = segment.kind == Kind::Head;
            if is_head && !earlier_open || !is_head && aside >= MOST_ASIDE * self.replicas {
                continue;
            }
            earlier_open &= !is_head || segment.is_open();
            for index in 0..self.replicas {
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
        let may_close = self.may_close(id);
        let segment = self.active.get_mut(&id)?;
        let replica = segment.replicas[index];
        if replica.calling || (replica.closed && replica.epoch == segment.epoch) {
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
        let segment = self.active.get_mut(&id)?;
        let slot = log.slot(id);
        let written = slot.map_or(replica.acked, |slot| log.slots()[slot as usize].written);
        let only_front = segment.kind == Kind::Head && self.heads.front() != Some(&id);
        let most = if only_front { segment.front } else { written };
        // The first write of a head is its front alone, so that all backups open it at once.
        let most = if replica.opened || segment.kind == Kind::Side { most } else { segment.front };
        let end = most.min(replica.acked + MOST_DATA).max(replica.acked);
        let close = may_close && segment.len == Some(end);
        let restamp = replica.opened && replica.epoch != segment.epoch;
        let closes = close && !replica.closed;
        if replica.opened && end == replica.acked && !restamp && !closes {
            return None;
        }
        let write = WriteReplica {
            target: Target { cluster, backup, master: me, segment: id },
            epoch: segment.epoch,
            offset: replica.acked,
            open: !replica.opened,
            close,
            commit: end >= segment.needed,
            data: &[],
        };
        let len = end - replica.acked;
        let message = match slot {
            Some(slot) => request(&write, log, slot, len),
            None if len == 0 => write.emit_front().to_vec().into(),
            None => return None,
        };
        segment.replicas[index].calling = true;
        let epoch = write.commit.then_some(write.epoch);
        self.calls.insert(tag, Call::Write { segment: id, backup, end, epoch, close });
        let deadline = now.after(self.slow_ns + BYTE_NS * u64::from(len));
        Some(Output::Call { link: link(backup), tag, message, deadline })
    }

    /// Chooses a backup for a replica that has none.
    fn choose(&mut self, now: Instant, id: SegmentId, index: usize) -> Option<ServerId> {
        let segment = self.active.get_mut(&id)?;
        let suits = |server: ServerId| !segment.is_on(server);
        let chosen = self.backups.choose(now, &mut self.rng, suits);
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
