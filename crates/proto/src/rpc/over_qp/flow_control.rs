//! The flow control of one side of a queue pair: which Sends the peer may send, and which this side
//! may.
//!
//! Always holds: a Send is handed out only after it was checked against all Sends before it; of
//! messages announced and not finished there are at most [`MAX_ANNOUNCED`] in each direction; a
//! Send is sent only into a receive that the peer has posted.
//!
//! Not here: the bytes of long messages, which their owner registers and reads; frames
//! ([`crate::rpc::stream`]).

use core::mem;

use super::{Credits, HEADER, Hello, Location, MAX_ANNOUNCED, SendHeader, SendKind, Violation};
use crate::rpc::stream::{Announced, Stream};

/// The contents of a received Send, without its header.
#[derive(Debug)]
pub enum Received<'s> {
    /// The received Send was a header alone.
    Nothing,
    /// Frames of an eager Send, for [`Stream::input`]. If the stream is not between two frames
    /// afterwards, the peer broke a rule.
    Frames(&'s [u8]),
    /// The peer announced a message of at least one byte. The caller reads it after the messages
    /// announced before, or not at all if it is not wanted, and then calls
    /// [`FlowControl::finish`].
    Announced {
        /// The header of the message's frame.
        announced: Announced,
        /// The location of the message in the peer's memory.
        location: Location,
        /// False if no request waits for the message any more.
        wanted: bool,
    },
}

/// The credits and announced messages of one side of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowControl {
    credits: Credits,
    /// The number of messages that this side announced and the peer has not finished.
    announced: usize,
    /// The number of messages that the peer announced and this side has not finished.
    to_read: usize,
    /// The number of messages that this side finished and has not reported in a Send.
    finished: u16,
}

impl FlowControl {
    /// Makes the flow control of a side that has posted `receives` receives, before the peer's
    /// hello arrives.
    #[must_use]
    pub const fn new(receives: u16) -> Self {
        Self { credits: Credits::new(receives), announced: 0, to_read: 0, finished: 0 }
    }

    /// Sets the first credits of this side from the peer's hello.
    pub fn open(&mut self, hello: &Hello) {
        self.credits.open(hello.receives);
    }

    /// Takes a Send of the peer whose receive has been posted again. Returns how many of this
    /// side's oldest announced messages the peer has finished, and the contents of the Send.
    ///
    /// # Errors
    /// [`Violation`] if the peer broke a rule.
    pub fn receive<'s>(
        &mut self,
        send: &'s [u8],
        stream: &mut Stream,
    ) -> Result<(usize, Received<'s>), Violation> {
        self.credits.posted()?;
        let (header, rest) = SendHeader::parse(send)?;
        self.credits.granted(header.granted)?;
        let finished = usize::from(header.finished);
        self.announced = self.announced.checked_sub(finished).ok_or(Violation)?;
        let received = match header.kind {
            SendKind::Credits => Received::Nothing,
            SendKind::Eager => Received::Frames(rest),
            SendKind::Rendezvous => {
                let (location, header) = Location::parse(rest)?;
                let announced =
                    stream.announced(header).filter(|a| !a.is_empty()).ok_or(Violation)?;
                if self.to_read == MAX_ANNOUNCED {
                    return Err(Violation);
                }
                self.to_read += 1;
                Received::Announced { wanted: stream.wants(&announced), announced, location }
            }
        };
        Ok((finished, received))
    }

    /// Takes credits and finished messages out of the header of a received Send whose frames have
    /// to wait: the frames may wait for just these. Returns how many of this side's oldest
    /// announced messages the peer has finished. The header is left without them.
    pub fn receive_header(&mut self, header: &mut [u8; HEADER]) -> Result<usize, Violation> {
        let [_, _, g0, g1, f0, f1, ..] = *header;
        self.credits.granted(u16::from_be_bytes([g0, g1]))?;
        let finished = usize::from(u16::from_be_bytes([f0, f1]));
        self.announced = self.announced.checked_sub(finished).ok_or(Violation)?;
        header[2..6].fill(0);
        Ok(finished)
    }

    /// Records that this side finished the oldest message that the peer announced: it will not read
    /// the message any more.
    pub const fn finish(&mut self) {
        self.to_read -= 1;
        self.finished += 1;
    }

    /// True if the credits of the queue pair allow a Send with frames.
    #[must_use]
    pub const fn may_send(&self) -> bool {
        self.credits.may_send()
    }

    /// True if the credits and the limit of announced messages allow this side to announce another
    /// one.
    #[must_use]
    pub const fn may_announce(&self) -> bool {
        self.may_send() && self.announced < MAX_ANNOUNCED
    }

    /// True if a Send is due even with nothing else in it, since the peer may wait for credits.
    /// Unlike other Sends, it may use the last credit.
    #[must_use]
    pub const fn must_grant(&self) -> bool {
        self.credits.must_grant()
    }

    /// True if this side finished messages and has not reported them in a Send.
    #[must_use]
    pub const fn has_finished(&self) -> bool {
        self.finished > 0
    }

    /// Makes the header of the Send that the caller posts next: the Send uses a credit, grants
    /// credits and reports finished messages.
    pub const fn next_header(&mut self, kind: SendKind) -> SendHeader {
        if matches!(kind, SendKind::Rendezvous) {
            self.announced += 1;
        }
        let finished = mem::replace(&mut self.finished, 0);
        SendHeader { kind, granted: self.credits.spend(), finished }
    }
}
