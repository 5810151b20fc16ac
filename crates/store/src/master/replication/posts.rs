//! Posted writes of a master, to backups that share memory with it.
//!
//! A posted write counts at once. The first one that is not confirmed sets the time of a message
//! that asks for a reply; more can be posted until it comes. If the message fails, the backup gets
//! no more posted writes until it has given another ring.

use alloc::boxed::Box;
use alloc::string::String;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::time::MS;

use super::{Call, Replication};
use crate::backup::Outbox;
use crate::master::links;
use crate::master::membership::CALL_NS;
use crate::message::replica::{Target, WriteReplica};
use crate::message::ring::OpenRing;
use crate::objects::log::Log;
use crate::objects::segment::{Location, Position};
use crate::types::ServerId;

/// The longest write that a master posts. A longer one takes more time than its reply, and fills
/// the ring.
const MOST_POSTED: u32 = 16 << 10;
/// The time from a posted write to the question whether the backup has it. If the backup does not
/// answer in time, another one takes its place.
const CONFIRM_NS: u64 = 10 * MS;
impl Replication {
    /// Lets the master post writes to backups that share memory with it, unless their disks have to
    /// confirm them.
    pub(in crate::master) fn allow_posts(&mut self) {
        self.posts.allowed = !self.sync;
    }

    /// Returns a ring that a backup has offered, each one once.
    pub(in crate::master) fn take_offer(&mut self) -> Option<(ServerId, String)> {
        self.posts.offered.take()
    }

    /// Sets the ring for posted writes to `backup`.
    pub(in crate::master) fn set_ring(&mut self, backup: ServerId, ring: Option<Box<dyn Outbox>>) {
        self.backups.set_ring(backup, ring);
    }

    /// Returns the end of the durable part of the log if posted writes have moved it.
    #[inline]
    pub(in crate::master) fn take_posted(&mut self) -> Option<Position> {
        self.posts.durable.take()
    }

    /// Returns the number of writes that were posted.
    pub(in crate::master) fn posted_writes(&self) -> u64 {
        self.posts.count
    }

    /// Asks at once for what was posted to the server of a link, with which a session has ended.
    pub(in crate::master) fn unreachable(&mut self, to: Link) {
        let Some(server) = self.backups.unreachable(to) else { return };
        let replicas = self.active.values_mut().flat_map(|segment| &mut segment.replicas);
        for replica in replicas.filter(|replica| replica.backup == server) {
            replica.confirm_at = replica.confirm_at.map(|_| Instant::ZERO);
        }
        self.pending = true;
    }

    /// Returns the call that asks a backup for a ring.
    pub(super) fn next_ring(
        &mut self,
        now: Instant,
        (cluster, master): (u64, ServerId),
        tag: u64,
    ) -> Option<Output> {
        if !self.posts.allowed {
            return None;
        }
        let backup = match self.backups.next_to_share(now) {
            Ok(backup) => backup,
            Err(at) => {
                self.due = self.due.min(at);
                return None;
            }
        };
        self.calls.insert(tag, Call::OpenRing(backup));
        let message = OpenRing { cluster, backup, master }.emit().into();
        Some(Output::Call {
            link: links::backup(backup),
            tag,
            message,
            deadline: now.after(CALL_NS),
        })
    }

    /// Posts the next `len` bytes of the segment in `slot`, if the backup shares memory with this
    /// server. Returns false, and nothing was posted, if that is not possible.
    pub(super) fn post(
        &mut self,
        now: Instant,
        log: &mut Log,
        write: &WriteReplica<'_>,
        (slot, len): (u32, u32),
        index: usize,
    ) -> bool {
        let Target { backup, segment: id, .. } = write.target;
        if !self.posts.allowed || len > MOST_POSTED {
            return false;
        }
        log.seal(slot);
        let data = &log.bytes(Location::new(slot, write.offset))[..len as usize];
        if !self.backups.post(backup, [&write.emit_front(), data]) {
            return false;
        }
        self.posts.count += 1;
        if let Some(segment) = self.active.get_mut(&id) {
            let replica = &mut segment.replicas[index];
            replica.acked = write.offset + len;
            let confirm_at = *replica.confirm_at.get_or_insert_with(|| now.after(CONFIRM_NS));
            self.due = self.due.min(confirm_at);
        }
        self.posts.durable = self.settle(log, id).or(self.posts.durable);
        true
    }
}
