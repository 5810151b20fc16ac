//! libibverbs.so.1 and librdmacm.so.1 of our own: programs that were built for RDMA hardware run on plain TCP.
//!
//! ```text
//!   a program ─► libibverbs.so.1 ─► entry (null, errno, panics) ─► device, context, … ─► sprat::verbs
//!           └──► librdmacm.so.1 ─ jumps ─┘
//! ```
//!
//! `scripts/verbs` links this crate's archive into the two libraries; `symbols.txt` lists every symbol with what stands
//! behind it. `abi` has the layouts of what programs share with us, compared with the installed headers by a test.
//!
//! Always holds: no panic leaves a function that C calls; a null pointer is an error and not a crash; what is not there
//! yet says so by the errno that programs expect. What C promises and nobody can check (a pointer is to an object that is
//! alive, an array is as long as it is said to be) is believed, as by every library of this name.
//!
//! Not here: RDMA itself (`sprat::verbs`), rsockets, drivers of hardware.

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
