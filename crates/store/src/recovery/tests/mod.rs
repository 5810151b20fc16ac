//! Tests of recovery: the rules of the inventory and of the replay one by one, and logs of a master
//! that works, is cleaned and crashes anywhere.

mod inventory;
mod replay;
mod world;

use alloc::vec;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::crc32c;

use crate::message::data::Once;
use crate::objects::entry::{
    self, Completion, DIGESTED, HEADER, Header, OBJECT, Object, Outcome, Record, Tombstone,
};
use crate::objects::segment::{SegmentId, Span};
use crate::types::{KeyHash, LeaseId, ServerId, TableId, Version, WallTime};

const CLUSTER: u64 = 7;
const MASTER: ServerId = ServerId { index: 2, generation: 5 };
const TABLE: TableId = TableId(3);
const LEASE: LeaseId = LeaseId(4);

/// The bytes of a segment, entry by entry.
struct Bytes(Vec<u8>);

impl Bytes {
    /// Returns the header of a segment.
    fn new(segment: u32) -> Self {
        Self::with(Header {
            cluster: CLUSTER,
            server: MASTER,
            segment: SegmentId(segment),
            capacity: 4096,
            safe_version: Version(1),
        })
    }

    fn with(header: Header) -> Self {
        Self(Vec::new()).entry(HEADER, |out| entry::put_header(out, &header))
    }

    fn entry(mut self, len: usize, put: impl FnOnce(&mut [u8])) -> Self {
        let at = self.0.len();
        self.0.resize(at + len, 0);
        put(&mut self.0[at..]);
        let seed = if at == 0 { 0 } else { u32::from_be_bytes(self.0[4..8].try_into().unwrap()) };
        entry::seal(crc32c, seed, &mut self.0[at..]).unwrap();
        self
    }

    fn digest(self, segments: &[(u32, u32)]) -> Self {
        let named = segments.iter().map(|&(id, len)| (SegmentId(id), len));
        self.entry(8 + segments.len() * DIGESTED, |out| entry::put_digest(out, named))
    }

    fn change(self, segments: &[(u32, u32)]) -> Self {
        let named = segments.iter().map(|&(id, len)| (SegmentId(id), len));
        self.entry(8 + segments.len() * DIGESTED, |out| entry::put_change(out, named))
    }

    fn object(self, key: &[u8], version: u64, value: &[u8], record: Option<Record<'_>>) -> Self {
        let (version, older) = (Version(version), Span::default());
        let object = Object { table: TABLE, version, older, key, value, expires: WallTime::NEVER };
        let record_len = record.as_ref().map_or(0, Record::entry_len);
        self.entry(OBJECT + key.len() + value.len() + record_len, |out| {
            entry::put_object(out, &object, record.as_ref());
        })
    }

    fn tombstone(self, key: &[u8], version: u64, record: Option<Record<'_>>) -> Self {
        let (version, older) = (Version(version), Span::default());
        let tombstone = Tombstone { table: TABLE, version, older, key };
        let record_len = record.as_ref().map_or(0, Record::entry_len);
        self.entry(tombstone.entry_len() + record_len, |out| {
            entry::put_tombstone(out, &tombstone, record.as_ref());
        })
    }

    fn completion(self, once: Once, outcome: Outcome) -> Self {
        let completion = Completion { once, table: TABLE, hash: KeyHash(0), outcome, old: &[] };
        self.entry(completion.entry_len(), |out| entry::put_completion(out, &completion))
    }

    fn len(&self) -> u32 {
        self.0.len() as u32
    }
}

/// Returns `len` bytes, all of which are `byte`.
fn filled(byte: u8, len: usize) -> Vec<u8> {
    vec![byte; len]
}
