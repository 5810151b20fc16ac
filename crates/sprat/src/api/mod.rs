//! What programs call: [`rpc`] for services of their own, [`kv`] for the store, [`verbs`] for RDMA.

pub mod kv;
pub mod rpc;
pub mod verbs;
