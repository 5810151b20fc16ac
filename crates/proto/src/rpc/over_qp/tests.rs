mod two_sides;

use alloc::collections::VecDeque;

use super::*;
use crate::Rng;

#[test]
fn golden_bytes() {
    let header = SendHeader { kind: SendKind::Rendezvous, granted: 0x0102, finished: 3 };
    assert_eq!(header.to_bytes(), [2, 0, 1, 2, 0, 3, 0, 0]);
    let place = Location { stag: 0x0102_0304, address: 0x1122_3344_5566_7788 };
    let bytes = place.to_bytes();
    assert_eq!(bytes, [1, 2, 3, 4, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    let send = [&header.to_bytes()[..], &bytes, b"head"].concat();
    let (parsed, rest) = SendHeader::parse(&send).unwrap();
    assert_eq!(parsed, header);
    assert_eq!(Location::parse(rest), Ok((place, &b"head"[..])));
    let hello = Hello { receives: 16, receive_bytes: 16_384 };
    assert_eq!(&hello.to_bytes(), b"SPRT\x01\0\0\x10\0\0\x40\0");
    assert_eq!(Hello::parse(&hello.to_bytes()), Ok(hello));
}

#[test]
fn a_send_with_a_bad_header_is_refused() {
    for kind in 0..=255 {
        let send = [kind, 0, 0, 1, 0, 0, 0, 0, 9];
        assert_eq!(
            SendHeader::parse(&send).is_ok(),
            kind == 1 || kind == 2,
            "kind {kind} with something behind it"
        );
        assert_eq!(SendHeader::parse(&send[..8]).is_ok(), kind == 0, "kind {kind} alone");
    }
    for at in [1, 6, 7] {
        let mut send = [1, 0, 0, 1, 0, 0, 0, 0, 9];
        send[at] = 1;
        assert_eq!(SendHeader::parse(&send), Err(Violation), "byte {at} is not zero");
    }
    let whole = Location { stag: 1, address: 2 }.to_bytes();
    for len in 0..whole.len() {
        assert_eq!(Location::parse(&whole[..len]), Err(Violation));
        assert!(len >= HEADER || SendHeader::parse(&[0; HEADER][..len]).is_err());
    }
}

#[test]
fn another_protocol_differs_from_another_version() {
    let hello = Hello { receives: 16, receive_bytes: 16_384 }.to_bytes();
    for len in 0..HELLO {
        assert_eq!(Hello::parse(&hello[..len]), Err(HelloError::Invalid), "{len} bytes");
    }
    let changed = |at: usize, to: u8| {
        let mut other = hello;
        other[at] = to;
        Hello::parse(&other)
    };
    assert_eq!(changed(4, 2), Err(HelloError::Version));
    assert_eq!(changed(0, b'X'), Err(HelloError::Invalid));
    assert_eq!(changed(7, 3), Err(HelloError::Invalid), "too few receives to grant any");
    assert_eq!(changed(10, 0), Err(HelloError::Invalid), "a receive that nothing fits into");
}

#[test]
fn a_side_cannot_grant_more_receives_than_it_has() {
    let mut credits = Credits::new(16);
    assert_eq!(credits.granted(1), Err(Violation), "before the hello");
    credits.open(4);
    assert_eq!(credits.granted(1), Err(Violation));
    credits.spend();
    assert_eq!(credits.granted(1), Ok(()));
    assert_eq!(credits.granted(u16::MAX), Err(Violation));
}

#[test]
fn a_side_cannot_send_more_than_was_granted() {
    let mut credits = Credits::new(4);
    credits.open(4);
    for _ in 0..4 {
        assert_eq!(credits.posted(), Ok(()));
    }
    assert_eq!(credits.posted(), Err(Violation), "it knows of no more");
    assert_eq!(credits.spend(), 4);
    assert_eq!(credits.posted(), Ok(()));
}

/// Two sides send Sends as their credits allow, in random order: every Send finds a receive, and
/// the two sides never both wait for credits.
#[test]
fn every_send_finds_a_receive_and_the_sides_never_both_wait() {
    for seed in 0..300 {
        let mut rng = Rng::seeded(seed);
        let receives = [4 + rng.below(13) as u16, 4 + rng.below(13) as u16];
        let mut credits = [Credits::new(receives[0]), Credits::new(receives[1])];
        credits[0].open(receives[1]);
        credits[1].open(receives[0]);
        let mut posted = receives;
        // Sends on their way to each side: the credits granted, and true if frames follow.
        let mut flying = [VecDeque::new(), VecDeque::new()];
        let (mut to_say, mut heard) = ([200_u32; 2], [0; 2]);
        while to_say != [0; 2] || flying.iter().any(|f| !f.is_empty()) {
            let (me, act) = (rng.below(2) as usize, rng.below(2));
            let other = 1 - me;
            let says = to_say[me] > 0 && credits[me].may_send();
            if act == 0 && (says || credits[me].must_grant()) {
                to_say[me] -= u32::from(says);
                flying[me].push_back((credits[me].spend(), says));
                assert!(
                    flying[me].len() <= usize::from(posted[other]),
                    "seed {seed}: no receive for this"
                );
            } else if let Some((granted, says)) = flying[other].pop_front() {
                heard[me] += u32::from(says);
                posted[me] -= 1;
                credits[me].granted(granted).unwrap();
                posted[me] += 1;
                credits[me].posted().unwrap();
            } else {
                let stuck =
                    |i: usize| to_say[i] > 0 && !credits[i].may_send() && !credits[i].must_grant();
                let still = flying.iter().all(VecDeque::is_empty);
                let none = (0..2).all(|i| to_say[i] == 0 || stuck(i))
                    && !(0..2).any(|i| credits[i].must_grant());
                assert!(
                    !(still && none && to_say != [0; 2]),
                    "seed {seed}: both wait: {credits:?}"
                );
            }
        }
        assert_eq!(heard, [200; 2]);
    }
}
