//! RPC over a queue pair: the header of each Send, and the credits for sending it. The frames are
//! those of the byte stream ([`super::stream`]).
//!
//! ```text
//!  Send  := u8 kind | u8 0 | u16 granted | u16 finished | u16 0 | rest          big-endian
//!    kind 0  credits alone                    kind 1  eager: frame*, each whole
//!    kind 2  rendezvous: u32 stag | u32 0 | u64 address | frame header
//!  hello := "SPRT" | u8 version | u8 0 | u16 receives | u32 bytes of a receive
//!           private data of the connection
//! ```
//! An eager message lies in the Send, with others if they fit. A longer message uses rendezvous: it
//! stays in registered memory of its sender, the Send announces its location, and the receiver
//! reads it from there when it has room. So a receiver's memory depends on what it reads, never on
//! what a peer sends, and a small message never waits for the bytes of a long one.
//!
//! Always holds: a Send finds a receive. The last credit is reserved for a Send that grants
//! credits, so that two sides without other credits never wait for each other.
//!
//! Not here: the queue pair and its memory (`sprat`), frames and requests ([`super::stream`]).
//! `docs/formats.md` ("RPC over queue pairs") is normative.

mod flow_control;
#[cfg(test)]
mod tests;

pub use flow_control::{FlowControl, Received};

/// The length of a [`SendHeader`] in bytes.
pub const HEADER: usize = 8;
/// The length in bytes of a Send that announces a message, without the frame's header.
pub const ANNOUNCEMENT: usize = HEADER + 16;
/// The length of a [`Hello`] in bytes.
pub const HELLO: usize = 12;
/// The most messages of one direction that are announced and not finished.
pub const MAX_ANNOUNCED: usize = 16;
/// The least number of receives that a peer of a queue pair must post.
const MIN_RECEIVES: u16 = 4;
/// The least length in bytes that a peer's receives must have.
const MIN_RECEIVE_BYTES: u32 = 256;
const MAGIC: [u8; 4] = *b"SPRT";
/// The version of the protocol of RPC over queue pairs.
pub const VERSION: u8 = 1;

/// The kind of a Send: what follows its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendKind {
    /// Nothing follows the header: the Send grants credits or finishes messages.
    Credits,
    /// Eager: whole frames follow the header of the Send.
    Eager,
    /// Rendezvous: a [`Location`] and the header of a frame follow; the receiver reads the message
    /// from the location.
    Rendezvous,
}

/// The error that the peer broke a rule of RPC over queue pairs. It ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation;

/// The header of every Send of RPC over queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendHeader {
    /// The kind of the Send, which says what follows its header.
    pub kind: SendKind,
    /// Receives that the sender has posted since its last Send: the receiver's new credits.
    pub granted: u16,
    /// The number of announced messages that the sender finished since its last Send: it will not
    /// read them any more. They finish in the order announced.
    pub finished: u16,
}

/// The location of an announced message in the registered memory of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// The steering tag of the announced message's memory.
    pub stag: u32,
    /// The tagged offset of the message's first byte.
    pub address: u64,
}

/// The private data by which each side introduces itself when the connection opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The number of receives that the sender of the hello has posted: the peer's first credits.
    pub receives: u16,
    /// The length in bytes of each receive that the sender of the hello posts.
    pub receive_bytes: u32,
}

/// The reason why a connection's private data is no hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelloError {
    /// The peer speaks another version of RPC over queue pairs.
    Version,
    /// The peer's hello is of another protocol, or its receives are too few or too small.
    Invalid,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

impl SendHeader {
    /// Parses the header of a Send and returns it with the bytes that follow.
    ///
    /// # Errors
    /// [`Violation`] if the Send is too short, of an unknown kind, or not zero where it must be.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let (Some(granted), Some(finished), Some(0)) =
            (be16(bytes, 2), be16(bytes, 4), be16(bytes, 6))
        else {
            return Err(Violation);
        };
        let kind = match bytes[..2] {
            [0, 0] => SendKind::Credits,
            [1, 0] => SendKind::Eager,
            [2, 0] => SendKind::Rendezvous,
            _ => return Err(Violation),
        };
        let rest = &bytes[HEADER..];
        if (kind == SendKind::Credits) != rest.is_empty() {
            return Err(Violation);
        }
        Ok((Self { kind, granted, finished }, rest))
    }

    /// Returns the bytes of the Send's header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER] {
        let ([g0, g1], [f0, f1]) = (self.granted.to_be_bytes(), self.finished.to_be_bytes());
        [self.kind as u8, 0, g0, g1, f0, f1, 0, 0]
    }
}

impl Location {
    /// Parses the location of an announced message, which follows the header of a Send. Returns it
    /// with the bytes behind it: the header of a frame.
    ///
    /// # Errors
    /// [`Violation`] if the bytes are too few, or not zero where they must be.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Violation> {
        match (be32(bytes, 0), be32(bytes, 4), bytes.get(8..).and_then(<[u8]>::split_first_chunk)) {
            (Some(stag), Some(0), Some((address, rest))) => {
                Ok((Self { stag, address: u64::from_be_bytes(*address) }, rest))
            }
            _ => Err(Violation),
        }
    }

    /// Returns the bytes of the announced message's location.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ANNOUNCEMENT - HEADER] {
        let mut bytes = [0; ANNOUNCEMENT - HEADER];
        bytes[..4].copy_from_slice(&self.stag.to_be_bytes());
        bytes[8..].copy_from_slice(&self.address.to_be_bytes());
        bytes
    }
}

impl Hello {
    /// Parses the peer's hello from the private data of the connection.
    ///
    /// # Errors
    /// [`HelloError`], the reason why the data is no hello of this version.
    pub fn parse(bytes: &[u8]) -> Result<Self, HelloError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(HelloError::Invalid);
        }
        if bytes.get(4).is_some_and(|&version| version != VERSION) {
            return Err(HelloError::Version);
        }
        let (Some(0), Some(receives), Some(receive_bytes)) =
            (bytes.get(5), be16(bytes, 6), be32(bytes, 8))
        else {
            return Err(HelloError::Invalid);
        };
        if receives < MIN_RECEIVES || receive_bytes < MIN_RECEIVE_BYTES {
            return Err(HelloError::Invalid);
        }
        Ok(Self { receives, receive_bytes })
    }

    /// Returns the hello's bytes, the private data of a connection.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[6..8].copy_from_slice(&self.receives.to_be_bytes());
        bytes[8..].copy_from_slice(&self.receive_bytes.to_be_bytes());
        bytes
    }
}

/// The credits of both directions of one connection: one for each receive that the receiving side
/// has posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credits {
    /// The number of credits that this side has: receives of the peer that wait for a Send.
    available: u16,
    /// The number of receives that the peer has in all, by its hello.
    peer_receives: u16,
    /// The number of this side's receives that were posted again and not yet granted to the peer.
    to_grant: u16,
    /// The number of receives that this side has in all.
    receives: u16,
    /// The number of credits to grant from which on they get a Send of their own.
    grant_alone: u16,
}

impl Credits {
    /// Makes the credits of a side that has `receives` receives, before the peer's hello arrives.
    #[must_use]
    pub const fn new(receives: u16) -> Self {
        let grant_alone = receives.div_ceil(2);
        Self { available: 0, peer_receives: 0, to_grant: 0, receives, grant_alone }
    }

    /// Sets the credits of this side to the number of receives in the peer's hello.
    pub const fn open(&mut self, receives: u16) {
        (self.available, self.peer_receives) = (receives, receives);
    }

    /// True if credits allow a Send of any kind. The last credit stays reserved for a grant.
    #[must_use]
    pub const fn may_send(&self) -> bool {
        self.available > 1
    }

    /// True if a Send is due even with nothing else in it, since the peer may wait for credits.
    #[must_use]
    pub const fn must_grant(&self) -> bool {
        self.available > 0 && self.to_grant >= self.grant_alone
    }

    /// Uses one credit for a Send, and returns the number of credits that this Send grants to the
    /// peer.
    pub const fn spend(&mut self) -> u16 {
        let granted = self.to_grant;
        self.to_grant = 0;
        self.available = self.available.saturating_sub(1);
        granted
    }

    /// Records that a receive which a Send of the peer used is posted again.
    ///
    /// # Errors
    /// [`Violation`] if the peer had no credit for that Send.
    pub const fn posted(&mut self) -> Result<(), Violation> {
        if self.to_grant == self.receives {
            return Err(Violation);
        }
        self.to_grant += 1;
        Ok(())
    }

    /// Adds the credits that the peer grants.
    ///
    /// # Errors
    /// [`Violation`] if the peer grants more than it has receives.
    pub fn granted(&mut self, more: u16) -> Result<(), Violation> {
        match self.available.checked_add(more) {
            Some(available) if available <= self.peer_receives => {
                self.available = available;
                Ok(())
            }
            _ => Err(Violation),
        }
    }
}
