//! Measurements of Sprat, each beside a baseline: what the same machine does without any of our
//! software.
//!
//! [`perf`] has the tests of `sprat bench`, [`rdma`] those of `sprat rdma`, [`baseline`] the bare
//! exchanges that they are compared with. [`ycsb`] has YCSB's workloads, [`peers`] the stores of
//! others that are measured beside ours. [`chaos`] attacks a cluster. [`process`] and [`cluster`]
//! start the processes. [`store`], [`fail`], [`folder`], [`out`] and [`memory`] are what the tests
//! share with the command line.
//!
//! This crate is never published. Not here: the arguments of the command line, which belong to
//! `sprat-cli`.
#![forbid(unsafe_code)]

pub mod baseline;
pub mod chaos;
pub mod cluster;
pub mod fail;
pub mod folder;
pub mod memory;
pub mod out;
pub mod peers;
pub mod perf;
pub mod process;
pub mod rdma;
pub mod store;
pub mod text;
pub mod units;
pub mod ycsb;
