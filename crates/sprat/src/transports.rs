//! The transports of one worker, opened as locators ask for them.
//!
//! A door that listens is opened at the start; one for calls only is opened when the first locator of its protocol is
//! called. A door whose poll is a system call would slow the others down, so it is polled at every turn only while it
//! is warm: [`Doors::due`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::rpc::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};
use sprat_proto::time::{MS, US};

use crate::driver::shm::Shm;
use crate::fast::Fast;
use crate::locator::{Locator, Poll, Protocol};
use crate::trace::Marks;
use crate::transport::Transport;

/// How long a door counts as warm after its last packet.
const WARM_NS: u64 = 2 * MS;
/// How often a cold door that costs a system call is polled while another one is warm.
const COLD_POLL_NS: u64 = 10 * US;

/// The error with the locator's name before it, if it has not said that itself.
pub(crate) fn naming(locator: &Locator, error: io::Error) -> io::Error {
    let (name, text) = (locator.to_string(), error.to_string());
    if text.starts_with(&name) {
        error
    } else {
        io::Error::new(error.kind(), format!("{name}: {text}"))
    }
}

/// What a worker may open.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Listen on and call addresses other than loopback, though nothing is encrypted.
    pub insecure_network: bool,
    /// What our own end is where others are called through a packet device: for each protocol a locator with the device and
    /// the address. Without one the device is the one that their locator names, and the address one that is chosen at random.
    pub local: Vec<Locator>,
    /// Marks where the time of requests goes; whoever asks a server so opened is told of them. Nothing is marked without.
    pub marks: Option<Marks>,
}

/// A transport. The one whose calls cost as much as what they do, that through shared memory, is called directly, so that
/// the compiler sees through; the others by a table.
pub(crate) enum Way {
    Ring(Box<Fast<Shm>>),
    Other(Box<dyn Transport>),
}

/// Calls one verb of a transport.
macro_rules! on {
    ($way:expr, $transport:ident => $call:expr) => {
        match $way {
            Way::Ring($transport) => $call,
            Way::Other($transport) => $call,
        }
    };
}

/// What is called for each message or at each turn; for the rest, see `Deref`.
impl Way {
    #[inline(always)]
    pub(crate) fn input(&mut self, now: Instant) -> usize {
        on!(self, t => t.input(now))
    }

    #[inline(always)]
    pub(crate) fn event(&mut self, now: Instant) -> Option<Event<'_>> {
        on!(self, t => t.event(now))
    }

    #[inline(always)]
    pub(crate) fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        on!(self, t => t.output(now, memory))
    }

    #[inline(always)]
    pub(crate) fn released(&mut self) -> Option<Slice> {
        on!(self, t => t.released())
    }

    /// Sends a request; takes of `message` what it has to keep: if a buffer is left in it, that is the caller's again.
    #[inline(always)]
    pub(crate) fn take_request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        on!(self, t => t.take_request(now, session, tag, message, deadline))
    }

    /// The same for bytes that stay the caller's.
    #[inline(always)]
    pub(crate) fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        on!(self, t => t.request_bytes(now, session, tag, bytes, deadline))
    }

    /// Answers a request, as `take_request` sends one.
    #[inline(always)]
    pub(crate) fn take_reply(&mut self, now: Instant, rpc: ServerRpc, message: &mut Message) {
        on!(self, t => t.take_reply(now, rpc, message));
    }
}

impl Deref for Way {
    type Target = dyn Transport;

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Ring(t) => &**t,
            Self::Other(t) => &**t,
        }
    }
}

impl DerefMut for Way {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Ring(t) => &mut **t,
            Self::Other(t) => &mut **t,
        }
    }
}

/// One transport and when it is polled.
pub struct Door {
    pub(crate) transport: Way,
    protocol: String,
    /// The wire that it is at, if others of its protocol are at others.
    wire: Option<String>,
    costly: bool,
    warm_until: Instant,
    next_poll: Instant,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({})", self.transport.locator().unwrap_or_else(|| self.protocol.clone()))
    }
}

/// All transports of one worker.
#[derive(Debug, Default)]
pub struct Doors {
    doors: Vec<Door>,
    options: Options,
    warm_until: Instant,
}

impl Doors {
    /// No door yet.
    pub fn new(options: Options) -> Self {
        Self { doors: Vec::new(), options, warm_until: Instant::ZERO }
    }

    /// Opens a listening door for each of `locators`.
    ///
    /// # Errors
    /// The name or port is in use, the address is not ours or not allowed, or a system call failed; the error names the
    /// locator.
    pub fn listen(options: Options, locators: &[Locator]) -> io::Result<Self> {
        let mut doors = Self::new(options);
        for locator in locators {
            let transport =
                crate::open::listen(locator, &doors.options).map_err(|e| naming(locator, e))?;
            doors.add(transport, locator);
        }
        Ok(doors)
    }

    /// The locators of the listening doors, in the order in which they were asked for, with every chosen value filled in.
    #[must_use]
    pub fn locators(&self) -> Vec<String> {
        self.doors.iter().filter_map(|d| d.transport.locator()).collect()
    }

    fn add(&mut self, transport: Way, at: &Locator) -> usize {
        let protocol = at.protocol();
        let costly = Protocol::named(protocol).is_some_and(|p| p.poll == Poll::SystemCall);
        let never = Instant::ZERO;
        self.doors.push(Door {
            transport,
            protocol: protocol.to_owned(),
            wire: at.wire().map(str::to_owned),
            costly,
            warm_until: never,
            next_poll: never,
        });
        self.doors.len() - 1
    }

    /// The door that leads to `to`, opened if there is none yet.
    pub(crate) fn towards(&mut self, to: &Locator) -> io::Result<usize> {
        let leads = |d: &Door| d.protocol == to.protocol() && d.wire.as_deref() == to.wire();
        if let Some(index) = self.doors.iter().position(leads) {
            return Ok(index);
        }
        let transport = crate::open::towards(to, &self.options)?;
        Ok(self.add(transport, to))
    }

    /// Adds what the transports have counted to an object in JSON, one member a protocol, and closes it.
    pub(crate) fn count(&self, json: &mut Vec<u8>) {
        let mut all: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
        for door in &self.doors {
            let counted = all.entry(&door.protocol).or_default();
            door.transport.counters(&mut |name, count| *counted.entry(name).or_default() += count);
        }
        for (protocol, counted) in all {
            let lines: Vec<_> =
                counted.iter().map(|(name, count)| format!("\"{name}\":{count}")).collect();
            json.extend_from_slice(format!(",\"{protocol}\":{{{}}}", lines.join(",")).as_bytes());
        }
        json.push(b'}');
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.doors.len()
    }

    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> &mut Way {
        &mut self.doors[index].transport
    }

    #[inline]
    pub(crate) fn get(&mut self, index: usize) -> Option<&mut Way> {
        self.doors.get_mut(index).map(|d| &mut d.transport)
    }

    #[inline]
    pub(crate) fn iter(&mut self) -> impl Iterator<Item = &mut Door> {
        self.doors.iter_mut()
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.doors.iter().map(|d| d.transport.fd())
    }

    /// Whether door `index` is to be polled now.
    #[inline]
    pub(crate) fn due(&mut self, index: usize, now: Instant) -> bool {
        let door = &mut self.doors[index];
        if !door.costly {
            return true;
        }
        if now < door.warm_until || now >= self.warm_until || now >= door.next_poll {
            door.next_poll = now.after(COLD_POLL_NS);
            return true;
        }
        false
    }

    /// Something arrived at door `index`.
    #[inline]
    pub(crate) fn warm(&mut self, index: usize, now: Instant) {
        self.warm_until = now.after(WARM_NS);
        self.doors[index].warm_until = self.warm_until;
    }

    /// Every door is to be polled at the next turn.
    pub(crate) fn all_due(&mut self) {
        for door in &mut self.doors {
            door.next_poll = Instant::ZERO;
        }
    }
}
