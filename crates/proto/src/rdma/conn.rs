//! Streams: from the moment they are up, through MPA's start-up and full operation, to their end. The engine's doors to them
//! are here; what goes over them is made in `start`, `fpdu` and `qp`.
//!
//! ```text
//!  connect ─► Requested ─┐                         ┌─ disconnect ─► Closing ─┐
//!                        ├─► Open ─────────────────┤                         ├─► Close
//!  incoming ─► Awaited ──┘      (the queue pair's) └─ an error, a Terminate ─┴─► Ending
//! ```
//!
//! Always: what was appended by [`Rnic::output`] goes out before the end; behind a Terminate nothing does; each stream's last
//! event is its [`Event::Close`]. A responder sends no FPDU before the first one it received.
//! Not here: sockets, and which stream belongs to whom.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::door::{AcceptOptions, ConnectOptions, End, Event, QpState, Why};
use super::fpdu::{self, Deframer, Framer, Piece, Step};
use super::qp::arrive::Outcome;
use super::qp::transmit::Out;
use super::qp::{Fault, QueuePair};
use super::rnic::{Rnic, Shared};
use super::start::{
    Answer, Asked, Depths, First, Initiator, Misuse, Negotiated, PeerDepths, Responder, Wishes,
};
use super::{Conn, Memory, PostError, Qp, Record, Span};
use crate::Instant;
use crate::wire::ddp::{Buffer, Header};
use crate::wire::mpa::Rtr;
use crate::wire::rdmap::{Cause, Opcode, QN_TERMINATE, Terminate};

/// How far a stream is.
#[derive(Debug)]
enum Phase {
    /// We asked.
    Requested(Box<Initiator>),
    /// The peer asks; `answer` if it has, and the program has to answer.
    Awaited { responder: Box<Responder>, answer: bool },
    /// FPDUs.
    Open,
    /// The same, until all is sent and answered.
    Closing,
    /// Without a queue pair: what is left is sent, what comes is dropped.
    Ending,
}

/// A stream.
#[derive(Debug)]
pub(super) struct Connection {
    qp: Option<Qp>,
    phase: Phase,
    /// A start-up frame to send.
    frame: Vec<u8>,
    /// The Terminate to send.
    last_words: Option<Box<Fault>>,
    framer: Framer,
    deframer: Deframer,
    first: First,
    /// Octets that fit into a segment of the stream.
    emss: usize,
    /// The program was told that it is connected.
    established: bool,
    /// Own FPDUs wait until then.
    hold: Instant,
    /// When its patience ends.
    due: Instant,
    /// Octets appended, and those that the stream took.
    position: u64,
    taken: u64,
    /// In the list of those that have something to send, or about to be asked again.
    queued: bool,
    /// The caller holds octets that were not consumed.
    partial: bool,
}

impl Connection {
    fn new(phase: Phase) -> Self {
        Self {
            qp: None,
            phase,
            frame: Vec::new(),
            last_words: None,
            framer: Framer::new(None, false),
            deframer: Deframer::new(None, false),
            first: First::Wait,
            emss: usize::MAX,
            established: false,
            hold: Instant::ZERO,
            due: Instant::NEVER,
            position: 0,
            taken: 0,
            queued: false,
            partial: false,
        }
    }

    /// FPDUs may be sent.
    fn may_send(&self, now: Instant) -> bool {
        !self.waits() && now >= self.hold
    }

    /// It is the peer who has to send first.
    const fn waits(&self) -> bool {
        matches!(self.first, First::Wait | First::WaitFor(_))
    }

    /// All that was appended is gone, and no more is due.
    fn is_drained(&self) -> bool {
        self.frame.is_empty() && self.last_words.is_none() && self.position == self.taken
    }

    /// Full operation begins as agreed.
    fn open(&mut self, negotiated: Negotiated, shared: &Shared) {
        let crc = negotiated.crc.then_some(shared.config.crc32c);
        self.framer = Framer::new(crc, negotiated.markers_out);
        self.framer.set_emss(self.emss);
        self.deframer = Deframer::new(crc, negotiated.markers_in);
        self.first = negotiated.first;
    }
}

impl From<Misuse> for PostError {
    fn from(misuse: Misuse) -> Self {
        match misuse {
            Misuse::PrivateData => Self::TooLong,
            _ => Self::Invalid,
        }
    }
}

/// The doors to streams.
impl Rnic {
    /// Makes a connection of an idle queue pair: the stream is up, and we ask.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such queue pair or it is not idle, or for a revision that cannot be;
    /// [`PostError::TooLong`] for private data; [`PostError::NoRoom`].
    pub fn connect(&mut self, now: Instant, qp: Qp, options: &ConnectOptions) -> Result<Conn, PostError> {
        self.now = now;
        let queue_pair = self.qps.get_mut(qp.0).filter(|qp| qp.state == QpState::Idle);
        let queue_pair = queue_pair.ok_or(PostError::Invalid)?;
        let config = &self.shared.config;
        if self.conns.used() >= config.max_conns {
            return Err(PostError::NoRoom);
        }
        let wishes = Wishes {
            crc: options.crc.unwrap_or(config.crc),
            markers: options.markers.unwrap_or(config.markers),
            revision: options.revision.unwrap_or(config.revision),
            rtr: options.peer_to_peer.map(Rtr::only),
        };
        let depths = Depths { ird: options.ird, ord: options.ord };
        let mut frame = Vec::new();
        let initiator = Initiator::new(wishes, depths, &options.private_data, &mut frame)?;
        let phase = Phase::Requested(Box::new(initiator));
        let conn = self.conns.insert(|_| Connection::new(phase)).ok_or(PostError::NoRoom)?;
        let due = now.after(config.start_timeout_ns);
        queue_pair.start(Conn(conn));
        if let Some(connection) = self.conns.get_mut(conn) {
            (connection.qp, connection.frame) = (Some(qp), frame);
            connection.hold = Instant::from_ns(options.hold_ns);
        }
        self.arm_timer(conn, due);
        self.wake(Conn(conn));
        Ok(Conn(conn))
    }

    /// Takes a stream that is up and on which the peer asks.
    ///
    /// # Errors
    /// [`PostError::NoRoom`].
    pub fn incoming(&mut self, now: Instant) -> Result<Conn, PostError> {
        self.now = now;
        let config = &self.shared.config;
        if self.conns.used() >= config.max_conns {
            return Err(PostError::NoRoom);
        }
        let (crc, markers, revision) = (config.crc, config.markers, config.revision);
        let wishes = Wishes { crc, markers, revision, rtr: None };
        let phase = Phase::Awaited { responder: Box::new(Responder::new(wishes)), answer: false };
        let due = now.after(config.start_timeout_ns);
        let conn = self.conns.insert(|_| Connection::new(phase)).ok_or(PostError::NoRoom)?;
        self.arm_timer(conn, due);
        Ok(Conn(conn))
    }

    /// Accepts what [`Event::Request`] told of, with an idle queue pair.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such request, or no such queue pair, or it is not idle; [`PostError::TooLong`]
    /// for private data. The request stands then.
    pub fn accept(
        &mut self,
        now: Instant,
        conn: Conn,
        qp: Qp,
        options: &AcceptOptions,
    ) -> Result<(), PostError> {
        self.now = now;
        let queue_pair = self.qps.get_mut(qp.0).filter(|qp| qp.state == QpState::Idle);
        let queue_pair = queue_pair.ok_or(PostError::Invalid)?;
        let connection = self.conns.get_mut(conn.0).ok_or(PostError::Invalid)?;
        let Phase::Awaited { responder, answer: true } = &mut connection.phase else {
            return Err(PostError::Invalid);
        };
        let depths = Depths { ird: options.ird, ord: options.ord };
        let agreed = responder.accept(depths, &options.private_data, &mut connection.frame)?;
        connection.qp = Some(qp);
        connection.phase = Phase::Open;
        connection.open(agreed, &self.shared);
        queue_pair.start(conn);
        queue_pair.open(agreed);
        if let First::WaitFor(_) = agreed.first {
            let due = now.after(self.shared.config.start_timeout_ns);
            self.arm_timer(conn.0, due);
        } else {
            self.establish(conn, Vec::new());
        }
        self.wake(conn);
        Ok(())
    }

    /// Refuses what [`Event::Request`] told of.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such request; [`PostError::TooLong`] for private data. The request stands then.
    pub fn reject(&mut self, now: Instant, conn: Conn, private_data: &[u8]) -> Result<(), PostError> {
        self.now = now;
        let connection = self.conns.get_mut(conn.0).ok_or(PostError::Invalid)?;
        let Phase::Awaited { responder, answer: true } = &mut connection.phase else {
            return Err(PostError::Invalid);
        };
        responder.reject(Depths::default(), private_data, &mut connection.frame)?;
        self.end(conn);
        Ok(())
    }

    /// Ends a queue pair's connection once all that was posted is sent and answered, or the time for that is over.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if it has none.
    pub fn disconnect(&mut self, now: Instant, qp: Qp) -> Result<(), PostError> {
        self.now = now;
        let queue_pair = self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?;
        let conn = queue_pair.conn.ok_or(PostError::Invalid)?;
        let connection = self.conns.get_mut(conn.0).ok_or(PostError::Invalid)?;
        match connection.phase {
            Phase::Open if connection.established => {
                connection.phase = Phase::Closing;
                queue_pair.state = QpState::Closing;
                queue_pair.send.close();
                let due = now.after(self.shared.config.close_timeout_ns);
                self.arm_timer(conn.0, due);
                self.close_if_quiet(conn);
            }
            Phase::Closing | Phase::Ending => {}
            _ => self.give_up(conn, Why::Cancelled, true),
        }
        Ok(())
    }

    /// Takes what arrived: `bytes` are all octets of the stream that were not consumed before and are there. Returns how
    /// many are consumed; the caller keeps the others in front of what comes next, at most 72 KiB.
    pub fn input<M: Memory>(&mut self, now: Instant, conn: Conn, bytes: &[u8], memory: &mut M) -> usize {
        self.now = now;
        let mut used = 0;
        while let Some(connection) = self.conns.get(conn.0) {
            let step = match &connection.phase {
                Phase::Requested(_) => self.reply(conn, &bytes[used..]),
                Phase::Awaited { .. } => self.request(conn, &bytes[used..]),
                Phase::Open | Phase::Closing => self.fpdus(conn, &bytes[used..], memory),
                Phase::Ending => break,
            };
            used += step;
            if step == 0 || used == bytes.len() {
                break;
            }
        }
        self.settle();
        match self.conns.get_mut(conn.0).filter(|c| !matches!(c.phase, Phase::Ending)) {
            Some(connection) => {
                connection.partial = used < bytes.len();
                used
            }
            None => bytes.len(),
        }
    }

    /// The stream's next octets, all that were there before being consumed, may be read straight to here; then say so by
    /// [`Rnic::placed`], with nothing called in between. `None` if they have to come by [`Rnic::input`].
    pub fn direct(&mut self, conn: Conn) -> Option<Span> {
        let connection = self.conns.get_mut(conn.0)?;
        let rest = connection.deframer.rest();
        if rest == 0 || connection.partial || !matches!(connection.phase, Phase::Open | Phase::Closing) {
            return None;
        }
        let span = self.qps.get_mut(connection.qp?.0)?.direct(&self.shared)?;
        Some(Span { len: span.len.min(rest as u32), ..span })
    }

    /// So many octets were read to where [`Rnic::direct`] said, not more than the span's.
    pub fn placed<M: Memory>(&mut self, now: Instant, conn: Conn, octets: u32, memory: &mut M) {
        self.now = now;
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        connection.deframer.skip(octets as usize);
        match queue_pair.placed(octets, &mut self.shared, memory) {
            Ok(outcome) => self.came(conn, outcome),
            Err(fault) => self.fail(conn, fault),
        }
        self.settle();
    }

    /// A stream that has come to have something to send: call [`Rnic::output`] for it until that returns false. It is named
    /// once until then; a caller who cannot send on keeps it.
    pub fn ready(&mut self) -> Option<Conn> {
        loop {
            let conn = self.ready.pop_front()?;
            if self.conns.get(conn.0).is_some() {
                return Some(conn);
            }
        }
    }

    /// Appends what is next on the stream to `record`: one frame of the start-up or one FPDU. False if there is nothing.
    pub fn output<M: Memory>(
        &mut self,
        now: Instant,
        conn: Conn,
        record: &mut Record,
        memory: &mut M,
    ) -> bool {
        self.now = now;
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        if !connection.frame.is_empty() {
            record.append(&connection.frame);
            connection.position += connection.frame.len() as u64;
            connection.frame = Vec::new();
            return true;
        }
        if matches!(connection.phase, Phase::Open | Phase::Closing) {
            match self.own_fpdu(conn, record, memory) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(fault) => self.fail(conn, fault),
            }
        }
        let terminated = self.terminate(conn, record, memory);
        if let Some(connection) = self.conns.get_mut(conn.0) {
            connection.queued = terminated;
        }
        self.settle();
        terminated
    }

    /// The stream took so many octets of what was appended. Sends and Writes complete by this.
    pub fn sent(&mut self, conn: Conn, octets: usize) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.taken = connection.taken.saturating_add(octets as u64).min(connection.position);
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.taken = connection.taken;
            queue_pair.release(&mut self.shared);
        }
        if !matches!(connection.phase, Phase::Open) {
            self.close_if_quiet(conn);
        }
        self.settle();
    }

    /// Says how many octets fit into a segment of the stream; no FPDU is longer from now on.
    pub fn set_emss(&mut self, conn: Conn, octets: usize) {
        if let Some(connection) = self.conns.get_mut(conn.0) {
            connection.emss = octets;
            connection.framer.set_emss(octets);
        }
    }

    /// The stream has ended; what came before was handed in.
    pub fn ended(&mut self, now: Instant, conn: Conn, end: End) {
        self.now = now;
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let whole = end == End::Finished && connection.deframer.between() && !connection.partial;
        match connection.phase {
            Phase::Requested(_) | Phase::Awaited { .. } => {
                self.give_up(conn, Why::Ended(end), end == End::Reset)
            }
            Phase::Open | Phase::Closing if !connection.established => {
                self.give_up(conn, Why::Ended(end), end == End::Reset);
            }
            Phase::Open | Phase::Closing => {
                if !whole {
                    connection.last_words = None;
                    self.report(conn, Cause::MPA_LOST, true);
                }
                self.detach(conn);
                self.close(conn, end == End::Reset);
            }
            Phase::Ending => self.close(conn, end == End::Reset),
        }
        self.settle();
    }

    /// When [`Rnic::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((due, _))| *due)
    }

    /// It is `now`.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        while let Some(&Reverse((due, conn))) = self.timers.peek() {
            if due > now {
                break;
            }
            self.timers.pop();
            let Some(connection) = self.conns.get_mut(conn) else { continue };
            if connection.due != due {
                continue;
            }
            connection.due = Instant::NEVER;
            match connection.phase {
                Phase::Requested(_) | Phase::Awaited { .. } => self.give_up(Conn(conn), Why::Timeout, true),
                Phase::Open if !connection.established => self.give_up(Conn(conn), Why::Timeout, true),
                Phase::Open => self.wake(Conn(conn)),
                Phase::Closing | Phase::Ending => {
                    self.detach(Conn(conn));
                    self.close(Conn(conn), true);
                }
            }
        }
        self.settle();
    }
}

/// What the doors are made of.
impl Rnic {
    /// Has the stream asked for output.
    pub(super) fn wake(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.get_mut(conn.0)
            && !connection.queued
        {
            connection.queued = true;
            self.ready.push_back(conn);
        }
    }

    fn arm_timer(&mut self, conn: u32, due: Instant) {
        if let Some(connection) = self.conns.get_mut(conn) {
            connection.due = due;
            self.timers.push(Reverse((due, conn)));
        }
    }

    /// Looks for the Request.
    fn request(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let Some(connection) = self.conns.get_mut(conn.0) else { return 0 };
        let Phase::Awaited { responder, answer } = &mut connection.phase else { return 0 };
        match responder.input(bytes) {
            Asked::More => 0,
            Asked::Request { peer: PeerDepths { ird, ord }, private_data, consumed } => {
                *answer = true;
                connection.due = Instant::NEVER;
                let private_data = private_data.to_vec();
                self.shared.events.push_back(Event::Request { conn, private_data, ird, ord });
                consumed
            }
            Asked::Failed(why) => {
                self.give_up(conn, Why::Start(why), true);
                0
            }
        }
    }

    /// Looks for the Reply.
    fn reply(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let Some(connection) = self.conns.get_mut(conn.0) else { return 0 };
        let Phase::Requested(initiator) = &connection.phase else { return 0 };
        let Some(qp) = connection.qp else { return 0 };
        match initiator.input(bytes) {
            Answer::More => 0,
            Answer::Accepted { negotiated, private_data, consumed, .. } => {
                let private_data = private_data.to_vec();
                connection.phase = Phase::Open;
                connection.open(negotiated, &self.shared);
                connection.due = Instant::NEVER;
                let hold = connection.hold.as_ns();
                let until = self.now.after(hold);
                connection.hold = until;
                if let Some(queue_pair) = self.qps.get_mut(qp.0) {
                    queue_pair.open(negotiated);
                }
                if hold > 0 {
                    self.arm_timer(conn.0, until);
                }
                self.establish(conn, private_data);
                self.wake(conn);
                consumed
            }
            Answer::Rejected { peer: PeerDepths { ird, ord }, private_data, consumed } => {
                let private_data = private_data.to_vec();
                self.shared.events.push_back(Event::Rejected { conn, qp, private_data, ird, ord });
                self.release_qp(conn);
                self.end(conn);
                consumed
            }
            Answer::Failed { why, terminate } => {
                let Some(negotiated) = terminate else {
                    self.give_up(conn, Why::Start(why), true);
                    return 0;
                };
                connection.open(negotiated, &self.shared);
                let cause = Cause { code: why.code(), ..Cause::MPA_LOCAL };
                connection.last_words = Some(Box::new(Fault::own(cause)));
                self.shared.events.push_back(Event::Failed { conn, qp: Some(qp), why: Why::Start(why) });
                self.release_qp(conn);
                self.end(conn);
                0
            }
        }
    }

    /// Takes FPDUs.
    fn fpdus<M: Memory>(&mut self, conn: Conn, bytes: &[u8], memory: &mut M) -> usize {
        let mut used = 0;
        loop {
            let Some(connection) = self.conns.get_mut(conn.0) else { return used };
            let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return used };
            let (arrived, last) = match connection.deframer.next(&bytes[used..], &mut self.scratch) {
                Step::More => return used,
                Step::Bad(fault) => {
                    self.fail(conn, Fault::own(cause_of(fault)));
                    return used;
                }
                Step::Piece { header, payload, rest, consumed, last } => {
                    used += consumed;
                    (queue_pair.arrive(header, payload, rest, &mut self.shared, memory), last)
                }
            };
            // What is wrong above MPA was a valid FPDU all the same.
            if (last || arrived.is_err()) && connection.waits() {
                self.heard(conn, arrived.is_ok());
            }
            match arrived {
                Ok(Outcome::Placed) => {}
                Ok(outcome) => {
                    self.came(conn, outcome);
                    if self.conns.get(conn.0).is_none_or(|c| matches!(c.phase, Phase::Ending)) {
                        return used;
                    }
                }
                Err(fault) => {
                    self.fail(conn, fault);
                    return used;
                }
            }
        }
    }

    /// A responder has its first FPDU, and may send.
    #[cold]
    fn heard(&mut self, conn: Conn, well: bool) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.first = First::Free;
        connection.due = if connection.established { connection.due } else { Instant::NEVER };
        if well && !connection.established {
            self.establish(conn, Vec::new());
        }
        self.wake(conn);
    }

    /// Something came that asks for more than being placed.
    fn came(&mut self, conn: Conn, outcome: Outcome) {
        match outcome {
            Outcome::Placed => {}
            Outcome::Wake => {
                self.wake(conn);
                self.close_if_quiet(conn);
            }
            Outcome::Terminated(terminate) => self.terminated(conn, &terminate),
        }
    }

    /// The peer has ended the stream.
    fn terminated(&mut self, conn: Conn, terminate: &Terminate) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.blame_by(terminate);
        }
        self.report(conn, terminate.or.unwrap_or(terminate.cause), false);
        self.detach(conn);
        self.close(conn, false);
    }

    /// Appends an FPDU of the queue pair.
    fn own_fpdu<M: Memory>(
        &mut self,
        conn: Conn,
        record: &mut Record,
        memory: &mut M,
    ) -> Result<bool, Fault> {
        let Some(connection) = self.conns.get_mut(conn.0) else { return Ok(false) };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return Ok(false) };
        if !connection.may_send(self.now) {
            return queue_pair.local(&mut self.shared).map(|()| false);
        }
        let position = &mut connection.position;
        let mut out = Out { framer: &mut connection.framer, record, memory, position };
        if let First::Send(kind) = connection.first {
            connection.first = First::Free;
            let framed = queue_pair.ready_to_receive(kind, &mut out);
            return framed.map(|()| true).map_err(|_| Fault::own(Cause::LOCAL));
        }
        queue_pair.output(&mut self.shared, &mut out)
    }

    /// Appends the Terminate, if one is due.
    fn terminate<M: Memory>(&mut self, conn: Conn, record: &mut Record, memory: &mut M) -> bool {
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        let Some(fault) = connection.last_words.take() else {
            self.close_if_quiet(conn);
            return false;
        };
        let buffer = Buffer::Untagged { ulp: 0, qn: QN_TERMINATE, msn: 1, mo: 0 };
        let header = Header { last: true, control: Opcode::Terminate.control(), buffer };
        let payload = Terminate::emit(fault.cause, fault.about.as_ref());
        let position = &mut connection.position;
        let mut out = Out { framer: &mut connection.framer, record, memory, position };
        out.frame(&header, &[Piece::Bytes(&payload)]).is_ok()
    }

    /// Tells the program that it is connected.
    fn establish(&mut self, conn: Conn, private_data: Vec<u8>) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        connection.established = true;
        queue_pair.state = QpState::Ready;
        let (qp, ird, ord) = (queue_pair.number, queue_pair.answers.limit, queue_pair.requests.limit);
        self.shared.events.push_back(Event::Established { conn, qp, private_data, ird, ord });
    }

    /// Tells the program of an error of an established connection.
    fn report(&mut self, conn: Conn, cause: Cause, ours: bool) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        let Some(qp) = connection.qp else { return };
        let event = if connection.established {
            Event::QpFailed { qp, cause, ours }
        } else {
            Event::Failed { conn, qp: Some(qp), why: Why::Fault(cause) }
        };
        self.shared.events.push_back(event);
    }

    /// An error ends the stream: a Terminate tells the peer, if FPDUs may be sent.
    fn fail(&mut self, conn: Conn, fault: Fault) {
        self.report(conn, fault.cause, true);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let silent = connection.waits();
        if !silent && connection.last_words.is_none() {
            connection.last_words = Some(Box::new(fault));
        }
        self.detach(conn);
        if silent {
            self.close(conn, true);
        } else {
            self.end(conn);
        }
    }

    /// An error that no segment caused ends a queue pair's connection.
    pub(super) fn abort(&mut self, qp: Qp, fault: &Fault) {
        let Some(queue_pair) = self.qps.get_mut(qp.0) else { return };
        match queue_pair.conn {
            Some(conn) => {
                self.fail(conn, fault.clone());
            }
            None => queue_pair.fail(&mut self.shared),
        }
    }

    /// The queue pair of the stream is at its end.
    fn detach(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(qp) = connection.qp.take() else { return };
        let Some(queue_pair) = self.qps.get_mut(qp.0) else { return };
        queue_pair.fail(&mut self.shared);
        if connection.established {
            self.shared.events.push_back(Event::Disconnected { qp });
        }
    }

    /// The queue pair of the stream is idle again: there is no connection.
    fn release_qp(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.take().and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        queue_pair.unstart(&mut self.shared);
    }

    /// There will be no connection.
    fn give_up(&mut self, conn: Conn, why: Why, reset: bool) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        let qp = connection.qp;
        self.shared.events.push_back(Event::Failed { conn, qp, why });
        self.release_qp(conn);
        self.close(conn, reset);
    }

    /// The queue pair is destroyed.
    pub(super) fn orphan(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        let reset = !connection.established || connection.position != connection.taken;
        self.close(conn, reset);
    }

    /// What is left is sent, and then the stream closed.
    fn end(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.get_mut(conn.0) {
            connection.phase = Phase::Ending;
        }
        let due = self.now.after(self.shared.config.close_timeout_ns);
        self.arm_timer(conn.0, due);
        self.wake(conn);
        self.close_if_quiet(conn);
    }

    /// Closes the stream if it is ending and nothing is left.
    fn close_if_quiet(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0).filter(|c| c.is_drained()) else { return };
        let quiet = |qp: Qp| self.qps.get(qp.0).is_none_or(QueuePair::is_quiet);
        match connection.phase {
            Phase::Ending => self.close(conn, false),
            Phase::Closing
                if !matches!(connection.first, First::Send(_)) && connection.qp.is_none_or(quiet) =>
            {
                self.detach(conn);
                self.close(conn, false);
            }
            _ => {}
        }
    }

    /// The end.
    fn close(&mut self, conn: Conn, reset: bool) {
        if self.conns.remove(conn.0).is_some() {
            self.shared.events.push_back(Event::Close { conn, reset });
        }
    }
}

/// What a Terminate says of an FPDU that is not right.
const fn cause_of(fault: fpdu::Fault) -> Cause {
    match fault {
        fpdu::Fault::Crc => Cause::MPA_CRC,
        fpdu::Fault::Marker => Cause::MPA_MARKER,
        fpdu::Fault::Short => Cause::DDP_LOCAL,
    }
}
