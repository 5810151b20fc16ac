//! The catalog of a table's indexes: where the key of an object's entry comes from.
//!
//! ```text
//! catalog   0 format u8 (1) | 1 the number of the next index u8 | 2 count u8 | the indexes
//! an index  0 number u8 | 1 state u8 (0 is built, 1 ready) | 2 node bytes u32
//!           6 name length u8 | 7 name | source
//! source    0 kind u8 | 1 a u32 | 5 b u32
//!           (0 key; 1 bytes: at a, length b; 2 field: number a, separator b; 3 packed: number a)
//! ```
//!
//! An object has its index keys in its key and value, so that each client and each master finds the
//! same ones, and a look-up can check what it found.
//!
//! Invariant: parsing never panics.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

const FORMAT: u8 = 1;
/// The sizes of nodes that are possible.
pub(crate) const NODES: RangeInclusive<u32> = 64..=1 << 16;

/// The part of an object that is its key in an index. Its text counts fields and keys from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Source {
    /// The object's own key: the index has the table in the order of its keys.
    Key,
    /// These bytes of the value. An object whose value is shorter is not in the index.
    Bytes {
        /// The offset of the first byte.
        at: u32,
        /// The number of bytes.
        len: u32,
    },
    /// A field of the value. An object with fewer fields is not in the index.
    Field {
        /// The number of the field, from 0 on.
        number: u32,
        /// The byte between two fields.
        separator: u8,
    },
    /// A key that [`pack`](crate::index::pack) has put before the value. An object with fewer keys,
    /// or whose value [`unpack`] does not understand, is not in the index.
    Packed {
        /// The number of the key, from 0 on.
        number: u32,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Key => f.write_str("own key"),
            Self::Bytes { at, len } => write!(f, "bytes {at}:{len}"),
            Self::Field { number, separator } => {
                let number = u64::from(number) + 1;
                write!(f, "field {number} by '{}'", separator.escape_ascii())
            }
            Self::Packed { number } => write!(f, "packed key {}", u64::from(number) + 1),
        }
    }
}

impl Source {
    /// Returns the index key of an object. `None`: the object is not in the index.
    #[must_use]
    pub fn key_of<'a>(self, key: &'a [u8], value: &'a [u8]) -> Option<&'a [u8]> {
        match self {
            Self::Key => Some(key),
            Self::Bytes { at, len } => value.get(at as usize..)?.get(..len as usize),
            Self::Field { number, separator } => {
                value.split(|byte| *byte == separator).nth(number as usize)
            }
            Self::Packed { number } => unpack(value)?.0.get(number as usize).copied(),
        }
    }

    fn emit(self, out: &mut Vec<u8>) {
        let (kind, a, b) = match self {
            Self::Key => (0, 0, 0),
            Self::Bytes { at, len } => (1, at, len),
            Self::Field { number, separator } => (2, number, u32::from(separator)),
            Self::Packed { number } => (3, number, 0),
        };
        out.push(kind);
        out.extend_from_slice(&a.to_be_bytes());
        out.extend_from_slice(&b.to_be_bytes());
    }

    fn parse(bytes: &[u8; 9]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let (a, b) = (word(1)?, word(5)?);
        Some(match bytes[0] {
            0 => Self::Key,
            1 => Self::Bytes { at: a, len: b },
            2 => Self::Field { number: a, separator: u8::try_from(b).ok()? },
            3 => Self::Packed { number: a },
            _ => return None,
        })
    }
}

/// Returns the keys and the value that [`pack`](crate::index::pack) has united. `None`: these are
/// no such bytes.
#[must_use]
pub fn unpack(packed: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (&count, rest) = packed.split_first()?;
    let (lens, mut rest) = rest.split_at_checked(2 * usize::from(count))?;
    let mut keys = Vec::with_capacity(count.into());
    for len in lens.as_chunks().0 {
        let (key, behind) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
        keys.push(key);
        rest = behind;
    }
    Some((keys, rest))
}

/// An index of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Definition {
    /// The name of the index, one of its table.
    pub name: String,
    /// The part of an object that is its key in the index.
    pub source: Source,
    /// The size in bytes from which on a node of the index is split.
    pub node_bytes: u32,
    /// True if the index has all objects of the table. Until then it gets those that existed before
    /// it.
    pub is_ready: bool,
    pub(crate) number: u8,
}

/// The indexes of a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Catalog {
    pub(crate) indexes: Vec<Definition>,
    /// The number of the next index.
    pub(crate) next: u8,
}

/// An index in the bytes of a catalog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) number: u8,
    pub(crate) is_ready: bool,
    pub(crate) node_bytes: u32,
    pub(crate) name: &'a str,
    pub(crate) source: Source,
}

/// Returns the number of the next index in the bytes of a catalog, and its rows. `None`, also as a
/// row, means that the catalog is malformed.
pub(crate) fn rows(bytes: &[u8]) -> Option<(u8, impl Iterator<Item = Option<Row<'_>>>)> {
    let (&[FORMAT, next, count], mut rest) = bytes.split_first_chunk()? else { return None };
    let mut left = count;
    let rows = core::iter::from_fn(move || {
        let Some(others) = left.checked_sub(1) else {
            // Bytes behind the last row are damage.
            return (!core::mem::take(&mut rest).is_empty()).then_some(None);
        };
        left = others;
        let row = Row::split(&mut rest);
        if row.is_none() {
            (left, rest) = (0, &[]);
        }
        Some(row)
    });
    Some((next, rows))
}

impl<'a> Row<'a> {
    /// Splits the first row off.
    fn split(rest: &mut &'a [u8]) -> Option<Self> {
        let (&[number, ready, a, b, c, d, name_len], behind) = rest.split_first_chunk()?;
        let (name, behind) = behind.split_at_checked(name_len.into())?;
        let (source, behind) = behind.split_first_chunk()?;
        let node_bytes = u32::from_be_bytes([a, b, c, d]);
        if !NODES.contains(&node_bytes) {
            return None;
        }
        *rest = behind;
        Some(Self {
            number,
            is_ready: ready == 1,
            node_bytes,
            name: core::str::from_utf8(name).ok()?,
            source: Source::parse(source)?,
        })
    }
}

impl Catalog {
    /// Returns the index with a number.
    pub(crate) fn numbered(&self, number: u8) -> Option<&Definition> {
        self.indexes.iter().find(|index| index.number == number)
    }

    /// Returns the size in bytes of a full node of the index with a number, 0 if there is none.
    pub(crate) fn node_bytes(&self, number: u8) -> usize {
        self.numbered(number).map_or(0, |index| index.node_bytes as usize)
    }

    /// Returns true if an index had this number and was dropped.
    pub(crate) fn has_dropped(&self, number: u8) -> bool {
        number < self.next && self.numbered(number).is_none()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::from([FORMAT, self.next, self.indexes.len() as u8]);
        for index in &self.indexes {
            out.extend_from_slice(&[index.number, index.is_ready.into()]);
            out.extend_from_slice(&index.node_bytes.to_be_bytes());
            out.push(index.name.len() as u8);
            out.extend_from_slice(index.name.as_bytes());
            index.source.emit(&mut out);
        }
        out
    }

    /// Parses a catalog. `None` means that it is malformed.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (next, rows) = rows(bytes)?;
        let definition = |row: Row<'_>| Definition {
            name: row.name.into(),
            source: row.source,
            node_bytes: row.node_bytes,
            is_ready: row.is_ready,
            number: row.number,
        };
        let indexes = rows.map(|row| row.map(definition)).collect::<Option<Vec<_>>>()?;
        Some(Self { indexes, next })
    }
}
