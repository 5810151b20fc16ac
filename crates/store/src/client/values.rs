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

/// The length in bytes above which a value is long: the client does not copy it into a message.
pub(super) const LONG: usize = 4096;

/// The place and the length of a long value that a client keeps or borrows for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LongValue {
    pub(super) place: u32,
    pub(super) len: u32,
}

#[derive(Debug, Default)]
struct Entry {
    bytes: Vec<u8>,
    /// The number of users of the value: the operation and the messages that need it.
    users: u32,
}

/// The long values of a client's operations.
#[derive(Debug, Default)]
pub(super) struct Values {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The value that the caller lends to the client. It has bytes only after the caller took it
    /// back.
    lent: Entry,
    /// True if the caller lends a value and has not taken it back.
    is_lending: bool,
}

impl Values {
    /// Keeps a long value for an operation.
    pub(super) fn keep(&mut self, bytes: Vec<u8>) -> LongValue {
        let len = bytes.len() as u32;
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        self.entries[place as usize] = Entry { bytes, users: 1 };
        LongValue { place, len }
    }

    /// Borrows a long value of `len` bytes for an operation. Returns `None` if the caller lends
    /// another value, or if messages still name one that was lent.
    pub(super) fn borrow(&mut self, len: usize) -> Option<LongValue> {
        if self.is_lending || self.lent.users > 0 {
            return None;
        }
        self.is_lending = true;
        self.lent.users = 1;
        Some(LongValue { place: Slice::LENT, len: len as u32 })
    }

    /// True while the caller lends a value: from [`Values::borrow`] to [`Values::give_back`].
    pub(super) fn is_lending(&self) -> bool {
        self.is_lending
    }

    /// Ends the loan of `value`, because its operation has ended. If messages still name the value,
    /// keeps a copy.
    pub(super) fn give_back(&mut self, value: &[u8]) {
        self.is_lending = false;
        if self.lent.users > 0 {
            self.lent.bytes = value.to_vec();
        }
    }

    /// Returns a long value as a slice of a message. It comes back by [`Values::release`].
    pub(super) fn slice(&mut self, value: LongValue) -> Slice {
        self.entry(value.place).users += 1;
        Slice { segment: value.place, offset: 0, len: value.len }
    }

    /// Records that the operation, or a message, no longer needs the value at `place`.
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

    /// Returns the bytes of a long value that a message's slice names, if the client has them.
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

    /// Returns the number of long values that operations or messages need.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.entries.len() - self.free.len() + usize::from(self.lent.users > 0)
    }
}
