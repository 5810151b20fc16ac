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
//! entry   0 version of the object u64, 0 if it is not here | 8 value length u32 | the point | value
//! ```
//!
//! The answer has the version of the first copy of the catalog, from `first` on, that is here: it
//! shows the client whether the index still exists.
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

/// The longest answer with objects in bytes. Those that do not fit are read by themselves.
const MOST_BYTES: usize = 16 << 10;
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

/// The entries of a leaf that are in a range.
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
        let (order, most) = match wire.order {
            0 => (Order::Ascending, wire.most.get()),
            1 => (Order::Descending, wire.most.get()),
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
        let is_sound = rest.is_empty() && wire.zeros == [0; 3] && wire.copy < COPIES && most > 0;
        let (table, span) = (TableId(wire.table.get()), Span { from, to });
        is_sound.then_some(Self { table, order, most, copy: wire.copy, span })
    }

    /// Adds the answer to `out`: the entries of `leaf` in the range, each with what `object`
    /// returns for its key. `catalog` is a copy of the catalog and its version. Without one, or if
    /// the leaf is not where the look-up begins, the answer is to ask another way.
    pub(crate) fn answer<'o>(
        &self,
        leaf: &[u8],
        catalog: Option<(u8, Version)>,
        mut object: impl FnMut(&[u8]) -> Option<(Version, &'o [u8])>,
        out: &mut Vec<u8>,
    ) {
        let goal = self.span.goal(self.order);
        let leaf = Node::parse(leaf).filter(|node| node.level == 0 && goal.is_in(node));
        let (Some(leaf), Some((copy, catalog))) = (leaf, catalog) else {
            out.push(0);
            return;
        };
        let mut points = Vec::new();
        let rest = self.span.points(self.order, [leaf].into_iter(), &mut points, self.most.into());
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
        for (i, point) in points.iter().enumerate() {
            let fits = |value: &[u8]| out.len() - begin + value.len() <= MOST_BYTES;
            let found = if i < MOST_OBJECTS { object(point.object) } else { None };
            let (version, value) = found.filter(|(_, value)| fits(value)).unwrap_or_default();
            let (version, value_len) = (version.0.into(), (value.len() as u32).into());
            out.extend_from_slice(EntryWire { version, value_len }.as_bytes());
            point.emit(out);
            out.extend_from_slice(value);
        }
    }
}

impl<'a> Answer<'a> {
    /// Parses an answer. `Some(None)` means to ask another way, `None` that it is malformed.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Option<Self>> {
        if bytes == [0] {
            return Some(None);
        }
        let (wire, mut rest) = AnswerWire::ref_from_prefix(bytes).ok()?;
        if wire.is_found != 1 || wire.copy >= COPIES {
            return None;
        }
        let mut point = || {
            let point = Point::parse(rest)?;
            rest = &rest[point.len()..];
            Some(point)
        };
        let behind = if wire.has_rest == 1 { Some(point()?.to_owned()) } else { None };
        let count = usize::from(wire.count.get());
        let mut entries = Vec::with_capacity(count.min(rest.len() / size_of::<EntryWire>()));
        for _ in 0..count {
            let (entry, behind) = EntryWire::ref_from_prefix(rest).ok()?;
            let point = Point::parse(behind)?;
            let value_len = entry.value_len.get() as usize;
            let (value, behind) = behind[point.len()..].split_at_checked(value_len)?;
            let version = Version(entry.version.get());
            entries.push((point, (version != Version(0)).then_some((version, value))));
            rest = behind;
        }
        let catalog = (wire.copy, Version(wire.catalog.get()));
        rest.is_empty().then_some(Some(Self { catalog, rest: behind, entries }))
    }
}
