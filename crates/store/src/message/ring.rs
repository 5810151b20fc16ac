//! The message by which a master asks a backup for a ring in memory that both share.
//!
//! Posted writes go through the ring: each record of it is a [`WriteReplica`] whose backup is the
//! owner of the ring, without `open` and `close`.
//!
//! [`WriteReplica`]: super::replica::WriteReplica

use super::codec::{replies, requests};
use crate::types::ServerId;

/// The longest text of an offer in bytes: a path of Linux, and two numbers before it.
pub const MAX_OFFER: usize = 4096 + 64;

requests! {
    /// Asks a backup for a ring for the writes of a master. A ring that the master had before is
    /// closed. The reply is [`Ring`]. [`Status::NoSpace`] means that the backup gives no ring.
    ///
    /// [`Status::NoSpace`]: crate::message::Status::NoSpace
    OpenRing {
        /// The id of the cluster that both servers belong to.
        cluster: u64,
        /// The backup that the master means.
        backup: ServerId,
        /// The master that will write.
        master: ServerId,
    }
}

replies! {
    /// The reply to [`OpenRing`].
    Ring<'a> {
        /// The text by which a process of the same machine and user finds the ring, at most
        /// [`MAX_OFFER`] bytes.
        offer: &'a str,
    }
}
