//! The workloads A to F of YCSB: which operation comes next, and on which record.
//!
//! [`zipf`] has YCSB's distributions with its constants, [`workload`] the mixes and the names of
//! records. Both are pure: randomness is a generator that the caller seeds.
//!
//! Not here: connections and time, which belong to `perf::ycsb`.

pub mod workload;
pub mod zipf;
