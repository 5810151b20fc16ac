//! Accepts TCP connections: up to the limit, and with a pause when the machine has no descriptor
//! left.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, SocketFlags};
use sprat_proto::Instant;
use sprat_proto::time::MS;

use super::connection::{self, Socket};
use super::{LISTENER, Sockets, Tcp};

/// The most TCP connections accepted in one turn.
const PER_TURN: usize = 64;
/// The pause in accepting after the machine ran out of descriptors or memory, in nanoseconds.
const PAUSE_NS: u64 = 100 * MS;

impl Tcp {
    /// Accepts the TCP connections that wait.
    pub(super) fn accept(&mut self, now: Instant) {
        for _ in 0..PER_TURN {
            if self.is_full() {
                return self.carrier.pause_accepting(Instant::NEVER);
            }
            let Some(listener) = &self.carrier.listener else { return };
            match net::accept_with(&listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.accepted(now, socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.carrier.pause_accepting(now.after(PAUSE_NS));
                }
                // This connection has ended already; there may be others.
                Err(_) => {}
            }
        }
    }

    fn accepted(&mut self, now: Instant, socket: OwnedFd) {
        // A socket that cannot be tuned has ended already.
        if connection::tune(socket.as_fd(), self.carrier.busy_poll_us).is_err() {
            return;
        }
        let slot = self.insert_accepted(now, Socket::new(socket));
        // It has probably sent a request already.
        self.carrier.ready.push_back(slot);
        self.stream_changed(slot);
    }
}

impl Sockets {
    pub(super) fn pause_accepting(&mut self, until: Instant) {
        self.accept_errors += 1;
        if let Some(listener) = &mut self.listener
            && listener.paused_until.is_none()
        {
            let _ = epoll::delete(&self.epoll, &listener.socket);
            listener.paused_until = Some(until);
        }
    }

    /// Ends a pause in accepting: there is room again, or its time has passed.
    pub(super) fn resume_accepting(&mut self) {
        if let Some(listener) = &mut self.listener
            && listener.paused_until.take().is_some()
        {
            let data = epoll::EventData::new_u64(LISTENER);
            let _ = epoll::add(&self.epoll, &listener.socket, data, epoll::EventFlags::IN);
            self.poll_epoll = true;
        }
    }
}
