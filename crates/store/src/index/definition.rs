//! The definitions of a table's indexes, as programs make them.
//!
//! Invariant: a number is never used again.

use alloc::vec::Vec;

use super::error::Error;
use crate::btree::catalog::{Catalog, Definition, NODES, Source};
use crate::client;
use crate::types::{MAX_INDEX_KEY, MAX_INDEX_NAME, MAX_INDEXES};

/// The usual size of a node in bytes: the read of one fits into a frame of Ethernet.
pub const NODE_BYTES: u32 = 1300;

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

impl Catalog {
    /// Returns the index of a name.
    pub(super) fn find(&self, name: &str) -> Result<&Definition, Error> {
        let found = self.indexes.iter().find(|index| index.name == name);
        found.ok_or_else(|| Error::NoIndex(name.into()))
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::catalog::unpack;

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
