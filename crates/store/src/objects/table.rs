//! The hash table from keys to locations in the log.
//!
//! ```text
//!  line, 64 bytes: 8 entries of 64 bits
//!  entry: tag 16 bits | chain 1 bit | location 47 bits          0: empty
//!  hash:  its product with the number of lines chooses the line; 16 further bits are the tag
//!  a line that overflows has a chain entry in its last place: the number of a further line
//! ```
//!
//! A look-up costs one line here. If a tag fits, the caller compares the key in the log: the table
//! knows hashes and locations only. The table grows by a quarter, some lines at a time, or to any
//! larger size for objects that are to come. Lines are in the order of the hashes before, during
//! and after growth. A walk in that order ([`HashTable::walk`]) sees every entry once, even if the
//! table grows meanwhile.
//!
//! The tag begins at the bit of the hash that followed the number of a line when the table was
//! small. So line and tag of an entry say where growth moves it, without a look into the log, until
//! the table has [`RETAG`] times as many lines: then all entries get new tags.
//!
//! Invariants: a look-up allocates nothing. An insertion moves at most [`GROW_LINES`] lines and
//! takes at most one block of memory for each of them. Growth starts only when the mean line holds
//! [`FULL`] entries.

use alloc::vec::Vec;

use crate::objects::segment::Location;
use crate::types::{KeyHash, TableId};

mod lines;

use lines::{Blocks, SPILL_BITS, WIDTH};

/// The mean number of entries in a line at which the hash table starts to grow.
const FULL: u64 = 6;
/// The number of lines that each insertion moves while the hash table grows. Growth ends long
/// before the next growth starts.
pub const GROW_LINES: usize = 2;
/// The hash table has at most this many lines.
const MOST_LINES: u64 = 1 << 40;
/// The number of lines of a new hash table, unless it is for fewer objects.
const FIRST_LINES: u64 = 1 << 11;
/// The number of lines of the smallest hash table.
const LEAST_LINES: u64 = 1 << 4;
/// The growth since the last choice of the tag's bits after which they are chosen anew. Until then,
/// half of the tag still tells the entries of a line apart.
const RETAG: u64 = 1 << 8;
const CHAIN: u64 = 1 << Location::BITS;
const TAG: u64 = !(2 * CHAIN - 1);
/// The number of bits of a tag.
const TAG_BITS: u32 = TAG.count_ones();

/// Returns the hash by which a master's hash table holds an object. It is unique for a key hash of
/// a table, and evenly spread for any ranges that the master owns.
#[must_use]
#[inline]
pub fn spread(table: TableId, hash: KeyHash) -> u64 {
    (hash.0 ^ table.0.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the set of the entries of a line for which `is` returns true, the first one in the
/// lowest bit. It has no branches: the place of an entry in its line is random, and a processor
/// that guesses it wrong loads nothing ahead.
#[inline]
fn mask(line: &[u64; WIDTH], is: impl Fn(u64) -> bool) -> u32 {
    line.iter().rev().fold(0, |mask, &entry| mask << 1 | u32::from(is(entry)))
}

/// Returns the set of the entries of a line whose tag is `tag`.
#[inline]
fn fitting(line: &[u64; WIDTH], tag: u64) -> u32 {
    mask(line, |entry| fits(entry, tag))
}

/// Returns true if the tag of `entry` is `tag`, and it is neither empty nor a chain entry, which
/// have a tag of zero.
#[inline]
fn fits(entry: u64, tag: u64) -> bool {
    (entry ^ tag).wrapping_sub(1) < CHAIN - 1
}

/// Returns the lowest number in the set `mask`.
#[inline]
fn lowest(mask: u32) -> Option<usize> {
    (mask != 0).then(|| mask.trailing_zeros() as usize)
}

/// The lines of a hash table of one size.
#[derive(Debug)]
struct Lines {
    blocks: Blocks<10>,
    /// The number of bits of the hash before those of the tag. There are at least two to the power
    /// of this many lines.
    before_tag: u32,
}

impl Lines {
    fn new(count: u64, before_tag: u32) -> Self {
        Self { blocks: Blocks::new(count as usize), before_tag }
    }

    fn count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Returns the number of the line of `hash`.
    #[inline]
    fn number(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.blocks.len() as u128) >> 64) as usize
    }

    /// Returns the first hash of line `n`, `None` behind the last line.
    fn first(&self, n: usize) -> Option<u64> {
        let first = ((n as u128) << 64).div_ceil(self.blocks.len() as u128);
        u64::try_from(first).ok()
    }

    #[inline]
    fn tag(&self, hash: u64) -> u64 {
        (hash << self.before_tag) & TAG
    }

    /// Returns the lowest and the highest hash that an entry of line `n` with this tag can have.
    /// `None` if its hash can be in two ranges.
    fn hashes(&self, n: usize, entry: u64) -> Option<(u64, u64)> {
        let (low, end) = (self.first(n)?, self.first(n + 1));
        let high = end.map_or(u64::MAX, |end| end - 1);
        let shift = 64 - self.before_tag;
        let range = |before: u64| {
            let least = before << shift | (entry & TAG) >> self.before_tag;
            let most = least | u64::MAX >> self.before_tag >> TAG_BITS;
            Some((least.max(low), most.min(high))).filter(|(least, most)| least <= most)
        };
        // The bits before the tag are those of the lowest hash of the line or of the highest.
        let one = range(low >> shift);
        if low >> shift == high >> shift {
            return one;
        }
        let other = range(high >> shift);
        if one.is_some() && other.is_some() { None } else { one.or(other) }
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
    /// A line among the hash table's old lines, which growth has not moved yet.
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
    spill: Blocks<SPILL_BITS>,
    /// The first of the overflow lines that are free, and how many there are. Each of them has the
    /// number of the next in its first word.
    free: (usize, usize),
    len: u64,
}

impl HashTable {
    /// Returns an empty hash table for objects of which there may be `expected`.
    #[must_use]
    pub fn new(expected: u64) -> Self {
        let count = (expected / FULL).clamp(LEAST_LINES, FIRST_LINES);
        Self {
            new: Lines::new(count, count.ilog2()),
            old: None,
            moved: 0,
            spill: Blocks::new(0),
            free: (0, 0),
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
        let old = self.old.as_ref().map_or(0, |lines| lines.blocks.memory_bytes());
        self.new.blocks.memory_bytes() + old + self.spill.memory_bytes()
    }

    // Entries.

    /// Returns the place of the first entry under `hash` for which `is` returns true.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(Location) -> bool) -> Option<Place> {
        let (home, tag) = self.home(hash);
        let mut at = home;
        loop {
            let line = self.line(at);
            let mut fitting = fitting(line, tag);
            while let Some(index) = lowest(fitting) {
                if is(Location::from_bits(line[index])) {
                    return Some(Place { line: at, index, home });
                }
                fitting &= fitting - 1;
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
        let (home, tag) = self.home(hash);
        let wanted = tag | at.bits();
        let mut line_at = home;
        loop {
            let line = self.line(line_at);
            if let Some(index) = lowest(mask(line, |entry| entry == wanted)) {
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
        self.line(self.home(hash).0)[0]
    }

    /// Returns the first location in the line of `hash` whose tag fits. It is probably the location
    /// of the entry with that hash.
    #[must_use]
    #[inline]
    pub fn first(&self, hash: u64) -> Option<Location> {
        let (home, tag) = self.home(hash);
        let line = self.line(home);
        let entry = line.iter().find(|entry| fits(**entry, tag))?;
        Some(Location::from_bits(*entry))
    }

    /// Inserts an entry into the hash table. `hash_of` returns the hash of any entry, for those
    /// that growth moves.
    pub fn insert(&mut self, hash: u64, to: Location, hash_of: impl Fn(Location) -> u64) {
        let (home, tag) = self.home(hash);
        self.put(home, tag | to.bits());
        self.len += 1;
        if self.old.is_some() || self.is_full() {
            self.grow(GROW_LINES, hash_of);
        }
    }

    fn is_full(&self) -> bool {
        self.len > FULL * self.new.count() && self.new.count() < MOST_LINES
    }

    /// Lets the hash table grow to the size for `more` further entries at once, unless it grows
    /// already.
    pub fn reserve(&mut self, more: u64) {
        let count = (self.len.saturating_add(more) / FULL).min(MOST_LINES);
        if self.old.is_none() && count > self.new.count() {
            self.begin_growth(count);
        }
    }

    fn begin_growth(&mut self, count: u64) {
        let before_tag =
            if count >= RETAG << self.new.before_tag { count.ilog2() } else { self.new.before_tag };
        self.old = Some(core::mem::replace(&mut self.new, Lines::new(count, before_tag)));
        self.moved = 0;
    }

    /// Moves up to `lines` lines while the hash table grows, or starts growth if the table is full.
    /// Returns true if there are more lines to move.
    pub fn grow(&mut self, lines: usize, hash_of: impl Fn(Location) -> u64) -> bool {
        if self.old.is_none() && self.is_full() {
            self.begin_growth((self.new.count() * 5).div_ceil(4).min(MOST_LINES));
        }
        for _ in 0..lines {
            let Some(old) = &mut self.old else { return false };
            if self.moved == old.blocks.len() {
                self.old = None;
                return false;
            }
            let (n, line) = (self.moved, *old.blocks.line(self.moved));
            self.moved += 1;
            self.move_line(n, line, &hash_of);
            if let Some(old) = &mut self.old {
                old.blocks.free_below(self.moved);
            }
        }
        self.old.is_some()
    }

    /// Moves the entries of line `n` of the old lines, which begins with `line`, to new lines.
    fn move_line(&mut self, n: usize, mut line: [u64; WIDTH], hash_of: impl Fn(Location) -> u64) {
        loop {
            let next = chain(&line);
            let entries = if next.is_some() { WIDTH - 1 } else { WIDTH };
            for &entry in line[..entries].iter().filter(|&&entry| entry != 0) {
                let (number, tag) = self.destination(n, entry, &hash_of);
                self.put(Line::New(number), tag | entry & (CHAIN - 1));
            }
            let Some(next) = next else { break };
            line = *self.spill.line(next);
            self.release(next);
        }
    }

    /// Returns the number of the new line and the tag there of an entry of line `n` of the old
    /// lines.
    fn destination(&self, n: usize, entry: u64, hash_of: impl Fn(Location) -> u64) -> (usize, u64) {
        if let Some(old) = &self.old
            && old.before_tag == self.new.before_tag
            && let Some((low, high)) = old.hashes(n, entry)
            && self.new.number(low) == self.new.number(high)
        {
            return (self.new.number(low), entry & TAG);
        }
        let hash = hash_of(Location::from_bits(entry));
        (self.new.number(hash), self.new.tag(hash))
    }

    /// Appends the entries of the line that holds `hash` to `found`. Returns the first hash of the
    /// next line, or `None` after the last. Repeated with the returned hash, from 0 on, it walks
    /// the table in the order of hashes. An entry that is in the table during the whole walk is
    /// seen once, if the caller ignores entries whose hash is below the given one (a line may come
    /// again in part when the walk starts within it or when growth has divided it).
    pub fn walk(&self, hash: u64, found: &mut Vec<Location>) -> Option<u64> {
        let (home, _) = self.home(hash);
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
        match (home, &self.old) {
            (Line::Old(n), Some(old)) => old.first(n + 1),
            // A new line may reach beyond the lines that were moved.
            (Line::New(n), Some(old)) => {
                let ends = [self.new.first(n + 1), old.first(self.moved)];
                ends.into_iter().flatten().min()
            }
            (Line::New(n) | Line::Old(n) | Line::Spill(n), _) => self.new.first(n + 1),
        }
    }

    // Lines.

    /// Returns the line of `hash` and the tag of its entries there.
    #[inline]
    fn home(&self, hash: u64) -> (Line, u64) {
        if let Some(old) = &self.old {
            let number = old.number(hash);
            if number >= self.moved {
                return (Line::Old(number), old.tag(hash));
            }
        }
        (Line::New(self.new.number(hash)), self.new.tag(hash))
    }

    #[inline]
    fn line(&self, line: Line) -> &[u64; WIDTH] {
        match line {
            Line::New(n) => self.new.blocks.line(n),
            Line::Old(n) => self.old.as_ref().unwrap_or(&self.new).blocks.line(n),
            Line::Spill(n) => self.spill.line(n),
        }
    }

    #[inline]
    fn line_mut(&mut self, line: Line) -> &mut [u64; WIDTH] {
        match line {
            Line::New(n) => self.new.blocks.line_mut(n),
            Line::Old(n) => self.old.as_mut().unwrap_or(&mut self.new).blocks.line_mut(n),
            Line::Spill(n) => self.spill.line_mut(n),
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
        let (first, count) = self.free;
        let next = if count > 0 {
            self.free = (self.spill.line(first)[0] as usize, count - 1);
            first
        } else {
            self.spill.push();
            self.spill.len() - 1
        };
        *self.spill.line_mut(next) = [0; WIDTH];
        let last = core::mem::replace(&mut self.line_mut(at)[WIDTH - 1], CHAIN | next as u64);
        self.spill.line_mut(next)[0] = last;
        next
    }

    /// Adds an overflow line to the free ones.
    fn release(&mut self, n: usize) {
        let (first, count) = self.free;
        self.spill.line_mut(n)[0] = first as u64;
        self.free = (n, count + 1);
    }

    /// Removes the last overflow line of the chain that starts at `home` if it is empty.
    fn trim(&mut self, home: Line) {
        let mut before = home;
        let Some(mut last) = chain(self.line(home)) else { return };
        while let Some(next) = chain(self.spill.line(last)) {
            before = Line::Spill(last);
            last = next;
        }
        if *self.spill.line(last) == [0; WIDTH] {
            self.line_mut(before)[WIDTH - 1] = 0;
            self.release(last);
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
