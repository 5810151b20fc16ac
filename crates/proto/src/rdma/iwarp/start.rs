//! MPA's start-up (RFC 5044 section 7, RFC 6581): one Request, one Reply, and the parameters that
//! both ends derive from them.
//!
//! ```text
//! Initiator::new ─ Request ─► Responder::input ─► the program accepts or rejects
//! Initiator::input ◄─ Reply ─ Responder::accept, Responder::reject
//! ```
//!
//! `input` takes all bytes of the stream that were not consumed yet, so nothing is buffered here. A
//! frame has at most 532 bytes. The initiator sends nothing before the Reply, and the responder
//! nothing before the initiator's first FPDU ([`FirstFpdu`]).
//!
//! Invariant: a peer's frame is refused only where an RFC says so; the negotiated parameters never
//! exceed the offer of either end.
//!
//! Not here: time (the owner of the stream has deadlines), FPDUs, and retries with revision 1 on a
//! new stream.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::rdma::error::PostError;
use crate::rdma::options::MAX_READ_DEPTH;
use crate::wire::mpa::{Enhanced, Kind, Malformed, REVISION_MAX, Rtr, RtrKind, Start, UNSAID};

/// The options for MPA's start-up of one end, before it knows the peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartOptions {
    /// True to use CRCs. Set this to false only at an administrator's explicit wish (RFC 5044
    /// section 4.4). The peer can still require them.
    pub crc: bool,
    /// True to request markers in the received stream.
    pub markers: bool,
    /// The MPA revision of a Request, 0 to 2. Depths and `rtr` are negotiated with revision 2 only.
    /// A responder takes the revision of the Request.
    pub revision: u8,
    /// For an initiator, the ready-to-receive frames with one of which it uses the peer-to-peer
    /// model. For a responder, the ready-to-receive frames that it accepts; `None` accepts all.
    pub rtr: Option<Rtr>,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self { crc: true, markers: false, revision: REVISION_MAX, rtr: None }
    }
}

/// The number of Reads and atomics that one end serves and requests at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depths {
    /// The inbound depth (IRD): the most Reads and atomics of the peer that this end serves at
    /// once.
    pub ird: u16,
    /// The outbound depth (ORD): the most Reads and atomics of this end in progress at once.
    pub ord: u16,
}

impl Depths {
    fn limited(self) -> Self {
        Self { ird: self.ird.min(MAX_READ_DEPTH), ord: self.ord.min(MAX_READ_DEPTH) }
    }
}

/// The read depths in the peer's start-up frame. `None` leaves a depth to the programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerDepths {
    /// The peer's inbound depth (IRD), if its frame states one.
    pub ird: Option<u16>,
    /// The peer's outbound depth (ORD), if its frame states one.
    pub ord: Option<u16>,
}

impl PeerDepths {
    fn new(enhanced: Option<Enhanced>) -> Self {
        let said = |depth: u16| (depth != UNSAID).then_some(depth);
        enhanced
            .map_or_else(Self::default, |block| Self { ird: said(block.ird), ord: said(block.ord) })
    }
}

/// The rule for the first FPDU of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstFpdu {
    /// This end may send its first FPDU at once.
    Free,
    /// This end sends an empty ready-to-receive frame of this kind before all others. The program
    /// does not see it.
    Send(RtrKind),
    /// This end sends nothing, not even a marker, before it has received a valid FPDU.
    Wait,
    /// This end sends nothing before it has received an empty ready-to-receive frame of one of
    /// these kinds. The program does not see that frame.
    WaitFor(Rtr),
}

/// The parameters that both ends have negotiated in MPA's start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// True if both ends send and check CRCs.
    pub crc: bool,
    /// True if the peer sends markers.
    pub markers_in: bool,
    /// True if this end sends markers.
    pub markers_out: bool,
    /// The negotiated MPA revision.
    pub revision: u8,
    /// The negotiated rule for the first FPDU.
    pub first: FirstFpdu,
    /// The negotiated depths for Reads and atomics of this end.
    pub depths: Depths,
}

/// The reason for a failed negotiation of MPA's start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NegotiationError {
    /// The peer's bytes are no valid start-up frame.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Both ends have the same role: an initiator received a Request, or a responder received a
    /// Reply.
    #[error("both ends have the same role")]
    Role,
    /// The Reply has another MPA revision than the Request, or only one of them has the block of
    /// RFC 6581.
    #[error("the Reply has another MPA revision than the Request")]
    Mismatch,
    /// The initiator sent bytes after its Request and before the Reply.
    #[error("the initiator sent data before the Reply")]
    Early,
    /// The responder requires a higher read depth than this end offered.
    #[error("the responder requires a higher read depth than this end offers")]
    Depth,
    /// The responder accepts none of the ready-to-receive frames that this end offered.
    #[error("the two ends have no ready-to-receive frame in common")]
    Rtr,
}

impl NegotiationError {
    /// The error code of MPA (layer 2, type 0) in the Terminate for this failure.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Depth => 6,
            Self::Rtr => 7,
            _ => 4,
        }
    }
}

/// MPA's start-up refused a call. The call had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UsageError {
    /// The private data is longer than 512 bytes, or 508 with the block of RFC 6581.
    #[error("private data is too long")]
    PrivateData,
    /// The MPA revision does not exist, or has no peer-to-peer model.
    #[error("the MPA revision does not exist or has no peer-to-peer model")]
    Revision,
    /// The set of ready-to-receive frames is empty.
    #[error("the peer-to-peer model needs a ready-to-receive frame")]
    Rtr,
    /// No Request of the peer waits for an answer.
    #[error("there is no Request to answer")]
    State,
}

impl From<Malformed> for UsageError {
    fn from(malformed: Malformed) -> Self {
        if malformed == Malformed::PrivateData { Self::PrivateData } else { Self::Revision }
    }
}

impl From<UsageError> for PostError {
    fn from(misuse: UsageError) -> Self {
        match misuse {
            UsageError::PrivateData => Self::TooLong,
            _ => Self::Invalid,
        }
    }
}

/// Parses a start-up frame of `kind` at the start of `bytes`.
fn frame(kind: Kind, bytes: &[u8]) -> Result<Option<(Start<'_>, usize)>, NegotiationError> {
    match Start::parse(bytes)? {
        Some((start, _)) if start.kind != kind => Err(NegotiationError::Role),
        parsed => Ok(parsed),
    }
}

/// The end that sends MPA's Request.
#[derive(Clone, Copy, Debug)]
pub struct Initiator {
    options: StartOptions,
    depths: Depths,
}

/// The result of parsing MPA's Reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceivedReply<'a> {
    /// The Reply is incomplete: more bytes are needed.
    More,
    /// The responder accepted the connection.
    Accepted {
        /// The parameters that both ends have negotiated.
        negotiated: Negotiated,
        /// The peer's read depths as its Reply states them.
        peer: PeerDepths,
        /// The private data of the peer's program.
        private_data: &'a [u8],
        /// The length of the Reply in bytes. FPDUs follow it.
        consumed: usize,
    },
    /// The responder rejected the connection. The stream has no MPA from now on.
    Rejected {
        /// The read depths that the rejecting responder would need.
        peer: PeerDepths,
        /// The private data with which the peer's program rejected the connection.
        private_data: &'a [u8],
        /// The length of the Reply in bytes.
        consumed: usize,
    },
    /// The start-up failed at the peer's Reply.
    Failed {
        /// The reason for the failed start-up.
        why: NegotiationError,
        /// If set, the responder is in full operation, and a Terminate with
        /// [`NegotiationError::code`], framed by these parameters, must be sent before the stream
        /// closes. Otherwise the stream closes at once.
        terminate: Option<Negotiated>,
    },
}

impl Initiator {
    /// Creates the initiator of a start-up and appends its Request to `out`.
    ///
    /// # Errors
    /// [`UsageError`].
    pub fn new(
        options: StartOptions,
        depths: Depths,
        private_data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Self, UsageError> {
        let depths = depths.limited();
        if options.rtr.is_some_and(Rtr::is_empty) {
            return Err(UsageError::Rtr);
        }
        if options.rtr.is_some() && options.revision < 2 {
            return Err(UsageError::Revision);
        }
        let block = Enhanced { rtr: options.rtr, ird: depths.ird, ord: depths.ord };
        let request = Start {
            kind: Kind::Request,
            markers: options.markers,
            crc: options.crc,
            reject: false,
            revision: options.revision,
            enhanced: (options.revision >= 2).then_some(block),
            private_data,
        };
        request.emit(out)?;
        Ok(Self { options, depths })
    }

    /// Parses MPA's Reply at the start of `bytes`.
    #[must_use]
    pub fn input<'a>(&self, bytes: &'a [u8]) -> ReceivedReply<'a> {
        let (reply, consumed) = match frame(Kind::Reply, bytes) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return ReceivedReply::More,
            Err(why) => return ReceivedReply::Failed { why, terminate: None },
        };
        let (peer, private_data) = (PeerDepths::new(reply.enhanced), reply.private_data);
        if reply.reject {
            // A responder without RFC 6581 may reject in its own revision.
            return ReceivedReply::Rejected { peer, private_data, consumed };
        }
        if reply.revision != self.options.revision
            || reply.enhanced.is_some() != (self.options.revision >= 2)
        {
            return ReceivedReply::Failed { why: NegotiationError::Mismatch, terminate: None };
        }
        let negotiated = Negotiated {
            crc: self.options.crc || reply.crc,
            markers_in: self.options.markers,
            markers_out: reply.markers,
            revision: reply.revision,
            first: FirstFpdu::Free,
            depths: Depths {
                ird: self.depths.ird,
                ord: peer.ird.map_or(self.depths.ord, |ird| ird.min(self.depths.ord)),
            },
        };
        let failed = |why| ReceivedReply::Failed { why, terminate: Some(negotiated) };
        if peer.ord.is_some_and(|ord| ord > self.depths.ird) {
            return failed(NegotiationError::Depth);
        }
        let first = match self.options.rtr {
            // A Reply without the peer-to-peer flag accepts no first frame.
            Some(ours) => {
                match ours.and(reply.enhanced.and_then(|block| block.rtr).unwrap_or_default()) {
                    none if none.is_empty() => return failed(NegotiationError::Rtr),
                    common => common.cheapest().map_or(FirstFpdu::Free, FirstFpdu::Send),
                }
            }
            None => FirstFpdu::Free,
        };
        ReceivedReply::Accepted {
            negotiated: Negotiated { first, ..negotiated },
            peer,
            private_data,
            consumed,
        }
    }
}

/// The end that receives MPA's Request.
#[derive(Clone, Copy, Debug)]
pub struct Responder {
    options: StartOptions,
    request: Option<Request>,
}

/// The fields of a Request that determine the Reply.
#[derive(Clone, Copy, Debug)]
struct Request {
    markers: bool,
    crc: bool,
    revision: u8,
    enhanced: Option<Enhanced>,
}

/// The result of parsing MPA's Request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceivedRequest<'a> {
    /// The Request is incomplete: more bytes are needed.
    More,
    /// The Request is valid. The program must accept or reject it.
    Request {
        /// The peer's read depths as its Request states them.
        peer: PeerDepths,
        /// The private data of the peer's program.
        private_data: &'a [u8],
        /// The length of the Request in bytes.
        consumed: usize,
    },
    /// The start-up failed at the peer's Request. The caller must close the stream.
    Failed(NegotiationError),
}

impl Responder {
    /// Creates a responder that waits for MPA's Request.
    #[must_use]
    pub const fn new(options: StartOptions) -> Self {
        Self { options, request: None }
    }

    /// Parses MPA's Request at the start of `bytes`. After the Request, a byte before the Reply is
    /// an error.
    pub fn input<'a>(&mut self, bytes: &'a [u8]) -> ReceivedRequest<'a> {
        if self.request.is_some() {
            return if bytes.is_empty() {
                ReceivedRequest::More
            } else {
                ReceivedRequest::Failed(NegotiationError::Early)
            };
        }
        let (request, consumed) = match frame(Kind::Request, bytes) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return ReceivedRequest::More,
            Err(why) => return ReceivedRequest::Failed(why),
        };
        if bytes.len() > consumed {
            return ReceivedRequest::Failed(NegotiationError::Early);
        }
        let Start { markers, crc, revision, enhanced, private_data, .. } = request;
        self.request = Some(Request { markers, crc, revision, enhanced });
        ReceivedRequest::Request { peer: PeerDepths::new(enhanced), private_data, consumed }
    }

    /// Accepts the peer's Request and appends the Reply to `out`. `depths` are the depths that this
    /// end offers.
    ///
    /// # Errors
    /// [`UsageError`].
    pub fn accept(
        &mut self,
        depths: Depths,
        private_data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Negotiated, UsageError> {
        let request = self.request.ok_or(UsageError::State)?;
        let peer = PeerDepths::new(request.enhanced);
        let mut depths = depths.limited();
        depths.ord = peer.ird.map_or(depths.ord, |ird| ird.min(depths.ord));
        let asked = request.enhanced.and_then(|block| block.rtr);
        let rtr = asked.map(|asked| self.forms(asked, depths.ird));
        if rtr.is_some_and(|rtr| rtr.read) {
            // A Read as the first frame takes one place, even if the programs use no Reads.
            depths.ird = depths.ird.max(1);
        }
        self.reply(request, false, rtr, depths, private_data, out)?;
        self.request = None;
        Ok(Negotiated {
            crc: self.options.crc || request.crc,
            markers_in: self.options.markers,
            markers_out: request.markers,
            revision: request.revision,
            first: rtr.map_or(FirstFpdu::Wait, FirstFpdu::WaitFor),
            depths,
        })
    }

    /// Rejects the peer's Request and appends the Reply to `out`. `depths` are the depths that this
    /// end would need.
    ///
    /// # Errors
    /// [`UsageError`].
    pub fn reject(
        &mut self,
        depths: Depths,
        private_data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), UsageError> {
        let request = self.request.ok_or(UsageError::State)?;
        let asked = request.enhanced.and_then(|block| block.rtr);
        let rtr = asked.map(|asked| self.forms(asked, depths.ird));
        self.reply(request, true, rtr, depths.limited(), private_data, out)?;
        self.request = None;
        Ok(())
    }

    /// The ready-to-receive frames to accept: those that both ends know, or, if there are none, all
    /// that this end accepts.
    fn forms(&self, asked: Rtr, ird: u16) -> Rtr {
        let ours = self.options.rtr.filter(|ours| !ours.is_empty()).unwrap_or(Rtr::ALL);
        let common = ours.and(asked);
        let other = Rtr { read: false, ..common };
        match common {
            none if none.is_empty() => ours,
            // A Read needs a place. Avoid it if the program gives none and there is another kind.
            _ if ird == 0 && !other.is_empty() => other,
            common => common,
        }
    }

    fn reply(
        &self,
        request: Request,
        reject: bool,
        rtr: Option<Rtr>,
        depths: Depths,
        private_data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), UsageError> {
        // A depth that the initiator leaves to the programs stays with them. Its IRD is this end's
        // ORD.
        let crosswise = |theirs: u16, ours: u16| if theirs == UNSAID { UNSAID } else { ours };
        let block = |asked: Enhanced| Enhanced {
            rtr,
            ird: crosswise(asked.ord, depths.ird),
            ord: crosswise(asked.ird, depths.ord),
        };
        let reply = Start {
            kind: Kind::Reply,
            markers: self.options.markers,
            crc: self.options.crc || request.crc,
            reject,
            revision: request.revision,
            enhanced: request.enhanced.map(block),
            private_data,
        };
        Ok(reply.emit(out)?)
    }
}
