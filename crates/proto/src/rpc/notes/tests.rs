mod talk;

use alloc::collections::VecDeque;

use super::*;
use crate::Rng;

#[test]
fn notes_golden() {
    let note = Note { kind: Kind::Announcement, granted: 0x0102, finished: 3 };
    assert_eq!(note.octets(), [2, 0, 1, 2, 0, 3, 0, 0]);
    let place = Place { tag: 0x0102_0304, address: 0x1122_3344_5566_7788 };
    let octets = place.octets();
    assert_eq!(octets, [1, 2, 3, 4, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    let send = [&note.octets()[..], &octets, b"head"].concat();
    let (parsed, rest) = Note::parse(&send).unwrap();
    assert_eq!(parsed, note);
    assert_eq!(Place::parse(rest), Ok((place, &b"head"[..])));
    let hello = Hello { receives: 16, octets: 16_384 };
    assert_eq!(&hello.octets(), b"SPRT\x01\0\0\x10\0\0\x40\0");
    assert_eq!(Hello::parse(&hello.octets()), Ok(hello));
}

#[test]
fn what_is_no_note_is_refused() {
    for kind in 0..=255 {
        let send = [kind, 0, 0, 1, 0, 0, 0, 0, 9];
        assert_eq!(
            Note::parse(&send).is_ok(),
            kind == 1 || kind == 2,
            "kind {kind} with something behind it"
        );
        assert_eq!(Note::parse(&send[..8]).is_ok(), kind == 0, "kind {kind} alone");
    }
    for at in [1, 6, 7] {
        let mut send = [1, 0, 0, 1, 0, 0, 0, 0, 9];
        send[at] = 1;
        assert_eq!(Note::parse(&send), Err(Bad), "octet {at} is not zero");
    }
    let whole = Place { tag: 1, address: 2 }.octets();
    for len in 0..whole.len() {
        assert_eq!(Place::parse(&whole[..len]), Err(Bad));
        assert!(len >= HEADER || Note::parse(&[0; HEADER][..len]).is_err());
    }
}

#[test]
fn strangers_are_told_from_other_versions() {
    let hello = Hello { receives: 16, octets: 16_384 }.octets();
    for len in 0..HELLO {
        assert_eq!(Hello::parse(&hello[..len]), Err(Stranger::Other), "{len} octets");
    }
    let changed = |at: usize, to: u8| {
        let mut other = hello;
        other[at] = to;
        Hello::parse(&other)
    };
    assert_eq!(changed(4, 2), Err(Stranger::Version));
    assert_eq!(changed(0, b'X'), Err(Stranger::Other));
    assert_eq!(changed(7, 3), Err(Stranger::Other), "too few receives to grant any");
    assert_eq!(changed(10, 0), Err(Stranger::Other), "a receive that nothing fits into");
}

#[test]
fn nobody_grants_more_than_there_is() {
    let mut credits = Credits::new(16);
    assert_eq!(credits.granted(1), Err(Bad), "before the hello");
    credits.open(4);
    assert_eq!(credits.granted(1), Err(Bad));
    credits.spend();
    assert_eq!(credits.granted(1), Ok(()));
    assert_eq!(credits.granted(u16::MAX), Err(Bad));
}

#[test]
fn nobody_sends_more_than_was_granted() {
    let mut credits = Credits::new(4);
    credits.open(4);
    for _ in 0..4 {
        assert_eq!(credits.posted(), Ok(()));
    }
    assert_eq!(credits.posted(), Err(Bad), "it knows of no more");
    assert_eq!(credits.spend(), 4);
    assert_eq!(credits.posted(), Ok(()));
}

/// Two sides that say as much as they may, in any order of events: no Send ever finds no receive,
/// and they never stop.
#[test]
fn every_send_finds_a_receive_and_nobody_waits_for_ever() {
    for seed in 0..300 {
        let mut rng = Rng::seeded(seed);
        let receives = [4 + rng.below(13) as u16, 4 + rng.below(13) as u16];
        let mut credits = [Credits::new(receives[0]), Credits::new(receives[1])];
        credits[0].open(receives[1]);
        credits[1].open(receives[0]);
        let mut posted = receives;
        // What each has sent and the other has not seen: what it grants, and whether it says
        // anything.
        let mut flying = [VecDeque::new(), VecDeque::new()];
        let (mut to_say, mut heard) = ([200_u32; 2], [0; 2]);
        while to_say != [0; 2] || flying.iter().any(|f| !f.is_empty()) {
            let (me, act) = (rng.below(2) as usize, rng.below(2));
            let other = 1 - me;
            let says = to_say[me] > 0 && credits[me].may_send();
            if act == 0 && (says || credits[me].must_tell()) {
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
                    |i: usize| to_say[i] > 0 && !credits[i].may_send() && !credits[i].must_tell();
                let still = flying.iter().all(VecDeque::is_empty);
                let nobody = (0..2).all(|i| to_say[i] == 0 || stuck(i))
                    && !(0..2).any(|i| credits[i].must_tell());
                assert!(
                    !(still && nobody && to_say != [0; 2]),
                    "seed {seed}: both wait: {credits:?}"
                );
            }
        }
        assert_eq!(heard, [200; 2]);
    }
}
