//! One connection of our own TCP: opening it, its reads and its writes.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use arrayvec::ArrayVec;
use sprat_proto::Instant;
use sprat_proto::net::tcp::{TcpError, TcpHost, TcpId, TcpOpenError, TcpState};
use sprat_proto::rpc::stream::Ids;
use sprat_proto::rpc::{Event, Slices};

use super::{BUFFER_BYTES, Connections, Utcp, device_port};
use crate::locator::Locator;
use crate::transport::framed::{CONNECT_NS, Connecting, Link};

/// The most pieces of memory that one turn copies to the send buffer of a connection.
const PARTS: usize = 64;

/// The state of a connection of our own TCP.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(super) id: TcpId,
    /// True if the send buffer was full: the connection waits until the peer takes some of it.
    pub(super) blocked: bool,
    /// True if the receive buffer has bytes, or the connection has ended.
    pub(super) unread: bool,
    /// True if the queue of connections to read has this one.
    pub(super) queued: bool,
    /// The number of the last burst of which the connection has not taken all lent data.
    pub(super) left_in: u64,
}

impl Wire {
    pub(super) const fn new(id: TcpId) -> Self {
        Self { id, blocked: false, unread: false, queued: false, left_in: 0 }
    }
}

/// The result of one read of a connection.
pub(super) enum Read {
    /// The read put this many bytes into the buffer.
    Bytes(usize),
    /// The read added this many bytes to a long message. If the message is whole now, there is an
    /// event.
    Body(Option<Event<'static>>, usize),
    /// The connection has no bytes now.
    Nothing,
    /// The peer has ended the connection, or it has failed.
    End,
}

impl Link<Wire> {
    /// True if the stream takes what arrives now.
    #[inline]
    pub(super) fn goes_on(&self) -> bool {
        self.backlog.is_empty()
            && self.connecting.is_none()
            && self.stream.ended().is_none()
            && self.stream.wants_input()
    }

    /// Takes bytes that the stack lends, as many as have a place: in the message of which a part
    /// has arrived, or in `buffer`.
    #[inline]
    pub(super) fn take(
        &mut self,
        now: Instant,
        lent: &[u8],
        buffer: &mut [u8],
        ids: &mut Ids,
    ) -> Read {
        match self.stream.body() {
            None => {
                let count = lent.len().min(buffer.len());
                buffer[..count].copy_from_slice(&lent[..count]);
                Read::Bytes(count)
            }
            Some((body, room)) => {
                let count = lent.len().min(room);
                body.extend_from_slice(&lent[..count]);
                Read::Body(self.stream.filled(now, ids), count)
            }
        }
    }

    /// Reads the receive buffer once: into the message of which a part has arrived, or into
    /// `buffer`.
    pub(super) fn read(
        &mut self,
        now: Instant,
        tcp: &mut TcpHost,
        buffer: &mut [u8],
        ids: &mut Ids,
    ) -> Read {
        let id = self.wire.id;
        let Some(connection) = tcp.connection(id) else { return Read::End };
        let readable = connection.readable();
        if readable == 0 {
            let is_over = connection.is_finished() || connection.state() == TcpState::Closed;
            return if is_over { Read::End } else { Read::Nothing };
        }
        match self.stream.body() {
            None => Read::Bytes(tcp.read(id, buffer)),
            Some((body, room)) => {
                let old = body.len();
                body.resize(old + room.min(readable), 0);
                let count = tcp.read(id, &mut body[old..]);
                Read::Body(self.stream.filled(now, ids), count)
            }
        }
    }

    /// Copies frames to the send buffer, as far as it has room.
    #[inline]
    pub(super) fn write(&mut self, now: Instant, memory: &dyn Slices, tcp: &mut TcpHost) {
        let mut parts = ArrayVec::<&[u8], PARTS>::new();
        self.stream.output(now, memory, BUFFER_BYTES as usize, &mut parts);
        let (mut written, id) = (0, self.wire.id);
        for part in &parts {
            let count = tcp.write(id, part);
            written += count;
            if count < part.len() {
                self.wire.blocked = true;
                break;
            }
        }
        drop(parts);
        self.stream.written(written);
    }
}

impl Utcp {
    /// Begins to connect to the first of the addresses `left` where that is possible. Returns the
    /// slot of the new link.
    pub(super) fn open(
        &mut self,
        now: Instant,
        to: &Locator,
        mut left: VecDeque<SocketAddr>,
    ) -> io::Result<u16> {
        let target = device_port(to)?;
        if to.protocol() != self.carrier.protocol {
            let why = format!("no one is reached there by {}", self.carrier.protocol);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.carrier.interface.set_now(now);
        if let Some(mac) = target.mac {
            left.iter().for_each(|addr| self.carrier.interface.set_neighbour(addr.ip(), mac));
        }
        let id = self.carrier.begin(now, &mut left)?;
        let slot = self.insert_opened(Wire::new(id));
        self.opening(now, slot, id, left);
        Ok(slot)
    }

    /// Begins the state of the connection in `slot`, which is being opened.
    fn opening(&mut self, now: Instant, slot: u16, id: TcpId, left: VecDeque<SocketAddr>) {
        self.carrier.set_slot(id, slot);
        let until = now.after(CONNECT_NS);
        if let Some(link) = self.link(slot) {
            link.connecting = Some(Connecting { left, until });
        }
        self.due_by(slot, until);
    }

    /// Notes that the connection in `slot` is open.
    pub(super) fn connected(&mut self, slot: u16) {
        if let Some(link) = self.link(slot) {
            link.connecting = None;
        }
        self.stream_changed(slot);
        self.mark_dirty(slot);
    }

    /// Tries the next addresses for the connection in `slot`, after one failed with `cause`.
    pub(super) fn try_others(&mut self, now: Instant, slot: u16, cause: io::Error) {
        let Some((link, shared)) = self.link_and_shared(slot) else { return };
        let mut left = link.connecting.take().map_or_else(VecDeque::new, |c| c.left);
        if left.is_empty() {
            return self.open_failed(slot, cause);
        }
        shared.carrier.reset(link.wire.id);
        match shared.carrier.begin(now, &mut left) {
            Err(e) => self.open_failed(slot, e),
            Ok(id) => {
                link.wire = Wire::new(id);
                self.opening(now, slot, id, left);
            }
        }
    }
}

impl Connections {
    /// Begins to connect to the first of `addresses` where that is possible, and removes it and
    /// those before it from the list.
    fn begin(&mut self, now: Instant, addresses: &mut VecDeque<SocketAddr>) -> io::Result<TcpId> {
        self.interface.set_now(now);
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        while let Some(addr) = addresses.pop_front() {
            match self.interface.connect_tcp(0, addr) {
                Ok(id) => return Ok(id),
                Err(e) => last = open_error(e),
            }
        }
        Err(last)
    }
}

fn open_error(error: TcpOpenError) -> io::Error {
    let kind = match error {
        TcpOpenError::InUse | TcpOpenError::NoPort => io::ErrorKind::AddrInUse,
        TcpOpenError::NoRoute => io::ErrorKind::HostUnreachable,
        TcpOpenError::TooMany => io::ErrorKind::QuotaExceeded,
    };
    io::Error::new(kind, error)
}

/// Returns the error of a connection that was not opened.
pub(super) fn failure(error: Option<TcpError>) -> io::Error {
    match error {
        Some(TcpError::Refused) => io::ErrorKind::ConnectionRefused.into(),
        Some(TcpError::TimedOut) => io::ErrorKind::TimedOut.into(),
        Some(TcpError::Reset) | None => io::ErrorKind::ConnectionReset.into(),
    }
}
