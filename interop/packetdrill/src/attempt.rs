//! The socket calls. A call that cannot be done yet is tried again after each change.

use std::net::SocketAddr;

use sprat_proto::Instant;
use sprat_proto::net::tcp::{TcpId, TcpOpenError, TcpState};

use crate::sockets::{Kind, Reply, Socket};
use crate::world::World;

/// The flags of `send` and `recv` without which a call means the same.
const HARMLESS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL;

/// A socket call that may have to wait.
#[derive(Debug)]
pub(crate) enum Call {
    Accept(i32),
    Connect { fd: i32, to: SocketAddr, is_begun: bool },
    Read { fd: i32, len: usize, flags: i32 },
    Write { fd: i32, bytes: Vec<u8>, flags: i32, done: usize },
    Poll { fds: Vec<(i32, i16)>, wait_ms: i32, until: Instant },
    EpollWait { fd: i32, most: usize, wait_ms: i32, until: Instant },
}

impl Call {
    /// Records the time at which the call was made.
    pub(crate) fn start(&mut self, now: Instant) {
        if let Self::Poll { wait_ms, until, .. } | Self::EpollWait { wait_ms, until, .. } = self {
            *until = match u64::try_from(*wait_ms) {
                Ok(ms) => now.after(ms * 1_000_000),
                Err(_) => Instant::NEVER,
            };
        }
    }

    /// Returns the time at which the call returns at the latest.
    pub(crate) const fn until(&self) -> Instant {
        match self {
            Self::Poll { until, .. } | Self::EpollWait { until, .. } => *until,
            _ => Instant::NEVER,
        }
    }

    /// Returns the number of bytes that the call has written so far.
    pub(crate) const fn progress(&self) -> usize {
        if let Self::Write { done, .. } = self { *done } else { 0 }
    }
}

impl World {
    /// Tries a call. Returns `None` if it has to wait.
    pub(crate) fn attempt(&mut self, call: &mut Call) -> Option<Result<Reply, i32>> {
        match call {
            Call::Accept(fd) => self.accept(*fd),
            Call::Connect { fd, to, is_begun } => self.connect(*fd, *to, is_begun),
            Call::Read { fd, len, flags } => self.read(*fd, *len, *flags),
            Call::Write { fd, bytes, flags, done } => self.write(*fd, bytes, *flags, done),
            Call::Poll { fds, until, .. } => {
                let polled: Vec<_> =
                    fds.iter().map(|(fd, events)| self.poll(*fd, *events)).collect();
                let count = polled.iter().filter(|events| **events != 0).count();
                let is_done = count > 0 || *until <= self.now;
                is_done.then(|| Ok(Reply { polled, ..Reply::of(count as i64) }))
            }
            Call::EpollWait { fd, most, until, .. } => self.epoll_wait(*fd, *most, *until),
        }
    }

    fn socket(&mut self, fd: i32) -> Result<&mut Socket, i32> {
        self.sockets.get_mut(&fd).ok_or(libc::EBADF)
    }

    fn accept(&mut self, fd: i32) -> Option<Result<Reply, i32>> {
        let socket = match self.socket(fd) {
            Ok(socket) => socket,
            Err(error) => return Some(Err(error)),
        };
        let (is_v6, never_waits, port) = (socket.is_v6, socket.never_waits(), socket.port);
        let Kind::Listener(queue) = &mut socket.kind else { return Some(Err(libc::EINVAL)) };
        let Some(id) = queue.pop_front() else {
            return never_waits.then_some(Err(libc::EAGAIN));
        };
        let peer = self.tcp().flow(id).map(|flow| (flow.peer, is_v6));
        Some(self.open(Kind::Connection(id, true), is_v6).map(|number| {
            let error = self.tcp().error(id).map(crate::sockets::errno);
            if let Some(socket) = self.sockets.get_mut(&number) {
                (socket.port, socket.error) = (port, error);
            }
            Reply { peer, ..Reply::of(number.into()) }
        }))
    }

    fn connect(
        &mut self,
        fd: i32,
        to: SocketAddr,
        is_begun: &mut bool,
    ) -> Option<Result<Reply, i32>> {
        let now = self.now;
        let socket = match self.socket(fd) {
            Ok(socket) => socket,
            Err(error) => return Some(Err(error)),
        };
        let (never_waits, port) = (socket.never_waits(), socket.port);
        if let Kind::New = socket.kind {
            let id = match self.stack().connect_tcp(now, port, to) {
                Ok(id) => id,
                Err(TcpOpenError::NoRoute) => return Some(Err(libc::ENETUNREACH)),
                Err(_) => return Some(Err(libc::EADDRNOTAVAIL)),
            };
            if let Some(socket) = self.sockets.get_mut(&fd) {
                socket.kind = Kind::Connection(id, false);
            }
            *is_begun = true;
            return never_waits.then_some(Err(libc::EINPROGRESS));
        }
        let Kind::Connection(id, is_known) = socket.kind else { return Some(Err(libc::EINVAL)) };
        if let Some(error) = socket.error.take() {
            return Some(Err(error));
        }
        let state = self.tcp().connection(id).map_or(TcpState::Closed, |c| c.state());
        match state {
            TcpState::SynSent | TcpState::SynReceived if *is_begun => None,
            TcpState::SynSent | TcpState::SynReceived => Some(Err(libc::EALREADY)),
            TcpState::Closed => Some(Err(libc::ECONNABORTED)),
            _ if is_known => Some(Err(libc::EISCONN)),
            _ => {
                if let Some(socket) = self.sockets.get_mut(&fd) {
                    socket.kind = Kind::Connection(id, true);
                }
                Some(Ok(Reply::of(0)))
            }
        }
    }

    fn read(&mut self, fd: i32, len: usize, flags: i32) -> Option<Result<Reply, i32>> {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Some(Err(libc::EAGAIN));
        }
        if flags & !(HARMLESS | libc::MSG_PEEK | libc::MSG_TRUNC) != 0 {
            crate::world::note("not supported: a flag of recv");
            return Some(Err(libc::EOPNOTSUPP));
        }
        let socket = match self.socket(fd) {
            Ok(socket) => socket,
            Err(error) => return Some(Err(error)),
        };
        let Kind::Connection(id, _) = socket.kind else { return Some(Err(libc::ENOTCONN)) };
        let never_waits = socket.never_waits() || flags & libc::MSG_DONTWAIT != 0;
        let (is_shut, error) = (socket.is_read_shut, socket.error);
        let Some((count, is_finished, is_over)) = self.tcp().connection(id).map(|c| {
            let is_over = c.state() == TcpState::Closed;
            (c.readable().min(len), c.is_finished() || is_over, is_over)
        }) else {
            return Some(Ok(Reply::of(0)));
        };
        if len == 0 || count > 0 {
            let bytes = self.take(id, count, flags);
            return Some(Ok(Reply { bytes, ..Reply::of(count as i64) }));
        }
        if let (Some(error), true) = (error, is_over) {
            if let Ok(socket) = self.socket(fd) {
                socket.error = None;
            }
            return Some(Err(error));
        }
        if is_shut || is_finished {
            return Some(Ok(Reply::of(0)));
        }
        never_waits.then_some(Err(libc::EAGAIN))
    }

    /// Takes `count` received bytes, or looks at them.
    fn take(&mut self, id: TcpId, count: usize, flags: i32) -> Vec<u8> {
        let mut bytes = vec![0; count];
        if flags & libc::MSG_PEEK == 0 {
            self.tcp().read(id, &mut bytes);
        } else if let Some(connection) = self.tcp().connection(id) {
            let (a, b) = connection.peek(0..count);
            bytes[..a.len()].copy_from_slice(a);
            bytes[a.len()..].copy_from_slice(b);
        }
        if flags & libc::MSG_TRUNC != 0 { Vec::new() } else { bytes }
    }

    fn write(
        &mut self,
        fd: i32,
        bytes: &[u8],
        flags: i32,
        done: &mut usize,
    ) -> Option<Result<Reply, i32>> {
        if flags & !HARMLESS != 0 {
            crate::world::note("not supported: a flag of send");
            return Some(Err(libc::EOPNOTSUPP));
        }
        let socket = match self.socket(fd) {
            Ok(socket) => socket,
            Err(error) => return Some(Err(error)),
        };
        let finish = |done: usize, error: i32| {
            Some(if done > 0 { Ok(Reply::of(done as i64)) } else { Err(error) })
        };
        let Kind::Connection(id, _) = socket.kind else { return Some(Err(libc::EPIPE)) };
        let never_waits = socket.never_waits() || flags & libc::MSG_DONTWAIT != 0;
        if let Some(error) = socket.error {
            if *done == 0 {
                socket.error = None;
            }
            return finish(*done, error);
        }
        if socket.is_write_shut {
            return finish(*done, libc::EPIPE);
        }
        let state = self.tcp().connection(id).map_or(TcpState::Closed, |c| c.state());
        match state {
            TcpState::SynSent | TcpState::SynReceived => {
                return never_waits.then_some(Err(libc::EAGAIN));
            }
            TcpState::Established | TcpState::CloseWait => {}
            _ => return finish(*done, libc::EPIPE),
        }
        *done += self.tcp().write(id, &bytes[*done..]);
        if *done == bytes.len() {
            return Some(Ok(Reply::of(*done as i64)));
        }
        if never_waits { finish(*done, libc::EAGAIN) } else { None }
    }

    /// Returns the events of a socket, of those that `poll` asks for.
    fn poll(&mut self, fd: i32, asked: i16) -> i16 {
        let Some(id) = self.sockets.get(&fd).map(Socket::id) else { return libc::POLLNVAL };
        let tcp = self.tcp();
        let config = tcp.config_mut().clone();
        let room = id.and_then(|id| tcp.connection(id)).map_or(0, |c| c.writable(&config));
        let Self { sockets, .. } = self;
        let Some(socket) = sockets.remove(&fd) else { return libc::POLLNVAL };
        let events = socket.events(self.tcp(), room, config.send_bytes as usize);
        self.sockets.insert(fd, socket);
        events & (asked | libc::POLLERR | libc::POLLHUP)
    }

    fn epoll_wait(&mut self, fd: i32, most: usize, until: Instant) -> Option<Result<Reply, i32>> {
        let socket = match self.socket(fd) {
            Ok(socket) => socket,
            Err(error) => return Some(Err(error)),
        };
        let Kind::Set(set) = &mut socket.kind else { return Some(Err(libc::EINVAL)) };
        let mut set = std::mem::take(set);
        let mut watched = Vec::new();
        for one in &mut set {
            let changes = self.sockets.get(&one.fd).map_or(0, |socket| socket.changes);
            let is_edge = one.events & libc::EPOLLET as u32 != 0;
            // The numbers of poll's events are those of epoll's.
            let events = self.poll(one.fd, one.events as i16) as u16;
            if events != 0 && watched.len() < most && (!is_edge || changes > one.seen) {
                one.seen = changes;
                watched.push((events.into(), one.data));
            }
        }
        if let Ok(socket) = self.socket(fd) {
            socket.kind = Kind::Set(set);
        }
        let is_done = !watched.is_empty() || until <= self.now;
        is_done.then(|| Ok(Reply { watched: watched.clone(), ..Reply::of(watched.len() as i64) }))
    }
}
