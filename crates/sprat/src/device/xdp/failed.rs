//! The error of a step in opening an `xdp` device.

use std::io;

/// The step of opening an `xdp` device that failed, and its error.
pub(super) struct Failed(pub(super) &'static str, pub(super) io::Error);
