//! The listeners of a host, and the connections of each that its program does not know yet.
//!
//! ```text
//!  SYN ─► half-open ─► waiting ─► the program takes its event
//!     └─► a cookie ──────┘
//! ```
//!
//! Always: neither the half-open nor the waiting connections of a listener are more than its
//! backlog.

use alloc::collections::BTreeMap;

use super::own::TcpSettings;
use crate::Instant;

#[derive(Debug)]
struct Listener {
    /// Tells the listener from earlier ones at its port.
    number: u32,
    backlog: u32,
    is_paused: bool,
    /// The options that the connections of the listener begin with.
    settings: TcpSettings,
    half_open: u32,
    waiting: u32,
    /// The time until which a cookie that the listener has sent is valid.
    cookies_until: Instant,
}

/// The listeners of a host.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    ports: BTreeMap<u16, Listener>,
    numbers: u32,
}

/// The place of a connection among those that a listener counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Claim {
    port: u16,
    number: u32,
    /// True once the handshake is over.
    is_waiting: bool,
}

impl Claim {
    /// Returns true if the handshake is not over.
    pub(super) const fn is_half_open(self) -> bool {
        !self.is_waiting
    }
}

/// The answer of a listener to a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    /// There is place for a half-open connection.
    HalfOpen,
    /// There is place for a connection only once its handshake is over.
    Cookie,
    /// There is no place: the peer tries again.
    Nothing,
}

impl Listeners {
    /// Adds a listener. Returns false if the port has one.
    pub(super) fn add(&mut self, port: u16, backlog: u32) -> bool {
        if self.has(port) {
            return false;
        }
        self.numbers = self.numbers.wrapping_add(1);
        let number = self.numbers;
        let listener = Listener {
            number,
            backlog,
            is_paused: false,
            settings: TcpSettings::default(),
            half_open: 0,
            waiting: 0,
            cookies_until: Instant::ZERO,
        };
        self.ports.insert(port, listener);
        true
    }

    /// Sets the options that the next connections to a port begin with.
    pub(super) fn set(&mut self, port: u16, settings: TcpSettings) {
        if let Some(listener) = self.ports.get_mut(&port) {
            listener.settings = settings;
        }
    }

    /// Returns the options that connections to a port begin with.
    pub(super) fn settings(&self, port: u16) -> TcpSettings {
        self.ports.get(&port).map(|listener| listener.settings).unwrap_or_default()
    }

    /// Stops the listener of a port from taking new connections, or lets it take them again.
    pub(super) fn pause(&mut self, port: u16, is_paused: bool) {
        if let Some(listener) = self.ports.get_mut(&port) {
            listener.is_paused = is_paused;
        }
    }

    /// Returns true if a port has a listener.
    pub(super) fn has(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }

    /// Removes the listener of a port. Its connections are counted no more.
    pub(super) fn remove(&mut self, port: u16) {
        self.ports.remove(&port);
    }

    /// Returns what the listener of a port has place for, or `None` if there is no listener.
    pub(super) fn admission(&self, port: u16) -> Option<Admission> {
        let listener = self.ports.get(&port)?;
        Some(if listener.is_paused || listener.waiting >= listener.backlog {
            Admission::Nothing
        } else if listener.half_open >= listener.backlog {
            Admission::Cookie
        } else {
            Admission::HalfOpen
        })
    }

    /// Counts a new connection of the listener of a port, if there is one. `is_waiting` is true if
    /// its handshake is over.
    pub(super) fn claim(&mut self, port: u16, is_waiting: bool) -> Option<Claim> {
        let listener = self.ports.get_mut(&port)?;
        let claim = Claim { port, number: listener.number, is_waiting };
        *listener.count(claim) += 1;
        Some(claim)
    }

    /// Returns true if the handshake of a half-open connection may not end now: too many
    /// connections wait for the program.
    pub(super) fn holds_back(&self, claim: Claim) -> bool {
        let listener = self.ports.get(&claim.port).filter(|l| l.number == claim.number);
        claim.is_half_open() && listener.is_some_and(|l| l.waiting >= l.backlog)
    }

    /// Records that the handshake of a connection is over.
    pub(super) fn opened(&mut self, claim: &mut Claim) {
        self.release(*claim);
        claim.is_waiting = true;
        if let Some(listener) = self.listener(*claim) {
            listener.waiting += 1;
        }
    }

    /// Counts a connection no more.
    pub(super) fn release(&mut self, claim: Claim) {
        if let Some(listener) = self.listener(claim) {
            *listener.count(claim) -= 1;
        }
    }

    /// Records that the listener of a port has sent a cookie that is valid until then.
    pub(super) fn sent_cookie(&mut self, port: u16, until: Instant) {
        if let Some(listener) = self.ports.get_mut(&port) {
            listener.cookies_until = until;
        }
    }

    /// Returns true if a cookie of the listener of a port may be valid.
    pub(super) fn expects_cookies(&self, now: Instant, port: u16) -> bool {
        self.ports.get(&port).is_some_and(|listener| now < listener.cookies_until)
    }

    fn listener(&mut self, claim: Claim) -> Option<&mut Listener> {
        self.ports.get_mut(&claim.port).filter(|listener| listener.number == claim.number)
    }
}

impl Listener {
    fn count(&mut self, claim: Claim) -> &mut u32 {
        if claim.is_waiting { &mut self.waiting } else { &mut self.half_open }
    }
}
