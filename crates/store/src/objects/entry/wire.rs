//! The fixed parts of the log's entries, byte by byte.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::message::data::Once;
use crate::objects::segment::{SegmentId, Span};
use crate::types::{LeaseId, TableId, Version};

/// The most by which the number of a mutation can be ahead of its acknowledgement in the log. A
/// master executes no mutation that is further ahead of the client's acknowledgement.
pub const MOST_AHEAD: u64 = u16::MAX as u64;
/// The highest number of a client's mutation: the log has 48 bits for it.
pub const MAX_RPC: u64 = (1 << 48) - 1;
/// The count of segments in an entry that means all later segments.
pub(super) const UNBOUNDED: u32 = 0xff_ffff;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct HeadWire {
    /// The entry's kind in the highest byte, and the length of its body in the other three.
    pub(super) kind_len: U32,
    pub(super) crc: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct HeaderWire {
    pub(super) head: HeadWire,
    pub(super) cluster: U64,
    pub(super) index: U32,
    pub(super) generation: U32,
    pub(super) segment: U32,
    pub(super) capacity: U32,
    pub(super) safe_version: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct VersionWire([u8; 6]);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ObjectWire {
    pub(super) head: HeadWire,
    /// The object's table in the highest 40 bits, and the length of its key in the other 24.
    pub(super) table_key_len: U64,
    pub(super) version: VersionWire,
    pub(super) first: U32,
    pub(super) count: [u8; 3],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RecordWire {
    lease: [u8; 5],
    rpc: [u8; 6],
    ahead: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct CompletionWire {
    pub(super) head: HeadWire,
    pub(super) record: RecordWire,
    pub(super) table: [u8; 5],
    pub(super) status: u8,
    pub(super) hash: U64,
    pub(super) version: VersionWire,
}

impl VersionWire {
    #[inline]
    pub(super) fn new(version: Version) -> Self {
        Self(low48(version.0))
    }

    #[inline]
    pub(super) fn get(self) -> Version {
        Version(from_low48(self.0))
    }
}

/// Returns the lower 48 bits of `number`, big-endian.
#[inline]
pub(super) fn low48(number: u64) -> [u8; 6] {
    let [_, _, bytes @ ..] = number.to_be_bytes();
    bytes
}

#[inline]
pub(super) fn from_low48([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    // Two loads and a shift; eight bytes joined one by one take longer.
    u64::from(u32::from_be_bytes([a, b, c, d])) << 16 | u64::from(u16::from_be_bytes([e, f]))
}

impl RecordWire {
    #[inline]
    pub(super) fn new(once: &Once) -> Self {
        debug_assert!(once.lease <= LeaseId::MAX && once.rpc <= MAX_RPC);
        let ahead = once.rpc.saturating_sub(once.ack).min(MOST_AHEAD);
        let [_, _, _, lease @ ..] = once.lease.0.to_be_bytes();
        Self { lease, rpc: low48(once.rpc), ahead: (ahead as u16).into() }
    }

    pub(super) fn get(&self) -> Option<Once> {
        let rpc = from_low48(self.rpc);
        let ack = rpc.checked_sub(self.ahead.get().into())?;
        let [a, b, c, d, e] = self.lease;
        Some(Once { lease: LeaseId(u64::from_be_bytes([0, 0, 0, a, b, c, d, e])), rpc, ack })
    }
}

impl ObjectWire {
    #[inline]
    pub(super) fn table(&self) -> TableId {
        TableId(self.table_key_len.get() >> 24)
    }

    #[inline]
    pub(super) fn key_len(&self) -> usize {
        (self.table_key_len.get() & 0xff_ffff) as usize
    }

    // A reader of the value alone computes no span if this is inlined.
    #[inline(always)]
    pub(super) fn older(&self) -> Span {
        let [a, b, c] = self.count;
        let (first, count) = (self.first.get(), u32::from_be_bytes([0, a, b, c]));
        match count {
            0 => Span::default(),
            UNBOUNDED => span(first, u32::MAX),
            _ => span(first, first.saturating_add(count - 1)),
        }
    }

    pub(super) fn set_older(&mut self, older: Span) {
        let count = if older.is_empty() {
            0
        } else {
            older.last.0.saturating_sub(older.first.0).saturating_add(1)
        };
        let [_, count @ ..] = count.min(UNBOUNDED).to_be_bytes();
        (self.first, self.count) = (older.first.0.into(), count);
    }
}

#[inline]
pub(super) fn span(first: u32, last: u32) -> Span {
    Span { first: SegmentId(first), last: SegmentId(last) }
}
