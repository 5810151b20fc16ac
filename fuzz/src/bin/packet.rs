//! Fuzzes RPC packets: no bytes panic, with a checksum or without; a packet that parses is written
//! back with the same header, and its body is at least as long as the fixed part of its type.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::wire::checksum::crc32c;
use sprat_proto::wire::rpc::{CRC, HEADER, Kind, Packet, TTL, VERSION, crc_start, parse};

fuzz_target!(|bytes: &[u8]| {
    let _ = parse(bytes, Some(crc32c));
    let Ok(packet) = parse(bytes, None) else { return };
    assert_eq!(packet.body(bytes).len(), packet.body_len());
    let head = packet.head();
    let len = head.len();
    // Unknown extension words are not written.
    assert_eq!((&head[..3], &head[4..HEADER]), (&bytes[..3], &bytes[4..HEADER]));
    assert!(packet.flags & TTL == 0 || head[HEADER..len] == bytes[HEADER..len]);
    body_reads(&packet, packet.body(bytes));

    // What is written parses as the same, but for where the body is.
    let again = [&head[..len], packet.body(bytes)].concat();
    let (body_start, body_end) = (len as u32, again.len() as u32);
    assert_eq!(parse(&again, None), Ok(Packet { body_start, body_end, ..packet }));

    // The same packet with its checksum.
    let crc = crc32c(crc_start(bytes.len() + CRC), bytes);
    let whole = [bytes, &crc.to_be_bytes()].concat();
    assert_eq!(parse(&whole, Some(crc32c)), Ok(packet));
});

/// Checks that the body of an RPC packet of our version is at least as long as the fixed part of
/// its type.
fn body_reads(packet: &Packet, body: &[u8]) {
    let min = match packet.kind {
        Kind::Nack => 32,
        Kind::Probe => 12,
        Kind::Done => 16,
        Kind::Open => 32,
        Kind::Cookie => 16,
        Kind::Accept => 32,
        _ => 0,
    };
    assert!(packet.version != VERSION || body.len() >= min);
}
