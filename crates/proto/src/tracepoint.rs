//! Tracepoints of the RPC transport: where the time of one RPC goes.
//!
//! The transport calls a [`Probe`] at each [`Tracepoint`]. `sprat bench breakdown` attaches a probe
//! that records times; every other user takes [`NoProbe`], which compiles to nothing.

/// A place in the code that an RPC passes. The order is that of one round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Tracepoint {
    /// The client's caller handed in the request.
    ClientRequest,
    /// The client's driver accepted the last packet of the request.
    ClientSent,
    /// The server's endpoint received the last packet of the request.
    ServerReceived,
    /// The server called the service.
    ServiceStart,
    /// The service gave its reply to the transport.
    ServiceEnd,
    /// The server's driver accepted the last packet of the reply.
    ServerSent,
    /// The client's endpoint received the last packet of the reply.
    ClientReceived,
    /// The client's caller has the reply.
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
