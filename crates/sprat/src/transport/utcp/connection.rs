//! One connection of our own TCP: its reads and its writes.

use std::io;

use arrayvec::ArrayVec;
use sprat_proto::Instant;
use sprat_proto::net::tcp::{TcpError, TcpHost, TcpId, TcpState};
use sprat_proto::rpc::stream::Ids;
use sprat_proto::rpc::{Event, Slices};

use crate::transport::framed::Link;

/// The size of a connection's buffer for each direction in bytes: more than a round trip of a fast
/// link holds. A buffer takes memory for the bytes in it.
pub(super) const BUFFER_BYTES: u32 = 1 << 20;

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

/// Returns the error of a connection that was not opened.
pub(super) fn failure(error: Option<TcpError>) -> io::Error {
    match error {
        Some(TcpError::Refused) => io::ErrorKind::ConnectionRefused.into(),
        Some(TcpError::TimedOut) => io::ErrorKind::TimedOut.into(),
        Some(TcpError::Reset) | None => io::ErrorKind::ConnectionReset.into(),
    }
}
