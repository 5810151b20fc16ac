//! Registered memory as the engine reaches it, and records that go onto a stream.

use alloc::vec::Vec;
use core::ops::Range;

/// What may be done with a region or window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Receives and the answers to Reads may be placed here.
    pub local_write: bool,
    /// A peer may write.
    pub remote_write: bool,
    /// A peer may read.
    pub remote_read: bool,
    /// A peer may do atomics.
    pub remote_atomic: bool,
    /// Windows may be bound to it.
    pub bind: bool,
}

impl Access {
    /// Receives and the answers to Reads may be placed here; no peer reaches it.
    pub const LOCAL: Self = Self {
        local_write: true,
        remote_write: false,
        remote_read: false,
        remote_atomic: false,
        bind: false,
    };
    /// Everything.
    pub const ALL: Self = Self {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        bind: true,
    };
}

/// Bytes of registered memory, after all checks: `offset` counts from the start of the caller's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The caller's own name for the region, as given at registration.
    pub region: u64,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

impl Span {
    /// The span of `span` from `from` on.
    pub(crate) const fn tail(self, from: u32) -> Self {
        Self { region: self.region, offset: self.offset + from as u64, len: self.len - from }
    }
}

/// The memory is not there (any more): the caller unmapped it under a registration that still stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped;

/// Registered memory, reached by copies. The engine has checked every span against its registration.
pub trait Memory {
    /// Copies `bytes` to the start of `span`, which is as long.
    ///
    /// # Errors
    /// [`Unmapped`]; some bytes may have been written.
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped>;

    /// Copies `span` into `bytes`, which is as long.
    ///
    /// # Errors
    /// [`Unmapped`].
    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped>;

    /// Appends a copy of `span` to `bytes`.
    ///
    /// # Errors
    /// [`Unmapped`]; some bytes may have been appended.
    fn append(&mut self, span: Span, bytes: &mut Vec<u8>) -> Result<(), Unmapped> {
        let start = bytes.len();
        bytes.resize(start + span.len as usize, 0);
        self.read(span, &mut bytes[start..])
    }

    /// Replaces the aligned 64-bit word at `span` (8 bytes, host byte order) by what `change` makes of it, as one step
    /// for all who use this memory through the engine; returns what was there.
    ///
    /// # Errors
    /// [`Unmapped`].
    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped>;
}

/// Part of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// These of [`Record::bytes`].
    Bytes(Range<usize>),
    /// Bytes of registered memory, sent from where they lie (only without CRC and markers).
    Memory(Span),
}

/// What goes onto a stream, in order: the caller sends the parts as they stand (an `iovec`) and reports by [`Rnic::sent`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Headers, trailers, and whatever had to be copied.
    pub bytes: Vec<u8>,
    /// What to send.
    pub parts: Vec<Part>,
    /// The last part asks the peer, which can answer while more is framed: send the record as it is (TCP's PSH).
    pub push: bool,
}

impl Record {
    /// How many bytes it is on the stream.
    #[must_use]
    pub fn len(&self) -> usize {
        let len = |part: &Part| match part {
            Part::Bytes(range) => range.len(),
            Part::Memory(span) => span.len as usize,
        };
        self.parts.iter().map(len).sum()
    }

    /// True if there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Empties it, its memory kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.push = false;
    }

    /// Appends a copy of `bytes`.
    pub fn append(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.cover(start);
    }

    /// Makes what stands in `bytes` from `start` on a part, or the end of the last part.
    pub(crate) fn cover(&mut self, start: usize) {
        let end = self.bytes.len();
        match self.parts.last_mut() {
            Some(Part::Bytes(range)) if range.end == start => range.end = end,
            _ if start < end => self.parts.push(Part::Bytes(start..end)),
            _ => {}
        }
    }

    /// Takes back what was appended since there were so many bytes and parts.
    pub(crate) fn take_back(&mut self, bytes: usize, parts: usize) {
        self.bytes.truncate(bytes);
        self.parts.truncate(parts);
        if let Some(Part::Bytes(range)) = self.parts.last_mut() {
            range.end = range.end.min(bytes);
        }
    }
}
