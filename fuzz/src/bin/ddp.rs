//! Fuzzes DDP headers: no bytes panic; a header that parses is written back as the same bytes,
//! except for reserved bits; the segments of a message add up to its bytes, and the last one is
//! marked.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::wire::ddp::{Buffer, HeaderError, header_len, next_segment, parse, raw_header};
use sprat_proto::wire::rdmap::{Cause, Opcode};

fuzz_target!(|bytes: &[u8]| {
    let raw = raw_header(bytes);
    match parse(bytes) {
        Ok(header) => {
            let raw = raw.expect("what parses is whole");
            assert_eq!((header.len(), header.len()), (raw.len(), header_len(bytes[0])));
            let again = header.emit();
            assert_eq!((again[0], &again[1..]), (raw[0] & 0xc3, &raw[1..]));
            assert_eq!(parse(&again), Ok(header));
            // An opcode stands in a header of its own form only.
            let tagged = matches!(header.buffer, Buffer::Tagged { .. });
            assert!(
                Opcode::of(&header).is_err_and(|cause| cause.name().is_some())
                    || Opcode::of(&header).is_ok_and(|opcode| opcode.queue().is_none() == tagged)
            );
        }
        Err(HeaderError::Short) => assert!(raw.is_none()),
        Err(bad) => assert!(Cause::from(bad).name().is_some()),
    }
    let Some(&numbers) = bytes.first_chunk::<6>() else { return };
    let total = u32::from_be_bytes([0, numbers[0], numbers[1], numbers[2]]);
    let payload_max = u32::from_be_bytes([0, 0, numbers[3], numbers[4]]).max(114);
    let (mut done, mut last) = (0, false);
    while !last {
        let (payload, ends) = next_segment(total, done, payload_max);
        assert!(payload <= payload_max && (payload > 0 || total == 0));
        (done, last) = (done + payload, ends);
        assert_eq!(last, done == total);
    }
});
