//! The environment of a [`Node`](super::Node): production's transports and disk, or the
//! simulator's.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::machine::Election;
use super::transport::Transport;
use crate::Instant;
use crate::rpc::SessionId;

/// Keys and values of a machine's durable state.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A session, as the index of its transport and its id there.
pub type Opened = (usize, SessionId);

/// The outcome of writes to the machine's durable state.
#[derive(Debug)]
pub enum Written {
    /// The write to the durable state with this sequence number and all before it are durable.
    Durable(u64),
    /// The first write to the machine's state that is not durable was refused, and no later one was
    /// done. The host tries later writes again.
    Refused {
        /// The file that could not be written, and the reason.
        reason: String,
        /// All keys and values of the machine's state that are durable.
        durable: Pairs,
    },
    /// The disk failed: its contents are unknown, and the host writes nothing any more. The text
    /// gives the reason.
    Failed(String),
    /// Several processes share the state, and the part of this one is as stated.
    Election(Election),
}

/// The environment of one node: its transports, its locators and its disk.
///
/// No method has a default implementation, so that a wrapper cannot forget to forward one.
pub trait Host {
    /// The type of the host's transports. The node calls it directly, so that the compiler can
    /// inline the calls.
    type Transport: Transport;
    /// The host's error: a server cannot be reached, or locators are malformed.
    type Error: fmt::Display;

    /// The number of the host's transports. It never falls.
    fn transports(&self) -> usize;

    /// Returns the host's transport with this index, below [`Host::transports`].
    fn transport(&mut self, index: usize) -> &mut Self::Transport;

    /// True if the node has to poll the transport `index` at this turn.
    fn is_due(&mut self, index: usize, now: Instant) -> bool;

    /// Informs the host that the transport `index` received something: it is likely to receive more
    /// soon.
    fn received(&mut self, index: usize, now: Instant);

    /// Splits `locators` into the locators of one server, the best first.
    ///
    /// # Errors
    /// A locator is malformed, or there is none.
    fn candidates(&self, locators: &str) -> Result<Vec<String>, Self::Error>;

    /// Begins a session with the server at `candidate`, one locator that [`Host::candidates`]
    /// returned. The host opens a transport for it if no open one leads there.
    ///
    /// # Errors
    /// The server cannot be reached. The text begins with the locator.
    fn connect(&mut self, now: Instant, candidate: &str) -> Result<Opened, Self::Error>;

    /// Returns true if the server at `candidate` has certainly ended, after the driver has reported
    /// that the peer of a session by this locator is gone. A driver reports that of a living peer
    /// too, which gave up the connection.
    fn has_ended(&mut self, candidate: &str) -> bool;

    /// Writes to the machine's durable state, all or nothing, after all writes before it. Returns
    /// true if the write is durable already; otherwise [`Host::written`] returns its outcome later.
    fn persist(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>) -> bool;

    /// Returns the outcome of writes to the machine's durable state. Call it until `None`.
    fn written(&mut self) -> Option<Written>;

    /// Calls `each` with the protocol, the name and the value of every counter of the host. Two
    /// transports of one protocol have the same names. The counters of the process have an empty
    /// protocol. A name needs no escapes in JSON.
    fn counters(&self, each: &mut dyn FnMut(&str, &'static str, u64));
}
