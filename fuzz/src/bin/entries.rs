//! Entries of the log: no bytes panic, and what is sealed is replayed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::wire::checksum::crc32c;
use sprat_store::log::entry::{Entry, parse, replay, seal};

fuzz_target!(|bytes: &[u8]| {
    let entries = replay(crc32c, bytes).count();
    assert!(entries <= bytes.len());
    let Some((entry, len)) = parse(bytes) else { return };
    let is_group = matches!(entry, Entry::Group(_));
    let mut sealed = bytes[..len].to_vec();
    assert_eq!(seal(crc32c, &mut sealed), Some(len));
    // The entry itself; of a group what is in it, as far as that makes sense.
    let again = replay(crc32c, &sealed).count();
    assert!(is_group || again == 1);
});
