//! A stream.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::ids::Qp;
use crate::rdma::iwarp::deframer::Deframer;
use crate::rdma::iwarp::error::Fault;
use crate::rdma::iwarp::framer::Framer;
use crate::rdma::iwarp::start::{FirstFpdu, Initiator, Negotiated, Responder};
use crate::rdma::shared::Shared;
use crate::wire::write_ack::WriteAck;

/// How far a stream is.
#[derive(Debug)]
pub(in crate::rdma) enum Phase {
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
    pub(crate) qp: Option<Qp>,
    pub(crate) phase: Phase,
    /// A start-up frame to send.
    pub(crate) frame: Vec<u8>,
    /// What the peer is still to be told of its Writes,
    pub(crate) final_ack: Option<WriteAck>,
    /// The Terminate to send.
    pub(crate) pending_terminate: Option<Box<Fault>>,
    pub(crate) framer: Framer,
    pub(crate) deframer: Deframer,
    pub(crate) first: FirstFpdu,
    /// Bytes that fit into a segment of the stream.
    pub(crate) emss: usize,
    /// The program was told that it is connected.
    pub(crate) established: bool,
    /// Own FPDUs wait until then.
    pub(crate) tx_not_before: Instant,
    /// The first own FPDU only opens the connection.
    pub(crate) open_with_write: bool,
    /// When its patience ends.
    pub(crate) deadline: Instant,
    /// When that with a message without a receive does.
    pub(crate) rnr_deadline: Instant,
    /// When a peer that has said nothing is no longer waited for.
    pub(crate) hello_deadline: Instant,
    /// The peer has sent its last byte, and what came before waits for receives.
    pub(crate) peer_finished: bool,
    /// The peer has sent its last byte, and the stream is stalled before it.
    pub(crate) end_unread: bool,
    /// Bytes appended, and those that the stream took.
    pub(crate) position: u64,
    pub(crate) taken: u64,
    /// In the list of those that have something to send, or about to be asked again.
    pub(crate) is_ready: bool,
    /// The caller holds bytes that were not consumed.
    pub(crate) has_partial_input: bool,
}

impl Connection {
    pub(crate) fn new(phase: Phase) -> Self {
        Self {
            qp: None,
            phase,
            frame: Vec::new(),
            final_ack: None,
            pending_terminate: None,
            framer: Framer::new(None, false),
            deframer: Deframer::new(None, false),
            first: FirstFpdu::Wait,
            emss: usize::MAX,
            established: false,
            tx_not_before: Instant::ZERO,
            open_with_write: false,
            deadline: Instant::NEVER,
            rnr_deadline: Instant::NEVER,
            hello_deadline: Instant::NEVER,
            peer_finished: false,
            end_unread: false,
            position: 0,
            taken: 0,
            is_ready: false,
            has_partial_input: false,
        }
    }

    /// FPDUs may be sent.
    pub(crate) fn may_send(&self, now: Instant) -> bool {
        !self.waits() && now >= self.tx_not_before
    }

    /// It is the peer who has to send first.
    pub(crate) const fn waits(&self) -> bool {
        matches!(self.first, FirstFpdu::Wait | FirstFpdu::WaitFor(_))
    }

    /// All that was appended is gone, and no more is due.
    pub(crate) fn is_drained(&self) -> bool {
        self.frame.is_empty()
            && self.final_ack.is_none()
            && self.pending_terminate.is_none()
            && self.position == self.taken
    }

    /// Full operation begins as agreed.
    pub(crate) fn open(&mut self, negotiated: Negotiated, shared: &Shared) {
        let crc = negotiated.crc.then_some(shared.config.crc32c);
        self.framer = Framer::new(crc, negotiated.markers_out);
        self.framer.set_emss(self.emss);
        self.deframer = Deframer::new(crc, negotiated.markers_in);
        self.first = negotiated.first;
    }
}
