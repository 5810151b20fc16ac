//! The operations of a backup: masters write and free replicas. After a crash the coordinator lists
//! them, the servers that recover the log read them, and the coordinator frees them.
//!
//! [`crate::message`] has the formats, [`crate::backup`] the rules.

use alloc::vec::Vec;

use sprat_proto::node::machine::Replied;
use sprat_proto::rpc::Message;

use super::operation::{Call, Operation};
use crate::master::Master;
use crate::message::Status;
use crate::message::control;
use crate::message::data::head;
use crate::message::recovery::{FreeReplicas, ListReplicas, MOST_READ, ReadReplica};
use crate::message::replica::{FreeReplica, WriteReplica, written};
use crate::types::TableId;

impl<'a> Operation<'a> for WriteReplica<'a> {
    fn emit_in(&self, mut out: Vec<u8>) -> Vec<u8> {
        out.clear();
        out.extend_from_slice(&self.emit_front());
        out.extend_from_slice(self.data);
        out
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        Self::parse(request)
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_me(self.target.cluster, self.target.backup)?;
        let len = master.backup.write(&self)?;
        reply.bytes.extend_from_slice(&written(len));
        Ok(Replied::Now)
    }
}

impl<'a> Operation<'a> for FreeReplica {
    fn emit_in(&self, _: Vec<u8>) -> Vec<u8> {
        Self::emit(self)
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        Self::parse(request)
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_me(self.target.cluster, self.target.backup)?;
        master.backup.free(self.target.master, self.target.segment, self.epoch);
        *reply = control::done().into();
        Ok(Replied::Now)
    }
}

impl<'a> Operation<'a> for ListReplicas {
    fn emit_in(&self, _: Vec<u8>) -> Vec<u8> {
        Self::emit(self)
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        Self::parse(request)
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_me(self.cluster, self.backup)?;
        master.backup.fence(self.master)?;
        *reply = master.backup.list(self.master, self.after).emit().into();
        Ok(Replied::Now)
    }
}

impl<'a> Operation<'a> for ReadReplica {
    fn emit_in(&self, _: Vec<u8>) -> Vec<u8> {
        Self::emit(self)
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        Self::parse(request)
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_me(self.cluster, self.backup)?;
        let bytes = master.backup.bytes(self.master, self.segment).ok_or(Status::NoReplica)?;
        let rest = bytes.get(self.offset as usize..).unwrap_or_default();
        let len = rest.len().min(self.len.min(MOST_READ) as usize);
        reply.bytes.reserve_exact(4 + len);
        reply.bytes.extend_from_slice(&head(Status::Ok));
        reply.bytes.extend_from_slice(&rest[..len]);
        Ok(Replied::Idempotent)
    }
}

impl<'a> Operation<'a> for FreeReplicas {
    fn emit_in(&self, _: Vec<u8>) -> Vec<u8> {
        Self::emit(self)
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        Self::parse(request)
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_me(self.cluster, self.backup)?;
        if !master.backup.free_all(self.master) {
            return Err(Status::BadFormat);
        }
        *reply = control::done().into();
        Ok(Replied::Now)
    }
}
