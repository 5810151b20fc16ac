//! Modules that the command line, the benchmarks and the tests need besides the public ones.
//!
//! They are no part of the library's interface: any release may change them.

/// Packet devices: Ethernet frames past the kernel's network stack.
pub mod device {
    pub use crate::device::*;
}

/// The frames of a server's replicas, read for an operator.
pub mod frames {
    pub use crate::frames::check::{Checked, CheckedJournal, check};
}

/// The rings that a server has left in its directory, read for an operator.
pub mod rings {
    pub use crate::rings::check::{CheckedRing, RingCondition, check};
}

/// The coordinator's durable state, in a file.
pub mod disk {
    pub use crate::disk::*;
}

/// Drivers that move datagrams between addresses.
pub mod driver {
    pub use crate::driver::*;
}

/// The trait of a transport that a worker drives.
pub mod transport {
    pub use crate::transport::*;
}

/// The set of transports of one worker.
pub mod transports {
    pub use crate::transports::*;
}

/// The loop that drives a state machine and its transports.
pub mod worker {
    pub use crate::worker::*;
}
