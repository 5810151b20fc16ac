//! The state of the DDP segment that is arriving.

use arrayvec::ArrayVec;

use crate::rdma::iwarp::error::{StreamError, offending};
use crate::rdma::memory::Span;
use crate::wire::ddp::{Buffer, Header, HeaderBytes};
use crate::wire::rdmap::{Cause, Opcode, ReadRequest};
use crate::wire::write_ack::WriteAck;

/// The most bytes of a message that the engine itself consumes.
pub(crate) const ENGINE_MESSAGE_MAX: usize = 80;

/// The state of the DDP segment that is arriving.
#[derive(Debug)]
pub(crate) struct RxSegment {
    pub(crate) header: Header,
    pub(crate) raw: HeaderBytes,
    pub(crate) opcode: Opcode,
    /// The length of the segment's payload in bytes.
    pub(crate) len: u32,
    /// The number of bytes of the segment's payload that have arrived.
    pub(crate) received: u32,
    /// True if the segment has begun and not ended.
    pub(crate) open: bool,
    /// The place of a tagged segment's payload in registered memory.
    pub(crate) span: Option<Span>,
    /// The payload of a message that the engine itself consumes.
    pub(crate) small: ArrayVec<u8, ENGINE_MESSAGE_MAX>,
    pub(crate) read: Option<ReadRequest>,
    /// The acknowledgement of Writes that the segment carries, if it is one.
    pub(crate) ack: Option<WriteAck>,
    /// The length of the last Write if no other message followed it, and true if that Write is
    /// complete.
    pub(crate) written: (u32, bool),
}

impl Default for RxSegment {
    fn default() -> Self {
        let buffer = Buffer::Tagged { stag: 0, to: 0 };
        Self {
            header: Header { last: false, control: 0, buffer },
            raw: HeaderBytes::new(),
            opcode: Opcode::Write,
            len: 0,
            received: 0,
            open: false,
            span: None,
            small: ArrayVec::new(),
            read: None,
            ack: None,
            written: (0, true),
        }
    }
}

impl RxSegment {
    /// Creates an error of the stream with this cause. This segment is at fault.
    pub(crate) fn error(&self, cause: Cause) -> StreamError {
        let mut about = offending(&self.raw, self.len as usize);
        about.read = self.read;
        StreamError { cause, about: Some(about) }
    }

    /// The segment's header as received.
    pub(crate) const fn raw(&self) -> &HeaderBytes {
        &self.raw
    }

    /// The length of the segment's payload in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    /// The length in bytes of the Write directly before immediate data.
    pub(crate) const fn written(&self) -> u32 {
        self.written.0
    }

    /// True if the segment's payload goes into registered memory.
    pub(crate) const fn is_placed(&self) -> bool {
        matches!(
            self.opcode,
            Opcode::Write
                | Opcode::ReadResponse
                | Opcode::Send
                | Opcode::SendInvalidate
                | Opcode::SendSolicited
                | Opcode::SendSolicitedInvalidate
        )
    }
}
