//! Headers, one protocol a file: bytes to values and back, no state. `docs/formats.md` is normative.

pub mod checksum;
pub mod ddp;
pub mod mpa;
pub mod rdmap;
pub mod rpc;
