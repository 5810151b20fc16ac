//! Reject rules by which a program sets conditions for an operation.

use crate::message::data::RejectRules;
use crate::types::Version;

impl RejectRules {
    /// Accepts only an object that exists: otherwise
    /// [`Error::ObjectDoesntExist`](super::Error::ObjectDoesntExist).
    #[must_use]
    pub fn if_exists() -> Self {
        Self { doesnt_exist: true, ..Self::default() }
    }

    /// Accepts only a missing object: otherwise
    /// [`Error::ObjectExists`](super::Error::ObjectExists).
    #[must_use]
    pub fn if_absent() -> Self {
        Self { exists: true, ..Self::default() }
    }

    /// Accepts only this version of the object, so that read, change and write are safe. Version 0
    /// (there was no object) accepts only a missing object.
    #[must_use]
    pub fn if_version(version: Version) -> Self {
        match version {
            Version(0) => Self::if_absent(),
            given_version => Self {
                given_version,
                doesnt_exist: true,
                version_ne_given: true,
                ..Self::default()
            },
        }
    }

    /// Accepts only an object of a version up to `version`, or a missing one, so that an older
    /// change cannot hide a newer one.
    #[must_use]
    pub fn if_newer_than(version: Version) -> Self {
        Self { given_version: version, version_le_given: true, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Status;

    #[test]
    fn rules_do_what_their_names_say() {
        let check =
            |rules: RejectRules| [0, 4, 5, 6].map(|current| rules.check(Version(current)).err());
        let (missing, exists) = (Some(Status::ObjectDoesntExist), Some(Status::ObjectExists));
        let wrong = Some(Status::WrongVersion);
        assert_eq!(check(RejectRules::if_exists()), [missing, None, None, None]);
        assert_eq!(check(RejectRules::if_absent()), [None, exists, exists, exists]);
        assert_eq!(check(RejectRules::if_version(Version(5))), [missing, wrong, None, wrong]);
        assert_eq!(check(RejectRules::if_version(Version(0))), [None, exists, exists, exists]);
        assert_eq!(check(RejectRules::if_newer_than(Version(5))), [None, wrong, wrong, None]);
    }
}
