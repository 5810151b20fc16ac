//! The multi-operation: several operations on objects in one request. Each part is executed on its
//! own and has its own status; a mutation among them happens exactly once, as if it came alone.
//!
//! The format is in [`crate::message::multi`].
//!
//! A master executes a limited number of parts in one turn, so that other clients do not wait long,
//! and leaves out those that do not fit into the reply. The client sends the others again.

use alloc::vec::Vec;

use sprat_proto::rpc::Message;

use super::operation::{Call, Executed, Operation};
use super::{execute_part, key};
use crate::master::{Mark, Master};
use crate::message::data::{head, split};
use crate::message::multi::{self, Parts};
use crate::message::{Opcode, Status};
use crate::types::TableId;

/// The most parts of a multi-operation that a master executes in one turn.
pub const MOST_PARTS: usize = 64;
/// The longest reply to several parts, in bytes. The reply to one part may be longer.
const MOST_BYTES: usize = 64 << 10;

/// A request to execute several operations on objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Multi<'a> {
    /// The requests of the operations.
    pub parts: Parts<'a>,
}

/// The condition under which the reply to all parts so far goes out.
#[derive(Debug, Default)]
struct Together {
    /// True if a part changed something.
    changed: bool,
    /// True if the reply reports something that has to be durable first.
    waits: bool,
    /// The end of the log before the first change that may lag.
    mark: Option<Mark>,
    /// True if all parts may be executed again.
    idempotent: bool,
}

impl Together {
    fn add(&mut self, master: &Master, part: Executed) {
        match part {
            Executed::Read { table, durable } => {
                let reports_all = durable || master.memory.log.is_all_durable();
                self.waits |= !reports_all && !master.is_async_table(table);
            }
            Executed::Changed(before) => {
                self.changed = true;
                self.waits |= before.is_none();
                self.mark = self.mark.or(before);
            }
            Executed::Now { idempotent } => self.idempotent &= idempotent,
            Executed::Suspended(_) | Executed::Later => {}
        }
    }

    fn executed(self) -> Executed {
        if self.changed || self.waits {
            Executed::Changed(self.mark.filter(|_| !self.waits))
        } else {
            Executed::Now { idempotent: self.idempotent }
        }
    }
}

impl<'a> Operation<'a> for Multi<'a> {
    fn emit_in(&self, mut out: Vec<u8>) -> Vec<u8> {
        multi::begin_request(&mut out);
        out.extend_from_slice(self.parts.bytes());
        out
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (_, parts) = split::<[u8; 4]>(request, Opcode::Multi)?;
        Ok(Self { parts: Parts::of_request(parts)? })
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        master.expect_all(self.parts.take(MOST_PARTS).filter_map(key));
        multi::begin_reply(&mut reply.bytes);
        let mut together = Together { idempotent: true, ..Together::default() };
        for (i, request) in self.parts.take(MOST_PARTS).enumerate() {
            if i > 0 && reply.len() > MOST_BYTES {
                break;
            }
            let at = multi::begin(&mut reply.bytes);
            let executed = match execute_part(master, &Call { request, ..*call }, reply) {
                Ok(executed) => executed,
                Err(status) => {
                    master.counters.refused(status);
                    // The part may have begun its reply.
                    reply.bytes.truncate(at);
                    reply.bytes.extend_from_slice(&head(status));
                    Executed::Now { idempotent: false }
                }
            };
            // The reply of a part that was executed stays, however long, unless it is a read.
            let is_left_out = i > 0
                && match executed {
                    Executed::Suspended(_) => true,
                    Executed::Read { .. } => reply.len() > MOST_BYTES,
                    _ => false,
                };
            for slice in core::mem::take(&mut reply.slices) {
                if !is_left_out {
                    reply.bytes.extend_from_slice(master.memory.log.lent_bytes(slice));
                }
                master.memory.log.give_back(slice);
            }
            if is_left_out {
                // The client sends this part and the next ones again. A mutation then waits for its
                // lease.
                reply.bytes.truncate(at - multi::PART_HEAD);
                break;
            }
            if let Executed::Suspended(_) = executed {
                reply.bytes.clear();
                return Ok(executed);
            }
            together.add(master, executed);
            multi::end(&mut reply.bytes, at);
        }
        master.counters.multis += 1;
        Ok(together.executed())
    }
}
