//! Segments that arrive before their turn: behind bytes of the stream that are missing.
//!
//! ```text
//!  input_ahead ─► a marker names an FPDU ─► CRC ─► checks ─► placed, remembered
//!  its turn ────► deliver_ahead ─► the same checks ─► delivery, without its bytes
//! ```
//!
//! What is placed: the payload of a Write, or of a response to a Read that this end waits for, in
//! an FPDU that begins at a known place. RFC 5044 section 6 allows two ways to find that place
//! behind missing bytes: a marker, and the length of a valid FPDU before it. The beginning of a TCP
//! segment is none (appendix A.4): a router that cuts segments anew, or a path MTU that falls, may
//! put the payload of a third party there, with a CRC and a header of its own. So nothing is placed
//! without markers and CRCs.
//!
//! Invariants: nothing but memory changes before the turn of a segment. In its turn all its checks
//! are made again, with the errors that they have there, also if its tag has ended meanwhile. What
//! was placed is what the CRC was right for: the engine ignores another copy of the bytes. A
//! segment that cannot be placed, or is wrong, stays with the stream.
//!
//! Memory in the end holds what an engine without this would leave there, for segments that are
//! placed under one registration: two registrations of the same memory count as two memories.
//! Until then a program sees later bytes before earlier ones (RFC 5040 section 5.5).

use crate::Instant;
use crate::rdma::ids::{Conn, Stag};
use crate::rdma::iwarp::ahead::PlacedSegment;
use crate::rdma::iwarp::connection::Phase;
use crate::rdma::iwarp::deframer::Deframed;
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::iwarp::outstanding::RequestKind;
use crate::rdma::iwarp::rx::Outcome;
use crate::rdma::memory::{Memory, Span};
use crate::rdma::mr::Right;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::recv_queue::Place;
use crate::rdma::rnic::Rnic;
use crate::rdma::shared::Shared;
use crate::rdma::work::{Sge, scatter};
use crate::wire::ddp::{self, Buffer, HeaderBytes};
use crate::wire::rdmap::Opcode;

/// The most bytes that may be missing before others.
const MOST_MISSING: u32 = 1 << 30;

impl Rnic {
    /// Takes bytes of a stream that arrived before their turn, behind `at` bytes of the stream,
    /// modulo 2³². Places the payload in them that can be placed. Returns its number of bytes. The
    /// caller keeps all bytes for their turn.
    pub fn input_ahead<M: Memory>(
        &mut self,
        now: Instant,
        conn: Conn,
        at: u32,
        bytes: &[u8],
        memory: &mut M,
    ) -> usize {
        self.shared.now = now;
        let Some(connection) = self.conns.get_mut(conn.0) else { return 0 };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else {
            return 0;
        };
        let is_open = matches!(connection.phase, Phase::Open | Phase::Closing);
        let missing = at.wrapping_sub(connection.consumed);
        // The first segment tells the kind of the peer.
        if !is_open || connection.waits() || !queue_pair.iwarp.peer_seen || missing > MOST_MISSING {
            return 0;
        }
        let found = connection.deframer.find_ahead(missing as usize, bytes);
        let Some((mut from, mut deframer)) = found else { return 0 };
        let mut placed = 0;
        while let Deframed::Piece { header: Some(header), payload, consumed, .. } =
            deframer.next(&bytes[from..], &mut self.scratch)
        {
            let place = (at.wrapping_add(from as u32), consumed as u32);
            let about = (connection.consumed, place, header);
            placed += queue_pair.place_ahead(about, payload, &self.shared, memory);
            from += consumed;
        }
        placed
    }

    /// Returns the number of bytes of a stream from those that the engine has consumed up to the
    /// next segment that was placed before its turn, and the length of that segment in the stream.
    #[inline]
    pub fn next_ahead(&mut self, conn: Conn) -> Option<(usize, usize)> {
        let connection = self.conns.get(conn.0)?;
        let queue_pair = self.qps.get_mut(connection.qp?.0)?;
        if queue_pair.iwarp.ahead.is_empty() {
            return None;
        }
        let (distance, len) = queue_pair.iwarp.ahead.next(connection.consumed)?;
        Some((distance as usize, len as usize))
    }

    /// Delivers the segment that follows the consumed bytes of the stream, if it was placed before
    /// its turn. The caller has its bytes. Returns their number, and the caller drops as many; with
    /// 0 it hands them to [`Rnic::input`].
    pub fn deliver_ahead<M: Memory>(&mut self, now: Instant, conn: Conn, memory: &mut M) -> usize {
        self.shared.now = now;
        if self.is_stalled(conn) {
            return 0;
        }
        if self.shared.unexpected.messages > 0 {
            self.place_unexpected_of(conn, memory);
        }
        let Some(connection) = self.conns.get_mut(conn.0) else { return 0 };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else {
            return 0;
        };
        let segment = queue_pair.iwarp.ahead.take(connection.consumed);
        let Some(segment) = segment.filter(|s| queue_pair.is_still_placed(s, &self.shared)) else {
            return 0;
        };
        connection.consumed = connection.consumed.wrapping_add(segment.len);
        connection.deframer.pass(segment.len as usize);
        connection.has_partial_input = false;
        queue_pair.deferral.last_received = now;
        match queue_pair.deliver_placed(&segment, &mut self.shared, memory) {
            Ok(outcome) => self.handle_outcome(conn, outcome),
            Err(fault) => self.fail(conn, fault),
        }
        self.settle();
        segment.len as usize
    }
}

impl QueuePair {
    /// Places a segment before its turn, if that is possible. It follows the consumed bytes of the
    /// stream in some distance. Returns the number of bytes placed.
    fn place_ahead<M: Memory>(
        &mut self,
        (consumed, (at, len), raw): (u32, (u32, u32), &[u8]),
        payload: &[u8],
        shared: &Shared,
        memory: &mut M,
    ) -> usize {
        let Some(span) = self.span_ahead(raw, payload.len() as u32, shared) else { return 0 };
        let Some(index) = self.iwarp.ahead.room(consumed, at, len, span) else { return 0 };
        if memory.write(span, payload).is_err() {
            return 0;
        }
        let mut header = HeaderBytes::new();
        let _ = header.try_extend_from_slice(raw);
        let segment = PlacedSegment { at, len, header, span, changes: shared.mr.changes() };
        self.iwarp.ahead.insert(index, segment);
        payload.len()
    }

    /// Returns the place of the payload of a segment before its turn. Changes nothing.
    fn span_ahead(&self, raw: &[u8], len: u32, shared: &Shared) -> Option<Span> {
        let header = ddp::parse(raw).ok()?;
        let Buffer::Tagged { stag, to } = header.buffer else { return None };
        if len == 0 {
            return None;
        }
        match Opcode::of(&header).ok()? {
            Opcode::Write => {
                shared.mr.remote(self.tag_user(), Stag(stag), to, len, Right::Write).ok()
            }
            Opcode::ReadResponse => {
                let end = to.checked_add(u64::from(len))?;
                let is_asked = self.iwarp.outstanding.queue.iter().any(|asked| {
                    let sink = asked.sink;
                    let sink_end = sink.addr.saturating_add(u64::from(sink.len));
                    asked.kind == RequestKind::Read
                        && sink.stag == Stag(stag)
                        && sink.addr <= to
                        && end <= sink_end
                });
                let sge = Sge { stag: Stag(stag), addr: to, len };
                is_asked.then(|| shared.mr.local(self.options.pd, sge, true).ok())?
            }
            _ => None,
        }
    }

    /// True if the payload of a segment is where it belongs: no tag has changed since it was
    /// placed.
    fn is_still_placed(&self, segment: &PlacedSegment, shared: &Shared) -> bool {
        let PlacedSegment { header, span, changes, .. } = segment;
        *changes == shared.mr.changes() && self.span_ahead(header, span.len, shared) == Some(*span)
    }

    /// Handles a segment in its turn whose payload is placed.
    fn deliver_placed<M: Memory>(
        &mut self,
        segment: &PlacedSegment,
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<Outcome, StreamError> {
        self.begin_arrival(&segment.header, segment.span.len as usize, shared)?;
        self.iwarp.segment.received = segment.span.len;
        self.end_arrival(None, shared, memory)
    }

    /// Forgets the segments that were placed before their turn where the next `len` bytes of the
    /// current segment are placed: in its turn each is placed again.
    #[cold]
    pub(super) fn forget_ahead(&mut self, len: u32, shared: &Shared) {
        let received = self.iwarp.segment.received;
        let ahead = &mut self.iwarp.ahead;
        if let Some(span) = self.iwarp.segment.span {
            return ahead.forget(Span { len, ..span.tail(received) });
        }
        let Buffer::Untagged { msn, mo, .. } = self.iwarp.segment.header.buffer else { return };
        let incoming = self.receive.incoming(msn).map(|incoming| &incoming.place);
        let Some(Place::Receive(request)) = incoming else { return };
        let pd = self.options.pd;
        let _ = scatter(&request.list, mo.wrapping_add(received), len, |sge| {
            shared.mr.local(pd, sge, true).map(|span| ahead.forget(span))
        });
    }
}
