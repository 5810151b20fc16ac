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
use core::cmp::Ordering;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Point<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) object: &'a [u8],
}

impl<'a> Point<'a> {
    /// The first of all points.
    pub(crate) const FIRST: Self = Self { key: &[], object: &[] };

    pub(crate) fn len(self) -> usize {
        POINT + self.key.len() + self.object.len()
    }

    /// Returns the number of bytes by which a leaf grows with an entry at the point.
    pub(crate) fn entry_len(self) -> usize {
        OFFSET + self.len()
    }

    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.key.len() as u16).to_be_bytes());
        out.extend_from_slice(&(self.object.len() as u32).to_be_bytes());
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.object);
    }

    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk()?;
        let (object, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u16::from_be_bytes(*key).into())?;
        let object = rest.get(..u32::from_be_bytes(*object) as usize)?;
        Some(Self { key, object })
    }

    /// Returns the shortest begin of `next` that comes behind this point. `next` does so, too.
    fn separator<'n>(self, next: Point<'n>) -> Point<'n> {
        let Point { key, object } = next;
        let len = common(self.key, key) + 1;
        if self.key != key {
            return Point { key: key.get(..len).unwrap_or(key), object: &[] };
        }
        let len = common(self.object, object) + 1;
        Point { key, object: object.get(..len).unwrap_or(object) }
    }

    pub(crate) fn to_owned(self) -> OwnedPoint {
        OwnedPoint { key: self.key.to_vec(), object: self.object.to_vec() }
    }
}

impl Ord for Point<'_> {
    // Two numbers decide for most keys, without the calls that compare slices.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let whole = || (self.key, self.object).cmp(&(other.key, other.object));
        head(self.key).cmp(&head(other.key)).then_with(whole)
    }
}

impl PartialOrd for Point<'_> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the first eight bytes of a key, with zeros behind a shorter one, as a number.
#[inline]
fn head(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    match key.first_chunk() {
        Some(first) => head = *first,
        None => head[..key.len()].copy_from_slice(key),
    }
    u64::from_be_bytes(head)
}

/// Returns the number of bytes with which both keys begin.
fn common(a: &[u8], b: &[u8]) -> usize {
    let mut at = 0;
    while let (Some(x), Some(y)) = (a[at..].first_chunk(), b[at..].first_chunk()) {
        let differing = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differing != 0 {
            return at + differing.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

/// A [`Point`] with keys of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OwnedPoint {
    pub(crate) key: Vec<u8>,
    pub(crate) object: Vec<u8>,
}

impl OwnedPoint {
    pub(crate) fn point(&self) -> Point<'_> {
        Point { key: &self.key, object: &self.object }
    }

    /// Returns the first point behind this one.
    pub(crate) fn next(mut self) -> Self {
        self.object.push(0);
        self
    }

    /// Returns the first point with an index key behind this one.
    pub(crate) fn behind(key: &[u8]) -> Self {
        Self { key: [key, &[0]].concat(), object: Vec::new() }
    }
}

/// The place in the order of an index that a way from the root leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goal<'a> {
    /// The node that has this point.
    At(Point<'a>),
    /// The node that has the last points before this one. `None`: the last node.
    Before(Option<Point<'a>>),
}

impl Goal<'_> {
    /// Returns true if a node has the goal.
    pub(crate) fn is_in(self, node: &Node<'_>) -> bool {
        match self {
            Self::At(point) => node.contains(point),
            Self::Before(None) => node.end.is_none(),
            Self::Before(Some(point)) => {
                node.start < point && node.end.is_none_or(|end| point <= end)
            }
        }
    }

    /// Returns the place of the child that has the goal, in a node above the leaves that has it.
    pub(crate) fn child_in(self, node: &Node<'_>) -> usize {
        match self {
            Self::At(point) => node.child_of(point),
            Self::Before(None) => node.len().saturating_sub(1),
            Self::Before(Some(point)) => node.before(point).saturating_sub(1),
        }
    }
}

/// An entry of a node: its point, and its child if the node is above the leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) point: Point<'a>,
    pub(crate) child: u64,
}

impl<'a> Entry<'a> {
    pub(crate) fn leaf(point: Point<'a>) -> Self {
        Self { point, child: 0 }
    }

    /// Returns the number of bytes of the entry in a node of this level, without its offset.
    fn len(self, level: u8) -> usize {
        self.point.len() + if level > 0 { CHILD } else { 0 }
    }

    fn emit(self, level: u8, out: &mut Vec<u8>) {
        if level > 0 {
            out.extend_from_slice(&self.child.to_be_bytes());
        }
        self.point.emit(out);
    }
}

/// A change of a node at one place: an entry comes, goes, or takes the place of another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Splice<'a> {
    /// The number of entries before the change.
    pub(crate) at: usize,
    /// True if the entry there goes.
    pub(crate) replaces: bool,
    /// The entry that comes.
    pub(crate) entry: Option<Entry<'a>>,
}

/// A node that was parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    bytes: &'a [u8],
    count: usize,
    pub(crate) level: u8,
    pub(crate) start: Point<'a>,
    /// The first point behind the node. `None`: the node is the last one of its level.
    pub(crate) end: Option<Point<'a>>,
}

impl<'a> Node<'a> {
    /// Parses a node. `None` means that it is malformed.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
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
    pub(crate) fn known(bytes: &'a [u8]) -> Option<Self> {
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
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn offset(&self, i: usize) -> usize {
        let bytes = self.bytes.get(HEAD + i * OFFSET..).and_then(<[u8]>::first_chunk);
        bytes.map_or(usize::MAX, |bytes| u32::from_be_bytes(*bytes) as usize)
    }

    /// Returns the offset of entry `i`, or of the end behind the last one.
    fn place(&self, i: usize) -> usize {
        if i < self.count { self.offset(i) } else { self.bytes.len() }
    }

    /// Returns entry `i`, which the node has.
    pub(crate) fn entry(&self, i: usize) -> Entry<'a> {
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
    pub(crate) fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        (0..self.count).map(move |i| self.entry(i))
    }

    /// Returns true if the node has this point.
    pub(crate) fn contains(&self, point: Point<'_>) -> bool {
        self.start <= point && self.end.is_none_or(|end| point < end)
    }

    /// Returns the number of entries before a point.
    pub(crate) fn before(&self, point: Point<'_>) -> usize {
        // Behind the bytes that all keys begin with, a number decides mostly.
        let alike = self.alike(point.key);
        let wanted = head(&point.key[alike..]);
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            let entry = self.entry(middle).point;
            let order = head(entry.key.get(alike..).unwrap_or_default()).cmp(&wanted);
            if order.is_lt() || order.is_eq() && entry < point {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns the number of bytes with which all index keys of the node begin, and `key` too.
    fn alike(&self, key: &[u8]) -> usize {
        let alike = self.end.map_or(0, |end| common(self.start.key, end.key));
        if key.get(..alike) == self.start.key.get(..alike) { alike } else { 0 }
    }

    /// Returns true if the leaf has an entry at a point.
    pub(crate) fn has(&self, point: Point<'_>) -> bool {
        self.search(point).1
    }

    /// Returns the place of the child that has a point of this node, which is above the leaves.
    pub(crate) fn child_of(&self, point: Point<'_>) -> usize {
        let (at, is_at) = self.search(point);
        if is_at { at } else { at.saturating_sub(1) }
    }

    /// Returns the number of entries before a point, and true if the next one is at the point.
    pub(crate) fn search(&self, point: Point<'_>) -> (usize, bool) {
        let at = self.before(point);
        (at, at < self.count && self.entry(at).point == point)
    }

    /// Returns the node with an entry more, in its place. An entry at the same point is replaced.
    /// `None` means that the node is malformed.
    pub(crate) fn with(&self, entry: Entry<'_>) -> Option<Vec<u8>> {
        let (at, replaces) = self.search(entry.point);
        self.spliced(&[Splice { at, replaces, entry: Some(entry) }])
    }

    /// Returns the node without the entry at a point. `None` means that the node is malformed.
    pub(crate) fn without(&self, point: Point<'_>) -> Option<Vec<u8>> {
        let (at, replaces) = self.search(point);
        self.spliced(&[Splice { at, replaces, entry: None }])
    }

    /// Returns the node with some changes, which are in the order of their places. The bytes
    /// between them are copied as they are. `None` means that the node is malformed.
    pub(crate) fn spliced(&self, splices: &[Splice<'_>]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.splice(splices, &mut out)?;
        Some(out)
    }

    /// Appends the node with some changes to `out`, as [`Node::spliced`] returns it. `None` means
    /// that the node is malformed: then `out` has some bytes more.
    pub(crate) fn splice(&self, splices: &[Splice<'_>], out: &mut Vec<u8>) -> Option<()> {
        let added = || splices.iter().filter_map(|splice| splice.entry);
        let removed = splices.iter().filter(|splice| splice.replaces).count();
        let count = (self.count + added().count()).checked_sub(removed)?;
        let grown: usize = added().map(|entry| OFFSET + entry.len(self.level)).sum();
        out.reserve(self.bytes.len() + grown);
        out.extend_from_slice(self.bytes.get(..2)?);
        out.extend_from_slice(&u16::try_from(count).ok()?.to_be_bytes());
        let range = HEAD + self.count * OFFSET;
        let mut at = HEAD + count * OFFSET + self.place(0).checked_sub(range)?;
        // The entries before each change, then the rest.
        let runs = || splices.iter().map(Some).chain([None]);
        let mut from = 0;
        for splice in runs() {
            let (behind, base) = (splice.map_or(self.count, |it| it.at), self.place(from));
            let old = self.bytes.get(HEAD + from * OFFSET..HEAD + behind * OFFSET)?;
            // All of a run move by as much. Offsets that are too small are as wrong afterwards.
            let by = (at as u32).wrapping_sub(base as u32);
            let new = out.len();
            out.extend_from_slice(old);
            for offset in out[new..].as_chunks_mut().0 {
                *offset = u32::from_be_bytes(*offset).wrapping_add(by).to_be_bytes();
            }
            at += self.place(behind).checked_sub(base)?;
            let Some(splice) = splice else { break };
            if let Some(entry) = splice.entry {
                out.extend_from_slice(&(at as u32).to_be_bytes());
                at += entry.len(self.level);
            }
            from = behind + usize::from(splice.replaces);
        }
        let mut begin = range;
        for splice in runs() {
            let behind = splice.map_or(self.count, |it| it.at);
            out.extend_from_slice(self.bytes.get(begin..self.place(behind))?);
            let Some(splice) = splice else { break };
            if let Some(entry) = splice.entry {
                entry.emit(self.level, out);
            }
            begin = self.place(behind + usize::from(splice.replaces));
        }
        Some(())
    }

    /// Returns the place of the first entry of the second half: the halves have about as many
    /// bytes, or the second has one entry if new points come behind all others.
    fn middle(&self, new: Point<'_>) -> usize {
        let last = self.count.saturating_sub(1).max(1);
        if self.end.is_none() && self.count > 1 && self.entry(last).point < new {
            return last;
        }
        let half = self.bytes.len().midpoint(self.offset(0).min(self.bytes.len()));
        (1..last).find(|&i| self.offset(i) >= half).unwrap_or(last)
    }

    /// Returns the halves of the node, which gets this new point then, and between them the start
    /// of the second one.
    pub(crate) fn halves(&self, new: Point<'_>) -> (Vec<u8>, Point<'a>, Vec<u8>) {
        let middle = self.middle(new);
        let separator = self.separator(middle);
        let first = self.part(0..middle, self.start, Some(separator));
        (first, separator, self.part(middle..self.count, separator, self.end))
    }

    /// Returns the start of the second half, which begins with entry `middle`: where its child
    /// begins, or in a leaf the shortest point that the entries before are in front of.
    fn separator(&self, middle: usize) -> Point<'a> {
        let second = self.entry(middle).point;
        match middle.checked_sub(1) {
            Some(last) if self.level == 0 => self.entry(last).point.separator(second),
            _ => second,
        }
    }

    /// Returns the entries from one place up to another one, as a node of the same level.
    pub(crate) fn part(
        &self,
        places: core::ops::Range<usize>,
        start: Point<'_>,
        end: Option<Point<'_>>,
    ) -> Vec<u8> {
        emit(self.level, start, end, places.map(|i| self.entry(i)))
    }
}

/// Returns the bytes of a node.
pub(crate) fn emit<'e>(
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
        at += entry.len(level);
    }
    out.reserve(at - out.len());
    start.emit(&mut out);
    if let Some(end) = end {
        end.emit(&mut out);
    }
    entries.iter().for_each(|entry| entry.emit(level, &mut out));
    out
}

#[cfg(test)]
mod tests;
