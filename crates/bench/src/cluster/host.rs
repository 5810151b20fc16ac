//! An emulated host: a network namespace in which a process of a cluster runs, and its address.

use std::net::Ipv4Addr;
use std::sync::Arc;

use sprat_sys::netns::{Inside, Namespace};

use crate::fail::{Fail, Named as _};

/// An emulated host: a network namespace with one address.
#[derive(Clone, Debug)]
pub struct Host {
    namespace: Arc<Namespace>,
    address: Ipv4Addr,
}

impl Host {
    /// Makes the host of the process that listens at `address` in `namespace`.
    pub fn new(namespace: Arc<Namespace>, address: Ipv4Addr) -> Self {
        Self { namespace, address }
    }

    /// Returns the address of the process.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Moves the calling thread into the network until the returned value is dropped. A process
    /// that it starts meanwhile stays inside.
    pub(super) fn enter(&self) -> Result<Inside, Fail> {
        self.namespace.enter().named("cannot enter a network namespace")
    }
}
