//! [`Machine`], which a node runs, and [`Output`], the actions that a machine asks of its node.

use alloc::string::String;
use alloc::vec::Vec;

use crate::Instant;
use crate::rpc::{Message, Payload, RpcError, RpcId, ServerRpc, Slice, Slices};

/// A received request that waits for its reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caller {
    /// The index of the transport that received the request, among those of the machine's node.
    pub transport: u32,
    /// The number of the request at the transport that received it.
    pub rpc: ServerRpc,
    /// The begin of the turn that received the request.
    pub at: Instant,
}

/// A link: the number by which a machine names a server that it sends requests to. The machine
/// chooses it and binds it to a locator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Link(pub u32);

/// An action that a machine asks of its node.
#[derive(Debug)]
pub enum Output {
    /// Bind `link` to the server at `locator`: one locator or several separated by `;`, the best
    /// first. The node uses the first that reaches the server, connects, and reconnects when a
    /// session is lost. A link may be bound anew; the calls in progress on it fail then.
    Connect {
        /// The link to bind to a server.
        link: Link,
        /// The server's locators, separated by `;`, the best first.
        locator: String,
    },
    /// Unbind `link` from its server.
    Disconnect {
        /// The link to unbind from its server.
        link: Link,
    },
    /// Send a request to the server of a link. Exactly one [`Machine::response`] with this `tag`
    /// follows.
    Call {
        /// The link to the server that the request goes to.
        link: Link,
        /// The machine's own number for the call, which the response repeats.
        tag: u64,
        /// The request that the node sends for the call.
        message: Message,
        /// The time at which the node gives up the call, if no reply has arrived.
        deadline: Instant,
    },
    /// Cancel a call that [`Machine::sent`] named. The call ends as `Cancelled` unless it has ended
    /// already.
    Cancel {
        /// The index of the transport that sent the call.
        transport: u32,
        /// The number of the call at its transport.
        rpc: RpcId,
    },
    /// Reply to a received request that [`Machine::request`] did not answer at once.
    Reply {
        /// The received request to answer.
        caller: Caller,
        /// The reply that the node sends.
        message: Message,
    },
    /// Answer a request for counters. The node writes [`Machine::counters`] and the counters of its
    /// host behind the message, as an object in JSON.
    Counters {
        /// The received request for counters.
        caller: Caller,
        /// The beginning of the reply, behind which the node writes the counters.
        message: Message,
    },
    /// Write to the machine's durable state, all or nothing. [`Machine::persisted`] with `seq` or a
    /// later number follows when the write is durable, or [`Machine::rollback`] if it was refused.
    /// Sequence numbers are consecutive, and a write is never durable before the one before it.
    Persist {
        /// The sequence number of the write to the durable state.
        seq: u64,
        /// Keys and their values to set in the durable state.
        puts: Vec<(Vec<u8>, Vec<u8>)>,
        /// Keys to remove from the durable state.
        deletes: Vec<Vec<u8>>,
    },
    /// End this process for good: its identity is gone.
    Stop {
        /// The reason why the process must end, for the operator.
        reason: String,
    },
}

/// The part of a machine among several processes, of which one leads: it alone writes their shared
/// durable state. The host finds the part out, and [`Machine::election`] informs the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Election {
    /// This process leads from now on, in a new term. Sequence numbers of [`Output::Persist`] begin
    /// at 1.
    Elected {
        /// The term, which is higher than that of each leader before.
        term: u64,
        /// The time up to which surely no other process leads.
        until: Instant,
        /// Keys and values of the durable state.
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// This process leads on.
    Extended {
        /// The time up to which surely no other process leads.
        until: Instant,
    },
    /// This process does not lead, or leads no more. None of its writes that are not confirmed so
    /// far will be.
    Standby {
        /// The locators of the process that leads, or nothing if none is known.
        leader: String,
    },
    /// The host does not learn at present which process leads.
    Unsure {
        /// The reason, for error messages.
        why: String,
    },
}

/// The time at which a machine answers a request: now or later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replied {
    /// The machine has answered the request: the reply is in the message that [`Machine::request`]
    /// got.
    Now,
    /// The machine has answered the request, which is idempotent: it may be executed again. A
    /// transport that loses packets then need not retain the reply. If the reply is lost, the
    /// machine may get the request again, with the same bytes, and answer it anew; meanwhile the
    /// client may be told that the request was not executed.
    Idempotent,
    /// The machine answers the request later, by [`Output::Reply`] or [`Output::Counters`].
    Later,
}

/// A machine that a node runs: a coordinator, a master, the client of a program, an RPC service. As
/// [`Slices`] it resolves the slices in its messages.
pub trait Machine: Slices {
    /// Handles a received request. The machine writes the reply into `reply`, which is empty and
    /// may have the buffer of an earlier one, and returns whether it did.
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        deadline: Instant,
        reply: &mut Message,
    ) -> Replied;

    /// Returns true once the machine has done as much work as a turn should have: the node leaves
    /// the events that follow to its next turn. Called after each request.
    fn fills_turn(&mut self) -> bool {
        false
    }

    /// True if the machine gains from calls of [`Machine::expect`] at present.
    fn expects(&self) -> bool {
        false
    }

    /// Announces a request with these bytes, which has arrived and may follow by
    /// [`Machine::request`]. The machine may only load the memory that it will need into the
    /// processor's cache: the bytes are not checked. [`Machine::prefetch`] follows the last of
    /// them.
    fn expect(&mut self, _request: &[u8]) {}

    /// Ends a sequence of calls of [`Machine::expect`]: all requests that arrived together were
    /// announced.
    fn prefetch(&mut self) {}

    /// Informs the machine that `transport` sent the call with this `tag` as `rpc`. Only a machine
    /// that may cancel the call needs this.
    fn sent(&mut self, _tag: u64, _transport: u32, _rpc: RpcId) {}

    /// Ends the call with this `tag`: `result` is its reply or its error.
    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>);

    /// Informs the machine that the server of a link cannot be reached, or that a session with it
    /// has ended. `why` names the locators and is meant for error messages. Calls on the link fail
    /// by [`Machine::response`] all the same.
    fn unreachable(&mut self, _link: Link, _why: &str) {}

    /// Informs the machine that the server to which the last session of a link led has certainly
    /// ended: the kernel that both run on says so. [`Machine::unreachable`] follows.
    fn ended(&mut self, _now: Instant, _link: Link) {}

    /// True if [`Machine::output`] may return an action.
    fn has_output(&self) -> bool;

    /// Returns the next action that the machine asks of its node. Call it until `None` when
    /// [`Machine::has_output`] is true, and after [`Machine::tick`].
    fn output(&mut self, now: Instant) -> Option<Output>;

    /// Returns a slice of a message to the machine, because no transport needs it any more. Each
    /// slice of each [`Output::Call`] comes back once.
    fn released(&mut self, _slice: Slice) {}

    /// Returns the buffer of a sent request to the machine, which may build its next request in it.
    fn spare(&mut self, _buffer: Vec<u8>) {}

    /// Informs the machine that the [`Output::Persist`] with number `seq` and all before it are
    /// durable.
    fn persisted(&mut self, _now: Instant, _seq: u64) {}

    /// Informs the machine that each [`Output::Persist`] which [`Machine::persisted`] has not
    /// confirmed was refused for `reason`. `durable` is all that is durable. The node tries later
    /// writes again.
    fn rollback(&mut self, _now: Instant, _reason: &str, _durable: Vec<(Vec<u8>, Vec<u8>)>) {}

    /// Informs the machine whether it leads, if it is one of several of which one leads.
    fn election(&mut self, _now: Instant, _election: Election) {}

    /// Returns the names and values of the machine's counters. A name needs no escapes in JSON.
    fn counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Adds the names of what the machine has done in the turn at `now`, for a report about a turn
    /// that took long: operations of requests, and tasks in the background.
    fn done(&self, _now: Instant, _names: &mut Vec<String>) {}

    /// Returns the time of the machine's next timer, when to call [`Machine::tick`].
    fn deadline(&self) -> Option<Instant>;

    /// Runs the machine's timers that are due at `now`, and a bounded piece of background work such
    /// as cleaning. A node also calls it before it pauses. Returns true if there is more background
    /// work.
    fn tick(&mut self, now: Instant) -> bool;
}
