//! What programs call: [`rpc`] for services of their own, [`kv`] for the store.

pub mod kv;
pub mod rpc;
