//! How connections come to be and go: listening, connecting, closing, and the times that belong to that.
//!
//! Always holds: a slot is used by one socket from its opening to its close; the engine's number of a connection leads to
//! its slot until the engine has said `Close`, not longer.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, sockopt};
use sprat_proto::Instant;
use sprat_proto::rdma::{Conn, ConnectOptions, Qp, StartupError, StreamEnd};
use sprat_proto::time::{MS, SECOND};

use super::core::{Core, LEAST_TIMED, LISTENER};
use super::events::{Asked, Link, MOST_ASKED};
use super::cm::{Left, Number};
use super::stream::{self, Kept, SocketOptions, Stage, Stream};

/// How many connections wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;
/// How many are accepted in one turn.
const PER_TURN: usize = 64;
/// How long to wait after running out of descriptors or memory.
const PAUSE_NS: u64 = 100 * MS;
/// How long who was refused waits before he tries again.
const AGAIN_NS: u64 = 5 * MS;
/// How many failed start-ups a listener keeps for its program.
const MOST_FAILED: usize = 64;
/// How long the peer may take to end its side after we have ended ours.
const LINGER_NS: u64 = 2 * SECOND;

/// A listening socket and who has asked there.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    pub(crate) local: SocketAddr,
    pub(crate) asked: VecDeque<Asked>,
    /// Peers that did not get through their start-up, the newest [`MOST_FAILED`].
    failed: VecDeque<(SocketAddr, StartupError)>,
    audience: Audience,
    /// While it is out of the epoll: when to try again, or never before a connection ends.
    paused_until: Option<Instant>,
}

/// How long TCP may take to connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dial {
    /// In all.
    pub(crate) timeout_ns: u64,
    /// And how long who is refused tries again: a server may be about to listen.
    pub(crate) grace_ns: u64,
}

/// Who is told of those who ask, and who may ask.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Audience {
    /// A party and how many may wait for it; else they wait at the listener.
    pub(crate) party: Option<(Number, usize)>,
    /// Peers of other machines are not served.
    pub(crate) local_only: bool,
}

/// A peer on loopback, or with the very address that it has connected to: what comes from another machine with an address of
/// this one the kernel drops, and its answers would not get there.
fn is_of_this_machine(peer: SocketAddr, socket: &OwnedFd) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback()
        || stream::address(socket).is_ok_and(|local| local.ip().to_canonical() == peer)
}

impl Core {
    /// Listens at `addr`; the listener's number and its address, with the port filled in.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn listen(&mut self, addr: SocketAddr) -> io::Result<(u32, SocketAddr)> {
        let (socket, _) = stream::bound(&addr, SocketOptions::default())?;
        self.listen_at(socket, Audience::default())
    }

    /// The same at a socket that is bound.
    ///
    /// # Errors
    /// Another has come to listen there.
    pub(crate) fn listen_at(
        &mut self,
        socket: OwnedFd,
        audience: Audience,
    ) -> io::Result<(u32, SocketAddr)> {
        net::listen(&socket, BACKLOG)?;
        let local = stream::address(&socket)?;
        let number = self.listeners.last_key_value().map_or(0, |(n, _)| n + 1);
        let data = epoll::EventData::new_u64(LISTENER | u64::from(number));
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)?;
        let (asked, failed) = (VecDeque::new(), VecDeque::new());
        self.listeners.insert(
            number,
            Listener { socket, local, asked, failed, audience, paused_until: None },
        );
        Ok((number, local))
    }

    /// Listens no more; who has asked and was not answered is refused.
    pub(crate) fn unlisten(&mut self, now: Instant, number: u32) {
        let Some(listener) = self.listeners.remove(&number) else { return };
        for asked in listener.asked {
            let _ = self.rnic.reject(now, asked.conn, &[]);
        }
        if let Some((party, _)) = listener.audience.party {
            self.desk.parties.listens_no_more(party);
        }
    }

    /// Keeps what somebody asks for whoever listens; false if nobody can be told.
    pub(super) fn hears(&mut self, listener: Option<u32>, asked: Asked) -> bool {
        let Some(listener) = listener.and_then(|number| self.listeners.get_mut(&number)) else {
            return false;
        };
        if let Some((party, most)) = listener.audience.party {
            return self.desk.parties.asked(party, most, asked);
        }
        let room = listener.asked.len() < MOST_ASKED;
        if room {
            listener.asked.push_back(asked);
        }
        room
    }

    /// A connection ended before it had a queue pair. A request of it that waits at its listener asks no more.
    pub(super) fn start_failed(&mut self, conn: Conn, why: StartupError) {
        let stream = self.slot_of(conn).and_then(|slot| self.streams[slot as usize].as_deref());
        let Some((peer, number)) = stream.and_then(|stream| Some((stream.peer, stream.listener?)))
        else {
            return;
        };
        let Some(listener) = self.listeners.get_mut(&number) else { return };
        listener.asked.retain(|asked| asked.conn != conn);
        if listener.failed.len() == MOST_FAILED {
            listener.failed.pop_front();
        }
        listener.failed.push_back((peer, why));
    }

    /// The oldest failed start-up at a listener that its program has not seen.
    pub(crate) fn failed_at(&mut self, listener: u32) -> Option<(SocketAddr, StartupError)> {
        self.listeners.get_mut(&listener)?.failed.pop_front()
    }

    /// A party goes, and what it has: its listener, its connection, those who have asked it.
    pub(crate) fn part(&mut self, now: Instant, party: Number) -> u64 {
        let Left { fetched, pair, listener, asked } = self.desk.parties.leave(party);
        if let Some(listener) = listener {
            self.unlisten(now, listener);
        }
        for conn in asked {
            let _ = self.rnic.reject(now, conn, &[]);
        }
        if let Some(qp) = pair {
            self.hang_up(now, qp);
        }
        fetched
    }

    /// Ends a queue pair's connection, however far it is; false if there is none.
    pub(crate) fn hang_up(&mut self, now: Instant, qp: Qp) -> bool {
        self.rnic.disconnect(now, qp).is_ok() || self.cancel(qp)
    }

    /// Gives up a connection of TCP's that is being made for `qp`; false if there is none.
    pub(crate) fn cancel(&mut self, qp: Qp) -> bool {
        // Whoever opens is among those that have a time; others need not be looked through.
        if self.desk.links.get(&qp) != Some(&Link::Opening) {
            return false;
        }
        let opens = |slot: &u32| {
            let stream = self.streams[*slot as usize].as_deref();
            stream
                .is_some_and(|s| matches!(s.stage, Stage::Opening { qp: whose, .. } if whose == qp))
        };
        let Some(slot) = self.timed.iter().map(|Reverse((_, slot))| *slot).find(opens) else {
            return false;
        };
        self.desk.link(qp, Link::Failed(StartupError::Cancelled));
        self.remove(slot);
        true
    }

    pub(super) fn accept_from(&mut self, now: Instant, number: u32) {
        for _ in 0..PER_TURN {
            if self.live.len() >= self.settings.connections {
                return self.pause(number, Instant::NEVER);
            }
            let Some(listener) = self.listeners.get(&number) else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match net::acceptfrom_with(&listener.socket, flags) {
                Ok((socket, peer)) => {
                    let peer =
                        peer.and_then(|p| SocketAddr::try_from(p).ok()).unwrap_or(listener.local);
                    if listener.audience.local_only && !is_of_this_machine(peer, &socket) {
                        self.counters.accept_refused += 1;
                        continue;
                    }
                    self.welcome(now, number, socket, peer);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.pause(number, now.after(PAUSE_NS));
                }
                // This one is gone already; there may be others.
                Err(_) => {}
            }
        }
    }

    fn welcome(&mut self, now: Instant, listener: u32, socket: OwnedFd, peer: SocketAddr) {
        // A socket that cannot be tuned has ended already.
        if stream::tune(socket.as_fd()).is_err() {
            return;
        }
        let Ok(conn) = self.rnic.incoming(now) else {
            self.counters.accept_errors += 1;
            return;
        };
        self.counters.accepted += 1;
        let slot = self.place(Stream::new(socket, Stage::Live(conn), peer, Some(listener)));
        self.goes_live(slot, conn);
        // It has probably said something already.
        self.ready.push_back(slot);
    }

    fn pause(&mut self, number: u32, until: Instant) {
        self.counters.accept_errors += 1;
        if let Some(listener) = self.listeners.get_mut(&number)
            && listener.paused_until.is_none()
        {
            let _ = epoll::delete(&self.epoll, &listener.socket);
            listener.paused_until = Some(until);
            self.first_timed = self.first_timed.min(until);
        }
    }

    /// Accepts again where the pause is over, or everywhere; returns when the next pause is over.
    fn resume(&mut self, now: Instant) -> Instant {
        let mut next = Instant::NEVER;
        for (number, listener) in &mut self.listeners {
            match listener.paused_until {
                Some(until) if until <= now => {
                    listener.paused_until = None;
                    let data = epoll::EventData::new_u64(LISTENER | u64::from(*number));
                    let _ = epoll::add(&self.epoll, &listener.socket, data, epoll::EventFlags::IN);
                    self.look = true;
                }
                Some(until) => next = next.min(until),
                None => {}
            }
        }
        next
    }

    /// Begins to connect `qp` with `to`. What comes of it is at the desk.
    ///
    /// # Errors
    /// No socket, no such address, too many connections.
    pub fn connect(
        &mut self,
        now: Instant,
        qp: Qp,
        to: SocketAddr,
        options: ConnectOptions,
        timeout_ns: u64,
    ) -> io::Result<()> {
        let dial = Dial { timeout_ns, grace_ns: 0 };
        self.connect_by(now, qp, stream::open(&to)?, to, options, dial).map(|_| ())
    }

    /// The same by a socket of the caller's; this end's address.
    ///
    /// # Errors
    /// As [`Core::connect`].
    pub(crate) fn connect_by(
        &mut self,
        now: Instant,
        qp: Qp,
        socket: OwnedFd,
        to: SocketAddr,
        options: ConnectOptions,
        dial: Dial,
    ) -> io::Result<SocketAddr> {
        if self.live.len() >= self.settings.connections {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections"));
        }
        let (until, again) = (now.after(dial.timeout_ns), now.after(dial.grace_ns));
        let (done, refused) = match stream::begin(&socket, &to) {
            Ok(done) => (done, false),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && now < again => (false, true),
            Err(e) => return Err(e),
        };
        let local = stream::address(&socket)?;
        let stage = Stage::Opening { qp, options: Box::new(options), until, again, refused };
        let slot = self.place(Stream::new(socket, stage, to, None));
        self.desk.link(qp, Link::Opening);
        if done {
            self.opened(now, slot);
        } else {
            self.register(slot);
            self.time(slot, if refused { now.after(AGAIN_NS) } else { until });
        }
        Ok(local)
    }

    /// Whoever was refused tries again.
    fn try_again(&mut self, now: Instant, slot: u32) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        let Stage::Opening { qp, until, again, refused, .. } = &mut stream.stage else { return };
        let (qp, until, again) = (*qp, *until, *again);
        *refused = false;
        let begun = match stream::begin(&stream.socket, &stream.peer) {
            // That is still the end of the last attempt.
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {
                stream::begin(&stream.socket, &stream.peer)
            }
            begun => begun,
        };
        match begun {
            Ok(true) => self.opened(now, slot),
            Ok(false) => {
                self.register(slot);
                self.time(slot, until);
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && now < again => {
                self.was_refused(now, slot)
            }
            Err(e) => {
                self.desk.link(qp, Link::Unreachable(e.kind()));
                self.remove(slot);
            }
        }
    }

    fn was_refused(&mut self, now: Instant, slot: u32) {
        if let Some(stream) = self.streams[slot as usize].as_deref_mut()
            && let Stage::Opening { refused, .. } = &mut stream.stage
        {
            *refused = true;
        }
        self.register(slot);
        self.time(slot, now.after(AGAIN_NS));
    }

    /// TCP has connected, or has not.
    pub(super) fn opened(&mut self, now: Instant, slot: u32) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        let result = match sockopt::socket_error(&stream.socket) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) | Err(e) => Err(io::Error::from(e).kind()),
        };
        let Stage::Opening { qp, options, again, .. } = &mut stream.stage else { return };
        if result == Err(io::ErrorKind::ConnectionRefused) && now < *again {
            return self.was_refused(now, slot);
        }
        let (qp, options) = (*qp, std::mem::take(&mut **options));
        let started = result.and_then(|()| {
            self.rnic.connect(now, qp, &options).map_err(|_| io::ErrorKind::InvalidInput)
        });
        match started {
            Ok(conn) => {
                stream.stage = Stage::Live(conn);
                self.goes_live(slot, conn);
                self.soil(slot);
            }
            Err(kind) => {
                self.desk.link(qp, Link::Unreachable(kind));
                self.remove(slot);
            }
        }
    }

    /// The engine has a name for the stream in `slot`.
    fn goes_live(&mut self, slot: u32, conn: Conn) {
        let at = conn.index();
        if self.by_conn.len() <= at {
            self.by_conn.resize(at + 1, u32::MAX);
        }
        self.by_conn[at] = slot;
        if self.settings.fitted
            && let Some(emss) = self.streams[slot as usize].as_deref().and_then(Stream::emss)
        {
            self.rnic.set_emss(conn, emss as usize);
        }
        self.register(slot);
    }

    /// The stream has ended; the engine decides what follows.
    pub(super) fn ended(&mut self, now: Instant, slot: u32, conn: Conn, end: StreamEnd) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        stream.finished = true;
        let kept = std::mem::take(&mut stream.kept);
        self.kept_buffers -= usize::from(matches!(kept, Kept::Many(..)));
        if end == StreamEnd::Reset {
            stream.pending = None;
        }
        self.register(slot);
        self.rnic.ended(now, conn, end);
    }

    /// The engine is done with a connection.
    pub(super) fn close(&mut self, now: Instant, conn: Conn, reset: bool) {
        let Some(slot) = self.slot_of(conn) else { return };
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        if reset {
            stream.abort();
            return self.remove(slot);
        }
        let until = now.after(LINGER_NS);
        stream.stage = Stage::Lingering(until);
        let kept = std::mem::take(&mut stream.kept);
        self.kept_buffers -= usize::from(matches!(kept, Kept::Many(..)));
        self.time(slot, until);
        if self.streams[slot as usize].as_deref().is_some_and(|s| s.pending.is_none()) {
            self.said_all(slot);
        }
    }

    /// A lingering stream has nothing more to send.
    pub(super) fn said_all(&mut self, slot: u32) {
        let Some(stream) = self.streams[slot as usize].as_deref() else { return };
        stream.shut();
        if stream.finished {
            self.remove(slot);
        }
    }

    /// Reads and drops what a peer sends that has nobody to talk to any more.
    pub(super) fn drain(&mut self, slot: u32) -> bool {
        let mut waste = [0; 4096];
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return false };
        match stream.read(&mut waste, 4096) {
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

    /// What is late.
    pub(super) fn tick(&mut self, now: Instant) {
        self.rnic.tick(now);
        if now < self.first_timed {
            return;
        }
        while let Some(&Reverse((due, slot))) = self.timed.peek()
            && due <= now
        {
            self.timed.pop();
            let Some(stream) = self.streams[slot as usize].as_deref() else { continue };
            let (until, qp) = match &stream.stage {
                Stage::Opening { refused: true, .. } => {
                    self.try_again(now, slot);
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
                self.desk.link(qp, Link::Unreachable(io::ErrorKind::TimedOut));
            }
            self.remove(slot);
        }
        let next = self.timed.peek().map_or(Instant::NEVER, |Reverse((due, _))| *due);
        self.first_timed = next.min(self.resume(now));
    }

    fn time(&mut self, slot: u32, until: Instant) {
        self.timed.push(Reverse((until, slot)));
        self.first_timed = self.first_timed.min(until);
        // An entry stays when its stream has opened or gone: thousands of connections a second would have all those of the
        // time that opening may take.
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

    fn place(&mut self, stream: Stream) -> u32 {
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

    /// Closes the socket and empties the slot.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(stream) = self.streams[slot as usize].take() else { return };
        self.waiting -= usize::from(stream.interest.contains(epoll::EventFlags::OUT));
        if let Some(at) = self.live.iter().position(|s| *s == slot) {
            self.live.swap_remove(at);
        }
        self.free.push(slot);
        self.kept_buffers -= usize::from(matches!(stream.kept, Kept::Many(..)));
        // There is room for others.
        self.resume(Instant::NEVER);
    }

    /// Makes the epoll report what the stream waits for.
    pub(super) fn register(&mut self, slot: u32) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        let (old, wanted) = (stream.interest, stream.wanted_interest());
        if wanted == old {
            return;
        }
        let data = epoll::EventData::new_u64(u64::from(slot));
        // A socket that nothing is wanted of leaves the epoll, which would report its end again and again. A failure shows
        // as silence, which the engine's deadlines end.
        let _ = match (old.is_empty(), wanted.is_empty()) {
            (true, _) => epoll::add(&self.epoll, &stream.socket, data, wanted),
            (false, true) => epoll::delete(&self.epoll, &stream.socket),
            (false, false) => epoll::modify(&self.epoll, &stream.socket, data, wanted),
        };
        stream.interest = wanted;
        self.waiting += usize::from(wanted.contains(epoll::EventFlags::OUT));
        self.waiting -= usize::from(old.contains(epoll::EventFlags::OUT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::core::Settings;

    /// Streams that come and go faster than their times leave no more than a few of these, and none that is due is lost.
    #[test]
    fn times_of_streams_that_are_gone_are_sorted_out() {
        let settings = Settings {
            config: sprat_proto::rdma::RnicOptions::default(),
            copies: crate::engine::Copies::default(),
            connections: 8,
            fitted: false,
            on_failure: None,
        };
        let mut core = Core::new(settings).expect("a descriptor more");
        let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
        let come = |core: &mut Core, until: Instant| {
            let (socket, _) = std::os::unix::net::UnixStream::pair().expect("two descriptors more");
            let slot =
                core.place(Stream::new(socket.into(), Stage::Lingering(until), nobody, None));
            core.time(slot, until);
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
