//! MPA's start-up (RFC 5044 section 7, RFC 6581): one Request, one Reply, and what both ends agree on by them.
//!
//! ```text
//! Initiator::new ─ Request ─► Responder::input ─► the program accepts or rejects
//! Initiator::input ◄─ Reply ─ Responder::accept, Responder::reject
//! ```
//!
//! `input` takes all bytes of the stream that were not consumed so far, so there is no buffer here; a frame has at most 532.
//! The initiator does not send before the Reply, the responder not before the initiator's first FPDU ([`FirstFpdu`]).
//!
//! Always: a peer's frame is refused only where an RFC says so; what was agreed never exceeds what either end offered. Not
//! here: time (whoever owns the stream has deadlines), FPDUs, and trying again with revision 1 on a new stream.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::rdma::error::PostError;
use crate::rdma::options::MAX_READ_DEPTH;
use crate::wire::mpa::{Enhanced, Kind, Malformed, REVISION_MAX, Rtr, RtrKind, Start, UNSAID};

/// What one end wants, before it knows the other's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartOptions {
    /// CRCs. False only at an administrator's explicit wish (RFC 5044 section 4.4); the peer can still demand them.
    pub crc: bool,
    /// Markers in what is received here.
    pub markers: bool,
    /// The revision of a Request, 0 to 2; only with 2 the depths and `rtr` are negotiated. A responder follows the Request.
    pub revision: u8,
    /// Initiator: the peer-to-peer model with one of these forms. Responder: the forms that are accepted, `None` for all.
    pub rtr: Option<Rtr>,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self { crc: true, markers: false, revision: REVISION_MAX, rtr: None }
    }
}

/// How many Reads and Atomics one end serves (`ird`) and makes (`ord`) at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depths {
    /// Inbound.
    pub ird: u16,
    /// Outbound.
    pub ord: u16,
}

impl Depths {
    fn limited(self) -> Self {
        Self { ird: self.ird.min(MAX_READ_DEPTH), ord: self.ord.min(MAX_READ_DEPTH) }
    }
}

/// What the peer said of its own depths; `None` where it left that to the programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerDepths {
    /// Inbound.
    pub ird: Option<u16>,
    /// Outbound.
    pub ord: Option<u16>,
}

impl PeerDepths {
    fn new(enhanced: Option<Enhanced>) -> Self {
        let said = |depth: u16| (depth != UNSAID).then_some(depth);
        enhanced
            .map_or_else(Self::default, |block| Self { ird: said(block.ird), ord: said(block.ord) })
    }
}

/// Who sends the first FPDU, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstFpdu {
    /// This end may send at once.
    Free,
    /// This end sends a frame of length zero of this form before all others; the program does not see it.
    Send(RtrKind),
    /// This end sends nothing, not even a marker, before a valid FPDU has come.
    Wait,
    /// The same, and that FPDU is a frame of length zero of one of these forms; the program does not see it.
    WaitFor(Rtr),
}

/// What both ends agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// CRCs are sent and checked in both directions.
    pub crc: bool,
    /// The peer sends markers.
    pub markers_in: bool,
    /// This end sends markers.
    pub markers_out: bool,
    /// The revision spoken.
    pub revision: u8,
    /// What has to happen first.
    pub first: FirstFpdu,
    /// This end's depths.
    pub depths: Depths,
}

/// Why a start-up failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NegotiationError {
    /// What came is no start-up frame that is due here.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A Request came where a Reply is due, or the other way round: both ends are of the same role.
    #[error("both ends have the same role")]
    Role,
    /// The Reply is of another revision than the Request, or only one of them has the block of RFC 6581.
    #[error("the Reply does not fit the Request")]
    Mismatch,
    /// Bytes follow the Request before it was answered.
    #[error("the initiator did not wait for the Reply")]
    Early,
    /// The responder wants to make more Reads at once than were offered.
    #[error("the responder wants more Reads at once than were offered")]
    Depth,
    /// The responder accepts no form of ready-to-receive frame that was offered.
    #[error("no common form of the ready-to-receive frame")]
    Rtr,
}

impl NegotiationError {
    /// MPA's error code (layer 2, type 0).
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Depth => 6,
            Self::Rtr => 7,
            _ => 4,
        }
    }
}

/// Why a call was refused. Nothing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UsageError {
    /// Private data is longer than 512 bytes, or 508 with the block of RFC 6581.
    #[error("private data is too long")]
    PrivateData,
    /// There is no such revision, or it cannot do what is wished.
    #[error("this revision of MPA does not exist or has no peer-to-peer model")]
    Revision,
    /// No form of ready-to-receive frame.
    #[error("the peer-to-peer model needs a form of its first frame")]
    Rtr,
    /// There is no Request to answer.
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

/// The frame of `kind` at the start of `bytes`.
fn frame(kind: Kind, bytes: &[u8]) -> Result<Option<(Start<'_>, usize)>, NegotiationError> {
    match Start::parse(bytes)? {
        Some((start, _)) if start.kind != kind => Err(NegotiationError::Role),
        parsed => Ok(parsed),
    }
}

/// The end that asked.
#[derive(Clone, Copy, Debug)]
pub struct Initiator {
    options: StartOptions,
    depths: Depths,
}

/// What the responder said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceivedReply<'a> {
    /// Not all of it yet.
    More,
    /// It accepts.
    Accepted {
        /// What was agreed.
        negotiated: Negotiated,
        /// What the responder said of its depths.
        peer: PeerDepths,
        /// The program's.
        private_data: &'a [u8],
        /// Bytes of the Reply; what follows are FPDUs.
        consumed: usize,
    },
    /// It refuses; there is no MPA on this stream any more.
    Rejected {
        /// What the responder would need.
        peer: PeerDepths,
        /// The program's.
        private_data: &'a [u8],
        /// Bytes of the Reply.
        consumed: usize,
    },
    /// No connection.
    Failed {
        /// Why.
        why: NegotiationError,
        /// If there: the responder waits in full operation, and a Terminate with [`NegotiationError::code`], framed like this, has
        /// to be sent before the stream is closed. Else it is closed at once.
        terminate: Option<Negotiated>,
    },
}

impl Initiator {
    /// Asks: appends the Request to `out`.
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

    /// Looks at `bytes` for the Reply.
    #[must_use]
    pub fn input<'a>(&self, bytes: &'a [u8]) -> ReceivedReply<'a> {
        let (reply, consumed) = match frame(Kind::Reply, bytes) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return ReceivedReply::More,
            Err(why) => return ReceivedReply::Failed { why, terminate: None },
        };
        let (peer, private_data) = (PeerDepths::new(reply.enhanced), reply.private_data);
        if reply.reject {
            // Whoever does not know RFC 6581 may refuse in its own revision.
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
            // A reply that does not mirror the model accepts no form of it.
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

/// The end that is asked.
#[derive(Clone, Copy, Debug)]
pub struct Responder {
    options: StartOptions,
    request: Option<Request>,
}

/// What counts of a Request.
#[derive(Clone, Copy, Debug)]
struct Request {
    markers: bool,
    crc: bool,
    revision: u8,
    enhanced: Option<Enhanced>,
}

/// What the initiator said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceivedRequest<'a> {
    /// Not all of it yet.
    More,
    /// The program has to accept or reject.
    Request {
        /// What the initiator said of its depths.
        peer: PeerDepths,
        /// The program's.
        private_data: &'a [u8],
        /// Bytes of the Request.
        consumed: usize,
    },
    /// Close the stream.
    Failed(NegotiationError),
}

impl Responder {
    /// Waits for a Request.
    #[must_use]
    pub const fn new(options: StartOptions) -> Self {
        Self { options, request: None }
    }

    /// Looks at `bytes` for the Request. Once it has come, no byte may follow until it was answered.
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

    /// Accepts: appends the Reply to `out`. `depths` are what this end serves and would like to make.
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
            // A Read as the first frame takes a place, also where the programs make none.
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

    /// Refuses: appends the Reply to `out`. `depths` are what this end would need.
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

    /// The forms to accept: those in common, or, if there are none, what this end could do.
    fn forms(&self, asked: Rtr, ird: u16) -> Rtr {
        let ours = self.options.rtr.filter(|ours| !ours.is_empty()).unwrap_or(Rtr::ALL);
        let common = ours.and(asked);
        let other = Rtr { read: false, ..common };
        match common {
            none if none.is_empty() => ours,
            // A Read needs a place; not if the program gives none and there is another form.
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
        // What the initiator leaves to the programs is left to them here, crosswise.
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
