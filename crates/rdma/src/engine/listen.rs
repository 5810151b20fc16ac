//! Listening: accepts connections, and keeps requests for their listeners.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, SocketFlags};
use sprat_proto::Instant;
use sprat_proto::rdma::{Conn, StartupError};
use sprat_proto::time::MS;

use super::core::{Core, LISTENER};
use super::listener::{AcceptPolicy, Listener};
use super::reserved::Reserved;
use super::state::PendingRequest;
use super::stream::{self, Socket, SocketOptions, Stage, Stream, Unconnected};

/// The most connections that wait in the kernel to be accepted by one listener.
const BACKLOG: i32 = 1024;
/// The most connections that one turn accepts at a listener.
const PER_TURN: usize = 64;
/// The time for which a listener pauses after the process has run out of descriptors or memory.
const PAUSE_NS: u64 = 100 * MS;
/// The most failed start-ups that a listener keeps for its program.
const MOST_FAILED: usize = 64;
/// The most requests for a connection that wait at one listener.
const MAX_PENDING: usize = 4096;

/// True for a peer on loopback, or with the same address that it has connected to. The kernel drops
/// packets that arrive from another machine with an address of this one, and the answers to them
/// would not reach that machine.
fn is_of_this_machine(peer: SocketAddr, socket: &OwnedFd) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback()
        || stream::address(socket).is_ok_and(|local| local.ip().to_canonical() == peer)
}

/// Returns the address of one version of IP that stands for any.
const fn unspecified(is_v4: bool) -> IpAddr {
    if is_v4 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) }
}

impl Core {
    /// Listens at `addr`; returns the listener's number and its address, with the port filled in.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn listen(&mut self, addr: SocketAddr) -> io::Result<(u32, SocketAddr)> {
        let (socket, _) = self.bind(&addr, SocketOptions::default())?;
        self.listen_at(socket, AcceptPolicy::default())
    }

    /// Returns a socket for `addr` that is not bound.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn open(&self, addr: &SocketAddr) -> io::Result<Unconnected> {
        match &self.native {
            None => Ok(Unconnected::Kernel(stream::open(addr)?)),
            Some(_) => Ok(Unconnected::Native(Reserved::any(unspecified(addr.is_ipv4())))),
        }
    }

    /// Returns a socket bound to `addr`, and its address, with the port filled in if it was chosen.
    ///
    /// # Errors
    /// The address is in use or not one of this machine, or no descriptor is left.
    pub(crate) fn bind(
        &mut self,
        addr: &SocketAddr,
        options: SocketOptions,
    ) -> io::Result<(Unconnected, SocketAddr)> {
        let Some(native) = &mut self.native else {
            let (socket, local) = stream::bound(addr, options)?;
            return Ok((Unconnected::Kernel(socket), local));
        };
        if self.listeners.values().any(|listener| listener.local.port() == addr.port()) {
            let why = format!("{addr}: a listener has the port");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
        }
        let socket = native.bind(*addr, options.connects)?;
        let local = socket.address();
        Ok((Unconnected::Native(socket), local))
    }

    /// Listens at a bound socket; returns the listener's number and address.
    ///
    /// # Errors
    /// Another socket already listens at the address.
    pub(crate) fn listen_at(
        &mut self,
        socket: Unconnected,
        policy: AcceptPolicy,
    ) -> io::Result<(u32, SocketAddr)> {
        let number = self.listeners.last_key_value().map_or(0, |(n, _)| n + 1);
        let (socket, local) = match socket {
            Unconnected::Kernel(socket) => {
                net::listen(&socket, BACKLOG)?;
                let local = stream::address(&socket)?;
                let data = epoll::EventData::new_u64(LISTENER | u64::from(number));
                epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)?;
                (Some(socket), local)
            }
            Unconnected::Native(at) => {
                let native = self.native.as_deref_mut().ok_or(io::ErrorKind::Unsupported)?;
                (None, native.listen(at.address())?)
            }
        };
        let (asked, failed) = (VecDeque::new(), VecDeque::new());
        self.listeners
            .insert(number, Listener { socket, local, asked, failed, policy, paused_until: None });
        Ok((number, local))
    }

    /// Ends a listener, and rejects the connection requests that wait there.
    pub(crate) fn unlisten(&mut self, now: Instant, number: u32) {
        let Some(listener) = self.listeners.remove(&number) else {
            return;
        };
        self.native.iter_mut().for_each(|native| native.unlisten(listener.local.port()));
        for asked in listener.asked {
            let _ = self.rnic.reject(now, asked.conn, &[]);
        }
        if let Some((cm_id, _)) = listener.policy.cm_id {
            self.events.cm.clear_listener(cm_id);
        }
    }

    /// Keeps a connection request for the program that listens; returns false if there is no
    /// listener or no room.
    pub(super) fn deliver_request(&mut self, listener: Option<u32>, asked: PendingRequest) -> bool {
        let Some(listener) = listener.and_then(|number| self.listeners.get_mut(&number)) else {
            return false;
        };
        if let Some((cm_id, most)) = listener.policy.cm_id {
            return self.events.cm.request(cm_id, most, asked);
        }
        let room = listener.asked.len() < MAX_PENDING;
        if room {
            listener.asked.push_back(asked);
        }
        room
    }

    /// Handles the end of a connection that never had a queue pair. Removes its request if that
    /// still waits at the listener.
    pub(super) fn start_failed(&mut self, conn: Conn, why: StartupError) {
        let stream = self.slot_of(conn).and_then(|slot| self.streams[slot as usize].as_deref());
        let Some((peer, number)) = stream.and_then(|stream| Some((stream.peer, stream.listener?)))
        else {
            return;
        };
        let Some(listener) = self.listeners.get_mut(&number) else {
            return;
        };
        listener.asked.retain(|asked| asked.conn != conn);
        if listener.failed.len() == MOST_FAILED {
            listener.failed.pop_front();
        }
        listener.failed.push_back((peer, why));
    }

    /// Takes the oldest failed start-up at a listener that its program has not seen.
    pub(crate) fn next_failed(&mut self, listener: u32) -> Option<(SocketAddr, StartupError)> {
        self.listeners.get_mut(&listener)?.failed.pop_front()
    }

    pub(super) fn accept_from(&mut self, now: Instant, number: u32) {
        for _ in 0..PER_TURN {
            if self.live.len() >= self.settings.connections {
                return self.pause(number, Instant::NEVER);
            }
            let Some(listener) = self.listeners.get(&number) else {
                return;
            };
            let Some(socket) = &listener.socket else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match net::acceptfrom_with(socket, flags) {
                Ok((socket, peer)) => {
                    let peer =
                        peer.and_then(|p| SocketAddr::try_from(p).ok()).unwrap_or(listener.local);
                    if listener.policy.local_only && !is_of_this_machine(peer, &socket) {
                        self.counters.accept_refused += 1;
                        continue;
                    }
                    self.add_accepted(now, number, socket, peer);
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

    fn add_accepted(&mut self, now: Instant, listener: u32, socket: OwnedFd, peer: SocketAddr) {
        // A socket that cannot be tuned has ended already.
        if stream::tune(socket.as_fd()).is_err() {
            return;
        }
        let Ok(conn) = self.rnic.incoming(now) else {
            self.counters.accept_errors += 1;
            return;
        };
        self.counters.accepted += 1;
        let slot = self.place(Stream::new(
            Socket::Kernel(socket),
            Stage::Live(conn),
            peer,
            Some(listener),
        ));
        self.set_live(slot, conn);
        // It has probably said something already.
        self.ready.push_back(slot);
    }

    fn pause(&mut self, number: u32, until: Instant) {
        self.counters.accept_errors += 1;
        if let Some(listener) = self.listeners.get_mut(&number)
            && listener.paused_until.is_none()
        {
            if let Some(socket) = &listener.socket {
                let _ = epoll::delete(&self.epoll, socket);
            }
            listener.paused_until = Some(until);
            self.first_timed = self.first_timed.min(until);
        }
    }

    /// Lets each listener accept again whose pause is over by `now`; returns when the next pause is
    /// over.
    pub(super) fn resume(&mut self, now: Instant) -> Instant {
        let mut next = Instant::NEVER;
        for (number, listener) in &mut self.listeners {
            match listener.paused_until {
                Some(until) if until <= now => {
                    listener.paused_until = None;
                    let data = epoll::EventData::new_u64(LISTENER | u64::from(*number));
                    if let Some(socket) = &listener.socket {
                        let _ = epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN);
                    }
                    self.ask_epoll = true;
                }
                Some(until) => next = next.min(until),
                None => {}
            }
        }
        next
    }
}
