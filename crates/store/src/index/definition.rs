//! The definitions of a table's indexes: where the key of an object's entry comes from.
//!
//! ```text
//! catalog   0 format u8 (1) | 1 the number of the next index u8 | 2 count u8 | the indexes
//! an index  0 number u8 | 1 state u8 (0 is built, 1 ready) | 2 node bytes u32
//!           6 name length u8 | 7 name | source
//! source    0 kind u8 | 1 a u32 | 5 b u32
//!           (0 key; 1 bytes: at a, length b; 2 field: number a, separator b; 3 packed: number a)
//! ```
//!
//! An object has its index keys in its key and value, so that each client finds the same ones, and
//! a look-up can check what it found.
//!
//! Invariants: parsing never panics. A number is never used again.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

use super::error::Error;
use crate::client;
use crate::types::{MAX_INDEX_KEY, MAX_INDEX_NAME, MAX_INDEXES};

/// The usual size of a node in bytes: the read of one fits into a frame of Ethernet.
pub const NODE_BYTES: u32 = 1300;

const FORMAT: u8 = 1;
/// The sizes of nodes that are possible.
const NODES: RangeInclusive<u32> = 64..=1 << 16;

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
    /// A key that [`pack`] has put before the value. An object with fewer keys, or whose value
    /// [`unpack`] does not understand, is not in the index.
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

/// Returns a value with index keys before it, for [`Source::Packed`]: the number of keys as a byte,
/// the length of each as u16, the keys, and `value`.
///
/// # Errors
/// [`Error::TooManyKeys`] above 255, and [`client::Error::IndexKeyTooLong`].
pub fn pack(keys: &[&[u8]], value: &[u8]) -> Result<Vec<u8>, Error> {
    let count = u8::try_from(keys.len()).map_err(|_| Error::TooManyKeys(keys.len()))?;
    let mut packed = Vec::from([count]);
    for key in keys {
        if key.len() > MAX_INDEX_KEY {
            return Err(client::Error::IndexKeyTooLong(key.len()).into());
        }
        packed.extend_from_slice(&(key.len() as u16).to_be_bytes());
    }
    keys.iter().for_each(|key| packed.extend_from_slice(key));
    packed.extend_from_slice(value);
    Ok(packed)
}

/// Returns the keys and the value that [`pack`] has united. `None`: these are no such bytes.
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
    pub(super) number: u8,
}

/// The indexes of a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Catalog {
    pub(super) indexes: Vec<Definition>,
    /// The number of the next index.
    next: u8,
}

impl Catalog {
    /// Returns the index of a name.
    pub(super) fn find(&self, name: &str) -> Result<&Definition, Error> {
        let found = self.indexes.iter().find(|index| index.name == name);
        found.ok_or_else(|| Error::NoIndex(name.into()))
    }

    /// Returns the index with a number.
    pub(super) fn numbered(&self, number: u8) -> Option<&Definition> {
        self.indexes.iter().find(|index| index.number == number)
    }

    /// Returns the size in bytes of a full node of the index with a number, 0 if there is none.
    pub(super) fn node_bytes(&self, number: u8) -> usize {
        self.numbered(number).map_or(0, |index| index.node_bytes as usize)
    }

    /// Returns true if an index had this number and was dropped.
    pub(super) fn has_dropped(&self, number: u8) -> bool {
        number < self.next && self.numbered(number).is_none()
    }

    /// Adds an index that is not ready.
    pub(super) fn add(&mut self, name: &str, source: Source, node_bytes: u32) -> Result<u8, Error> {
        if name.is_empty() || name.len() > MAX_INDEX_NAME || name.chars().any(char::is_control) {
            return Err(Error::BadName(name.into()));
        }
        if !NODES.contains(&node_bytes) {
            return Err(Error::BadNodeBytes(node_bytes));
        }
        if self.indexes.len() == MAX_INDEXES {
            return Err(Error::TooManyIndexes);
        }
        let number = self.next;
        self.next = number.checked_add(1).ok_or(Error::TooManyIndexes)?;
        let (name, is_ready) = (name.into(), false);
        self.indexes.push(Definition { name, source, node_bytes, is_ready, number });
        Ok(number)
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
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
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[FORMAT, next, count], mut rest) = bytes.split_first_chunk()? else { return None };
        let mut indexes = Vec::new();
        for _ in 0..count {
            let (&[number, ready, a, b, c, d, name_len], behind) = rest.split_first_chunk()?;
            let (name, behind) = behind.split_at_checked(name_len.into())?;
            let (source, behind) = behind.split_first_chunk()?;
            let node_bytes = u32::from_be_bytes([a, b, c, d]);
            if !NODES.contains(&node_bytes) {
                return None;
            }
            indexes.push(Definition {
                name: core::str::from_utf8(name).ok()?.into(),
                source: Source::parse(source)?,
                node_bytes,
                is_ready: ready == 1,
                number,
            });
            rest = behind;
        }
        rest.is_empty().then_some(Self { indexes, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_part_of_the_object() {
        let of = |source: Source, value| source.key_of(b"own", value);
        assert_eq!(of(Source::Key, b""), Some(&b"own"[..]));
        let bytes = Source::Bytes { at: 2, len: 3 };
        assert_eq!((of(bytes, b"abcdef"), of(bytes, b"abcd")), (Some(&b"cde"[..]), None));
        let field = Source::Field { number: 1, separator: b',' };
        assert_eq!((of(field, b"a,b,c"), of(field, b"a,")), (Some(&b"b"[..]), Some(&b""[..])));
        assert_eq!(of(field, b"abc"), None);
        let packed = pack(&[b"first", b""], b"value").unwrap();
        assert_eq!(packed, b"\x02\0\x05\0\0firstvalue");
        assert_eq!(unpack(&packed), Some((Vec::from([&b"first"[..], b""]), &b"value"[..])));
        let second = Source::Packed { number: 1 };
        assert_eq!((of(second, &packed), of(second, b"\x02\0\x09\0\0x")), (Some(&b""[..]), None));
        let third = Source::Packed { number: 2 };
        assert_eq!((of(third, &packed), of(third, b"")), (None, None));
        let huge = Source::Bytes { at: u32::MAX, len: u32::MAX };
        assert_eq!(of(huge, b"abc"), None);
    }

    #[test]
    fn a_catalog_comes_back_and_damage_is_found() {
        let mut catalog = Catalog::default();
        let by = Source::Field { number: 7, separator: b';' };
        assert_eq!(catalog.add("by name", Source::Key, NODE_BYTES), Ok(0));
        assert_eq!(catalog.add("by city", by, 64), Ok(1));
        catalog.indexes[1].is_ready = true;
        let bytes = catalog.bytes();
        assert_eq!(Catalog::parse(&bytes).as_ref(), Some(&catalog));
        for len in 0..bytes.len() {
            assert_eq!(Catalog::parse(&bytes[..len]), None, "{len}");
        }
        assert_eq!(catalog.add("", by, 64), Err(Error::BadName("".into())));
        assert_eq!(catalog.add("x", by, 63), Err(Error::BadNodeBytes(63)));
        // The number of a dropped index does not come back.
        catalog.indexes.pop();
        assert_eq!(catalog.add("by city", by, 64), Ok(2));
        assert_eq!(catalog.find("by nothing"), Err(Error::NoIndex("by nothing".into())));
    }

    #[test]
    fn the_number_of_indexes_has_a_limit() {
        let mut catalog = Catalog::default();
        for n in 0..MAX_INDEXES {
            catalog.add(&alloc::format!("{n}"), Source::Key, 64).unwrap();
        }
        assert_eq!(catalog.add("one more", Source::Key, 64), Err(Error::TooManyIndexes));
    }

    #[test]
    fn keys_that_do_not_fit_are_refused() {
        let long = [7; MAX_INDEX_KEY + 1];
        let too_long = client::Error::IndexKeyTooLong(MAX_INDEX_KEY + 1);
        assert_eq!(pack(&[&long], b""), Err(too_long.into()));
        assert_eq!(pack(&[&b"k"[..]; 256], b""), Err(Error::TooManyKeys(256)));
    }
}
