//! The store's client as a [`Machine`], with the outcomes that the program has not taken yet.

use std::mem;

use sprat_proto::node::machine::{Caller, Link, Machine, Output, Replied};
use sprat_proto::rpc::{Message, Payload, RpcError, Slice, Slices};
use sprat_proto::{Instant, Rng};
use sprat_store::client::{Answer, Client, Done, Error, Op, Value};
use sprat_store::types::Version;

use super::pauses::Pauses;
use crate::completions::{Completions, Delivery, EntryId};

/// The result of an operation. Its bytes belong to the program.
pub type Outcome = Result<Answer<'static>, Error>;

/// An outcome that waits for the program. The value of a read waits in the entry's buffer, behind
/// its first `skip` bytes.
#[derive(Debug)]
pub(super) enum Kept {
    Object { version: Version, skip: usize },
    Version(Version),
    Other(Box<Answer<'static>>),
}

impl Kept {
    #[inline(always)]
    fn new(answer: Answer<'_>, bytes: &mut Vec<u8>) -> Self {
        match answer {
            Answer::Object { version, value } => {
                Self::Object { version, skip: value.move_into(bytes) }
            }
            Answer::Version(version) => Self::Version(version),
            other => Self::Other(Box::new(other.into_owned())),
        }
    }

    /// Joins the kept outcome with the bytes of its value.
    #[inline]
    pub(super) fn join(self, payload: Payload<'_>) -> Answer<'_> {
        match self {
            Self::Object { version, skip } => {
                Answer::Object { version, value: Value::new(payload, skip) }
            }
            Self::Version(version) => Answer::Version(version),
            Self::Other(answer) => *answer,
        }
    }
}

/// The read that [`super::Table::get_with`] waits for, with the buffer for its value.
#[derive(Debug, Default)]
pub(super) struct Direct {
    op: Option<Op>,
    pub(super) bytes: Vec<u8>,
    pub(super) skip: usize,
    pub(super) outcome: Option<Result<Version, Error>>,
}

/// The operation of an entry that has none in the store: a pause, or an empty transaction.
const NO_OP: Op = Op(u64::MAX);

/// The store's client, and the operations that the program has started.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) client: Client,
    pauses: Pauses,
    pub(super) direct: Direct,
    pub(super) completions: Completions<Op, Result<Kept, Error>>,
    /// The entry of each operation in progress, by [`Op::index`].
    by_op: Vec<Option<EntryId>>,
}

impl Operations {
    pub(super) fn new(client: Client, pauses: Pauses) -> Self {
        Self {
            client,
            pauses,
            direct: Direct::default(),
            completions: Completions::default(),
            by_op: Vec::new(),
        }
    }

    /// Starts an operation and makes its entry.
    #[inline]
    pub(super) fn start(&mut self, begin: impl FnOnce(&mut Client) -> Op) -> (Op, EntryId) {
        // An operation that has ended may have the index that the new one gets.
        self.collect();
        let op = begin(&mut self.client);
        let id = self.completions.begin(op, Delivery::Held);
        if op.index() >= self.by_op.len() {
            self.by_op.resize(op.index() + 1, None);
        }
        self.by_op[op.index()] = Some(id);
        (op, id)
    }

    /// Returns a source of random numbers.
    pub(super) fn fork_rng(&mut self) -> Rng {
        self.pauses.fork_rng()
    }

    /// Starts a pause behind this number of tries of a transaction. It ends with an empty
    /// [`Answer::Committed`]. Returns `None` if it would end past the deadline.
    pub(super) fn start_pause(
        &mut self,
        now: Instant,
        tries: u32,
        deadline: Instant,
    ) -> Option<EntryId> {
        let end = self.pauses.after(now, tries, deadline)?;
        Some(self.pause_until(end))
    }

    /// Starts a pause until `end`, which ends as that of [`Self::start_pause`] does.
    pub(super) fn pause_until(&mut self, end: Instant) -> EntryId {
        let id = self.completions.begin(NO_OP, Delivery::Held);
        self.pauses.wait(end, id);
        id
    }

    /// Makes the entry of a transaction that has ended: without versions if it needed no message.
    pub(super) fn committed(&mut self, outcome: Result<Vec<Version>, Error>) -> EntryId {
        let id = self.completions.begin(NO_OP, Delivery::Held);
        self.end(id, outcome);
        id
    }

    fn end(&mut self, id: EntryId, outcome: Result<Vec<Version>, Error>) {
        let kept = |versions| Kept::Other(Box::new(Answer::Committed(versions)));
        self.completions.end(id, |_| outcome.map(kept));
    }

    /// Starts the read whose value [`Direct`] receives.
    #[inline]
    pub(super) fn start_direct(&mut self, begin: impl FnOnce(&mut Client) -> Op) -> Op {
        self.collect();
        let op = begin(&mut self.client);
        self.direct.op = Some(op);
        op
    }

    /// Returns the outcome of an operation that has ended. It is [`Error::NotInProgress`] if the
    /// program took it before or cancelled the operation.
    #[inline]
    pub(super) fn take(&mut self, id: EntryId) -> Option<Outcome> {
        let Some((outcome, bytes)) = self.completions.lend(id) else {
            return (!self.completions.is_known(id)).then_some(Err(Error::NotInProgress));
        };
        Some(outcome.map(|kept| kept.join(Payload::Owned(mem::take(bytes)))))
    }

    /// Returns the oldest outcome for [`super::Client::next_completed`], with its bytes.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(EntryId, Result<Kept, Error>, Vec<u8>)> {
        let (id, outcome, bytes) = self.completions.next()?;
        Some((id, outcome, mem::take(bytes)))
    }

    /// Gives an operation up. It gets no outcome.
    pub(super) fn cancel(&mut self, id: EntryId) {
        self.collect();
        if let Some(op) = self.completions.request(id) {
            self.client.cancel(*op);
        }
        self.completions.forget(id);
    }

    /// Takes the outcomes of operations that ended without a response.
    #[inline]
    fn collect(&mut self) {
        if let Some(done) = self.client.event() {
            self.collect_from(done);
        }
    }

    /// Takes `done` and the outcomes behind it.
    #[cold]
    fn collect_from(&mut self, mut done: Done<'static>) {
        loop {
            if self.direct.op == Some(done.op) {
                self.direct.ended(done.outcome);
            } else if let Some(id) = self.entry(done.op) {
                let kept = done.outcome.map(|answer| Kept::Other(Box::new(answer)));
                self.completions.end(id, |_| kept);
            }
            match self.client.event() {
                Some(next) => done = next,
                None => return,
            }
        }
    }

    #[inline(always)]
    fn ended(&mut self, done: Done<'_>) {
        if self.direct.op == Some(done.op) {
            self.direct.ended(done.outcome);
        } else if let Some(id) = self.entry(done.op) {
            self.completions.end(id, |bytes| done.outcome.map(|answer| Kept::new(answer, bytes)));
        }
    }

    /// Returns the entry of an operation, which is in progress: a slot of the client has one
    /// operation at a time.
    #[inline(always)]
    fn entry(&self, op: Op) -> Option<EntryId> {
        self.by_op.get(op.index()).copied().flatten()
    }
}

impl Direct {
    fn ended(&mut self, outcome: Result<Answer<'_>, Error>) {
        self.op = None;
        self.outcome = Some(match outcome {
            Ok(Answer::Object { version, value }) => {
                self.skip = value.move_into(&mut self.bytes);
                Ok(version)
            }
            Ok(other) => unexpected(&other),
            Err(error) => Err(error),
        });
    }
}

/// Panics: the client pairs every operation with one kind of answer, and this answer is of another
/// kind.
pub(super) fn unexpected(answer: &Answer<'_>) -> ! {
    unreachable!("the operation is not answered by {answer:?}")
}

impl Slices for Operations {
    fn bytes(&self, slice: Slice) -> &[u8] {
        self.client.bytes(slice)
    }
}

impl Machine for Operations {
    fn request(
        &mut self,
        _: Instant,
        _: Caller,
        _: Payload<'_>,
        _: Instant,
        _: &mut Message,
    ) -> Replied {
        Replied::Later
    }

    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        if let Some(done) = self.client.response(now, tag, result) {
            self.ended(done);
        }
    }

    fn unreachable(&mut self, link: Link, why: &str) {
        self.client.unreachable(link, why);
    }

    #[inline]
    fn has_output(&self) -> bool {
        self.client.has_output()
    }

    fn output(&mut self, now: Instant) -> Option<Output> {
        let output = self.client.output(now);
        self.collect();
        output
    }

    fn released(&mut self, slice: Slice) {
        self.client.released(slice);
    }

    fn spare(&mut self, buffer: Vec<u8>) {
        self.client.spare(buffer);
    }

    fn deadline(&self) -> Option<Instant> {
        match (self.client.deadline(), self.pauses.deadline()) {
            (Some(client), Some(pause)) => Some(client.min(pause)),
            (client, pause) => client.or(pause),
        }
    }

    fn tick(&mut self, now: Instant) -> bool {
        while let Some(id) = self.pauses.ended(now) {
            self.end(id, Ok(Vec::new()));
        }
        self.client.tick(now);
        false
    }
}
