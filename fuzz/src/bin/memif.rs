//! Fuzzes the memif protocol: no bytes at the control socket cause a panic, and a message that
//! parses is written back unchanged; no descriptor or index in a ring leads out of the ring's
//! memory.
//!
//! The first byte chooses socket or ring; the rest is the peer's input.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::wire::memif::{Descriptor, MESSAGE, Message};

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    if which & 1 == 1 {
        return sprat::fuzzing::memif_ring(bytes);
    }
    let mut message = [0; MESSAGE];
    let len = bytes.len().min(MESSAGE);
    message[..len].copy_from_slice(&bytes[..len]);
    if let Ok(parsed) = Message::parse(&message) {
        assert_eq!(Message::parse(&parsed.emit()), Ok(parsed));
    }
    if let Some(words) = bytes.first_chunk::<16>() {
        let words = [0, 8]
            .map(|at| u64::from_le_bytes(words[at..at + 8].try_into().expect("eight octets")));
        let descriptor = Descriptor::of(words);
        assert_eq!(Descriptor::of(descriptor.words()), descriptor);
    }
});
