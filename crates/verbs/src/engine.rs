//! The one engine of this process, which all its contexts share: a listener of rdma_cm takes connections of any interface.
//!
//! Always holds: it is opened when the first object needs it and never closed, since its thread and what programs hold may
//! outlive any context; a forked child gets one of its own when it makes its first object, and touches nothing of its
//! parent's, whose lock may have been held by a thread that the child has not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, Once};

use sprat::verbs::{Device, Limits, Options, Threading};

use crate::abi::object::{Cq, Qp, Srq};
use crate::entry::Errno;
use crate::failures;
use crate::log::log;
use crate::object::locked;

/// The engine, and the process that it works in.
pub(crate) struct Engine {
    pub(crate) device: Device,
    /// What programs know the engine's objects by.
    pub(crate) cqs: Directory<Cq>,
    pub(crate) qps: Directory<Qp>,
    pub(crate) srqs: Directory<Srq>,
    forks: u32,
}

/// What every engine of ours is opened with, the reach aside.
fn options() -> Options {
    Options { threading: Threading::Guard, on_failure: Some(failures::log), ..Options::default() }
}

/// How much an engine allows, whether there is one yet or not.
pub(crate) fn limits() -> Limits {
    options().limits()
}

static ENGINE: Mutex<Option<&'static Engine>> = Mutex::new(None);
/// How often the present process has come from a fork, since the first engine was made.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Engine {
    /// This process's engine.
    ///
    /// # Errors
    /// No descriptors, threads or random numbers left.
    pub(crate) fn get() -> Result<&'static Self, Errno> {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: The handler only increments a counter, and the library is never unloaded. If
            // registering it fails for lack of memory, a forked child uses its parent's engine, as
            // it would on hardware.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        let mut engine = locked(&ENGINE);
        if let Some(engine) = engine.filter(|e| e.is_ours()) {
            return Ok(engine);
        }
        // Who listens at an address that is not loopback has been allowed to by whoever started him: see `sprat exec`.
        let insecure_network = std::env::var_os("SPRAT_INSECURE_NETWORK").is_some_and(|v| v == "1");
        let reach = if insecure_network { "any address" } else { "this machine only" };
        log!(Info, "starts the engine, which connects {reach}");
        let new: &'static Self = Box::leak(Box::new(Self {
            device: Device::open(Options { insecure_network, ..options() })?,
            cqs: Directory::default(),
            qps: Directory::default(),
            srqs: Directory::default(),
            forks: FORKS.load(Ordering::Relaxed),
        }));
        *engine = Some(new);
        Ok(new)
    }

    /// This process's engine, if it has one yet.
    pub(crate) fn present() -> Option<&'static Self> {
        locked(&ENGINE).filter(|e| e.is_ours())
    }

    /// False in a child of the process that made it: there nothing of it may be used, and what came from it is forgotten
    /// instead of dropped.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }
}

/// Objects by the numbers that the engine has for them.
pub(crate) struct Directory<T>(Mutex<BTreeMap<u32, AtomicPtr<T>>>);

impl<T> Default for Directory<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Directory<T> {
    pub(crate) fn add(&self, number: u32, object: *mut T) {
        locked(&self.0).insert(number, AtomicPtr::new(object));
    }

    pub(crate) fn remove(&self, number: u32) {
        locked(&self.0).remove(&number);
    }

    /// Shows all objects, which nobody removes meanwhile.
    pub(crate) fn each(&self, mut look: impl FnMut(*mut T)) {
        locked(&self.0).values().for_each(|object| look(object.load(Ordering::Relaxed)));
    }

    /// What `look` finds in the object with this number, which nobody removes meanwhile.
    pub(crate) fn find<R>(&self, number: u32, look: impl FnOnce(*mut T) -> R) -> Option<R> {
        let directory = locked(&self.0);
        directory.get(&number).map(|object| look(object.load(Ordering::Relaxed)))
    }
}
