//! The segment that is arriving.

use arrayvec::ArrayVec;

use crate::rdma::iwarp::error::{Fault, offending};
use crate::rdma::memory::Span;
use crate::wire::ddp::{Buffer, Header, HeaderBytes};
use crate::wire::rdmap::{Cause, Opcode, ReadRequest};
use crate::wire::write_ack::WriteAck;

/// Most bytes that are kept of a message which the engine itself takes.
pub(crate) const ENGINE_MESSAGE_MAX: usize = 80;

/// The segment that is arriving.
#[derive(Debug)]
pub(crate) struct RxSegment {
    pub(crate) header: Header,
    pub(crate) raw: HeaderBytes,
    pub(crate) opcode: Opcode,
    /// Its payload's bytes,
    pub(crate) len: u32,
    /// and those that came.
    pub(crate) came: u32,
    /// It is not at its end.
    pub(crate) open: bool,
    /// Where a tagged payload goes.
    pub(crate) span: Option<Span>,
    /// Of a message that the engine itself takes.
    pub(crate) small: ArrayVec<u8, ENGINE_MESSAGE_MAX>,
    pub(crate) read: Option<ReadRequest>,
    /// What the peer's engine says, if it is no message.
    pub(crate) said: Option<WriteAck>,
    /// Bytes of the last Write, if nothing came behind it, and whether it is at its end.
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
            came: 0,
            open: false,
            span: None,
            small: ArrayVec::new(),
            read: None,
            said: None,
            written: (0, true),
        }
    }
}

impl RxSegment {
    /// The fault that `cause` is in this segment.
    pub(crate) fn fault(&self, cause: Cause) -> Fault {
        let mut about = offending(&self.raw, self.len as usize);
        about.read = self.read;
        Fault { cause, about: Some(about) }
    }

    /// The header as it came.
    pub(crate) const fn raw(&self) -> &HeaderBytes {
        &self.raw
    }

    /// Bytes of payload of the segment.
    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes of the Write before immediate data.
    pub(crate) const fn written(&self) -> u32 {
        self.written.0
    }

    /// The payload is read straight into a region, or may be.
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
