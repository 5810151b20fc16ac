//! The operation stats: it returns the counters of a server.
//!
//! ```text
//! request   0 head
//! reply     0 head | 4 an object in JSON
//! ```

use alloc::vec::Vec;

use sprat_proto::node::machine::Output;
use sprat_proto::rpc::Message;

use super::echo::bytes;
use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use crate::master::Master;
use crate::message::data::{self, Refusal, concat};
use crate::message::{Opcode, Status, VERSION};
use crate::types::TableId;

/// A request for the counters of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stats;

impl<'a> Operation<'a> for Stats {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        concat(out, &[VERSION, Opcode::Stats as u8, 0, 0], &[], &[])
    }

    fn parse(_: &'a [u8]) -> Result<Self, Status> {
        Ok(Self)
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    /// Sends the counters as [`Output::Counters`], behind which the node writes them.
    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        _: &mut Message,
    ) -> Result<Executed, Status> {
        let message = data::head(Status::Ok)[..].into();
        master.out.push_back(Output::Counters { caller: call.caller, message });
        Ok(Executed::Later)
    }
}

impl<'a> ClientOperation<'a> for Stats {
    type Args = ();
    const HAS_TABLET: bool = false;
    const CHANGES: bool = false;

    fn new((): (), _: Parts<'a>) -> Self {
        Self
    }

    fn completion((): (), reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        bytes(reply)
    }
}
