//! Entry points for the fuzzer alone (`--cfg fuzzing`): parsers of input from other processes and
//! from the kernel. Each takes any bytes and asserts what must hold.

/// A ring of memif's under whatever its peer writes into it, as a script: both ends, both
/// directions.
pub fn memif_ring(script: &[u8]) {
    crate::device::memif::fuzz_ring(script);
}

/// The first message on a connection of `fast+shm`, from either side.
pub fn shm_hello(bytes: &[u8]) {
    crate::driver::shm::fuzz_hello(bytes);
}

/// The kernel's answer about an interface.
pub fn interface(bytes: &[u8]) {
    sprat_sys::netns::link::fuzz(bytes);
}
