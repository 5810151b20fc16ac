//! Numbers that name the objects of an engine.

use crate::rdma::table::MOST;

/// A protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Pd(pub u32);

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cq(pub u32);

/// A shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Srq(pub u32);

/// A queue pair (reliable connected, the only kind iWARP has). Its number is what programs know as `qp_num`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Qp(pub u32);

/// One stream (a TCP connection), from before its MPA start-up until its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conn(pub u32);

/// A steering tag: names a region or a window on the wire, local and remote key in one (RFC 5041 section 1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Stag(pub u32);

impl Conn {
    /// A small number that no other stream has at the same time: a place in a table of the caller's own.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 % MOST as u32) as usize
    }
}
