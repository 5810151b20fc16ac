//! The sockets of the driver over shared memory: how connections are accepted, opened, woken and
//! ended.
//!
//! All sockets hang from one epoll, which [`Sockets::poll`] asks without waiting. Not here: the
//! turns between two polls (`table`), and the bytes of the hellos (`connection`, `hello`).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::{Timespec, epoll};
use sprat_proto::{Instant, Rng};

use super::connected::Connected;
use super::connection::{self, State};
use super::hello;
use super::options::{Counters, Options};
use super::path::{self, Call, Listener};
use super::table::{Connection, ENDED, Table};
use sprat_sys::clock;

/// The maximum of connections accepted, and of socket events handled, in one poll.
const EVENTS: usize = 64;
/// The epoll's data for the listening socket; no connection has this number.
const LISTENER: u64 = u64::MAX;
pub(super) const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The listening socket of a driver over shared memory, and the terms of new connections: the kind,
/// the length of rings and the users allowed.
pub(super) struct Sockets {
    listener: Option<Listener>,
    kind: hello::Kind,
    other_users: bool,
    ring_bytes: usize,
    rng: Rng,
}

impl Sockets {
    /// Makes the driver's sockets, without a listening one.
    pub(super) fn new(options: &Options) -> io::Result<Self> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        Ok(Self {
            listener: None,
            kind: if options.frames { hello::Kind::Frames } else { hello::Kind::Datagrams },
            other_users: options.other_users,
            ring_bytes: options.ring_bytes,
            rng: Rng::new(seed),
        })
    }

    /// Listens at the server name `name` in the directory `at`.
    pub(super) fn listen(&mut self, table: &Table, at: &Path, name: &str) -> io::Result<()> {
        let listener = Listener::bind(at, name)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(table.epoll(), &listener, data, epoll::EventFlags::IN)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// The driver's listening socket, if it has one.
    #[cfg(test)]
    pub(super) fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref()
    }

    /// Connects to the server `name` in the directory `at`; returns the connection's number.
    pub(super) fn connect(&self, table: &mut Table, at: &Path, name: String) -> io::Result<u64> {
        let socket = path::connect(at, &name)?;
        self.check_user(&socket)?;
        connection::greet(&socket, self.kind)?;
        table.insert(socket, Some(name))
    }

    /// Handles the events of all sockets of the driver: new clients, hellos, wake-ups and ends.
    pub(super) fn poll(&mut self, table: &mut Table, counters: &mut Counters) {
        let mut space = [MaybeUninit::uninit(); EVENTS];
        let mut calls = false;
        // An interrupted call is as good as one without events: the next poll comes soon.
        if let Ok((events, _)) = epoll::wait(table.epoll(), &mut space, Some(&NOW)) {
            for event in events {
                match event.data.u64() {
                    LISTENER => calls = true,
                    id if id & ENDED != 0 => self.process_ended(table, id & !ENDED, counters),
                    id => self.socket_event(table, id, counters),
                }
            }
        }
        if table.hello_due() != Instant::NEVER {
            counters.refused += table.expire(clock::now());
        }
        // Last, since a client that calls may need the place of one that said nothing.
        if calls {
            self.accept(table, counters);
        }
    }

    fn accept(&mut self, table: &mut Table, counters: &mut Counters) {
        for _ in 0..EVENTS {
            match self.listener.as_mut().map_or(Call::None, Listener::take) {
                Call::Client(socket) => self.admit(table, socket, counters),
                Call::TurnedAway => counters.refused += 1,
                Call::None => return,
            }
        }
    }

    fn admit(&mut self, table: &mut Table, socket: OwnedFd, counters: &mut Counters) {
        let admitted = Connected::new(socket).and_then(|socket| {
            self.check_user(&socket)?;
            table.insert(socket, None)
        });
        match admitted {
            // The hello is most likely there already.
            Ok(id) => self.socket_event(table, id, counters),
            Err(_) => counters.refused += 1,
        }
    }

    fn check_user(&self, socket: &Connected) -> io::Result<()> {
        let peer = socket.user();
        if peer == rustix::process::geteuid() || self.other_users {
            return Ok(());
        }
        let why = format!("the process at the other end belongs to user {}", peer.as_raw());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    fn socket_event(&mut self, table: &mut Table, id: u64, counters: &mut Counters) {
        let Some(slot) = table.slot_of(id) else { return };
        let Some(Connection { socket, state, .. }) = table.at(slot) else { return };
        let opened = match state {
            State::Accepted => {
                let secrets = [self.rng.u64(), self.rng.u64()];
                connection::answer(socket, self.kind, self.ring_bytes, secrets)
            }
            State::Opening => connection::accept(socket, self.kind),
            State::Open(_) => {
                if !connection::take_wakes(socket) {
                    table.end(slot);
                }
                return table.activate(slot);
            }
        };
        match opened {
            Ok(None) => {}
            Ok(Some(rings)) => {
                table.opened(slot, rings);
                counters.opened += 1;
            }
            Err(_) => {
                counters.refused += 1;
                table.remove(slot);
            }
        }
    }

    /// Handles the end of a peer's process. Data that the peer sent before its end is handled
    /// first.
    fn process_ended(&mut self, table: &mut Table, id: u64, counters: &mut Counters) {
        self.socket_event(table, id, counters);
        let Some(slot) = table.slot_of(id) else { return };
        if table.at(slot).is_some_and(|c| c.rings().is_some()) {
            table.end(slot);
        } else {
            counters.refused += 1;
            table.remove(slot);
        }
    }
}
