//! Conditions of an operation on one object.

use sprat_store::client::Error;
use sprat_store::index::{self, Error as IndexError};
use sprat_store::message::data::RejectRules;
use sprat_store::types::Version;

use super::object::Object;

/// A condition on the object that an operation names. The operation executes only if the condition
/// holds.
///
/// The default holds always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Condition(pub(super) RejectRules);

impl Condition {
    /// Returns the condition that always holds.
    #[must_use]
    pub fn always() -> Self {
        Self::default()
    }

    /// Returns the condition that holds if the object does not exist. Otherwise the operation fails
    /// with [`Error::ObjectExists`].
    #[must_use]
    pub fn if_absent() -> Self {
        Self(RejectRules::if_absent())
    }

    /// Returns the condition that holds if the object exists. Otherwise the operation fails with
    /// [`Error::ObjectDoesntExist`].
    #[must_use]
    pub fn if_exists() -> Self {
        Self(RejectRules::if_exists())
    }

    /// Returns the condition that holds if the object has exactly this version. Version 0 stands
    /// for an object that does not exist. Otherwise the operation fails with
    /// [`Error::WrongVersion`], [`Error::ObjectExists`] or [`Error::ObjectDoesntExist`].
    #[must_use]
    pub fn if_version(version: Version) -> Self {
        Self(RejectRules::if_version(version))
    }

    /// Returns the condition that holds if the object's version is above `version`, or the object
    /// does not exist. Otherwise the operation fails with [`Error::WrongVersion`].
    #[must_use]
    pub fn if_newer_than(version: Version) -> Self {
        Self(RejectRules::if_newer_than(version))
    }

    /// Checks the condition for an object that was read. Returns the condition that holds as long
    /// as the object does not change.
    pub(super) fn of_read(self, object: Option<&Object>) -> Result<Self, Error> {
        let version = object.map_or(Version(0), |object| object.version);
        index::check(self.0, version)?;
        Ok(Self::if_version(version))
    }
}

/// Returns true if another change came between a read and this write.
pub(super) fn is_overtaken(written: &Result<Version, IndexError>) -> bool {
    use Error::{ObjectDoesntExist, ObjectExists, WrongVersion};
    let Err(IndexError::Store(error)) = written else { return false };
    matches!(error, ObjectDoesntExist | ObjectExists(_) | WrongVersion(_))
}

impl From<RejectRules> for Condition {
    fn from(rules: RejectRules) -> Self {
        Self(rules)
    }
}
