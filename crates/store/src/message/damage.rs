//! The message by which a backup reports replicas that it has lost.
//!
//! ```text
//!  backup ── ReplicaDamaged ─► master      repeated until the master has answered
//!  master ── WriteReplica ───► backups     the segments get other replicas
//!         ── FreeReplica ────► backup      when they have them
//! ```
//!
//! The format is that of [`super::control`].

use alloc::vec::Vec;

use super::codec::{records, requests};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

records! {
    pub,
    /// A replica that is lost or damaged, in [`ReplicaDamaged`].
    LostReplica {
        /// The segment of which the backup had a replica.
        segment: SegmentId,
        /// The epoch of the replica. A replica of another epoch is not lost.
        epoch: u32,
    }
}

requests! {
    /// Reports replicas whose bytes a backup does not have any more. The reply is [`Status::Ok`]
    /// alone once the master has counted each of them as lost, or knows of no such replica.
    /// [`Status::Retry`] means that the backup has to report some of them again.
    ///
    /// [`Status::Ok`]: crate::message::Status::Ok
    /// [`Status::Retry`]: crate::message::Status::Retry
    ReplicaDamaged {
        /// The id of the cluster that both servers belong to.
        cluster: u64,
        /// The master that owns the log.
        master: ServerId,
        /// The backup that has lost the replicas.
        backup: ServerId,
        /// At most [`MAX_PAGE`](super::control::MAX_PAGE) replicas.
        replicas: Vec<LostReplica>,
    }
}
