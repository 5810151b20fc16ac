//! The objects of a master in memory: the log that holds them and the tables that point into it.

pub mod blocks;
pub mod cache;
pub mod cleaner;
pub mod commit;
pub mod entry;
pub mod expiry;
pub mod indexed;
pub mod leaving;
mod loans;
pub mod locks;
pub mod log;
pub mod memory;
pub mod mutate;
pub mod number;
pub mod pages;
pub mod partition;
pub mod record;
pub mod rifl;
pub mod segment;
pub mod table;
pub mod tablet;
