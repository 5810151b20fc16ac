//! Tests of segments that arrive before their turn. A hand-made TCP hands the FPDUs of one side to
//! the other in any order, and keeps those behind a gap as a receive buffer does.

use alloc::collections::BTreeMap;

use super::*;
use crate::rdma::iwarp::framer::{Framer, Piece};
use crate::wire::checksum::crc32c;
use crate::wire::ddp::Header;
use crate::wire::rdmap::{Cause, Opcode};

use super::peer::{tagged, untagged};

/// The bytes of each side's memory that the other side writes.
const FIELD: usize = 20_000;

/// An FPDU of the stream with the number of bytes before it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Fpdu {
    at: u32,
    bytes: Vec<u8>,
}

/// Two sides of a connection with CRCs and markers, and the TCP through which side `b` receives.
struct Tcp {
    pair: Pair,
    /// The regions that side `a` reads from and side `b` is written to.
    source: Stag,
    field: Stag,
    /// The FPDUs of side `a` that were sent, and did not arrive yet.
    sent: Vec<Fpdu>,
    /// The number of bytes that side `a` has sent.
    end: u32,
    /// The bytes in order that side `b` has not consumed, and the number of all bytes up to their
    /// end.
    readable: Vec<u8>,
    next: u32,
    /// The bytes behind a gap.
    ahead: BTreeMap<u32, Vec<u8>>,
    /// The payload bytes placed before their turn, and the segments that needed no other placement.
    placed: usize,
    delivered: usize,
}

impl Tcp {
    fn new() -> Self {
        Self::with(&Setup { markers: true, ..Setup::default() })
    }

    fn with(setup: &Setup) -> Self {
        let mut pair = Pair::connected(setup);
        let source = pair.a.region(pattern(FIELD, 3), 0);
        let field = pair.b.region(vec![0; FIELD], 0);
        // The responder may send after the first FPDU.
        pair.a.post(0, SendOp::Write(Remote { stag: field, addr: 0 }), &[]);
        pair.run();
        pair.a.done();
        let mut tcp = Self {
            pair,
            source,
            field,
            sent: Vec::new(),
            end: 0,
            readable: Vec::new(),
            next: 0,
            ahead: BTreeMap::new(),
            placed: 0,
            delivered: 0,
        };
        tcp.next = tcp.consumed();
        tcp.end = tcp.next;
        tcp
    }

    fn consumed(&self) -> u32 {
        self.pair.b.rnic.conns.get(self.pair.b.conn.unwrap().0).unwrap().consumed
    }

    /// Writes `len` bytes of the source at `from` to the field at `to`.
    fn write(&mut self, id: u64, from: u64, to: u64, len: u32) {
        let (remote, source) = (Remote { stag: self.field, addr: to }, self.source);
        self.pair.a.post(id, SendOp::Write(remote), &[(source, from, len)]);
    }

    /// Takes what side `a` has to send.
    fn send(&mut self) {
        let (a, now) = (&mut self.pair.a, self.pair.now);
        while let Some(conn) = a.rnic.ready() {
            let mut record = Record::default();
            while a.rnic.output(now, conn, &mut record, &mut a.ram) {
                let bytes = core::mem::take(&mut record.bytes);
                a.rnic.sent(conn, bytes.len());
                let at = self.end;
                self.end = at.wrapping_add(bytes.len() as u32);
                self.sent.push(Fpdu { at, bytes });
                record.clear();
            }
        }
    }

    /// Lets bytes arrive at side `b`. Of bytes that came before, the last copy is kept, as by a
    /// receive buffer.
    fn arrive(&mut self, fpdu: &Fpdu) {
        let (b, now) = (&mut self.pair.b, self.pair.now);
        let Fpdu { at, bytes } = fpdu;
        if at.wrapping_sub(self.next) as i32 > 0 {
            let conn = b.conn.unwrap();
            self.placed += b.rnic.input_ahead(now, conn, *at, bytes, &mut b.ram);
            self.ahead.insert(*at, bytes.clone());
        } else if *at == self.next {
            self.readable.extend(bytes);
            self.next = at.wrapping_add(bytes.len() as u32);
            while let Some(bytes) = self.ahead.remove(&self.next) {
                self.next = self.next.wrapping_add(bytes.len() as u32);
                self.readable.extend(bytes);
            }
        }
    }

    /// Lets side `b` read, at most `most` bytes at once.
    fn read(&mut self, most: usize) {
        let (b, now) = (&mut self.pair.b, self.pair.now);
        let mut filled = 0;
        while b.closed.is_none() {
            let conn = b.conn.unwrap();
            let mut end = self.readable.len().min(filled + most);
            if let Some((distance, len)) = b.rnic.next_ahead(conn) {
                if distance == 0 && filled == 0 && len <= self.readable.len() {
                    let count = b.rnic.deliver_ahead(now, conn, &mut b.ram);
                    self.readable.drain(..count);
                    self.delivered += usize::from(count > 0);
                    if count > 0 {
                        continue;
                    }
                } else if distance > filled {
                    end = end.min(distance);
                }
            }
            if end == filled {
                break;
            }
            filled = end;
            let used = b.rnic.input(now, conn, &self.readable[..filled], &mut b.ram);
            self.readable.drain(..used);
            filled -= used;
        }
        b.hear();
    }

    /// Lets all that was sent arrive in the order of `order`, and side `b` read it.
    fn arrive_all(&mut self, order: &[usize]) {
        let sent = core::mem::take(&mut self.sent);
        assert_eq!(sent.len(), order.len());
        order.iter().for_each(|&i| self.arrive(&sent[i]));
        self.read(usize::MAX);
    }

    fn field(&mut self) -> &mut Vec<u8> {
        &mut self.pair.b.ram.0[0]
    }

    /// Makes an FPDU of a segment behind all that was sent. `breaks` inverts a byte of its payload.
    fn forge(&mut self, header: Header, payload: &[u8], breaks: bool) -> Fpdu {
        let mut framer = Framer::new(Some(crc32c), true);
        let conn = self.pair.a.conn.unwrap();
        framer.clone_from(&self.pair.a.rnic.conns.get(conn.0).unwrap().framer);
        let mut record = Record::default();
        let piece = [Piece::Bytes(payload)];
        framer.frame(&header.emit(), &piece, &mut Ram::default(), &mut record).unwrap();
        let mut bytes = record.bytes;
        if breaks {
            bytes[40] ^= 0xff;
        }
        let at = self.end;
        self.end = at.wrapping_add(bytes.len() as u32);
        self.pair.a.rnic.conns.get_mut(conn.0).unwrap().framer = framer;
        Fpdu { at, bytes }
    }

    /// Lets side `b` say its last word. Returns the cause of its failure.
    #[track_caller]
    fn cause(&mut self) -> Cause {
        self.pair.b.send(self.pair.now);
        self.pair.b.hear();
        let failed = self.pair.b.events.iter().find_map(|event| match event {
            Event::QpFailed { cause, .. } => Some(*cause),
            _ => None,
        });
        failed.expect("the connection has failed")
    }
}

/// A Write of five segments and a Send, of which the second segment is late. The bytes of the
/// others are there at once. The receive and the count of placed Writes wait for their turn.
#[test]
fn d14_a_segment_before_its_turn_is_placed_at_once_and_delivered_in_its_turn() {
    let mut tcp = Tcp::new();
    let inbox = tcp.pair.b.region(vec![0; 64], 0);
    tcp.pair.b.recv(9, &[(inbox, 0, 64)]);
    tcp.write(1, 0, 0, 6000);
    let source = tcp.source;
    tcp.pair.a.post(2, SendOp::Send, &[(source, 0, 10)]);
    tcp.send();
    let sent = core::mem::take(&mut tcp.sent);
    assert_eq!(sent.len(), 6);
    for i in [0, 3, 2, 4, 5, 3] {
        tcp.arrive(&sent[i]);
        tcp.read(usize::MAX);
    }
    let bytes = pattern(FIELD, 3);
    let hole = tcp.field()[..6000].iter().zip(&bytes).take_while(|(a, b)| a == b).count();
    let end = hole + 1400;
    assert!(tcp.field()[hole..end].iter().all(|b| *b == 0), "the hole from {hole} on");
    let rest = tcp.field()[..6000].iter().zip(&bytes).rev().take_while(|(a, b)| a == b).count();
    assert!(rest >= 3000 && tcp.placed >= 3000, "{rest} and {} bytes", tcp.placed);
    assert_eq!(tcp.pair.b.done(), []);
    assert_eq!((tcp.delivered, tcp.pair.b.ram.0[1][0]), (0, 0), "a Send waits for its turn");
    tcp.arrive(&sent[1]);
    tcp.read(usize::MAX);
    assert_eq!(tcp.field()[..6000], bytes[..6000]);
    assert_eq!(tcp.pair.b.done(), [(9, Status::Success)]);
    assert_eq!((tcp.delivered, tcp.consumed()), (3, tcp.end));
    // The deframer goes on at the right place.
    tcp.write(3, 7000, 7000, 4000);
    tcp.send();
    tcp.arrive_all(&[0, 1, 2]);
    assert_eq!(tcp.field()[7000..11_000], bytes[7000..11_000]);
}

/// Without markers, or without CRCs, all waits for its turn.
#[test]
fn f16_nothing_is_placed_before_its_turn_without_markers_and_crcs() {
    for (crc, markers) in [(true, false), (false, true), (false, false)] {
        let mut tcp = Tcp::with(&Setup { crc, markers, ..Setup::default() });
        tcp.write(1, 0, 0, 4000);
        tcp.send();
        tcp.arrive_all(&[2, 1, 0]);
        assert_eq!((tcp.placed, tcp.delivered), (0, 0));
        assert_eq!(tcp.field()[..4000], pattern(FIELD, 3)[..4000]);
    }
}

/// A segment that is wrong changes nothing before its turn. Then it ends the stream as it always
/// does, and the segments before it are delivered.
#[test]
fn d14_what_is_wrong_ends_the_stream_in_its_turn() {
    for (case, cause) in [
        ("crc", Cause::MPA_CRC),
        ("tag", Cause::TAGGED_STAG),
        ("bounds", Cause::TAGGED_BOUNDS),
        ("response", Cause::OPCODE),
        ("send", Cause::UNTAGGED_NO_BUFFER),
        ("ended", Cause::TAGGED_STAG),
        ("unmapped", Cause::TAGGED_STAG),
    ] {
        let mut tcp = Tcp::new();
        let other = tcp.pair.b.region(vec![0; 1000], 0);
        tcp.write(1, 0, 0, 100);
        tcp.send();
        let first = tcp.sent.pop().unwrap();
        let write = |stag: Stag, to| tagged(Opcode::Write, stag, to, true);
        let header = match case {
            "crc" => write(tcp.field, 1000),
            "tag" => write(Stag(77), 1000),
            "bounds" => write(tcp.field, FIELD as u64 - 10),
            "response" => tagged(Opcode::ReadResponse, tcp.field, 1000, true),
            "send" => untagged(Opcode::Send, 1, 0, true),
            _ => write(other, 0),
        };
        let wrong = tcp.forge(header, &[7; 600], case == "crc");
        tcp.arrive(&wrong);
        let is_placed = matches!(case, "ended" | "unmapped");
        assert_eq!(tcp.placed, 600 * usize::from(is_placed), "{case}");
        assert!(tcp.field().iter().all(|b| *b == 0), "{case}");
        tcp.read(usize::MAX);
        assert!(tcp.pair.b.events.is_empty(), "{case}");
        if case == "ended" {
            tcp.pair.b.rnic.deregister(other).unwrap();
        } else if case == "unmapped" {
            // Another tag ends, so that the segment is placed again.
            let field = tcp.field;
            tcp.pair.b.rnic.deregister(field).unwrap();
            let again = tcp.pair.b.rnic.register(tcp.pair.b.pd, 0, 0, 100, ALL).unwrap();
            assert_ne!(again, field);
            tcp.pair.b.ram.0[1].clear();
            tcp.arrive(&Fpdu { at: wrong.at, bytes: wrong.bytes.clone() });
        }
        let before = tcp.field()[..100].to_vec();
        tcp.arrive(&first);
        tcp.read(usize::MAX);
        assert_eq!(tcp.cause(), cause, "{case}");
        let written = if case == "unmapped" { before } else { pattern(100, 3) };
        assert_eq!(tcp.field()[..100], written, "{case}");
        assert_eq!(tcp.delivered, 0, "{case}");
    }
}

/// The rights of a region change between the placement of a Write and its turn, and the program
/// has used the memory meanwhile. The Write is placed again.
#[test]
fn d14_a_write_is_placed_again_if_tags_have_changed() {
    let mut tcp = Tcp::new();
    tcp.write(1, 0, 0, 100);
    tcp.write(2, 0, 1000, 600);
    tcp.send();
    let sent = core::mem::take(&mut tcp.sent);
    tcp.arrive(&sent[1]);
    assert_eq!(tcp.placed, 600);
    tcp.field().fill(0);
    let field = tcp.field;
    tcp.pair.b.rnic.shared.mr.change_rights(field, ALL).unwrap();
    tcp.arrive(&sent[0]);
    tcp.read(usize::MAX);
    assert_eq!(tcp.delivered, 0);
    assert_eq!(tcp.field()[1000..1600], pattern(FIELD, 3)[..600]);
}

/// A peer sends the bytes again with other contents. What was placed stays, and the other copy is
/// ignored, its CRC too.
#[test]
fn d14_another_copy_of_placed_bytes_changes_nothing() {
    for breaks in [false, true] {
        let mut tcp = Tcp::new();
        tcp.write(1, 0, 0, 100);
        tcp.send();
        let (first, end) = (tcp.sent.pop().unwrap(), tcp.end);
        let conn = tcp.pair.a.conn.unwrap();
        let framer = tcp.pair.a.rnic.conns.get(conn.0).unwrap().framer.clone();
        let header = tagged(Opcode::Write, tcp.field, 1000, true);
        let fpdu = tcp.forge(header, &[1; 600], false);
        tcp.end = end;
        tcp.pair.a.rnic.conns.get_mut(conn.0).unwrap().framer = framer;
        let other = tcp.forge(header, &[2; 600], breaks);
        assert_eq!((fpdu.at, fpdu.bytes.len()), (other.at, other.bytes.len()));
        tcp.arrive(&fpdu);
        tcp.arrive(&other);
        assert_eq!(tcp.placed, 600);
        tcp.arrive(&first);
        tcp.read(usize::MAX);
        assert_eq!((tcp.delivered, tcp.consumed()), (1, tcp.end));
        assert_eq!(tcp.field()[1000..1600], [1; 600]);
        assert!(tcp.pair.b.events.is_empty());
    }
}

/// Writes to the same bytes, of which later ones arrive first. The last one counts in the end.
#[test]
fn d14_the_last_write_to_the_same_bytes_counts() {
    for order in [[2, 1, 0], [1, 2, 0], [2, 0, 1], [0, 2, 1]] {
        let mut tcp = Tcp::new();
        tcp.write(1, 0, 100, 700);
        tcp.write(2, 1000, 200, 700);
        tcp.write(3, 2000, 300, 700);
        tcp.send();
        tcp.arrive_all(&order);
        let bytes = pattern(FIELD, 3);
        let wanted = [&bytes[..100], &bytes[1000..1100], &bytes[2000..2700]].concat();
        assert_eq!(tcp.field()[100..1000], wanted, "{order:?}");
        assert!(tcp.placed >= 700, "{order:?}");
    }
}

/// Something else is placed into the bytes of a Write before its turn: a message of the peer, an
/// atomic, and the response to one. The Write is placed again in its turn.
#[test]
fn d14_what_is_placed_between_does_not_stay_over_a_later_write() {
    for case in ["message", "atomic", "response", "unexpected"] {
        let setup = Setup { markers: true, ..Setup::default() };
        let accept = AcceptOptions { rnr_timeout_ns: None, ..setup.accept.clone() };
        let mut tcp = Tcp::with(&Setup { accept, ..setup });
        let (source, field) = (tcp.source, tcp.field);
        let to = Remote { stag: field, addr: 1000 };
        match case {
            "message" => {
                tcp.pair.b.recv(9, &[(field, 1000, 600)]);
                tcp.pair.a.post(1, SendOp::Send, &[(source, 0, 600)]);
            }
            "unexpected" => tcp.pair.a.post(1, SendOp::Send, &[(source, 0, 600)]),
            "atomic" => {
                let op = SendOp::FetchAdd { to, add: 5, mask: 0 };
                tcp.pair.a.post(1, op, &[(source, 16, 8)]);
            }
            _ => {
                let op = SendOp::FetchAdd { to: Remote { stag: source, addr: 0 }, add: 5, mask: 0 };
                tcp.pair.b.post(1, op, &[(field, 1000, 8)]);
                tcp.pair.b.send(tcp.pair.now);
                let wire: Vec<u8> = tcp.pair.b.wire.drain(..).collect();
                tcp.pair.a.take(tcp.pair.now, &wire);
            }
        }
        tcp.send();
        tcp.write(2, 3000, 1000, 1200);
        tcp.send();
        let sent = core::mem::take(&mut tcp.sent);
        assert_eq!(sent.len(), 2, "{case}");
        tcp.arrive(&sent[1]);
        assert_eq!(tcp.placed, 1200, "{case}");
        tcp.arrive(&sent[0]);
        // The bytes of the first FPDU alone.
        let rest = tcp.readable.split_off(sent[0].bytes.len());
        tcp.read(usize::MAX);
        if case == "unexpected" {
            tcp.pair.b.recv(9, &[(field, 1000, 600)]);
        }
        tcp.pair.b.send(tcp.pair.now);
        tcp.readable.extend(rest);
        tcp.read(usize::MAX);
        assert_eq!(tcp.delivered, 0, "{case}: placed again");
        assert_eq!(tcp.field()[1000..2200], pattern(FIELD, 3)[3000..4200], "{case}");
        assert_eq!(tcp.consumed(), tcp.end);
    }
}

/// Responses to Reads are placed before their turn too, and the Reads complete in theirs.
#[test]
fn d14_responses_to_reads_are_placed_before_their_turn() {
    let mut tcp = Tcp::new();
    let (source, field) = (tcp.source, tcp.field);
    for id in 0..3 {
        let from = Remote { stag: source, addr: 100 * id };
        tcp.pair.b.post(id, SendOp::Read(from), &[(field, 2000 * id, 2000)]);
    }
    tcp.pair.b.send(tcp.pair.now);
    let wire: Vec<u8> = tcp.pair.b.wire.drain(..).collect();
    tcp.pair.a.take(tcp.pair.now, &wire);
    tcp.send();
    assert_eq!(tcp.sent.len(), 6);
    let sent = core::mem::take(&mut tcp.sent);
    for i in [1, 5, 4, 3, 2] {
        tcp.arrive(&sent[i]);
        tcp.read(usize::MAX);
    }
    assert!(tcp.placed > 4000, "{} bytes", tcp.placed);
    assert_eq!(tcp.pair.b.done(), []);
    tcp.arrive(&sent[0]);
    tcp.read(usize::MAX);
    let ids = [0, 1, 2].map(|id| (id, Status::Success));
    assert_eq!(tcp.pair.b.done(), ids);
    assert_eq!(tcp.delivered, 5);
    for id in 0..3 {
        let wanted = &pattern(FIELD, 3)[100 * id..][..2000];
        assert_eq!(&tcp.field()[2000 * id..][..2000], wanted);
    }
}

/// A stream has at most 512 segments that were placed before their turn. Others wait for it.
#[test]
fn the_number_of_segments_before_their_turn_is_limited() {
    let mut tcp = Tcp::new();
    tcp.write(1, 0, 0, 1);
    tcp.send();
    let first = tcp.sent.pop().unwrap();
    let field = tcp.field;
    let fpdus: Vec<Fpdu> = (0..900)
        .map(|i| tcp.forge(tagged(Opcode::Write, field, 8 + 20 * i, true), &[i as u8; 20], false))
        .collect();
    // Segments of many FPDUs: few have a marker, and the others follow.
    for many in fpdus.chunks(60).rev() {
        let bytes = many.iter().flat_map(|fpdu| fpdu.bytes.clone()).collect();
        tcp.arrive(&Fpdu { at: many[0].at, bytes });
    }
    assert_eq!(tcp.placed, 512 * 20);
    tcp.arrive(&first);
    tcp.read(1000);
    assert_eq!((tcp.delivered, tcp.consumed()), (512, tcp.end));
    for i in 0..900 {
        assert_eq!(tcp.field()[8 + 20 * i..][..20], [i as u8; 20]);
    }
}

/// Random Writes, messages, atomics and Reads, whose FPDUs arrive in random order and some twice.
/// Memory in the end is that of a model which handles them in order, and so are the completions.
#[test]
fn d14_random_order_ends_as_the_order_of_the_stream() {
    let (mut placed, mut delivered) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng::seeded(seed);
        let mut tcp = Tcp::new();
        let word = tcp.pair.b.region(vec![0; 8], 0);
        let (bytes, mut model, mut done, mut sum) = (pattern(FIELD, 3), vec![0; FIELD], vec![], 0);
        for round in 0..4 {
            let narrow = rng.chance(300_000);
            for id in 0..1 + rng.below(16) {
                let most = [60, 1000, 4000][rng.below(3) as usize];
                let len = 1 + rng.below(most) as usize;
                // The last word of the source takes responses to atomics.
                let from = rng.below((FIELD - 8 - len) as u64);
                let room = if narrow { 2000 } else { FIELD - len };
                let to = rng.below(room as u64) as usize;
                let list = [(tcp.source, from, len as u32)];
                match rng.below(8) {
                    0 => {
                        let id = 100 * round + id;
                        tcp.pair.b.recv(id, &[(tcp.field, to as u64, len as u32)]);
                        tcp.pair.a.post(id, SendOp::Send, &list);
                        done.push((id, Status::Success));
                    }
                    1 => {
                        let to = Remote { stag: word, addr: 0 };
                        let op = SendOp::FetchAdd { to, add: id, mask: 0 };
                        tcp.pair.a.post(id, op, &[(tcp.source, FIELD as u64 - 8, 8)]);
                        sum += id;
                        continue;
                    }
                    2 => {
                        // Another tag ends.
                        let pd = tcp.pair.b.pd;
                        let stag = tcp.pair.b.rnic.register(pd, 0, 0, 8, ALL).unwrap();
                        tcp.pair.b.rnic.deregister(stag).unwrap();
                        continue;
                    }
                    _ => tcp.write(id, from, to as u64, len as u32),
                }
                model[to..to + len].copy_from_slice(&bytes[from as usize..][..len]);
            }
            while {
                tcp.send();
                !tcp.sent.is_empty()
            } {
                deliver_at_random(&mut tcp, &mut rng);
                tcp.pair.b.send(tcp.pair.now);
                let wire: Vec<u8> = tcp.pair.b.wire.drain(..).collect();
                tcp.pair.a.take(tcp.pair.now, &wire);
            }
            tcp.pair.a.done();
            assert_eq!(tcp.consumed(), tcp.end, "seed {seed}");
            assert_eq!(tcp.pair.b.done(), core::mem::take(&mut done), "seed {seed}");
            let wrong = tcp.field().iter().zip(&model).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "seed {seed} round {round} narrow {narrow}");
            #[expect(clippy::host_endian_bytes, reason = "a number of the program's")]
            let word = u64::from_ne_bytes(tcp.pair.b.ram.0[1][..].try_into().unwrap());
            assert_eq!(word, sum, "seed {seed}");
        }
        (placed, delivered) = (placed + tcp.placed, delivered + tcp.delivered);
    }
    assert!(placed > 1_000_000 && delivered > 1000, "{placed} bytes, {delivered} segments");
}

/// Lets all that was sent arrive in random order, and some of it twice.
fn deliver_at_random(tcp: &mut Tcp, rng: &mut Rng) {
    let mut sent = core::mem::take(&mut tcp.sent);
    let most = [usize::MAX, 5000, 700][rng.below(3) as usize];
    while !sent.is_empty() {
        let near = [1, 4, sent.len() as u64][rng.below(3) as usize].min(sent.len() as u64);
        let at = rng.below(near) as usize;
        let fpdu = if rng.chance(200_000) { sent[at].clone() } else { sent.remove(at) };
        tcp.arrive(&fpdu);
        if rng.chance(300_000) {
            tcp.read(most);
        }
    }
    tcp.read(most);
}
