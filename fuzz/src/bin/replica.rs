//! Fuzzes a backup, and the recovery from its replicas: no bytes of a request or of a replica
//! panic, a request that parses is written back as the same bytes, and after any requests a replica
//! is the beginning of its segment.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::wire::checksum::crc32c;
use sprat_store::backup::{Backup, FileHeader, Found, FrameHeader, MemoryFrames, SLOT_BYTES};
use sprat_store::durability::TableDurability;
use sprat_store::message::recovery::ListReplicas;
use sprat_store::message::replica::{FreeReplica, Target, WriteReplica, written_len};
use sprat_store::objects::entry::{Entries, HEADER, Header, put_header};
use sprat_store::objects::log::Log;
use sprat_store::objects::memory::Memory;
use sprat_store::objects::partition::Partition;
use sprat_store::objects::segment::SegmentId;
use sprat_store::objects::tablet::Tablet;
use sprat_store::recovery::{Crashed, ReadHead};
use sprat_store::types::{HashKey, ServerId, TableId, Version};

/// The size of a segment. Frames are shorter by [`BEYOND`].
const SEGMENT: u32 = 240;
/// The number of bytes of a segment that do not fit into a frame.
const BEYOND: u32 = 16;
const CLUSTER: u64 = 1;
const BACKUP: ServerId = ServerId { index: 0, generation: 1 };

fuzz_target!(|bytes: &[u8]| {
    let _ = written_len(bytes);
    if let Ok(write) = WriteReplica::parse(bytes) {
        assert_eq!(write.emit(), bytes);
        let mut backup = Backup::new(Box::new(MemoryFrames::new(1 << 16, 1 << 12)), crc32c, 0);
        let _ = backup.write(&write);
        assert!(backup.replicas() <= 1);
    }
    if let Ok(free) = FreeReplica::parse(bytes) {
        assert_eq!(free.emit(), bytes);
    }
    if let Ok(list) = ListReplicas::parse(bytes) {
        assert_eq!(list.emit(), bytes);
    }
    requests(bytes);
    recovery(bytes);
    headers(bytes);
});

/// Takes the bytes for the slots of headers of frames. One that is found is written back as a slot
/// that gives it again.
fn headers(bytes: &[u8]) {
    let none = |_, _: &[u8]| 0;
    let slot = |n: usize| bytes.get(n * SLOT_BYTES..).and_then(|rest| rest.first_chunk());
    let (Some(one), Some(two)) = (slot(0), slot(1)) else { return };
    if let Found::Header(header) = FileHeader::parse(none, [one, two]) {
        let (_, slot) = header.emit(none);
        assert_eq!(FileHeader::parse(none, [&slot, &slot]), Found::Header(header));
    }
    if let Found::Header(header) = FrameHeader::parse(none, 0, [one, two]) {
        let (_, slot) = header.emit(none);
        assert_eq!(FrameHeader::parse(none, 0, [&slot, &slot]), Found::Header(header));
    }
}

/// Takes the bytes for a replica of a crashed master's log, with any checksums: searches it for the
/// end of the log, and replays it.
fn recovery(bytes: &[u8]) {
    let crc32c = |_, _: &[u8]| 0;
    let (cluster, master, segment) = (CLUSTER, BACKUP, SegmentId(1));
    let crashed = Crashed { cluster, master, head_segment: SegmentId(0), head_epoch: 0 };
    let _ = ReadHead::parse(crc32c, &crashed, segment, bytes);
    let header =
        Header { cluster, server: master, segment, capacity: 4096, safe_version: Version(1) };
    let mut whole = vec![0; HEADER];
    put_header(&mut whole, &header);
    whole.extend_from_slice(bytes);
    let mut memory = Memory::new(Log::new(1 << 16, 1 << 12, crc32c, false));
    let tablet = Tablet { table: TableId(1), first: 0, last: u64::MAX };
    memory
        .tablets
        .prepare(tablet, HashKey([1; 16]), TableDurability::Cluster, Version(0))
        .expect("the only tablet");
    let since = memory.log.begin_side().expect("an empty log");
    let len = whole.len() as u64;
    let mut partition = Partition::new(master, len, vec![(tablet, SegmentId(0))], (since, false));
    let mut entries = Entries::default();
    let _ =
        memory.replay(&mut partition, (segment, whole.len()), &whole, &mut entries, whole.len());
    assert!(entries.at() <= whole.len() && entries.at() as u64 == partition.replayed());
}

/// Lets each five bytes be a request for one of 16 replicas, of which 12 fit.
fn requests(bytes: &[u8]) {
    let frame = SEGMENT - BEYOND;
    let frames = MemoryFrames::new(12 * u64::from(frame), frame);
    let mut backup = Backup::new(Box::new(frames), crc32c, 0);
    for &[which, what, epoch, from, len] in bytes.as_chunks::<5>().0 {
        let master =
            ServerId { index: u32::from(which & 1), generation: 1 + u32::from(which >> 1 & 1) };
        let segment = SegmentId(u32::from(which >> 2 & 3));
        let whole = whole(master, segment);
        let offset = u32::from(from).min(SEGMENT);
        let end = (offset + u32::from(len)).min(SEGMENT);
        let target = Target { cluster: CLUSTER, backup: BACKUP, master, segment };
        match what >> 5 {
            7 => backup.free(master, segment, u32::from(epoch)),
            6 if epoch == 0 => backup.fence(master).expect("few masters"),
            _ => {
                let write = WriteReplica {
                    target,
                    epoch: u32::from(epoch),
                    offset,
                    open: what & 1 != 0,
                    close: what & 2 != 0,
                    commit: what & 4 != 0,
                    sync: what & 32 != 0,
                    data: &whole[offset as usize..end as usize],
                };
                let (fenced, before) =
                    (backup.is_fenced(master), backup.list(master, SegmentId(0)));
                let result = backup.write(&write);
                if fenced {
                    assert!(result.is_err());
                    assert_eq!(backup.list(master, SegmentId(0)), before);
                }
            }
        }
        let replica = backup.bytes(master, segment).unwrap_or_default();
        assert_eq!(replica, &whole[..replica.len()]);
        assert_eq!(backup.replicas() + backup.free_frames(), 12);
    }
}

/// Returns the bytes of a segment.
fn whole(master: ServerId, segment: SegmentId) -> Vec<u8> {
    let mix = master.index ^ master.generation << 2 ^ segment.0 << 4;
    let mut bytes: Vec<u8> = (0..SEGMENT).map(|n| (n ^ mix) as u8).collect();
    let capacity = SEGMENT - BEYOND;
    let safe_version = Version(1);
    put_header(
        &mut bytes,
        &Header { cluster: CLUSTER, server: master, segment, capacity, safe_version },
    );
    bytes
}
