//! The nodes of an index, as objects of the store.
//!
//! ```text
//! node    0 level u8 (0: a leaf) | 1 1 u8 if there is an end | 2 count u16
//!         4 the offset of each entry u32 | start | end | entries
//! point   0 index key length u16 | 2 object key length u32 | 6 index key | object key
//! entry   the point; in a node above the leaves: first, the child u64
//! ```
//!
//! A node has all points of its index from its start on, up to its end. Each entry of a leaf is the
//! index key and the key of an object. Each entry of a node above leads to the child that has the
//! points from the entry's on.
//!
//! Invariants: the entries are sorted, and all in the range of the node. The first entry above a
//! leaf is the start of the node. Parsing checks the places of the entries and never panics.

use alloc::vec::Vec;

/// The bytes before the offsets.
const HEAD: usize = 4;
/// The bytes of an offset.
const OFFSET: usize = 4;
/// The bytes of a point without its keys.
const POINT: usize = 6;
/// The bytes of the id of a child.
const CHILD: usize = 8;
/// The most entries of a node.
const MOST: usize = u16::MAX as usize;

/// A place in the order of an index: an index key, then the key of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Point<'a> {
    pub(super) key: &'a [u8],
    pub(super) object: &'a [u8],
}

impl<'a> Point<'a> {
    /// The first of all points.
    pub(super) const FIRST: Self = Self { key: &[], object: &[] };

    fn len(self) -> usize {
        POINT + self.key.len() + self.object.len()
    }

    /// Returns the number of bytes by which a leaf grows with an entry at the point.
    pub(super) fn entry_len(self) -> usize {
        OFFSET + self.len()
    }

    fn emit(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.key.len() as u16).to_be_bytes());
        out.extend_from_slice(&(self.object.len() as u32).to_be_bytes());
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.object);
    }

    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk()?;
        let (object, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u16::from_be_bytes(*key).into())?;
        let object = rest.get(..u32::from_be_bytes(*object) as usize)?;
        Some(Self { key, object })
    }

    pub(super) fn to_owned(self) -> OwnedPoint {
        OwnedPoint { key: self.key.to_vec(), object: self.object.to_vec() }
    }
}

/// A [`Point`] with keys of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct OwnedPoint {
    pub(super) key: Vec<u8>,
    pub(super) object: Vec<u8>,
}

impl OwnedPoint {
    pub(super) fn point(&self) -> Point<'_> {
        Point { key: &self.key, object: &self.object }
    }

    /// Returns the first point behind this one.
    pub(super) fn next(mut self) -> Self {
        self.object.push(0);
        self
    }

    /// Returns the first point with an index key behind this one.
    pub(super) fn behind(mut key: Vec<u8>) -> Self {
        key.push(0);
        Self { key, object: Vec::new() }
    }
}

/// An entry of a node: its point, and its child if the node is above the leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry<'a> {
    pub(super) point: Point<'a>,
    pub(super) child: u64,
}

impl<'a> Entry<'a> {
    pub(super) fn leaf(point: Point<'a>) -> Self {
        Self { point, child: 0 }
    }
}

/// A node that was parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    bytes: &'a [u8],
    count: usize,
    pub(super) level: u8,
    pub(super) start: Point<'a>,
    /// The first point behind the node. `None`: the node is the last one of its level.
    pub(super) end: Option<Point<'a>>,
}

impl<'a> Node<'a> {
    /// Parses a node. `None` means that it is malformed.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let node = Self::known(bytes)?;
        let (count, level) = (node.count, node.level);
        let ranged = node.start.len() + node.end.map_or(0, Point::len);
        let mut expected = HEAD + count * OFFSET + ranged;
        for i in 0..count {
            if node.offset(i) != expected {
                return None;
            }
            let child = if level > 0 { CHILD } else { 0 };
            expected += child + Point::parse(bytes.get(expected + child..)?)?.len();
        }
        (expected == bytes.len() && (level == 0 || count > 0)).then_some(node)
    }

    /// Returns the node of bytes that were parsed before, and reads only the parts before the
    /// entries. Of other bytes, the entries may be any. `None` means that it is malformed.
    pub(super) fn known(bytes: &'a [u8]) -> Option<Self> {
        let &[level, has_end, a, b] = bytes.first_chunk()?;
        let count = usize::from(u16::from_be_bytes([a, b]));
        let start = Point::parse(bytes.get(HEAD + count * OFFSET..)?)?;
        let at = HEAD + count * OFFSET + start.len();
        let end = (has_end == 1).then(|| Point::parse(bytes.get(at..).unwrap_or_default()));
        let end = match end {
            Some(end) => Some(end?),
            None => None,
        };
        Some(Self { bytes, count, level, start, end })
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn offset(&self, i: usize) -> usize {
        let bytes = self.bytes.get(HEAD + i * OFFSET..).and_then(<[u8]>::first_chunk);
        bytes.map_or(usize::MAX, |bytes| u32::from_be_bytes(*bytes) as usize)
    }

    /// Returns entry `i`, which the node has.
    pub(super) fn entry(&self, i: usize) -> Entry<'a> {
        let mut bytes = self.bytes.get(self.offset(i)..).unwrap_or_default();
        let mut child = 0;
        if self.level > 0
            && let Some((id, rest)) = bytes.split_first_chunk()
        {
            (child, bytes) = (u64::from_be_bytes(*id), rest);
        }
        Entry { point: Point::parse(bytes).unwrap_or_default(), child }
    }

    /// Iterates over the entries.
    pub(super) fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        (0..self.count).map(move |i| self.entry(i))
    }

    /// Returns true if the node has this point.
    pub(super) fn contains(&self, point: Point<'_>) -> bool {
        self.start <= point && self.end.is_none_or(|end| point < end)
    }

    /// Returns the number of entries before a point.
    pub(super) fn before(&self, point: Point<'_>) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(middle).point < point {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns true if the leaf has an entry at a point.
    pub(super) fn has(&self, point: Point<'_>) -> bool {
        let at = self.before(point);
        at < self.count && self.entry(at).point == point
    }

    /// Returns the place of the child that has a point of this node, which is above the leaves.
    pub(super) fn child_of(&self, point: Point<'_>) -> usize {
        let at = self.before(point);
        let is_at = at < self.count && self.entry(at).point == point;
        if is_at { at } else { at.saturating_sub(1) }
    }

    /// Returns the node with an entry more, in its place. An entry at the same point is replaced.
    pub(super) fn with(&self, entry: Entry<'_>) -> Vec<u8> {
        let at = self.before(entry.point);
        let behind = at + usize::from(self.has(entry.point));
        let before = (0..at).map(|i| self.entry(i));
        let after = (behind..self.count).map(|i| self.entry(i));
        emit(self.level, self.start, self.end, before.chain([entry]).chain(after))
    }

    /// Returns the node without the entry at a point.
    pub(super) fn without(&self, point: Point<'_>) -> Vec<u8> {
        let rest = self.entries().filter(|entry| entry.point != point);
        emit(self.level, self.start, self.end, rest)
    }

    /// Returns the place of the first entry of the second half: the halves have about as many
    /// bytes, or the second has one entry if new points come behind all others.
    pub(super) fn middle(&self, new: Point<'_>) -> usize {
        let last = self.count.saturating_sub(1).max(1);
        if self.end.is_none() && self.count > 1 && self.entry(last).point < new {
            return last;
        }
        let half = self.bytes.len().midpoint(self.offset(0).min(self.bytes.len()));
        (1..last).find(|&i| self.offset(i) >= half).unwrap_or(last)
    }

    /// Returns the entries from one place up to another one, as a node of the same level.
    pub(super) fn part(
        &self,
        places: core::ops::Range<usize>,
        start: Point<'_>,
        end: Option<Point<'_>>,
    ) -> Vec<u8> {
        emit(self.level, start, end, places.map(|i| self.entry(i)))
    }
}

/// Returns the bytes of a node.
pub(super) fn emit<'e>(
    level: u8,
    start: Point<'_>,
    end: Option<Point<'_>>,
    entries: impl Iterator<Item = Entry<'e>>,
) -> Vec<u8> {
    let entries: Vec<Entry<'e>> = entries.take(MOST).collect();
    let mut out = Vec::from([level, end.is_some().into()]);
    out.extend_from_slice(&(entries.len() as u16).to_be_bytes());
    let ranged = start.len() + end.map_or(0, Point::len);
    let mut at = HEAD + entries.len() * OFFSET + ranged;
    for entry in &entries {
        out.extend_from_slice(&(at as u32).to_be_bytes());
        at += entry.point.len() + if level > 0 { CHILD } else { 0 };
    }
    out.reserve(at - out.len());
    start.emit(&mut out);
    if let Some(end) = end {
        end.emit(&mut out);
    }
    for entry in &entries {
        if level > 0 {
            out.extend_from_slice(&entry.child.to_be_bytes());
        }
        entry.point.emit(&mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point<'a>(key: &'a [u8], object: &'a [u8]) -> Point<'a> {
        Point { key, object }
    }

    fn leaf(keys: &[&'static [u8]]) -> Vec<u8> {
        let entries = keys.iter().map(|key| Entry::leaf(point(key, b"o")));
        emit(0, point(b"b", b""), Some(point(b"x", b"")), entries)
    }

    #[test]
    fn a_node_has_its_golden_bytes_and_comes_back() {
        let bytes = leaf(&[b"c", b"dd"]);
        let golden = b"\0\x01\0\x02\0\0\0\x1a\0\0\0\x22\0\x01\0\0\0\0b\0\x01\0\0\0\0x\
            \0\x01\0\0\0\x01co\0\x02\0\0\0\x01ddo";
        assert_eq!(bytes, golden);
        let node = Node::parse(&bytes).unwrap();
        assert_eq!((node.len(), node.entry(1).point), (2, point(b"dd", b"o")));
        assert!(node.contains(point(b"b", b"")) && !node.contains(point(b"x", b"")));
        assert!(node.has(point(b"c", b"o")) && !node.has(point(b"c", b"")));
        for len in 0..bytes.len() {
            assert!(Node::parse(&bytes[..len]).is_none(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x81;
            // A node with other bytes is malformed, or another node.
            if let Some(node) = Node::parse(&bytes) {
                assert!(node.entries().count() <= 2 && node.before(point(b"m", b"")) <= 2);
            }
        }
    }

    #[test]
    fn entries_come_and_go_in_their_order() {
        let bytes = leaf(&[b"c", b"e"]);
        let node = Node::parse(&bytes).unwrap();
        let with = node.with(Entry::leaf(point(b"d", b"o")));
        assert_eq!(with, leaf(&[b"c", b"d", b"e"]));
        let again = Node::parse(&with).unwrap().with(Entry::leaf(point(b"d", b"o")));
        assert_eq!(again, with);
        assert_eq!(Node::parse(&with).unwrap().without(point(b"d", b"o")), bytes);
        assert_eq!(Node::parse(&with).unwrap().without(point(b"d", b"")), with);
    }

    #[test]
    fn a_point_leads_to_its_child() {
        let entries = [(&b""[..], 5), (b"m", 6), (b"t", 7)]
            .map(|(key, child)| Entry { point: point(key, b""), child });
        let bytes = emit(1, Point::FIRST, None, entries.into_iter());
        let node = Node::parse(&bytes).unwrap();
        let child = |key| node.entry(node.child_of(point(key, b"x"))).child;
        assert_eq!([&b""[..], b"a", b"m", b"s", b"z"].map(child), [5, 5, 6, 6, 7]);
        assert_eq!(node.entry(node.child_of(point(b"m", b""))).child, 6);
        assert!(Node::parse(&emit(1, Point::FIRST, None, [].into_iter())).is_none());
    }

    #[test]
    fn halves_have_about_as_many_bytes() {
        let bytes = leaf(&[b"cccccccccccccccccccccc", b"d", b"e", b"f"]);
        let node = Node::parse(&bytes).unwrap();
        assert_eq!(node.middle(point(b"dd", b"")), 1);
        assert_eq!(Node::parse(&leaf(&[b"c", b"d"])).unwrap().middle(point(b"dd", b"")), 1);
        // New points behind all others leave full nodes.
        let last = emit(0, Point::FIRST, None, node.entries());
        let last = Node::parse(&last).unwrap();
        assert_eq!((last.middle(point(b"g", b"")), last.middle(point(b"d", b""))), (3, 1));
        let (first, second) =
            (node.part(0..2, node.start, None), node.part(2..4, node.start, None));
        assert_eq!(Node::parse(&first).unwrap().len() + Node::parse(&second).unwrap().len(), 4);
    }
}
