//! Tests of MPA's start-up: each rule of RFC 5044 and 6581, the answer to every row of the matrix
//! that was tried on a real siw, and random options of both ends.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

const PLAIN: StartOptions = StartOptions { crc: true, markers: false, revision: 1, rtr: None };
const NONE: Depths = Depths { ird: 0, ord: 0 };

fn depths(ird: u16, ord: u16) -> Depths {
    Depths { ird, ord }
}

/// Creates a start-up frame from its parts.
fn frame(kind: Kind, flags: u8, revision: u8, data: &[u8]) -> Vec<u8> {
    let mut frame = kind.key().to_vec();
    frame.extend([flags, revision]);
    frame.extend((data.len() as u16).to_be_bytes());
    frame.extend(data);
    frame
}

fn request(flags: u8, revision: u8, data: &[u8]) -> Vec<u8> {
    frame(Kind::Request, flags, revision, data)
}

fn reply(flags: u8, revision: u8, data: &[u8]) -> Vec<u8> {
    frame(Kind::Reply, flags, revision, data)
}

/// The result of parsing `reply` for an initiator with these options.
fn answer(options: StartOptions, ours: Depths, reply: &[u8]) -> ReceivedReply<'_> {
    Initiator::new(options, ours, b"", &mut Vec::new()).unwrap().input(reply)
}

/// The negotiated parameters and the Reply of a responder with these options.
fn agreed(options: StartOptions, ours: Depths, request: &[u8]) -> (Negotiated, Vec<u8>) {
    let mut responder = Responder::new(options);
    let asked = responder.input(request);
    assert!(
        matches!(asked, ReceivedRequest::Request { consumed, .. } if consumed == request.len()),
        "{asked:?}"
    );
    let mut out = Vec::new();
    let negotiated = responder.accept(ours, b"", &mut out).unwrap();
    (negotiated, out)
}

fn failed(answer: ReceivedReply<'_>) -> (NegotiationError, bool) {
    match answer {
        ReceivedReply::Failed { why, terminate } => (why, terminate.is_some()),
        other => panic!("{other:?}"),
    }
}

fn accepted(answer: ReceivedReply<'_>) -> Negotiated {
    match answer {
        ReceivedReply::Accepted { negotiated, .. } => negotiated,
        other => panic!("{other:?}"),
    }
}

#[test]
fn m1_the_own_roles_key_is_sent_and_only_the_others_taken() {
    let mut out = Vec::new();
    let initiator = Initiator::new(StartOptions::default(), NONE, b"", &mut out).unwrap();
    assert_eq!(out[..16], *b"MPA ID Req Frame");
    assert_eq!(agreed(PLAIN, NONE, &request(0, 1, b"")).1[..16], *b"MPA ID Rep Frame");
    // Two initiators, two responders, and bytes that are no frame.
    assert_eq!(failed(initiator.input(&out)), (NegotiationError::Role, false));
    let mut responder = Responder::new(PLAIN);
    assert_eq!(responder.input(&reply(0, 1, b"")), ReceivedRequest::Failed(NegotiationError::Role));
    let other = NegotiationError::Malformed(Malformed::Key);
    assert_eq!(Responder::new(PLAIN).input(b"GET / HTTP/1.1"), ReceivedRequest::Failed(other));
    assert_eq!(failed(initiator.input(b"HTTP/1.1 400")), (other, false));
    assert_eq!(other.code(), 4);
}

#[test]
fn m2_the_responder_waits_for_a_whole_request_however_it_was_cut() {
    let whole = request(0x50, 2, &[0, 1, 0, 1, b'x']);
    let mut responder = Responder::new(StartOptions::default());
    let mut out = Vec::new();
    for end in 0..whole.len() {
        assert_eq!(responder.input(&whole[..end]), ReceivedRequest::More);
        assert_eq!(responder.accept(NONE, b"", &mut out), Err(UsageError::State));
        assert_eq!(responder.reject(NONE, b"", &mut out), Err(UsageError::State));
    }
    assert!(out.is_empty());
    assert!(matches!(responder.input(&whole), ReceivedRequest::Request { private_data: b"x", .. }));
}

#[test]
fn m3_the_responder_waits_for_the_initiators_first_fpdu() {
    assert_eq!(agreed(PLAIN, NONE, &request(0, 1, b"")).0.first, FirstFpdu::Wait);
    assert_eq!(agreed(PLAIN, NONE, &request(0x90, 2, &[0, 1, 0, 1])).0.first, FirstFpdu::Wait);
    let peer_to_peer = agreed(PLAIN, depths(1, 1), &request(0x10, 2, &[0x80, 1, 0xc0, 1])).0;
    let forms = Rtr { write: true, read: true, send: false };
    assert_eq!(peer_to_peer.first, FirstFpdu::WaitFor(forms));
}

#[test]
fn m4_reserved_flags_and_a_requests_r_are_sent_0_and_not_checked() {
    let (negotiated, answer) = agreed(PLAIN, NONE, &request(0x20 | 0x1f, 1, b""));
    assert_eq!((negotiated.revision, answer[16]), (1, 0x40));
    let accepted = accepted(self::answer(PLAIN, NONE, &reply(0x1f, 1, b"")));
    assert_eq!(accepted.depths, NONE);
}

#[test]
fn m5_a_revision_that_cannot_be_served_ends_it() {
    let why = NegotiationError::Malformed(Malformed::Revision);
    for revision in [3, 4, 255] {
        assert_eq!(
            Responder::new(PLAIN).input(&request(0, revision, b"")),
            ReceivedRequest::Failed(why)
        );
        assert_eq!(failed(answer(PLAIN, NONE, &reply(0, revision, b""))), (why, false));
    }
    for revision in 0..3 {
        let (negotiated, answer) =
            agreed(StartOptions::default(), NONE, &request(0, revision, b""));
        assert_eq!((negotiated.revision, answer[17]), (revision, revision));
    }
    // The Reply has the block of RFC 6581 exactly if the Request had it.
    for (asked, came) in [(1, 0), (1, 2), (0, 1), (2, 1)] {
        let options = StartOptions { revision: asked, ..PLAIN };
        assert_eq!(
            failed(answer(options, NONE, &reply(0, came, b""))),
            (NegotiationError::Mismatch, false)
        );
    }
    let none = StartOptions { revision: 3, ..PLAIN };
    assert_eq!(Initiator::new(none, NONE, b"", &mut Vec::new()).err(), Some(UsageError::Revision));
}

#[test]
fn m6_private_data_of_0_and_512_bytes_passes_and_513_fails() {
    let data = vec![3; 513];
    for len in [0, 512] {
        let mut responder = Responder::new(PLAIN);
        let asked = request(0, 1, &data[..len]);
        assert!(matches!(
            responder.input(&asked),
            ReceivedRequest::Request { private_data, .. } if private_data == &data[..len]
        ));
        let mut out = Vec::new();
        // After a refused call the Request is still open.
        assert_eq!(responder.accept(NONE, &data, &mut out), Err(UsageError::PrivateData));
        assert!(out.is_empty());
        responder.accept(NONE, &data[..len], &mut out).unwrap();
        let answer = answer(PLAIN, NONE, &out);
        assert!(matches!(answer, ReceivedReply::Accepted { private_data, consumed, .. }
            if private_data == &data[..len] && consumed == 20 + len));
    }
    let why = NegotiationError::Malformed(Malformed::PrivateData);
    assert_eq!(Responder::new(PLAIN).input(&request(0, 1, &data)), ReceivedRequest::Failed(why));
    assert_eq!(failed(answer(PLAIN, NONE, &reply(0, 1, &data))), (why, false));
    let mut out = Vec::new();
    let long = Initiator::new(StartOptions::default(), NONE, &data[..509], &mut out);
    assert_eq!((long.err(), out.len()), (Some(UsageError::PrivateData), 0));
    Initiator::new(StartOptions::default(), NONE, &data[..508], &mut out).unwrap();
    assert_eq!(out.len(), 532);
}

#[test]
fn m7_a_rejection_ends_the_start_up_and_delivers_private_data() {
    let mut responder = Responder::new(PLAIN);
    let asked = request(0x50, 2, &[0, 4, 0, 4]);
    assert!(matches!(responder.input(&asked), ReceivedRequest::Request { .. }));
    let mut out = Vec::new();
    responder.reject(depths(1, 9), b"no", &mut out).unwrap();
    assert_eq!(out, reply(0x70, 2, &[0, 1, 0, 9, b'n', b'o']));
    assert_eq!(responder.accept(NONE, b"", &mut out), Err(UsageError::State), "it is answered");
    let refused = ReceivedReply::Rejected {
        peer: PeerDepths { ird: Some(1), ord: Some(9) },
        private_data: b"no",
        consumed: 26,
    };
    assert_eq!(answer(StartOptions::default(), depths(4, 4), &out), refused);
    // A responder without RFC 6581 may reject too.
    let old = reply(0x20, 1, b"no");
    let refused =
        ReceivedReply::Rejected { peer: PeerDepths::default(), private_data: b"no", consumed: 22 };
    assert_eq!(answer(StartOptions::default(), depths(4, 4), &old), refused);
}

#[test]
fn m8_crcs_are_requested_by_default() {
    let mut out = Vec::new();
    Initiator::new(StartOptions::default(), NONE, b"", &mut out).unwrap();
    assert_eq!(out[16] & 0xc0, 0x40);
    assert_eq!(agreed(StartOptions::default(), NONE, &request(0, 1, b"")).1[16], 0x40);
}

#[test]
fn m9_m10_crcs_are_used_unless_both_ends_do_without() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let options = StartOptions { crc: ours, ..PLAIN };
        let flags = if theirs { 0x40 } else { 0 };
        let (negotiated, answer) = agreed(options, NONE, &request(flags, 1, b""));
        assert_eq!((negotiated.crc, answer[16] == 0x40), (ours || theirs, ours || theirs));
        let negotiated = accepted(self::answer(options, NONE, &reply(flags, 1, b"")));
        assert_eq!(negotiated.crc, ours || theirs);
    }
}

#[test]
fn m11_markers_are_sent_if_the_peer_wants_them_each_direction_by_itself() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let options = StartOptions { markers: ours, ..PLAIN };
        let flags = if theirs { 0x80 } else { 0 };
        let (negotiated, answer) = agreed(options, NONE, &request(flags, 1, b""));
        assert_eq!((negotiated.markers_in, negotiated.markers_out), (ours, theirs));
        assert_eq!(answer[16] & 0x80 != 0, ours);
        let negotiated = accepted(self::answer(options, NONE, &reply(flags, 1, b"")));
        assert_eq!((negotiated.markers_in, negotiated.markers_out), (ours, theirs));
    }
}

#[test]
fn bytes_behind_a_request_end_it_also_if_they_come_later() {
    let mut asked = request(0x40, 1, b"");
    let mut responder = Responder::new(PLAIN);
    assert!(matches!(responder.input(&asked), ReceivedRequest::Request { .. }));
    assert_eq!(responder.input(b""), ReceivedRequest::More);
    assert_eq!(responder.input(b"x"), ReceivedRequest::Failed(NegotiationError::Early));
    asked.push(0);
    assert_eq!(
        Responder::new(PLAIN).input(&asked),
        ReceivedRequest::Failed(NegotiationError::Early)
    );
}

#[test]
fn e1_an_enhanced_request_gets_an_enhanced_reply_and_a_plain_one_a_plain_one() {
    for (flags, revision, data) in
        [(0, 0, &[][..]), (0, 1, &[]), (0, 2, &[]), (0x10, 2, &[0, 1, 0, 1])]
    {
        let (_, answer) =
            agreed(StartOptions::default(), depths(1, 1), &request(flags, revision, data));
        assert_eq!(
            (answer[16] & 0x10, answer[17], answer.len()),
            (flags, revision, 20 + data.len())
        );
    }
    let (enhanced, plain) = (reply(0x50, 2, &[0; 4]), reply(0x40, 2, &[0; 4]));
    accepted(answer(StartOptions::default(), NONE, &enhanced));
    assert_eq!(
        failed(answer(StartOptions::default(), NONE, &plain)),
        (NegotiationError::Mismatch, false)
    );
    assert_eq!(failed(answer(PLAIN, NONE, &enhanced)), (NegotiationError::Mismatch, false));
    // Before revision 2 there is no peer-to-peer model.
    let options = StartOptions { rtr: Some(Rtr::ALL), ..PLAIN };
    assert_eq!(
        Initiator::new(options, NONE, b"", &mut Vec::new()).err(),
        Some(UsageError::Revision)
    );
}

#[test]
fn e2_the_reply_mirrors_the_model() {
    let (_, answer) =
        agreed(StartOptions::default(), depths(1, 1), &request(0x10, 2, &[0x40, 1, 0xc0, 1]));
    assert_eq!(answer[20..], [0, 1, 0, 1], "client and server: no form");
    let (_, answer) =
        agreed(StartOptions::default(), depths(1, 1), &request(0x10, 2, &[0xc0, 1, 0xc0, 1]));
    assert_eq!(answer[20..], [0xc0, 1, 0xc0, 1]);
    // An initiator ignores kinds that it did not offer.
    let negotiated = accepted(self::answer(StartOptions::default(), depths(1, 1), &answer));
    assert_eq!(negotiated.first, FirstFpdu::Free);
}

#[test]
fn e3_the_reply_names_a_form_even_if_none_is_in_common() {
    for ours in [RtrKind::Send, RtrKind::Write, RtrKind::Read] {
        let options = StartOptions { rtr: Some(Rtr::only(ours)), ..StartOptions::default() };
        for asked in [[0x80, 1, 0, 1], [0xc0, 1, 0, 1], [0x80, 1, 0x80, 1], [0x80, 1, 0x40, 1]] {
            let (negotiated, answer) = agreed(options, depths(1, 1), &request(0x10, 2, &asked));
            let Ok(Some((Start { enhanced: Some(block), .. }, _))) = Start::parse(&answer) else {
                panic!("{answer:?}");
            };
            assert_eq!(block.rtr, Some(Rtr::only(ours)));
            assert_eq!(negotiated.first, FirstFpdu::WaitFor(Rtr::only(ours)));
        }
    }
    // An empty set counts as all kinds.
    let options = StartOptions { rtr: Some(Rtr::default()), ..StartOptions::default() };
    assert_eq!(
        agreed(options, depths(1, 1), &request(0x10, 2, &[0x80, 1, 0, 1])).1[20..],
        [0xc0, 1, 0xc0, 1]
    );
}

#[test]
fn e4_the_initiators_first_fpdu_is_of_a_form_that_both_know() {
    let both = [
        (Rtr::ALL, [0xc0, 4, 0xc0, 4], RtrKind::Write),
        (Rtr::ALL, [0xc0, 4, 0x40, 4], RtrKind::Read),
        (Rtr::ALL, [0xc0, 4, 0, 4], RtrKind::Send),
        (Rtr::only(RtrKind::Read), [0xc0, 4, 0xc0, 4], RtrKind::Read),
        (Rtr { write: false, ..Rtr::ALL }, [0xc0, 4, 0x80, 4], RtrKind::Send),
    ];
    for (ours, block, kind) in both {
        let options = StartOptions { rtr: Some(ours), ..StartOptions::default() };
        let reply = reply(0x50, 2, &block);
        assert_eq!(accepted(answer(options, depths(4, 4), &reply)).first, FirstFpdu::Send(kind));
    }
}

#[test]
fn e4_a_read_as_the_first_frame_has_a_place_to_be_served_from() {
    // The program uses no Reads: take another kind if there is one, otherwise one place.
    let (negotiated, answer) =
        agreed(StartOptions::default(), NONE, &request(0x10, 2, &[0x80, 0, 0xc0, 0]));
    assert_eq!((negotiated.depths.ird, &answer[20..]), (0, &[0x80, 0, 0x80, 0][..]));
    let (negotiated, answer) =
        agreed(StartOptions::default(), NONE, &request(0x10, 2, &[0x80, 0, 0x40, 0]));
    assert_eq!((negotiated.depths.ird, &answer[20..]), (1, &[0x80, 1, 0x40, 0][..]));
}

#[test]
fn e5_no_common_kind_causes_a_terminate() {
    let options = StartOptions { rtr: Some(Rtr::only(RtrKind::Write)), ..StartOptions::default() };
    // No common kind; and a Reply without the peer-to-peer flag.
    for block in [[0x80, 4, 0x40, 4], [0x80, 4, 0, 4], [0, 4, 0x80, 4]] {
        assert_eq!(
            failed(answer(options, depths(4, 4), &reply(0x50, 2, &block))),
            (NegotiationError::Rtr, true)
        );
    }
    assert_eq!(NegotiationError::Rtr.code(), 7);
    let none = StartOptions { rtr: Some(Rtr::default()), ..StartOptions::default() };
    assert_eq!(Initiator::new(none, NONE, b"", &mut Vec::new()).err(), Some(UsageError::Rtr));
}

#[test]
fn e6_neither_end_makes_more_reads_than_the_other_serves() {
    let options = StartOptions::default();
    let (negotiated, answer) = agreed(options, depths(5, 9), &request(0x10, 2, &[0, 2, 0, 3]));
    assert_eq!((negotiated.depths, &answer[20..]), (depths(5, 2), &[0, 5, 0, 2][..]));
    let (negotiated, answer) = agreed(options, depths(1, 1), &request(0x10, 2, &[0, 2, 0, 3]));
    assert_eq!((negotiated.depths, &answer[20..]), (depths(1, 1), &[0, 1, 0, 1][..]));

    let negotiated = accepted(self::answer(options, depths(4, 8), &reply(0x50, 2, &[0, 5, 0, 4])));
    assert_eq!(negotiated.depths, depths(4, 5));
    let too_much = reply(0x50, 2, &[0, 5, 0, 5]);
    let ReceivedReply::Failed { why, terminate: Some(negotiated) } =
        self::answer(options, depths(4, 8), &too_much)
    else {
        panic!("more Reads than we serve");
    };
    assert_eq!((why, why.code(), negotiated.crc), (NegotiationError::Depth, 6, true));
    // No end offers more than its limit.
    let mut out = Vec::new();
    Initiator::new(options, depths(999, 0xffff), b"", &mut out).unwrap();
    assert_eq!(out[20..], [0, 128, 0, 128]);
}

#[test]
fn e7_what_is_not_negotiated_here_is_answered_crosswise_and_changes_nothing() {
    let options = StartOptions::default();
    for (asked, said, ord) in [
        ([0x3f, 0xff, 0, 3], [0, 5, 0x3f, 0xff], 9),
        ([0, 2, 0x3f, 0xff], [0x3f, 0xff, 0, 2], 2),
        ([0x3f, 0xff, 0x3f, 0xff], [0x3f, 0xff, 0x3f, 0xff], 9),
    ] {
        let (negotiated, answer) = agreed(options, depths(5, 9), &request(0x10, 2, &asked));
        assert_eq!((negotiated.depths, &answer[20..]), (depths(5, ord), &said[..]));
    }
    for (said, peer, expected) in [
        ([0x3f, 0xff, 0, 1], (None, Some(1)), depths(4, 8)),
        ([0, 6, 0x3f, 0xff], (Some(6), None), depths(4, 6)),
    ] {
        let reply = reply(0x50, 2, &said);
        let answer = answer(options, depths(4, 8), &reply);
        let ReceivedReply::Accepted { negotiated, peer: heard, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((negotiated.depths, (heard.ird, heard.ord)), (expected, peer));
    }
    // The program gets the peer's depths, even above the local limit.
    let mut responder = Responder::new(options);
    let asked = request(0x10, 2, &[0x01, 0x2c, 0x3f, 0xff]);
    assert!(matches!(
        responder.input(&asked),
        ReceivedRequest::Request { peer: PeerDepths { ird: Some(300), ord: None }, .. }
    ));
}

/// The flags, revision and RFC 6581 block of the Reply that this implementation sends; `None`
/// closes the stream without a Reply.
type OurReply = Option<(u8, u8, &'static [u8])>;

/// This implementation answers each row of the start-up matrix that was tried on Linux's siw as the
/// table states, with siw's answer beside it.
#[test]
fn every_row_of_the_start_up_matrix() {
    let rows: &[(&str, Vec<u8>, OurReply)] = &[
        // The row, the Request, the Reply (flags, revision, block), and siw 6.1's Reply (flags,
        // revision).
        ("rev1 no flags", request(0, 1, b""), Some((0x40, 1, &[]))), // 00, 1
        ("rev1 C", request(0x40, 1, b""), Some((0x40, 1, &[]))),     // 40, 1
        ("rev1 M", request(0x80, 1, b""), Some((0x40, 1, &[]))),     // 20, 1: refused
        ("rev1 C pd5", request(0x40, 1, b"hello"), Some((0x40, 1, &[]))), // 40, 1
        ("rev0", request(0, 0, b""), Some((0x40, 0, &[]))),          // 00, 0
        ("rev2 no S", request(0x40, 2, b""), Some((0x40, 2, &[]))),  // 40, 2
        ("rev2 S", request(0x50, 2, &[0, 2, 0, 3]), Some((0x50, 2, &[0, 16, 0, 2]))), // 50, 2, 3/2
        ("300", request(0x10, 2, &[1, 44, 1, 44]), Some((0x50, 2, &[0, 16, 0, 16]))), // 10, 2
        ("rev2 S no pd", request(0x10, 2, b""), None),               // 30, 2: refused
        ("rev3", request(0, 3, b""), None),                          // closed
        ("bad key", b"MPA ID Rex Frame\0\x01\0\0".to_vec(), None),   // closed
        ("pd 252", request(0, 1, &[1; 252]), Some((0x40, 1, &[]))),  // 00, 1
        ("pd 255", request(0, 1, &[1; 255]), Some((0x40, 1, &[]))),  // 00, 1
        ("pd 256", request(0, 1, &[1; 256]), Some((0x40, 1, &[]))),  // 00, 1
        ("pd 257", request(0, 1, &[1; 257]), Some((0x40, 1, &[]))),  // reset
        ("pd 512", request(0, 1, &[1; 512]), Some((0x40, 1, &[]))),  // reset
        ("pd 513", request(0, 1, &[1; 513]), None),                  // reset
        ("extra bytes", [request(0, 1, b""), vec![0; 4]].concat(), None), // closed
        ("reserved 0x0f", request(0x0f, 1, b""), Some((0x40, 1, &[]))), // 0f, 1
    ];
    for (row, request, expected) in rows {
        let mut responder = Responder::new(StartOptions::default());
        let mut out = Vec::new();
        match (responder.input(request), expected) {
            (ReceivedRequest::Request { .. }, Some((flags, revision, block))) => {
                responder.accept(depths(16, 16), b"", &mut out).unwrap();
                assert_eq!(out, reply(*flags, *revision, block), "{row}");
            }
            (ReceivedRequest::Failed(_), None) => {}
            (other, _) => panic!("{row}: {other:?}"),
        }
    }
}

fn options() -> impl Strategy<Value = (StartOptions, Depths)> {
    let rtr = any::<Option<[bool; 3]>>();
    (any::<bool>(), any::<bool>(), rtr, 0..140u16, 0..140u16).prop_map(
        |(crc, markers, rtr, ird, ord)| {
            let rtr = rtr.map(|[send, write, read]| Rtr { send, write, read });
            (StartOptions { crc, markers, revision: 2, rtr }, depths(ird, ord))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// With any options both ends of a start-up derive the same parameters, or fail for a reason in
    /// their options.
    #[test]
    fn both_ends_agree(
        (a, a_depths) in options(),
        (b, b_depths) in options(),
        revision in 0..=2u8,
    ) {
        let rtr = a.rtr.filter(|rtr| revision == 2 && !rtr.is_empty());
        let a = StartOptions { revision, rtr, ..a };
        let (mut asked, mut said) = (Vec::new(), Vec::new());
        let initiator = Initiator::new(a, a_depths, b"a", &mut asked).unwrap();
        let mut responder = Responder::new(b);
        let received = responder.input(&asked);
        let heard = matches!(received, ReceivedRequest::Request { private_data: b"a", .. });
        prop_assert!(heard);
        let theirs = responder.accept(b_depths, b"b", &mut said).unwrap();
        for end in 0..said.len() {
            prop_assert_eq!(initiator.input(&said[..end]), ReceivedReply::More);
        }
        let ours = match initiator.input(&said) {
            ReceivedReply::Accepted { negotiated, private_data: b"b", .. } => negotiated,
            ReceivedReply::Failed { why: NegotiationError::Rtr, terminate: Some(_) } => {
                let forms = b.rtr.filter(|rtr| !rtr.is_empty()).unwrap_or(Rtr::ALL);
                prop_assert!(a.rtr.is_some_and(|rtr| rtr.and(forms).is_empty()));
                return Ok(());
            }
            other => return Err(TestCaseError::fail(alloc::format!("{other:?}"))),
        };
        prop_assert_eq!((ours.crc, ours.revision), (theirs.crc, theirs.revision));
        prop_assert_eq!(ours.markers_in, theirs.markers_out);
        prop_assert_eq!(ours.markers_out, theirs.markers_in);
        match (ours.first, theirs.first) {
            (FirstFpdu::Free, FirstFpdu::Wait) => prop_assert!(a.rtr.is_none()),
            (FirstFpdu::Send(form), FirstFpdu::WaitFor(forms)) => {
                prop_assert!(forms.contains(form) && a.rtr.is_some_and(|rtr| rtr.contains(form)));
                prop_assert!(form != RtrKind::Read || theirs.depths.ird > 0);
            }
            other => return Err(TestCaseError::fail(alloc::format!("{other:?}"))),
        }
        if revision == 2 {
            prop_assert!(ours.depths.ord <= theirs.depths.ird);
            prop_assert!(theirs.depths.ord <= ours.depths.ird);
        }
        prop_assert!(ours.depths.ird <= a_depths.ird && ours.depths.ord <= a_depths.ord);
        prop_assert!(theirs.depths.ird <= b_depths.ird.max(1) && theirs.depths.ord <= b_depths.ord);
    }
}
