//! Tests of a byte stream's frames: cut anywhere, damaged, or too long. The folder has tests of the
//! outcomes of requests.

use alloc::vec;

use super::assembly::{FIRST_PIECE, GROWTH};
use super::*;
use crate::Rng;
use crate::rpc::Slices;
use crate::time::{MS, US};

mod oracle;
mod requests;

const NOW: Instant = Instant::from_ns(5_000);
const WORK: usize = 128 << 10;
const SESSION: SessionId = SessionId::new(0, 7);

fn client() -> Stream {
    Stream::new(3, Role::Client(SESSION), 1000)
}

fn server() -> Stream {
    Stream::new(4, Role::Server, 0)
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed * 131 + i * 7 + i / 251) as u8).collect()
}

/// A test's memory of 64 KiB for slices.
struct Memory(Vec<u8>);

impl Slices for Memory {
    fn bytes(&self, s: Slice) -> &[u8] {
        &self.0[s.offset as usize..][..s.len as usize]
    }
}

/// Writes up to `limit` bytes of `from`'s output to `wire`; returns the number of bytes.
fn write(from: &mut Stream, memory: &dyn Slices, limit: usize, wire: &mut Vec<u8>) -> usize {
    let mut parts = ArrayVec::<&[u8], 16>::new();
    from.output(NOW, memory, WORK, &mut parts);
    let all = parts.concat();
    drop(parts);
    assert!(all.len() <= WORK);
    let n = limit.min(all.len());
    wire.extend_from_slice(&all[..n]);
    from.written(n);
    n
}

fn write_all(from: &mut Stream) -> Vec<u8> {
    let mut wire = Vec::new();
    while write(from, &(), usize::MAX, &mut wire) > 0 {}
    assert!(!from.has_output());
    wire
}

/// An event that a test received from a stream, with owned payload.
#[derive(Debug, PartialEq, Eq, Clone)]
enum Seen {
    Request(ServerRpc, Vec<u8>, Instant),
    Response(u64, Vec<u8>),
    Failed(u64, RpcError),
    Closed(CloseReason),
}

fn seen(event: Event<'_>) -> Seen {
    match event {
        Event::Request { rpc, payload, deadline } => {
            Seen::Request(rpc, payload.into_vec(), deadline)
        }
        Event::Response { tag, payload, .. } => Seen::Response(tag, payload.into_vec()),
        Event::Failed { tag, error, .. } => Seen::Failed(tag, error),
        Event::Closed { reason, .. } => Seen::Closed(reason),
    }
}

fn read(to: &mut Stream, wire: &[u8], ids: &mut Ids, all: &mut Vec<Seen>) {
    let mut at = 0;
    while let Some(arrived) = to.input(NOW, wire, &mut at, ids) {
        all.push(seen(arrived.event(wire)));
    }
    assert_eq!(at, wire.len());
    events(to, all);
}

/// Reads `wire` into the stream. Bytes that continue a message go straight into the memory of the
/// message.
fn read_into_body(to: &mut Stream, mut wire: &[u8], ids: &mut Ids, all: &mut Vec<Seen>) {
    while let Some((body, room)) = to.body() {
        assert!(room > 0 && body.capacity() - body.len() >= room);
        let n = room.min(wire.len());
        body.extend_from_slice(&wire[..n]);
        wire = &wire[n..];
        all.extend(to.filled(NOW, ids).map(seen));
        if wire.is_empty() {
            return;
        }
    }
    read(to, wire, ids, all);
}

fn events(of: &mut Stream, all: &mut Vec<Seen>) {
    while let Some(event) = of.event() {
        all.push(seen(event));
    }
}

/// The bytes of some requests, and the messages and deadlines that a server reads from them.
fn some_requests() -> (Vec<u8>, Vec<(Vec<u8>, Instant)>) {
    let (mut client, mut ids) = (client(), Ids::default());
    let mut expected = Vec::new();
    for (i, len) in [0, 1, 100, 300, 0].into_iter().enumerate() {
        let deadline = if i % 2 == 0 { Instant::NEVER } else { NOW.after(i as u64 * MS) };
        client.request(i as u64, bytes(i, len).into(), deadline, &mut ids).expect("taken");
        expected.push((bytes(i, len), deadline));
    }
    (write_all(&mut client), expected)
}

#[test]
fn golden_bytes() {
    let (mut client, mut server, mut ids) = (client(), server(), Ids::default());
    client.request(9, b"ab"[..].into(), NOW.after(3 * MS + 700), &mut ids).expect("taken");
    let mut wire = write_all(&mut client);
    let request = [
        &[
            0x21, 0x08, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0,
        ][..],
        &[0, 0, 0x0b, 0xb8, b'a', b'b'],
    ];
    assert_eq!(wire, request.concat());
    let mut all = Vec::new();
    read(&mut server, &wire, &mut ids, &mut all);
    let Seen::Request(rpc, _, deadline) = all[0] else { panic!("{all:?}") };
    assert_eq!(deadline, NOW.after(3 * MS));
    server.reply(rpc, b"c"[..].into());
    wire = write_all(&mut server);
    let mut reply = [0; 33];
    (reply[0], reply[1], reply[11], reply[15], reply[32]) = (0x21, 0x01, 1, 1, b'c');
    assert_eq!(wire, reply);
}

#[test]
fn cut_at_every_byte() {
    let (wire, expected) = some_requests();
    let check = |server: &mut Stream, all: Vec<Seen>, cut: usize| {
        let got: Vec<_> = all
            .into_iter()
            .map(|e| {
                if let Seen::Request(_, payload, deadline) = e {
                    (payload, deadline)
                } else {
                    panic!("{e:?}")
                }
            })
            .collect();
        assert_eq!(got, expected, "cut at {cut}");
        assert!(server.ended().is_none());
    };
    for read in [read, read_into_body] {
        for cut in 0..=wire.len() {
            let (mut server, mut ids, mut all) = (server(), Ids::default(), Vec::new());
            read(&mut server, &wire[..cut], &mut ids, &mut all);
            read(&mut server, &wire[cut..], &mut ids, &mut all);
            check(&mut server, all, cut);
        }
        let (mut server, mut ids, mut all) = (server(), Ids::default(), Vec::new());
        for byte in wire.chunks(1) {
            read(&mut server, byte, &mut ids, &mut all);
        }
        check(&mut server, all, 1);
    }
}

#[test]
fn whole_small_messages_are_lent() {
    let (wire, _) = some_requests();
    let (mut server, mut ids, mut at) = (server(), Ids::default(), 0);
    let mut lent = 0;
    while let Some(arrived) = server.input(NOW, &wire, &mut at, &mut ids) {
        lent += usize::from(matches!(
            arrived.event(&wire),
            Event::Request { payload: Payload::Borrowed(_), .. }
        ));
    }
    assert_eq!(lent, 5);
}

#[test]
fn the_largest_message_goes_through_in_bounded_pieces() {
    let (mut client, mut server, mut ids) = (client(), server(), Ids::default());
    client.request(0, bytes(1, MAX_MESSAGE).into(), Instant::NEVER, &mut ids).expect("taken");
    let (mut all, mut wire) = (Vec::new(), Vec::new());
    while write(&mut client, &(), usize::MAX, &mut wire) > 0 {
        read_into_body(&mut server, &wire, &mut ids, &mut all);
        wire.clear();
        let Some(capacity) = server.assembly.capacity() else { continue };
        let got = server.body().map_or(0, |(got, _)| got.len());
        assert!(capacity <= FIRST_PIECE.max(GROWTH * got) && capacity <= MAX_MESSAGE);
    }
    assert!(
        matches!(&all[..], [Seen::Request(_, payload, _)] if *payload == bytes(1, MAX_MESSAGE))
    );
    let long = Message::from(vec![0; MAX_MESSAGE + 1]);
    assert_eq!(
        client.request(1, long, Instant::NEVER, &mut ids),
        Err(RequestError::TooLong(MAX_MESSAGE + 1))
    );
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let (mut client, mut server, mut ids) = (client(), server(), Ids::default());
    client.request(0, vec![1; MAX_MESSAGE].into(), Instant::NEVER, &mut ids).expect("taken");
    let wire = write_all(&mut client);
    let mut all = Vec::new();
    read(&mut server, &wire[..FIXED], &mut ids, &mut all);
    assert_eq!(server.assembly.capacity(), Some(0));
    read(&mut server, &wire[FIXED..FIXED + 10], &mut ids, &mut all);
    assert_eq!(server.assembly.capacity(), Some(FIRST_PIECE));
}

#[test]
fn what_is_no_frame_ends_the_connection() {
    let (wire, _) = some_requests();
    let reply = {
        let mut bytes = ArrayVec::new();
        let head = Head { kind: Kind::Reply, seq: 1, len: 0, extra: 0, ttl_us: None };
        head.encode(0, Instant::NEVER, &mut bytes);
        bytes
    };
    let with = |at: usize, value: u8| {
        let mut bad = wire.clone();
        bad[at] = value;
        bad
    };
    let cases = [
        (with(0, 2 << 5 | 1), BadFrame::Version),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), BadFrame::Version),
        (with(0, 1 << 5 | 2), BadFrame::Field),
        (with(0, 1 << 5 | 14), BadFrame::Field),
        (with(1, 0x08), BadFrame::Field),
        (with(1, 0x80), BadFrame::Field),
        (with(2, 1), BadFrame::Field),
        (with(4, 1), BadFrame::Field),
        (with(8, 0xff), BadFrame::Field),
        (with(12, 0x02), BadFrame::Field),
        (with(19, 1), BadFrame::Field),
        (with(20, 1), BadFrame::Field),
        (with(31, 1), BadFrame::Field),
        (reply.to_vec(), BadFrame::Field),
        (b"hello".to_vec(), BadFrame::Version),
    ];
    for (i, (bad, why)) in cases.into_iter().enumerate() {
        let (mut server, mut ids, mut all) = (server(), Ids::default(), Vec::new());
        read(&mut server, &bad, &mut ids, &mut all);
        assert_eq!((server.bad(), all), (Some(why), vec![]), "case {i}");
        assert_eq!(server.reset_frame().is_some(), why == BadFrame::Version);
        read(&mut server, &wire, &mut ids, &mut Vec::new());
        assert!(!server.has_output());
    }
    // The client that was sent away learns why.
    let (mut client, mut ids, mut all) = (client(), Ids::default(), Vec::new());
    client.request(5, Message::default(), Instant::NEVER, &mut ids).expect("taken");
    write_all(&mut client);
    read(&mut client, &Head::reset_version(), &mut ids, &mut all);
    assert_eq!(all, [Seen::Failed(5, RpcError::MaybeExecuted), Seen::Closed(CloseReason::Version)]);
}

#[test]
fn random_bytes_and_flipped_bits_never_panic() {
    let (wire, _) = some_requests();
    let mut rng = Rng::seeded(3);
    for _ in 0..20_000 {
        let mut bad = wire.clone();
        for _ in 0..=rng.below(3) {
            let bit = rng.below(8 * bad.len() as u64) as usize;
            bad[bit / 8] ^= 1 << (bit % 8);
        }
        bad.truncate(rng.below(bad.len() as u64 + 1) as usize);
        for mut stream in [client(), server()] {
            let (mut ids, mut all) = (Ids::default(), Vec::new());
            let cut = rng.below(bad.len() as u64 + 1) as usize;
            read(&mut stream, &bad[..cut], &mut ids, &mut all);
            read_into_body(&mut stream, &bad[cut..], &mut ids, &mut all);
        }
    }
}

#[test]
fn extensions_that_nobody_knows_are_skipped() {
    let mut wire = vec![0; FIXED + 4 * 255];
    (wire[0], wire[1], wire[3], wire[11], wire[15]) = (0x21, 0x08, 255, 9, 1);
    wire[FIXED + 3] = 7;
    wire.push(b'x');
    for cut in 0..wire.len() {
        let (mut server, mut ids, mut all) = (server(), Ids::default(), Vec::new());
        read(&mut server, &wire[..cut], &mut ids, &mut all);
        read(&mut server, &wire[cut..], &mut ids, &mut all);
        assert!(
            matches!(&all[..], [Seen::Request(_, p, d)] if p == b"x" && *d == NOW.after(7 * US)),
            "{all:?}"
        );
    }
}
