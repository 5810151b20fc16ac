//! The RDMA engine of the process, which all contexts share: a listener of rdma_cm accepts
//! connections on any interface.
//!
//! Invariant: the first object opens the engine, and nothing closes it, because its thread and the
//! program's objects may outlive every context. A forked child opens an engine of its own for its
//! first object. It touches nothing of its parent's engine, whose lock a thread may have held that
//! does not exist in the child.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, Once, OnceLock};
use std::time::Duration;

use sprat::locator::{Kind, Locator};
use sprat_rdma::{Device, Limits, Options, Threading};

use crate::abi::object::{Cq, Qp, Srq};
use crate::entry::Errno;
use crate::failures;
use crate::log::log;
use crate::object::lock;

/// The RDMA engine of a process, and the process that opened it.
pub(crate) struct Engine {
    pub(crate) device: Device,
    /// The C objects by the numbers that the engine gives them.
    pub(crate) cqs: Directory<Cq>,
    pub(crate) qps: Directory<Qp>,
    pub(crate) srqs: Directory<Srq>,
    forks: u32,
    /// The process that opened the engine.
    process: u32,
}

/// The environment variable with the locator of the packet device that carries the engine's
/// connections, in place of the kernel's TCP. `sprat exec --device` sets it.
const DEVICE: &str = "SPRAT_DEVICE";

/// Returns the value of [`DEVICE`] at its first use, if it has one.
fn named_device() -> Option<&'static str> {
    static NAMED: OnceLock<Option<String>> = OnceLock::new();
    let named = NAMED.get_or_init(|| {
        let value = std::env::var_os(DEVICE)?.to_string_lossy().into_owned();
        (!value.is_empty()).then_some(value)
    });
    named.as_deref()
}

/// Opens the device at a locator. In shared memory the first process creates the rings, and the
/// others join it.
///
/// # Errors
/// The errors of [`sprat::verbs::open`].
fn open_at(locator: &str) -> io::Result<Device> {
    let at: Locator = locator.parse().map_err(|e| io::Error::new(ErrorKind::InvalidInput, e))?;
    match sprat::verbs::open(&at, true, options()) {
        Err(e) if e.kind() == ErrorKind::AddrInUse => sprat::verbs::open(&at, false, options()),
        opened => opened,
    }
}

/// Returns true if the named device lies in memory, where it has no carrier before a peer joins.
pub(crate) fn is_in_memory() -> bool {
    let kind = named_device().and_then(|at| at.parse::<Locator>().ok()?.kind().ok());
    matches!(kind, Some(Kind::Device(port)) if port.facts().memory)
}

/// Prints once on standard error why the named device is not there. Returns what the program gets
/// to see.
fn unavailable(error: &io::Error) -> Errno {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = writeln!(io::stderr(), "sprat: no RDMA device by {DEVICE}: {error}");
    });
    log!(Error, "no RDMA device by {DEVICE}: {error}");
    match error.kind() {
        ErrorKind::PermissionDenied => Errno(libc::EPERM),
        ErrorKind::ResourceBusy => Errno(libc::EBUSY),
        _ => Errno(error.raw_os_error().unwrap_or(libc::ENODEV)),
    }
}

/// The options of every RDMA engine, apart from the networks that it may use.
fn options() -> Options {
    Options {
        threading: Threading::Background,
        on_failure: Some(failures::log),
        ..Options::default()
    }
}

/// The limits of an RDMA engine. They are known before an engine is open.
pub(crate) fn limits() -> Limits {
    options().limits()
}

static ENGINE: Mutex<Option<&'static Engine>> = Mutex::new(None);
/// The number of forks between the first process that opened an engine and the current process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The time for which a process that exits waits until its peers have closed their connections.
const LEAVE: Duration = Duration::from_millis(500);

/// Ends the connections of our own TCP when the process exits, as the kernel does with sockets.
extern "C" fn exiting() {
    // A signal handler may call `exit` while this thread has the lock.
    let engine = ENGINE.try_lock().ok().and_then(|engine| *engine);
    engine.filter(|engine| engine.is_current()).into_iter().for_each(|e| e.device.leave(LEAVE));
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Engine {
    /// Returns this process's RDMA engine, and opens it on the first call.
    ///
    /// # Errors
    /// The system has no descriptor, thread or random number left.
    pub(crate) fn get() -> Result<&'static Self, Errno> {
        static FORK_HANDLER: Once = Once::new();
        FORK_HANDLER.call_once(|| {
            // SAFETY: The handler only increments a counter, and the library is never unloaded. If
            // registering it fails for lack of memory, a forked child uses its parent's engine, as
            // it would on hardware.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        let mut engine = lock(&ENGINE);
        if let Some(engine) = engine.filter(|e| e.is_current()) {
            return Ok(engine);
        }
        let device = match named_device() {
            Some(locator) => Self::on_device(locator, engine.map(|parent| parent.process))
                .map_err(|error| unavailable(&error))?,
            None => Self::on_sockets()?,
        };
        let new: &'static Self = Box::leak(Box::new(Self {
            device,
            cqs: Directory::default(),
            qps: Directory::default(),
            srqs: Directory::default(),
            forks: FORKS.load(Ordering::Relaxed),
            process: std::process::id(),
        }));
        *engine = Some(new);
        Ok(new)
    }

    /// Opens an engine over the kernel's TCP.
    fn on_sockets() -> Result<Device, Errno> {
        // `sprat exec --insecure-network` sets the variable and so permits connections to other
        // machines.
        let insecure_network = std::env::var_os("SPRAT_INSECURE_NETWORK").is_some_and(|v| v == "1");
        let reach = if insecure_network { "any address" } else { "this machine only" };
        log!(Info, "starts the engine, which connects to {reach}");
        Ok(Device::open(Options { insecure_network, ..options() })?)
    }

    /// Opens an engine over our own TCP, on the device that `locator` names. `parent` is the
    /// process before a fork that has opened it.
    ///
    /// # Errors
    /// The locator or the device is wrong, a right is missing, or `ResourceBusy`: the parent lives.
    /// Two engines with one address would reset each other's connections.
    fn on_device(locator: &str, parent: Option<u32>) -> io::Result<Device> {
        // A process that has ended has no program file, even before its parent waits for it.
        if let Some(parent) = parent
            && fs::read_link(format!("/proc/{parent}/exe")).is_ok()
        {
            let why = format!("{locator}: process {parent} has opened it and lives");
            return Err(io::Error::new(ErrorKind::ResourceBusy, why));
        }
        log!(Info, "starts the engine on {locator}");
        static EXIT_HANDLER: Once = Once::new();
        EXIT_HANDLER.call_once(|| {
            // SAFETY: The library is never unloaded. If registering the handler fails for lack of
            // memory, peers find out that the process has ended by the silence.
            unsafe { libc::atexit(exiting) };
        });
        open_at(locator)
    }

    /// True if the engine of this process uses a device of its own in place of the kernel's TCP.
    pub(crate) fn is_on_device() -> bool {
        named_device().is_some()
    }

    /// Returns this process's RDMA engine if it is open.
    pub(crate) fn existing() -> Option<&'static Self> {
        lock(&ENGINE).filter(|e| e.is_current())
    }

    /// True in the process that opened the engine, false in its forked children.
    ///
    /// A child must not use the engine, and forgets the objects of its parent instead of dropping
    /// them.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }
}

/// C's objects of one kind by the numbers that the engine gives them.
pub(crate) struct Directory<T>(Mutex<BTreeMap<u32, AtomicPtr<T>>>);

impl<T> Default for Directory<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Directory<T> {
    pub(crate) fn add(&self, number: u32, object: *mut T) {
        lock(&self.0).insert(number, AtomicPtr::new(object));
    }

    pub(crate) fn remove(&self, number: u32) {
        lock(&self.0).remove(&number);
    }

    /// Calls `look` for each object of the directory. No object is removed during the call.
    pub(crate) fn each(&self, mut look: impl FnMut(*mut T)) {
        lock(&self.0).values().for_each(|object| look(object.load(Ordering::Relaxed)));
    }

    /// Calls `look` for the object of the directory with this number. No object is removed during
    /// the call.
    pub(crate) fn find<R>(&self, number: u32, look: impl FnOnce(*mut T) -> R) -> Option<R> {
        let directory = lock(&self.0);
        directory.get(&number).map(|object| look(object.load(Ordering::Relaxed)))
    }
}
