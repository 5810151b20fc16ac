//! The packets of the RPC transport.
