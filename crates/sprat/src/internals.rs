//! Modules that the command line, the benchmarks and the tests need besides the public ones.
//!
//! They are no part of the library's interface: any release may change them.

/// Packet devices.
pub mod device {
    pub use crate::device::*;
}

/// The coordinator's durable state.
pub mod disk {
    pub use crate::disk::*;
}

/// Drivers of datagrams.
pub mod driver {
    pub use crate::driver::*;
}

/// The transport that a worker drives.
pub mod transport {
    pub use crate::transport::*;
}

/// The transports of one worker.
pub mod transports {
    pub use crate::transports::*;
}

/// The loop that drives a machine and its transports.
pub mod worker {
    pub use crate::worker::*;
}
