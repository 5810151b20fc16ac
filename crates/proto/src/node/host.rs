//! The environment of a [`Node`](super::Node): production's transports and disk, or the
//! simulator's.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::transport::Transport;
use crate::Instant;
use crate::rpc::SessionId;

/// Keys with their values.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A session, after the index of its transport.
pub type Opened = (usize, SessionId);

/// The outcome of writes.
#[derive(Debug)]
pub enum Written {
    /// The write with this number and all before it are durable.
    Durable(u64),
    /// The first write that is not durable was refused, and no later one was done. Writes from now
    /// on are tried again.
    Refused {
        /// Which file, and why.
        reason: String,
        /// All that is durable.
        durable: Pairs,
    },
    /// The disk failed: its contents are unknown, and nothing is written any more. The text says
    /// why.
    Failed(String),
}

/// The transports, the names and the disk of one node.
///
/// No method has a default, which a wrapper could forget.
pub trait Host {
    /// The transport. The node calls it directly, so that the compiler sees through its calls.
    type Transport: Transport;
    /// The error of a server that cannot be reached, or of malformed locators.
    type Error: fmt::Display;

    /// The number of transports. It never falls.
    fn transports(&self) -> usize;

    /// The transport with this index, below [`Host::transports`].
    fn transport(&mut self, index: usize) -> &mut Self::Transport;

    /// True if the transport is to be polled at this turn.
    fn is_due(&mut self, index: usize, now: Instant) -> bool;

    /// The transport received something: it is likely to receive more soon.
    fn received(&mut self, index: usize, now: Instant);

    /// Splits `locators` into the locators of one server, the best first.
    ///
    /// # Errors
    /// A locator is malformed, or there is none.
    fn candidates(&self, locators: &str) -> Result<Vec<String>, Self::Error>;

    /// Begins a session with the server at `candidate`, one locator that [`Host::candidates`]
    /// returned. A transport is opened for it if none leads there.
    ///
    /// # Errors
    /// The server cannot be reached. The text begins with the locator.
    fn connect(&mut self, now: Instant, candidate: &str) -> Result<Opened, Self::Error>;

    /// Writes to the machine's durable state, all or nothing, after all writes before it. Returns
    /// true if it is durable already; otherwise [`Host::written`] says what became of it.
    fn persist(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>) -> bool;

    /// Returns what became of writes. Call it until `None`.
    fn written(&mut self) -> Option<Written>;

    /// Calls `each` with the protocol, the name and the value of every counter of the transports.
    /// Two transports of one protocol have the same names. A name needs no escapes in JSON.
    fn counters(&self, each: &mut dyn FnMut(&str, &'static str, u64));
}
