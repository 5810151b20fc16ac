//! Input from our own TCP: data that is placed from the frame that brought it, and the events of
//! connections.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;

use sprat_proto::Instant;
use sprat_proto::net::tcp::{TcpChanges, TcpError, TcpId};
use sprat_proto::rdma::{Conn, StreamEnd};

use super::core::{Copies, Core};
use super::native::Native;
use super::receive::READ;
use super::stream::{Kept, Socket, Stage, Stream};

impl Core {
    /// Receives a burst of frames, and hands the data and the events of connections to the engine.
    pub(super) fn receive_native(&mut self, now: Instant) -> bool {
        let Some(native) = self.native.as_deref_mut() else { return false };
        let pieces = native.input(now);
        let mut worked = pieces > 0;
        for piece in 0..pieces {
            self.receive_lent(now, piece);
        }
        let behind =
            self.native.as_deref().map_or(0, |native| native.interface.stack().ahead_tcp());
        for piece in 0..behind {
            self.receive_ahead(now, piece);
        }
        while let Some((id, changes)) = self.native.as_deref_mut().and_then(Native::event) {
            worked = true;
            self.native_event(now, id, changes);
        }
        worked | self.native.as_deref().is_some_and(Native::has_output)
    }

    /// Hands a piece of data to the engine where it lies in the received frame. A stream that takes
    /// none leaves it to its connection.
    fn receive_lent(&mut self, now: Instant, piece: usize) {
        let Some(native) = self.native.as_deref_mut() else { return };
        let (id, bytes) = native.interface.tcp_data(piece);
        let slot = native.slot(id);
        let stream = slot.and_then(|slot| self.streams[slot as usize].as_deref_mut());
        let (Some(slot), Some(stream)) = (slot, stream) else { return };
        let Some(conn) = stream.conn().filter(|_| !stream.stalled && !stream.finished) else {
            return;
        };
        let len = bytes.len();
        self.counters.reads += 1;
        self.counters.received += len as u64;
        let kept = stream.kept.len();
        if kept == 0 && self.settings.copies != Copies::Two {
            let used = self.rnic.input(now, conn, bytes, &mut self.regions);
            if used < len && !self.rnic.is_stalled(conn) {
                self.counters.copied += (len - used) as u64;
                stream.kept = Kept::Few(bytes[used..].to_vec());
                native.interface.take_tcp(piece, len);
            } else {
                native.interface.take_tcp(piece, used);
            }
        } else {
            let room = match &mut stream.kept {
                Kept::Many(buffer, kept) => &mut buffer[*kept..],
                _ => &mut self.buffer[kept..],
            };
            room[..len].copy_from_slice(bytes);
            native.interface.take_tcp(piece, len);
            self.feed(now, slot, conn, len);
        }
        if self.rnic.is_stalled(conn) {
            self.stall(slot, true);
        }
    }

    /// Hands a piece of data behind a gap to the engine, which may place payload in it. The
    /// connection has the data too.
    #[cold]
    fn receive_ahead(&mut self, now: Instant, piece: usize) {
        let Some(native) = self.native.as_deref_mut() else { return };
        let (id, offset, bytes) = native.interface.tcp_ahead(piece);
        let slot = native.slot(id);
        let stream = slot.and_then(|slot| self.streams[slot as usize].as_deref());
        let Some(conn) = stream.filter(|s| !s.stalled && !s.finished).and_then(Stream::conn) else {
            return;
        };
        if self.settings.copies != Copies::Two {
            let placed = self.rnic.input_ahead(now, conn, offset, bytes, &mut self.regions);
            self.counters.ahead += placed as u64;
        }
    }

    /// Delivers the segment that the stream in `slot` has next, if it was placed before its turn:
    /// then its bytes are not read. Otherwise returns the number of bytes that may be read before
    /// the next such segment.
    pub(super) fn deliver_ahead(
        &mut self,
        now: Instant,
        slot: u32,
        conn: Conn,
    ) -> ControlFlow<(), usize> {
        let Some(native) = self.native.as_deref_mut() else { return ControlFlow::Continue(READ) };
        let stream = self.streams[slot as usize].as_deref();
        let (Some((distance, len)), Some(stream)) = (self.rnic.next_ahead(conn), stream) else {
            return ControlFlow::Continue(READ);
        };
        let kept = stream.kept.len();
        if distance > kept {
            return ControlFlow::Continue(READ.min(distance - kept));
        }
        if let Socket::Native(id) = stream.socket
            && distance == 0
            && kept == 0
            && native.has_readable(id, len)
        {
            let count = self.rnic.deliver_ahead(now, conn, &mut self.regions);
            native.skip(id, count);
            if count > 0 {
                self.counters.received += count as u64;
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(READ)
    }

    fn native_event(&mut self, now: Instant, id: TcpId, changes: TcpChanges) {
        let Some(native) = self.native.as_deref_mut() else { return };
        let error = native.interface.tcp().and_then(|tcp| tcp.error(id));
        let slot = match native.slot(id) {
            Some(slot) => slot,
            None if changes.opened => match self.accept_native(now, id) {
                Some(slot) => slot,
                None => return,
            },
            None => return native.remove(id, true),
        };
        let Some(stream) = self.streams[slot as usize].as_deref() else { return };
        if matches!(stream.stage, Stage::Opening { .. }) {
            let result = match error {
                None if changes.opened => Ok(()),
                Some(TcpError::Refused) => Err(io::ErrorKind::ConnectionRefused),
                Some(TcpError::Reset) => Err(io::ErrorKind::ConnectionReset),
                Some(TcpError::TimedOut) => Err(io::ErrorKind::TimedOut),
                None if changes.ended => Err(io::ErrorKind::ConnectionAborted),
                None => return,
            };
            self.opened(now, slot, result);
        }
        if changes.readable || changes.ended {
            // An end is read behind the last bytes.
            self.ready.push_back(slot);
        }
        if changes.writable {
            self.mark_dirty(slot);
        }
        let Some(stream) = self.streams[slot as usize].as_deref() else { return };
        if changes.ended && stream.stalled && error.is_some() {
            stream.conn().into_iter().for_each(|c| self.rnic.ended(now, c, StreamEnd::Reset));
        }
    }

    /// Takes a connection that a peer has opened. Returns its slot, or none if it is refused.
    fn accept_native(&mut self, now: Instant, id: TcpId) -> Option<u32> {
        let native = self.native.as_deref_mut()?;
        let flow = native.flow(id)?;
        let listens = |local: &SocketAddr| local.port() == flow.local.port();
        let listener = self.listeners.iter().find(|(_, listener)| listens(&listener.local));
        let number = listener.map(|(number, _)| *number);
        let is_full = self.live.len() >= self.settings.connections;
        let conn = if is_full { None } else { self.rnic.incoming(now).ok() };
        let (Some(number), Some(conn)) = (number, conn) else {
            self.counters.accept_errors += 1;
            native.remove(id, true);
            return None;
        };
        self.counters.accepted += 1;
        let stream = Stream::new(Socket::Native(id), Stage::Live(conn), flow.peer, Some(number));
        let slot = self.place(stream);
        self.bind_native(id, slot);
        self.set_live(slot, conn);
        Some(slot)
    }

    /// Closes all connections of our own TCP, as the kernel does for a process that ends: what was
    /// posted still goes to the peers.
    pub(super) fn close_native(&mut self, now: Instant) {
        self.flush(now);
        self.native.iter_mut().for_each(|native| native.leave(now, false));
    }

    /// Handles frames of closed connections of our own TCP. Returns true if one has not ended.
    pub(super) fn outlive_native(&mut self, now: Instant) -> bool {
        let Some(native) = self.native.as_deref_mut() else { return false };
        native.input(now);
        native.tick(now);
        native.output(now);
        native.has_connections()
    }

    /// Records the slot of a connection of our own TCP.
    pub(super) fn bind_native(&mut self, id: TcpId, slot: u32) {
        self.native.iter_mut().for_each(|native| native.set_slot(id, slot));
    }
}
