//! Entry points for the fuzzer alone (`--cfg fuzzing`): parsers of input from other processes and
//! from the kernel. Each takes any bytes and asserts what must hold.

/// Runs `script` as the writes of a memif peer into a ring, for both ends and both directions.
pub fn memif_ring(script: &[u8]) {
    crate::device::memif::fuzz_ring(script);
}

/// Parses `bytes` as the first message on a connection of `fast+shm`, from either side.
pub fn shm_hello(bytes: &[u8]) {
    crate::driver::shm::fuzz_hello(bytes);
}

/// Parses `bytes` as the kernel's answer about an interface.
pub fn interface(bytes: &[u8]) {
    sprat_sys::netns::link::fuzz(bytes);
}
