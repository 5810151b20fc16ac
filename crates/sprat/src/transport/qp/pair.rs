//! One connection of the RDMA transport: a queue pair with its buffers, and the frames that it
//! carries.
//!
//! ```text
//!  region: 16 receives | 16 send buffers, of 16 KiB each
//!
//!  eager:       frames ─copy─► send buffer ─Send─► receive ─copy─► frames
//!  rendezvous:  message ◄──Reads, up to 4 of 256 KiB── message
//! ```
//! Rendezvous registers a message where it lies, and reads it into the memory that becomes the
//! message.
//!
//! A send buffer is free again when the peer has granted the receive that its Send used. There are
//! as many buffers as credits, so the next buffer in turn is always free, and no send waits for a
//! completion.
//!
//! Always holds: the peer reaches only the messages that were announced to it, through a protection
//! domain of its own; a message's memory here grows with the bytes that were read.
//!
//! Not here: the table of connections and their events (`mod.rs`); the headers of Sends
//! (`proto::rpc::over_qp`).

use std::collections::VecDeque;
use std::sync::Arc;

use sprat_proto::Instant;
use sprat_proto::rdma::{
    Access, Cq, Memory as _, Pd, PostError, Qp, QpOptions, RecvRequest, Remote, Rnic, SendOp,
    SendRequest, Sge, Span, Stag,
};
use sprat_proto::rpc::budget::{Budget, EXEMPT_BYTES};
use sprat_proto::rpc::over_qp::{
    ANNOUNCEMENT, FlowControl, HEADER, Hello, Location, Received, SendKind, Violation,
};
use sprat_proto::rpc::stream::{Announced, Ids, Role, Stream};
use sprat_proto::rpc::{Event, MAX_MESSAGE, Message, Slice, Slices};

use sprat_rdma::engine::Regions;
use sprat_sys::memory::Region;

/// Number of a connection's receives, and of its send buffers.
pub(super) const BUFFERS: u16 = 16;
/// Bytes of a receive and of a send buffer.
pub(super) const BUFFER_BYTES: usize = 16 << 10;
/// The most bytes of one RDMA Read.
const CHUNK: usize = 256 << 10;
/// The most RDMA Reads in progress on one connection.
pub(super) const MAX_READS: u16 = 4;
/// The most bytes of announced messages that the peer has not finished.
const MAX_UNFINISHED: usize = 2 * MAX_MESSAGE;
/// Number of work requests that the send queue holds. Those behind a Read stay there until it
/// completes.
const SEND_DEPTH: u32 = 512;
/// The most work requests that are posted before all Reads have completed.
const MAX_POSTED: u32 = SEND_DEPTH - 2 * BUFFERS as u32 - MAX_READS as u32;
/// The factor by which the memory of a message that is being read may exceed the bytes that have
/// arrived.
const GROWTH: usize = 4;
/// The bit of a work request's id that marks an RDMA Read. The id of a receive has the receive's
/// number below that bit.
pub(super) const READ_ID: u64 = 1 << 16;

/// The parts of the RDMA engine that a connection works on.
pub(super) struct Engine<'w> {
    pub(super) rnic: &'w mut Rnic,
    pub(super) regions: &'w mut Regions,
    /// Slices of messages that are no longer needed.
    pub(super) released: &'w mut VecDeque<Slice>,
}

/// Registered memory: its number in [`Regions`], and its steering tag.
#[derive(Clone, Copy, Debug)]
struct Registration {
    number: u64,
    stag: Stag,
}

/// A message that this side announced and that the peer has not finished.
#[derive(Debug)]
struct Announcement {
    at: Registration,
    len: usize,
}

/// A message that the peer announced, and how far it has been read.
#[derive(Debug)]
struct Fetch {
    announced: Announced,
    wanted: bool,
    /// True if the message has room in the budget of the accepted connections, or needs none.
    has_room: bool,
    location: Location,
    /// Number of the message's bytes for which RDMA Reads were posted.
    requested: usize,
    /// Number of the message's bytes that have arrived.
    received: usize,
    /// The registered memory that the message is read into, and its length: the message's, or less
    /// until more has arrived.
    into: Option<(Registration, usize)>,
}

impl Fetch {
    /// Returns the number of the message's bytes for which no RDMA Read was posted yet.
    fn left(&self) -> usize {
        if self.wanted { self.announced.len() - self.requested } else { 0 }
    }

    fn is_done(&self) -> bool {
        !self.wanted || self.received == self.announced.len()
    }

    /// Deregisters the message's memory and returns it with the bytes that have arrived.
    fn close(&mut self, engine: &mut Engine<'_>) -> Vec<u8> {
        let Some((at, _)) = self.into.take() else { return Vec::new() };
        // This does not fail: the memory was registered when the first Read was posted.

        let _ = engine.rnic.deregister(at.stag);
        engine.regions.remove_incoming(at.number).unwrap_or_default()
    }

    /// Returns the number of bytes for which an RDMA Read may be posted now. Memory grows with the
    /// bytes that have arrived; the first piece is enough for as many Reads as are `free`.
    fn room(&mut self, pd: Pd, free: u16, engine: &mut Engine<'_>) -> Result<usize, PostError> {
        let room = self.into.map_or(0, |(_, room)| room);
        if self.requested < room || self.received < self.requested {
            return Ok(room - self.requested);
        }
        let mut message = self.close(engine);
        let target =
            (usize::from(free) * CHUNK).max(GROWTH * self.received).min(self.announced.len());
        message.reserve_exact(target - message.len());
        let number = engine.regions.insert_incoming(message).ok_or(PostError::NoRoom)?;
        match engine.rnic.register(pd, number, 0, target as u64, Access::LOCAL) {
            Ok(stag) => {
                self.into = Some((Registration { number, stag }, target));
                Ok(target - self.requested)
            }
            Err(e) => {
                engine.regions.remove(number);
                Err(e)
            }
        }
    }
}

/// A queue pair, its registered buffers, and the messages that it announces and reads.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) qp: Qp,
    pd: Pd,
    /// The connection's slot in the upper half of a work request's id; the lower half is 0.
    first_id: u64,
    buffers: Registration,
    flow: FlowControl,
    /// The most bytes of a Send to the peer.
    send_bytes: usize,
    /// The number of the send buffer that the next Send uses.
    next_buffer: u16,
    /// The most RDMA Reads in progress; `None` until the connection is open.
    max_reads: Option<u16>,
    announcements: VecDeque<Announcement>,
    /// The sum of bytes of the messages in `announcements`.
    unfinished: usize,
    fetches: VecDeque<Fetch>,
    /// True if the budget has no room yet for the first fetch that needs some.
    waits_for_room: bool,
    /// Number of bytes of each RDMA Read in progress, in the order posted.
    reads: VecDeque<u32>,
    /// Number of work requests posted since no RDMA Read was in progress.
    posted: u32,
}

impl Pair {
    /// Makes a queue pair with all receives posted, for the connection in `slot`.
    pub(super) fn open(slot: u16, cq: Cq, engine: &mut Engine<'_>) -> Result<Self, PostError> {
        let Engine { rnic, regions, .. } = engine;
        let len = 2 * usize::from(BUFFERS) * BUFFER_BYTES;
        let region = Region::sparse(len).map_err(|_| PostError::NoRoom)?;
        let number = regions.insert(Arc::new(region)).ok_or(PostError::NoRoom)?;
        let made = rnic.alloc_pd().and_then(|pd| {
            let stag = rnic.register(pd, number, 0, len as u64, Access::LOCAL)?;
            let qp = rnic.create_qp(QpOptions {
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                send_depth: SEND_DEPTH,
                recv_depth: u32::from(BUFFERS),
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
            first_id: u64::from(slot) << 32,
            buffers: Registration { number, stag },
            flow: FlowControl::new(BUFFERS),
            send_bytes: 0,
            next_buffer: 0,
            max_reads: None,
            announcements: VecDeque::new(),
            unfinished: 0,
            fetches: VecDeque::new(),
            waits_for_room: false,
            reads: VecDeque::new(),
            posted: 0,
        };
        for receive in 0..BUFFERS {
            pair.post_receive(receive, rnic)?;
        }
        Ok(pair)
    }

    /// Returns the private data by which this side introduces itself.
    pub(super) fn hello() -> Vec<u8> {
        Hello { receives: BUFFERS, receive_bytes: BUFFER_BYTES as u32 }.to_bytes().to_vec()
    }

    /// Returns the connection's own protection domain.
    #[cfg(test)]
    pub(super) const fn domain(&self) -> Pd {
        self.pd
    }

    /// Applies the limits of the peer's hello.
    pub(super) fn hello_arrived(&mut self, hello: Hello) {
        self.flow.open(&Hello { receives: hello.receives.min(BUFFERS), ..hello });
        self.send_bytes = BUFFER_BYTES.min(hello.receive_bytes as usize);
    }

    /// Records that the connection is open, and that up to `reads` RDMA Reads may be in progress.
    pub(super) fn connected(&mut self, reads: u16) {
        self.max_reads = Some(reads.min(MAX_READS));
    }

    /// Destroys the queue pair and everything that was made for it.
    pub(super) fn close(mut self, engine: &mut Engine<'_>) {
        // None of these fails: only this connection knows their numbers, so each still exists.
        let _ = engine.rnic.destroy_qp(self.qp);
        for mut fetch in std::mem::take(&mut self.fetches) {
            fetch.close(engine);
        }
        while let Some(announcement) = self.announcements.pop_front() {
            withdraw(announcement, engine);
        }
        let _ = engine.rnic.deregister(self.buffers.stag);
        engine.regions.remove(self.buffers.number);
        let _ = engine.rnic.dealloc_pd(self.pd);
    }

    fn span(&self, slot: u16, offset: usize, len: usize) -> Span {
        let at = usize::from(slot) * BUFFER_BYTES + offset;
        Span { region: self.buffers.number, offset: at as u64, len: len as u32 }
    }

    fn post_receive(&self, receive: u16, rnic: &mut Rnic) -> Result<(), PostError> {
        let addr = (usize::from(receive) * BUFFER_BYTES) as u64;
        let into = Sge { stag: self.buffers.stag, addr, len: BUFFER_BYTES as u32 };
        rnic.post_recv(self.qp, RecvRequest::new(self.first_id | u64::from(receive), into))
    }

    // Input.

    /// Copies a Send of `len` bytes out of its receive into `buffer`, and posts the receive again.
    /// Returns where the frames begin in `buffer`, if it has some.
    pub(super) fn receive(
        &mut self,
        receive: u16,
        len: usize,
        buffer: &mut [u8],
        stream: &mut Stream,
        engine: &mut Engine<'_>,
    ) -> Result<Option<usize>, Violation> {
        let send = buffer.get_mut(..len).ok_or(Violation)?;
        engine.regions.read(self.span(receive, 0, len), send).map_err(|_| Violation)?;
        self.post_receive(receive, engine.rnic).map_err(|_| Violation)?;
        let (finished, received) = self.flow.receive(send, stream)?;
        self.finished(finished, engine);
        match received {
            Received::Nothing => Ok(None),
            Received::Frames(_) => Ok(Some(HEADER)),
            Received::Announced { announced, location, wanted } => {
                let (requested, received, into) = (0, 0, None);
                let has_room = stream.role() != Role::Server || announced.len() <= EXEMPT_BYTES;
                self.fetches.push_back(Fetch {
                    announced,
                    wanted,
                    has_room,
                    location,
                    requested,
                    received,
                    into,
                });
                Ok(None)
            }
        }
    }

    /// Takes credits and finished messages out of a receive whose frames are deferred: the frames
    /// may wait for just these.
    pub(super) fn receive_header(
        &mut self,
        receive: u16,
        len: usize,
        engine: &mut Engine<'_>,
    ) -> Result<(), Violation> {
        let (span, mut header) = (self.span(receive, 0, HEADER), [0; HEADER]);
        if len < HEADER {
            return Err(Violation);
        }
        engine.regions.read(span, &mut header).map_err(|_| Violation)?;
        let finished = self.flow.receive_header(&mut header)?;
        engine.regions.write(span, &header).map_err(|_| Violation)?;
        self.finished(finished, engine);
        Ok(())
    }

    /// Returns the bytes of announced messages that the peer has not finished.
    pub(super) const fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Withdraws the oldest `finished` messages that this side announced.
    fn finished(&mut self, finished: usize, engine: &mut Engine<'_>) {
        for announcement in self.announcements.drain(..finished.min(self.announcements.len())) {
            self.unfinished -= announcement.len;
            withdraw(announcement, engine);
        }
    }

    /// Counts the bytes of the oldest RDMA Read, and delivers its message if it is whole now.
    pub(super) fn read_completed(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        ids: &mut Ids,
        engine: &mut Engine<'_>,
        budget: &mut Budget,
    ) -> Result<Option<Event<'static>>, Violation> {
        self.drop_finished();
        let name = self.budget_name();
        let (Some(len), Some(fetch)) = (self.reads.pop_front(), self.fetches.front_mut()) else {
            return Err(Violation);
        };
        fetch.received += len as usize;
        budget.brought(now, name, len as usize);
        if self.reads.is_empty() {
            self.posted = 0;
        }
        if !fetch.is_done() {
            return Ok(None);
        }
        let Some(mut fetch) = self.fetches.pop_front() else { return Ok(None) };
        if stream.role() == Role::Server && fetch.announced.len() > EXEMPT_BYTES {
            budget.give(now, name, fetch.announced.len());
        }
        let message = fetch.close(engine);
        if message.len() != fetch.received {
            return Err(Violation);
        }
        self.flow.finish();
        Ok(stream.whole(now, fetch.announced, message, ids))
    }

    // Output.

    /// Posts RDMA Reads of announced messages and Sends of frames, as far as flow control allows.
    pub(super) fn output(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        memory: &dyn Slices,
        engine: &mut Engine<'_>,
        budget: &mut Budget,
    ) -> Result<(), PostError> {
        let Some(reads) = self.max_reads else { return Ok(()) };
        self.request_room(now, budget);
        self.post_reads(reads, engine)?;
        while self.flow.may_send() && self.posted < MAX_POSTED {
            let Some(front) = stream.front(now) else { break };
            let len = front.header.len() + front.message.len();
            if HEADER + len <= self.send_bytes {
                self.send_frames(now, stream, memory, engine)?;
            } else if !self.announce(now, stream, engine)? {
                break;
            }
        }
        let report = self.flow.has_finished() && self.flow.may_send() && self.posted < MAX_POSTED;
        if report || self.flow.must_grant() {
            self.send(SendKind::Credits, 0, engine)?;
        }
        Ok(())
    }

    /// Finishes the oldest fetches that need no more Reads.
    fn drop_finished(&mut self) {
        while self.fetches.front().is_some_and(Fetch::is_done) {
            self.fetches.pop_front();
            self.flow.finish();
        }
    }

    /// Takes room in the budget for the messages that the peer announced, in the order announced.
    fn request_room(&mut self, now: Instant, budget: &mut Budget) {
        let name = self.budget_name();
        while !self.waits_for_room
            && let Some(fetch) =
                self.fetches.iter_mut().find(|fetch| fetch.wanted && !fetch.has_room)
        {
            fetch.has_room = budget.take(now, name, fetch.announced.len());
            self.waits_for_room = !fetch.has_room;
        }
    }

    /// Notes that the budget has granted the room that a fetch waited for.
    pub(super) fn room_granted(&mut self) {
        self.waits_for_room = false;
        if let Some(fetch) = self.fetches.iter_mut().find(|fetch| fetch.wanted && !fetch.has_room) {
            fetch.has_room = true;
        }
    }

    /// Returns the number by which the budget knows this connection: its slot.
    const fn budget_name(&self) -> u32 {
        (self.first_id >> 32) as u32
    }

    /// Posts RDMA Reads of the announced messages, as far as there is room.
    fn post_reads(&mut self, reads: u16, engine: &mut Engine<'_>) -> Result<(), PostError> {
        self.drop_finished();
        for fetch in &mut self.fetches {
            if !fetch.has_room && fetch.wanted {
                return Ok(());
            }
            while fetch.left() > 0 && self.posted < MAX_POSTED {
                let free = reads.saturating_sub(self.reads.len() as u16);
                if free == 0 {
                    return Ok(());
                }
                let len = fetch.room(self.pd, free, engine)?.min(CHUNK) as u32;
                // Reads complete in the order of messages, so later messages wait as well.
                let Some((at, _)) = fetch.into.filter(|_| len > 0) else { return Ok(()) };
                let into = Sge { stag: at.stag, addr: fetch.requested as u64, len };
                let addr = fetch.location.address.wrapping_add(fetch.requested as u64);
                let from = Remote { stag: Stag(fetch.location.stag), addr };
                let request = SendRequest::new(self.first_id | READ_ID, SendOp::Read(from), into);
                engine.rnic.post_send(self.qp, request)?;
                self.reads.push_back(len);
                fetch.requested += len as usize;
                self.posted += 1;
            }
        }
        Ok(())
    }

    /// Sends as many of the next frames as fit into one Send, at least one.
    fn send_frames(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        memory: &dyn Slices,
        engine: &mut Engine<'_>,
    ) -> Result<(), PostError> {
        let mut at = HEADER;
        while let Some(front) = stream.front(now) {
            let len = front.header.len() + front.message.len();
            if at + len > self.send_bytes {
                break;
            }
            let to = self.span(BUFFERS + self.next_buffer, at, len);
            let header = Span { len: front.header.len() as u32, ..to };
            write(engine.regions, header, front.header)?;
            let offset = to.offset + front.header.len() as u64;
            copy_message(engine.regions, Span { offset, ..to }, front.message, memory)?;
            at += len;
            stream.written(len);
        }
        self.send(SendKind::Eager, at - HEADER, engine)
    }

    /// Announces the message of the next frame. Returns false if the peer has to finish other
    /// messages first.
    fn announce(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        engine: &mut Engine<'_>,
    ) -> Result<bool, PostError> {
        let Some(front) = stream.front(now) else { return Ok(false) };
        let len = front.message.len();
        if !self.flow.may_announce() || self.unfinished + len > MAX_UNFINISHED {
            return Ok(false);
        }
        let whole = ANNOUNCEMENT - HEADER + front.header.len();
        write(
            engine.regions,
            self.span(BUFFERS + self.next_buffer, ANNOUNCEMENT, front.header.len()),
            front.header,
        )?;
        let Some(message) = stream.take_front() else { return Ok(false) };
        let number = engine.regions.insert_outgoing(message).ok_or(PostError::NoRoom)?;
        let access = Access { local_write: false, remote_read: true, ..Access::LOCAL };
        let stag = engine.rnic.register(self.pd, number, 0, len as u64, access);
        let at = Registration { number, stag: stag.inspect_err(|_| take_back(number, engine))? };
        self.announcements.push_back(Announcement { at, len });
        self.unfinished += len;
        let location = Location { stag: at.stag.0, address: 0 }.to_bytes();
        write(
            engine.regions,
            self.span(BUFFERS + self.next_buffer, HEADER, location.len()),
            &location,
        )?;
        self.send(SendKind::Rendezvous, whole, engine)?;
        Ok(true)
    }

    /// Posts a Send of the next send buffer: a header, and the `len` bytes that lie behind it.
    fn send(
        &mut self,
        kind: SendKind,
        len: usize,
        engine: &mut Engine<'_>,
    ) -> Result<(), PostError> {
        let header = self.flow.next_header(kind);
        let slot = BUFFERS + self.next_buffer;
        self.next_buffer = (self.next_buffer + 1) % BUFFERS;
        let span = self.span(slot, 0, HEADER);
        write(engine.regions, span, &header.to_bytes())?;
        let from = Sge { stag: self.buffers.stag, addr: span.offset, len: (HEADER + len) as u32 };
        engine
            .rnic
            .post_send(self.qp, SendRequest::new(self.first_id, SendOp::Send, from).unsignaled())?;
        self.posted = if self.reads.is_empty() { 0 } else { self.posted + 1 };
        Ok(())
    }
}

/// Withdraws an announced message: the peer can read it no more.
fn withdraw(announcement: Announcement, engine: &mut Engine<'_>) {
    // This does not fail: the message was registered when it was announced.
    let _ = engine.rnic.deregister(announcement.at.stag);
    take_back(announcement.at.number, engine);
}

/// Removes an announced message from the engine and releases its slices.
fn take_back(number: u64, engine: &mut Engine<'_>) {
    if let Some(message) = engine.regions.remove_outgoing(number) {
        engine.released.extend(message.slices);
    }
}

fn write(regions: &mut Regions, span: Span, bytes: &[u8]) -> Result<(), PostError> {
    regions.write(span, bytes).map_err(|_| PostError::Invalid)
}

/// Copies a message to the beginning of `to`.
fn copy_message(
    regions: &mut Regions,
    mut to: Span,
    message: &Message,
    memory: &dyn Slices,
) -> Result<(), PostError> {
    let slices = message.slices.iter().map(|&slice| memory.bytes(slice));
    for part in std::iter::once(&message.bytes[..]).chain(slices) {
        write(regions, Span { len: part.len() as u32, ..to }, part)?;
        to.offset += part.len() as u64;
    }
    Ok(())
}
