//! The layouts of what programs and these libraries share: C's structures, as rdma-core v44's headers have them.
//!
//! Each is written here once, by `layouts!`, which also keeps its fields' offsets and sizes as a table ([`LAYOUTS`]), so
//! that a test can have the C compiler say the same of the installed headers. Later headers only append to these, and tell
//! by a size or a mask how much of them a program knows.
//!
//! Not here: what is in them.

pub mod attr;
pub mod cm;
pub mod device;
pub mod layout;
pub mod object;

use layout::Layout;

/// All of them.
pub const LAYOUTS: &[&[Layout]] = &[device::LAYOUTS, object::LAYOUTS, attr::LAYOUTS, cm::LAYOUTS];
