//! A connected Unix socket and the process at its other end: which user runs it, and when it has
//! ended.
//!
//! A socket hangs up when the last copy of its other end is closed, and a process that the peer
//! forked holds copies. So the hang-up alone does not show the peer's death. Two things show it
//! whatever was forked:
//!
//! - This side shuts the socket down before it closes it (shutdown(2) acts on the socket, not on
//!   one descriptor).
//! - Of a peer that was killed a pidfd tells (pidfd_open(2)), which becomes readable when the
//!   process ends and not while it is stopped.
//!
//! The pidfd comes from SO_PEERPIDFD. Before Linux 6.5 it comes from the number in SO_PEERCRED,
//! which may belong to another process by then if the peer has ended already; a peer that lives
//! keeps its number, so no living peer looks dead. Where the kernel gives neither (Linux before
//! 5.3, a peer of another pid namespace before 6.5, a filter of system calls), the hang-up is all
//! there is.
//!
//! The peer of a client is the process that called listen(2), and of a server the one that called
//! connect(2).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::process::{Pid, PidfdFlags, Uid, pidfd_open};

/// A connected Unix socket; dropped, it is shut down and closed.
#[derive(Debug)]
pub(crate) struct Connected {
    socket: OwnedFd,
    /// The pidfd of the peer's process, where the kernel gives one.
    process: Option<OwnedFd>,
    user: Uid,
    /// The process that owns the socket: a forked copy of this value must not shut the socket down.
    owner: Pid,
}

impl Connected {
    /// Takes ownership of a connected Unix socket.
    ///
    /// # Errors
    /// `ConnectionRefused` if the peer has ended already; no file descriptor is left.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let (pid, user) = sprat_sys::socket::peer_ids(socket.as_fd())?;
        let process = process(socket.as_fd(), pid)?;
        // Linux since 6.16 gives the pidfd of a process that is gone too, and every Linux that of a
        // zombie.
        if process.as_ref().is_some_and(has_ended) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(Self { socket, process, user: Uid::from_raw(user), owner: rustix::process::getpid() })
    }

    /// The user that the peer's process ran as when it connected or listened.
    pub(crate) fn user(&self) -> Uid {
        self.user
    }

    /// Adds the socket to `epoll` with the data `socket`, and the peer's pidfd with the data
    /// `ended`.
    pub(crate) fn watch(&self, epoll: &OwnedFd, socket: u64, ended: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP;
        epoll::add(epoll, &self.socket, EventData::new_u64(socket), flags)?;
        if let Some(process) = &self.process {
            epoll::add(epoll, process, EventData::new_u64(ended), EventFlags::IN)
                .inspect_err(|_| self.unwatch(epoll))?;
        }
        Ok(())
    }

    /// Removes the socket and the peer's pidfd from `epoll`. Closing them is not enough: an epoll
    /// keeps file descriptors of which a forked process has copies.
    pub(crate) fn unwatch(&self, epoll: &OwnedFd) {
        // One that is not there any more is out.
        let _ = epoll::delete(epoll, &self.socket);
        if let Some(process) = &self.process {
            let _ = epoll::delete(epoll, process);
        }
    }
}

impl AsFd for Connected {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        if rustix::process::getpid() == self.owner {
            hang_up(&self.socket);
        }
    }
}

/// Ends a connection for both sides by shutting its socket down, whichever processes have copies of
/// the socket.
pub(super) fn hang_up(socket: &OwnedFd) {
    // A connection that has ended already fails here, and has nothing left to end.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

impl Connected {
    /// Returns true if the peer's process ends, or hangs up, within this time.
    pub(super) fn ends_within(&self, time: Timespec) -> bool {
        let socket = PollFd::new(&self.socket, PollFlags::RDHUP);
        let process = self.process.iter().map(|process| PollFd::new(process, PollFlags::IN));
        let mut all: Vec<_> = std::iter::once(socket).chain(process).collect();
        poll(&mut all, Some(&time)).is_ok_and(|ready| ready > 0)
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Returns the pidfd of the peer's process, which has the number `pid` (0 if this process's
/// namespace has no number for it).
fn process(socket: BorrowedFd<'_>, pid: i32) -> io::Result<Option<OwnedFd>> {
    match sprat_sys::socket::peer_pidfd(socket) {
        Ok(process) => Ok(Some(process)),
        Err(e) => match Errno::from_io_error(&e) {
            // The kernel knows the option, and no such process: Linux 6.5 said EINVAL, later ones
            // say ESRCH.
            Some(Errno::INVAL | Errno::SRCH) => Err(io::ErrorKind::ConnectionRefused.into()),
            Some(Errno::NOPROTOOPT) => by_number(pid),
            _ => lacking(e),
        },
    }
}

fn by_number(pid: i32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(Errno::SRCH) => Err(io::ErrorKind::ConnectionRefused.into()),
        Err(e) => lacking(e.into()),
    }
}

/// Handles a failure to get the peer's pidfd: an error if file descriptors or memory are exhausted,
/// since the connection could not be served; `None` if the kernel lacks the system call.
fn lacking(e: io::Error) -> io::Result<Option<OwnedFd>> {
    match Errno::from_io_error(&e) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Err(e),
        _ => Ok(None),
    }
}

#[cfg(test)]
pub(crate) mod tests;
