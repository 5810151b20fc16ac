//! Registered memory as the RDMA engine reaches it, and records to send on a stream.

use alloc::vec::Vec;
use core::ops::Range;

use crate::wire::checksum::Crc32c;

/// Access rights of a memory region or window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// The engine may place received messages and Read Responses into the memory.
    pub local_write: bool,
    /// The peer may write the memory.
    pub remote_write: bool,
    /// The peer may read the memory.
    pub remote_read: bool,
    /// The peer may do atomics on the memory.
    pub remote_atomic: bool,
    /// Memory windows may be bound to the region.
    pub bind: bool,
}

impl Access {
    /// The right to local writes only: no peer reaches the region.
    pub const LOCAL: Self = Self {
        local_write: true,
        remote_write: false,
        remote_read: false,
        remote_atomic: false,
        bind: false,
    };
    /// All access rights to a memory region.
    pub const ALL: Self = Self {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        bind: true,
    };
}

/// A range of registered memory that has passed all checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The caller's name for the region, as given at registration.
    pub region: u64,
    /// The span's first byte, counted from the start of the caller's region.
    pub offset: u64,
    /// The length of the span in bytes.
    pub len: u32,
}

impl Span {
    /// True if a byte is in both spans.
    pub(crate) const fn overlaps(self, other: Self) -> bool {
        self.region == other.region
            && self.offset < other.offset + other.len as u64
            && other.offset < self.offset + self.len as u64
    }

    /// The part of the span that begins at byte `from`.
    pub(crate) const fn tail(self, from: u32) -> Self {
        Self { region: self.region, offset: self.offset + from as u64, len: self.len - from }
    }
}

/// The memory is not mapped: the program unmapped it while its registration was valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped;

/// Registered memory, which the engine reads and writes. The engine has checked every span against
/// its registration.
pub trait Memory {
    /// Copies `bytes` to the memory at `span`. Both have the same length.
    ///
    /// # Errors
    /// [`Unmapped`]; some bytes may have been written.
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped>;

    /// Copies the memory at `span` to `bytes`. Both have the same length.
    ///
    /// # Errors
    /// [`Unmapped`]; some bytes may have been copied.
    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped>;

    /// Appends a copy of the memory at `span` to `bytes`.
    ///
    /// # Errors
    /// [`Unmapped`]; some bytes may have been appended.
    fn append(&mut self, span: Span, bytes: &mut Vec<u8>) -> Result<(), Unmapped> {
        let start = bytes.len();
        bytes.resize(start + span.len as usize, 0);
        self.read(span, &mut bytes[start..])
    }

    /// Appends a copy of the memory at `span` to `bytes`. Returns the CRC32C `crc` extended over
    /// the appended bytes, also if others change the memory meanwhile.
    ///
    /// # Errors
    /// [`Unmapped`]; some bytes may have been appended.
    fn append_summed(
        &mut self,
        span: Span,
        bytes: &mut Vec<u8>,
        crc: u32,
        crc32c: Crc32c,
    ) -> Result<u32, Unmapped> {
        let start = bytes.len();
        self.append(span, bytes)?;
        Ok(crc32c(crc, &bytes[start..]))
    }

    /// Replaces the aligned 64-bit word at `span` (8 bytes, host byte order) by the result of
    /// `change` and returns the old value. The step is atomic for all users of the memory that go
    /// through the engine.
    ///
    /// # Errors
    /// [`Unmapped`].
    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped>;
}

/// A part of a record to send on a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// The part is a range of [`Record::bytes`].
    Bytes(Range<usize>),
    /// The part is registered memory that is sent from where it lies.
    Memory(Span),
}

/// Bytes to send on a stream. The caller sends the parts in order (as an `iovec`) and reports
/// progress with [`Rnic::sent`](crate::rdma::Rnic::sent).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// The record's headers, trailers and copied payload.
    pub bytes: Vec<u8>,
    /// The parts of the record in the order to send them.
    pub parts: Vec<Part>,
    /// The record ends with a message that the peer can answer while the engine frames more. The
    /// caller sends the record before it asks for more output (like TCP's PSH).
    pub push: bool,
}

impl Record {
    /// The number of bytes of the record on the stream.
    #[must_use]
    pub fn len(&self) -> usize {
        let len = |part: &Part| match part {
            Part::Bytes(range) => range.len(),
            Part::Memory(span) => span.len as usize,
        };
        self.parts.iter().map(len).sum()
    }

    /// True if the record has nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Empties the record and keeps its allocations.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.push = false;
    }

    /// Appends a copy of `bytes` to the record as a part.
    pub fn append(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.cover(start);
    }

    /// Covers `bytes[start..]` with the last part, or with a new one if the last part ends
    /// elsewhere.
    pub(crate) fn cover(&mut self, start: usize) {
        let end = self.bytes.len();
        match self.parts.last_mut() {
            Some(Part::Bytes(range)) if range.end == start => range.end = end,
            _ if start < end => self.parts.push(Part::Bytes(start..end)),
            _ => {}
        }
    }

    /// Truncates the record to its first `bytes` bytes and `parts` parts.
    pub(crate) fn take_back(&mut self, bytes: usize, parts: usize) {
        self.bytes.truncate(bytes);
        self.parts.truncate(parts);
        if let Some(Part::Bytes(range)) = self.parts.last_mut() {
            range.end = range.end.min(bytes);
        }
    }
}
