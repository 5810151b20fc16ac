//! Accepting: up to the limit, and without spinning when the machine has no descriptor left.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, sockopt};
use sprat_proto::Instant;
use sprat_proto::rpc::stream::{Role, Stream};
use sprat_proto::time::MS;

use super::{LISTENER, SILENCE_NS, Tcp, connection};

/// How many connections wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;
/// How many are accepted in one turn.
const PER_TURN: usize = 64;
/// How long to wait after running out of descriptors or memory.
const PAUSE_NS: u64 = 100 * MS;

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) local: SocketAddr,
    /// While it is out of the epoll: when to try again, or never before a connection ends.
    paused_until: Option<Instant>,
}

impl Listener {
    pub(super) fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = connection::open(&addr)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &addr)?;
        net::listen(&socket, BACKLOG)?;
        let local = net::getsockname(&socket)?.try_into()?;
        Ok(Self { socket, local, paused_until: None })
    }
}

impl Tcp {
    /// Accepts whoever waits.
    pub(super) fn accept(&mut self, now: Instant) {
        for _ in 0..PER_TURN {
            if self.live.len() >= self.limit() {
                return self.pause_accepting(Instant::NEVER);
            }
            let Some(listener) = &self.listener else { return };
            match net::accept_with(&listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.welcome(now, socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.pause_accepting(now.after(PAUSE_NS));
                }
                // This one is gone already; there may be others.
                Err(_) => {}
            }
        }
    }

    fn welcome(&mut self, now: Instant, socket: OwnedFd) {
        // A socket that cannot be tuned has ended already.
        if connection::tune(socket.as_fd(), self.options.busy_poll_us).is_err() {
            return;
        }
        self.counters.accepted += 1;
        let slot = self.place(socket, |slot| Stream::new(slot, Role::Server, 0));
        // It has probably said something already.
        self.ready.push_back(slot);
        let silent_until = now.after(SILENCE_NS);
        if let Some(connection) = self.at_slot(slot) {
            connection.silent_until = silent_until;
        }
        self.first_deadline = self.first_deadline.min(silent_until);
        self.settle(slot);
    }

    pub(super) fn pause_accepting(&mut self, until: Instant) {
        self.counters.accept_errors += 1;
        if let Some(listener) = &mut self.listener
            && listener.paused_until.is_none()
        {
            let _ = epoll::delete(&self.epoll, &listener.socket);
            listener.paused_until = Some(until);
            self.first_deadline = self.first_deadline.min(until);
        }
    }

    /// Accepts again, now that there is room.
    pub(super) fn resume_accepting(&mut self) {
        if let Some(listener) = &mut self.listener
            && listener.paused_until.take().is_some()
        {
            let data = epoll::EventData::new_u64(LISTENER);
            let _ = epoll::add(&self.epoll, &listener.socket, data, epoll::EventFlags::IN);
            self.look = true;
        }
    }

    /// Accepts again if the pause is over; returns when it will be.
    pub(super) fn resume_if_due(&mut self, now: Instant) -> Instant {
        match self.listener.as_ref().and_then(|l| l.paused_until) {
            Some(until) if until <= now => self.resume_accepting(),
            Some(until) => return until,
            None => {}
        }
        Instant::NEVER
    }
}
