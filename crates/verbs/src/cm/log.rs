//! The log of rdma_cm's connections, written when the program reads their events.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use sprat_rdma::{ConnectError, Connection, StartupError};

use super::address;
use super::id::Id;
use crate::engine::Engine;
use crate::log::log;

/// The addresses of both ends of an rdma_cm id's route, as far as they are known.
fn ends(id: &Id) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let raw = id.raw();
    // SAFETY: The id is alive. Both fields have room for any address and are copied.
    let (from, to) = unsafe { ((*raw).route.addr.source, (*raw).route.addr.destination) };
    // SAFETY: Both pointers are to local variables.
    unsafe {
        (address::read((&raw const from).cast()).ok(), address::read((&raw const to).cast()).ok())
    }
}

/// Formats a socket address that may be unknown.
fn named(at: Option<SocketAddr>) -> String {
    at.map_or_else(|| "an address not known".to_owned(), |at| at.to_string())
}

/// Logs that a connection of rdma_cm has changed its state.
pub(super) fn connection_changed(id: &Id, connection: &Connection) {
    use crate::log::{Level, on};
    // Skip the look-up of addresses if nothing will be logged.
    if !on(Level::Error) {
        return;
    }
    let pair = id.id.pair().map_or(0, |pair| pair.0);
    let (from, to) = ends(id);
    let (from, to) = (named(from), named(to));
    let error = match connection {
        Connection::Opening => return,
        Connection::Ready(agreed) => {
            log!(
                Info,
                "queue pair {pair} at {from} is connected to {to}: \
                 it issues at most {} Reads at once and serves {}",
                agreed.ord,
                agreed.ird
            );
            return;
        }
        Connection::Not(error) => error,
    };
    match error {
        ConnectError::Idle | ConnectError::TimedOut => {}
        ConnectError::Rejected { private_data, .. } => {
            log!(
                Info,
                "{to} rejects queue pair {pair} with {} bytes of private data",
                private_data.len()
            );
        }
        ConnectError::Unreachable(kind) => {
            log!(Info, "queue pair {pair} cannot reach {to}: {kind}")
        }
        ConnectError::Failed(StartupError::Fault(cause)) => {
            log!(Error, "the MPA start-up of queue pair {pair} with {to} fails: Terminate {cause}");
        }
        ConnectError::Failed(why) => {
            log!(Info, "the MPA start-up of queue pair {pair} with {to} fails: {why}")
        }
        // The thread that finds an error logs it in `failures`.
        ConnectError::Disconnected { .. } => {
            log!(
                Info,
                "the connection of queue pair {pair} to {to} ends; posted requests are flushed"
            );
        }
    }
}

/// Logs how many peers of other machines were refused, if the number has grown.
pub(super) fn refused_peers(engine: &Engine) {
    static LOGGED: AtomicU64 = AtomicU64::new(0);
    if !crate::log::on(crate::log::Level::Info) {
        return;
    }
    let now = engine.device.counters().accept_refused;
    let before = LOGGED.swap(now, Ordering::Relaxed);
    if now > before {
        log!(
            Info,
            "refused_peers {} connections from other machines. \
             next: sprat exec --insecure-network, or SPRAT_INSECURE_NETWORK=1",
            now - before
        );
    }
}
