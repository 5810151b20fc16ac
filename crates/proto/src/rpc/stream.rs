//! RPC over a reliable byte stream: one [`Stream`] for each connection, client and server side
//! alike.
//!
//! ```text
//! frame := header (32 bytes) | extension words | message      header: the datagram transport's, see `head`
//!                                                              both directions: frame*
//! ```
//! Every message is one frame, whole. There are no credits, acknowledgements, tokens or checksums:
//! the stream below does not lose, repeat or damage bytes, and pushes back by itself. Requests are
//! pipelined and answered in any order.
//!
//! Bytes come in by [`Stream::input`], where small messages are lent from the caller's buffer, or
//! straight into the destination of a long message, [`Stream::body`]. They go out as parts for a
//! gathering write: [`Stream::output`] lends them, [`Stream::written`] says how far the write got.
//!
//! Always holds: what a peer claims allocates nothing; buffers grow with the bytes that came. At
//! most once ends with the connection: a request whose last byte was written may have been
//! executed, any other was not.
//!
//! Not here: connecting, sockets, and who polls which connection.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;

use arrayvec::ArrayVec;

use super::budget::FREE;
use super::limits::MAX_MESSAGE;
use super::types::{
    CloseReason, Event, Message, Payload, RequestError, RpcError, RpcId, ServerRpc, SessionId,
    Slice,
};
use crate::Instant;

mod frame;
mod head;
mod ordered;
mod outgoing;
#[cfg(test)]
mod tests;

use frame::Frame;
pub use frame::Front;
pub use head::Bad;
use head::{FIXED, Head, Kind, LONGEST, REASON_VERSION, SEQ_MASK};
use ordered::Ordered;

/// The first piece of memory for a message that does not come in one read, in bytes.
const FIRST_PIECE: usize = 4 << 10;
/// How many times larger than the bytes that came a message's memory may be.
const GROWTH: usize = 4;
/// Unsent bytes of replies from which on no more requests are read.
const UNSENT_LIMIT: usize = 2 * MAX_MESSAGE;
/// Unanswered requests of a peer from which on no more are read.
const PENDING_LIMIT: usize = 4096;

/// Numbers for requests, unique among all streams that share one.
#[derive(Debug, Default)]
pub struct Ids(u64);

impl Ids {
    fn take(&mut self, stream: u16) -> u64 {
        self.0 += 1;
        self.0 << 16 | u64::from(stream)
    }

    /// The name of the stream that such a number belongs to.
    #[must_use]
    pub fn stream(id: u64) -> u16 {
        id as u16
    }
}

/// What a stream is to this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// We opened it, and send the requests.
    Client(SessionId),
    /// We accepted it, and answer.
    Server,
}

/// One connection.
#[derive(Debug)]
pub struct Stream {
    name: u16,
    role: Role,
    queue_limit: usize,
    /// A header of which a part has come.
    partial: Vec<u8>,
    /// A message of which a part has come.
    incoming: Option<(Head, Vec<u8>)>,
    /// There is no room for that message yet.
    waits: bool,
    /// Too much waits to be written, on all connections together.
    paused: bool,
    /// Bytes to come that nobody wants: a late reply's.
    skip: usize,
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that have been written.
    front_written: usize,
    /// Bytes of the messages in `frames`.
    unsent: usize,
    requests: Ordered<Request>,
    next_seq: u64,
    pending: Ordered<u32>,
    failed: VecDeque<Event<'static>>,
    released: VecDeque<Slice>,
    /// Not later than the first deadline of a request.
    first_deadline: Instant,
    ended: Option<CloseReason>,
    bad: Option<Bad>,
    unsolicited: u64,
}

/// What [`Stream::input`] found in the bytes given to it.
#[derive(Debug)]
pub struct Arrived {
    /// Without its payload if that is lent.
    event: Event<'static>,
    /// Where the payload lies in the bytes.
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

/// The header of a message that comes by itself.
#[derive(Debug)]
pub struct Announced(Head);

impl Announced {
    /// The message's length.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// True if the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A request of ours that waits for its reply.
#[derive(Debug)]
struct Request {
    id: RpcId,
    tag: u64,
    deadline: Instant,
    /// The last byte of it has been written.
    sent: bool,
}

impl Stream {
    /// A new connection. `name` tells it from the others that exist now; `queue_limit` bounds the
    /// requests that wait for a reply.
    #[must_use]
    pub fn new(name: u16, role: Role, queue_limit: usize) -> Self {
        Self {
            name,
            role,
            queue_limit,
            partial: Vec::new(),
            incoming: None,
            waits: false,
            paused: false,
            skip: 0,
            frames: VecDeque::new(),
            front_written: 0,
            unsent: 0,
            requests: Ordered::default(),
            next_seq: 1,
            pending: Ordered::default(),
            failed: VecDeque::new(),
            released: VecDeque::new(),
            first_deadline: Instant::NEVER,
            ended: None,
            bad: None,
            unsolicited: 0,
        }
    }

    // Input.

    /// Takes bytes that arrived, `bytes[*at..]`, up to the first thing that they make happen. Call
    /// until `None`; then all have been taken.
    pub fn input(
        &mut self,
        now: Instant,
        bytes: &[u8],
        at: &mut usize,
        ids: &mut Ids,
    ) -> Option<Arrived> {
        while *at < bytes.len() && self.ended.is_none() {
            let rest = &bytes[*at..];
            if self.skip > 0 {
                let n = self.skip.min(rest.len());
                self.skip -= n;
                *at += n;
                continue;
            }
            if let Some((head, got)) = &mut self.incoming {
                let n = (head.len as usize - got.len()).min(rest.len());
                if got.capacity() - got.len() < n {
                    grow(head, got, n);
                }
                got.extend_from_slice(&rest[..n]);
                *at += n;
                match self.filled(now, ids) {
                    None => continue,
                    Some(event) => return Some(Arrived { event, lent: None }),
                }
            }
            let Some(head) = self.head(bytes, at) else { continue };
            let end = *at + head.len as usize;
            if !self.wanted(&head) {
                self.skip = head.len as usize;
            } else if end <= bytes.len() {
                let lent = Some(*at..end);
                *at = end;
                match self.deliver(now, head, Payload::Borrowed(&[]), ids) {
                    None => continue,
                    Some(event) => return Some(Arrived { event, lent }),
                }
            } else {
                self.incoming = Some((head, Vec::new()));
            }
        }
        *at = bytes.len();
        None
    }

    /// Where the bytes that arrive next belong, if they continue a message: append at most so many
    /// to the vector, which has room for them (and they are at least one), then call
    /// [`Stream::filled`].
    pub fn body(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        let (head, got) = self.incoming.as_mut()?;
        if got.len() == got.capacity() {
            grow(head, got, 1);
        }
        let room = got.capacity().min(head.len as usize) - got.len();
        Some((got, room))
    }

    /// Bytes were appended to [`Stream::body`]; the message may be whole now.
    ///
    /// # Panics
    /// If they were more than there was room for.
    pub fn filled(&mut self, now: Instant, ids: &mut Ids) -> Option<Event<'static>> {
        let (head, got) = self.incoming.take_if(|(head, got)| got.len() >= head.len as usize)?;
        assert_eq!(
            got.len(),
            head.len as usize,
            "bytes of the next frame ended up in this message"
        );
        self.deliver(now, head, Payload::Owned(got), ids)
    }

    /// A frame's header whose message comes by itself ([`super::notes`]). `None` if the peer must
    /// not send it: the connection has ended then.
    pub fn announced(&mut self, header: &[u8]) -> Option<Announced> {
        let parsed = match header.len() >= FIXED && header.len() == head::len(header) {
            true => Head::parse(header),
            false => Err(Bad::Field),
        };
        self.admit(parsed).map(Announced)
    }

    /// False if nobody waits for that message any more.
    pub fn wants(&mut self, announced: &Announced) -> bool {
        self.wanted(&announced.0)
    }

    /// A message that was announced has come.
    ///
    /// # Panics
    /// If it is not as long as it was announced to be.
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

    /// True unless a frame is there in part.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.partial.is_empty() && self.incoming.is_none() && self.skip == 0
    }

    /// The connection is over because the peer does not keep to the rules of what carries the
    /// frames.
    pub fn blame(&mut self) {
        if self.ended.is_none() {
            self.bad = Some(Bad::Field);
            self.end(CloseReason::Reset);
        }
    }

    /// What happened without input: failures, and last the end. Call until `None`.
    pub fn event(&mut self) -> Option<Event<'static>> {
        self.failed.pop_front()
    }

    /// True if [`Stream::event`] has something.
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.failed.is_empty()
    }

    /// False while the peer has sent more than we have answered, or more than there is room for:
    /// leave its bytes where they are.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !self.waits
            && !self.paused
            && self.unsent < UNSENT_LIMIT
            && self.pending.len() < PENDING_LIMIT
    }

    /// Bytes of messages that wait to be written.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Whether no more is read because too much waits to be written on all connections together.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// The length of the request that has come in part, if it needs room ([`super::budget`]); 0 if
    /// there is none.
    #[must_use]
    pub fn assembling(&self) -> usize {
        let len = self.incoming.as_ref().map_or(0, |(head, _)| head.len as usize);
        if self.role == Role::Server && len > FREE { len } else { 0 }
    }

    /// Whether the request that has come in part waits for room.
    pub fn set_waiting(&mut self, waits: bool) {
        self.waits = waits;
    }

    // Time.

    /// Not later than the first deadline of a request.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.first_deadline
    }

    /// Requests whose time is over fail.
    pub fn tick(&mut self, now: Instant) {
        if now < self.first_deadline {
            return;
        }
        let late: Vec<u64> =
            self.requests.iter().filter(|(_, r)| r.deadline <= now).map(|(seq, _)| seq).collect();
        for seq in late {
            let maybe_executed = !self.unsend(seq);
            self.fail(seq, RpcError::Deadline { maybe_executed });
        }
        self.first_deadline =
            self.requests.iter().map(|(_, r)| r.deadline).min().unwrap_or(Instant::NEVER);
    }

    // Commands.

    /// Sends a request; see [`super::Endpoint::request`].
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
        // Numbers on the wire have 29 bits: two that wait at the same time must not look alike.
        let oldest = self.requests.oldest().unwrap_or(self.next_seq);
        if self.requests.len() >= self.queue_limit
            || self.next_seq - oldest > u64::from(SEQ_MASK) / 2
        {
            return Err(RequestError::QueueFull);
        }
        let id = RpcId(ids.take(self.name));
        let seq = self.next_seq;
        self.next_seq += 1;
        self.requests.push(seq, Request { id, tag, deadline, sent: false });
        self.first_deadline = self.first_deadline.min(deadline);
        let head = Head {
            kind: Kind::Request,
            seq: seq as u32 & SEQ_MASK,
            len: len as u32,
            extra: 0,
            ttl_us: None,
        };
        self.push(head, message, deadline, Some(seq));
        Ok(id)
    }

    /// Gives a request up. One of which nothing was written is not sent any more.
    pub fn cancel(&mut self, rpc: RpcId) {
        let found = self.requests.iter().find(|(_, r)| r.id == rpc).map(|(seq, _)| seq);
        if let Some(seq) = found {
            self.unsend(seq);
            self.fail(seq, RpcError::Cancelled);
        }
    }

    /// Answers a request; a stale one is ignored.
    ///
    /// # Panics
    /// If the message exceeds [`MAX_MESSAGE`].
    pub fn reply(&mut self, rpc: ServerRpc, message: Message) {
        let len = message.len();
        assert!(len <= MAX_MESSAGE, "a reply of {len} bytes");
        match self.pending.take(rpc.0) {
            Some(seq) => {
                let head = Head { kind: Kind::Reply, seq, len: len as u32, extra: 0, ttl_us: None };
                self.push(head, message, Instant::NEVER, None);
            }
            None => self.released.extend(message.slices),
        }
    }

    /// Refuses a request that was not executed; a stale one is ignored.
    pub fn refuse(&mut self, rpc: ServerRpc, retry_after_ns: u64) {
        if let Some(seq) = self.pending.take(rpc.0) {
            let extra = u32::try_from(retry_after_ns.div_ceil(1_000)).unwrap_or(u32::MAX);
            let head = Head { kind: Kind::Refusal, seq, len: 0, extra, ttl_us: None };
            self.push(head, Message::default(), Instant::NEVER, None);
        }
    }

    /// The connection is over: every request fails, then [`Event::Closed`] says so on the client's
    /// side.
    pub fn end(&mut self, reason: CloseReason) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(reason);
        for (_, request) in self.requests.drain() {
            let error = if request.sent { RpcError::MaybeExecuted } else { RpcError::NotExecuted };
            self.failed.push_back(Event::Failed { rpc: request.id, tag: request.tag, error });
        }
        if let Role::Client(session) = self.role {
            self.failed.push_back(Event::Closed { session, reason });
        }
        for frame in mem::take(&mut self.frames) {
            self.released.extend(frame.message.slices);
        }
        self.pending = Ordered::default();
        (self.front_written, self.unsent, self.skip) = (0, 0, 0);
        (self.partial, self.incoming, self.waits) = (Vec::new(), None, false);
        self.first_deadline = Instant::NEVER;
    }

    // What is known.

    /// Why the connection ended, if it has: drop the socket. The events that are left tell of it.
    #[must_use]
    pub fn ended(&self) -> Option<CloseReason> {
        self.ended
    }

    /// What to write, if it can be, before the connection is dropped.
    #[must_use]
    pub fn farewell(&self) -> Option<ArrayVec<u8, LONGEST>> {
        (self.bad == Some(Bad::Version) && self.role == Role::Server).then(Head::reset_version)
    }

    /// What the peer sent that was no frame, and so ended the connection.
    #[must_use]
    pub fn bad(&self) -> Option<Bad> {
        self.bad
    }

    /// Replies that came for no request: late ones, after a deadline or a `cancel`.
    #[must_use]
    pub fn unsolicited(&self) -> u64 {
        self.unsolicited
    }

    /// What this stream is to us.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    // Private.

    /// The next header, once all of it is there; the bytes of one that is not are kept.
    fn head(&mut self, bytes: &[u8], at: &mut usize) -> Option<Head> {
        let rest = &bytes[*at..];
        let parsed =
            if self.partial.is_empty() && rest.len() >= FIXED && rest.len() >= head::len(rest) {
                let len = head::len(rest);
                *at += len;
                Head::parse(&rest[..len])
            } else {
                let whole =
                    if self.partial.len() < FIXED { FIXED } else { head::len(&self.partial) };
                let n = (whole - self.partial.len()).min(rest.len());
                self.partial.extend_from_slice(&rest[..n]);
                *at += n;
                let done =
                    self.partial.len() >= FIXED && self.partial.len() >= head::len(&self.partial);
                match head::check(&self.partial) {
                    Ok(()) if !done => return None,
                    Ok(()) => Head::parse(&mem::take(&mut self.partial)),
                    Err(bad) => Err(bad),
                }
            };
        self.admit(parsed)
    }

    /// Ends the connection if the peer must not send this.
    fn admit(&mut self, parsed: Result<Head, Bad>) -> Option<Head> {
        let bad = match parsed {
            Ok(head) if self.expects(head.kind) && head.kind != Kind::Reset => return Some(head),
            Ok(head) if self.expects(head.kind) && head.extra == REASON_VERSION => Bad::Version,
            Ok(_) => Bad::Field,
            Err(bad) => bad,
        };
        self.bad = Some(bad);
        self.end(if bad == Bad::Version { CloseReason::Version } else { CloseReason::Reset });
        None
    }

    /// Only clients ask and only servers answer.
    fn expects(&self, kind: Kind) -> bool {
        (kind == Kind::Request) == (self.role == Role::Server)
    }

    /// False for a reply to a request that has failed meanwhile.
    fn wanted(&mut self, head: &Head) -> bool {
        let wanted =
            head.kind == Kind::Request || self.requests.get_mut(self.whole_seq(head.seq)).is_some();
        self.unsolicited += u64::from(!wanted);
        wanted
    }

    /// The youngest of our numbers that is `seq` on the wire.
    fn whole_seq(&self, seq: u32) -> u64 {
        let youngest = self.next_seq - 1;
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
        // It may have failed while its reply was on the way.
        let Some(Request { id: rpc, tag, .. }) = self.requests.take(self.whole_seq(head.seq))
        else {
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
        if let Some(request) = self.requests.take(seq) {
            self.failed.push_back(Event::Failed { rpc: request.id, tag: request.tag, error });
        }
    }
}

/// Makes room for `more` bytes of a message (at least one): as many again as have come, some times
/// over, but not more than it needs.
fn grow(head: &Head, got: &mut Vec<u8>, more: usize) {
    let have = got.len() + more;
    let target = FIRST_PIECE.max(GROWTH * have).min(head.len as usize);
    got.reserve_exact(target - got.len());
}
