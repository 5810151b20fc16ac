//! Tests of random requests and replies between two streams: each message arrives as it was sent.

use alloc::collections::BTreeMap;

use super::*;

/// A client's and a server's stream, joined by two pipes, and the results that the test expects.
struct Pair {
    client: Stream,
    server: Stream,
    memory: Memory,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    client_ids: Ids,
    server_ids: Ids,
    /// The request's message that the server must receive, by the request's tag.
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

    /// Makes a message of random length, some of it in slices, and returns it with its bytes.
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
