//! The one engine of this process, which all its contexts share: a listener of rdma_cm takes connections of any interface.
//!
//! Always holds: it is opened when the first object needs it and never closed, since its thread and what programs hold may
//! outlive any context; a forked child gets one of its own when it makes its first object, and touches nothing of its
//! parent's, whose lock may have been held by a thread that the child has not.

use std::sync::{Mutex, PoisonError};

use sprat::verbs::{Device, Options, Threading};

use crate::entry::Errno;

/// The engine, and the process that it works in.
pub(crate) struct Engine {
    pub(crate) device: Device,
    process: u32,
}

static ENGINE: Mutex<Option<&'static Engine>> = Mutex::new(None);

impl Engine {
    /// This process's engine.
    ///
    /// # Errors
    /// No descriptors, threads or random numbers left.
    pub(crate) fn get() -> Result<&'static Self, Errno> {
        let mut engine = ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = engine.filter(|e| e.is_ours()) {
            return Ok(engine);
        }
        // Who listens at an address that is not loopback has been allowed to by whoever started him: see `sprat exec`.
        let insecure_network = std::env::var_os("SPRAT_INSECURE_NETWORK").is_some_and(|v| v == "1");
        let options = Options { threading: Threading::ReceiveThread, insecure_network, ..Options::default() };
        let new: &'static Self =
            Box::leak(Box::new(Self { device: Device::open(options)?, process: std::process::id() }));
        *engine = Some(new);
        Ok(new)
    }

    /// False in a child of the process that made it: there nothing of it may be used, and what came from it is forgotten
    /// instead of dropped.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}
