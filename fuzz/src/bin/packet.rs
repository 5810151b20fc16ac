//! RPC packets: no bytes panic, with a checksum or without, and what parses is written back as the same header.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::wire::checksum::crc32c;
use sprat_proto::wire::rpc::{CRC, HEAD_MAX, HEADER, TTL, crc_start, parse};

fuzz_target!(|bytes: &[u8]| {
    let _ = parse(bytes, Some(crc32c));
    let Ok(packet) = parse(bytes, None) else { return };
    assert_eq!(packet.body(bytes).len(), packet.body_len());
    let mut head = [0; HEAD_MAX];
    let len = packet.head(&mut head);
    // Extension words that nobody knows are not written.
    assert_eq!((&head[..3], &head[4..HEADER]), (&bytes[..3], &bytes[4..HEADER]));
    assert!(packet.flags & TTL == 0 || head[HEADER..len] == bytes[HEADER..len]);

    // The same packet with its checksum.
    let crc = crc32c(crc_start(crc32c, bytes.len() + CRC), bytes);
    let whole = [bytes, &crc.to_be_bytes()].concat();
    assert_eq!(parse(&whole, Some(crc32c)), Ok(packet));
});
