//! Edits of a leaf: entries that a transaction adds and removes.
//!
//! ```text
//! edits   0 least u32 | 4 most u32 | 8 edits, 1 to 512
//! edit    0 kind u8 (0: remove, 1: add) | 1 the point of the entry, as nodes have it
//! ```
//!
//! The master of the leaf makes the edits. So a client need not read the leaf, and clients that
//! edit one leaf at once do not meet each other's versions.
//!
//! Invariants: edits that are made twice have the same effect as once. A leaf that is refused stays
//! as it was. Parsing never panics.

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::node::{Entry, Node, Point, Splice};
use crate::message::Status;
use crate::types::{MAX_INDEX_KEY, MAX_KEY, MAX_TRANSACTION};

const REMOVE: u8 = 0;
const ADD: u8 = 1;
/// The most edits of one leaf in a request: each object of a transaction has an old entry there and
/// a new one.
const MOST_EDITS: usize = 2 * MAX_TRANSACTION;
/// The bytes that the edits of a leaf usually fit into: those of one or two short points.
const USUAL: usize = 192;
/// The number of edits that need no allocation.
const FEW: usize = 2;

/// The edits of a leaf, as a request has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edits<'a> {
    /// The size in bytes that a leaf which shrinks stays above, unless it has another number of
    /// entries than a power of two. 0: it may have any.
    least: usize,
    /// The size in bytes that a leaf which grows may have, with more than two entries.
    most: usize,
    edits: &'a [u8],
}

impl<'a> Edits<'a> {
    /// Parses edits.
    ///
    /// # Errors
    /// [`Status::BadFormat`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Status> {
        let (least, rest) = bytes.split_first_chunk().ok_or(Status::BadFormat)?;
        let (most, edits) = rest.split_first_chunk().ok_or(Status::BadFormat)?;
        let size = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes) as usize;
        let parsed = Self { least: size(least), most: size(most), edits };
        let (mut rest, mut count) = (edits, 0);
        while !rest.is_empty() {
            split(&mut rest).ok_or(Status::BadFormat)?;
            count += 1;
        }
        if (1..=MOST_EDITS).contains(&count) { Ok(parsed) } else { Err(Status::BadFormat) }
    }

    /// Iterates over the edits: the point of each, and true if its entry is added.
    pub(crate) fn iter(self) -> impl Iterator<Item = (Point<'a>, bool)> {
        let mut rest = self.edits;
        core::iter::from_fn(move || split(&mut rest))
    }

    /// Makes the edits of a leaf. Returns `None` if it has all entries already, and none of those
    /// that are to be removed.
    ///
    /// # Errors
    /// [`Status::OtherLeaf`]: the bytes are no leaf with this range, or the leaf would become too
    /// large or too small.
    pub fn apply(self, leaf: &[u8]) -> Result<Option<Vec<u8>>, Status> {
        let (mut edits, mut out): (Vec<_>, _) = (self.iter().collect(), Vec::new());
        match edit(leaf, &mut edits, (self.least, self.most), &mut out)? {
            Size::Same => Ok(None),
            Size::Fitting => Ok(Some(out)),
            Size::TooLarge => Err(Status::OtherLeaf),
        }
    }
}

/// The size of a leaf after its edits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    /// No entry has changed.
    Same,
    Fitting,
    /// The leaf has grown, and has to be split.
    TooLarge,
}

/// Appends a leaf to `out`, with some entries added, which have `true`, and others removed. Its
/// size is above `least` bytes, with the exceptions of [`Edits`]. Appends nothing if no entry
/// changes.
///
/// # Errors
/// Those of [`Edits::apply`].
pub(crate) fn edit(
    leaf: &[u8],
    edits: &mut [(Point<'_>, bool)],
    (least, most): (usize, usize),
    out: &mut Vec<u8>,
) -> Result<Size, Status> {
    // What is wrong with entries that stay, a reader finds: they are copied as they are.
    let node = Node::known(leaf).filter(|node| node.level == 0).ok_or(Status::OtherLeaf)?;
    if edits.iter().any(|(point, _)| !node.contains(*point)) {
        return Err(Status::OtherLeaf);
    }
    // The sort is stable: the last edit of a point counts.
    edits.sort_by_key(|(point, _)| *point);
    let changes = edits.chunk_by(|(a, _), (b, _)| a == b).filter_map(|edits| {
        let &(point, add) = edits.last()?;
        let (at, has) = node.search(point);
        let entry = add.then(|| Entry::leaf(point));
        (has != add).then_some(Splice { at, replaces: has, entry })
    });
    let (few, many): (ArrayVec<_, FEW>, Vec<_>);
    let splices: &[Splice<'_>] = if edits.len() <= FEW {
        few = changes.collect();
        &few
    } else {
        many = changes.collect();
        &many
    };
    if splices.is_empty() {
        return Ok(Size::Same);
    }
    let begin = out.len();
    node.splice(splices, out).ok_or(Status::OtherLeaf)?;
    let len = out.len() - begin;
    let count = splices.iter().fold(node.len(), |count, splice| match splice.entry {
        Some(_) => count + 1,
        None => count.saturating_sub(1),
    });
    let is_too_large = len > leaf.len() && len > most && count > 2;
    // To try to merge a leaf costs some reads, so that it is done at few sizes.
    let is_small = count == 0 || len <= least && count.is_power_of_two();
    if least > 0 && len < leaf.len() && is_small {
        return Err(Status::OtherLeaf);
    }
    Ok(if is_too_large { Size::TooLarge } else { Size::Fitting })
}

/// Splits the next edit off.
fn split<'a>(rest: &mut &'a [u8]) -> Option<(Point<'a>, bool)> {
    let (&kind, bytes) = rest.split_first()?;
    let point = Point::parse(bytes)?;
    let is_short = point.key.len() <= MAX_INDEX_KEY && point.object.len() <= MAX_KEY;
    *rest = bytes.get(point.len()..)?;
    (kind <= ADD && is_short).then_some((point, kind == ADD))
}

/// Returns the beginning of edits, with these bounds of the leaf's size.
pub(crate) fn begin(least: usize, most: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(USUAL);
    out.extend_from_slice(&(least as u32).to_be_bytes());
    out.extend_from_slice(&(most as u32).to_be_bytes());
    out
}

/// Lets the leaf become as small as the edits make it.
pub(crate) fn allow_small(edits: &mut [u8]) {
    if let Some(least) = edits.first_chunk_mut::<4>() {
        *least = [0; 4];
    }
}

/// Lets the leaf become as large as the edits make it.
pub(crate) fn allow_large(edits: &mut [u8]) {
    if let Some(most) = edits.get_mut(4..).and_then(<[u8]>::first_chunk_mut::<4>) {
        *most = [0xff; 4];
    }
}

/// Appends an edit.
pub(crate) fn push(out: &mut Vec<u8>, point: Point<'_>, add: bool) {
    out.push(if add { ADD } else { REMOVE });
    point.emit(out);
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::btree::node::emit;

    fn point(key: &[u8]) -> Point<'_> {
        Point { key, object: b"o" }
    }

    fn leaf(keys: &[&'static [u8]]) -> Vec<u8> {
        emit(0, point(b"b"), Some(point(b"x")), keys.iter().map(|key| Entry::leaf(point(key))))
    }

    fn edits(least: usize, most: usize, edits: &[(&[u8], bool)]) -> Vec<u8> {
        let mut out = begin(least, most);
        edits.iter().for_each(|&(key, add)| push(&mut out, point(key), add));
        out
    }

    fn apply(before: &[u8], bytes: &[u8]) -> Result<Option<Vec<u8>>, Status> {
        Edits::parse(bytes)?.apply(before)
    }

    #[test]
    fn edits_have_their_golden_bytes_and_come_back() {
        let bytes = edits(2, 300, &[(b"c", true), (b"dd", false)]);
        let golden = b"\0\0\0\x02\0\0\x01\x2c\x01\0\x01\0\0\0\x01co\0\0\x02\0\0\0\x01ddo";
        assert_eq!(bytes, golden);
        let all: Vec<_> = Edits::parse(&bytes).unwrap().iter().collect();
        assert_eq!(all, [(point(b"c"), true), (point(b"dd"), false)]);
        let whole = |len| len == bytes.len() || len == 17;
        for len in 0..=bytes.len() {
            assert_eq!(Edits::parse(&bytes[..len]).is_ok(), whole(len), "{len}");
        }
        let mut other = bytes.clone();
        other[8] = 2;
        assert_eq!(Edits::parse(&other), Err(Status::BadFormat));
        let many = |count| edits(0, 9, &vec![(&b"c"[..], true); count]);
        assert!(Edits::parse(&many(MOST_EDITS)).is_ok());
        assert_eq!(Edits::parse(&many(MOST_EDITS + 1)), Err(Status::BadFormat));
        let long = [b'k'; MAX_INDEX_KEY + 1];
        assert_eq!(Edits::parse(&edits(0, 9, &[(&long, true)])), Err(Status::BadFormat));
    }

    #[test]
    fn entries_are_added_and_removed_once() {
        let before = leaf(&[b"c", b"e"]);
        let both = edits(0, 1000, &[(b"d", true), (b"c", false)]);
        let after = apply(&before, &both).unwrap().unwrap();
        assert_eq!(after, leaf(&[b"d", b"e"]));
        assert_eq!(apply(&after, &both), Ok(None));
        // The later edit of a point counts.
        let twice = edits(0, 1000, &[(b"d", true), (b"d", false)]);
        assert_eq!(apply(&before, &twice), Ok(None));
    }

    #[test]
    fn many_edits_have_the_effect_of_one_after_the_other() {
        let mut rng = sprat_proto::Rng::seeded(5);
        let key = |n: u64| [b'c', n as u8];
        for _ in 0..200 {
            let mut has: Vec<u64> = (0..20).filter(|_| rng.chance(500_000)).collect();
            let of = |has: &[u64]| {
                let keys: Vec<[u8; 2]> = has.iter().map(|n| key(*n)).collect();
                emit(0, point(b"b"), None, keys.iter().map(|key| Entry::leaf(point(key))))
            };
            let before = of(&has);
            let mut bytes = begin(0, 10_000);
            for _ in 0..1 + rng.below(12) {
                let (n, add) = (rng.below(20), rng.chance(500_000));
                push(&mut bytes, point(&key(n)), add);
                has.retain(|it| *it != n);
                has.extend(add.then_some(n));
            }
            has.sort_unstable();
            let after = apply(&before, &bytes).unwrap().unwrap_or(before);
            assert_eq!(after, of(&has));
        }
    }

    #[test]
    fn a_leaf_that_does_not_fit_is_refused() {
        let before = leaf(&[b"c", b"e", b"g"]);
        let (len, refused) = (before.len(), Err(Status::OtherLeaf));
        let add = |most| apply(&before, &edits(0, most, &[(b"d", true)]));
        assert!(add(len + 12).is_ok());
        assert_eq!(add(len + 11), refused);
        // What is there adds nothing.
        assert_eq!(apply(&before, &edits(0, 1, &[(b"c", true)])), Ok(None));
        // A leaf of two entries has no halves that would be smaller.
        assert!(apply(&leaf(&[b"c"]), &edits(0, 1, &[(b"d", true)])).is_ok());
        let remove = |least| apply(&before, &edits(least, 1, &[(b"e", false)]));
        assert!(remove(0).is_ok() && remove(len - 13).is_ok());
        assert_eq!(remove(len - 12), refused);
        let last = |least| apply(&leaf(&[b"c"]), &edits(least, 1, &[(b"c", false)]));
        assert!(last(0).is_ok());
        assert_eq!(last(1), refused);
        assert_eq!(apply(&before, &edits(0, 1000, &[(b"a", true)])), refused);
        assert_eq!(apply(&before, &edits(0, 1000, &[(b"x", false)])), refused);
        let above = [Entry { point: point(b"b"), child: 7 }];
        let above = emit(1, point(b"b"), None, above.into_iter());
        assert_eq!(apply(&above, &edits(0, 1000, &[(b"c", true)])), refused);
        assert_eq!(apply(b"garbage", &edits(0, 1000, &[(b"c", true)])), refused);
    }
}
