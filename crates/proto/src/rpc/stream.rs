//! RPC over a reliable byte stream: one [`Stream`] for each connection, at its client and at its
//! server.
//!
//! ```text
//! each direction := frame*
//! frame          := header (32 bytes) | extension words | message
//! ```
//! The header is that of the datagram transport (`head`). Every message is one frame. There are no
//! credits, acknowledgements, tokens or checksums: the stream below loses, repeats and damages no
//! bytes and has flow control of its own. Requests are pipelined and answered in any order.
//!
//! Bytes arrive by [`Stream::input`], which lends small messages from the caller's buffer, or
//! straight in the memory of a long message, [`Stream::body`]. They leave as parts of a gathering
//! write: [`Stream::output`] lends the parts, [`Stream::written`] takes the number of bytes
//! written.
//!
//! Always holds: a length that a peer claims allocates nothing; buffers grow with the bytes that
//! arrived. At most once ends with the connection: a request whose last byte was written may have
//! been executed, any other was not.
//!
//! Not here: connecting, sockets, and the loop over the connections.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use arrayvec::ArrayVec;

use super::budget::EXEMPT_BYTES;
use super::limits::MAX_MESSAGE;
use super::types::{
    CloseReason, Event, Message, Payload, RequestError, RpcError, RpcId, ServerRpc, SessionId,
    Slice,
};
use crate::Instant;

mod assembly;
mod frame;
mod head;
mod ordered;
mod outgoing;
mod requests;
#[cfg(test)]
mod tests;

use assembly::{Assembly, Piece};
use frame::Frame;
pub use frame::Front;
pub use head::BadFrame;
use head::{FIXED, Head, Kind, LONGEST, REASON_VERSION, SEQ_MASK};
use ordered::Ordered;
use requests::{Request, Requests};

/// The number of unsent bytes of replies from which on the stream wants no more input.
const UNSENT_LIMIT: usize = 2 * MAX_MESSAGE;
/// The number of unanswered requests of the peer from which on the stream wants no more input.
const PENDING_LIMIT: usize = 4096;

/// A source of numbers for requests, unique among all streams that share the source.
#[derive(Debug, Default)]
pub struct Ids(u64);

impl Ids {
    fn take(&mut self, stream: u16) -> u64 {
        self.0 += 1;
        self.0 << 16 | u64::from(stream)
    }

    /// The name of the stream that the request with number `id` belongs to.
    #[must_use]
    pub fn stream(id: u64) -> u16 {
        id as u16
    }
}

/// The part that this side plays on a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// This side opened the connection and sends requests.
    Client(SessionId),
    /// This side accepted the connection and answers requests.
    Server,
}

/// One connection that carries RPC over a byte stream: its frames and requests.
#[derive(Debug)]
pub struct Stream {
    name: u16,
    role: Role,
    queue_limit: usize,
    /// The frame of which a part has arrived on the stream.
    assembly: Assembly,
    /// True if the message of which a part has arrived waits for room.
    waits: bool,
    /// True if the input is stopped because all connections together have too many bytes to write.
    paused: bool,
    /// The frames that wait to be written to the stream, by number.
    frames: Ordered<u64, Frame>,
    /// The number of the stream's next frame. A client writes only requests, and a request's
    /// sequence number is that of its frame.
    next_number: u64,
    /// The number of bytes of the stream's first frame that have been written.
    front_written: usize,
    /// The number of bytes of the messages in `frames`, which wait to be written.
    unsent: usize,
    requests: Requests,
    /// The sequence numbers of the requests that this side has not answered, by [`ServerRpc`].
    pending: Ordered<u64, u32>,
    failed: VecDeque<Event<'static>>,
    released: VecDeque<Slice>,
    ended: Option<CloseReason>,
    bad: Option<BadFrame>,
    unsolicited: u64,
}

/// An event that [`Stream::input`] found in the bytes given to it.
#[derive(Debug)]
pub struct Arrived {
    /// The event of the stream, with an empty payload if `lent` has the place of the real one.
    event: Event<'static>,
    /// The place of the event's payload in the bytes that [`Stream::input`] got.
    lent: Option<Range<usize>>,
}

impl Arrived {
    /// The event, with its payload lent from the bytes that [`Stream::input`] got.
    #[must_use]
    pub fn event(self, bytes: &[u8]) -> Event<'_> {
        let Some(payload) = self.lent.and_then(|range| bytes.get(range)).map(Payload::Borrowed)
        else {
            return self.event;
        };
        match self.event {
            Event::Request { rpc, deadline, .. } => Event::Request { rpc, payload, deadline },
            Event::Response { rpc, tag, .. } => Event::Response { rpc, tag, payload },
            other => other,
        }
    }
}

/// The header of a message that a rendezvous transfers apart from its frame.
#[derive(Debug)]
pub struct Announced(Head);

impl Announced {
    /// The length of the announced message in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// True if the announced message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Stream {
    /// Makes the stream of a new connection. `name` differs from the names of the other streams
    /// that exist now; at most `queue_limit` requests wait for a reply.
    #[must_use]
    pub fn new(name: u16, role: Role, queue_limit: usize) -> Self {
        Self {
            name,
            role,
            queue_limit,
            assembly: Assembly::default(),
            waits: false,
            paused: false,
            frames: Ordered::default(),
            next_number: 1,
            front_written: 0,
            unsent: 0,
            requests: Requests::default(),
            pending: Ordered::default(),
            failed: VecDeque::new(),
            released: VecDeque::new(),
            ended: None,
            bad: None,
            unsolicited: 0,
        }
    }

    // Input.

    /// Takes bytes that arrived on the stream, `bytes[*at..]`, up to the first event in them. Call
    /// until `None`; then all of them have been taken.
    pub fn input(
        &mut self,
        now: Instant,
        bytes: &[u8],
        at: &mut usize,
        ids: &mut Ids,
    ) -> Option<Arrived> {
        while *at < bytes.len() && self.ended.is_none() {
            let event = match self.assembly.next(bytes, at) {
                None => continue,
                Some(Piece::Message(head, got)) => self
                    .deliver(now, head, Payload::Owned(got), ids)
                    .map(|event| Arrived { event, lent: None }),
                Some(Piece::Header(parsed)) => {
                    let Some(head) = self.admit(parsed) else { continue };
                    if !self.wanted(&head) {
                        self.assembly.skip(&head);
                        continue;
                    }
                    let Some(range) = self.assembly.begin(head, bytes, at) else { continue };
                    self.deliver(now, head, Payload::Borrowed(&[]), ids)
                        .map(|event| Arrived { event, lent: Some(range) })
                }
            };
            if event.is_some() {
                return event;
            }
        }
        *at = bytes.len();
        None
    }

    /// The vector to which the bytes that arrive next on the stream belong, if they continue a
    /// message, and how many of them: at least one, and the vector has room for them. Append at
    /// most that many, then call [`Stream::filled`].
    pub fn body(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        self.assembly.body()
    }

    /// Delivers the message of [`Stream::body`] if the bytes that were appended complete it.
    ///
    /// # Panics
    /// If more bytes were appended than there was room for.
    pub fn filled(&mut self, now: Instant, ids: &mut Ids) -> Option<Event<'static>> {
        let (head, got) = self.assembly.filled()?;
        assert_eq!(got.len(), head.len as usize, "bytes of the next frame are in this message");
        self.deliver(now, head, Payload::Owned(got), ids)
    }

    /// Parses the header of a frame whose message a rendezvous transfers ([`super::over_qp`]).
    /// `None` if the peer must not send this frame; then the connection has ended.
    pub fn announced(&mut self, header: &[u8]) -> Option<Announced> {
        let parsed = match header.len() >= FIXED && header.len() == head::len(header) {
            true => Head::parse(header),
            false => Err(BadFrame::Field),
        };
        self.admit(parsed).map(Announced)
    }

    /// True if a request still waits for the announced message.
    pub fn wants(&mut self, announced: &Announced) -> bool {
        self.wanted(&announced.0)
    }

    /// Delivers a message whose header was announced.
    ///
    /// # Panics
    /// If the message has another length than announced.
    pub fn whole(
        &mut self,
        now: Instant,
        announced: Announced,
        message: Vec<u8>,
        ids: &mut Ids,
    ) -> Option<Event<'static>> {
        assert_eq!(message.len(), announced.len(), "the message that was announced");
        self.deliver(now, announced.0, Payload::Owned(message), ids)
    }

    /// True if no part of a frame has arrived on the stream.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.assembly.is_between()
    }

    /// Ends the connection because the peer broke a rule of the carrier.
    pub fn carrier_error(&mut self) {
        if self.ended.is_none() {
            self.bad = Some(BadFrame::Field);
            self.end(CloseReason::Reset);
        }
    }

    /// The stream's next event without input: first each failed request, at last the connection's
    /// end. Call until `None`.
    pub fn event(&mut self) -> Option<Event<'static>> {
        self.failed.pop_front()
    }

    /// True if [`Stream::event`] has an event.
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.failed.is_empty()
    }

    /// False while the peer has sent more requests than this side has answered, or more bytes than
    /// there is room for. The stream's caller then leaves further bytes unread.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !self.waits
            && !self.paused
            && self.unsent < UNSENT_LIMIT
            && self.pending.len() < PENDING_LIMIT
    }

    /// The number of bytes of messages that wait to be written to the stream.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Stops or resumes the stream's input. Input stops while all connections together have too
    /// many bytes to write.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// The length of the request of which a part has arrived, if it needs room
    /// ([`super::budget`]); 0 if there is none.
    #[must_use]
    pub fn assembling(&self) -> usize {
        let len = self.assembly.len();
        if self.role == Role::Server && len > EXEMPT_BYTES { len } else { 0 }
    }

    /// Records whether the request of which a part has arrived waits for room.
    pub fn set_waiting(&mut self, waits: bool) {
        self.waits = waits;
    }

    // Time.

    /// A time not later than the first deadline of a request. It is exact after [`Stream::tick`].
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.requests.deadline()
    }

    /// Fails the stream's requests whose deadline has passed.
    pub fn tick(&mut self, now: Instant) {
        while let Some(seq) = self.requests.next_late(now) {
            let maybe_executed = !self.unsend(seq);
            self.fail(seq, RpcError::Deadline { maybe_executed });
        }
    }

    // Commands.

    /// Sends a request on the stream; see [`super::Endpoint::request`].
    ///
    /// # Errors
    /// [`RequestError`], and nothing was sent.
    pub fn request(
        &mut self,
        tag: u64,
        message: Message,
        deadline: Instant,
        ids: &mut Ids,
    ) -> Result<RpcId, RequestError> {
        let len = message.len();
        if len > MAX_MESSAGE {
            return Err(RequestError::TooLong(len));
        }
        if self.ended.is_some() || self.role == Role::Server {
            return Err(RequestError::Closed);
        }
        let seq = self.next_number;
        if self.requests.len() >= self.queue_limit || self.requests.is_ambiguous(seq) {
            return Err(RequestError::QueueFull);
        }
        let id = RpcId(ids.take(self.name));
        self.requests.push(seq, id, tag, deadline);
        let head = Head {
            kind: Kind::Request,
            seq: seq as u32 & SEQ_MASK,
            len: len as u32,
            extra: 0,
            ttl_us: None,
        };
        self.push(head, message, deadline);
        Ok(id)
    }

    /// Cancels a request of the stream. If nothing of it was written, it is not sent any more.
    pub fn cancel(&mut self, rpc: RpcId) {
        if let Some(seq) = self.requests.seq(rpc) {
            self.unsend(seq);
            self.fail(seq, RpcError::Cancelled);
        }
    }

    /// Replies to a request that arrived on the stream. Does nothing if the request is stale.
    ///
    /// # Panics
    /// If the message exceeds [`MAX_MESSAGE`].
    pub fn reply(&mut self, rpc: ServerRpc, message: Message) {
        let len = message.len();
        assert!(len <= MAX_MESSAGE, "a reply of {len} bytes");
        match self.pending.take(|key| key.cmp(&rpc.0)) {
            Some((_, seq)) => {
                let head = Head { kind: Kind::Reply, seq, len: len as u32, extra: 0, ttl_us: None };
                self.push(head, message, Instant::NEVER);
            }
            None => self.released.extend(message.slices),
        }
    }

    /// Refuses a request that arrived and was not executed. Does nothing if the request is stale.
    pub fn refuse(&mut self, rpc: ServerRpc, retry_after_ns: u64) {
        if let Some((_, seq)) = self.pending.take(|key| key.cmp(&rpc.0)) {
            let extra = u32::try_from(retry_after_ns.div_ceil(1_000)).unwrap_or(u32::MAX);
            let head = Head { kind: Kind::Refusal, seq, len: 0, extra, ttl_us: None };
            self.push(head, Message::default(), Instant::NEVER);
        }
    }

    /// Ends the connection: every request fails, and [`Event::Closed`] follows at the client.
    pub fn end(&mut self, reason: CloseReason) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(reason);
        for (rpc, Request { tag, sent }) in self.requests.drain() {
            let error = if sent { RpcError::MaybeExecuted } else { RpcError::NotExecuted };
            self.failed.push_back(Event::Failed { rpc, tag, error });
        }
        if let Role::Client(session) = self.role {
            self.failed.push_back(Event::Closed { session, reason });
        }
        for (_, frame) in self.frames.drain() {
            self.released.extend(frame.message.slices);
        }
        self.pending = Ordered::default();
        (self.front_written, self.unsent, self.waits) = (0, 0, false);
        self.assembly = Assembly::default();
    }

    // State.

    /// The reason why the stream's connection ended, if it has. The socket can be closed then; the
    /// caller still takes the events that are left.
    #[must_use]
    pub fn ended(&self) -> Option<CloseReason> {
        self.ended
    }

    /// The RESET frame for a peer of another version, to be written if possible before the
    /// connection is closed.
    #[must_use]
    pub fn reset_frame(&self) -> Option<ArrayVec<u8, LONGEST>> {
        (self.bad == Some(BadFrame::Version) && self.role == Role::Server).then(Head::reset_version)
    }

    /// The peer's error that ended the stream's connection, if one did.
    #[must_use]
    pub fn bad(&self) -> Option<BadFrame> {
        self.bad
    }

    /// The number of replies on the stream that arrived after their request had failed.
    #[must_use]
    pub fn unsolicited(&self) -> u64 {
        self.unsolicited
    }

    /// The part that this side plays on the stream: client or server.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    // Private.

    /// Ends the stream's connection if the peer's header is malformed or of a kind that the peer
    /// must not send.
    fn admit(&mut self, parsed: Result<Head, BadFrame>) -> Option<Head> {
        let bad = match parsed {
            Ok(head) if self.expects(head.kind) && head.kind != Kind::Reset => return Some(head),
            Ok(head) if self.expects(head.kind) && head.extra == REASON_VERSION => {
                BadFrame::Version
            }
            Ok(_) => BadFrame::Field,
            Err(bad) => bad,
        };
        self.bad = Some(bad);
        self.end(if bad == BadFrame::Version { CloseReason::Version } else { CloseReason::Reset });
        None
    }

    /// True if the peer may send frames of this kind: requests if it is the client, else replies.
    fn expects(&self, kind: Kind) -> bool {
        (kind == Kind::Request) == (self.role == Role::Server)
    }

    /// True for a request, and for a reply whose request still waits for it.
    fn wanted(&mut self, head: &Head) -> bool {
        let wanted = head.kind == Kind::Request || self.requests.contains(self.whole_seq(head.seq));
        self.unsolicited += u64::from(!wanted);
        wanted
    }

    /// The whole sequence number of a peer's frame: the largest in use whose low 29 bits are `seq`.
    fn whole_seq(&self, seq: u32) -> u64 {
        let youngest = self.next_number - 1;
        youngest.saturating_sub(u64::from((youngest as u32).wrapping_sub(seq) & SEQ_MASK))
    }

    fn deliver<'b>(
        &mut self,
        now: Instant,
        head: Head,
        payload: Payload<'b>,
        ids: &mut Ids,
    ) -> Option<Event<'b>> {
        if head.kind == Kind::Request {
            let rpc = ServerRpc(ids.take(self.name));
            self.pending.push(rpc.0, head.seq);
            let deadline =
                head.ttl_us.map_or(Instant::NEVER, |us| now.after(u64::from(us) * 1_000));
            return Some(Event::Request { rpc, payload, deadline });
        }
        // The request may have failed while its reply was on the way.

        let Some((rpc, Request { tag, .. })) = self.requests.take(self.whole_seq(head.seq)) else {
            self.unsolicited += 1;
            return None;
        };
        Some(match head.kind {
            Kind::Refusal => {
                let error = RpcError::Busy { retry_after_ns: u64::from(head.extra) * 1_000 };
                Event::Failed { rpc, tag, error }
            }
            _ => Event::Response { rpc, tag, payload },
        })
    }

    fn fail(&mut self, seq: u64, error: RpcError) {
        if let Some((rpc, Request { tag, .. })) = self.requests.take(seq) {
            self.failed.push_back(Event::Failed { rpc, tag, error });
        }
    }
}
