//! Tests of immediate data, of atomics, and of responses without a request.

use super::peer::{Peer, tagged, untagged};
use super::*;
use crate::wire::rdmap::{AtomicOp, AtomicRequest, AtomicResponse, Cause, Opcode};

#[test]
fn a1_immediate_data_takes_a_receive_in_order_with_sends() {
    for setup in setups() {
        let mut pair = Pair::connected(&setup);
        let mine = pair.a.region(pattern(3000, 1), 0);
        let theirs = pair.b.region(vec![0; 3000], 0);
        let inbox = pair.b.region(vec![0; 64], 0);
        for id in 0..5 {
            pair.b.recv(id, &[(inbox, 8 * id, 8)]);
        }
        pair.a.post(1, SendOp::Send, &[(mine, 0, 8)]);
        pair.a.post(2, SendOp::Immediate(0x0102_0304_0506_0708), &[]);
        let to = Remote { stag: theirs, addr: 0 };
        pair.a.post(3, SendOp::WriteImmediate(to, 42), &[(mine, 0, 3000)]);
        pair.a.post(4, SendOp::WriteImmediate(to, 43), &[]);
        pair.a.post(5, SendOp::Send, &[]);
        pair.run();
        let got: Vec<_> = core::iter::from_fn(|| pair.b.poll()).collect();
        let got: Vec<_> = got.iter().map(|c| (c.id, c.completed, c.immediate, c.len)).collect();
        let with = Completed::RecvImmediate;
        assert_eq!(
            got,
            [
                (0, Completed::Recv, None, 8),
                (1, with, Some(0x0102_0304_0506_0708), 0),
                (2, with, Some(42), 3000),
                (3, with, Some(43), 0),
                (4, Completed::Recv, None, 0),
            ]
        );
        assert_eq!(pair.b.ram.0[0], pattern(3000, 1));
        assert_eq!(pair.a.done().len(), 5);
    }
    for len in [0, 4, 7, 9, 200] {
        let mut peer = Peer::new();
        peer.recv(1, 16);
        peer.say(untagged(Opcode::Immediate, 1, 0, true), &[0; 200][..len]);
        assert_eq!(peer.cause(), Cause::OPERATION);
        assert_eq!(peer.us().done(), [(1, Status::Flushed)]);
    }
    let mut peer = Peer::new();
    peer.say(untagged(Opcode::Immediate, 1, 0, true), &[0; 8]);
    assert_eq!(peer.cause(), Cause::UNTAGGED_NO_BUFFER);
}

#[test]
fn a2_a4_atomics_give_back_what_was_there() {
    for setup in setups() {
        let mut pair = Pair::connected(&setup);
        let old = pair.a.region(vec![0; 64], 0);
        let stag = pair.b.region(vec![0; 64], 0x4000);
        let to = Remote { stag, addr: 0x4008 };
        let full = u64::MAX;
        pair.a.post(1, SendOp::FetchAdd { to, add: 7, mask: 0 }, &[(old, 0, 8)]);
        let swap = |compare, swap| SendOp::CompareSwap {
            to,
            compare,
            compare_mask: full,
            swap,
            swap_mask: full,
        };
        pair.a.post(2, swap(7, 1000), &[(old, 8, 8)]);
        pair.a.post(3, swap(7, 2000), &[(old, 16, 8)]);
        pair.a.post(4, SendOp::FetchAdd { to, add: full, mask: 0 }, &[(old, 24, 8)]);
        // With two fields of 32 bits no carry goes from the lower to the upper.
        pair.a.post(
            5,
            SendOp::FetchAdd { to, add: 0xffff_ffff, mask: 1 << 31 | 1 << 63 },
            &[(old, 32, 8)],
        );
        let masked =
            SendOp::CompareSwap { to, compare: 2, compare_mask: 2, swap: full, swap_mask: 0xff00 };
        pair.a.post(6, masked, &[(old, 40, 8)]);
        pair.run();
        let word = |ram: &Ram, at: usize| {
            #[expect(clippy::host_endian_bytes, reason = "a number of the program's")]
            u64::from_ne_bytes(ram.0[0][at..at + 8].try_into().unwrap())
        };
        let olds: Vec<_> = (0..6).map(|i| word(&pair.a.ram, i * 8)).collect();
        assert_eq!(olds, [0, 7, 1000, 1000, 999, 998], "{setup:?}");
        assert_eq!(word(&pair.b.ram, 8), 998 | 0xff00);
        let done: Vec<_> =
            core::iter::from_fn(|| pair.a.poll()).map(|c| (c.id, c.completed, c.len)).collect();
        let (add, swap) = (Completed::FetchAdd, Completed::CompareSwap);
        assert_eq!(
            done,
            [(1, add, 8), (2, swap, 8), (3, swap, 8), (4, add, 8), (5, add, 8), (6, swap, 8)]
        );
        assert_eq!(pair.b.poll(), None);
    }
}

#[test]
fn a3_a_word_that_is_not_aligned_stays_as_it_is() {
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    for (base, to) in [(0x1000, 0x1004), (0x1001, 0x1008)] {
        let mut peer = Peer::new();
        let us = &mut peer.pair.b;
        let stag = us.rnic.register(us.pd, 0, base, 256, ALL).unwrap();
        let request = AtomicRequest { id: 1, stag: stag.0, to, op };
        let header = untagged(Opcode::AtomicRequest, 1, 0, true);
        peer.say(header, &request.emit());
        let terminate = peer.terminated();
        assert_eq!(terminate.cause, Cause::STREAM);
        let about = terminate.about.unwrap();
        assert_eq!((about.header, about.read), (header.emit(), None));
        peer.untouched();
    }
}

#[test]
fn a4_other_atomic_operations_and_wrong_words_are_errors() {
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let mut peer = Peer::new();
    let mut payload = AtomicRequest { id: 1, stag: peer.stag.0, to: 0x1000, op }.emit();
    payload[3] = 1;
    peer.say(untagged(Opcode::AtomicRequest, 1, 0, true), &payload);
    assert_eq!(peer.cause(), Cause::OPCODE);
    peer.untouched();
    for (case, cause) in
        [("right", Cause::ACCESS), ("bounds", Cause::BOUNDS), ("tag", Cause::INVALID_STAG)]
    {
        let mut peer = Peer::new();
        let us = &mut peer.pair.b;
        let access = Access { remote_atomic: case != "right", ..ALL };
        let stag = us.rnic.register(us.pd, 0, 0x1000, 256, access).unwrap();
        let stag = if case == "tag" { stag.0 ^ 1 } else { stag.0 };
        let to = if case == "bounds" { 0x1100 } else { 0x1000 };
        let request = AtomicRequest { id: 1, stag, to, op };
        peer.say(untagged(Opcode::AtomicRequest, 1, 0, true), &request.emit());
        assert_eq!(peer.cause(), cause);
        peer.untouched();
    }
}

#[test]
fn responses_without_a_request_are_errors() {
    // A Read Response without a Read.
    let mut peer = Peer::new();
    let stag = peer.stag;
    peer.say(tagged(Opcode::ReadResponse, stag, 0x1000, true), b"abcd");
    assert_eq!(peer.cause(), Cause::OPCODE);
    peer.untouched();
    for (case, cause) in [
        ("tag", Cause::TAGGED_STAG),
        ("below", Cause::TAGGED_BOUNDS),
        ("long", Cause::TAGGED_BOUNDS),
        ("short", Cause::OPERATION),
        ("atomic", Cause::OPCODE),
    ] {
        let mut peer = Peer::new();
        let stag = peer.stag;
        let remote = Remote { stag: Stag(5), addr: 5 };
        peer.us().post(1, SendOp::Read(remote), &[(stag, 0x1010, 16)]);
        assert_eq!(peer.hear().len(), 1);
        match case {
            "tag" => {
                peer.say(tagged(Opcode::ReadResponse, Stag(stag.0 ^ 1), 0x1010, true), &[1; 16])
            }
            "below" => peer.say(tagged(Opcode::ReadResponse, stag, 0x100f, true), &[1; 16]),
            "long" => peer.say(tagged(Opcode::ReadResponse, stag, 0x1010, true), &[1; 17]),
            "short" => peer.say(tagged(Opcode::ReadResponse, stag, 0x1010, true), &[0xee; 15]),
            _ => {
                let response = AtomicResponse { id: 1, was: 0 };
                peer.say(untagged(Opcode::AtomicResponse, 1, 0, true), &response.emit());
            }
        }
        assert_eq!(peer.cause(), cause, "{case}");
        peer.untouched();
        assert_eq!(peer.us().done(), [(1, Status::Flushed)]);
    }
}
