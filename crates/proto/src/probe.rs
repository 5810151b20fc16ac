//! Where the time of an RPC goes: layers mark points, `host` keeps the times, everyone else compiles it away.

/// A place on the way of one RPC. The order is the order in which a round trip passes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Point {
    /// The client's caller handed the request in.
    ClientRequest,
    /// The last packet of the request was given to the client's driver.
    ClientSent,
    /// The last packet of the request reached the server's endpoint.
    ServerReceived,
    /// The service was called.
    ServiceStart,
    /// The service's reply was handed in.
    ServiceEnd,
    /// The last packet of the reply was given to the server's driver.
    ServerSent,
    /// The last packet of the reply reached the client's endpoint.
    ClientReceived,
    /// The client's caller has the reply.
    ClientDone,
}

/// Takes note of a point in time. No decision may depend on it.
pub trait Probe {
    /// `rpc` passed `point` now.
    fn mark(&mut self, point: Point, rpc: u64);
}

/// Takes no note.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoProbe;

impl Probe for NoProbe {
    #[inline(always)]
    fn mark(&mut self, _point: Point, _rpc: u64) {}
}
