//! The long values of writes, which messages name as slices instead of having a copy of them.
//!
//! A value is the client's own, or lent to it: then its bytes come with each turn of the node
//! ([`Slice::LENT`]). An operation keeps its value until it ends, because the write may have to be
//! sent again, and each message that was sent keeps it until its slice comes back.
//!
//! Always: at most one value is lent. If messages name it when the lender takes it back, the client
//! keeps a copy until they do no more.

use alloc::vec::Vec;

use sprat_proto::rpc::Slice;

/// A value longer than this, in bytes, is not copied into a message.
pub(super) const LONG: usize = 4096;

/// A long value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LongValue {
    pub(super) place: u32,
    pub(super) len: u32,
}

#[derive(Debug, Default)]
struct Entry {
    bytes: Vec<u8>,
    /// The operation and the messages that need the value.
    users: u32,
}

/// The values of the operations of a client.
#[derive(Debug, Default)]
pub(super) struct Values {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The value that is lent. It has bytes only after it was taken back.
    lent: Entry,
    /// The lender has not taken the value back.
    is_lending: bool,
}

impl Values {
    /// Keeps a value for an operation.
    pub(super) fn keep(&mut self, bytes: Vec<u8>) -> LongValue {
        let len = bytes.len() as u32;
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        self.entries[place as usize] = Entry { bytes, users: 1 };
        LongValue { place, len }
    }

    /// Borrows a value of `len` bytes for an operation, unless messages name another that was lent.
    pub(super) fn borrow(&mut self, len: usize) -> Option<LongValue> {
        if self.is_lending || self.lent.users > 0 {
            return None;
        }
        self.is_lending = true;
        self.lent.users = 1;
        Some(LongValue { place: Slice::LENT, len: len as u32 })
    }

    /// True from [`Values::borrow`] to [`Values::give_back`].
    pub(super) fn is_lending(&self) -> bool {
        self.is_lending
    }

    /// Takes note that the lender takes the value back, whose operation has ended.
    pub(super) fn give_back(&mut self, value: &[u8]) {
        self.is_lending = false;
        if self.lent.users > 0 {
            self.lent.bytes = value.to_vec();
        }
    }

    /// Returns the value as a slice of a message. It comes back by [`Values::release`].
    pub(super) fn slice(&mut self, value: LongValue) -> Slice {
        self.entry(value.place).users += 1;
        Slice { segment: value.place, offset: 0, len: value.len }
    }

    /// Takes note that the operation, or a message, needs the value at `place` no more.
    pub(super) fn release(&mut self, place: u32) {
        let entry = self.entry(place);
        entry.users -= 1;
        if entry.users == 0 {
            entry.bytes = Vec::new();
            if place != Slice::LENT {
                self.free.push(place);
            }
        }
    }

    /// Returns the bytes of a slice, if they are the client's.
    pub(super) fn bytes(&self, slice: Slice) -> &[u8] {
        let entry = match slice.segment {
            Slice::LENT => &self.lent,
            place => &self.entries[place as usize],
        };
        &entry.bytes[slice.offset as usize..][..slice.len as usize]
    }

    fn entry(&mut self, place: u32) -> &mut Entry {
        if place == Slice::LENT { &mut self.lent } else { &mut self.entries[place as usize] }
    }

    /// Returns the number of values in use.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.entries.len() - self.free.len() + usize::from(self.lent.users > 0)
    }
}
