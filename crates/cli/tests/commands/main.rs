//! The commands as people use them: real processes of the built program, a cluster of its own for each test.

mod cluster;
mod failures;
mod files;
mod help;
mod objects;
mod perf;
mod rdma;
mod trace;
