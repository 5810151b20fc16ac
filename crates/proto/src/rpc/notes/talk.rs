//! One side of a conversation in notes: what a Send of the peer's means, and what ours may say.
//!
//! Always holds: what is handed out was checked against everything said before; of messages
//! announced and not finished there are at most [`MOST_ANNOUNCED`] in each direction; a note is
//! sent only into a receive that the peer has posted.
//!
//! Not here: the octets of long messages (whoever holds the memory), frames
//! ([`crate::rpc::stream`]).

use core::mem;

use super::{Bad, Credits, HEADER, Hello, Kind, MOST_ANNOUNCED, Note, Place};
use crate::rpc::stream::{Announced, Stream};

/// What a Send has brought besides credits.
#[derive(Debug)]
pub enum Said<'s> {
    /// Nothing to look at.
    Nothing,
    /// Frames, for [`Stream::input`]; afterwards the stream is between two frames, or the peer is
    /// to blame.
    Frames(&'s [u8]),
    /// A message of at least one octet lies there. It is read in its turn, or not at all if nobody
    /// wants it; then say [`Talk::finish`].
    Announced {
        /// Its frame.
        announced: Announced,
        /// Where.
        place: Place,
        /// Somebody waits for it.
        wanted: bool,
    },
}

/// See the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Talk {
    credits: Credits,
    /// Our messages that the peer has not finished, and the peer's that we have not.
    shown: usize,
    pulled: usize,
    /// The peer's that we have finished and not said so.
    finished: u16,
}

impl Talk {
    /// We have posted so many `receives`, and have not heard of the peer.
    #[must_use]
    pub const fn new(receives: u16) -> Self {
        Self { credits: Credits::new(receives), shown: 0, pulled: 0, finished: 0 }
    }

    /// What the peer has said at first.
    pub fn greet(&mut self, hello: &Hello) {
        self.credits.open(hello.receives);
    }

    /// Takes a Send of the peer's, whose receive has been posted anew; returns how many of our
    /// oldest messages it does not need any more, and what else it says.
    ///
    /// # Errors
    /// [`Bad`]: the peer broke a rule.
    pub fn hear<'s>(
        &mut self,
        send: &'s [u8],
        stream: &mut Stream,
    ) -> Result<(usize, Said<'s>), Bad> {
        self.credits.posted()?;
        let (note, rest) = Note::parse(send)?;
        self.credits.granted(note.granted)?;
        let finished = usize::from(note.finished);
        self.shown = self.shown.checked_sub(finished).ok_or(Bad)?;
        let said = match note.kind {
            Kind::Nothing => Said::Nothing,
            Kind::Frames => Said::Frames(rest),
            Kind::Announcement => {
                let (place, header) = Place::parse(rest)?;
                let announced = stream.announced(header).filter(|a| !a.is_empty()).ok_or(Bad)?;
                if self.pulled == MOST_ANNOUNCED {
                    return Err(Bad);
                }
                self.pulled += 1;
                Said::Announced { wanted: stream.wants(&announced), announced, place }
            }
        };
        Ok((finished, said))
    }

    /// Takes what a Send grants and finishes out of its first octets, where the rest of it has to
    /// wait: it may be what that waits for. Returns how many of our oldest messages the peer does
    /// not need any more.
    ///
    /// # Errors
    /// [`Bad`]: the peer broke a rule.
    pub fn hear_first(&mut self, send: &mut [u8; HEADER]) -> Result<usize, Bad> {
        let [_, _, g0, g1, f0, f1, ..] = *send;
        self.credits.granted(u16::from_be_bytes([g0, g1]))?;
        let finished = usize::from(u16::from_be_bytes([f0, f1]));
        self.shown = self.shown.checked_sub(finished).ok_or(Bad)?;
        send[2..6].fill(0);
        Ok(finished)
    }

    /// A message of the peer's, its oldest, will not be read any more.
    pub const fn finish(&mut self) {
        self.pulled -= 1;
        self.finished += 1;
    }

    /// Frames may be sent.
    #[must_use]
    pub const fn may_send(&self) -> bool {
        self.credits.may_send()
    }

    /// A message may be announced.
    #[must_use]
    pub const fn may_announce(&self) -> bool {
        self.may_send() && self.shown < MOST_ANNOUNCED
    }

    /// A note is to be sent even if there is nothing else to say; `may_send` besides if there is
    /// room in the send queue.
    #[must_use]
    pub const fn must_tell(&self) -> bool {
        self.credits.must_tell()
    }

    /// Messages are finished that the peer does not know of.
    #[must_use]
    pub const fn has_finished(&self) -> bool {
        self.finished > 0
    }

    /// The note at the front of the next Send, which is sent now.
    pub const fn say(&mut self, kind: Kind) -> Note {
        if matches!(kind, Kind::Announcement) {
            self.shown += 1;
        }
        Note { kind, granted: self.credits.spend(), finished: mem::replace(&mut self.finished, 0) }
    }
}
