//! Sprat: microsecond storage and RPC on the Ethernet people already have.

pub mod crc;
pub mod driver;
pub mod fast;
pub mod locator;
pub mod socket;
pub mod transport;
