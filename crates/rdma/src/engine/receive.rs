//! Receives: polls the sockets and hands their bytes to the pure engine.

use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd as _;

use rustix::event::{Timespec, epoll};
use sprat_proto::Instant;
use sprat_proto::rdma::{Conn, StreamEnd};

use super::core::{BUFFER, Copies, Core, LISTENER};
use super::socket;
use super::stream::{AHEAD, Kept, Socket, Stage, took};

/// The most connections with which a turn reads each socket. With more, it asks the epoll.
const DIRECT: usize = 8;
/// The number of turns between two questions to the epoll (for new connections), while a turn reads
/// each socket.
const EPOLL_EVERY: u32 = 32;
/// The most bytes of one read: some FPDUs, few enough to be still in the cache when they are
/// checked and placed.
pub(super) const READ: usize = 128 << 10;
/// The longest start of an FPDU, in bytes, that is copied out of the receive buffer; a longer one
/// keeps the buffer.
const FEW: usize = 16 << 10;
/// The most streams that keep a receive buffer; further ones copy.
const MOST_KEPT: usize = 64;
/// The most bytes that the engine leaves unconsumed: an FPDU that is not whole.
const MOST_LEFT: usize = 72 << 10;
/// The number of bytes behind the payload that a direct read also takes: a CRC and the next header.
const BEHIND: usize = 32;

impl Core {
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.read_at = now;
        if self.native.is_some() {
            let mut worked = self.receive_native(now);
            for _ in 0..self.ready.len() {
                let Some(slot) = self.ready.pop_front() else { break };
                while self.receive_one(now, slot) {
                    worked = true;
                }
            }
            return worked;
        }
        let many = self.live.len() > DIRECT || self.waiting > 0;
        let mut worked = false;
        if self.ask_epoll || many || self.turns.is_multiple_of(EPOLL_EVERY) {
            worked |= self.poll_epoll(now);
        }
        if !many {
            // By index: a read may end a stream and so change the list.
            let mut at = 0;
            while let Some(&slot) = self.live.get(at) {
                worked |= self.receive_one(now, slot);
                at += 1;
            }
            self.ready.clear();
            return worked;
        }
        for _ in 0..self.ready.len() {
            let Some(slot) = self.ready.pop_front() else {
                break;
            };
            worked |= self.receive_one(now, slot);
        }
        worked
    }

    /// Asks the epoll which sockets have bytes or events.
    fn poll_epoll(&mut self, now: Instant) -> bool {
        self.ask_epoll = false;
        let mut events = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 64];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut events, Some(&none)).unwrap_or(0);
        // There may be more than fit.
        self.ask_epoll = count == events.len();
        for event in &events[..count] {
            let (flags, data) = (event.flags, event.data.u64());
            if data >= LISTENER {
                self.accept_from(now, data as u32);
                continue;
            }
            let slot = data as u32;
            let Some(stream) = self.streams.get(slot as usize).and_then(Option::as_deref) else {
                continue;
            };
            let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            let opening = matches!(stream.stage, Stage::Opening { .. });
            if opening {
                self.connected(now, slot);
                continue;
            }
            if stream.stalled && (broken || flags.contains(epoll::EventFlags::RDHUP)) {
                self.peer_closed(now, slot, flags.contains(epoll::EventFlags::ERR));
                continue;
            }
            if broken || flags.contains(epoll::EventFlags::OUT) {
                self.mark_dirty(slot);
            }
            if broken || flags.contains(epoll::EventFlags::IN) {
                self.ready.push_back(slot);
            }
        }
        count > 0
    }

    /// Reads once from the stream in `slot` and hands the bytes to the engine.
    fn receive_one(&mut self, now: Instant, slot: u32) -> bool {
        let Some(stream) = self.streams.get_mut(slot as usize).and_then(Option::as_deref_mut)
        else {
            return false;
        };
        let conn = match stream.stage {
            _ if stream.finished => return false,
            Stage::Live(_) if stream.stalled => return false,
            Stage::Live(conn) => conn,
            Stage::Lingering(_) => return self.drain(slot),
            Stage::Opening { .. } => return false,
        };
        let direct = match self.settings.copies {
            Copies::Two | Copies::One => false,
            Copies::Direct => true,
            Copies::DirectReads => self.rnic.awaits_responses(conn),
        };
        if direct
            && stream.kept.len() == 0
            && let Socket::Kernel(socket) = &stream.socket
            && let Some(span) = self.rnic.direct_span(conn)
            && span.len as usize >= AHEAD
        {
            stream.ahead = AHEAD;
            let behind = &mut self.buffer[..BEHIND];
            let read = socket::receive_into(socket.as_fd(), span, &mut self.regions, behind);
            // Memory that is gone is found again by placing what comes through the buffer, and told
            // as the engine tells it.
            if !matches!(&read, Err(e) if socket::is_unmapped(e)) {
                return self.received_directly(now, slot, conn, span.len as usize, read);
            }
        }
        let limit = match self.deliver_ahead(now, slot, conn) {
            ControlFlow::Break(()) => return true,
            ControlFlow::Continue(limit) => limit,
        };
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return false;
        };
        // Long payload whose header is in this read would be copied; where none comes, more is read
        // at once.
        let kept = stream.kept.len();
        let most = if direct { limit.min(stream.ahead) } else { limit };
        let read = stream.read(&mut self.native, &mut self.buffer, kept + most);
        if read == Some(Ok(most)) {
            stream.ahead = READ.min(2 * stream.ahead);
        }
        match read {
            None => return false,
            Some(Ok(0)) => self.ended(now, slot, conn, StreamEnd::Finished),
            Some(Err(_)) => self.ended(now, slot, conn, StreamEnd::Reset),
            Some(Ok(n)) => {
                self.count_read(n);
                self.feed(now, slot, conn, n);
                if self.rnic.is_stalled(conn) {
                    self.stall(slot, true);
                }
            }
        }
        true
    }

    /// Stops reading the stream in `slot`, or reads it again.
    #[cold]
    pub(super) fn stall(&mut self, slot: u32, stalls: bool) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        (stream.stalled, stream.unread) = (stalls, false);
        self.register(slot);
        if !stalls {
            self.ready.push_back(slot);
        }
    }

    /// Handles the peer's end, in order or by a reset, of a stream that is stalled.
    #[cold]
    fn peer_closed(&mut self, now: Instant, slot: u32, reset: bool) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        let Some(conn) = stream.conn() else { return };
        if reset {
            return self.ended(now, slot, conn, StreamEnd::Reset);
        }
        stream.unread = true;
        self.register(slot);
        self.rnic.ended(now, conn, StreamEnd::Unread);
    }

    pub(super) fn count_read(&mut self, n: usize) {
        self.counters.reads += 1;
        self.counters.received += n as u64;
    }

    fn received_directly(
        &mut self,
        now: Instant,
        slot: u32,
        conn: Conn,
        span: usize,
        read: io::Result<usize>,
    ) -> bool {
        match took(
            read.and_then(
                |n| {
                    if n == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(n) }
                },
            ),
        ) {
            Ok(0) => return false,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                self.ended(now, slot, conn, StreamEnd::Finished)
            }
            Err(_) => self.ended(now, slot, conn, StreamEnd::Reset),
            Ok(n) => {
                self.count_read(n);
                let placed = n.min(span);
                self.counters.direct += placed as u64;
                self.rnic.placed_directly(now, conn, placed as u32, &mut self.regions);
                if n > span {
                    self.feed(now, slot, conn, n - span);
                }
            }
        }
        true
    }

    /// Hands `n` new bytes of a stream to the engine, behind those that the stream kept.
    pub(super) fn feed(&mut self, now: Instant, slot: u32, conn: Conn, n: usize) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        let kept = stream.kept.len();
        match std::mem::take(&mut stream.kept) {
            Kept::Nothing => {}
            Kept::Few(bytes) if self.settings.copies == Copies::Two => {
                return self.feed_assembled(now, slot, conn, bytes, n);
            }
            Kept::Few(bytes) => self.buffer[..kept].copy_from_slice(&bytes),
            Kept::Many(buffer, _) => {
                // The new bytes were read behind the kept ones.
                self.spare_buffers.push(std::mem::replace(&mut self.buffer, buffer));
                self.kept_buffers -= 1;
            }
        }
        if self.settings.copies == Copies::Two {
            return self.feed_assembled(now, slot, conn, Vec::new(), n);
        }
        let filled = kept + n;
        let used = self.rnic.input(now, conn, &self.buffer[..filled], &mut self.regions);
        if used < filled {
            self.keep(now, slot, conn, used..filled);
        }
    }

    /// Appends `n` new bytes to `bytes`, the stream's own buffer, and hands that to the engine.
    fn feed_assembled(
        &mut self,
        now: Instant,
        slot: u32,
        conn: Conn,
        mut bytes: Vec<u8>,
        n: usize,
    ) {
        let from = bytes.len();
        bytes.extend_from_slice(&self.buffer[from..from + n]);
        self.counters.copied += n as u64;
        let used = self.rnic.input(now, conn, &bytes, &mut self.regions);
        bytes.drain(..used);
        if bytes.len() > MOST_LEFT {
            return self.ended(now, slot, conn, StreamEnd::Reset);
        }
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        // Few connections may keep their buffer; ten thousand idle ones own nothing.
        if !bytes.is_empty() || self.live.len() <= DIRECT {
            stream.kept = Kept::Few(bytes);
        }
    }

    /// Keeps the bytes of the receive buffer that the engine has not consumed.
    fn keep(&mut self, now: Instant, slot: u32, conn: Conn, rest: Range<usize>) {
        if rest.len() > MOST_LEFT {
            return self.ended(now, slot, conn, StreamEnd::Reset);
        }
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        self.counters.copied += rest.len() as u64;
        if rest.len() <= FEW || self.kept_buffers == MOST_KEPT {
            stream.kept = Kept::Few(self.buffer[rest].to_vec());
            return;
        }
        let len = rest.len();
        self.buffer.copy_within(rest, 0);
        let other = self.spare_buffers.pop().unwrap_or_else(|| vec![0; BUFFER].into());
        stream.kept = Kept::Many(std::mem::replace(&mut self.buffer, other), len);
        self.kept_buffers += 1;
    }
}
