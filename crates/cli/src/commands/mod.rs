//! The commands of `sprat`, one file each, with its arguments and its code.

pub(crate) mod bench;
pub(crate) mod chaos;
pub(crate) mod completions;
pub(crate) mod coordinator;
pub(crate) mod demo;
pub(crate) mod disk;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod echo;
pub(crate) mod etcd;
pub(crate) mod exec;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod object;
pub(crate) mod perf;
pub(crate) mod ping;
pub(crate) mod rdma;
pub(crate) mod recover;
pub(crate) mod scan;
mod serve;
pub(crate) mod server;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod tcp;
pub(crate) mod trace;
pub(crate) mod up;
