//! The UDP layer of an IP stack: bound ports, cached routes, GSO batches, and the receive fast
//! path.

pub(super) mod fast_path;
pub(super) mod gso;
pub(super) mod ports;
pub(super) mod received;
pub(super) mod routes;
pub(super) mod socket;
