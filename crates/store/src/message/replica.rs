//! The messages by which a master writes the replicas of its log, and frees them.
//!
//! ```text
//! WriteReplica  0 version u8 | 1 opcode u8 | 2 zero u16 | 4 epoch u32 | 8 cluster u64
//!              16 backup index u32, generation u32 | 24 master index u32, generation u32
//!              32 segment u32 | 36 offset u32 | 40 flags u8 | 41 zero u24 | 44 data
//!     flags     bit 0 open | bit 1 close | bit 2 commit | bit 3 sync
//! FreeReplica   0 version u8 | 1 opcode u8 | 2 zero u16 | 4 epoch u32 | 8 cluster u64
//!              16 backup | 24 master | 32 segment u32
//! reply         0 version u8 | 1 status u8 | 2 zero u16 | 4 length of the replica u32, if it is a
//!               WriteReplica and the status is OK
//! ```
//!
//! A write names the offset of its data, so that a repetition changes nothing and a gap shows. The
//! bytes of a segment never change, apart from marks of dead entries, so that replicas of one
//! segment differ only in their lengths.
//!
//! Invariant: parsing never panics and copies nothing.

use alloc::vec::Vec;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::data::{accepted, head, split};
use super::{Opcode, Status, VERSION};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The number of bytes of a [`WriteReplica`] before its data.
pub const WRITE_REPLICA: usize = size_of::<WriteWire>();

const OPEN: u8 = 1;
const CLOSE: u8 = 2;
const COMMIT: u8 = 4;
const SYNC: u8 = 8;

/// A replica, as a master and its backup name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The id of the cluster that both servers belong to.
    pub cluster: u64,
    /// The server that holds the replica.
    pub backup: ServerId,
    /// The server that owns the log.
    pub master: ServerId,
    /// The segment of the log.
    pub segment: SegmentId,
}

/// A request to open, continue or close a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteReplica<'a> {
    /// The replica to write.
    pub target: Target,
    /// The epoch of the replica. The backup refuses a write with a lower one than the last.
    pub epoch: u32,
    /// The offset in the segment of the data, in bytes.
    pub offset: u32,
    /// True if the backup creates the replica unless it has one of this epoch.
    pub open: bool,
    /// True if the replica is complete with this write.
    pub close: bool,
    /// True if the replica has the epoch of this write from now on, and counts in a recovery. Until
    /// then it lacks bytes that other replicas had, and on which replies may rest.
    pub commit: bool,
    /// True if the backup replies when the write is on disk.
    pub sync: bool,
    /// The bytes of the segment from `offset` on.
    pub data: &'a [u8],
}

/// A request to free a replica, which need not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeReplica {
    /// The replica to free.
    pub target: Target,
    /// The highest epoch of the replica to free. A later replica of the segment stays.
    pub epoch: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ServerWire {
    index: U32,
    generation: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WriteWire {
    version: u8,
    opcode: u8,
    zero: U16,
    epoch: U32,
    cluster: U64,
    backup: ServerWire,
    master: ServerWire,
    segment: U32,
    offset: U32,
    flags: u8,
    zeros: [u8; 3],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FreeWire {
    version: u8,
    opcode: u8,
    zero: U16,
    epoch: U32,
    cluster: U64,
    backup: ServerWire,
    master: ServerWire,
    segment: U32,
}

impl From<ServerId> for ServerWire {
    fn from(server: ServerId) -> Self {
        Self { index: server.index.into(), generation: server.generation.into() }
    }
}

impl From<ServerWire> for ServerId {
    fn from(wire: ServerWire) -> Self {
        Self { index: wire.index.get(), generation: wire.generation.get() }
    }
}

impl<'a> WriteReplica<'a> {
    /// Returns the bytes of the request before its data.
    #[must_use]
    pub fn emit_front(&self) -> [u8; WRITE_REPLICA] {
        let Target { cluster, backup, master, segment } = self.target;
        let wire = WriteWire {
            version: VERSION,
            opcode: Opcode::WriteReplica as u8,
            zero: U16::ZERO,
            epoch: self.epoch.into(),
            cluster: cluster.into(),
            backup: backup.into(),
            master: master.into(),
            segment: segment.0.into(),
            offset: self.offset.into(),
            flags: (u8::from(self.open) * OPEN)
                | (u8::from(self.close) * CLOSE)
                | (u8::from(self.commit) * COMMIT)
                | (u8::from(self.sync) * SYNC),
            zeros: [0; 3],
        };
        zerocopy::transmute!(wire)
    }

    /// Returns the bytes of the request.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        [&self.emit_front()[..], self.data].concat()
    }

    /// Parses a request with the opcode of a replica's write.
    ///
    /// # Errors
    /// The status to reply with.
    pub fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, data) = split::<WriteWire>(request, Opcode::WriteReplica)?;
        if wire.flags & !(OPEN | CLOSE | COMMIT | SYNC) != 0 || wire.zeros != [0; 3] {
            return Err(Status::BadFormat);
        }
        let target = Target {
            cluster: wire.cluster.get(),
            backup: wire.backup.into(),
            master: wire.master.into(),
            segment: SegmentId(wire.segment.get()),
        };
        let has = |flag| wire.flags & flag != 0;
        let (open, close, commit, sync) = (has(OPEN), has(CLOSE), has(COMMIT), has(SYNC));
        let (epoch, offset) = (wire.epoch.get(), wire.offset.get());
        Ok(Self { target, epoch, offset, open, close, commit, sync, data })
    }
}

impl FreeReplica {
    /// Returns the bytes of the request.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let Target { cluster, backup, master, segment } = self.target;
        let wire = FreeWire {
            version: VERSION,
            opcode: Opcode::FreeReplica as u8,
            zero: U16::ZERO,
            epoch: self.epoch.into(),
            cluster: cluster.into(),
            backup: backup.into(),
            master: master.into(),
            segment: segment.0.into(),
        };
        wire.as_bytes().to_vec()
    }

    /// Parses a request with the opcode that frees a replica.
    ///
    /// # Errors
    /// The status to reply with.
    pub fn parse(request: &[u8]) -> Result<Self, Status> {
        let (wire, rest) = split::<FreeWire>(request, Opcode::FreeReplica)?;
        if !rest.is_empty() {
            return Err(Status::BadFormat);
        }
        let target = Target {
            cluster: wire.cluster.get(),
            backup: wire.backup.into(),
            master: wire.master.into(),
            segment: SegmentId(wire.segment.get()),
        };
        Ok(Self { target, epoch: wire.epoch.get() })
    }
}

/// Returns the reply to a [`WriteReplica`]: the replica has `len` bytes.
#[must_use]
pub fn written(len: u32) -> [u8; 8] {
    let mut reply = [0; 8];
    reply[..4].copy_from_slice(&head(Status::Ok));
    reply[4..].copy_from_slice(&len.to_be_bytes());
    reply
}

/// Parses the reply to a [`WriteReplica`] and returns the length of the replica.
///
/// # Errors
/// The status in the reply if it is not OK, or that of a malformed reply.
pub fn written_len(reply: &[u8]) -> Result<u32, Status> {
    let rest = accepted(reply).map_err(|refusal| refusal.status)?;
    Ok(u32::from_be_bytes(rest.try_into().map_err(|_| Status::BadFormat)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target {
        cluster: 0x0102_0304_0506_0708,
        backup: ServerId { index: 2, generation: 3 },
        master: ServerId { index: 4, generation: 5 },
        segment: SegmentId(6),
    };

    #[test]
    fn a_write_of_a_replica_byte_by_byte() {
        let write = WriteReplica {
            target: TARGET,
            epoch: 7,
            offset: 8,
            open: true,
            close: false,
            commit: true,
            sync: true,
            data: b"data",
        };
        let mut bytes = write.emit_front().to_vec();
        bytes.extend_from_slice(write.data);
        let golden = [
            &[1, 192, 0, 0, 0, 0, 0, 7][..],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[0, 0, 0, 2, 0, 0, 0, 3],
            &[0, 0, 0, 4, 0, 0, 0, 5],
            &[0, 0, 0, 6, 0, 0, 0, 8],
            &[13, 0, 0, 0],
            b"data",
        ]
        .concat();
        assert_eq!(bytes, golden);
        assert_eq!(WriteReplica::parse(&bytes), Ok(write));
        bytes[40] = 16;
        assert_eq!(WriteReplica::parse(&bytes), Err(Status::BadFormat));
        assert_eq!(WriteReplica::parse(&golden[..43]), Err(Status::BadFormat));
    }

    #[test]
    fn a_free_of_a_replica_byte_by_byte() {
        let free = FreeReplica { target: TARGET, epoch: 7 };
        let golden = [
            &[1, 193, 0, 0, 0, 0, 0, 7][..],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[0, 0, 0, 2, 0, 0, 0, 3],
            &[0, 0, 0, 4, 0, 0, 0, 5],
            &[0, 0, 0, 6],
        ]
        .concat();
        assert_eq!(free.emit(), golden);
        assert_eq!(FreeReplica::parse(&golden), Ok(free));
        assert_eq!(FreeReplica::parse(&golden[..35]), Err(Status::BadFormat));
    }

    #[test]
    fn a_reply_has_the_length_of_the_replica() {
        assert_eq!(written_len(&written(77)), Ok(77));
        assert_eq!(written_len(&head(Status::Fenced)), Err(Status::Fenced));
        assert_eq!(written_len(&head(Status::Ok)), Err(Status::BadFormat));
    }
}
