//! [`Carrier`], the trait of TCP and of queue pairs, and the parts of a transport that a carrier
//! works with.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::rpc::budget::Budget;
use sprat_proto::rpc::stream::Ids;
use sprat_proto::rpc::{Slice, Slices};

use super::Framed;
use super::links::Link;
use crate::locator::{HostPort, Locator};

/// The parts of a transport of frames that all links share.
pub(crate) struct Shared<'f, C> {
    pub(crate) carrier: &'f mut C,
    pub(crate) buffer: &'f mut [u8],
    pub(crate) ids: &'f mut Ids,
    /// Slices of replies that are no longer needed.
    pub(crate) released: &'f mut VecDeque<Slice>,
    /// The budget of memory for requests of which a part has arrived.
    pub(crate) budget: &'f mut Budget,
}

/// A carrier: it moves frames from one process to another. A method that may change any link gets
/// the whole transport.
pub(crate) trait Carrier: fmt::Debug + Send + Sized {
    /// The carrier's part of one connection.
    type Wire: fmt::Debug + Send;
    /// Bytes of the buffer for frames that arrive.
    const BUFFER: usize;

    /// Parses the host and the port of a locator.
    ///
    /// # Errors
    /// The locator is of another transport.
    fn host_port(to: &Locator) -> io::Result<HostPort>;

    /// Begins to connect to the first of the addresses where that is possible. Returns the slot of
    /// the new link.
    ///
    /// # Errors
    /// The system refuses every address.
    fn open(
        links: &mut Framed<Self>,
        now: Instant,
        to: &Locator,
        addresses: VecDeque<SocketAddr>,
    ) -> io::Result<u16>;

    /// Finds the links with input. Returns a number that is 0 only if there is none.
    fn input(links: &mut Framed<Self>, now: Instant) -> usize;

    /// Takes the next piece of input: frames into the buffer ([`Framed::buffer_filled`]), a long
    /// message into [`Framed::found`], or the end of a link. False if there is no input.
    fn receive(links: &mut Framed<Self>, now: Instant) -> bool;

    /// Reacts to the stream of a link, which has taken all frames in the buffer.
    fn buffer_consumed(link: &mut Link<Self::Wire>);

    /// Reacts to the budget, which has granted the room that a link waited for.
    fn room_granted(link: &mut Link<Self::Wire>);

    /// Returns the bytes of replies that left the stream and that the peer has not taken yet.
    fn unread_by_peer(wire: &Self::Wire) -> usize;

    /// True if a send on this connection may make progress.
    fn may_send(wire: &Self::Wire) -> bool;

    /// Sends the output of a link, as far as the carrier takes it now. Returns true if the next
    /// turn can send more. `alone` says that no other link has output.
    fn send(
        now: Instant,
        slot: u16,
        link: &mut Link<Self::Wire>,
        shared: Shared<'_, Self>,
        memory: &dyn Slices,
        alone: bool,
    ) -> bool;

    /// Ends the output of a turn, after the last `send`. Returns true if the next turn can send
    /// more.
    fn flush(&mut self, now: Instant, memory: &dyn Slices) -> bool;

    /// Handles a change in the state of a link's stream.
    fn stream_changed(&mut self, slot: u16, link: &mut Link<Self::Wire>);

    /// Gives up or goes on with a connection that was not opened in time.
    fn connect_timed_out(links: &mut Framed<Self>, now: Instant, slot: u16);

    /// Frees the carrier's part of a link that was removed.
    fn removed(links: &mut Framed<Self>, link: Link<Self::Wire>);

    /// Returns the time when [`Carrier::tick`] is due.
    fn deadline(&self) -> Instant;

    /// Handles the carrier's timers that are due by `now`.
    fn tick(links: &mut Framed<Self>, now: Instant);

    /// Returns the descriptor of [`crate::transport::SystemTransport::fd`].
    fn fd(&self) -> BorrowedFd<'_>;
    /// Arms the notification, as in [`crate::transport::SystemTransport::arm`].
    fn arm(&mut self) -> bool;
    /// Disarms the notification, as in [`crate::transport::SystemTransport::disarm`].
    fn disarm(&mut self);
    /// Returns the locator that the carrier listens at, if it listens.
    fn locator(&self) -> Option<String>;

    /// Calls `each` with the name and value of each counter of the carrier.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));
}
