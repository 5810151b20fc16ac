//! The states of objects as far as the answers to their changes tell them.

use std::collections::BTreeMap;

/// The changes of an object that have begun, and the last one of those that were answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Object {
    /// The number of changes that have begun.
    begun: u64,
    /// The number of changes of which it is known whether they happened.
    ended: u64,
    /// The version of the last change, and true if that removed the object.
    last: (u64, bool),
    tag: u64,
}

impl Object {
    /// Returns the version and the tag of the object; none if it does not exist.
    pub(crate) fn state(&self) -> Option<(u64, u64)> {
        let (version, removed) = self.last;
        (version > 0 && !removed).then_some((version, self.tag))
    }
}

/// The states of some objects.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<u64, Object>);

impl Known {
    /// Records that a change of an object has begun. Without an end, it may happen at any time.
    pub(crate) fn begin(&mut self, key: u64) {
        self.0.entry(key).or_default().begun += 1;
    }

    /// Records the end of a change: the version that was written with this tag, or the version that
    /// was removed. With `None` it surely never happens.
    pub(crate) fn end(&mut self, key: u64, done: Option<(u64, Option<u64>)>) {
        let object = self.0.entry(key).or_default();
        object.ended += 1;
        if let Some((version, tag)) = done
            && (version, tag.is_none()) > object.last
        {
            object.last = (version, tag.is_none());
            object.tag = tag.unwrap_or_default();
        }
    }

    /// Returns the objects of these keys that no change in progress can change. An object that is
    /// the same in two results has not changed in between.
    pub(crate) fn settled(&self, keys: u64) -> BTreeMap<u64, Object> {
        let of = |key| (key, self.0.get(&key).copied().unwrap_or_default());
        (0..keys).map(of).filter(|(_, object)| object.begun == object.ended).collect()
    }
}
