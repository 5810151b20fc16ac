//! Conditions of an operation on one object.

use sprat_store::message::data::RejectRules;
use sprat_store::types::Version;

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
    /// with [`Error::ObjectExists`](super::Error::ObjectExists).
    #[must_use]
    pub fn if_absent() -> Self {
        Self(RejectRules::if_absent())
    }

    /// Returns the condition that holds if the object exists. Otherwise the operation fails with
    /// [`Error::ObjectDoesntExist`](super::Error::ObjectDoesntExist).
    #[must_use]
    pub fn if_exists() -> Self {
        Self(RejectRules::if_exists())
    }

    /// Returns the condition that holds if the object has exactly this version. Version 0 stands
    /// for an object that does not exist. Otherwise the operation fails with
    /// [`Error::WrongVersion`](super::Error::WrongVersion),
    /// [`Error::ObjectExists`](super::Error::ObjectExists) or
    /// [`Error::ObjectDoesntExist`](super::Error::ObjectDoesntExist).
    #[must_use]
    pub fn if_version(version: Version) -> Self {
        Self(RejectRules::if_version(version))
    }

    /// Returns the condition that holds if the object's version is above `version`, or the object
    /// does not exist. Otherwise the operation fails with
    /// [`Error::WrongVersion`](super::Error::WrongVersion).
    #[must_use]
    pub fn if_newer_than(version: Version) -> Self {
        Self(RejectRules::if_newer_than(version))
    }
}

impl From<RejectRules> for Condition {
    fn from(rules: RejectRules) -> Self {
        Self(rules)
    }
}
