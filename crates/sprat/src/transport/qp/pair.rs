//! One connection: a queue pair, the receives and the send buffers it owns, and the frames that it
//! carries.
//!
//! ```text
//!  region: 16 receives | 16 send buffers, of 16 KiB each
//!
//!  small:  frames ─copy─► send buffer ─Send─► receive ─copy─► frames
//!  long:   message ◄──Reads, up to 4 of 256 KiB── message
//! ```
//! A long message is registered where it lies, and read into the memory that becomes the message.
//!
//! A send buffer is free again when the peer has granted the receive that its Send took: so many
//! Sends later, by the rule of credits, and no completion has to be waited for.
//!
//! Always holds: the peer reaches only the messages that were announced to it, through a protection
//! domain of its own; a message's memory here grows with the bytes that were read.
//!
//! Not here: which connections there are, and who is asked for events (`mod.rs`); what a Send says
//! (`proto::rpc::notes`).

use std::collections::VecDeque;
use std::sync::Arc;

use sprat_proto::Instant;
use sprat_proto::rdma::{
    Access, Cq, Memory as _, Pd, PostError, Qp, QpOptions, RecvRequest, Remote, Rnic, SendOp,
    SendRequest, Sge, Span, Stag,
};
use sprat_proto::rpc::budget::{Budget, FREE};
use sprat_proto::rpc::notes::{ANNOUNCEMENT, Bad, HEADER, Hello, Kind, Place, Said, Talk};
use sprat_proto::rpc::stream::{Announced, Ids, Role, Stream};
use sprat_proto::rpc::{Event, MAX_MESSAGE, Message, Slice, Slices};

use sprat_rdma::engine::Regions;
use sprat_sys::memory::Region;

/// Receives, and send buffers.
pub(super) const SLOTS: u16 = 16;
/// Bytes of each.
pub(super) const SLOT: usize = 16 << 10;
/// Bytes of one Read.
const CHUNK: usize = 256 << 10;
/// Reads at once.
pub(super) const READS: u16 = 4;
/// Bytes that are announced and not read yet, beyond which no more are.
const MOST_UNREAD: usize = 2 * MAX_MESSAGE;
/// Requests in the send queue. While a Read is under way, those behind it stay.
const DEPTH: u32 = 512;
/// From so many on nothing more is posted until all Reads are done.
const BEHIND: u32 = DEPTH - 2 * SLOTS as u32 - READS as u32;
/// How many times larger than the bytes that came a message's memory may be.
const GROWTH: usize = 4;
/// What a completion's name has in front of the number of a receive, for a Read.
pub(super) const READ: u64 = 1 << 16;

/// Registered memory, as one connection reaches it.
pub(super) struct World<'w> {
    pub(super) rnic: &'w mut Rnic,
    pub(super) regions: &'w mut Regions,
    /// Slices that are no longer needed.
    pub(super) released: &'w mut VecDeque<Slice>,
}

/// A registration: the number of the memory, and its tag.
#[derive(Clone, Copy, Debug)]
struct Registered {
    number: u64,
    stag: Stag,
}

/// A message of ours that the peer has not read yet.
#[derive(Debug)]
struct Shown {
    at: Registered,
    len: usize,
}

/// A message of the peer's that we read.
#[derive(Debug)]
struct Pull {
    announced: Announced,
    wanted: bool,
    /// There is room for it, in the budget of those who were accepted.
    has_room: bool,
    place: Place,
    /// Bytes asked for, and those that came.
    asked: usize,
    got: usize,
    /// What is read into, and its bytes: all, or fewer until those have come.
    into: Option<(Registered, usize)>,
}

impl Pull {
    /// Bytes that nobody has asked for yet.
    fn left(&self) -> usize {
        if self.wanted { self.announced.len() - self.asked } else { 0 }
    }

    fn is_done(&self) -> bool {
        !self.wanted || self.got == self.announced.len()
    }

    /// Gives the memory back, with what has come.
    fn close(&mut self, world: &mut World<'_>) -> Vec<u8> {
        let Some((at, _)) = self.into.take() else { return Vec::new() };
        // It was registered when it was opened.
        let _ = world.rnic.deregister(at.stag);
        world.regions.heard(at.number).unwrap_or_default()
    }

    /// Bytes that may be asked for now: memory grows with those that have come, and at first there
    /// is some for as many Reads as are `free`.
    fn room(&mut self, pd: Pd, free: u16, world: &mut World<'_>) -> Result<usize, PostError> {
        let room = self.into.map_or(0, |(_, room)| room);
        if self.asked < room || self.got < self.asked {
            return Ok(room - self.asked);
        }
        let mut message = self.close(world);
        let target = (usize::from(free) * CHUNK).max(GROWTH * self.got).min(self.announced.len());
        message.reserve_exact(target - message.len());
        let number = world.regions.hear(message).ok_or(PostError::NoRoom)?;
        match world.rnic.register(pd, number, 0, target as u64, Access::LOCAL) {
            Ok(stag) => {
                self.into = Some((Registered { number, stag }, target));
                Ok(target - self.asked)
            }
            Err(e) => {
                world.regions.remove(number);
                Err(e)
            }
        }
    }
}

/// See the file.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) qp: Qp,
    pd: Pd,
    /// What its completions' names begin with.
    name: u64,
    slots: Registered,
    talk: Talk,
    /// Bytes of a Send, and the send buffer of the next.
    room: usize,
    next: u16,
    /// Connected, with so many Reads at once.
    reads: Option<u16>,
    shown: VecDeque<Shown>,
    unread: usize,
    pulls: VecDeque<Pull>,
    /// The first of them without room waits for it.
    waits: bool,
    /// Bytes of the Reads under way.
    asked: VecDeque<u32>,
    /// Requests posted since there was no Read under way.
    behind: u32,
}

/// What a Send has brought besides credits.
pub(super) enum Brought {
    /// Nothing to look at.
    Nothing,
    /// Frames, in the buffer from here on.
    Frames(usize),
}

impl Pair {
    /// A queue pair with all receives posted, for the connection in `slot`.
    pub(super) fn open(slot: u16, cq: Cq, world: &mut World<'_>) -> Result<Self, PostError> {
        let World { rnic, regions, .. } = world;
        let len = 2 * usize::from(SLOTS) * SLOT;
        let region = Region::sparse(len).map_err(|_| PostError::NoRoom)?;
        let number = regions.insert(Arc::new(region)).ok_or(PostError::NoRoom)?;
        let made = rnic.alloc_pd().and_then(|pd| {
            let stag = rnic.register(pd, number, 0, len as u64, Access::LOCAL)?;
            let qp = rnic.create_qp(QpOptions {
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                send_depth: DEPTH,
                recv_depth: u32::from(SLOTS),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
                signal_all: false,
            })?;
            Ok((pd, stag, qp))
        });
        let (pd, stag, qp) = made.inspect_err(|_| {
            regions.remove(number);
        })?;
        let pair = Self {
            qp,
            pd,
            name: u64::from(slot) << 32,
            slots: Registered { number, stag },
            talk: Talk::new(SLOTS),
            room: 0,
            next: 0,
            reads: None,
            shown: VecDeque::new(),
            unread: 0,
            pulls: VecDeque::new(),
            waits: false,
            asked: VecDeque::new(),
            behind: 0,
        };
        for receive in 0..SLOTS {
            pair.post_receive(receive, rnic)?;
        }
        Ok(pair)
    }

    /// What the peer is told at first.
    pub(super) fn hello() -> Vec<u8> {
        Hello { receives: SLOTS, octets: SLOT as u32 }.octets().to_vec()
    }

    /// The protection domain that nobody else is in.
    #[cfg(test)]
    pub(super) const fn domain(&self) -> Pd {
        self.pd
    }

    /// What the peer has told at first.
    pub(super) fn greet(&mut self, hello: Hello) {
        self.talk.greet(&Hello { receives: hello.receives.min(SLOTS), ..hello });
        self.room = SLOT.min(hello.octets as usize);
    }

    /// The connection is there.
    pub(super) fn connected(&mut self, reads: u16) {
        self.reads = Some(reads.min(READS));
    }

    /// Gives everything back.
    pub(super) fn close(mut self, world: &mut World<'_>) {
        // Each of these is there: nobody else has these names.
        let _ = world.rnic.destroy_qp(self.qp);
        for mut pull in std::mem::take(&mut self.pulls) {
            pull.close(world);
        }
        while let Some(shown) = self.shown.pop_front() {
            unshow(shown, world);
        }
        let _ = world.rnic.deregister(self.slots.stag);
        world.regions.remove(self.slots.number);
        let _ = world.rnic.dealloc_pd(self.pd);
    }

    fn span(&self, slot: u16, offset: usize, len: usize) -> Span {
        let at = usize::from(slot) * SLOT + offset;
        Span { region: self.slots.number, offset: at as u64, len: len as u32 }
    }

    fn post_receive(&self, receive: u16, rnic: &mut Rnic) -> Result<(), PostError> {
        let addr = (usize::from(receive) * SLOT) as u64;
        let into = Sge { stag: self.slots.stag, addr, len: SLOT as u32 };
        rnic.post_recv(self.qp, RecvRequest::new(self.name | u64::from(receive), into))
    }

    // What comes.

    /// Takes what came into a receive, which is posted anew: copies it into `buffer` and says what
    /// of it is to be looked at.
    pub(super) fn take(
        &mut self,
        receive: u16,
        len: usize,
        buffer: &mut [u8],
        stream: &mut Stream,
        world: &mut World<'_>,
    ) -> Result<Brought, Bad> {
        let send = buffer.get_mut(..len).ok_or(Bad)?;
        world.regions.read(self.span(receive, 0, len), send).map_err(|_| Bad)?;
        self.post_receive(receive, world.rnic).map_err(|_| Bad)?;
        let (finished, said) = self.talk.hear(send, stream)?;
        self.unshow(finished, world);
        match said {
            Said::Nothing => Ok(Brought::Nothing),
            Said::Frames(_) => Ok(Brought::Frames(HEADER)),
            Said::Announced { announced, place, wanted } => {
                let (asked, got, into) = (0, 0, None);
                let has_room = stream.role() != Role::Server || announced.len() <= FREE;
                self.pulls.push_back(Pull { announced, wanted, has_room, place, asked, got, into });
                Ok(Brought::Nothing)
            }
        }
    }

    /// Hears what a receive that is held grants and finishes: its frames wait for that, perhaps.
    pub(super) fn hear_first(
        &mut self,
        receive: u16,
        len: usize,
        world: &mut World<'_>,
    ) -> Result<(), Bad> {
        let (span, mut note) = (self.span(receive, 0, HEADER), [0; HEADER]);
        if len < HEADER {
            return Err(Bad);
        }
        world.regions.read(span, &mut note).map_err(|_| Bad)?;
        let finished = self.talk.hear_first(&mut note)?;
        world.regions.write(span, &note).map_err(|_| Bad)?;
        self.unshow(finished, world);
        Ok(())
    }

    /// Bytes of messages that were announced and that the peer has not finished.
    pub(super) const fn unread(&self) -> usize {
        self.unread
    }

    /// The peer has finished so many of our oldest messages.
    fn unshow(&mut self, finished: usize, world: &mut World<'_>) {
        for shown in self.shown.drain(..finished.min(self.shown.len())) {
            self.unread -= shown.len;
            unshow(shown, world);
        }
    }

    /// Takes what the oldest Read has brought.
    pub(super) fn read(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        ids: &mut Ids,
        world: &mut World<'_>,
        budget: &mut Budget,
    ) -> Result<Option<Event<'static>>, Bad> {
        self.drop_done();
        let name = self.name();
        let (Some(len), Some(pull)) = (self.asked.pop_front(), self.pulls.front_mut()) else {
            return Err(Bad);
        };
        pull.got += len as usize;
        budget.brought(now, name, len as usize);
        if self.asked.is_empty() {
            self.behind = 0;
        }
        if !pull.is_done() {
            return Ok(None);
        }
        let Some(mut pull) = self.pulls.pop_front() else { return Ok(None) };
        if stream.role() == Role::Server && pull.announced.len() > FREE {
            budget.give(now, name, pull.announced.len());
        }
        let message = pull.close(world);
        if message.len() != pull.got {
            return Err(Bad);
        }
        self.talk.finish();
        Ok(stream.whole(now, pull.announced, message, ids))
    }

    // What goes.

    /// Posts what there is to say and to read, as far as it may.
    pub(super) fn output(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        memory: &dyn Slices,
        world: &mut World<'_>,
        budget: &mut Budget,
    ) -> Result<(), PostError> {
        let Some(reads) = self.reads else { return Ok(()) };
        self.make_room(now, budget);
        self.ask(reads, world)?;
        while self.talk.may_send() && self.behind < BEHIND {
            let Some(front) = stream.front(now) else { break };
            let len = front.header.len() + front.message.len();
            if HEADER + len <= self.room {
                self.send_frames(now, stream, memory, world)?;
            } else if !self.announce(now, stream, world)? {
                break;
            }
        }
        let told = self.talk.has_finished() && self.talk.may_send() && self.behind < BEHIND;
        if told || self.talk.must_tell() {
            self.send(Kind::Nothing, 0, world)?;
        }
        Ok(())
    }

    /// Nobody waits for what is in front.
    fn drop_done(&mut self) {
        while self.pulls.front().is_some_and(Pull::is_done) {
            self.pulls.pop_front();
            self.talk.finish();
        }
    }

    /// Takes room for what was announced, in order.
    fn make_room(&mut self, now: Instant, budget: &mut Budget) {
        let name = self.name();
        while !self.waits
            && let Some(pull) = self.pulls.iter_mut().find(|pull| pull.wanted && !pull.has_room)
        {
            pull.has_room = budget.take(now, name, pull.announced.len());
            self.waits = !pull.has_room;
        }
    }

    /// The first message without room has it now.
    pub(super) fn admitted(&mut self) {
        self.waits = false;
        if let Some(pull) = self.pulls.iter_mut().find(|pull| pull.wanted && !pull.has_room) {
            pull.has_room = true;
        }
    }

    /// What the budget calls this connection.
    const fn name(&self) -> u32 {
        (self.name >> 32) as u32
    }

    /// Asks for as much of what was announced as there is room for.
    fn ask(&mut self, reads: u16, world: &mut World<'_>) -> Result<(), PostError> {
        self.drop_done();
        for pull in &mut self.pulls {
            if !pull.has_room && pull.wanted {
                return Ok(());
            }
            while pull.left() > 0 && self.behind < BEHIND {
                let free = reads.saturating_sub(self.asked.len() as u16);
                if free == 0 {
                    return Ok(());
                }
                let len = pull.room(self.pd, free, world)?.min(CHUNK) as u32;
                // Reads are answered in the order of messages: those behind wait as well.
                let Some((at, _)) = pull.into.filter(|_| len > 0) else { return Ok(()) };
                let into = Sge { stag: at.stag, addr: pull.asked as u64, len };
                let addr = pull.place.address.wrapping_add(pull.asked as u64);
                let from = Remote { stag: Stag(pull.place.tag), addr };
                let request = SendRequest::new(self.name | READ, SendOp::Read(from), into);
                world.rnic.post_send(self.qp, request)?;
                self.asked.push_back(len);
                pull.asked += len as usize;
                self.behind += 1;
            }
        }
        Ok(())
    }

    /// Sends as many of the next frames as fit together, at least one.
    fn send_frames(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        memory: &dyn Slices,
        world: &mut World<'_>,
    ) -> Result<(), PostError> {
        let mut at = HEADER;
        while let Some(front) = stream.front(now) {
            let len = front.header.len() + front.message.len();
            if at + len > self.room {
                break;
            }
            let to = self.span(SLOTS + self.next, at, len);
            let header = Span { len: front.header.len() as u32, ..to };
            put(world.regions, header, front.header)?;
            let offset = to.offset + front.header.len() as u64;
            copy_message(world.regions, Span { offset, ..to }, front.message, memory)?;
            at += len;
            stream.written(len);
        }
        self.send(Kind::Frames, at - HEADER, world)
    }

    /// Shows the peer the next frame's message, unless there is too much that it has not read yet.
    fn announce(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        world: &mut World<'_>,
    ) -> Result<bool, PostError> {
        let Some(front) = stream.front(now) else { return Ok(false) };
        let len = front.message.len();
        if !self.talk.may_announce() || self.unread + len > MOST_UNREAD {
            return Ok(false);
        }
        let whole = ANNOUNCEMENT - HEADER + front.header.len();
        put(
            world.regions,
            self.span(SLOTS + self.next, ANNOUNCEMENT, front.header.len()),
            front.header,
        )?;
        let Some(message) = stream.take_front() else { return Ok(false) };
        let number = world.regions.say(message).ok_or(PostError::NoRoom)?;
        let access = Access { local_write: false, remote_read: true, ..Access::LOCAL };
        let stag = world.rnic.register(self.pd, number, 0, len as u64, access);
        let at = Registered { number, stag: stag.inspect_err(|_| hush(number, world))? };
        self.shown.push_back(Shown { at, len });
        self.unread += len;
        let place = Place { tag: at.stag.0, address: 0 }.octets();
        put(world.regions, self.span(SLOTS + self.next, HEADER, place.len()), &place)?;
        self.send(Kind::Announcement, whole, world)?;
        Ok(true)
    }

    /// Sends what is in the next send buffer: a note, and `len` bytes behind it.
    fn send(&mut self, kind: Kind, len: usize, world: &mut World<'_>) -> Result<(), PostError> {
        let note = self.talk.say(kind);
        let slot = SLOTS + self.next;
        self.next = (self.next + 1) % SLOTS;
        let span = self.span(slot, 0, HEADER);
        put(world.regions, span, &note.octets())?;
        let from = Sge { stag: self.slots.stag, addr: span.offset, len: (HEADER + len) as u32 };
        world
            .rnic
            .post_send(self.qp, SendRequest::new(self.name, SendOp::Send, from).unsignaled())?;
        self.behind = if self.asked.is_empty() { 0 } else { self.behind + 1 };
        Ok(())
    }
}

/// The peer does not need a message any more.
fn unshow(shown: Shown, world: &mut World<'_>) {
    // It was registered when it was shown.
    let _ = world.rnic.deregister(shown.at.stag);
    hush(shown.at.number, world);
}

/// Takes a message back that peers could read.
fn hush(number: u64, world: &mut World<'_>) {
    if let Some(message) = world.regions.said(number) {
        world.released.extend(message.slices);
    }
}

fn put(regions: &mut Regions, span: Span, bytes: &[u8]) -> Result<(), PostError> {
    regions.write(span, bytes).map_err(|_| PostError::Invalid)
}

/// Copies a message to where `to` begins.
fn copy_message(
    regions: &mut Regions,
    mut to: Span,
    message: &Message,
    memory: &dyn Slices,
) -> Result<(), PostError> {
    let slices = message.slices.iter().map(|&slice| memory.bytes(slice));
    for part in std::iter::once(&message.bytes[..]).chain(slices) {
        put(regions, Span { len: part.len() as u32, ..to }, part)?;
        to.offset += part.len() as u64;
    }
    Ok(())
}
