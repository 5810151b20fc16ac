//! The library by which packetdrill drives Sprat's TCP: packetdrill's socket calls and packets on
//! one side, an IP stack over a device in memory on the other.
//!
//! ```text
//!  packetdrill ─► abi ─► world ─► sockets ─► Stack ─┐
//!              ◄──────── packets with times ◄─ wire ┘
//! ```
//!
//! | file | |
//! | --- | --- |
//! | `abi` | the functions of `packetdrill_interface`, and all unsafe code |
//! | `world` | virtual time, the stack, calls that block |
//! | `attempt` | what each socket call does, once it is called or something has changed |
//! | `sockets` | the state of sockets |
//! | `options` | socket options, `TCP_INFO` |
//! | `sysctl` | what a script has set by `sysctl` |
//! | `wire` | the device |
//!
//! Time is virtual: it advances by packetdrill's `usleep`, by a microsecond with each
//! `gettimeofday`, and to the stack's next deadline while packetdrill waits for a packet. A run
//! does not depend on the speed of the machine.

mod abi;
mod attempt;
mod options;
mod sockets;
mod sysctl;
mod wire;
mod world;
