//! Positions in the enumeration of a table.
//!
//! A master lists the objects of a range of hashes in an order that does not depend on the tablets
//! or on the master. If a tablet is divided in the middle of its enumeration, each part goes on
//! from the same position, so that no object comes twice or is left out.

use alloc::vec::Vec;

/// A range of hashes that is left to enumerate, from a position on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Left {
    first: u64,
    last: u64,
    within: u64,
}

/// The start of a table.
const START: Left = Left { first: 0, last: u64::MAX, within: 0 };

/// A position in the enumeration of a table. The default is the start of the table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The next range, which is the first one of those that are left.
    next: Option<Left>,
    /// The further ranges that are left, the last ones first.
    more: Vec<Left>,
}

impl Cursor {
    /// Returns the first and the last hash of the next range to enumerate, and the position there.
    pub(super) fn range(&self) -> (u64, u64, u64) {
        let Left { first, last, within } = self.next.unwrap_or(START);
        (first, last, within)
    }

    /// Returns the cursor after a page of the hashes from the first one of the next range to
    /// `last`. The page ends before the position `within`, or at the end of these hashes. Returns
    /// `None` at the end of the table.
    pub(super) fn after(mut self, last: u64, within: Option<u64>) -> Option<Self> {
        let range = self.next.take().unwrap_or(START);
        if last < range.last {
            self.more.push(Left { first: last + 1, ..range });
        }
        self.next = match within {
            Some(within) => Some(Left { first: range.first, last, within }),
            None => Some(self.more.pop()?),
        };
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tablet is divided twice in the middle of its enumeration: each part goes on from the
    /// position at which it was divided.
    #[test]
    fn the_parts_of_a_divided_tablet_go_on_from_the_same_position() {
        let cursor = Cursor::default();
        assert_eq!(cursor.range(), (0, u64::MAX, 0));
        let cursor = cursor.after(99, Some(5)).unwrap();
        assert_eq!(cursor.range(), (0, 99, 5));
        // Now a tablet ends at 49, and then another one at 19.
        let cursor = cursor.after(49, Some(7)).unwrap();
        assert_eq!(cursor.range(), (0, 49, 7));
        let cursor = cursor.after(19, None).unwrap();
        assert_eq!(cursor.range(), (20, 49, 7));
        let cursor = cursor.after(49, None).unwrap();
        assert_eq!(cursor.range(), (50, 99, 5));
        let cursor = cursor.after(99, None).unwrap();
        assert_eq!(cursor.range(), (100, u64::MAX, 0));
        let cursor = cursor.after(u64::MAX, Some(3)).unwrap();
        assert_eq!(cursor.range(), (100, u64::MAX, 3));
        assert_eq!(cursor.after(u64::MAX, None), None);
    }
}
