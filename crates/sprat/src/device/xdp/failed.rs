//! The error of a step on the way to an open device.

use std::io;

/// The step that failed, and its error.
pub(super) struct Failed(pub(super) &'static str, pub(super) io::Error);
