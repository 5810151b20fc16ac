//! Tests of the commands as users run them: processes of the built program, a cluster for each
//! test.

mod bench;
mod chaos;
mod cluster;
mod directory;
mod drain;
mod durability;
#[cfg(feature = "etcd")]
mod etcd;
mod failures;
mod files;
mod help;
mod index;
mod objects;
mod pages;
mod porcupine;
mod rdma;
mod recovery;
mod scan;
mod scrub;
mod shards;
mod sites;
mod stats;
mod status;
mod tables;
mod trace;
mod transact;
