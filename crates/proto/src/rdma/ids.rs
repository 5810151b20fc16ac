//! Numbers that name the objects of an RDMA engine, and steering tags.

use crate::rdma::table::MOST;

/// The number of a protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Pd(pub u32);

/// The number of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cq(pub u32);

/// The number of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Srq(pub u32);

/// The number of a queue pair, which programs know as `qp_num`. All queue pairs are reliable
/// connected, the only kind that iWARP has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Qp(pub u32);

/// The number of one stream (a TCP connection), from before its MPA start-up until its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conn(pub u32);

/// A steering tag. It names a region or a window on the wire and is both its local and its remote
/// key (RFC 5041 section 1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Stag(pub u32);

impl Conn {
    /// An index below 2¹⁸ that no other live stream has. The engine's caller can use it for a table
    /// of its own.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 % MOST as u32) as usize
    }
}
