//! The operations of a backup: masters write and free replicas, and learn of those that are lost.
//! After a crash the coordinator lists them, the servers that recover the log read them, and the
//! coordinator frees them.
//!
//! [`crate::message`] has the formats, [`crate::backup`] the rules.

use sprat_proto::node::machine::Replied;
use sprat_proto::rpc::Message;

use super::operation::{Call, Order};
use crate::master::{Master, Waiting};
use crate::message::Status;
use crate::message::control;
use crate::message::damage::ReplicaDamaged;
use crate::message::data::head;
use crate::message::recovery::{
    FreeLeftReplicas, FreeReplicas, ListReplicas, MOST_READ, ReadReplica,
};
use crate::message::replica::{FreeReplica, WriteReplica, written};
use crate::message::ring::{OpenRing, Ring};

impl Order for WriteReplica<'_> {
    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_me(self.target.cluster, self.target.backup)?;
        if self.sync && (!master.backup.outlives_process() || master.syncs.is_full()) {
            // Nothing has changed: the master looks for another backup.
            return Err(Status::NoSpace);
        }
        let len = master.backup.write(&self)?;
        if self.open {
            master.replication.meet(self.target.master);
        }
        // A write that leaves a gap has changed nothing.
        if self.sync && len >= self.offset {
            master.syncs.add(Waiting { caller: call.caller, len });
            return Ok(Replied::Later);
        }
        reply.bytes.extend_from_slice(&written(len));
        Ok(Replied::Now)
    }
}

impl Order for FreeReplica {
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

impl Order for ListReplicas {
    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_ordered(self.cluster, self.backup, self.term)?;
        master.backup.fence(self.master)?;
        *reply = master.backup.list(self.master, self.after).emit().into();
        Ok(Replied::Now)
    }
}

impl Order for ReadReplica {
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
        let may_read =
            len == 0 || master.backup.delivers(self.master, self.segment, self.offset, len as u32);
        let rest = rest.get(..len).filter(|_| may_read).ok_or(Status::NoReplica)?;
        reply.bytes.reserve_exact(4 + len);
        reply.bytes.extend_from_slice(&head(Status::Ok));
        reply.bytes.extend_from_slice(rest);
        Ok(Replied::Idempotent)
    }
}

impl Order for OpenRing {
    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_me(self.cluster, self.backup)?;
        let offer = master.backup.open_ring(self.master)?;
        *reply = Ring { offer: &offer }.emit().into();
        Ok(Replied::Now)
    }
}

impl Order for ReplicaDamaged {
    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_me(self.cluster, self.master)?;
        if self.replicas.len() > control::MAX_PAGE {
            return Err(Status::BadFormat);
        }
        master.replication.take_report(&master.memory.log, self.backup, &self.replicas)?;
        *reply = control::done().into();
        Ok(Replied::Now)
    }
}

impl Order for FreeReplicas {
    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_ordered(self.cluster, self.backup, self.term)?;
        if !master.backup.free_all(self.master) {
            return Err(Status::BadFormat);
        }
        *reply = control::done().into();
        Ok(Replied::Now)
    }
}

impl Order for FreeLeftReplicas {
    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_me(self.cluster, self.backup)?;
        master.backup.free_left(self.master);
        *reply = control::done().into();
        Ok(Replied::Now)
    }
}
