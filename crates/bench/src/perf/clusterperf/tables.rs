//! The tables of a test: their objects, and the keys of these.

use sprat::kv::TableId;

use super::super::basic::{FILLING_BYTES, FILLINGS, LARGE_SET};
use super::super::bench::Bench;
use super::super::temporary::Temporary;
use crate::fail::Fail;

/// The number and the sizes of a table's objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) objects: u64,
    /// Bytes of each value.
    pub(super) size: usize,
    /// Bytes of each key.
    pub(super) key: usize,
}

/// A table with its objects.
pub(super) struct Filled {
    temporary: Temporary,
    pub(super) table: TableId,
    pub(super) shape: Shape,
}

/// Returns the key of object `index` with `length` bytes: its decimal digits behind zeros. A key
/// that is too short for all digits has the last ones.
pub(super) fn key(index: u64, length: usize) -> Vec<u8> {
    let digits = format!("{index:0length$}").into_bytes();
    digits[digits.len() - length..].to_vec()
}

impl Filled {
    /// Creates a table and writes its objects. `number` is a part of its name. The coordinator
    /// places each new table on the server with the fewest tablets.
    pub(super) fn fill(bench: &mut Bench, number: usize, shape: Shape) -> Result<Self, Fail> {
        Self::fill_with(bench, number, shape, &vec![b'v'; shape.size])
    }

    /// Creates a table as [`Filled::fill`] does, whose objects all have this value.
    pub(super) fn fill_with(
        bench: &mut Bench,
        number: usize,
        shape: Shape,
        value: &[u8],
    ) -> Result<Self, Fail> {
        let (temporary, store, table) = Temporary::create(bench, &format!("set{number}"))?;
        let window = (FILLING_BYTES / (shape.size + shape.key + 200)).clamp(1, 64) as u64;
        // Large sets are written several times, as those of `basic`.
        let large = shape.objects * shape.size as u64 >= LARGE_SET;
        let writes = if large { FILLINGS * shape.objects } else { shape.objects };
        let (mut started, mut finished) = (0, 0);
        while finished < writes {
            while started < writes && started - finished < window {
                let key = key(started % shape.objects, shape.key);
                store.raw().table_by_id(table).start_put(&key, value).queue();
                started += 1;
            }
            store.raw().turn_and_rest();
            while let Some((_, outcome)) = store.raw().next_completed() {
                outcome.map_err(|error| store.explain(error, "filling a table"))?;
                finished += 1;
            }
        }
        Ok(Self { temporary, table, shape })
    }

    /// Drops the table.
    pub(super) fn end(self) -> Result<(), Fail> {
        self.temporary.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_length() {
        assert_eq!(key(7, 3), b"007");
        assert_eq!(key(1234, 2), b"34");
        assert_eq!(key(0, 1), b"0");
        assert_eq!(key(5, 60_000).len(), 60_000);
    }
}
