//! Verbs over software iWARP: RDMA between programs, over the kernel's TCP or over our own.
//!
//! [`Device::open`] opens a device over the kernel's TCP, [`open`] one over our own TCP on a packet
//! device. All else is the same.

use std::io;

pub use sprat_rdma::*;

use crate::interface::{self, Ports};
use crate::locator::{Kind, Locator, Over};
use crate::transport::qp::{boxed, device_port};

/// Opens an RDMA device at `at`, a locator of `rdma+DEVICE`, over our own TCP: no byte of its
/// connections passes the kernel's network stack, and each FPDU is a segment. `host` is the address
/// of the device, which no interface of the machine has; `port` does not count.
///
/// `listens` is true for a device whose peers find it by its name, as with `rdma+shmnet`: one end
/// creates the rings, and the other ends open them. Other devices ignore it.
///
/// # Errors
/// The locator is of another kind, the device cannot be opened, or no descriptors, threads or
/// random numbers are left: the error says what is missing.
pub fn open(at: &Locator, listens: bool, options: Options) -> io::Result<Device> {
    let port = device_port(at)?;
    let opened = if listens {
        interface::listen(at, &port, Ports::All)?
    } else {
        interface::towards(at, std::slice::from_ref(at), Ports::All, device_port)?
    };
    Device::open_on(Options { crc: options.crc && opened.crc, ..options }, boxed(opened))
}

/// Returns true if a locator names an RDMA device over our own TCP.
#[must_use]
pub fn is_native(at: &Locator) -> bool {
    matches!(at.kind(), Ok(Kind::Device(port)) if port.over == Over::Rdma)
}
