//! Look-ups in one leaf: the master that has the leaf answers with the entries in a range, and with
//! those of their objects that it has too.
//!
//! ```text
//! query   0 table of the objects u64 | 8 most entries u16 | 10 order u8 (0: ascending,
//!         1: descending) | 11 first copy of the catalog u8 | 12 1 u8 if the range has an end
//!         13 zeros | 16 the first point of the range | the first point behind it
//! answer  0 0 u8: ask another way
//! answer  0 1 u8 | 1 1 u8 if the range has a rest | 2 count u16 | 4 copy of the catalog u8
//!         5 zeros | 8 version of the copy u64 | the point where the rest begins or ends | entries
//! entry   0 version of the object u64, 0 if it is not here | 8 value length u32
//!         12 the point | value
//! ```
//!
//! The answer has the version of the first copy of the catalog, from the one in the query on, that
//! is here: it shows the client whether the index still exists.
//!
//! Invariant: parsing checks all lengths and never panics.

use alloc::vec::Vec;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::COPIES;
use super::node::{Node, OwnedPoint, Point};
use super::range::{Order, Span};
use crate::message::Status;
use crate::types::{TableId, Version};

/// The most entries of an answer.
pub(crate) const MOST_ENTRIES: usize = 1024;
/// The longest answer with objects in bytes. Those that do not fit are read by themselves.
const MOST_BYTES: usize = 32 << 10;
/// The most objects of an answer.
pub(crate) const MOST_OBJECTS: usize = 64;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct QueryWire {
    table: U64,
    most: U16,
    order: u8,
    copy: u8,
    has_end: u8,
    zeros: [u8; 3],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AnswerWire {
    is_found: u8,
    has_rest: u8,
    count: U16,
    copy: u8,
    zeros: [u8; 3],
    catalog: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EntryWire {
    version: U64,
    value_len: U32,
}

/// A look-up in a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Query<'a> {
    /// The table of the objects that the entries name.
    pub(crate) table: TableId,
    pub(crate) order: Order,
    /// The most entries of the answer.
    pub(crate) most: u16,
    /// The copy of the catalog that is looked for first.
    pub(crate) copy: u8,
    pub(crate) span: Span<'a>,
}

/// The answer of a server: the entries of a leaf that are in a range.
pub(crate) struct Answer<'a> {
    /// A copy of the catalog, and its version.
    pub(crate) catalog: (u8, Version),
    /// The point where the rest of the range begins or ends.
    pub(crate) rest: Option<OwnedPoint>,
    /// Each entry, with its object if the server has it.
    pub(crate) entries: Vec<Entry<'a>>,
}

/// An entry of a leaf, with the version and the value of its object if the server has it.
pub(crate) type Entry<'a> = (Point<'a>, Option<(Version, &'a [u8])>);

impl<'a> Query<'a> {
    /// Returns the bytes of the query.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let Self { table, order, most, copy, span: Span { from, to } } = *self;
        let wire = QueryWire {
            table: table.0.into(),
            most: most.into(),
            order: (order == Order::Descending).into(),
            copy,
            has_end: to.is_some().into(),
            zeros: [0; 3],
        };
        let len = size_of::<QueryWire>() + from.len() + to.map_or(0, Point::len);
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(wire.as_bytes());
        from.emit(&mut out);
        to.iter().for_each(|to| to.emit(&mut out));
        out
    }

    /// Parses a query.
    ///
    /// # Errors
    /// [`Status::BadFormat`].
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Status> {
        Self::parts(bytes).ok_or(Status::BadFormat)
    }

    fn parts(bytes: &'a [u8]) -> Option<Self> {
        let (wire, rest) = QueryWire::ref_from_prefix(bytes).ok()?;
        let order = match wire.order {
            0 => Order::Ascending,
            1 => Order::Descending,
            _ => return None,
        };
        let from = Point::parse(rest)?;
        let rest = &rest[from.len()..];
        let (to, rest) = match wire.has_end {
            0 => (None, rest),
            1 => {
                let to = Point::parse(rest)?;
                (Some(to), &rest[to.len()..])
            }
            _ => return None,
        };
        let (most, copy) = (wire.most.get(), wire.copy);
        let is_whole = rest.is_empty() && wire.zeros == [0; 3];
        let is_bounded = (1..=MOST_ENTRIES).contains(&most.into()) && copy < COPIES;
        let (table, span) = (TableId(wire.table.get()), Span { from, to });
        (is_whole && is_bounded).then_some(Self { table, order, most, copy, span })
    }

    /// Returns the entries of a leaf in the range. `None`: the look-up does not begin there, or it
    /// is no leaf at all.
    pub(crate) fn pick<'n>(&self, leaf: &'n [u8]) -> Option<Picked<'n>> {
        let goal = self.span.goal(self.order);
        let leaf = Node::parse(leaf).filter(|node| node.level == 0 && goal.is_in(node))?;
        let mut points = Vec::new();
        let rest = self.span.points(self.order, [leaf].into_iter(), &mut points, self.most.into());
        Some(Picked { points, rest })
    }
}

/// The entries of a leaf that a look-up has picked.
pub(crate) struct Picked<'n> {
    pub(crate) points: Vec<Point<'n>>,
    rest: Option<OwnedPoint>,
}

impl Picked<'_> {
    /// Adds the answer to `out`: each entry with what `object` returns for its index. `catalog` is
    /// a copy of the catalog and its version.
    pub(crate) fn answer<'o>(
        &self,
        (copy, catalog): (u8, Version),
        mut object: impl FnMut(usize) -> Option<(Version, &'o [u8])>,
        out: &mut Vec<u8>,
    ) {
        let Self { points, rest } = self;
        let wire = AnswerWire {
            is_found: 1,
            has_rest: rest.is_some().into(),
            count: (points.len() as u16).into(),
            copy,
            zeros: [0; 3],
            catalog: catalog.0.into(),
        };
        let begin = out.len();
        out.extend_from_slice(wire.as_bytes());
        rest.iter().for_each(|rest| rest.point().emit(out));
        let mut most = MOST_OBJECTS;
        for (i, point) in points.iter().enumerate() {
            let mut found = if i < most { object(i) } else { None };
            if found.is_some_and(|(_, value)| out.len() - begin + value.len() > MOST_BYTES) {
                // The client has to read in any case. It reads those behind at the same time.
                (found, most) = (None, 0);
            }
            let (version, value) = found.unwrap_or_default();
            let (version, value_len) = (version.0.into(), (value.len() as u32).into());
            out.extend_from_slice(EntryWire { version, value_len }.as_bytes());
            point.emit(out);
            out.extend_from_slice(value);
        }
    }
}

impl<'a> Answer<'a> {
    /// The answer to ask another way: the leaf is another one, or the server has no catalog.
    pub(crate) const ELSEWHERE: [u8; 1] = [0];

    /// Parses an answer. `Some(None)` means to ask another way, `None` that it is malformed.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Option<Self>> {
        if bytes == Self::ELSEWHERE {
            return Some(None);
        }
        let (wire, mut bytes) = AnswerWire::ref_from_prefix(bytes).ok()?;
        if (wire.is_found, wire.zeros) != (1, [0; 3]) || wire.has_rest > 1 || wire.copy >= COPIES {
            return None;
        }
        let mut rest = None;
        if wire.has_rest == 1 {
            let point = Point::parse(bytes)?;
            (rest, bytes) = (Some(point.to_owned()), &bytes[point.len()..]);
        }
        let count = usize::from(wire.count.get());
        let mut entries = Vec::with_capacity(count.min(bytes.len() / size_of::<EntryWire>()));
        for _ in 0..count {
            let (entry, behind) = EntryWire::ref_from_prefix(bytes).ok()?;
            let point = Point::parse(behind)?;
            let value_len = entry.value_len.get() as usize;
            let (value, behind) = behind[point.len()..].split_at_checked(value_len)?;
            let version = Version(entry.version.get());
            entries.push((point, (version != Version(0)).then_some((version, value))));
            bytes = behind;
        }
        let catalog = (wire.copy, Version(wire.catalog.get()));
        bytes.is_empty().then_some(Some(Self { catalog, rest, entries }))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::btree::node::{Entry as NodeEntry, emit};

    fn point<'a>(key: &'a [u8], object: &'a [u8]) -> Point<'a> {
        Point { key, object }
    }

    fn query<'a>(order: Order, from: Point<'a>, to: Option<Point<'a>>) -> Query<'a> {
        Query { table: TableId(7), order, most: 2, copy: 3, span: Span { from, to } }
    }

    /// A leaf with the index keys b, c and d, each of the object with the same key.
    fn leaf() -> Vec<u8> {
        let keys: [&[u8]; 3] = [b"b", b"c", b"d"];
        let entries = keys.iter().map(|key| NodeEntry::leaf(point(key, key)));
        emit(0, point(b"b", b""), Some(point(b"x", b"")), entries)
    }

    /// Returns the answer of the leaf, whose server has the object c alone.
    fn answer(query: &Query<'_>, leaf: &[u8], catalog: Option<(u8, Version)>) -> Vec<u8> {
        let mut out = vec![];
        let (Some(picked), Some(catalog)) = (query.pick(leaf), catalog) else {
            return Answer::ELSEWHERE.to_vec();
        };
        let object =
            |i: usize| (picked.points[i].object == b"c").then_some((Version(9), &b"value"[..]));
        picked.answer(catalog, object, &mut out);
        out
    }

    #[test]
    fn a_query_and_its_answer_have_their_golden_bytes() {
        let asked = query(Order::Ascending, point(b"b", b""), Some(point(b"z", b"")));
        let golden = b"\0\0\0\0\0\0\0\x07\0\x02\0\x03\x01\0\0\0\0\x01\0\0\0\0b\0\x01\0\0\0\0z";
        assert_eq!(asked.emit(), golden);
        assert_eq!(Query::parse(golden), Ok(asked));
        let answered = answer(&asked, &leaf(), Some((4, Version(5))));
        let golden = b"\x01\x01\0\x02\x04\0\0\0\0\0\0\0\0\0\0\x05\0\x01\0\0\0\x02cc\0\
            \0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01bb\
            \0\0\0\0\0\0\0\x09\0\0\0\x05\0\x01\0\0\0\x01ccvalue";
        assert_eq!(answered, golden);
        let parsed = Answer::parse(&answered).flatten().unwrap();
        assert_eq!(parsed.catalog, (4, Version(5)));
        assert_eq!(parsed.rest, Some(point(b"c", b"c").to_owned().next()));
        let c = (point(b"c", b"c"), Some((Version(9), &b"value"[..])));
        assert_eq!(parsed.entries, [(point(b"b", b"b"), None), c]);
        for len in 0..answered.len() {
            assert!(Answer::parse(&answered[..len]).is_none(), "{len}");
        }
    }

    #[test]
    fn a_leaf_answers_in_both_orders_up_to_its_end() {
        let keys = |query: &Query<'_>| {
            let answered = answer(query, &leaf(), Some((0, Version(1))));
            let parsed = Answer::parse(&answered).flatten()?;
            let keys: Vec<u8> = parsed.entries.iter().map(|(point, _)| point.key[0]).collect();
            Some((keys, parsed.rest))
        };
        let (b, d, x) = (point(b"b", b""), point(b"d", b""), point(b"x", b""));
        let up = |from, to| keys(&query(Order::Ascending, from, to));
        let down = |from, to| keys(&query(Order::Descending, from, to));
        assert_eq!(up(d, None), Some((vec![b'd'], Some(x.to_owned()))), "the rest is elsewhere");
        assert_eq!(up(b, Some(d)), Some((vec![b'b', b'c'], None)));
        let c = point(b"c", b"c");
        assert_eq!(down(b, Some(x)), Some((vec![b'd', b'c'], Some(c.to_owned()))));
        assert_eq!(down(point(b"a", b""), Some(c)), Some((vec![b'b'], Some(b.to_owned()))));
        // The leaf is not where these begin.
        assert_eq!((up(point(b"a", b""), None), up(x, None), down(b, None)), (None, None, None));
    }

    #[test]
    fn without_a_leaf_or_a_catalog_the_answer_is_to_ask_another_way() {
        let asked = query(Order::Ascending, point(b"b", b""), None);
        let catalog = Some((0, Version(1)));
        let above = emit(
            1,
            point(b"b", b""),
            None,
            [NodeEntry { point: point(b"b", b""), child: 3 }].into_iter(),
        );
        for (leaf, catalog) in [(&leaf(), None), (&above, catalog), (&vec![1, 2, 3], catalog)] {
            let answered = answer(&asked, leaf, catalog);
            assert_eq!(answered, [0]);
            assert!(matches!(Answer::parse(&answered), Some(None)));
        }
    }

    #[test]
    fn an_answer_has_as_many_objects_as_fit() {
        let keys: Vec<[u8; 2]> = (0..200u16).map(u16::to_be_bytes).collect();
        let entries = keys.iter().map(|key| NodeEntry::leaf(point(key, key)));
        let leaf = emit(0, Point::FIRST, None, entries);
        let asked = Query { most: 200, ..query(Order::Ascending, Point::FIRST, None) };
        for (len, expected) in [(1, MOST_OBJECTS), (1000, 32), (MOST_BYTES, 0)] {
            let (value, mut out, mut asked_for) = (vec![1; len], vec![], 0);
            let object = |_| {
                asked_for += 1;
                Some((Version(1), &value[..]))
            };
            asked.pick(&leaf).unwrap().answer((0, Version(1)), object, &mut out);
            assert_eq!(asked_for, MOST_OBJECTS.min(expected + 1), "none behind one too long");
            let parsed = Answer::parse(&out).flatten().unwrap();
            let given = parsed.entries.iter().filter(|(_, object)| object.is_some()).count();
            assert_eq!((parsed.entries.len(), given), (200, expected), "{len}");
        }
    }

    proptest! {
        /// No bytes make a parser panic, and emitting a parsed query gives the same bytes.
        #[test]
        fn arbitrary_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Answer::parse(&bytes);
            if bytes.len() > 16 {
                let fixed = [0, bytes[9], bytes[10] & 1, 3, bytes[12] & 1, 0, 0, 0];
                bytes[8..16].copy_from_slice(&fixed);
            }
            if let Ok(query) = Query::parse(&bytes) {
                prop_assert_eq!(query.emit(), &bytes[..]);
                let _ = answer(&query, &leaf(), Some((0, Version(1))));
                let _ = answer(&query, &bytes, Some((0, Version(1))));
            }
        }
    }
}
