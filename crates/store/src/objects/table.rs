//! The hash table from keys to locations in the log.
//!
//! ```text
//!  line, 64 bytes: 8 entries of 64 bits
//!  entry: tag 16 bits | chain 1 bit | location 47 bits          0: empty
//!  hash:  the first `bits` bits choose the line, the last 16 are the tag
//!  a line that overflows has a chain entry in its last place: the number of a further line
//! ```
//!
//! A look-up costs one line here. If a tag fits, the caller compares the key in the log: the table
//! knows hashes and locations only. The table grows by doubling, some lines at a time, or to any
//! larger size for objects that are to come. Line `n` of the old lines becomes lines `2n` and
//! `2n + 1`, or more, so that lines are in the order of the hashes before, during and after growth.
//! A walk in that order ([`HashTable::walk`]) sees every entry once, even if the table grows
//! meanwhile.
//!
//! Invariants: a look-up allocates nothing. An insertion moves at most [`GROW_LINES`] lines. Growth
//! starts only when the mean line holds [`FULL`] entries.

use alloc::vec;
use alloc::vec::Vec;

use crate::objects::segment::Location;
use crate::types::{KeyHash, TableId};

/// The mean number of entries in a line at which the hash table starts to grow.
const FULL: u64 = 6;
/// The number of lines that each insertion moves while the hash table grows. Growth ends long
/// before the next growth starts.
pub const GROW_LINES: usize = 1;
const WIDTH: usize = 8;
/// The hash table grows to at most two to the power of this many lines.
const MOST_BITS: u32 = 40;
const CHAIN: u64 = 1 << Location::BITS;

/// Returns the hash by which a master's hash table holds an object. It is unique for a key hash of
/// a table, and evenly spread for any ranges that the master owns.
#[must_use]
#[inline]
pub fn spread(table: TableId, hash: KeyHash) -> u64 {
    (hash.0 ^ table.0.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Lines of the hash table in one block of memory. Each lies on one cache line.
#[derive(Debug, Default)]
struct Lines {
    words: Vec<u64>,
    /// The number of words in the block before the first one that starts a cache line.
    skip: usize,
    bits: u32,
}

impl Lines {
    fn new(bits: u32) -> Self {
        let words = vec![0; (WIDTH << bits) + WIDTH];
        let skip = words.as_ptr().align_offset(64).min(WIDTH);
        Self { words, skip, bits }
    }

    #[inline]
    fn line(&self, n: usize) -> &[u64; WIDTH] {
        &self.words[self.skip..].as_chunks().0[n]
    }

    #[inline]
    fn line_mut(&mut self, n: usize) -> &mut [u64; WIDTH] {
        &mut self.words[self.skip..].as_chunks_mut().0[n]
    }

    #[inline]
    fn number(&self, hash: u64) -> usize {
        (hash >> (64 - self.bits)) as usize
    }
}

/// The place of an entry in the hash table. It is valid until the table changes by other means than
/// this place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    line: Line,
    index: usize,
    home: Line,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    /// A line among the hash table's current lines.
    New(usize),
    /// A line among the hash table's old lines, which has not been doubled yet.
    Old(usize),
    /// An overflow line of the hash table.
    Spill(usize),
}

/// A hash table from hashes to locations in the log.
#[derive(Debug)]
pub struct HashTable {
    new: Lines,
    /// The old lines while the hash table grows. Those below `moved` have been moved.
    old: Option<Lines>,
    moved: usize,
    spill: Vec<[u64; WIDTH]>,
    spill_free: Vec<u32>,
    len: u64,
}

impl HashTable {
    /// Returns an empty hash table that holds about `expected` entries before it grows.
    #[must_use]
    pub fn new(expected: u64) -> Self {
        let lines = (expected / FULL).clamp(16, 1 << 40).next_power_of_two();
        Self {
            new: Lines::new(lines.trailing_zeros()),
            old: None,
            moved: 0,
            spill: Vec::new(),
            spill_free: Vec::new(),
            len: 0,
        }
    }

    /// Returns the number of entries in the hash table.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the hash table has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes of memory that the hash table takes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let old = self.old.as_ref().map_or(0, |lines| lines.words.len());
        8 * (self.new.words.len() + old + WIDTH * self.spill.capacity()) as u64
    }

    // Entries.

    /// Returns the place of the first entry under `hash` for which `is` returns true.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(Location) -> bool) -> Option<Place> {
        let home = self.home(hash);
        let tag = hash << 48;
        let mut at = home;
        loop {
            let line = self.line(at);
            for (index, &entry) in line.iter().enumerate() {
                // A tag of zero also fits empty entries and chain entries. This condition excludes
                // both.
                if entry & !(CHAIN - 1) == tag
                    && entry & (CHAIN - 1) != 0
                    && is(Location::from_bits(entry))
                {
                    return Some(Place { line: at, index, home });
                }
            }
            match chain(line) {
                Some(next) => at = Line::Spill(next),
                None => return None,
            }
        }
    }

    /// Returns the place of the entry under `hash` with this location.
    #[must_use]
    #[inline]
    pub fn place(&self, hash: u64, at: Location) -> Option<Place> {
        let (home, wanted) = (self.home(hash), hash << 48 | at.bits());
        let mut line_at = home;
        loop {
            let line = self.line(line_at);
            if let Some(index) = line.iter().position(|&entry| entry == wanted) {
                return Some(Place { line: line_at, index, home });
            }
            line_at = Line::Spill(chain(line)?);
        }
    }

    /// Returns the location in the entry at `place`.
    #[must_use]
    #[inline]
    pub fn location(&self, place: Place) -> Location {
        Location::from_bits(self.line(place.line)[place.index])
    }

    /// Sets the location in the entry at `place`.
    #[inline]
    pub fn set(&mut self, place: Place, to: Location) {
        let entry = &mut self.line_mut(place.line)[place.index];
        *entry = *entry & !((1 << Location::BITS) - 1) | to.bits();
    }

    /// Removes the entry at `place` from the hash table.
    pub fn remove(&mut self, place: Place) {
        self.line_mut(place.line)[place.index] = 0;
        self.len -= 1;
        if place.line != place.home || chain(self.line(place.home)).is_some() {
            self.trim(place.home);
        }
    }

    /// Reads the line of `hash`, so that it is in the cache when the hash is looked up soon. The
    /// result has no meaning; it keeps the compiler from dropping the read.
    #[must_use]
    #[inline]
    pub fn prefetch(&self, hash: u64) -> u64 {
        self.line(self.home(hash))[0]
    }

    /// Returns the first location in the line of `hash` whose tag fits. It is probably the location
    /// of the entry with that hash.
    #[must_use]
    #[inline]
    pub fn first(&self, hash: u64) -> Option<Location> {
        let line = self.line(self.home(hash));
        let fits = |entry: u64| entry & !(CHAIN - 1) == hash << 48 && entry & (CHAIN - 1) != 0;
        let entry = line.iter().find(|entry| fits(**entry))?;
        Some(Location::from_bits(*entry))
    }

    /// Inserts an entry into the hash table. `hash_of` returns the hash of any entry, for those
    /// that growth moves.
    pub fn insert(&mut self, hash: u64, to: Location, hash_of: impl Fn(Location) -> u64) {
        self.put(self.home(hash), hash << 48 | to.bits());
        self.len += 1;
        if self.old.is_some() || self.len > FULL << self.new.bits {
            self.grow(GROW_LINES, hash_of);
        }
    }

    /// Lets the hash table grow to the size for `more` further entries at once, unless it grows
    /// already.
    pub fn reserve(&mut self, more: u64) {
        let lines = self.len.saturating_add(more) / FULL;
        let bits = (u64::BITS - lines.leading_zeros()).min(MOST_BITS);
        if self.old.is_none() && bits > self.new.bits {
            self.begin_growth(bits);
        }
    }

    fn begin_growth(&mut self, bits: u32) {
        self.old = Some(core::mem::replace(&mut self.new, Lines::new(bits)));
        self.moved = 0;
    }

    /// Moves up to `lines` lines while the hash table grows, or starts growth if the table is full.
    /// Returns true if there are more lines to move.
    pub fn grow(&mut self, lines: usize, hash_of: impl Fn(Location) -> u64) -> bool {
        if self.old.is_none() && self.len > FULL << self.new.bits && self.new.bits < MOST_BITS {
            self.begin_growth(self.new.bits + 1);
        }
        for _ in 0..lines {
            let Some(old) = &self.old else { return false };
            if self.moved == 1 << old.bits {
                self.old = None;
                return false;
            }
            let mut line = *old.line(self.moved);
            self.moved += 1;
            loop {
                let next = chain(&line);
                let entries = if next.is_some() { WIDTH - 1 } else { WIDTH };
                for &entry in line[..entries].iter().filter(|&&entry| entry != 0) {
                    let hash = hash_of(Location::from_bits(entry));
                    self.put(Line::New(self.new.number(hash)), entry);
                }
                let Some(next) = next else { break };
                line = core::mem::take(&mut self.spill[next]);
                self.spill_free.push(next as u32);
            }
        }
        self.old.is_some()
    }

    /// Appends the entries of the line that holds `hash` to `found`. Returns the first hash of the
    /// next line, or `None` after the last. Repeated with the returned hash, from 0 on, it walks
    /// the table in the order of hashes. An entry that is in the table during the whole walk is
    /// seen once, if the caller ignores entries whose hash is below the given one (a line may come
    /// again in part when the walk starts within it or when growth has divided it).
    pub fn walk(&self, hash: u64, found: &mut Vec<Location>) -> Option<u64> {
        let home = self.home(hash);
        let mut at = home;
        loop {
            let line = self.line(at);
            let next = chain(line);
            let entries = if next.is_some() { WIDTH - 1 } else { WIDTH };
            found.extend(
                line[..entries].iter().filter(|&&e| e != 0).map(|&e| Location::from_bits(e)),
            );
            let Some(next) = next else { break };
            at = Line::Spill(next);
        }
        let (number, bits) = match (home, &self.old) {
            (Line::Old(n), Some(old)) => (n, old.bits),
            (Line::New(n) | Line::Old(n) | Line::Spill(n), _) => (n, self.new.bits),
        };
        (number as u64 + 1)
            .checked_shl(64 - bits)
            .filter(|&next| next >> (64 - bits) == number as u64 + 1)
    }

    // Lines.

    #[inline]
    fn home(&self, hash: u64) -> Line {
        if let Some(old) = &self.old {
            let number = old.number(hash);
            if number >= self.moved {
                return Line::Old(number);
            }
        }
        Line::New(self.new.number(hash))
    }

    #[inline]
    fn line(&self, line: Line) -> &[u64; WIDTH] {
        match line {
            Line::New(n) => self.new.line(n),
            Line::Old(n) => self.old.as_ref().unwrap_or(&self.new).line(n),
            Line::Spill(n) => &self.spill[n],
        }
    }

    #[inline]
    fn line_mut(&mut self, line: Line) -> &mut [u64; WIDTH] {
        match line {
            Line::New(n) => self.new.line_mut(n),
            Line::Old(n) => self.old.as_mut().unwrap_or(&mut self.new).line_mut(n),
            Line::Spill(n) => &mut self.spill[n],
        }
    }

    /// Puts `entry` into the first empty place of the hash table from `line` on.
    fn put(&mut self, mut at: Line, entry: u64) {
        loop {
            let line = self.line_mut(at);
            if let Some(empty) = line.iter_mut().find(|entry| **entry == 0) {
                *empty = entry;
                return;
            }
            at = Line::Spill(chain(line).unwrap_or_else(|| self.extend(at)));
        }
    }

    /// Extends the full line `at` of the hash table by an overflow line, which takes over its last
    /// entry.
    fn extend(&mut self, at: Line) -> usize {
        let next = match self.spill_free.pop() {
            Some(next) => next as usize,
            None => {
                self.spill.push([0; WIDTH]);
                self.spill.len() - 1
            }
        };
        let last = core::mem::replace(&mut self.line_mut(at)[WIDTH - 1], CHAIN | next as u64);
        self.spill[next][0] = last;
        next
    }

    /// Removes the last overflow line of the chain that starts at `home` if it is empty.
    fn trim(&mut self, home: Line) {
        let mut before = home;
        let Some(mut last) = chain(self.line(home)) else { return };
        while let Some(next) = chain(&self.spill[last]) {
            before = Line::Spill(last);
            last = next;
        }
        if self.spill[last] == [0; WIDTH] {
            self.line_mut(before)[WIDTH - 1] = 0;
            self.spill_free.push(last as u32);
        }
    }
}

/// Returns the number of the overflow line that continues `line`.
#[inline]
fn chain(line: &[u64; WIDTH]) -> Option<usize> {
    let last = line[WIDTH - 1];
    (last & CHAIN != 0).then_some((last & (CHAIN - 1)) as usize)
}

#[cfg(test)]
mod tests;
