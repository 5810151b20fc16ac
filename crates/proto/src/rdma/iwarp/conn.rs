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
//! event is its [`crate::rdma::Event::Close`]. A responder sends no FPDU before the first one it received.
//! Not here: sockets, and which stream belongs to whom.

mod setup;
mod unexpected;
mod write_ack;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::Instant;
use crate::rdma::iwarp::fpdu::{Deframer, Framer};
use crate::rdma::iwarp::start::{Depths, First, Initiator, Misuse, Negotiated, Responder, Wishes};
use crate::rdma::options::{AcceptOptions, ConnectOptions, End, QpState, Why};
use crate::rdma::qp::Fault;
use crate::rdma::rnic::{Rnic, Shared};
use crate::rdma::{Conn, Memory, PostError, Qp, Record, Span};
use crate::wire::mpa::{Rtr, RtrKind};
use crate::wire::rdmap::Cause;
use crate::wire::write_ack::Placed;

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
pub(in crate::rdma) struct Connection {
    qp: Option<Qp>,
    phase: Phase,
    /// A start-up frame to send.
    frame: Vec<u8>,
    /// What the peer is still to be told of its Writes,
    parting: Option<Placed>,
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
    /// The first own FPDU only opens the connection.
    opens: bool,
    /// When its patience ends.
    due: Instant,
    /// When that with a message without a receive does.
    rnr_due: Instant,
    /// When a peer that has said nothing is no longer waited for.
    unsure_due: Instant,
    /// The peer has sent its last octet, and what came before waits for receives.
    finished: bool,
    /// The peer has sent its last octet, and the stream is stalled before it.
    unread: bool,
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
            parting: None,
            last_words: None,
            framer: Framer::new(None, false),
            deframer: Deframer::new(None, false),
            first: First::Wait,
            emss: usize::MAX,
            established: false,
            hold: Instant::ZERO,
            opens: false,
            due: Instant::NEVER,
            rnr_due: Instant::NEVER,
            unsure_due: Instant::NEVER,
            finished: false,
            unread: false,
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
        self.frame.is_empty()
            && self.parting.is_none()
            && self.last_words.is_none()
            && self.position == self.taken
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
    pub fn connect(
        &mut self,
        now: Instant,
        qp: Qp,
        options: &ConnectOptions,
    ) -> Result<Conn, PostError> {
        self.shared.now = now;
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
        let due = now.after(config.reply_timeout_ns);
        queue_pair.start(Conn(conn), options.rnr_timeout_ns);
        queue_pair.asked = true;
        // What opens a peer-to-peer connection otherwise comes before a hello could.
        if !config.acknowledge_writes
            || options.peer_to_peer.is_some_and(|kind| kind != RtrKind::Write)
        {
            queue_pair.placement.foreign();
        }
        if let Some(connection) = self.conns.get_mut(conn) {
            (connection.qp, connection.frame) = (Some(qp), frame);
            connection.hold = Instant::from_ns(options.hold_ns);
            connection.opens = options.opens;
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
        self.shared.now = now;
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

    /// Accepts what [`crate::rdma::Event::Request`] told of, with an idle queue pair.
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
        self.shared.now = now;
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
        queue_pair.start(conn, options.rnr_timeout_ns);
        if !self.shared.config.acknowledge_writes {
            queue_pair.placement.foreign();
        }
        queue_pair.open(agreed);
        if let First::WaitFor(_) = agreed.first {
            let due = now.after(self.shared.config.start_timeout_ns);
            self.arm_timer(conn.0, due);
        } else {
            self.establish(conn, Vec::new());
            if let Some(patience_ns) = options.patience_ns {
                self.arm_timer(conn.0, now.after(patience_ns));
            }
        }
        self.wake(conn);
        Ok(())
    }

    /// Refuses what [`crate::rdma::Event::Request`] told of.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such request; [`PostError::TooLong`] for private data. The request stands then.
    pub fn reject(
        &mut self,
        now: Instant,
        conn: Conn,
        private_data: &[u8],
    ) -> Result<(), PostError> {
        self.shared.now = now;
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
        self.shared.now = now;
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
                self.wake(conn);
                self.close_if_quiet(conn);
            }
            Phase::Closing | Phase::Ending => {}
            _ => self.give_up(conn, Why::Cancelled, true),
        }
        Ok(())
    }

    /// Takes what arrived: `bytes` are all octets of the stream that were not consumed before and are there. Returns how
    /// many are consumed; the caller keeps the others in front of what comes next, at most 72 KiB. While the stream
    /// [is stalled](Rnic::is_stalled) nothing is consumed.
    pub fn input<M: Memory>(
        &mut self,
        now: Instant,
        conn: Conn,
        bytes: &[u8],
        memory: &mut M,
    ) -> usize {
        self.shared.now = now;
        let mut used = 0;
        if self.is_stalled(conn) {
            return 0;
        }
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
                if self.shared.unready.messages > 0 {
                    self.mind_unready(conn);
                }
                used
            }
            None => bytes.len(),
        }
    }

    /// The stream is to be read no further: so much has come for which no receive is posted. When there is room again it is
    /// named by [`Rnic::ready`].
    #[inline]
    pub fn is_stalled(&mut self, conn: Conn) -> bool {
        self.shared.unready.messages > 0 && self.has_kept_too_much(conn)
    }

    #[cold]
    fn has_kept_too_much(&mut self, conn: Conn) -> bool {
        let queue_pair =
            self.conns.get(conn.0).and_then(|c| c.qp).and_then(|qp| self.qps.get(qp.0));
        queue_pair.is_some_and(|queue_pair| queue_pair.is_stalled(&mut self.shared))
    }

    /// Gives receives that have been posted to messages that came before them; [`Rnic::output`] does so too, but who cannot
    /// send must not wait with it.
    pub fn take_up<M: Memory>(&mut self, now: Instant, conn: Conn, memory: &mut M) {
        self.shared.now = now;
        if self.shared.unready.messages > 0 {
            self.take_up_unready(conn, memory);
            self.settle();
        }
    }

    /// The stream's next octets, all that were there before being consumed, may be read straight to here; then say so by
    /// [`Rnic::placed`], with nothing called in between. `None` if they have to come by [`Rnic::input`].
    pub fn direct(&mut self, conn: Conn) -> Option<Span> {
        let connection = self.conns.get_mut(conn.0)?;
        let rest = connection.deframer.rest();
        if rest == 0
            || connection.partial
            || !matches!(connection.phase, Phase::Open | Phase::Closing)
        {
            return None;
        }
        let span = self.qps.get_mut(connection.qp?.0)?.direct(&self.shared)?;
        Some(Span { len: span.len.min(rest as u32), ..span })
    }

    /// True while answers to own Reads are awaited on a stream whose payload may be read straight to its place.
    #[must_use]
    pub fn is_reading(&self, conn: Conn) -> bool {
        let Some(connection) = self.conns.get(conn.0) else { return false };
        let queue_pair = connection.qp.and_then(|qp| self.qps.get(qp.0));
        connection.deframer.in_pieces() && queue_pair.is_some_and(|qp| !qp.requests.is_empty())
    }

    /// So many octets were read to where [`Rnic::direct`] said, not more than the span's.
    pub fn placed<M: Memory>(&mut self, now: Instant, conn: Conn, octets: u32, memory: &mut M) {
        self.shared.now = now;
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
        if self.shared.rides.front().is_some_and(|(due, _)| *due <= self.shared.now) {
            self.end_rides();
        }
        loop {
            let conn = self.ready.pop_front()?;
            if self.conns.get(conn.0).is_some() {
                return Some(conn);
            }
        }
    }

    /// [`Rnic::ready`] would name a stream, or one that has gone.
    #[inline]
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Appends what is next on the stream to `record`: one frame of the start-up or one FPDU. False if there is nothing.
    pub fn output<M: Memory>(
        &mut self,
        now: Instant,
        conn: Conn,
        record: &mut Record,
        memory: &mut M,
    ) -> bool {
        self.shared.now = now;
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        if !connection.frame.is_empty() {
            record.append(&connection.frame);
            connection.position += connection.frame.len() as u64;
            connection.frame = Vec::new();
            return true;
        }
        if self.shared.unready.messages > 0 {
            self.take_up_unready(conn, memory);
        }
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
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

    /// Memory that a record named cannot be read although it could be when it was named: its FPDU cannot be made whole. So
    /// the request that it is of fails, if it is of one, and the stream ends without a word.
    pub fn unreadable(&mut self, now: Instant, conn: Conn, span: Span) {
        self.shared.now = now;
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.last_words = None;
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.blame_source(span, &self.shared);
        }
        self.report(conn, Cause::LOCAL, true);
        self.detach(conn);
        self.close(conn, true);
        self.settle();
    }

    /// Says how many octets fit into a segment of the stream; no FPDU is longer from now on.
    pub fn set_emss(&mut self, conn: Conn, octets: usize) {
        if let Some(connection) = self.conns.get_mut(conn.0) {
            connection.emss = octets;
            connection.framer.set_emss(octets);
        }
    }

    /// The stream has ended; what came before was handed in, unless the end is [`End::Unread`].
    pub fn ended(&mut self, now: Instant, conn: Conn, end: End) {
        self.shared.now = now;
        if end == End::Unread {
            return self.leaves_unread(conn);
        }
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let whole = end == End::Finished && connection.deframer.between() && !connection.partial;
        if whole && matches!(connection.phase, Phase::Open) && self.outlives_peer(conn) {
            return;
        }
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
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
        let ride = self.shared.rides.front().map(|(due, _)| *due);
        let timer = self.timers.peek().map(|Reverse((due, _))| *due);
        timer.into_iter().chain(ride).min()
    }

    /// It is `now`.
    pub fn tick(&mut self, now: Instant) {
        self.shared.now = now;
        self.end_rides();
        while let Some(&Reverse((due, conn))) = self.timers.peek() {
            if due > now {
                break;
            }
            self.timers.pop();
            let Some(connection) = self.conns.get_mut(conn) else { continue };
            if connection.rnr_due == due && self.is_out_of_patience(Conn(conn)) {
                continue;
            }
            let Some(connection) = self.conns.get_mut(conn) else { continue };
            if connection.unsure_due == due {
                self.give_up_on_hello(Conn(conn));
            }
            let Some(connection) = self.conns.get_mut(conn) else { continue };
            if connection.due != due {
                // It may have got another deadline since; that its FPDUs may go now still counts.
                if connection.hold == due {
                    self.wake(Conn(conn));
                }
                continue;
            }
            connection.due = Instant::NEVER;
            match connection.phase {
                Phase::Requested(_) | Phase::Awaited { .. } => {
                    self.give_up(Conn(conn), Why::Timeout, true)
                }
                Phase::Open if !connection.established => {
                    self.give_up(Conn(conn), Why::Timeout, true)
                }
                Phase::Open if connection.finished => self.finish(Conn(conn)),
                Phase::Open if connection.unread => self.end_unread(Conn(conn)),
                Phase::Open => {
                    // Whoever should have sent first has not: the patience with him is over.
                    if connection.first == First::Wait {
                        connection.first = First::Free;
                        self.takes_for_foreign(Conn(conn));
                    }
                    self.wake(Conn(conn));
                }
                Phase::Closing | Phase::Ending => {
                    self.detach(Conn(conn));
                    self.close(Conn(conn), true);
                }
            }
        }
        self.settle();
    }
}
