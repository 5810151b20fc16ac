use alloc::collections::BTreeMap;
use alloc::vec;

use super::*;
use crate::Rng;
use crate::rpc::Slices;
use crate::time::{MS, US};

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

/// Memory of 64 KiB for slices.
struct Memory(Vec<u8>);

impl Slices for Memory {
    fn bytes(&self, s: Slice) -> &[u8] {
        &self.0[s.offset as usize..][..s.len as usize]
    }
}

/// Writes up to `limit` bytes of `from`'s output to `wire`; returns how many.
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

/// What happened, owned.
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

/// As `read`, but bytes that continue a message go straight to where they belong.
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

/// The bytes of some requests, and what a server makes of them.
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

/// One client and one server, joined by two pipes, and what ought to come of it.
struct Pair {
    client: Stream,
    server: Stream,
    memory: Memory,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    client_ids: Ids,
    server_ids: Ids,
    /// By tag: what the server must see, and what the client must see in the end.
    requests: BTreeMap<u64, Vec<u8>>,
    unanswered: Vec<(ServerRpc, Vec<u8>)>,
    ends: BTreeMap<u64, Seen>,
    slices_out: usize,
}

impl Pair {
    fn new() -> Self {
        Self {
            client: client(),
            server: server(),
            memory: Memory(bytes(99, 64 << 10)),
            to_server: Vec::new(),
            to_client: Vec::new(),
            client_ids: Ids::default(),
            server_ids: Ids::default(),
            requests: BTreeMap::new(),
            unanswered: Vec::new(),
            ends: BTreeMap::new(),
            slices_out: 0,
        }
    }

    /// A message of random length, some of it in slices, and its bytes.
    fn message(&mut self, rng: &mut Rng) -> (Message, Vec<u8>) {
        let len = if rng.chance(50_000) { rng.below(300_000) } else { rng.below(200) };
        let mut message: Message = bytes(rng.below(256) as usize, len as usize).into();
        let mut whole = message.bytes.clone();
        for _ in 0..rng.below(4) {
            let offset = rng.below(60_000) as u32;
            let slice = Slice { segment: 0, offset, len: rng.below(4000) as u32 };
            message.slices.push(slice);
            whole.extend_from_slice(self.memory.bytes(slice));
            self.slices_out += 1;
        }
        (message, whole)
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.below(6) {
            0 if self.requests.len() < 100 => {
                let tag = self.requests.len() as u64;
                let (message, whole) = self.message(rng);
                self.client
                    .request(tag, message, Instant::NEVER, &mut self.client_ids)
                    .expect("taken");
                self.requests.insert(tag, whole);
            }
            1 if !self.unanswered.is_empty() => {
                let (rpc, request) =
                    self.unanswered.swap_remove(rng.below(self.unanswered.len() as u64) as usize);
                if rng.chance(100_000) {
                    self.server.refuse(rpc, 40 * US);
                    return;
                }
                // The reply names its request by repeating it.
                let (mut message, _) = self.message(rng);
                message.bytes = request;
                self.server.reply(rpc, message);
                self.server.reply(rpc, Message::default());
            }
            2 => {
                write(
                    &mut self.client,
                    &self.memory,
                    rng.below(200_000) as usize,
                    &mut self.to_server,
                );
            }
            3 => {
                write(
                    &mut self.server,
                    &self.memory,
                    rng.below(200_000) as usize,
                    &mut self.to_client,
                );
            }
            4 => {
                let n = rng.below(self.to_server.len() as u64 + 1) as usize;
                let mut all = Vec::new();
                let read = if rng.chance(500_000) { read } else { read_into_body };
                read(&mut self.server, &self.to_server[..n], &mut self.server_ids, &mut all);
                self.to_server.drain(..n);
                for e in all {
                    let Seen::Request(rpc, payload, _) = e else { panic!("{e:?}") };
                    self.unanswered.push((rpc, payload));
                }
            }
            _ => {
                let n = rng.below(self.to_client.len() as u64 + 1) as usize;
                let mut all = Vec::new();
                let read = if rng.chance(500_000) { read } else { read_into_body };
                read(&mut self.client, &self.to_client[..n], &mut self.client_ids, &mut all);
                self.to_client.drain(..n);
                for e in all {
                    let (Seen::Response(tag, _) | Seen::Failed(tag, _)) = e else {
                        panic!("{e:?}")
                    };
                    assert_eq!(self.ends.insert(tag, e), None, "one end for each");
                }
            }
        }
        for stream in [&mut self.client, &mut self.server] {
            while stream.released().is_some() {
                self.slices_out -= 1;
            }
        }
    }
}

#[test]
fn random_pipelined_requests_against_an_oracle() {
    for seed in 0..30 {
        let mut rng = Rng::seeded(seed);
        let mut pair = Pair::new();
        while pair.requests.len() < 100 || pair.ends.len() < pair.requests.len() {
            pair.step(&mut rng);
        }
        let mut refused = 0;
        for (tag, end) in &pair.ends {
            match end {
                Seen::Response(_, payload) => {
                    assert!(payload.starts_with(&pair.requests[tag]), "seed {seed}, {tag}")
                }
                Seen::Failed(_, RpcError::Busy { retry_after_ns }) => {
                    assert_eq!(*retry_after_ns, 40 * US);
                    refused += 1;
                }
                end => panic!("seed {seed}: {end:?}"),
            }
        }
        assert!(refused < pair.ends.len());
        while pair.client.has_output() || pair.server.has_output() {
            pair.step(&mut rng);
        }
        assert_eq!(
            (pair.slices_out, pair.client.unsent, pair.server.unsent),
            (0, 0, 0),
            "seed {seed}"
        );
        assert_eq!((pair.client.unsolicited(), pair.server.pending.len()), (0, 0));
    }
}

#[test]
fn the_largest_message_goes_through_in_bounded_pieces() {
    let (mut client, mut server, mut ids) = (client(), server(), Ids::default());
    client.request(0, bytes(1, MAX_MESSAGE).into(), Instant::NEVER, &mut ids).expect("taken");
    let (mut all, mut wire) = (Vec::new(), Vec::new());
    while write(&mut client, &(), usize::MAX, &mut wire) > 0 {
        read_into_body(&mut server, &wire, &mut ids, &mut all);
        wire.clear();
        let Some((_, got)) = &server.incoming else { continue };
        assert!(
            got.capacity() <= FIRST_PIECE.max(GROWTH * got.len()) && got.capacity() <= MAX_MESSAGE
        );
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
    assert_eq!(server.incoming.as_ref().map(|(_, got)| got.capacity()), Some(0));
    read(&mut server, &wire[FIXED..FIXED + 10], &mut ids, &mut all);
    assert_eq!(server.incoming.as_ref().map(|(_, got)| got.capacity()), Some(FIRST_PIECE));
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
        (with(0, 2 << 5 | 1), Bad::Version),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), Bad::Version),
        (with(0, 1 << 5 | 2), Bad::Field),
        (with(0, 1 << 5 | 14), Bad::Field),
        (with(1, 0x08), Bad::Field),
        (with(1, 0x80), Bad::Field),
        (with(2, 1), Bad::Field),
        (with(4, 1), Bad::Field),
        (with(8, 0xff), Bad::Field),
        (with(12, 0x02), Bad::Field),
        (with(19, 1), Bad::Field),
        (with(20, 1), Bad::Field),
        (with(31, 1), Bad::Field),
        (reply.to_vec(), Bad::Field),
        (b"hello".to_vec(), Bad::Version),
    ];
    for (i, (bad, why)) in cases.into_iter().enumerate() {
        let (mut server, mut ids, mut all) = (server(), Ids::default(), Vec::new());
        read(&mut server, &bad, &mut ids, &mut all);
        assert_eq!((server.bad(), all), (Some(why), vec![]), "case {i}");
        assert_eq!(server.farewell().is_some(), why == Bad::Version);
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

#[test]
fn at_most_once_ends_with_the_connection() {
    let (mut client, mut ids, mut all) = (client(), Ids::default(), Vec::new());
    for tag in 0..3 {
        let mut message: Message = vec![1; 50].into();
        message.slices.push(Slice { segment: tag as u32, offset: 0, len: 10 });
        client.request(tag, message, Instant::NEVER, &mut ids).expect("taken");
    }
    // The first is written to its last byte, the second all but one.
    let frame = FIXED + 60;
    assert_eq!(
        write(&mut client, &Memory(vec![0; 10]), 2 * frame - 1, &mut Vec::new()),
        2 * frame - 1
    );
    client.end(CloseReason::Reset);
    client.end(CloseReason::Local);
    events(&mut client, &mut all);
    let expected = [
        Seen::Failed(0, RpcError::MaybeExecuted),
        Seen::Failed(1, RpcError::NotExecuted),
        Seen::Failed(2, RpcError::NotExecuted),
        Seen::Closed(CloseReason::Reset),
    ];
    assert_eq!(all, expected);
    assert_eq!(core::iter::from_fn(|| client.released()).count(), 3);
    assert_eq!(
        client.request(9, Message::default(), Instant::NEVER, &mut ids),
        Err(RequestError::Closed)
    );
    assert!(!client.has_output());
}

#[test]
fn replies_after_the_end_give_their_slices_back() {
    let (wire, _) = some_requests();
    let (mut server, mut ids, mut all) = (server(), Ids::default(), Vec::new());
    read(&mut server, &wire, &mut ids, &mut all);
    server.end(CloseReason::Reset);
    let Seen::Request(rpc, ..) = all[0] else { panic!("{all:?}") };
    let slice = Slice { segment: 1, offset: 2, len: 3 };
    let mut message = Message::default();
    message.slices.push(slice);
    server.reply(rpc, message);
    server.refuse(rpc, 1);
    assert_eq!(
        (server.released(), server.released(), server.has_output()),
        (Some(slice), None, false)
    );
    assert!(server.event().is_none());
}

#[test]
fn deadlines_and_cancels() {
    let (mut client, mut server, mut ids, mut all) =
        (client(), server(), Ids::default(), Vec::new());
    let send = |client: &mut Stream, ids: &mut Ids, tag, ns| {
        client.request(tag, vec![tag as u8].into(), Instant::from_ns(ns), ids).expect("taken")
    };
    assert_eq!(client.deadline(), Instant::NEVER);
    send(&mut client, &mut ids, 0, 90_000);
    send(&mut client, &mut ids, 1, 70_000);
    let cancelled = send(&mut client, &mut ids, 2, 95_000);
    assert_eq!(client.deadline(), Instant::from_ns(70_000));
    let wire = write_all(&mut client);
    send(&mut client, &mut ids, 3, 60_000);
    let unsent = send(&mut client, &mut ids, 4, 100_000);
    send(&mut client, &mut ids, 5, 110_000);
    client.tick(Instant::from_ns(59_999));
    events(&mut client, &mut all);
    assert_eq!(all, []);
    client.tick(Instant::from_ns(70_000));
    client.cancel(cancelled);
    client.cancel(cancelled);
    client.cancel(unsent);
    events(&mut client, &mut all);
    let expected = [
        Seen::Failed(1, RpcError::Deadline { maybe_executed: true }),
        Seen::Failed(3, RpcError::Deadline { maybe_executed: false }),
        Seen::Failed(2, RpcError::Cancelled),
        Seen::Failed(4, RpcError::Cancelled),
    ];
    assert_eq!(all, expected);
    assert_eq!(client.deadline(), Instant::from_ns(90_000));
    // What had not been written is not sent any more; replies that come too late are skipped.
    let mut wire = [wire, write_all(&mut client)].concat();
    let mut requests = Vec::new();
    read(&mut server, &wire, &mut ids, &mut requests);
    let mut tags = Vec::new();
    for e in requests {
        let Seen::Request(rpc, payload, _) = e else { panic!("{e:?}") };
        tags.push(payload[0]);
        server.reply(rpc, bytes(0, 10_000).into());
    }
    assert_eq!(tags, [0, 1, 2, 5]);
    wire = write_all(&mut server);
    all.clear();
    for piece in wire.chunks(999) {
        read_into_body(&mut client, piece, &mut ids, &mut all);
    }
    assert_eq!(all, [Seen::Response(0, bytes(0, 10_000)), Seen::Response(5, bytes(0, 10_000))]);
    assert_eq!(client.unsolicited(), 2);
}

#[test]
fn queues_have_limits() {
    let (mut client, mut ids) = (Stream::new(0, Role::Client(SESSION), 10), Ids::default());
    for tag in 0..10 {
        client.request(tag, Message::default(), Instant::NEVER, &mut ids).expect("taken");
    }
    assert_eq!(
        client.request(10, Message::default(), Instant::NEVER, &mut ids),
        Err(RequestError::QueueFull)
    );
    let (mut client, mut server) = (Stream::new(0, Role::Client(SESSION), usize::MAX), server());
    for tag in 0..PENDING_LIMIT as u64 {
        client.request(tag, Message::default(), Instant::NEVER, &mut ids).expect("taken");
    }
    let mut all = Vec::new();
    let wire = write_all(&mut client);
    assert!(server.wants_input());
    read(&mut server, &wire, &mut ids, &mut all);
    assert!(!server.wants_input());
    let Seen::Request(rpc, ..) = all[0] else { panic!("{all:?}") };
    server.refuse(rpc, 0);
    assert!(server.wants_input());
    // A peer that asks and never reads is not read either.
    let Seen::Request(rpc, ..) = all[1] else { panic!("{all:?}") };
    server.reply(rpc, vec![0; MAX_MESSAGE].into());
    let Seen::Request(rpc, ..) = all[2] else { panic!("{all:?}") };
    assert!(server.wants_input());
    server.reply(rpc, vec![0; MAX_MESSAGE].into());
    assert!(!server.wants_input());
    write_all(&mut server);
    assert!(server.wants_input());
}

#[test]
fn numbers_wrap() {
    let (mut client, mut server, mut ids) = (client(), server(), Ids::default());
    client.next_seq = 3 * u64::from(SEQ_MASK + 1) - 2;
    for tag in 0..5 {
        client
            .request(tag, bytes(tag as usize, 3).into(), Instant::NEVER, &mut ids)
            .expect("taken");
    }
    let (mut requests, mut all) = (Vec::new(), Vec::new());
    read(&mut server, &write_all(&mut client), &mut ids, &mut requests);
    for e in requests.into_iter().rev() {
        let Seen::Request(rpc, payload, _) = e else { panic!("{e:?}") };
        assert_eq!(Ids::stream(rpc.0), 4);
        server.reply(rpc, payload.into());
    }
    read(&mut client, &write_all(&mut server), &mut ids, &mut all);
    assert_eq!(
        all,
        (0..5).rev().map(|tag| Seen::Response(tag, bytes(tag as usize, 3))).collect::<Vec<_>>()
    );
}
