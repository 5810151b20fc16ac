//! Fuzzes RPC over a byte stream: the events of a stream do not depend on where its bytes are cut,
//! and no bytes panic or cost more memory than a few times their number.
//!
//! The first byte says which side receives and how the rest is cut.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::Instant;
use sprat_proto::rpc::stream::{Ids, Role, Stream};
use sprat_proto::rpc::{Event, Message, SessionId};

fuzz_target!(|bytes: &[u8]| {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let whole = run(how & 1 == 1, bytes, |rest| rest, false);
    let piece = usize::from(how >> 2) + 1;
    let cut = run(how & 1 == 1, bytes, |rest| rest.min(piece), how & 2 == 2);
    assert_eq!(whole, cut);
});

/// Feeds `bytes` to a stream in pieces, some of them directly into the message that it is
/// receiving. Returns the events as text.
fn run(
    client: bool,
    mut bytes: &[u8],
    piece: impl Fn(usize) -> usize,
    direct: bool,
) -> Vec<String> {
    let role = if client { Role::Client(SessionId::new(0, 1)) } else { Role::Server };
    let (mut ids, mut stream) = (Ids::default(), Stream::new(3, role, 8));
    let now = Instant::from_ns(1_000_000);
    let mut seen = Vec::new();
    if client {
        for tag in 0..3 {
            let sent = stream.request(tag, Message::from(vec![7; 5]), Instant::NEVER, &mut ids);
            assert!(sent.is_ok());
        }
    }
    while !bytes.is_empty() && stream.ended().is_none() {
        let (mut now_come, rest) = bytes.split_at(piece(bytes.len()));
        if direct && let Some((body, room)) = stream.body() {
            let (head, tail) = now_come.split_at(room.min(now_come.len()));
            body.extend_from_slice(head);
            now_come = tail;
            note(&mut seen, stream.filled(now, &mut ids));
        }
        bytes = rest;
        let mut at = 0;
        while let Some(arrived) = stream.input(now, now_come, &mut at, &mut ids) {
            let event = arrived.event(now_come);
            let request = if let Event::Request { rpc, .. } = &event { Some(*rpc) } else { None };
            note(&mut seen, Some(event));
            if let Some(rpc) = request {
                stream.reply(rpc, Message::default());
            }
        }
        if let Some((body, _)) = stream.body() {
            assert!(
                body.capacity() <= 8_192 + 4 * (bytes.len() + seen.len() + body.len()),
                "{}",
                body.capacity()
            );
        }
    }
    while let Some(event) = stream.event() {
        note(&mut seen, Some(event));
    }
    seen
}

fn note(seen: &mut Vec<String>, event: Option<Event<'_>>) {
    match event {
        None => {}
        Some(Event::Request { payload, deadline, .. }) => {
            seen.push(format!("request {:?} until {deadline:?}", &payload[..]));
        }
        Some(Event::Response { tag, payload, .. }) => {
            seen.push(format!("reply {tag} {:?}", &payload[..]))
        }
        Some(Event::Failed { tag, error, .. }) => seen.push(format!("failed {tag} {error:?}")),
        Some(Event::Closed { reason, .. }) => seen.push(format!("closed {reason:?}")),
    }
}
