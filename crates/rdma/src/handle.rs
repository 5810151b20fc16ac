//! The part of an RDMA device that each of its objects holds.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use sprat_sys::interfaces::interfaces;
use sprat_sys::signals::without_signals;

use crate::engine::{Shared, Threading};

/// The part of an RDMA device that each of its objects holds.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) insecure_network: bool,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.shared.stop();
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
        self.shared.leave(None);
    }
}

impl Handle {
    /// Fails with `PermissionDenied` if `addr` is not on loopback and the options do not allow
    /// other machines.
    pub(super) fn allow(&self, addr: SocketAddr) -> io::Result<()> {
        if addr.ip().to_canonical().is_loopback() || self.insecure_network {
            return Ok(());
        }
        let why = format!(
            "{} is not on loopback: traffic is not encrypted, so it has to be allowed",
            addr.ip()
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
}

impl Handle {
    /// Fails with `PermissionDenied` if a peer at `addr` is on another machine and the options do
    /// not allow that. Packets to an address of this machine never leave it.
    pub(super) fn allow_peer(&self, addr: SocketAddr) -> io::Result<()> {
        let allowed = self.allow(addr);
        if allowed.is_err()
            && interfaces()?.iter().any(|i| i.addresses.contains(&addr.ip().to_canonical()))
        {
            return Ok(());
        }
        allowed
    }

    /// Starts the device's own thread, if the device has one, before it listens or connects.
    pub(super) fn start(&self) -> io::Result<()> {
        if self.shared.threading == Threading::Caller {
            return Ok(());
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let named = std::thread::Builder::new().name("sprat-rdma".to_owned());
            *thread = Some(without_signals(|| named.spawn(move || shared.run()))?);
        }
        Ok(())
    }
}
