//! Fuzzes the coordinator: with any contents of its disk and any requests, it refuses or answers,
//! and never panics.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::node::machine::{Caller, Machine, Output};
use sprat_proto::rpc::{Message, Payload, RpcError, ServerRpc};
use sprat_proto::{Instant, Rng};
use sprat_store::coordinator::{Config, Coordinator};

/// Takes a piece of the input, whose first byte is the piece's length.
fn piece<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (&len, rest) = bytes.split_first()?;
    let (piece, rest) = rest.split_at(usize::from(len).min(rest.len()));
    *bytes = rest;
    Some(piece)
}

fuzz_target!(|input: &[u8]| {
    let mut input = input;
    let mut pairs = Vec::new();
    let count = piece(&mut input).and_then(|p| p.first().copied()).unwrap_or(0) % 8;
    for _ in 0..count {
        let (Some(key), Some(value)) = (piece(&mut input), piece(&mut input)) else { return };
        pairs.push((key.to_vec(), value.to_vec()));
    }
    let mut now = Instant::from_ns(1);
    let Ok(mut coordinator) = Coordinator::restore(now, Config::default(), Rng::seeded(1), pairs)
    else {
        return;
    };
    let mut rpc = 0;
    while let Some(request) = piece(&mut input) {
        rpc += 1;
        let caller = Caller { transport: 0, rpc: ServerRpc(rpc), at: Instant::ZERO };
        coordinator.request(
            now,
            caller,
            Payload::Borrowed(request),
            Instant::NEVER,
            &mut Message::default(),
        );
        while let Some(output) = coordinator.output(now) {
            match output {
                Output::Persist { seq, .. } => coordinator.persisted(now, seq),
                Output::Call { tag, .. } if rpc % 2 == 0 => {
                    coordinator.response(now, tag, Err(RpcError::MaybeExecuted));
                }
                Output::Call { tag, .. } => {
                    coordinator.response(now, tag, Ok(Payload::Borrowed(&[1, 0, 0, 0])))
                }
                _ => {}
            }
        }
        now = now.after(request.len() as u64 * 50_000_000);
        while coordinator.tick(now) {}
    }
});
