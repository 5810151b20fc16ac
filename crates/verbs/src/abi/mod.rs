//! The C structures that programs share with the libraries, as the headers of rdma-core v44 declare
//! them.
//!
//! `layouts!` declares each structure once and records the offsets and sizes of its fields in
//! [`LAYOUTS`]. A test compares them with what the C compiler computes from the installed headers.
//! Later headers only append fields; a size or a mask tells how many of them a program knows.

pub mod attr;
pub mod cm;
pub mod device;
pub mod layout;
pub mod object;

use layout::Layout;

/// The layouts of all C structures that programs share with the libraries.
pub const LAYOUTS: &[&[Layout]] = &[device::LAYOUTS, object::LAYOUTS, attr::LAYOUTS, cm::LAYOUTS];
