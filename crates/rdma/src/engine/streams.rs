//! The table of streams: their slots, their deadlines, and the events that the epoll reports for
//! them.
//!
//! Always holds: one socket uses a slot from its opening to its close; the engine's number of a
//! connection leads to its slot until the engine has said `Close`.

use std::cmp::Reverse;
use std::io;

use rustix::event::epoll;
use sprat_proto::Instant;
use sprat_proto::rdma::{Conn, StreamEnd};
use sprat_proto::time::SECOND;

use super::core::{Core, LEAST_TIMED};
use super::state::ConnectionState;
use super::stream::{Kept, Socket, Stage, Stream};

/// The time that the peer has to close its side of a connection after this end has closed its own.
const LINGER_NS: u64 = 2 * SECOND;

impl Core {
    /// Makes the stream in `slot` live, under the number by which the engine knows it.
    pub(super) fn set_live(&mut self, slot: u32, conn: Conn) {
        let at = conn.index();
        if self.by_conn.len() <= at {
            self.by_conn.resize(at + 1, u32::MAX);
        }
        self.by_conn[at] = slot;
        let is_fitted = match self.native.as_deref() {
            Some(native) => native.is_tight(),
            None => self.settings.fitted,
        };
        if let Some(stream) = self.streams[slot as usize].as_deref()
            && is_fitted
            && let Some(emss) = stream.socket.emss(&mut self.native)
        {
            self.rnic.set_emss(conn, emss as usize);
        }
        self.register(slot);
    }

    /// Reports to the engine that the stream in `slot` has ended. The engine decides on the
    /// connection.
    pub(super) fn ended(&mut self, now: Instant, slot: u32, conn: Conn, end: StreamEnd) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        stream.finished = true;
        let kept = std::mem::take(&mut stream.kept);
        self.kept_buffers -= usize::from(matches!(kept, Kept::Many(..)));
        if end == StreamEnd::Reset {
            stream.pending = None;
        }
        self.register(slot);
        self.rnic.ended(now, conn, end);
    }

    /// Closes a connection that the engine is done with, in order or by a reset.
    pub(super) fn close(&mut self, now: Instant, conn: Conn, reset: bool) {
        let Some(slot) = self.slot_of(conn) else {
            return;
        };
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        if reset {
            stream.socket.abort(&mut self.native);
            return self.remove(slot);
        }
        let until = now.after(LINGER_NS);
        stream.stage = Stage::Lingering(until);
        let kept = std::mem::take(&mut stream.kept);
        self.kept_buffers -= usize::from(matches!(kept, Kept::Many(..)));
        self.schedule(slot, until);
        if self.streams[slot as usize].as_deref().is_some_and(|s| s.pending.is_none()) {
            self.finish_sending(slot);
        }
    }

    /// Closes the sending half of a lingering stream, which has nothing more to send.
    pub(super) fn finish_sending(&mut self, slot: u32) {
        let Some(stream) = self.streams[slot as usize].as_deref() else {
            return;
        };
        stream.socket.shut(&mut self.native);
        if stream.finished {
            self.remove(slot);
        }
    }

    /// Reads and drops bytes of a peer whose connection has ended.
    pub(super) fn drain(&mut self, slot: u32) -> bool {
        let mut waste = [0; 4096];
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return false;
        };
        match stream.read(&mut self.native, &mut waste, 4096) {
            None => return false,
            Some(Ok(n @ 1..)) => self.counters.received += n as u64,
            Some(_) if stream.pending.is_some() => {
                stream.finished = true;
                self.register(slot);
            }
            Some(_) => self.remove(slot),
        }
        true
    }

    /// Handles all deadlines of streams and of the engine up to `now`.
    pub(super) fn tick(&mut self, now: Instant) {
        self.rnic.tick(now);
        self.native.iter_mut().for_each(|native| native.tick(now));
        if now < self.first_timed {
            return;
        }
        while let Some(&Reverse((due, slot))) = self.timed.peek()
            && due <= now
        {
            self.timed.pop();
            let Some(stream) = self.streams[slot as usize].as_deref() else {
                continue;
            };
            let (until, qp) = match &stream.stage {
                Stage::Opening { refused: true, .. } => {
                    self.retry_connect(now, slot);
                    continue;
                }
                Stage::Opening { until, qp, .. } => (*until, Some(*qp)),
                Stage::Lingering(until) => (*until, None),
                Stage::Live(_) => continue,
            };
            // The slot has another stream since, or the stream another time.
            if until > now {
                continue;
            }
            if let Some(qp) = qp {
                self.events.set_state(qp, ConnectionState::Unreachable(io::ErrorKind::TimedOut));
            }
            self.remove(slot);
        }
        let next = self.timed.peek().map_or(Instant::NEVER, |Reverse((due, _))| *due);
        self.first_timed = next.min(self.resume(now));
    }

    pub(super) fn schedule(&mut self, slot: u32, until: Instant) {
        self.timed.push(Reverse((until, slot)));
        self.first_timed = self.first_timed.min(until);
        // An entry stays when its stream has opened or gone: thousands of connections a second
        // would have all those of the time that opening may take.
        if self.timed.len() > self.most_timed {
            let streams = &self.streams;
            self.timed.retain(|Reverse((due, slot))| {
                match streams[*slot as usize].as_deref().map(|s| &s.stage) {
                    Some(Stage::Opening { until, refused, .. }) => *refused || until == due,
                    Some(Stage::Lingering(until)) => until == due,
                    Some(Stage::Live(_)) | None => false,
                }
            });
            self.most_timed = LEAST_TIMED.max(2 * self.timed.len());
        }
    }

    pub(super) fn place(&mut self, stream: Stream) -> u32 {
        let stream = Some(Box::new(stream));
        let slot = match self.free.pop() {
            Some(slot) => {
                self.streams[slot as usize] = stream;
                slot
            }
            None => {
                self.streams.push(stream);
                self.streams.len() as u32 - 1
            }
        };
        self.live.push(slot);
        slot
    }

    /// Closes the socket of a stream and empties its slot.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(stream) = self.streams[slot as usize].take() else {
            return;
        };
        self.waiting -= usize::from(stream.interest.contains(epoll::EventFlags::OUT));
        if let (Socket::Native(id), Some(native)) = (&stream.socket, self.native.as_deref_mut()) {
            native.remove(*id, false);
        }
        if let Some(at) = self.live.iter().position(|s| *s == slot) {
            self.live.swap_remove(at);
        }
        self.free.push(slot);
        self.kept_buffers -= usize::from(matches!(stream.kept, Kept::Many(..)));
        // There is room for others.
        self.resume(Instant::NEVER);
    }

    /// Makes the epoll report the events that the stream in `slot` waits for.
    pub(super) fn register(&mut self, slot: u32) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        let Socket::Kernel(socket) = &stream.socket else { return };
        let (old, wanted) = (stream.interest, stream.wanted_interest());
        if wanted == old {
            return;
        }
        let data = epoll::EventData::new_u64(u64::from(slot));
        // A socket that nothing is wanted of leaves the epoll, which would report its end again and
        // again. A failure shows as silence, which the engine's deadlines end.
        let _ = match (old.is_empty(), wanted.is_empty()) {
            (true, _) => epoll::add(&self.epoll, socket, data, wanted),
            (false, true) => epoll::delete(&self.epoll, socket),
            (false, false) => epoll::modify(&self.epoll, socket, data, wanted),
        };
        stream.interest = wanted;
        self.waiting += usize::from(wanted.contains(epoll::EventFlags::OUT));
        self.waiting -= usize::from(old.contains(epoll::EventFlags::OUT));
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::engine::core::Settings;

    /// The deadlines of streams that come and go quickly leave only a few outdated entries, and no
    /// stream that is due is lost.
    #[test]
    fn times_of_streams_that_are_gone_are_sorted_out() {
        let settings = Settings {
            config: sprat_proto::rdma::RnicOptions::default(),
            copies: crate::engine::Copies::default(),
            coupling: crate::engine::Coupling::default(),
            connections: 8,
            fitted: false,
            on_failure: None,
        };
        let mut core = Core::new(settings, None).expect("a descriptor more");
        let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
        let come = |core: &mut Core, until: Instant| {
            let (socket, _) = std::os::unix::net::UnixStream::pair().expect("two descriptors more");
            let slot = core.place(Stream::new(
                Socket::Kernel(socket.into()),
                Stage::Lingering(until),
                nobody,
                None,
            ));
            core.schedule(slot, until);
            slot
        };
        let stays = come(&mut core, Instant::from_ns(7));
        for later in 0..5000 {
            let goes = come(&mut core, Instant::from_ns(1_000_000 + later));
            core.remove(goes);
        }
        assert!(core.timed.len() <= LEAST_TIMED, "{}", core.timed.len());
        assert!(core.streams[stays as usize].is_some());
        core.tick(Instant::from_ns(7));
        assert!(core.streams[stays as usize].is_none());
    }
}
