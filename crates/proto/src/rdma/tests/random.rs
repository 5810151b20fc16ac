//! Tests of random work from both sides against an oracle of plain arrays: contents, order and
//! completions are exact.
//!
//! Each side has an array that only the other side writes, with Writes in rising order of posting,
//! and an inbox for Sends. A Read of a side sees the earlier Writes of the same side, since it
//! follows them on the stream.

use core::ops::Range;

use super::*;
use crate::wire::mpa::RtrKind;

const FIELD: u64 = 6000;

/// The posted work of a side and its expected results.
#[derive(Default)]
struct Plan {
    /// The other side's array, as this side's own Writes have made it.
    theirs: Vec<u8>,
    /// The sum of all values that this side's fetch-and-adds have added.
    sum: u64,
    /// This side's Reads and atomics that have no response yet.
    reads: Vec<ReceivedRequest>,
    /// This side's Sends and immediates in order: bytes, immediate, the length of a Write with it.
    said: VecDeque<(Vec<u8>, Option<u64>, Option<u32>)>,
    posted: VecDeque<u64>,
    next: u64,
}

struct ReceivedRequest {
    id: u64,
    /// The index of the Read's sink, whose expected bytes are `bytes`.
    slot: usize,
    bytes: Vec<u8>,
    /// The range of the other side's array that the Read reads.
    of: Range<u64>,
}

struct Tags {
    source: Stag,
    sink: Stag,
    field: Stag,
    word: Stag,
    inbox: Stag,
}

const SOURCE: usize = 0;
const SINK: usize = 1;
const INBOX: usize = 4;

fn tags(side: &mut Side, seed: u8) -> Tags {
    Tags {
        source: side.region(pattern(8000, seed), 0x1_0000),
        sink: side.region(vec![0; 20_000], 7),
        field: side.region(vec![0; FIELD as usize], 0xffff_ffff_0000_0000),
        word: side.region(vec![0; 8], 0x800),
        inbox: side.region(vec![0; 40_000], 0x40_000),
    }
}

/// Posts one random request of `side` if there is room.
fn act(side: &mut Side, plan: &mut Plan, mine: &Tags, theirs: &Tags, rng: &mut Rng) {
    if plan.posted.len() >= 60 || plan.said.len() >= 30 {
        return;
    }
    let id = plan.next;
    let bound = [1, 80, 80, 80, 4000][rng.below(5) as usize];
    let len = rng.below(bound);
    let from = rng.below(8000 - len);
    let to = rng.below(FIELD - len);
    let list = [(mine.source, 0x1_0000 + from, len as u32)];
    let bytes = side.ram.0[SOURCE][from as usize..(from + len) as usize].to_vec();
    let remote = Remote { stag: theirs.field, addr: 0xffff_ffff_0000_0000 + to };
    let slot = (id % 5 * 4000) as usize;
    // A Write may overtake the response to an earlier Read. A fence prevents that if they overlap.
    let overlaps = plan.reads.iter().any(|read| read.of.start < to + len && to < read.of.end);
    let fence = overlaps || rng.chance(200_000);
    let flags = SendFlags { fence, solicited: rng.chance(500_000), signaled: true };
    let (op, list) = match rng.below(7) {
        0 => {
            plan.said.push_back((bytes, None, None));
            (SendOp::Send, list.to_vec())
        }
        1 => {
            plan.said.push_back((Vec::new(), Some(id), None));
            (SendOp::Immediate(id), Vec::new())
        }
        kind @ 2..=4 => {
            plan.theirs[to as usize..(to + len) as usize].copy_from_slice(&bytes);
            let op = if kind == 4 {
                plan.said.push_back((Vec::new(), Some(id), Some(len as u32)));
                SendOp::WriteImmediate(remote, id)
            } else {
                SendOp::Write(remote)
            };
            // The same bytes come from two elements.
            let half = len / 2;
            let two = [
                (mine.source, 0x1_0000 + from, half as u32),
                (mine.source, 0x1_0000 + from + half, (len - half) as u32),
            ];
            (op, if rng.chance(500_000) { two.to_vec() } else { list.to_vec() })
        }
        5 => {
            // A sink serves one request at a time.
            if plan.reads.iter().any(|read| read.slot == slot) {
                return;
            }
            let bytes = plan.theirs[to as usize..(to + len) as usize].to_vec();
            plan.reads.push(ReceivedRequest { id, slot, bytes, of: to..to + len });
            (SendOp::Read(remote), vec![(mine.sink, 7 + slot as u64, len as u32)])
        }
        _ => {
            if plan.reads.iter().any(|read| read.slot == slot) {
                return;
            }
            #[expect(clippy::host_endian_bytes, reason = "a number of the program's")]
            let bytes = plan.sum.to_ne_bytes().to_vec();
            plan.reads.push(ReceivedRequest { id, slot, bytes, of: 0..0 });
            plan.sum = plan.sum.wrapping_add(id);
            let to = Remote { stag: theirs.word, addr: 0x800 };
            (SendOp::FetchAdd { to, add: id, mask: 0 }, vec![(mine.sink, 7 + slot as u64, 8)])
        }
    };
    plan.posted.push_back(id);
    plan.next += 1;
    side.post_with(id, op, &list, flags).unwrap();
}

/// Takes a side's completions and compares them with its plan.
fn check(side: &mut Side, plan: &mut Plan, other: &mut Plan, mine: &Tags, received: &mut u64) {
    while let Some(done) = side.poll() {
        assert_eq!(done.status, Status::Success);
        if matches!(done.completed, Completed::Recv | Completed::RecvImmediate) {
            assert_eq!(done.id, 1_000_000 + *received);
            let (bytes, immediate, written) = other.said.pop_front().expect("nothing was sent");
            assert_eq!(done.immediate, immediate);
            let at = (*received % 10 * 4000) as usize;
            if immediate.is_none() {
                assert_eq!(done.len as usize, bytes.len());
                assert_eq!(side.ram.0[INBOX][at..at + bytes.len()], bytes);
            } else if let Some(written) = written {
                assert_eq!(done.len, written);
            }
            side.recv(1_000_010 + *received, &[(mine.inbox, 0x40_000 + at as u64, 4000)]);
            *received += 1;
            continue;
        }
        assert_eq!(Some(done.id), plan.posted.pop_front(), "in the order posted");
        if let Some(at) = plan.reads.iter().position(|read| read.id == done.id) {
            let ReceivedRequest { slot, bytes, .. } = plan.reads.swap_remove(at);
            assert_eq!(done.len as usize, bytes.len());
            assert_eq!(side.ram.0[SINK][slot..slot + bytes.len()], bytes, "{done:?}");
        }
    }
}

fn world(seed: u64) {
    let mut rng = Rng::seeded(seed);
    let (crc, markers) = (rng.chance(500_000), rng.chance(500_000));
    let emss = [100, 300, 536, 1460, 9000, 65_535][rng.below(6) as usize];
    let mut setup =
        Setup { crc, markers, emss, cut: Cut::Dice(Box::new(rng.fork())), ..Setup::default() };
    setup.connect.ord = 1 + rng.below(8) as u16;
    setup.accept.ord = 1 + rng.below(8) as u16;
    // Both sides send at once.
    setup.connect.peer_to_peer =
        Some([RtrKind::Send, RtrKind::Write, RtrKind::Read][rng.below(3) as usize]);
    let mut pair = Pair::connected(&setup);
    let (mine, theirs) = (tags(&mut pair.a, 1), tags(&mut pair.b, 2));
    for id in 0..10 {
        pair.a.recv(1_000_000 + id, &[(mine.inbox, 0x40_000 + 4000 * id, 4000)]);
        pair.b.recv(1_000_000 + id, &[(theirs.inbox, 0x40_000 + 4000 * id, 4000)]);
    }
    let plan = || Plan { theirs: vec![0; FIELD as usize], ..Plan::default() };
    let (mut a, mut b) = (plan(), plan());
    let (mut got_a, mut got_b) = (0, 0);
    for _ in 0..200 {
        for _ in 0..rng.below(4) {
            if a.said.len() < 9 {
                act(&mut pair.a, &mut a, &mine, &theirs, &mut rng);
            }
            if b.said.len() < 9 {
                act(&mut pair.b, &mut b, &theirs, &mine, &mut rng);
            }
        }
        pair.step(1 + rng.below(10));
        check(&mut pair.a, &mut a, &mut b, &mine, &mut got_a);
        check(&mut pair.b, &mut b, &mut a, &theirs, &mut got_b);
    }
    pair.run();
    check(&mut pair.a, &mut a, &mut b, &mine, &mut got_a);
    check(&mut pair.b, &mut b, &mut a, &theirs, &mut got_b);
    assert!(a.posted.is_empty() && b.posted.is_empty() && a.reads.is_empty() && b.reads.is_empty());
    assert!(a.said.is_empty() && b.said.is_empty() && got_a + got_b > 10);
    assert_eq!(pair.b.ram.0[2], a.theirs);
    assert_eq!(pair.a.ram.0[2], b.theirs);
    assert!(pair.a.events.is_empty() && pair.b.events.is_empty(), "{:?}", pair.a.events);
    let before = (pair.a.ram.0.clone(), pair.b.ram.0.clone());
    pair.a.rnic.disconnect(pair.now, pair.a.qp).unwrap();
    pair.run();
    assert_eq!((pair.a.closed, pair.b.closed), (Some(false), Some(false)));
    assert_eq!((&pair.a.ram.0, &pair.b.ram.0), (&before.0, &before.1));
}

#[test]
fn random_work_of_both_sides() {
    for seed in 0..60 {
        world(seed);
    }
}

/// With a bit of the stream flipped anywhere, nothing panics, the stream ends once and every
/// request completes once.
#[test]
fn bytes_that_are_wrong_anywhere() {
    for seed in 0..400 {
        let mut rng = Rng::seeded(seed);
        let setup =
            Setup { crc: false, markers: rng.chance(300_000), emss: 300, ..Setup::default() };
        let mut pair = Pair::connected(&setup);
        let (mine, theirs) = (tags(&mut pair.a, 1), tags(&mut pair.b, 2));
        let guard = pair.b.ram.0.len();
        pair.b.ram.0.push(vec![0xaa; 100]);
        for id in 0..10 {
            pair.b.recv(1_000_000 + id, &[(theirs.inbox, 0x40_000 + 4000 * id, 4000)]);
        }
        let mut plan = Plan { theirs: vec![0; FIELD as usize], ..Plan::default() };
        for _ in 0..8 {
            act(&mut pair.a, &mut plan, &mine, &theirs, &mut rng);
        }
        pair.a.send(pair.now);
        for _ in 0..=rng.below(4) {
            let at = rng.below(pair.a.wire.len() as u64) as usize;
            let byte = &mut pair.a.wire[at];
            *byte = if rng.chance(500_000) { *byte ^ 1 << rng.below(8) } else { rng.u32() as u8 };
        }
        pair.run();
        pair.wait(10_000_000_000);
        pair.b.rnic.ended(pair.now, pair.b.conn.unwrap(), StreamEnd::Finished);
        pair.b.hear();
        assert!(pair.b.closed.is_some());
        let mut ids: Vec<_> = pair.b.done().iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let expected: Vec<_> = (1_000_000..1_000_010).collect();
        assert_eq!(ids, expected, "{seed}");
        assert!(pair.b.ram.0[guard].iter().all(|&byte| byte == 0xaa));
    }
}
