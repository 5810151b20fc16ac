//! Tracepoints of the RPC transport: where the time of one RPC goes.
//!
//! The transport calls a [`Probe`] at each [`Tracepoint`]. `sprat bench breakdown` attaches a probe
//! that records times; every other user takes [`NoProbe`], which compiles to nothing.

/// A place in the code that an RPC passes, where a probe takes a time stamp. The variants have the
/// order of one round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Tracepoint {
    /// The tracepoint at which the client's caller hands in the request.
    ClientRequest,
    /// The tracepoint at which the client's driver has accepted the last packet of the request.
    ClientSent,
    /// The tracepoint at which the server's endpoint receives the last packet of the request.
    ServerReceived,
    /// The tracepoint at which the server calls the service.
    ServiceStart,
    /// The tracepoint at which the service has given its reply to the transport.
    ServiceEnd,
    /// The tracepoint at which the server's driver has accepted the last packet of the reply.
    ServerSent,
    /// The tracepoint at which the client's endpoint receives the last packet of the reply.
    ClientReceived,
    /// The tracepoint at which the client's caller has the reply.
    ClientDone,
}

/// Observes tracepoints. A probe must not influence any decision of the code that calls it.
pub trait Probe {
    /// Records that the RPC with the number `rpc` passes `tracepoint` now.
    fn hit(&mut self, tracepoint: Tracepoint, rpc: u64);
}

/// A probe that records nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoProbe;

impl Probe for NoProbe {
    #[inline(always)]
    fn hit(&mut self, _tracepoint: Tracepoint, _rpc: u64) {}
}
