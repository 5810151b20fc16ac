//! What a carrier of frames must do, and what it shares with [`Framed`]: the links.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::rpc::budget::Budget;
use sprat_proto::rpc::stream::{Ids, Stream};
use sprat_proto::rpc::{Slice, Slices};

use super::Framed;
use crate::locator::{HostPort, Locator};

/// One connection, and where it stands.
#[derive(Debug)]
pub(crate) struct Link<W> {
    pub(crate) stream: Stream,
    pub(crate) wire: W,
    /// Not connected yet.
    pub(crate) connecting: Option<Connecting>,
    /// Why it could not be opened.
    pub(crate) cause: Option<io::Error>,
    /// What it has taken of the budget, or waits for, for the request that has come in part.
    pub(crate) room: usize,
    /// Bytes that wait to be written, as counted in the sum.
    pub(super) unsent: usize,
    /// Bytes that were read and not parsed, since the stream wanted no more input.
    pub(crate) backlog: Vec<u8>,
    /// It is in the list of those that may go on with their backlog.
    pub(super) resumed: bool,
    /// It is in the list of those that have something to send.
    pub(super) dirty: bool,
    /// It is in the list of those that have events without input.
    pub(super) owing: bool,
    /// For one that we accepted: when its first frame must be there.
    pub(crate) silent_until: Instant,
    /// For one that we accepted and that has replies to take: when the peer must have taken one.
    pub(super) taken_until: Instant,
}

/// A connection that is being opened.
#[derive(Debug)]
pub(crate) struct Connecting {
    /// The addresses to try next.
    pub(crate) left: VecDeque<SocketAddr>,
    /// When to give up.
    pub(crate) until: Instant,
}

/// What surrounds a link.
pub(crate) struct Around<'f, C> {
    pub(crate) carrier: &'f mut C,
    pub(crate) buffer: &'f mut [u8],
    pub(crate) ids: &'f mut Ids,
    /// Slices that are no longer needed.
    pub(crate) released: &'f mut VecDeque<Slice>,
    /// Room for what has come in part.
    pub(crate) budget: &'f mut Budget,
}

/// What carries frames from one process to another. Functions that may change any link get the
/// whole transport.
pub(crate) trait Carrier: fmt::Debug + Send + Sized {
    /// What it knows of one connection.
    type Wire: fmt::Debug + Send;
    /// Bytes of the buffer that frames are taken apart in.
    const BUFFER: usize;

    /// Where a locator leads; an error if it is another transport's.
    fn place(to: &Locator) -> io::Result<HostPort>;

    /// Begins to connect to the first of the addresses where that is possible; returns the new
    /// link's slot.
    fn open(
        links: &mut Framed<Self>,
        now: Instant,
        to: &Locator,
        addresses: VecDeque<SocketAddr>,
    ) -> io::Result<u16>;

    /// Finds out what has come; returns how much there is to look at.
    fn input(links: &mut Framed<Self>, now: Instant) -> usize;

    /// Looks at the next thing that has come: frames into the buffer ([`Framed::brought`]), a long
    /// message into [`Framed::found`], an end. False if there is nothing.
    fn receive(links: &mut Framed<Self>, now: Instant) -> bool;

    /// What was in the buffer has been taken apart.
    fn taken(_: &mut Link<Self::Wire>) {}

    /// A link that waited for room has it.
    fn admitted(_: &mut Link<Self::Wire>) {}

    /// Bytes of replies that left the stream and that the peer has not taken yet.
    fn untaken(wire: &Self::Wire) -> usize;

    /// True if there is any use in sending.
    fn may_send(wire: &Self::Wire) -> bool;

    /// Sends what a link has to say, as far as it may; true if more is left. `alone`: no other link
    /// waits to send.
    fn send(
        now: Instant,
        slot: u16,
        link: &mut Link<Self::Wire>,
        around: Around<'_, Self>,
        memory: &dyn Slices,
        alone: bool,
    ) -> bool;

    /// Behind the last `send` of a turn; true if more waits for nothing but the next turn.
    fn flush(&mut self, _: Instant, _: &dyn Slices) -> bool {
        false
    }

    /// The state of a link's stream has changed.
    fn settled(&mut self, _slot: u16, _: &mut Link<Self::Wire>) {}

    /// The connection was to be open by now.
    fn late(_: &mut Framed<Self>, _: Instant, _slot: u16) {}

    /// A link is no more.
    fn removed(links: &mut Framed<Self>, link: Link<Self::Wire>);

    /// When [`Carrier::tick`] wants to be called.
    fn deadline(&self) -> Instant;

    /// It is `now`.
    fn tick(links: &mut Framed<Self>, now: Instant);

    /// See [`crate::transport::SystemTransport`].
    fn fd(&self) -> BorrowedFd<'_>;
    /// See there.
    fn arm(&mut self) -> bool;
    /// See there.
    fn disarm(&mut self);
    /// See there.
    fn locator(&self) -> Option<String>;

    /// What it has counted itself.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));
}
