//! The transports of one worker, opened when a locator asks for them.
//!
//! A transport that listens is opened at the start, one for calls alone when the first locator of
//! its protocol is called. A poll that is a system call would slow the other transports down: such
//! a transport is polled at every turn only while it is active.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::node::{Opened, Transport};
use sprat_proto::time::{MS, US};

use crate::locator::{Locator, Poll, Protocol};
pub use crate::open::Options;
use crate::transport::SystemTransport;
use crate::transport::any::AnyTransport;

/// The time for which a transport counts as active after its last packet.
const ACTIVE_NS: u64 = 2 * MS;
/// The interval at which an idle transport whose poll is a system call is polled while another
/// transport is active.
const IDLE_POLL_NS: u64 = 10 * US;

/// Puts the locator's name before the error's text, unless the text begins with it already.
fn naming(locator: &Locator, error: io::Error) -> io::Error {
    let (name, text) = (locator.to_string(), error.to_string());
    if text.starts_with(&name) {
        error
    } else {
        io::Error::new(error.kind(), format!("{name}: {text}"))
    }
}

/// One transport of a worker, and the times of its polls.
struct Entry {
    transport: AnyTransport,
    protocol: String,
    /// The name of the network that the transport is on, if a transport of the protocol can be on
    /// several.
    wire: Option<String>,
    /// True if a poll of the transport is a system call.
    costly: bool,
    active_until: Instant,
    next_poll: Instant,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.transport.locator().unwrap_or_else(|| self.protocol.clone());
        write!(f, "Entry({name})")
    }
}

/// All transports of one worker.
#[derive(Debug, Default)]
pub struct Transports {
    entries: Vec<Entry>,
    options: Options,
    active_until: Instant,
}

impl Transports {
    /// Makes an empty set of transports.
    pub fn new(options: Options) -> Self {
        Self { entries: Vec::new(), options, active_until: Instant::ZERO }
    }

    /// Opens a transport that listens at each of `locators`.
    ///
    /// # Errors
    /// The name or port is in use, the address is not ours or not allowed, or a system call failed;
    /// the error names the locator.
    pub fn listen(options: Options, locators: &[Locator]) -> io::Result<Self> {
        let mut transports = Self::new(options);
        for locator in locators {
            let transport = crate::open::listen(locator, &transports.options)
                .map_err(|e| naming(locator, e))?;
            transports.add(transport, locator);
        }
        Ok(transports)
    }

    /// Returns the locators of the transports that listen, in the order of [`Transports::listen`].
    /// They have each value that was chosen at the opening, such as the port.
    #[must_use]
    pub fn locators(&self) -> Vec<String> {
        self.entries.iter().filter_map(|entry| entry.transport.locator()).collect()
    }

    fn add(&mut self, transport: AnyTransport, at: &Locator) -> usize {
        let protocol = at.protocol();
        let costly = Protocol::named(protocol).is_some_and(|p| p.poll == Poll::SystemCall);
        self.entries.push(Entry {
            transport,
            protocol: protocol.to_owned(),
            wire: at.wire().map(str::to_owned),
            costly,
            active_until: Instant::ZERO,
            next_poll: Instant::ZERO,
        });
        self.entries.len() - 1
    }

    /// Begins a session with the server at `to`. Opens a transport if none leads there.
    pub(crate) fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<Opened> {
        let index = self.towards(to)?;
        Ok((index, self.entries[index].transport.connect(now, to)?))
    }

    /// Returns the index of the transport that leads to `to`. Opens it if there is none yet.
    fn towards(&mut self, to: &Locator) -> io::Result<usize> {
        let leads = |e: &Entry| e.protocol == to.protocol() && e.wire.as_deref() == to.wire();
        if let Some(index) = self.entries.iter().position(leads) {
            return Ok(index);
        }
        let transport = crate::open::towards(to, &self.options)?;
        Ok(self.add(transport, to))
    }

    /// Calls `each` with the protocol, the name and the value of every counter.
    pub(crate) fn counters(&self, each: &mut dyn FnMut(&str, &'static str, u64)) {
        for entry in &self.entries {
            entry.transport.counters(&mut |name, value| each(&entry.protocol, name, value));
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> &mut AnyTransport {
        &mut self.entries[index].transport
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.entries.iter().map(|entry| entry.transport.fd())
    }

    /// Arms notification on all transports. Returns false if the caller must not sleep.
    pub(crate) fn arm(&mut self) -> bool {
        let mut quiet = true;
        for entry in &mut self.entries {
            quiet &= entry.transport.arm();
        }
        quiet
    }

    /// Disarms notification on all transports, and polls each of them at the next turn.
    pub(crate) fn disarm(&mut self) {
        for entry in &mut self.entries {
            entry.transport.disarm();
            entry.next_poll = Instant::ZERO;
        }
    }

    /// True if transport `index` is to be polled now.
    #[inline]
    pub(crate) fn is_due(&mut self, index: usize, now: Instant) -> bool {
        let entry = &mut self.entries[index];
        if !entry.costly {
            return true;
        }
        if now < entry.active_until || now >= self.active_until || now >= entry.next_poll {
            entry.next_poll = now.after(IDLE_POLL_NS);
            return true;
        }
        false
    }

    /// Marks transport `index` as active, because something has arrived at it.
    #[inline]
    pub(crate) fn received(&mut self, index: usize, now: Instant) {
        self.active_until = now.after(ACTIVE_NS);
        self.entries[index].active_until = self.active_until;
    }
}
