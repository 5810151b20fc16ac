use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

const WRITE: Header = Header {
    last: true,
    control: 0x40,
    buffer: Buffer::Tagged { stag: 0x0102_0304, to: 0x1112_1314_1516_1718 },
};
const SEND: Header = Header {
    last: true,
    control: 0x43,
    buffer: Buffer::Untagged { ulp: 0x2122_2324, qn: 1, msn: 0x3132_3334, mo: 0x4142_4344 },
};

/// Cuts a DDP message of `total` bytes into segments and returns their payload lengths. Asserts
/// that only the last segment is marked last.
fn cut(total: u32, payload_max: u32) -> Vec<u32> {
    let (mut done, mut payloads) = (0, Vec::new());
    loop {
        let (payload, last) = next_segment(total, done, payload_max);
        done += payload;
        payloads.push(payload);
        assert_eq!(last, done == total);
        if last {
            return payloads;
        }
    }
}

#[test]
fn golden_headers() {
    let tagged = [0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
    assert_eq!(WRITE.emit().as_slice(), tagged);
    assert_eq!(parse(&tagged), Ok(WRITE));

    let untagged = [
        0x41, 0x43, 0x21, 0x22, 0x23, 0x24, 0, 0, 0, 1, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43,
        0x44,
    ];
    assert_eq!(SEND.emit().as_slice(), untagged);
    assert_eq!(parse(&untagged), Ok(SEND));
}

#[test]
fn d1_reserved_bits_are_sent_as_zero_and_ignored() {
    for header in [WRITE, SEND] {
        let mut bytes = header.emit();
        assert_eq!(bytes[0] & 0x3c, 0);
        bytes[0] |= 0x3c;
        assert_eq!(parse(&bytes), Ok(header));
    }
}

#[test]
fn d1_another_version_is_an_error_of_its_own_for_each_form() {
    for (header, bad) in [(WRITE, HeaderError::TaggedVersion), (SEND, HeaderError::UntaggedVersion)]
    {
        let mut bytes = header.emit();
        assert_eq!(bytes[0] & 3, VERSION);
        for version in [0, 2, 3] {
            bytes[0] = bytes[0] & !3 | version;
            assert_eq!(parse(&bytes), Err(bad));
            // The first byte alone shows it.
            assert_eq!(parse(&bytes[..1]), Err(bad));
        }
    }
}

#[test]
fn a_header_cut_short_is_no_header() {
    assert_eq!(parse(&[]), Err(HeaderError::Short));
    for header in [WRITE, SEND] {
        let bytes = header.emit();
        for len in 1..bytes.len() {
            assert_eq!(parse(&bytes[..len]), Err(HeaderError::Short));
            assert_eq!(raw_header(&bytes[..len]), None);
        }
        assert_eq!((header_len(bytes[0]), header.len()), (bytes.len(), bytes.len()));
    }
}

#[test]
fn a_terminate_returns_the_header_as_received() {
    let mut bytes = WRITE.emit().to_vec();
    bytes[0] = 0xfe;
    bytes.extend_from_slice(b"payload");
    assert_eq!(raw_header(&bytes).as_deref(), Some(&bytes[..TAGGED]));
    bytes[0] = 0x7e;
    assert_eq!(raw_header(&bytes).as_deref(), Some(&bytes[..UNTAGGED]));
    assert_eq!(raw_header(&[]), None);
}

#[test]
fn d5_2048_bytes_at_a_mulpdu_of_1500() {
    assert_eq!(cut(2048, 1500 - UNTAGGED as u32), [1482, 566]);
    assert_eq!(cut(2048, 1500 - TAGGED as u32), [1486, 562]);
}

#[test]
fn d2_d6_the_last_segment_alone_is_last_and_no_bytes_are_one_segment() {
    assert_eq!(cut(0, 100), [0]);
    assert_eq!(cut(100, 100), [100]);
    assert_eq!(cut(101, 100), [100, 1]);
    assert_eq!(cut(u32::MAX, 1 << 30), [1 << 30, 1 << 30, 1 << 30, (1 << 30) - 1]);
}

fn any_header() -> impl Strategy<Value = Header> {
    let tagged = any::<(u32, u64)>().prop_map(|(stag, to)| Buffer::Tagged { stag, to });
    let untagged = any::<(u32, u32, u32, u32)>().prop_map(|(ulp, qn, msn, mo)| Buffer::Untagged {
        ulp,
        qn,
        msn,
        mo,
    });
    (any::<bool>(), any::<u8>(), prop_oneof![tagged, untagged])
        .prop_map(|(last, control, buffer)| Header { last, control, buffer })
}

proptest! {
    #[test]
    fn headers_survive_the_wire(
        header in any_header(),
        payload in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut ulpdu = header.emit().to_vec();
        prop_assert_eq!(ulpdu.len(), header.len());
        ulpdu.extend_from_slice(&payload);
        prop_assert_eq!(parse(&ulpdu), Ok(header));
    }

    #[test]
    fn parsed_headers_are_emitted_without_reserved_bits(
        bytes in prop::collection::vec(any::<u8>(), 0..24),
    ) {
        if let Ok(header) = parse(&bytes) {
            let mut came = bytes[..header.len()].to_vec();
            came[0] &= !0x3c;
            prop_assert_eq!(header.emit().to_vec(), came);
        }
    }
}
