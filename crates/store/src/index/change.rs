//! Changes of one object together with its entries.
//!
//! Where one server has the object and all nodes, it makes the change by one operation. Otherwise,
//! or if leaves have to be merged, the client reads the object and commits a transaction.

use alloc::vec::Vec;

use super::commit::{Part, commit};
use super::edits::LeafEdits;
use super::error::Error;
use super::fit::{Again, Loose};
use super::state::State;
use super::tree::unchanged;
use super::{Definition, Indexes, Objects};
use crate::btree::node::OwnedPoint;
use crate::client::{self, TransactionPart};
use crate::message::Status;
use crate::message::data::RejectRules;
use crate::types::{Lifetime, Version};

/// The change of an object of a table with indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// The object gets this value, and expires after this lifetime. Its entries stay until a
    /// look-up meets them.
    Write(&'a [u8], Option<Lifetime>),
    /// The object is removed.
    Remove,
}

/// The outcome of a change by one operation ([`Objects::change`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// The change is made. A written object has this version, and a removed one had it: 0 if it did
    /// not exist.
    Done(Version),
    /// Nothing has changed: a transaction has to do it.
    Undone,
    /// Nothing has changed, and the operation was not sent: no server has all of the indexes, as
    /// far as the client knows.
    Apart,
}

impl Changed {
    /// Returns the outcome of a change, whose operation ended with this version.
    ///
    /// # Errors
    /// Other errors of the operation.
    pub fn of(outcome: Result<Version, client::Error>) -> Result<Self, client::Error> {
        match outcome {
            Ok(version) => Ok(Self::Done(version)),
            Err(client::Error::Refused { status: Status::OtherLeaf | Status::Retry, .. }) => {
                Ok(Self::Undone)
            }
            Err(client::Error::Refused { status: Status::UnknownTablet, .. }) => Ok(Self::Apart),
            Err(error) => Err(error),
        }
    }
}

/// Returns the error of a verdict on an object of this version.
fn refused(why: Status, version: Version) -> client::Error {
    match why {
        Status::ObjectDoesntExist => client::Error::ObjectDoesntExist,
        Status::ObjectExists => client::Error::ObjectExists(version),
        _ => client::Error::WrongVersion(version),
    }
}

/// Checks rules for an object of this version, 0 if it does not exist.
///
/// # Errors
/// [`client::Error::ObjectExists`], [`client::Error::ObjectDoesntExist`] and
/// [`client::Error::WrongVersion`].
pub fn check(rules: RejectRules, version: Version) -> Result<(), client::Error> {
    rules.check(version).map_err(|why| refused(why, version))
}

impl<O: Objects> Indexes<'_, O> {
    /// Changes an object and its entries, if the rules do not refuse its version. Returns the new
    /// version of a written object, or the version of a removed one: 0 if it did not exist.
    ///
    /// # Errors
    /// [`client::Error::ObjectExists`], [`client::Error::ObjectDoesntExist`] and
    /// [`client::Error::WrongVersion`] by the rules, [`client::Error::IndexKeyTooLong`], and those
    /// of a commit.
    pub async fn change(
        &self,
        key: &[u8],
        change: Change<'_>,
        rules: RejectRules,
    ) -> Result<Version, Error> {
        let change = match change {
            Change::Write(value, lifetime) => client::Change::Write(value, lifetime),
            Change::Remove => client::Change::Remove,
        };
        let part = TransactionPart { table: self.table, key, rules, change };
        if self.objects.state(State::may_be_whole) {
            match self.objects.change(self.nodes, &part).await? {
                Changed::Done(version) => return Ok(version),
                Changed::Undone => {}
                Changed::Apart => self.objects.state(State::keep_apart),
            }
        }
        match commit(self.objects, core::slice::from_ref(self), &[Part { part, read: None }]).await
        {
            Ok(versions) => Ok(versions.first().copied().unwrap_or_default()),
            Err(client::Error::Conflict { why, version, .. }) => Err(refused(why, version).into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the entries of objects of which a version was read that does not have them, 0 if the
    /// object did not exist: it has expired, or was written without its indexes. Failures leave
    /// the entries for another time.
    pub(super) async fn forget_entries(
        &self,
        index: &Definition,
        stale: &[(Version, OwnedPoint)],
    ) -> Result<(), Error> {
        for (version, point) in stale {
            let mut loose = Loose::default();
            while let Some(Again::Changed) =
                self.forget_entry(index, *version, point, &mut loose).await?
            {}
            self.mend(&loose).await;
        }
        Ok(())
    }

    /// Tries to remove an entry once. Returns `None` if that is done.
    async fn forget_entry(
        &self,
        index: &Definition,
        version: Version,
        point: &OwnedPoint,
        loose: &mut Loose,
    ) -> Result<Option<Again>, Error> {
        let (number, most) = (index.number, index.node_bytes as usize);
        let mut edits = LeafEdits::default();
        for id in self.find(&[(number, point.point())], &[]).await?.0 {
            let bounds = loose.bounds(number, point.point(), most);
            edits.edit(id, point.point(), false, bounds);
        }
        let object = TransactionPart {
            table: self.table,
            key: &point.object,
            rules: unchanged(version),
            change: client::Change::Check,
        };
        let parts: Vec<TransactionPart<'_>> = edits.parts(self.nodes).chain([object]).collect();
        match (self.objects.commit(&parts).await, edits.leaf(0)) {
            (Err(client::Error::Conflict { why: Status::OtherLeaf, .. }), Some((id, edits))) => {
                self.refit((id, most), edits, loose).await.map(Some)
            }
            (committed, _) => Ok(committed.map(|_| None)?),
        }
    }
}
