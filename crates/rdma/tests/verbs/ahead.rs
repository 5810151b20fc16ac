//! Tests of frames that are lost or arrive late: payload behind them is placed at once, and
//! delivered in its turn.

use std::sync::{Arc, Mutex};

use sprat_proto::Rng;

use super::*;

/// The bytes of a frame before its TCP header.
const BEFORE_TCP: usize = 14 + 20;
/// The least length of a frame with a segment of the stream that carries a long message.
const LONG: usize = 1000;

fn options() -> Options {
    Options { markers: true, threading: Threading::Caller, ..Options::default() }
}

/// The sequence number of a frame's segment.
fn sequence(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[BEFORE_TCP + 4..BEFORE_TCP + 8].try_into().unwrap())
}

/// Makes progress on both sides until `done`.
fn until(sides: &[Side; 2], what: &str, mut done: impl FnMut() -> bool) {
    let begin = now();
    while !done() {
        sides.iter().for_each(|side| _ = side.device.progress());
        assert!(now().since(begin) < 20_000_000_000, "{what}");
    }
}

/// One frame of a long Write is late, and what is sent in its place is lost. The program sees the
/// bytes behind it in its memory, and no completion. When the frame arrives, the Write and the Send
/// behind it are delivered, and no byte is placed twice.
#[test]
fn bytes_behind_a_missing_frame_are_in_memory_before_it() {
    const LEN: usize = 30_000;
    let (devices, [there, _]) = wire::wired(options());
    let sides = devices.map(|device| Side::of(&device, LEN));
    let [a, b] = &sides;
    connect(a, b, depths());
    let pattern: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8 + 1).collect();
    a.memory.write(0, &pattern).unwrap();
    let inbox = b.domain.register(64, Access::ALL).unwrap();
    // The peer's first segment tells its kind.
    b.pair.post_recv(RecvRequest::new(1, inbox.sge(0..64))).unwrap();
    a.send(1, SendOp::Send, 0..8);
    until(&sides, "a first message", || b.queue.poll().is_some());
    b.pair.post_recv(RecvRequest::new(2, inbox.sge(0..64))).unwrap();
    let before = b.device.counters();

    let late: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
    let (held, mut long) = (Arc::clone(&late), 0);
    let mut number = None;
    there.set_fate(Box::new(move |frame| {
        long += u32::from(frame.len() > LONG);
        if long == 3 && number.is_none() {
            number = Some(sequence(&frame));
            *held.lock().unwrap() = Some(frame);
            return Vec::new();
        }
        if number == Some(sequence(&frame)) { Vec::new() } else { vec![frame] }
    }));
    a.send(2, SendOp::Write(b.memory.remote(0)), 0..LEN);
    a.send(3, SendOp::Send, 0..8);
    let mut seen = vec![0; LEN];
    until(&sides, "the bytes behind the frame", || {
        b.memory.read(0, &mut seen).unwrap();
        assert_eq!(b.queue.poll(), None);
        seen[5 * LONG..] == pattern[5 * LONG..]
    });
    let missing = seen.iter().filter(|byte| **byte == 0).count();
    assert!((LONG..2 * LONG).contains(&missing), "{missing} bytes");
    let counters = b.device.counters();
    assert!(counters.ahead - before.ahead >= (LEN - 5 * LONG) as u64, "{counters:?}");

    there.deliver(late.lock().unwrap().take().unwrap());
    until(&sides, "the message behind the Write", || {
        b.queue.poll().is_some_and(|c| c.id == 2 && c.result().is_ok())
    });
    b.memory.read(0, &mut seen).unwrap();
    assert!(seen == pattern);
    let counters = b.device.counters();
    assert_eq!(counters.placed - before.placed, (LEN + 8) as u64, "{counters:?}");
    for id in 1..=3 {
        let mut done = None;
        until(&sides, "what was posted", || {
            done = a.queue.poll();
            done.is_some()
        });
        assert_eq!(done.unwrap().id, id);
    }
}

/// Every operation over a wire that loses, repeats and delays frames, with and without markers.
/// Payload is placed before its turn with markers alone.
#[test]
fn every_operation_over_a_wire_that_loses_and_reorders() {
    for (markers, seed) in [(true, 1), (true, 2), (false, 3)] {
        let options = Options { threading: Threading::Background, ..options() };
        let (devices, wires) = wire::wired(Options { markers, ..options });
        let [a, b] = devices.map(|device| Side::of(&device, 600_000));
        connect(&a, &b, depths());
        for (number, wire) in wires.iter().enumerate() {
            let (mut rng, mut late) = (Rng::seeded(seed + 10 * number as u64), Vec::new());
            wire.set_fate(Box::new(move |frame| match rng.below(100) {
                0 => Vec::new(),
                1..=3 => {
                    late.push(frame);
                    Vec::new()
                }
                4 => vec![frame.clone(), frame],
                5..=30 => {
                    let mut frames = vec![frame];
                    frames.append(&mut late);
                    frames
                }
                _ => vec![frame],
            }));
        }
        for _ in 0..3 {
            everything(&a, &b);
            everything(&b, &a);
        }
        let ahead = a.device.counters().ahead + b.device.counters().ahead;
        assert_eq!(ahead > 10_000, markers, "{ahead} bytes");
        wires.iter().for_each(|wire| wire.set_fate(Box::new(|frame| vec![frame])));
    }
}
