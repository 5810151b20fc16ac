//! The first bytes of an entry: its kind, its length, and the marks of what is dead in this memory.
//! They tell the cleaner how to treat an entry without parsing the rest.

use super::{
    COMPLETION, DEAD, Entry, HAS_OLD, HAS_RECORD, HEAD, KIND, KIND_CHANGE, KIND_COMPLETION,
    KIND_EXPIRING, KIND_OBJECT, KIND_TOMBSTONE, RECORD_DEAD, Record, is_object, old, parse,
    parse_record, record_len,
};

/// The first bytes of an entry in the log: its kind, its length and its marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    kind: u8,
    len: u32,
}

impl Head {
    /// Returns the head of the entry at the start of `entry`, or `None` if there is none.
    #[must_use]
    #[inline]
    pub fn of(entry: &[u8]) -> Option<Self> {
        let &[kind, a, b, c] = entry.first_chunk()?;
        Some(Self { kind, len: HEAD as u32 + u32::from_be_bytes([0, a, b, c]) })
    }

    /// Returns the length of the entry, its record included.
    #[must_use]
    #[inline]
    pub fn entry_len(self) -> usize {
        self.len as usize
    }

    /// Returns the number of bytes of the entries that belong to the group which begins with this
    /// head's entry, at the start of `entry`; 0 for an entry of another kind.
    #[must_use]
    pub fn group_len(self, entry: &[u8]) -> usize {
        match parse(entry) {
            Some((Entry::Group(len), _)) if self.kind & KIND == KIND_CHANGE => len,
            _ => 0,
        }
    }

    /// Returns true if the entry is of an object.
    #[must_use]
    #[inline]
    pub fn is_object(self) -> bool {
        is_object(self.kind)
    }

    /// Returns true if the entry is of an object that expires.
    #[must_use]
    #[inline]
    pub fn expires(self) -> bool {
        self.kind & KIND == KIND_EXPIRING
    }

    /// Returns true if the entry is marked as dead, its record apart.
    #[must_use]
    #[inline]
    pub fn is_dead(self) -> bool {
        self.kind & DEAD != 0
    }

    /// Returns true if a record that is not marked as dead follows the entry.
    #[must_use]
    #[inline]
    pub fn has_live_record(self) -> bool {
        self.kind & (HAS_RECORD | RECORD_DEAD) == HAS_RECORD
    }

    /// Returns true if the entry and its record are both marked as dead.
    #[must_use]
    #[inline]
    pub fn is_all_dead(self) -> bool {
        self.is_dead() && !self.has_live_record()
    }

    /// Returns the record of the entry at the start of `entry`, unless the record is marked as
    /// dead. This head must be the head of that entry.
    #[must_use]
    #[inline]
    pub fn live_record(self, entry: &[u8]) -> Option<Record<'_>> {
        if !self.has_live_record() {
            return None;
        }
        let len = self.entry_len();
        let old = if self.kind & HAS_OLD == 0 { &[] } else { old(entry) };
        parse_record(entry.get(len.checked_sub(record_len(self.kind))?..len)?, old)
    }
}

/// Marks the object or tombstone at the start of `entry` as dead in this memory.
#[inline]
pub fn mark_dead(entry: &mut [u8]) {
    if let Some(kind) = entry.first_mut() {
        *kind |= DEAD;
    }
}

/// Marks the completion at the start of `entry`, or the record of the entry there, as dead in this
/// memory. Returns the number of bytes that it counted as.
#[inline]
pub fn mark_record_dead(entry: &mut [u8]) -> usize {
    match entry.first_mut() {
        Some(kind)
            if matches!(*kind & (KIND | HAS_OLD), KIND_OBJECT | KIND_TOMBSTONE | KIND_EXPIRING) =>
        {
            *kind |= RECORD_DEAD;
            COMPLETION
        }
        _ => mark_rare_record_dead(entry),
    }
}

/// Marks a completion, or a record with an old value, as [`mark_record_dead`] does.
#[cold]
fn mark_rare_record_dead(entry: &mut [u8]) -> usize {
    let counted = COMPLETION + old(entry).len();
    if let Some(kind) = entry.first_mut() {
        *kind |= if *kind & KIND == KIND_COMPLETION { DEAD } else { RECORD_DEAD };
    }
    counted
}
