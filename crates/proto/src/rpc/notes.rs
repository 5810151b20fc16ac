//! RPC over a queue pair: what one Send says, and when one may be sent. The frames are the byte
//! stream's ([`super::stream`]).
//!
//! ```text
//!  note := u8 kind | u8 0 | u16 granted | u16 finished | u16 0 | rest          big-endian
//!    kind 0  nothing more                     kind 1  frame*, whole
//!    kind 2  u32 tag | u32 0 | u64 address | frame header     the message lies there: read it
//!  hello (private data of the connection) := "SPRT" | u8 version | u8 0 | u16 receives | u32 octets of a receive
//! ```
//! A message that fits a receive goes in a Send, with others if they fit too. A longer one stays in
//! registered memory of its sender, the note names the place, and the receiver reads it from there
//! as fast as it finds room: so a receiver's memory depends on what it reads, never on what is sent
//! to it, and one small message never waits behind a long one's octets.
//!
//! Always holds: a Send finds a receive. One receive of the peer is kept for a note that grants
//! more, so that two sides which have used up all others never wait for each other.
//!
//! Not here: the queue pair and its memory (`host`), frames and requests ([`super::stream`]).

mod talk;
#[cfg(test)]
mod tests;

pub use talk::{Said, Talk};

/// Octets in front of each Send.
pub const HEADER: usize = 8;
/// Octets of an announcement before the frame's header.
pub const ANNOUNCEMENT: usize = HEADER + 16;
/// Octets of a [`Hello`].
pub const HELLO: usize = 12;
/// Messages that may be announced and not read yet, in one direction.
pub const MOST_ANNOUNCED: usize = 16;
/// The fewest receives that a peer may have, and the fewest octets of one.
const LEAST: (u16, u32) = (4, 256);
const MAGIC: [u8; 4] = *b"SPRT";
/// The version that we speak.
pub const VERSION: u8 = 1;

/// What follows a note's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing.
    Nothing,
    /// Whole frames.
    Frames,
    /// Where a message lies, and its frame's header.
    Announcement,
}

/// Why a Send is no note, or not one that may come now. It ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bad;

/// The header of a Send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// What follows.
    pub kind: Kind,
    /// Receives that its sender has posted anew since its last note.
    pub granted: u16,
    /// Announced messages that its sender has read since its last note, in the order announced.
    pub finished: u16,
}

/// Where an announced message lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The steering tag.
    pub tag: u32,
    /// The address.
    pub address: u64,
}

/// What each side tells the other before anything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Receives that are posted.
    pub receives: u16,
    /// Octets that fit into each.
    pub octets: u32,
}

/// Why a peer's hello is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stranger {
    /// It speaks another version.
    Version,
    /// It speaks something else, or has less room than anybody.
    Other,
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

impl Note {
    /// Takes the header off a Send.
    ///
    /// # Errors
    /// [`Bad`]: it is too short, of no kind, or has something where zeros should be.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Bad> {
        let (Some(granted), Some(finished), Some(0)) =
            (half(bytes, 2), half(bytes, 4), half(bytes, 6))
        else {
            return Err(Bad);
        };
        let kind = match bytes[..2] {
            [0, 0] => Kind::Nothing,
            [1, 0] => Kind::Frames,
            [2, 0] => Kind::Announcement,
            _ => return Err(Bad),
        };
        let rest = &bytes[HEADER..];
        if (kind == Kind::Nothing) != rest.is_empty() {
            return Err(Bad);
        }
        Ok((Self { kind, granted, finished }, rest))
    }

    /// The header's octets.
    #[must_use]
    pub fn octets(&self) -> [u8; HEADER] {
        let ([g0, g1], [f0, f1]) = (self.granted.to_be_bytes(), self.finished.to_be_bytes());
        [self.kind as u8, 0, g0, g1, f0, f1, 0, 0]
    }
}

impl Place {
    /// Takes the place off an announcement, of which the note's header is off; what is left is a
    /// frame's header.
    ///
    /// # Errors
    /// [`Bad`]: it is too short, or has something where zeros should be.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Bad> {
        match (word(bytes, 0), word(bytes, 4), bytes.get(8..).and_then(<[u8]>::split_first_chunk)) {
            (Some(tag), Some(0), Some((address, rest))) => {
                Ok((Self { tag, address: u64::from_be_bytes(*address) }, rest))
            }
            _ => Err(Bad),
        }
    }

    /// Its octets.
    #[must_use]
    pub fn octets(&self) -> [u8; ANNOUNCEMENT - HEADER] {
        let mut octets = [0; ANNOUNCEMENT - HEADER];
        octets[..4].copy_from_slice(&self.tag.to_be_bytes());
        octets[8..].copy_from_slice(&self.address.to_be_bytes());
        octets
    }
}

impl Hello {
    /// Reads the peer's private data.
    ///
    /// # Errors
    /// [`Stranger`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Stranger> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Stranger::Other);
        }
        if bytes.get(4).is_some_and(|&version| version != VERSION) {
            return Err(Stranger::Version);
        }
        let (Some(0), Some(receives), Some(octets)) =
            (bytes.get(5), half(bytes, 6), word(bytes, 8))
        else {
            return Err(Stranger::Other);
        };
        if receives < LEAST.0 || octets < LEAST.1 {
            return Err(Stranger::Other);
        }
        Ok(Self { receives, octets })
    }

    /// Its octets.
    #[must_use]
    pub fn octets(&self) -> [u8; HELLO] {
        let mut octets = [0; HELLO];
        octets[..4].copy_from_slice(&MAGIC);
        octets[4] = VERSION;
        octets[6..8].copy_from_slice(&self.receives.to_be_bytes());
        octets[8..].copy_from_slice(&self.octets.to_be_bytes());
        octets
    }
}

/// Receives on both sides of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credits {
    /// The peer's that wait for our Sends, and how many there are in all.
    free: u16,
    all: u16,
    /// Ours that were posted anew and that the peer does not know of, how many there are in all,
    /// and from how many on it is told by a note of its own.
    owed: u16,
    ours: u16,
    tell: u16,
}

impl Credits {
    /// We have `receives`; the peer has not said yet how many.
    #[must_use]
    pub const fn new(receives: u16) -> Self {
        Self { free: 0, all: 0, owed: 0, ours: receives, tell: receives.div_ceil(2) }
    }

    /// The peer has so many.
    pub const fn open(&mut self, receives: u16) {
        (self.free, self.all) = (receives, receives);
    }

    /// A note with something to say may be sent: one receive is left behind it.
    #[must_use]
    pub const fn may_send(&self) -> bool {
        self.free > 1
    }

    /// A note has to be sent even if it says nothing else, for the peer may wait for receives.
    #[must_use]
    pub const fn must_tell(&self) -> bool {
        self.free > 0 && self.owed >= self.tell
    }

    /// A note is sent: what it grants.
    pub const fn spend(&mut self) -> u16 {
        let granted = self.owed;
        self.owed = 0;
        self.free = self.free.saturating_sub(1);
        granted
    }

    /// A receive was taken by a note of the peer, and posted anew.
    ///
    /// # Errors
    /// [`Bad`]: the peer did not know of any that was free.
    pub const fn posted(&mut self) -> Result<(), Bad> {
        if self.owed == self.ours {
            return Err(Bad);
        }
        self.owed += 1;
        Ok(())
    }

    /// The peer grants `more`.
    ///
    /// # Errors
    /// [`Bad`]: it has not so many.
    pub fn granted(&mut self, more: u16) -> Result<(), Bad> {
        match self.free.checked_add(more) {
            Some(free) if free <= self.all => {
                self.free = free;
                Ok(())
            }
            _ => Err(Bad),
        }
    }
}
