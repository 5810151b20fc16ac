//! The operations by which a master takes, drops and recovers tablets, and finds hot ranges of
//! them, by order of the coordinator.
//!
//! [`control`] and [`crate::message::recovery`] have the formats: the orders are control messages.

use sprat_proto::node::machine::Replied;
use sprat_proto::rpc::Message;

use super::operation::{Call, Order};
use crate::master::Master;
use crate::message::Status;
use crate::message::control::{self, DropTablet, Ping, TakeTablet};
use crate::message::migration::{HotRange, Migrate, PullTablet};
use crate::message::recovery::{Recover, Recovering};
use crate::objects::tablet::{Tablet, TakeError};
use crate::types::TableId;

impl Order for TakeTablet {
    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_ordered(self.cluster, self.server, self.term)?;
        if self.first > self.last || self.table > TableId::MAX {
            return Err(Status::BadFormat);
        }
        // A recovery of the tablets must find a head of the log, although nothing was written.
        master.replication.check(call.now, &master.memory.log)?;
        master.memory.log.open_head().map_err(|_| Status::NoSpace)?;
        let tablet = Tablet { table: self.table, first: self.first, last: self.last };
        match master.memory.tablets.take(tablet, self.hash_key, self.durability) {
            Ok(()) => *reply = control::done().into(),
            Err(TakeError::Sweeping) => return Err(Status::Retry),
            Err(error @ TakeError::Overlap) => {
                let text = alloc::format!("{error}");
                *reply = control::failure(Status::BadFormat, &text).into();
            }
        }
        Ok(master.gate(call.caller, reply, false))
    }
}

impl Order for DropTablet {
    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_ordered(self.cluster, self.server, self.term)?;
        let tablet = Tablet { table: self.table, first: self.first, last: self.last };
        let leaving = master.memory.leaving.as_ref();
        if leaving.is_some_and(|leaving| leaving.tablet().overlaps(&tablet)) {
            master.end_departure(true);
        }
        master.busy |= master.memory.tablets.drop_tablet(tablet);
        *reply = control::done().into();
        Ok(Replied::Now)
    }
}

impl Order for Ping {
    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_ordered(self.cluster, self.server, self.term)?;
        master.membership.hear(self.list_version);
        master.follow_membership();
        master.counters.pings += 1;
        *reply = control::done().into();
        Ok(Replied::Idempotent)
    }
}

impl Order for Migrate<'_> {
    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_ordered(self.cluster, self.server, self.term)?;
        // A recovery of the tablet must find a head of the log, although nothing was written.
        master.replication.check(call.now, &master.memory.log)?;
        master.busy = true;
        let replayed = master.recovery.migrate(&self, &mut master.memory)?;
        *reply = Recovering { replayed }.emit().into();
        Ok(Replied::Now)
    }
}

impl Order for HotRange {
    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_ordered(self.cluster, self.server, self.term)?;
        *reply = master.heat.hottest(&master.memory.tablets, self.wanted).emit().into();
        Ok(Replied::Idempotent)
    }
}

impl Order for PullTablet {
    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        _: &mut Message,
    ) -> Result<Replied, Status> {
        master.keep_pull(call.caller, self)?;
        Ok(Replied::Later)
    }
}

impl Order for Recover<'_> {
    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.is_ordered(self.cluster, self.server, self.term)?;
        master.busy = true;
        let replayed = master.recovery.order(&self, &mut master.memory)?;
        *reply = Recovering { replayed }.emit().into();
        Ok(Replied::Now)
    }
}
