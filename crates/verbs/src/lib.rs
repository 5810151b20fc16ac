//! The libraries libibverbs.so.1 and librdmacm.so.1 on software RDMA: programs built for RDMA
//! hardware run over plain TCP.
//!
//! ```text
//!   program ─► libibverbs.so.1 ─► entry (null, errno, panics) ─► device, cq, … ─► sprat_rdma
//!         └──► librdmacm.so.1 ─ jumps ─┘
//! ```
//!
//! `scripts/verbs` links this crate's archive into the two libraries. `symbols.txt` lists every
//! symbol and its state. `abi` declares the structures that programs share with the libraries; a
//! test compares them with the installed headers.
//!
//! Invariant: no panic leaves a function that C calls. A null pointer is an error, not a crash. An
//! unsupported call returns the errno that programs expect. The libraries trust what C's interface
//! promises and a callee cannot check: a pointer refers to a live object, and an array has the
//! stated length.
//!
//! Not here: RDMA itself (`sprat_rdma`), rsockets, drivers of hardware.

pub mod abi;
mod async_event;
mod channel;
mod cm;
mod context;
mod cq;
mod device;
mod engine;
mod entry;
mod events;
mod failures;
mod log;
mod mr;
mod mw;
mod object;
mod open;
mod pd;
mod qp;
mod query;
mod sequence;
mod srq;
mod sysfs;
mod text;
mod work;
