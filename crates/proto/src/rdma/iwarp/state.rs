//! The iWARP state of a queue pair.

use crate::rdma::iwarp::acks::WriteAcks;
use crate::rdma::iwarp::ahead::PlacedSegments;
use crate::rdma::iwarp::outstanding::OutstandingRequests;
use crate::rdma::iwarp::responses::PendingResponses;
use crate::rdma::iwarp::segment::RxSegment;

/// The iWARP state of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct IwarpState {
    pub(crate) outstanding: OutstandingRequests,
    pub(crate) responses: PendingResponses,
    pub(crate) segment: RxSegment,
    pub(crate) acks: WriteAcks,
    pub(crate) ahead: PlacedSegments,
    /// True if the peer's first message may be a Send that only opens the connection.
    pub(crate) opened_by_send: bool,
    /// The number of bytes that the stream has taken since it was up.
    pub(crate) taken: u64,
    /// True if this end is the initiator of the connection.
    pub(crate) initiator: bool,
    pub(crate) peer_seen: bool,
}

impl IwarpState {
    /// Drops requests, responses and the current segment, for a failed queue pair.
    pub(crate) fn clear(&mut self) {
        self.outstanding.clear();
        self.responses.clear();
        self.segment = RxSegment::default();
        self.ahead.clear();
    }

    /// True if the queue pair has no response, acknowledgement or hello to send to the peer.
    pub(crate) fn owes_nothing(&self) -> bool {
        !self.acks.is_pending() && !self.acks.hello && self.responses.is_empty()
    }

    /// True if the queue pair has no response or acknowledgement to send and none to wait for.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.acks.is_pending() && self.responses.is_empty() && self.outstanding.is_empty()
    }
}
