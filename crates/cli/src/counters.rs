//! Counters of processes: their catalogue, and the forms in which they leave the program.

pub(crate) mod answers;
pub(crate) mod catalogue;
pub(crate) mod prometheus;
