//! Tests of MPA: start-up frames against the RFCs' bytes and a capture of Linux's siw, and the
//! lengths of FPDUs against counting.

use alloc::vec;
use alloc::vec::Vec;

use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use super::*;

fn emitted(start: &Start<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    start.emit(&mut out).unwrap();
    out
}

fn plain(private_data: &[u8]) -> Start<'_> {
    Start {
        kind: Kind::Request,
        markers: false,
        crc: true,
        reject: false,
        revision: 1,
        enhanced: None,
        private_data,
    }
}

#[test]
fn golden_bytes() {
    assert_eq!(emitted(&plain(b"hi")), b"MPA ID Req Frame\x40\x01\x00\x02hi");
    let all = Start {
        kind: Kind::Reply,
        markers: true,
        crc: true,
        reject: true,
        revision: 2,
        enhanced: Some(Enhanced { rtr: Some(Rtr::ALL), ird: 0x0102, ord: 0x3ffe }),
        private_data: b"hi",
    };
    assert_eq!(emitted(&all), b"MPA ID Rep Frame\xf0\x02\x00\x06\xc1\x02\xff\xfehi");
    assert_eq!(Start::parse(&emitted(&all)), Ok(Some((all, 26))));
}

#[test]
fn frames_of_siw() {
    let request = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x80\x00\x80";
    let start = Start {
        crc: false,
        revision: 2,
        enhanced: Some(Enhanced { rtr: None, ird: 128, ord: 128 }),
        ..plain(&[])
    };
    assert_eq!(Start::parse(request), Ok(Some((start, 24))));
    assert_eq!(emitted(&start), request);
}

#[test]
fn m1_a_wrong_key_shows_at_its_first_wrong_byte() {
    for kind in [Kind::Request, Kind::Reply] {
        let key = kind.key();
        for len in 0..16 {
            assert_eq!(Start::parse(&key[..len]), Ok(None));
            let mut wrong = key[..=len].to_vec();
            wrong[len] ^= 0x80;
            assert_eq!(Start::parse(&wrong), Err(Malformed::Key), "{len}");
        }
    }
}

#[test]
fn m4_reserved_flags_and_a_requests_r_are_ignored() {
    let mut request = emitted(&plain(b""));
    request[16] |= 0x3f;
    assert_eq!(Start::parse(&request), Ok(Some((plain(b""), 20))), "S is reserved in revision 1");
    let enhanced = Some(Enhanced::default());
    let second = Start { revision: 2, enhanced, ..plain(b"") };
    let mut request = emitted(&second);
    request[16] |= 0x2f;
    assert_eq!(Start::parse(&request), Ok(Some((second, 24))));
    // They are sent as 0.
    assert_eq!(emitted(&Start { reject: true, ..second })[16], 0x50);
}

#[test]
fn m5_revisions_up_to_2() {
    for revision in 0..=255 {
        let mut request = emitted(&plain(b""));
        request[17] = revision;
        let parsed = Start::parse(&request);
        if revision <= 2 {
            assert_eq!(parsed, Ok(Some((Start { revision, ..plain(b"") }, 20))));
        } else {
            assert_eq!(parsed, Err(Malformed::Revision));
        }
    }
    let mut out = Vec::new();
    assert_eq!(Start { revision: 3, ..plain(b"") }.emit(&mut out), Err(Malformed::Revision));
    let enhanced = Some(Enhanced::default());
    assert_eq!(Start { enhanced, ..plain(b"") }.emit(&mut out), Err(Malformed::Revision));
    assert!(out.is_empty());
}

#[test]
fn m6_private_data_up_to_512_bytes() {
    let data = vec![7; 513];
    for len in [0, 1, 511, 512] {
        let frame = emitted(&plain(&data[..len]));
        assert_eq!(Start::parse(&frame), Ok(Some((plain(&data[..len]), 20 + len))));
        assert_eq!(Start::parse(&frame[..19 + len]), Ok(None));
    }
    let mut out = Vec::new();
    assert_eq!(plain(&data).emit(&mut out), Err(Malformed::PrivateData));
    let enhanced = Some(Enhanced::default());
    let second = Start { revision: 2, enhanced, ..plain(&data[..508]) };
    assert_eq!(emitted(&second).len(), 20 + 512);
    assert_eq!(
        Start { private_data: &data[..509], ..second }.emit(&mut out),
        Err(Malformed::PrivateData)
    );
    assert!(out.is_empty());
    // A length of 513 shows before the data arrives.
    let mut frame = emitted(&plain(b""));
    (frame[18], frame[19]) = (2, 1);
    assert_eq!(Start::parse(&frame), Err(Malformed::PrivateData));
}

#[test]
fn e2_flags_without_peer_to_peer_are_neither_sent_nor_read() {
    let none = Enhanced { rtr: None, ird: 1, ord: 2 };
    assert_eq!(none.emit(), [0, 1, 0, 2]);
    assert_eq!(Enhanced::parse([0x40, 1, 0xc0, 2]), none);
}

#[test]
fn an_announced_block_of_rfc_6581_must_be_present() {
    for len in 0..4 {
        let mut frame = emitted(&plain(&[0; 4][..len]));
        (frame[16], frame[17]) = (0x10, 2);
        assert_eq!(Start::parse(&frame), Err(Malformed::Enhanced));
    }
}

#[test]
fn bytes_after_a_frame_are_left() {
    let frame = [emitted(&plain(b"abc")), vec![9; 40]].concat();
    assert_eq!(Start::parse(&frame), Ok(Some((plain(b"abc"), 23))));
}

#[test]
fn f1_an_fpdu_is_whole_words() {
    let lengths = [(14, 20), (17, 24), (18, 24), (42, 48), (1_442, 1_448), (65_535, 65_544)];
    for (ulpdu, fpdu) in lengths {
        assert_eq!(fpdu_len(ulpdu), fpdu);
    }
}

#[test]
fn f13_the_formulas_of_section_4_5() {
    for (emss, without, with) in
        [(1_460, 1_454, 1_442), (1_448, 1_442, 1_430), (8_961, 8_954, 8_882)]
    {
        assert_eq!((mulpdu(emss, false), mulpdu(emss, true)), (without, with), "{emss}");
    }
    // A ULPDU of this size fits the segment wherever its first marker is.
    for emss in (160..3_000).chain(64_000..64_700) {
        assert!(fpdu_len(mulpdu(emss, false)) <= emss);
        let len = fpdu_len(mulpdu(emss, true));
        let most = (0..=BETWEEN).step_by(4).map(|to| markers(to, len)).max().unwrap();
        assert!(len + MARKER * most <= emss, "{emss}");
    }
}

#[test]
fn f14_the_mulpdu_stays_within_128_and_64768() {
    for markers in [false, true] {
        for emss in [0, 1, 5, 6, 7, 100, 127, 128, 134] {
            assert_eq!(mulpdu(emss, markers), 128, "{emss}");
        }
        for emss in [65_495 + 512, 100_000, usize::MAX] {
            assert_eq!(mulpdu(emss, markers), 64_768);
        }
    }
}

#[test]
fn markers_agree_with_counting() {
    for to_marker in (0..=BETWEEN).step_by(4) {
        for words in 1..400 {
            let (mut to, mut count) = (to_marker, 0);
            for _ in 0..words {
                if to == 0 {
                    (to, count) = (BETWEEN, count + 1);
                }
                to -= 4;
            }
            assert_eq!(markers(to_marker, 4 * words), count);
            assert_eq!(to_marker_after(to_marker, 4 * words), to);
        }
    }
    assert_eq!(FPDU_MAX, 65_544 + 4 * 130);
}

#[test]
fn the_cheapest_form_is_a_write_then_a_read() {
    assert_eq!(Rtr::ALL.cheapest(), Some(RtrKind::Write));
    assert_eq!(Rtr { write: false, ..Rtr::ALL }.cheapest(), Some(RtrKind::Read));
    assert_eq!(Rtr::default().cheapest(), None);
    for kind in [RtrKind::Send, RtrKind::Write, RtrKind::Read] {
        assert_eq!(Rtr::only(kind).cheapest(), Some(kind));
        assert!(Rtr::ALL.contains(kind) && !Rtr::default().contains(kind));
        assert!(Rtr::ALL.and(Rtr::only(kind)) == Rtr::only(kind) && !Rtr::only(kind).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Every MPA start-up frame parses as it was emitted, and the parser asks for more bytes after
    /// every proper prefix of it.
    #[test]
    fn frames_survive_the_wire(
        bits in any::<[bool; 8]>(),
        revision in 0..=2u8,
        (ird, ord) in (0..=UNSAID, 0..=UNSAID),
        private_data in vec_of(any::<u8>(), 0..=508),
        tail in vec_of(any::<u8>(), 0..20),
    ) {
        let [request, markers, crc, reject, enhanced, send, write, read] = bits;
        let rtr = (send || write).then_some(Rtr { send, write, read });
        let enhanced = (enhanced && revision == 2).then_some(Enhanced { rtr, ird, ord });
        let kind = if request { Kind::Request } else { Kind::Reply };
        let reject = reject && !request;
        let private_data = &private_data[..];
        let start = Start { kind, markers, crc, reject, revision, enhanced, private_data };
        let mut frame = emitted(&start);
        let len = frame.len();
        for end in 0..len {
            prop_assert_eq!(Start::parse(&frame[..end]), Ok(None));
        }
        frame.extend(tail);
        prop_assert_eq!(Start::parse(&frame), Ok(Some((start, len))));
    }
}
