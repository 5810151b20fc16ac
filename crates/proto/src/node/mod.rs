//! A node: what a process does with what arrives. Production and the simulator run the same one.
//!
//! [`machine::Machine`] is what a node runs: a coordinator, a master, a client, an RPC service.

pub mod machine;
