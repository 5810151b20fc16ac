//! The operation echo: a server replies with the bytes of the request.
//!
//! ```text
//! request   0 head | 4 any bytes
//! reply     0 head | 4 the same bytes
//! ```

use alloc::vec::Vec;

use sprat_proto::rpc::Message;

use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use crate::master::Master;
use crate::message::data::{self, Refusal, accepted, concat};
use crate::message::{Opcode, Status, VERSION};
use crate::types::TableId;

/// A request that a server answers with the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Echo<'a>(pub &'a [u8]);

impl<'a> Operation<'a> for Echo<'a> {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        concat(out, &[VERSION, Opcode::Echo as u8, 0, 0], self.0, &[])
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        Ok(Self(request.get(4..).ok_or(Status::BadFormat)?))
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        _: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        master.counters.echoes += 1;
        reply.bytes.extend_from_slice(&data::head(Status::Ok));
        reply.bytes.extend_from_slice(self.0);
        Ok(Executed::Now { idempotent: true })
    }
}

impl<'a> ClientOperation<'a> for Echo<'a> {
    type Args = ();
    const HAS_TABLET: bool = false;
    const CHANGES: bool = false;

    fn new((): (), parts: Parts<'a>) -> Self {
        Self(parts.value)
    }

    fn completion((): (), reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        bytes(reply)
    }
}

/// Parses a reply whose bytes after the head are the result.
pub(super) fn bytes(reply: &[u8]) -> Result<Reply, Refusal<'_>> {
    Ok(Reply::Bytes(reply.len() - accepted(reply)?.len()))
}
