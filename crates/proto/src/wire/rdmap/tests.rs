use alloc::format;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

const READ: ReadRequest = ReadRequest {
    sink_stag: 0x0102_0304,
    sink_to: 0x1112_1314_1516_1718,
    size: 0x2122_2324,
    source_stag: 0x3132_3334,
    source_to: 0x4142_4344_4546_4748,
};
const READ_BYTES: [u8; READ_REQUEST] = [
    1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32,
    0x33, 0x34, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
];

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex"))
        .collect()
}

fn tagged(control: u8) -> Header {
    Header { last: true, control, buffer: Buffer::Tagged { stag: 0x0101, to: 9 } }
}

fn untagged(control: u8, qn: u32) -> Header {
    Header { last: true, control, buffer: Buffer::Untagged { ulp: 0, qn, msn: 1, mo: 0 } }
}

/// The offending segment of a Terminate: a Write's segment, or a Read Request's if `read` is set.
fn about(header: Header, payload_len: u16, read: Option<ReadRequest>) -> Offending {
    Offending { ulpdu_len: header.len() as u16 + payload_len, header: header.emit(), read }
}

#[test]
fn every_opcode_has_its_number_form_and_queue() {
    let queues = [
        None,
        Some(1),
        None,
        Some(0),
        Some(0),
        Some(0),
        Some(0),
        Some(2),
        Some(0),
        Some(0),
        Some(1),
        Some(3),
    ];
    for (number, (opcode, queue)) in Opcode::ALL.into_iter().zip(queues).enumerate() {
        assert_eq!((opcode as usize, opcode.queue()), (number, queue));
        assert_eq!(opcode.control(), 0x40 | number as u8);
        let header =
            queue.map_or_else(|| tagged(opcode.control()), |qn| untagged(opcode.control(), qn));
        assert_eq!(Opcode::of(&header), Ok(opcode));
    }
}

#[test]
fn r1_reserved_bits_are_sent_as_zero_and_ignored() {
    for opcode in Opcode::ALL {
        let control = opcode.control();
        assert_eq!(control & 0x30, 0);
        let form =
            |control| opcode.queue().map_or_else(|| tagged(control), |qn| untagged(control, qn));
        for reserved in [0x10, 0x20, 0x30] {
            assert_eq!(Opcode::of(&form(control | reserved)), Ok(opcode));
        }
    }
}

#[test]
fn r1_another_version_is_refused() {
    for version in [0, 2, 3] {
        assert_eq!(Opcode::of(&untagged(version << 6 | 3, 0)), Err(Cause::VERSION));
        assert_eq!(Opcode::of(&tagged(version << 6)), Err(Cause::VERSION));
        // The version is checked before the opcode.
        assert_eq!(Opcode::of(&tagged(version << 6 | 15)), Err(Cause::VERSION));
    }
}

#[test]
fn r2_two_opcodes_use_the_ulps_word() {
    let invalidate = Opcode::ALL.into_iter().filter(|o| o.invalidates()).collect::<Vec<_>>();
    assert_eq!(invalidate, [Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate]);
    let mut header = untagged(Opcode::Send.control(), 0);
    header.buffer = Buffer::Untagged { ulp: 0xdead, qn: 0, msn: 1, mo: 0 };
    assert_eq!(Opcode::of(&header), Ok(Opcode::Send));
}

#[test]
fn three_opcodes_solicit_an_event() {
    let solicit = Opcode::ALL.into_iter().filter(|o| o.solicits()).collect::<Vec<_>>();
    let expected =
        [Opcode::SendSolicited, Opcode::SendSolicitedInvalidate, Opcode::ImmediateSolicited];
    assert_eq!(solicit, expected);
}

#[test]
fn r3_form_and_queue_must_match_the_opcode() {
    for number in 0..16_u8 {
        let opcode = Opcode::ALL.get(usize::from(number)).copied();
        for queue in [None, Some(0), Some(1), Some(2), Some(3)] {
            let header =
                queue.map_or_else(|| tagged(0x40 | number), |qn| untagged(0x40 | number, qn));
            let right = opcode.filter(|o| o.queue() == queue).ok_or(Cause::OPCODE);
            assert_eq!(Opcode::of(&header), right);
        }
    }
}

#[test]
fn d10_a_queue_that_does_not_exist_is_ddp_s_error() {
    for qn in [4, 5, u32::MAX] {
        for control in [0x43, 0x4f, 0x83] {
            assert_eq!(Opcode::of(&untagged(control, qn)), Err(Cause::UNTAGGED_QN));
        }
    }
}

#[test]
fn golden_read_request() {
    assert_eq!(READ.emit(), READ_BYTES);
    assert_eq!(ReadRequest::parse(&READ_BYTES), Ok(READ));
    assert_eq!(ReadRequest::parse(&READ_BYTES[..27]), Err(Cause::OPERATION));
    assert_eq!(ReadRequest::parse(&[0; 29]), Err(Cause::OPERATION));
}

#[test]
fn golden_atomics() {
    let swap = AtomicOp::CompareSwap { swap: 1, swap_mask: 2, compare: 3, compare_mask: 4 };
    let request = AtomicRequest { id: 7, stag: 8, to: 9, op: swap };
    let bytes = hex(concat!(
        "00000002",
        "00000007",
        "00000008",
        "0000000000000009",
        "0000000000000001",
        "0000000000000002",
        "0000000000000003",
        "0000000000000004"
    ));
    assert_eq!(request.emit().as_slice(), bytes);
    assert_eq!(AtomicRequest::parse(&bytes), Ok(request));

    let add = AtomicRequest { op: AtomicOp::FetchAdd { add: 5, mask: 0 }, ..request };
    let bytes = hex(concat!(
        "00000000",
        "00000007",
        "00000008",
        "0000000000000009",
        "0000000000000005",
        "0000000000000000",
        "0000000000000000",
        "ffffffffffffffff"
    ));
    assert_eq!(add.emit().as_slice(), bytes);
    assert_eq!(AtomicRequest::parse(&bytes), Ok(add));
    assert_eq!(AtomicRequest::parse(&bytes[1..]), Err(Cause::OPERATION));

    let response = AtomicResponse { id: 7, was: 0x0102 };
    let bytes = hex("000000070000000000000102");
    assert_eq!(response.emit().as_slice(), bytes);
    assert_eq!(AtomicResponse::parse(&bytes), Ok(response));
    assert_eq!(AtomicResponse::parse(&bytes[..11]), Err(Cause::OPERATION));
}

#[test]
fn a2_reserved_bits_of_an_atomic_request_are_ignored() {
    let request =
        AtomicRequest { id: 1, stag: 2, to: 3, op: AtomicOp::FetchAdd { add: 4, mask: 5 } };
    let mut bytes = request.emit();
    bytes[..4].copy_from_slice(&[0xff, 0xff, 0xff, 0xf0]);
    // A fetch and add ignores compare and its mask.
    bytes[36..].fill(0x5a);
    assert_eq!(AtomicRequest::parse(&bytes), Ok(request));
}

#[test]
fn a4_only_the_operations_0_and_2_exist() {
    for code in (0..16_u8).filter(|c| ![0, 2].contains(c)) {
        let mut bytes = [0; ATOMIC_REQUEST];
        bytes[3] = code;
        assert_eq!(AtomicRequest::parse(&bytes), Err(Cause::OPCODE));
    }
}

#[test]
fn a4_sums_and_swaps_heed_their_masks() {
    let add = |old: u64, add, mask| AtomicOp::FetchAdd { add, mask }.apply(old);
    assert_eq!(add(5, 7, 0), 12);
    assert_eq!(add(u64::MAX, 1, 0), 0);
    // With two fields of 32 bits no carry leaves its field.
    let halves = 0x8000_0000_8000_0000;
    assert_eq!(add(0x0000_0001_ffff_ffff, 0x0000_0002_0000_0001, halves), 0x0000_0003_0000_0000);
    assert_eq!(add(0xffff_ffff_0000_0000, 0x0000_0001_0000_0001, halves), 1);

    let swap = |old: u64, swap, swap_mask, compare, compare_mask| {
        AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask }.apply(old)
    };
    assert_eq!(swap(5, 9, u64::MAX, 5, u64::MAX), 9);
    assert_eq!(swap(6, 9, u64::MAX, 5, u64::MAX), 6);
    assert_eq!(swap(0x1234, 0xffff, 0x00f0, 0x0034, 0x00ff), 0x12f4);
    assert_eq!(swap(0x1234, 0xffff, 0x00f0, 0x0035, 0x00ff), 0x1234);
}

#[test]
fn a1_immediate_data_has_exactly_8_bytes() {
    assert_eq!(parse_immediate(&[0, 0, 0, 0, 0, 0, 1, 2]), Ok(0x0102));
    for len in [0, 4, 7, 9, 16] {
        assert_eq!(parse_immediate(&[0; 16][..len]), Err(Cause::OPERATION));
    }
}

#[test]
fn t3_layer_type_code_and_bits_follow_the_rfc() {
    let write = about(tagged(0x40), 8, None);
    for &cause in Cause::ALL {
        let bytes = Terminate::emit(cause, Some(&write));
        assert_eq!(bytes[..2], [cause.layer << 4 | cause.etype, cause.code]);
        assert_eq!((bytes[2] & 0x3f, bytes[3]), (0, 0), "R only for Reads, 13 reserved bits 0");
        assert_eq!(bytes[2] & 0xc0, if cause.shows_header() { 0xc0 } else { 0 });
    }
    assert_eq!(Terminate::emit(Cause::MPA_CRC, None).as_slice(), [0x20, 0x02, 0, 0]);
    assert_eq!(Terminate::emit(Cause::OPCODE, None).as_slice(), [0x02, 0x06, 0, 0]);
}

#[test]
fn t4_headers_go_along_as_the_cause_calls_for() {
    let write = about(tagged(0x40), 8, None);
    let bytes = Terminate::emit(Cause::TAGGED_STAG, Some(&write));
    assert_eq!(bytes.as_slice(), hex("1100c0000016c140000001010000000000000009"));

    let request = about(untagged(0x41, 1), 28, Some(READ));
    let with_read =
        [hex("0101e000002e4141000000000000000100000001").as_slice(), &[0; 4], &READ_BYTES].concat();
    assert_eq!(Terminate::emit(Cause::BOUNDS, Some(&request)).as_slice(), with_read);
    // RFC 5040 section 7.1 requires the Read Request for every RDMAP error in one.
    assert_eq!(Terminate::emit(Cause::STREAM, Some(&request))[2], 0xe0);
    // DDP sends its own header only; MPA and local errors send none.
    assert_eq!(Terminate::emit(Cause::UNTAGGED_MSN, Some(&request))[2], 0xc0);
    for cause in [Cause::LOCAL, Cause::MPA_CRC, Cause::MPA_RTR] {
        assert_eq!(Terminate::emit(cause, Some(&request)).len(), 4);
    }
}

#[test]
fn t4_a_read_partly_answered_is_sent_back_advanced() {
    let rest = READ.after(0x2048);
    assert_eq!(rest.sink_to, READ.sink_to + 0x2048);
    assert_eq!(rest.source_to, READ.source_to + 0x2048);
    assert_eq!(rest.size, READ.size - 0x2048);
    assert_eq!((rest.sink_stag, rest.source_stag), (READ.sink_stag, READ.source_stag));
    // Hostile offsets wrap without a panic.
    assert_eq!(ReadRequest { sink_to: u64::MAX, ..READ }.after(2).sink_to, 1);
}

#[test]
fn terminates_survive_the_wire() {
    let abouts = [about(tagged(0x40), 8, None), about(untagged(0x41, 1), 28, Some(READ))];
    for (&cause, about) in Cause::ALL.iter().flat_map(|c| abouts.iter().map(move |a| (c, a))) {
        let bytes = Terminate::emit(cause, Some(about));
        let read = Terminate::parse(&bytes).expect("it is long enough");
        assert_eq!(read.cause, cause);
        let with_read = about.read.filter(|_| cause.layer == Cause::RDMAP);
        let shown = cause.shows_header().then(|| Offending { read: with_read, ..about.clone() });
        assert_eq!(read.about, shown);
    }
}

/// Terminates that siw (Linux 6.1) sent for malformed messages are parsed to the meant causes.
#[test]
fn mirrored_terminates_of_siw_are_parsed() {
    let read = |text: &str| Terminate::parse(&hex(text)).expect("it is long enough");
    for (text, cause, ulpdu_len) in [
        ("110003000008c140dead00000000000000000000", Cause::TAGGED_STAG, Some(8)),
        ("210303000010414300000000000000000000000700000000", Cause::UNTAGGED_MSN, Some(16)),
        ("210203000040414300000000000000000000000100000000", Cause::UNTAGGED_NO_BUFFER, Some(64)),
        ("210103000010414300000000000000010000000100000000", Cause::UNTAGGED_QN, Some(16)),
        ("210403000010414300000000000000000000000100000004", Cause::UNTAGGED_MO, Some(16)),
        ("20090300001041440000", Cause::CANNOT_INVALIDATE_OPERATION, Some(16)),
        ("010003000008c142000000050000000000000000", Cause::DDP_LOCAL, Some(8)),
        ("02020000", Cause::MPA_CRC, None),
        ("21060000", Cause::UNTAGGED_VERSION, None),
    ] {
        let terminate = read(text);
        assert_eq!((terminate.cause, terminate.or), (cause, None), "{text}");
        assert_eq!(terminate.about.map(|a| a.ulpdu_len), ulpdu_len, "{text}");
    }

    let refused = read(concat!(
        "10000700",
        "0000",
        "414100000000000000010000000800000000",
        "00000005000000000000000000000008dead00000000000000000000"
    ));
    assert_eq!(refused.cause, Cause::INVALID_STAG);
    let about = refused.about.expect("its headers are there");
    assert_eq!(about.header.len(), ddp::UNTAGGED);
    let read_request = about.read.expect("the Read Request is there");
    assert_eq!(
        (read_request.sink_stag, read_request.size, read_request.source_stag),
        (5, 8, 0xdead_0000)
    );
}

#[test]
fn ambiguous_terminates_give_both_causes() {
    for (bytes, cause, or) in [
        ([0x20, 6, 0, 0], Cause::MPA_DEPTH, Cause::OPCODE),
        ([0x20, 5, 0, 0], Cause::MPA_LOCAL, Cause::VERSION),
        ([0x20, 7, 0, 0], Cause::MPA_RTR, Cause::STREAM),
    ] {
        let terminate = Terminate::parse(&bytes).expect("it is long enough");
        assert_eq!((terminate.cause, terminate.or), (cause, Some(or)));
    }
}

#[test]
fn terminates_cut_short_lose_their_headers_only() {
    let request = about(untagged(0x41, 1), 28, Some(READ));
    let whole = Terminate::emit(Cause::ACCESS, Some(&request));
    for len in 0..4 {
        assert_eq!(Terminate::parse(&whole[..len]), None);
    }
    for len in 4..whole.len() {
        let terminate = Terminate::parse(&whole[..len]).expect("it is long enough");
        assert_eq!(terminate.cause, Cause::ACCESS);
        assert_eq!(terminate.about.is_some(), len >= 6);
        assert!(
            terminate.about.is_none_or(|a| a.read.is_none() && a.header.is_empty() == (len < 24))
        );
    }
}

#[test]
fn causes_print_number_and_name() {
    assert_eq!(format!("{}", Cause::TAGGED_STAG), "1/1/00 (tagged: invalid STag)");
    assert_eq!(format!("{}", Cause { layer: 3, etype: 4, code: 0xab }), "3/4/ab");
    let mut seen = Cause::ALL.to_vec();
    seen.dedup();
    assert_eq!(seen.len(), 33);
    assert!(Cause::TAGGED_STAG.is_access() && Cause::BOUNDS.is_access());
    assert!(
        !Cause::OPCODE.is_access()
            && !Cause::UNTAGGED_QN.is_access()
            && !Cause::TAGGED_VERSION.is_access()
    );
}

#[test]
fn header_errors_have_a_cause() {
    assert_eq!(Cause::from(ddp::HeaderError::Short), Cause::DDP_LOCAL);
    assert_eq!(Cause::from(ddp::HeaderError::TaggedVersion), Cause::TAGGED_VERSION);
    assert_eq!(Cause::from(ddp::HeaderError::UntaggedVersion), Cause::UNTAGGED_VERSION);
}

/// The sum of an atomic FetchAdd with a mask (RFC 7306 section 5.1.1), computed bit by bit.
fn add_by_bits(old: u64, add: u64, mask: u64) -> u64 {
    let (mut carry, mut new) = (0, 0);
    for bit in 0..64 {
        let sum = carry + (old >> bit & 1) + (add >> bit & 1);
        new |= (sum & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { sum >> 1 };
    }
    new
}

proptest! {
    #[test]
    fn a4_masked_sums_are_the_rfc_s(old: u64, add: u64, mask: u64) {
        prop_assert_eq!(AtomicOp::FetchAdd { add, mask }.apply(old), add_by_bits(old, add, mask));
    }

    #[test]
    fn no_bytes_of_a_terminate_are_lost(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let terminate = Terminate::parse(&bytes);
        prop_assert_eq!(terminate.is_some(), bytes.len() >= 4);
        if let Some(Terminate { about: Some(about), .. }) = terminate {
            prop_assert_eq!(about.ulpdu_len, u16::from_be_bytes([bytes[4], bytes[5]]));
            prop_assert_eq!(about.header.as_slice(), &bytes[6..6 + about.header.len()]);
        }
    }
}
