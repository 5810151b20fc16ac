//! Messages about the replicas of a crashed master's log, and about its recovery.
//!
//! ```text
//!  coordinator ── ListReplicas ─► backups      the master is fenced
//!              ── ReadReplica ──► a backup     the end of the log: its head and digest
//!              ── Recover ──────► masters      which tablets to replay from which replicas
//!       master ── ReadReplica ──► backups
//!              ── RecoveryEnded ► coordinator  the tablets have another owner
//!  coordinator ── FreeReplicas ─► backups      when no tablet is left
//!       client ── AcceptLoss ───► coordinator  to go on without the replicas that are missing
//! ```
//!
//! The formats are those of [`super::control`], apart from the reply to [`ReadReplica`].

use alloc::vec::Vec;

use super::codec::{choices, records, replies, requests};
use crate::durability::TableDurability;
use crate::objects::segment::SegmentId;
use crate::types::{HashKey, ServerId, TableId, Version};

/// The most bytes of a replica in one reply to [`ReadReplica`].
pub const MOST_READ: u32 = 1 << 20;

choices! {
    pub,
    /// The way in which a master's recovery of some tablets ended.
    Ending {
        /// The master has all objects of the tablets, and its own log has them with all replicas.
        Done = 0,
        /// No backup could give an intact replica of a segment.
        Lacking = 1,
        /// The memory of the master is full.
        Full = 2,
    }
}

records! {
    pub,
    /// A replica in the reply [`ReplicaPage`].
    Replica {
        /// The segment of which this is a replica.
        segment: SegmentId,
        /// The epoch of the last write to the replica.
        epoch: u32,
        /// The length of the replica in bytes.
        len: u32,
        /// True if the replica is complete.
        closed: bool,
    }

    /// A tablet to recover, in [`Recover`].
    Part {
        /// The table of the tablet to recover.
        table: TableId,
        /// The first key hash of the tablet to recover.
        first: u64,
        /// The last key hash of the tablet to recover.
        last: u64,
        /// The secret under which the table's keys are hashed.
        hash_key: HashKey,
        /// The time at which a change of the table's objects is acknowledged.
        durability: TableDurability,
        /// The segment of the crashed master's log up to which its entries are not of this tablet's
        /// life there, and do not count.
        since: SegmentId,
        /// The lowest version of a later write to the tablet. Segments that are lost may have given
        /// all lower ones.
        floor: Version,
    }

    /// A server with replicas of the crashed master's log, in [`Recover`].
    Source<'a> {
        /// The server that holds replicas.
        backup: ServerId,
        /// The locators at which other servers reach it, with `;` between them.
        data: &'a str,
    }

    /// A segment of the crashed master's log, in [`Recover`].
    Piece {
        /// The id of the segment.
        segment: SegmentId,
        /// The number of bytes of the segment to replay.
        len: u32,
        /// The indexes in [`Recover::backups`] of the servers that have at least that many.
        on: Vec<u16>,
    }

    /// A tablet without its owner, in [`RecoveryEnded`] and [`Loss`].
    Range {
        /// The table of the tablet.
        table: TableId,
        /// The first key hash of the tablet.
        first: u64,
        /// The last key hash of the tablet.
        last: u64,
    }

    /// A replica whose bytes are not those that were written, in [`RecoveryEnded`] and [`Loss`].
    DamagedReplica {
        /// The server that holds the replica.
        backup: ServerId,
        /// The segment of which this is a replica.
        segment: SegmentId,
    }

    /// Segments whose ids follow each other, in [`Loss`].
    SegmentRange {
        /// The first segment of the range.
        first: SegmentId,
        /// The last segment of the range.
        last: SegmentId,
    }
}

requests! {
    /// Asks a backup for its replicas of a crashed master's log, and fences the master: the backup
    /// takes no more writes of it. The reply is [`ReplicaPage`].
    ListReplicas {
        /// The id of the cluster whose coordinator sends the order.
        cluster: u64,
        /// The term of the coordinator that sends the order.
        term: u64,
        /// The backup that the coordinator means.
        backup: ServerId,
        /// The crashed master that owns the log.
        master: ServerId,
        /// The segment after which the list begins.
        after: SegmentId,
    }

    /// Asks a backup for bytes of a replica. The reply has status OK and the bytes, at most
    /// [`MOST_READ`], fewer than asked for at the end of the replica. [`Status::NoReplica`] means
    /// that the backup has no such replica.
    ///
    /// [`Status::NoReplica`]: crate::message::Status::NoReplica
    ReadReplica {
        /// The id of the cluster that both servers belong to.
        cluster: u64,
        /// The backup that holds the replica.
        backup: ServerId,
        /// The crashed master that owned the log.
        master: ServerId,
        /// The segment of the log.
        segment: SegmentId,
        /// The offset in the segment of the first byte.
        offset: u32,
        /// The number of bytes.
        len: u32,
    }

    /// Orders a backup to free all replicas of a crashed master's log, which is recovered. The
    /// reply is [`Status::Ok`] alone.
    ///
    /// [`Status::Ok`]: crate::message::Status::Ok
    FreeReplicas {
        /// The id of the cluster whose coordinator sends the order.
        cluster: u64,
        /// The term of the coordinator that sends the order.
        term: u64,
        /// The backup that the coordinator means.
        backup: ServerId,
        /// The crashed master that owned the log. The backup has fenced it.
        master: ServerId,
    }

    /// Orders a backup to free the replicas of a master's log that earlier lives of the backup have
    /// left. The log has all its replicas elsewhere. The reply is [`Status::Ok`] alone.
    ///
    /// [`Status::Ok`]: crate::message::Status::Ok
    FreeLeftReplicas {
        /// The id of the cluster that both servers belong to.
        cluster: u64,
        /// The backup that the master means.
        backup: ServerId,
        /// The master that owns the log.
        master: ServerId,
    }

    /// Orders a master to recover tablets of a crashed master. The reply is [`Recovering`], also if
    /// the master is at it already. The master reports the end by [`RecoveryEnded`].
    /// [`Status::Retry`] means that the master is busy with another recovery.
    ///
    /// [`Status::Retry`]: crate::message::Status::Retry
    Recover<'a> {
        /// The id of the cluster whose coordinator sends the order.
        cluster: u64,
        /// The term of the coordinator that sends the order.
        term: u64,
        /// The number of the recovery. A later recovery of the same tablets has a higher one.
        recovery: u64,
        /// The master that the coordinator orders to recover the tablets.
        server: ServerId,
        /// The crashed master that owned the tablets.
        crashed: ServerId,
        /// The tablets to recover.
        tablets: Vec<Part>,
        /// The servers with replicas of the log.
        backups: Vec<Source<'a>>,
        /// The segments of the log by id.
        segments: Vec<Piece>,
    }

    /// Reports the end of a recovery or a migration by a master. After [`Ending::Done`] the reply
    /// is [`Status::Ok`] alone once the coordinator has durably made the master the owner of the
    /// tablets. [`Status::NoRecovery`] means that another server owns or recovers them.
    ///
    /// [`Status::Ok`]: crate::message::Status::Ok
    /// [`Status::NoRecovery`]: crate::message::Status::NoRecovery
    RecoveryEnded {
        /// The id of the cluster that the master joined.
        cluster: u64,
        /// The number of the recovery or migration.
        recovery: u64,
        /// The master that has recovered the tablets.
        server: ServerId,
        /// The master that owned the tablets: it has crashed, or it is the source of a migration.
        crashed: ServerId,
        /// The way in which the recovery ended.
        ending: Ending,
        /// The segment of the recovery master's log up to which entries of the tablets do not
        /// count: they are of an earlier time. 0 if the log has none.
        since: SegmentId,
        /// The number of bytes of log entries that the master has replayed.
        replayed: u64,
        /// The recovered tablets.
        tablets: Vec<Range>,
        /// The replicas that were found damaged, if the ending is [`Ending::Lacking`]: at most
        /// [`MAX_PAGE`](super::control::MAX_PAGE).
        damaged: Vec<DamagedReplica>,
    }

    /// Asks the coordinator what the blocked recovery of a crashed server would lose if it went on,
    /// and lets it go on. The reply is [`Loss`] once the decision is durable.
    /// [`Status::NoRecovery`] means that the recovery is not blocked.
    ///
    /// [`Status::NoRecovery`]: crate::message::Status::NoRecovery
    AcceptLoss {
        /// The crashed server whose recovery is blocked.
        server: ServerId,
        /// True if the recovery goes on without the segments that are missing. Otherwise nothing
        /// changes.
        accept: bool,
    }
}

replies! {
    /// The reply to [`ListReplicas`]: some of the replicas by segment. A replica that was never
    /// committed is not listed.
    ReplicaPage {
        /// True if more replicas follow the last one of this reply.
        more: bool,
        /// At most [`MAX_PAGE`](super::control::MAX_PAGE) replicas by segment.
        replicas: Vec<Replica>,
    }

    /// The reply to [`AcceptLoss`]: what a recovery loses that goes on without the segments that
    /// are missing. Lists are cut off at [`MAX_PAGE`](super::control::MAX_PAGE) entries.
    Loss {
        /// True if the end of the log is among what is lost: the latest changes, of which nothing
        /// is known.
        head: bool,
        /// The number of segments that are lost, as far as they are known.
        segments: u32,
        /// The number of bytes in those segments.
        bytes: u64,
        /// The segments that are lost.
        lost: Vec<SegmentRange>,
        /// The replicas of lost segments that are there and damaged.
        damaged: Vec<DamagedReplica>,
        /// The number of segments that are recovered.
        kept_segments: u32,
        /// The number of bytes in the segments that are recovered.
        kept_bytes: u64,
        /// The number of tablets that may have lost objects.
        tablets: u32,
        /// The tablets that may have lost objects.
        ranges: Vec<Range>,
    }

    /// The reply to [`Recover`].
    Recovering {
        /// The number of bytes of the log that the master has replayed.
        replayed: u64,
    }
}
