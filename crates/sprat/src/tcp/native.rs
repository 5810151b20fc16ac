//! The interface by events: an IP stack with TCP on a packet device, for programs with a loop of
//! their own. It has no thread and no lock, and no call blocks.
//!
//! ```text
//!   input ─► lent(i): received bytes where the device put them ─► take
//!         └► event: opened, readable, writable, ended ─► tcp(): read, write, close
//!   output ─► segments
//! ```
//!
//! A turn is [`Interface::input`], the lent data if connections lend ([`TcpHost::lend`]), the
//! events until there are none, and [`Interface::output`]. Lent data that was not taken is copied
//! to its connection, which is then readable. [`TcpHost::write_record`] sends bytes that begin a
//! segment and end with it. A program that has nothing to do calls [`Interface::prepare_to_sleep`]
//! and waits for [`Interface::descriptor`].
//!
//! ```no_run
//! use sprat::tcp::native::Interface;
//!
//! let mut tcp = Interface::open("utcp+packet:dev=eth0,host=192.0.2.7", &Default::default())?;
//! tcp.host().listen(7, 128)?;
//! loop {
//!     tcp.input();
//!     while let Some((id, changes)) = tcp.event() {
//!         let mut bytes = [0; 1024];
//!         if changes.readable {
//!             let count = tcp.host().read(id, &mut bytes);
//!             tcp.host().write(id, &bytes[..count]);
//!         }
//!         if changes.ended {
//!             tcp.host().release(id);
//!         }
//!     }
//!     tcp.output();
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use sprat_proto::net;
use sprat_proto::time::{SECOND, US};
use sprat_proto::{Device as _, Instant};
use sprat_sys::clock;
use sprat_sys::nic::Nic as _;

pub use sprat_proto::net::tcp::{
    Connection, TcpChanges, TcpConfig, TcpError, TcpFlow, TcpHost, TcpId, TcpOpenError, TcpReport,
    TcpSettings, TcpSoftError,
};

use super::options::Options;
use crate::device::AnyNic;
use crate::interface::{self, Opened, Ports};
use crate::locator::{DevicePort, Kind, Locator, Over};

/// The time after which a device without room is tried again.
const FULL_NS: u64 = 100 * US;
/// The longest sleep, so that no lost wake-up lasts longer.
const LONGEST_SLEEP_NS: u64 = SECOND;

/// An IP stack with TCP on a packet device.
pub struct Interface {
    inner: net::Interface<AnyNic>,
    at: Locator,
    own: SocketAddr,
    /// True if the device announces frames on its descriptor.
    is_armed: bool,
    /// True if the device had no room for all that was to be sent.
    is_full: bool,
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface").field("own", &self.own).finish_non_exhaustive()
    }
}

/// Returns the packet device and the address that a locator of TCP names. It needs no port.
fn device_port(locator: &Locator) -> io::Result<DevicePort> {
    let mut locator = locator.clone();
    if locator.option("port").is_none() {
        locator.set("port", "0");
    }
    match locator.kind()? {
        Kind::Device(port) if port.over == Over::Tcp => Ok(port),
        _ => {
            let form = "our own TCP has locators as utcp+packet:dev=eth0,host=192.0.2.7,port=80";
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{locator}: {form}")))
        }
    }
}

impl Interface {
    /// Opens an interface at the address and on the device that `locator` names. No other machine,
    /// and no kernel's interface, may have the address. The port of the locator counts for nothing
    /// here.
    ///
    /// # Errors
    /// The locator is no `utcp+…`, its host does not resolve or is the kernel's own, or the device
    /// cannot be opened: the error says what is missing.
    pub fn open(locator: &str, options: &Options) -> io::Result<Self> {
        let at: Locator = locator.parse()?;
        let opened = interface::listen(&at, &device_port(&at)?, Ports::All)?;
        Ok(Self::over(at, opened, options))
    }

    /// Opens an interface that reaches servers such as `locator`: at the address and on the device
    /// that one of [`Options::local`] names for this protocol, otherwise on the device that
    /// `locator` names, with a random address for the link alone.
    ///
    /// # Errors
    /// The errors of [`Interface::open`].
    pub fn towards(locator: &str, options: &Options) -> io::Result<Self> {
        let to: Locator = locator.parse()?;
        let opened = interface::towards(&to, &options.local, Ports::All, device_port)?;
        Ok(Self::over(to, opened, options))
    }

    pub(super) fn over(at: Locator, opened: Opened, options: &Options) -> Self {
        let Opened { mut interface, own, .. } = opened;
        interface.stack_mut().enable_tcp(options.config.clone(), options.connections);
        Self { inner: interface, at, own, is_armed: false, is_full: false }
    }

    /// Receives a burst of frames, and handles timers that have expired. Returns true if there was
    /// something to do.
    pub fn input(&mut self) -> bool {
        if std::mem::take(&mut self.is_armed) {
            self.inner.device_mut().disarm();
        }
        let now = clock::now();
        self.inner.set_now(now);
        let before = self.inner.stack().counters().received;
        self.inner.input();
        let is_due = self.inner.deadline().is_some_and(|due| due <= now);
        if is_due {
            self.inner.stack_mut().tick(now);
        }
        is_due || self.inner.stack().counters().received != before
    }

    /// Takes the next connection at which something has changed, and what.
    pub fn event(&mut self) -> Option<(TcpId, TcpChanges)> {
        self.inner.tcp()?.event()
    }

    /// Returns the number of pieces of received data that connections lend until
    /// [`Interface::output`].
    #[must_use]
    pub const fn lent_pieces(&self) -> usize {
        self.inner.stack().lent_tcp()
    }

    /// Returns piece `i` of the lent data without the bytes that were taken: the connection and the
    /// next bytes of its stream. Take all of a piece before the next one of its connection.
    ///
    /// # Panics
    /// If `i` is not below [`Interface::lent_pieces`].
    #[must_use]
    pub fn lent(&self, i: usize) -> (TcpId, &[u8]) {
        self.inner.tcp_data(i)
    }

    /// Takes `count` bytes of piece `i` of the lent data.
    pub fn take(&mut self, i: usize, count: usize) {
        self.inner.take_tcp(i, count);
    }

    /// Sends what connections have to send. Call it after each turn, and after calls of
    /// [`Interface::host`] beside turns.
    pub fn output(&mut self) {
        self.is_full = self.inner.output();
    }

    /// Returns the connections, to read from them, write to them and close them.
    ///
    /// # Panics
    /// Never: an interface has TCP from its beginning.
    pub fn host(&mut self) -> &mut TcpHost {
        self.inner.tcp().expect("TCP is enabled when the interface opens")
    }

    /// Begins a connection to `peer`, which is open at its event `opened`.
    ///
    /// # Errors
    /// [`TcpOpenError`].
    pub fn connect(&mut self, peer: SocketAddr) -> Result<TcpId, TcpOpenError> {
        self.inner.set_now(clock::now());
        self.inner.connect_tcp(0, peer)
    }

    /// Sets the options of one connection, which may be open.
    pub fn set(&mut self, id: TcpId, settings: TcpSettings) {
        self.host().set(clock::now(), id, settings);
    }

    /// Returns the IP address of the interface, with port 0. It is unspecified until an address
    /// that the interface chooses itself is in use.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        let own = self.inner.stack().address(self.own.is_ipv4());
        SocketAddr::new(own.unwrap_or_else(|| self.own.ip()), 0)
    }

    /// Returns the locator by which others connect to `port` of the interface.
    #[must_use]
    pub fn locator(&self, port: u16) -> String {
        interface::locator(&self.at, self.local_addr(), port)
    }

    /// True if the interface has an address of this version of IP in use.
    pub(super) fn has_address(&self, is_v4: bool) -> bool {
        self.inner.stack().address(is_v4).is_some()
    }

    /// Returns the descriptor that is readable when frames arrive, after
    /// [`Interface::prepare_to_sleep`].
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.device().fd()
    }

    /// Makes the device announce frames, and returns for how long the program may wait for
    /// [`Interface::descriptor`]. `None`: there is something to do at once. The next
    /// [`Interface::input`] ends it.
    pub fn prepare_to_sleep(&mut self) -> Option<Duration> {
        let now = clock::now();
        self.sleep_until(now).map(|until| Duration::from_nanos(until.since(now)))
    }

    /// Makes the device announce frames, and returns until when a thread may sleep.
    pub(super) fn sleep_until(&mut self, now: Instant) -> Option<Instant> {
        let until = self.deadline().min(now.after(LONGEST_SLEEP_NS));
        if until <= now {
            return None;
        }
        if self.is_full {
            return Some(until.min(now.after(FULL_NS)));
        }
        if !self.inner.stack().is_idle() {
            return None;
        }
        self.is_armed = self.inner.device_mut().arm();
        self.is_armed.then_some(until)
    }

    /// Returns the time of the next timer.
    pub(super) fn deadline(&self) -> Instant {
        self.inner.deadline().unwrap_or(Instant::NEVER)
    }

    /// True if the device announces frames on its descriptor.
    pub(super) const fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Returns the time of the last turn.
    pub(super) const fn now(&self) -> Instant {
        self.inner.now()
    }

    /// Reports each counter of the IP stack and of the device by its name.
    pub fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.inner.stack().counters().each(each);
        self.inner.device().counters(each);
    }
}
