//! What the host hears beside messages: the hellos of shared memory, what the kernel answers about
//! an interface, and the marks that a server echoes. No octets panic.
//!
//! The first octet says which; the rest is theirs.

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
