//! The trait between a machine and the node that runs it, in production and in the simulator alike.

use alloc::string::String;
use alloc::vec::Vec;

use crate::Instant;
use crate::rpc::{Message, Payload, RpcError, RpcId, ServerRpc, Slice, Slices};

/// A request that waits for its reply: the door (transport) that it came by, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caller {
    /// Index of the transport among those that the machine's worker serves.
    pub door: u32,
    /// The request's number at that transport.
    pub rpc: ServerRpc,
}

/// A peer that a machine sends requests to: a number that the machine chose and bound to a locator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Link(pub u32);

/// What a machine wants done. Pull with [`Machine::output`] until none.
#[derive(Debug)]
pub enum Output {
    /// Bind `link` to the server at `locator`: one locator, or several with `;`, the best first, of which the world uses
    /// the first that reaches it. May be repeated to bind it anew; what is under way to the old server fails then. The
    /// world connects, and reconnects when a session is lost, on its own.
    Connect {
        /// The link.
        link: Link,
        /// Where.
        locator: String,
    },
    /// Forget `link`.
    Disconnect {
        /// The link.
        link: Link,
    },
    /// Send a request; exactly one [`Machine::response`] with this `tag` follows.
    Call {
        /// To whom.
        link: Link,
        /// The machine's own number for it.
        tag: u64,
        /// The request.
        message: Message,
        /// When to give up.
        deadline: Instant,
    },
    /// Give up a call that [`Machine::sent`] named: its response will be `Cancelled` unless it has ended already.
    Cancel {
        /// The door that it went out by.
        door: u32,
        /// Its number there.
        rpc: RpcId,
    },
    /// Answer a request that [`Machine::request`] did not answer at once.
    Reply {
        /// The request.
        caller: Caller,
        /// The answer.
        message: Message,
    },
    /// Answer with what was counted. The message ends with an object in JSON that lacks its closing brace: the world adds
    /// what its transports have counted, and the brace.
    Counters {
        /// The request.
        caller: Caller,
        /// The answer, but for its end.
        message: Message,
    },
    /// Write to the machine's durable state, all or nothing. [`Machine::persisted`] with `seq` or a later number follows
    /// when it is safe, or [`Machine::rollback`] if it is not written. Sequence numbers are consecutive, and later ones
    /// are never safe before earlier ones.
    Persist {
        /// Which one.
        seq: u64,
        /// Keys to set.
        puts: Vec<(Vec<u8>, Vec<u8>)>,
        /// Keys to remove.
        deletes: Vec<Vec<u8>>,
    },
    /// This process must stop serving for good (its identity is gone); the reason is for the operator.
    Stop {
        /// Why.
        reason: String,
    },
}

/// A store machine: coordinator or master. (The client's side has the same verbs, and a
/// program calls it rather than requests.) As [`Slices`] it resolves the slices in its messages.
pub trait Machine: Slices {
    /// A request arrived. `Some` is the reply; `None` means that it follows as [`Output::Reply`].
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        deadline: Instant,
    ) -> Option<Message>;

    /// The [`Output::Call`] with this `tag` went out by `door` as `rpc`; only for those who may want to cancel it.
    fn sent(&mut self, _tag: u64, _door: u32, _rpc: RpcId) {}

    /// A [`Output::Call`] ended.
    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>);

    /// The server of a link cannot be reached, or its session has ended: why, with the locators. Calls on the link fail by
    /// [`Machine::response`] as ever; the text is for the errors that people read.
    fn unreachable(&mut self, _link: Link, _why: &str) {}

    /// What to do: call until `None` after every other verb.
    fn output(&mut self, now: Instant) -> Option<Output>;

    /// A slice that went out in a message is not needed any more.
    fn released(&mut self, _slice: Slice) {}

    /// A buffer of a message that went out and is not needed any more: the next message may be made in it.
    fn spare(&mut self, _buffer: Vec<u8>) {}

    /// [`Output::Persist`] number `seq`, and all before it, are safe.
    fn persisted(&mut self, _now: Instant, _seq: u64) {}

    /// No [`Output::Persist`] that [`Machine::persisted`] has not confirmed was written, and none of them will be.
    /// `reason` says why; `durable` is all that is safe. What is persisted from now on is tried again.
    fn rollback(&mut self, _now: Instant, _reason: &str, _durable: Vec<(Vec<u8>, Vec<u8>)>) {}

    /// When `tick` wants to be called, if nothing happens before.
    fn deadline(&self) -> Option<Instant>;

    /// It is `now`. Also called whenever the worker is idle for a moment, so background work (cleaning) belongs here:
    /// a bounded piece each time; true if there is more.
    fn tick(&mut self, now: Instant) -> bool;
}
