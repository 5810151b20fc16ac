//! Messages about tablets that are split, merged and moved from one server to another.
//!
//! ```text
//!      client ── SplitTablet, MergeTablets ─► coordinator  the map changes, no object moves
//!             ── MoveTablet, ListMigrations ► coordinator
//! coordinator ── HotRange ────► master       a range with a part of the master's load
//! coordinator ── Migrate ─────► target       to take over the tablet, and to ask for progress
//!      target ── PullTablet ──► source       page by page; the last ones close the tablet there
//!             ── RecoveryEnded ► coordinator the tablet has another owner
//!      source ── FindTablet ──► coordinator  to learn what has become of the tablet
//! ```
//!
//! The formats are those of [`super::control`], apart from the reply to [`PullTablet`], which
//! [`Page`] describes.

use alloc::vec::Vec;

use super::codec::{choices, done, outcome, records, replies, requests};
use super::recovery::Part;
use crate::message::Status;
use crate::objects::segment::SegmentId;
use crate::types::{ServerId, TableId};

/// The segment of which a page of [`PullTablet`] says that it is.
pub const PAGE: SegmentId = SegmentId(1);

/// The most pages of [`PullTablet`] that the target asks for ahead: a request for a page
/// acknowledges the one that is this many pages before it, and all before that.
pub const MOST_AHEAD: u64 = 8;

/// The number that stands for all samples of a master in [`HotRange`] and [`Hot`].
pub const WHOLE: u16 = 1024;

choices! {
    pub,
    /// The state of a migration according to the coordinator.
    MigrationState {
        /// The migration waits until its servers have ended others.
        Waiting = 0,
        /// The target pulls objects from the source.
        Running = 1,
        /// The target owns the tablet.
        Done = 2,
        /// The migration was given up. The source owns the tablet, as before.
        Failed = 3,
    }

    /// The place of a tablet that leaves a server, in the reply [`Found`].
    Fate {
        /// The migration is in progress.
        Moving = 0,
        /// The migration was given up, and the server owns the tablet.
        Kept = 1,
        /// The server does not own the tablet any more.
        Gone = 2,
    }
}

records! {
    pub,
    /// A migration in the reply [`MigrationPage`].
    Migration<'a> {
        /// The number of the migration. A later one has a higher number.
        number: u64,
        /// The state of the migration.
        state: MigrationState,
        /// The table of the tablet that moves.
        table: TableId,
        /// The first key hash of the tablet that moves.
        first: u64,
        /// The last key hash of the tablet that moves.
        last: u64,
        /// The server that the tablet leaves.
        source: ServerId,
        /// The server that the tablet goes to.
        target: ServerId,
        /// The number of bytes of log entries that the target has taken over.
        bytes: u64,
        /// The reason for which the migration failed. Empty otherwise.
        reason: &'a str,
    }
}

requests! {
    /// Asks to divide the tablet of a table that contains a key hash, so that a tablet begins with
    /// that hash. The reply is [`Status::Ok`] alone once that is durable, also if one begins there
    /// already.
    SplitTablet<'a> {
        /// The name of the table whose tablet to split.
        name: &'a str,
        /// The first key hash of the new tablet, at least 1.
        at: u64,
    }

    /// Asks to unite the tablet that begins with a key hash and the one before it. One server must
    /// own both. The reply is [`Status::Ok`] alone once that is durable, also if no tablet begins
    /// there.
    MergeTablets<'a> {
        /// The name of the table whose tablets to merge.
        name: &'a str,
        /// The first key hash of the second tablet, at least 1.
        at: u64,
    }

    /// Asks to move a part of a table to another server while clients use it. The reply is
    /// [`Moving`] as soon as the migration is known; [`ListMigrations`] shows its progress.
    MoveTablet<'a> {
        /// The name of the table of which a part moves.
        name: &'a str,
        /// The first key hash of the part. One tablet must contain the part.
        first: u64,
        /// The last key hash of the part.
        last: u64,
        /// The index of the server to move the part to.
        target: u32,
    }

    /// Lists the migrations that are in progress or have ended a short while ago, by number. The
    /// reply is [`MigrationPage`].
    ListMigrations {
        /// The number after which the list begins.
        after: u64,
    }

    /// Orders a master to take over a tablet from another one that serves it. The reply is
    /// [`Recovering`](super::recovery::Recovering), also if the master is at it already. The master
    /// reports the end by [`RecoveryEnded`](super::recovery::RecoveryEnded), where the crashed
    /// server is the source. [`Status::Retry`] means that the master is busy with another migration
    /// or recovery.
    Migrate<'a> {
        /// The id of the cluster whose coordinator sends the order.
        cluster: u64,
        /// The term of the coordinator that sends the order.
        term: u64,
        /// The number of the migration.
        migration: u64,
        /// The master that the coordinator orders to take over the tablet.
        server: ServerId,
        /// The server that owns the tablet.
        source: ServerId,
        /// The locators at which other servers reach the source, with `;` between them.
        data: &'a str,
        /// The tablet to take over. Its field `since` has no meaning here.
        part: Part,
    }

    /// Asks the owner of a tablet for some of its objects, and for the changes since they were
    /// sent. The reply is a [`Page`]. [`Status::NoRecovery`] means that the migration has ended.
    /// [`Status::Retry`] means that the server does not own the tablet yet, or is busy with another
    /// migration.
    PullTablet {
        /// The id of the cluster that both servers belong to.
        cluster: u64,
        /// The server that owns the tablet.
        source: ServerId,
        /// The number of the migration.
        migration: u64,
        /// The table of the tablet to pull.
        table: TableId,
        /// The first key hash of the tablet to pull.
        first: u64,
        /// The last key hash of the tablet to pull.
        last: u64,
        /// The number of the page, 1 first. A request for a page acknowledges those that are
        /// [`MOST_AHEAD`] before it.
        page: u64,
        /// The number of the attempt to get pages in their order, 1 first. After a failure, a later
        /// attempt begins with the first page that is missing. It is made anew, and so are those
        /// behind it. A request of an earlier attempt is refused.
        attempt: u64,
        /// The first page of the attempt.
        from: u64,
        /// True if the source must close the tablet: it serves it no more.
        close: bool,
    }

    /// Asks a master for a range within one of its tablets that has a part of its load. The reply
    /// is [`Hot`].
    HotRange {
        /// The id of the cluster whose coordinator asks.
        cluster: u64,
        /// The term of the coordinator that asks.
        term: u64,
        /// The master that the coordinator means.
        server: ServerId,
        /// The part of the master's accesses that the range should have, of [`WHOLE`].
        wanted: u16,
    }

    /// Asks the coordinator for the fate of a tablet that leaves this server. The reply is
    /// [`Found`].
    FindTablet {
        /// The id of the cluster that the server joined.
        cluster: u64,
        /// The server that the tablet leaves.
        server: ServerId,
        /// The number of the migration.
        migration: u64,
        /// The table of the tablet that leaves.
        table: TableId,
        /// The first key hash of the tablet that leaves.
        first: u64,
        /// The last key hash of the tablet that leaves.
        last: u64,
    }
}

replies! {
    /// The reply to [`MoveTablet`]: the migration waits or has begun.
    Moving {
        /// The number of the migration.
        migration: u64,
    }

    /// The reply to [`ListMigrations`]: some of the migrations by number.
    MigrationPage<'a> {
        /// True if more migrations follow the last one of this reply.
        more: bool,
        /// At most [`MAX_PAGE`](super::control::MAX_PAGE) migrations by number.
        migrations: Vec<Migration<'a>>,
    }

    /// The reply to [`HotRange`]: the range whose part of the master's accesses is nearest to the
    /// wanted one. All fields are 0 if the master has too few samples of them.
    #[derive(Default)]
    Hot {
        /// The table of the range.
        table: TableId,
        /// The first key hash of the range.
        first: u64,
        /// The last key hash of the range.
        last: u64,
        /// The range's part of the master's accesses, of [`WHOLE`], by a sample of them.
        part: u16,
    }

    /// The reply to [`FindTablet`].
    Found {
        /// The term of the coordinator that replies. Below the term in which the migration began,
        /// the upper half of its number, the reply does not count.
        term: u64,
        /// The fate of the tablet.
        fate: Fate,
    }
}

/// The reply to [`PullTablet`]: a status, the progress, and log entries behind a header of the
/// segment [`PAGE`] of the source, with checksums as in a segment. They are objects without
/// records, tombstones, and completions; those of other tablets do not occur.
///
/// ```text
/// reply  0 head | 4 progress u8 | 5 entries
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page<'a> {
    /// The progress of the migration with this page.
    pub progress: Progress,
    /// The header and the entries.
    pub entries: &'a [u8],
}

choices! {
    pub,
    /// The progress of a migration at its source.
    Progress {
        /// Objects are left that were not sent yet.
        Behind = 0,
        /// All objects were sent, and few changes are left: it is time to close the tablet.
        Near = 1,
        /// The tablet is closed, and this page has the last of it.
        Complete = 2,
    }
}

impl<'a> Page<'a> {
    /// The number of bytes before the entries of a page.
    pub const HEAD: usize = 5;

    /// Returns the start of a page, up to its entries.
    #[must_use]
    pub fn head(progress: Progress) -> Vec<u8> {
        let mut head = done();
        head.push(progress as u8);
        head
    }

    /// Parses a page.
    ///
    /// # Errors
    /// The status in the reply if it is not OK, or [`Status::BadFormat`].
    pub fn parse(reply: &'a [u8]) -> Result<Self, Status> {
        let (status, rest) = outcome(reply)?;
        if status != Status::Ok {
            return Err(status);
        }
        let (&code, entries) = rest.split_first().ok_or(Status::BadFormat)?;
        let progress = match code {
            0 => Progress::Behind,
            1 => Progress::Near,
            2 => Progress::Complete,
            _ => return Err(Status::BadFormat),
        };
        Ok(Self { progress, entries })
    }
}
