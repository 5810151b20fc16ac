//! The coordinator as a machine: it takes requests and responses and returns outputs.

use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Link, Machine, Output, Replied};
use sprat_proto::rpc::{Message, Payload, RpcError, Slice, Slices};

use super::counters;
use super::state::{Coordinator, Effect};
use crate::message::control::{
    self, CheckLease, CreateTable, DropTable, Enlist, GetLeader, GetTable, GetTablets, HintCrashed,
    ListServers, ListTables, RenewClient, RenewServer, SetHead,
};
use crate::message::migration::{
    FindTablet, ListMigrations, MergeTablets, MoveTablet, SplitTablet,
};
use crate::message::recovery::{AcceptLoss, RecoveryEnded};
use crate::message::transaction::FindOwner;
use crate::message::{Opcode, Status};

impl Coordinator {
    fn dispatch(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: &[u8],
    ) -> Result<Option<Message>, Status> {
        Ok(match control::opcode(payload)? {
            Opcode::Echo => Some(ok(&payload[4..])),
            Opcode::Stats => {
                self.out.push_back(Output::Counters { caller, message: ok(&[]) });
                None
            }
            Opcode::Enlist => self.enlist(now, caller, &Enlist::parse(payload)?),
            Opcode::RenewServer => self.renew_server(now, caller, RenewServer::parse(payload)?),
            Opcode::RenewClient => self.renew_client(now, caller, &RenewClient::parse(payload)?),
            Opcode::CheckLease => self.check_lease(now, caller, &CheckLease::parse(payload)?),
            Opcode::CreateTable => self.create_table(caller, &CreateTable::parse(payload)?),
            Opcode::DropTable => self.drop_table(caller, &DropTable::parse(payload)?),
            Opcode::GetTable => self.get_table(caller, &GetTable::parse(payload)?),
            Opcode::ListTables => self.list_tables(caller, &ListTables::parse(payload)?),
            Opcode::GetTablets => self.tablets(caller, &GetTablets::parse(payload)?),
            Opcode::ListServers => self.list_servers(caller, &ListServers::parse(payload)?),
            Opcode::HintCrashed => self.hint_crashed(caller, &HintCrashed::parse(payload)?),
            Opcode::RecoveryEnded => {
                self.recovery_ended(now, caller, &RecoveryEnded::parse(payload)?)
            }
            Opcode::GetLeader => self.leader(caller, &GetLeader::parse(payload)?),
            Opcode::AcceptLoss => self.accept_loss(caller, &AcceptLoss::parse(payload)?),
            Opcode::SetHead => self.set_head(caller, &SetHead::parse(payload)?),
            Opcode::SplitTablet => self.split_tablet(caller, &SplitTablet::parse(payload)?),
            Opcode::MergeTablets => self.merge_tablets(caller, &MergeTablets::parse(payload)?),
            Opcode::MoveTablet => self.move_tablet(caller, &MoveTablet::parse(payload)?),
            Opcode::ListMigrations => {
                self.list_migrations(caller, &ListMigrations::parse(payload)?)
            }
            Opcode::FindTablet => self.find_tablet(caller, &FindTablet::parse(payload)?),
            Opcode::FindOwner => self.find_owner(caller, &FindOwner::parse(payload)?),
            _ => return Err(Status::UnknownOpcode),
        })
    }
}

impl Slices for Coordinator {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

impl Machine for Coordinator {
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        _deadline: Instant,
        reply: &mut Message,
    ) -> Replied {
        self.notice(now);
        match self.dispatch(now, caller, &payload) {
            Ok(Some(message)) => *reply = message,
            Ok(None) => return Replied::Later,
            Err(status) => {
                *reply =
                    control::failure(status, "the coordinator cannot read this request").into();
            }
        }
        Replied::Now
    }

    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        self.notice(now);
        let is_taken = self.recovery_called(now, tag, &result)
            || self.migration_called(now, tag, &result)
            || self.heat_called(tag, &result)
            || self.pinged(tag, &result);
        if !is_taken {
            self.called(now, tag, result);
        }
    }

    fn unreachable(&mut self, link: Link, _: &str) {
        self.lost_session(link);
    }

    fn ended(&mut self, now: Instant, link: Link) {
        self.notice(now);
        self.process_ended(link);
    }

    fn has_output(&self) -> bool {
        !self.out.is_empty()
            || !self.tables.ready.is_empty()
            || self.recoveries.has_output()
            || self.migrations.has_output()
            || self.heat.ready().is_some()
            || self.has_pings()
    }

    fn output(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        let call = self.next_call(now).or_else(|| self.next_recovery_call(now));
        let call = call.or_else(|| self.next_migration_call(now));
        let call = call.or_else(|| self.next_heat_call(now));
        let call = call.or_else(|| self.next_ping(now));
        // The search for the next call may have moved a tablet, which must become durable.
        call.or_else(|| self.out.pop_front())
    }

    fn persisted(&mut self, now: Instant, seq: u64) {
        self.notice(now);
        if self.refusal.take().is_some() {
            self.resume();
        }
        self.journal.safe = self.journal.safe.max(seq);
        self.recoveries.notice();
        while let Some((wanted, _)) = self.journal.effects.front()
            && *wanted <= self.journal.safe
            && let Some((_, effect)) = self.journal.effects.pop_front()
        {
            match effect {
                Effect::Reply { caller, reply, .. } => {
                    self.out.push_back(Output::Reply { caller, message: reply.into() });
                }
                Effect::Begin(id) => self.begin(id),
            }
        }
    }

    fn rollback(&mut self, now: Instant, reason: &str, durable: Vec<(Vec<u8>, Vec<u8>)>) {
        self.notice(now);
        self.roll_back(now, reason, durable);
    }

    fn counters(&self) -> Vec<(String, u64)> {
        counters::list(self)
    }

    fn deadline(&self) -> Option<Instant> {
        let idle = self.leases.len() == 0 && self.servers.all_up().next().is_none();
        let check = (!idle).then_some(self.next_check);
        let again = self.refusal.as_ref().map(|refusal| refusal.until);
        check
            .into_iter()
            .chain(again)
            .chain(self.tables.deadline())
            .chain(self.recoveries.deadline())
            .chain(self.migrations.deadline())
            .chain(self.rebalance_deadline().filter(|_| !idle))
            .min()
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.notice(now);
        self.repeat_calls(now);
        self.repeat_steps(now);
        self.repeat_migrations(now);
        self.rebalance(now);
        if self.refusal.as_ref().is_some_and(|refusal| refusal.until <= now) {
            self.refusal = None;
            self.resume();
        }
        // While the disk takes no changes, leases do not expire.
        if now < self.next_check || self.refusal.is_some() {
            return false;
        }
        self.expire_servers(now);
        self.ping_unknown();
        if self.expire_leases(now) {
            return true;
        }
        self.next_check = now.after(self.check_ns());
        false
    }
}

/// Returns a reply with status OK, followed by `bytes`.
fn ok(bytes: &[u8]) -> Message {
    let mut reply = control::done();
    reply.extend_from_slice(bytes);
    reply.into()
}
