//! The C API of the key-value store: `libsprat.so.0` and `libsprat.a`, with `include/sprat.h`.
//!
//! ```text
//!   C program ─► objects, multi, transaction, ─► client (one call at a time) ─► sprat::kv
//!                tables, indexes, scan, index_scan, started
//!                   └─► entry (panics, errors) · pointer (C's memory) · convert (numbers, texts)
//! ```
//!
//! The header states what each function does; the functions here name it in one line. Arguments
//! have types of `pointer`, which only C can make. So all unsafe code stands in that file, in
//! `error` (the error that the caller provides), and in `entry` and `abi` (declarations).
//!
//! Invariants: no panic leaves a function that C calls. No second thread enters a client: the call
//! fails instead. Memory of the caller is touched only during a call.
//!
//! Not here: the store's client (`sprat::kv`). The library trusts what C's callers promise and a
//! callee cannot check: a pointer refers to a live object, and an array has the stated length.

pub mod abi;
mod client;
mod convert;
mod entry;
mod error;
mod index_scan;
mod indexes;
mod multi;
mod objects;
mod pointer;
mod scan;
mod started;
mod status;
mod tables;
mod transaction;

pub use status::Status;
