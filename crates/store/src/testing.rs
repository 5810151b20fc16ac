//! Functions for the tests of machines.

use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Machine, Replied};
use sprat_proto::rpc::{Message, Payload};

/// Gives a machine a request. Returns the machine's reply unless the reply follows later.
pub(crate) fn request(
    machine: &mut impl Machine,
    now: Instant,
    caller: Caller,
    payload: Payload<'_>,
    deadline: Instant,
) -> Option<Message> {
    let mut reply = Message::default();
    let replied = machine.request(now, caller, payload, deadline, &mut reply);
    assert!(replied != Replied::Later || reply.is_empty(), "the reply follows later");
    (replied != Replied::Later).then_some(reply)
}
