//! Fuzzes input that is no packet: the hellos of shared memory, the kernel's answers about an
//! interface, and the tracepoints that a server echoes. No bytes cause a panic.
//!
//! The first byte chooses the parser; the rest is its input.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 3 {
        0 => sprat::fuzzing::shm_hello(bytes),
        1 => sprat::fuzzing::interface(bytes),
        _ => drop(sprat::trace::sample::Far::parse(bytes)),
    }
});
