//! The state of one stream: its phase, its framing and its deadlines.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::ids::Qp;
use crate::rdma::iwarp::deframer::Deframer;
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::iwarp::framer::Framer;
use crate::rdma::iwarp::start::{FirstFpdu, Initiator, Negotiated, Responder};
use crate::rdma::shared::Shared;
use crate::wire::write_ack::WriteAck;

/// The phase of a stream between its start-up and its end.
#[derive(Debug)]
pub(in crate::rdma) enum Phase {
    /// This end has sent MPA's Request and waits for the Reply.
    Requested(Box<Initiator>),
    /// The peer must send MPA's Request, or, if `answer` is set, the program must answer it.
    Awaited { responder: Box<Responder>, answer: bool },
    /// The stream is in full operation.
    Open,
    /// The stream is in full operation until everything is sent and answered.
    Closing,
    /// The stream has no queue pair. The engine sends the remaining bytes and drops its input.
    Ending,
}

/// The state of one stream.
#[derive(Debug)]
pub(in crate::rdma) struct Connection {
    pub(crate) qp: Option<Qp>,
    pub(crate) phase: Phase,
    /// The bytes of the start-up frame that are still to send.
    pub(crate) frame: Vec<u8>,
    /// The last acknowledgement of the peer's Writes, which is still to send.
    pub(crate) final_ack: Option<WriteAck>,
    /// The Terminate that is still to send.
    pub(crate) pending_terminate: Option<Box<StreamError>>,
    pub(crate) framer: Framer,
    pub(crate) deframer: Deframer,
    pub(crate) first: FirstFpdu,
    /// The number of bytes that fit into a segment of the stream.
    pub(crate) emss: usize,
    /// True if the event [`Established`](crate::rdma::Event::Established) was reported.
    pub(crate) established: bool,
    /// The time before which this end sends no FPDU.
    pub(crate) tx_not_before: Instant,
    /// True if this end's first FPDU is an empty Write that opens the connection.
    pub(crate) open_with_write: bool,
    /// The deadline of the stream's current phase.
    pub(crate) deadline: Instant,
    /// The deadline by which the first unexpected message must get a receive.
    pub(crate) rnr_deadline: Instant,
    /// The deadline for the first segment of a peer that has sent nothing.
    pub(crate) hello_deadline: Instant,
    /// True if the peer has sent its last byte, and messages before it wait for receives.
    pub(crate) peer_finished: bool,
    /// True if the peer has sent its last byte, and the stream is stalled before it.
    pub(crate) end_unread: bool,
    /// The number of bytes appended to the records to send, since the stream was up.
    pub(crate) position: u64,
    pub(crate) taken: u64,
    /// The number of received bytes of the stream that the engine has consumed, modulo 2³².
    pub(crate) consumed: u32,
    /// The stream is in the list of ready streams, or its owner will call `output` again.
    pub(crate) is_ready: bool,
    /// True if the caller holds input bytes that the engine has not consumed.
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
            consumed: 0,
            is_ready: false,
            has_partial_input: false,
        }
    }

    /// True if this end may send FPDUs now.
    pub(crate) fn may_send(&self, now: Instant) -> bool {
        !self.waits() && now >= self.tx_not_before
    }

    /// True if the peer must send its first FPDU before this end sends.
    pub(crate) const fn waits(&self) -> bool {
        matches!(self.first, FirstFpdu::Wait | FirstFpdu::WaitFor(_))
    }

    /// True if the stream has taken every byte and the engine has no more to send.
    pub(crate) fn is_drained(&self) -> bool {
        self.frame.is_empty()
            && self.final_ack.is_none()
            && self.pending_terminate.is_none()
            && self.position == self.taken
    }

    /// Enters full operation of the stream with the negotiated parameters.
    pub(crate) fn open(&mut self, negotiated: Negotiated, shared: &Shared) {
        let crc = negotiated.crc.then_some(shared.config.crc32c);
        self.framer = Framer::new(crc, negotiated.markers_out);
        self.framer.set_emss(self.emss);
        self.deframer = Deframer::new(crc, negotiated.markers_in);
        self.first = negotiated.first;
    }
}
