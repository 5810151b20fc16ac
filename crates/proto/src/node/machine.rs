//! [`Machine`]: what a node runs, and what the machine may ask the node to do.

use alloc::string::String;
use alloc::vec::Vec;

use crate::Instant;
use crate::rpc::{Message, Payload, RpcError, RpcId, ServerRpc, Slice, Slices};

/// A request that waits for its reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caller {
    /// Index of the transport among those of the machine's node.
    pub transport: u32,
    /// The request's number at that transport.
    pub rpc: ServerRpc,
}

/// A peer that a machine sends requests to: a number that the machine chose and bound to a locator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Link(pub u32);

/// An action that a machine wants done.
#[derive(Debug)]
pub enum Output {
    /// Bind `link` to the server at `locator`: one locator or several separated by `;`, the best
    /// first. The node uses the first that reaches the server, connects, and reconnects when a
    /// session is lost. A link may be bound anew; the calls in progress on it fail then.
    Connect {
        /// The link.
        link: Link,
        /// The server's locators.
        locator: String,
    },
    /// Forget `link`.
    Disconnect {
        /// The link.
        link: Link,
    },
    /// Send a request. Exactly one [`Machine::response`] with this `tag` follows.
    Call {
        /// The server.
        link: Link,
        /// The machine's own number for the call.
        tag: u64,
        /// The request.
        message: Message,
        /// The time at which the node gives the call up.
        deadline: Instant,
    },
    /// Cancel a call that [`Machine::sent`] named. Its response is `Cancelled` unless it has ended.
    Cancel {
        /// The transport that the call was sent by.
        transport: u32,
        /// The call's number there.
        rpc: RpcId,
    },
    /// Answer a request that [`Machine::request`] did not answer.
    Reply {
        /// The request.
        caller: Caller,
        /// The reply.
        message: Message,
    },
    /// Answer a request for counters. The node adds those of its transports, and writes all of them
    /// behind the message, as an object in JSON.
    Counters {
        /// The request.
        caller: Caller,
        /// The beginning of the reply.
        message: Message,
        /// The names and values of the machine's counters. A name needs no escapes in JSON.
        counters: Vec<(String, u64)>,
    },
    /// Write to the machine's durable state, all or nothing. [`Machine::persisted`] with `seq` or a
    /// later number follows when the write is durable, or [`Machine::rollback`] if it was refused.
    /// Sequence numbers are consecutive, and a write is never durable before the one before it.
    Persist {
        /// The sequence number.
        seq: u64,
        /// Keys to set.
        puts: Vec<(Vec<u8>, Vec<u8>)>,
        /// Keys to remove.
        deletes: Vec<Vec<u8>>,
    },
    /// End this process for good: its identity is gone.
    Stop {
        /// The reason, for the operator.
        reason: String,
    },
}

/// A machine answers a request now or later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replied {
    /// At once: the reply is in the message that [`Machine::request`] got.
    Now,
    /// Later, as [`Output::Reply`] or [`Output::Counters`].
    Later,
}

/// A machine that a node runs: a coordinator, a master, the client of a program, an RPC service. As
/// [`Slices`] it resolves the slices in its messages.
pub trait Machine: Slices {
    /// A request arrived. The machine writes the reply into `reply`, which is empty and may have
    /// the buffer of an earlier one, and says whether it did.
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        deadline: Instant,
        reply: &mut Message,
    ) -> Replied;

    /// True if the machine gains from [`Machine::expect`] at present.
    fn expects(&self) -> bool {
        false
    }

    /// A request with these bytes has arrived and may follow by [`Machine::request`]. The machine
    /// may load what it will touch into the processor's cache, and nothing else: the bytes are not
    /// checked. [`Machine::prefetch`] follows the last of them.
    fn expect(&mut self, _request: &[u8]) {}

    /// All requests were passed to [`Machine::expect`] that arrived together.
    fn prefetch(&mut self) {}

    /// The call with this `tag` was sent by `transport` as `rpc`. Only a machine that may cancel
    /// the call needs this.
    fn sent(&mut self, _tag: u64, _transport: u32, _rpc: RpcId) {}

    /// The call with this `tag` ended.
    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>);

    /// The server of a link cannot be reached, or a session with it has ended. `why` names the
    /// locators and is meant for error messages. Calls on the link fail by [`Machine::response`]
    /// all the same.
    fn unreachable(&mut self, _link: Link, _why: &str) {}

    /// True if [`Machine::output`] may return something.
    fn has_output(&self) -> bool;

    /// Returns the next thing that the machine wants done. Call it until `None` when
    /// [`Machine::has_output`] is true, and after [`Machine::tick`].
    fn output(&mut self, now: Instant) -> Option<Output>;

    /// A slice of a message that was sent is not needed any more.
    fn released(&mut self, _slice: Slice) {}

    /// Returns the buffer of a request that was sent. The machine may build its next request in it.
    fn spare(&mut self, _buffer: Vec<u8>) {}

    /// The [`Output::Persist`] with number `seq` and all before it are durable.
    fn persisted(&mut self, _now: Instant, _seq: u64) {}

    /// Each [`Output::Persist`] that [`Machine::persisted`] has not confirmed was refused for
    /// `reason`. `durable` is all that is durable. Writes from now on are tried again.
    fn rollback(&mut self, _now: Instant, _reason: &str, _durable: Vec<(Vec<u8>, Vec<u8>)>) {}

    /// Returns the time to call [`Machine::tick`] if nothing happens before.
    fn deadline(&self) -> Option<Instant>;

    /// Runs the timers that are due at `now`, and a bounded piece of background work such as
    /// cleaning. A node also calls it before it pauses. Returns true if there is more background
    /// work.
    fn tick(&mut self, now: Instant) -> bool;
}
