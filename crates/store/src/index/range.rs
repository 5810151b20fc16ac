//! Ranges of index keys.

use alloc::vec::Vec;
use core::ops::{Bound, RangeBounds};

use crate::btree::node::OwnedPoint;
use crate::btree::range::{Order, Span};

/// A range of index keys: what a scan has not passed yet, which takes objects from both ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    from: OwnedPoint,
    /// The first point behind the range. `None`: there is none.
    to: Option<OwnedPoint>,
}

impl Range {
    /// Returns the range of these index keys, at its start.
    #[must_use]
    pub fn new<K: AsRef<[u8]>>(keys: impl RangeBounds<K>) -> Self {
        let at = |key: &K| OwnedPoint { key: key.as_ref().to_vec(), object: Vec::new() };
        let behind = |key: &K| OwnedPoint::behind(key.as_ref());
        let from = match keys.start_bound() {
            Bound::Included(key) => at(key),
            Bound::Excluded(key) => behind(key),
            Bound::Unbounded => OwnedPoint::default(),
        };
        let to = match keys.end_bound() {
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(at(key)),
            Bound::Unbounded => None,
        };
        Self { from, to }
    }

    /// Returns the range of the index keys that begin with these bytes.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let from = OwnedPoint { key: prefix.to_vec(), object: Vec::new() };
        let mut end = prefix.to_vec();
        while end.pop_if(|byte| *byte == u8::MAX).is_some() {}
        let to = end.last_mut().map(|byte| *byte += 1);
        let to = to.map(|()| OwnedPoint { key: end, object: Vec::new() });
        Self { from, to }
    }

    /// Returns the range as one of points.
    pub(super) fn span(&self) -> Span<'_> {
        Span { from: self.from.point(), to: self.to.as_ref().map(OwnedPoint::point) }
    }

    /// Returns the range without what a look-up has passed up to a point. `None`: that was no step.
    pub(super) fn beyond(&self, order: Order, point: OwnedPoint) -> Option<Self> {
        let (from, to) = (&self.from, &self.to);
        match order {
            Order::Ascending => {
                (from.point() < point.point()).then(|| Self { from: point, to: to.clone() })
            }
            Order::Descending if self.span().is_behind(point.point()) => None,
            Order::Descending => Some(Self { from: from.clone(), to: Some(point) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(key: &[u8]) -> OwnedPoint {
        OwnedPoint { key: key.to_vec(), object: Vec::new() }
    }

    #[test]
    fn ranges_have_their_bounds() {
        let range = |from, to| Range { from: point(from), to };
        assert_eq!(Range::new::<&[u8]>(..), range(b"", None));
        assert_eq!(Range::new(&b"a"[..]..), range(b"a", None));
        assert_eq!(Range::new("a".."c"), range(b"a", Some(point(b"c"))));
        assert_eq!(Range::new("a"..="a"), range(b"a", Some(point(b"a\0"))));
        let open = (Bound::Excluded("a"), Bound::Unbounded);
        assert_eq!(Range::new::<&str>(open), range(b"a\0", None));
        assert_eq!(Range::prefix(b"ab"), range(b"ab", Some(point(b"ac"))));
        assert_eq!(Range::prefix(b"a\xff\xff"), range(b"a\xff\xff", Some(point(b"b"))));
        assert_eq!(Range::prefix(b"\xff"), range(b"\xff", None));
        assert_eq!(Range::prefix(b""), range(b"", None));
    }
}
