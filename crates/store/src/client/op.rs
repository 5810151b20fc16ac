//! The names of operations and servers.

/// The name of an operation that the client started.
///
/// A client reuses the value after 2³² other operations at the earliest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Op(pub u64);

impl Op {
    /// Returns a small number that no other operation in progress has.
    ///
    /// A program can use it as an index into a table of its own.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as u32 as usize
    }
}

/// The name of a server, for echo and statistics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerId(pub(super) u32);

impl PeerId {
    /// The name of the coordinator among the servers.
    pub const COORDINATOR: Self = Self(0);
}
