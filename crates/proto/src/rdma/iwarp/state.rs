//! What iWARP keeps of a queue pair.

use crate::rdma::iwarp::acks::Placement;
use crate::rdma::iwarp::outstanding::Requests;
use crate::rdma::iwarp::responses::Answers;
use crate::rdma::iwarp::segment::Arrival;

/// What iWARP keeps of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct IwarpState {
    pub(crate) requests: Requests,
    pub(crate) answers: Answers,
    pub(crate) arrival: Arrival,
    pub(crate) placement: Placement,
    /// The peer's first message may be a Send that only opens the connection.
    pub(crate) opened_by_send: bool,
    /// Octets that the stream has taken since it was up.
    pub(crate) taken: u64,
    /// We have asked for the connection; and the peer has sent a segment.
    pub(crate) asked: bool,
    pub(crate) met: bool,
}

impl IwarpState {
    /// The queue pair is at its end.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.answers.clear();
        self.arrival = Arrival::default();
    }

    /// Nothing is left to send or to wait for.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.placement.is_owed() && self.answers.is_empty() && self.requests.is_empty()
    }
}
