//! Tests of at-most-once execution over a faulty wire: random requests, cancellations, deadlines,
//! refusals and restarts, over a wire that loses, doubles, reorders, damages and cuts packets. An
//! oracle counts executions.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Host, Net, Seen, pattern};
use crate::fault::Fault;
use crate::rpc::{Config, Message, RpcError, RpcId, SessionId};
use crate::time::{MS, SECOND, US};
use crate::{Instant, Rng};

fn bad_wire(rng: &mut Rng) -> Fault {
    let level = [0, 20_000, 100_000, 200_000][rng.below(4) as usize];
    Fault {
        drop_ppm: level,
        duplicate_ppm: level,
        reorder_ppm: level,
        corrupt_ppm: level / 4,
        truncate_ppm: level / 4,
        reorder_ns: [50 * US, MS, 20 * MS][rng.below(3) as usize],
    }
}

/// True if the server's application says of this request that it is idempotent.
fn is_idempotent(request: &[u8]) -> bool {
    request[7].is_multiple_of(3)
}

/// The oracle of the requests: the end of each, and the number of times that each was executed.
#[derive(Default)]
struct Oracle {
    taken: BTreeMap<u64, (RpcId, usize)>,
    ended: BTreeMap<u64, Option<RpcError>>,
    executed: BTreeMap<u64, u32>,
}

impl Oracle {
    fn body(tag: u64, len: usize) -> Vec<u8> {
        let mut bytes = tag.to_be_bytes().to_vec();
        bytes.extend(pattern(tag, len));
        bytes
    }

    /// Records the events that the hosts saw since the last call.
    fn note(&mut self, net: &mut Net) {
        for seen in net.seen(0) {
            let Seen::Request(rpc, bytes, _) = seen else { panic!("seed {}: {seen:?}", net.seed) };
            let tag = u64::from_be_bytes(*bytes.first_chunk().expect("whole"));
            assert_eq!(bytes, Self::body(tag, self.taken[&tag].1), "seed {}", net.seed);
            if net.hosts[0].echo {
                *self.executed.entry(tag).or_default() += 1;
            } else {
                net.hosts[0].endpoint.refuse(net.now, rpc, 300 * US);
            }
        }
        for seen in net.seen(1) {
            let (rpc, tag, error) = match seen {
                Seen::Response(rpc, tag, bytes) => {
                    assert_eq!(bytes, Self::body(tag, self.taken[&tag].1), "seed {}", net.seed);
                    (rpc, tag, None)
                }
                Seen::Failed(rpc, tag, error) => (rpc, tag, Some(error)),
                Seen::Closed(..) => continue,
                Seen::Request(..) => panic!("seed {}: a request at the client", net.seed),
            };
            assert_eq!(self.taken[&tag].0, rpc);
            assert!(
                self.ended.insert(tag, error).is_none(),
                "seed {}: {tag} ended twice",
                net.seed
            );
        }
    }

    /// Checks that every request ended once, that none was executed twice unless it is idempotent,
    /// and that every reply and error is true.
    fn judge(&self, seed: u64) {
        for (tag, executed) in &self.executed {
            let once = *executed == 1 || is_idempotent(&Self::body(*tag, 0));
            assert!(once, "seed {seed}: {tag} was executed {executed} times");
        }
        for tag in self.taken.keys() {
            let executed = self.executed.contains_key(tag);
            match self.ended.get(tag) {
                None => panic!("seed {seed}: {tag} never ended"),
                Some(None) => {
                    assert!(executed, "seed {seed}: {tag} has a reply but was not executed")
                }
                Some(Some(error)) => {
                    let is_true =
                        error.maybe_executed() || !executed || is_idempotent(&Self::body(*tag, 0));
                    assert!(is_true, "seed {seed}: {tag} {error:?} but executed");
                }
            }
        }
    }
}

fn a_world(seed: u64) {
    let mut rng = Rng::seeded(seed);
    let lossless = rng.below(5) == 0;
    let mut net = Net::new(seed, 2, lossless);
    net.hosts[0].is_idempotent = is_idempotent;
    if !lossless {
        net.fault(bad_wire(&mut rng));
    }
    let mut oracle = Oracle::default();
    let mut session: Option<SessionId> = None;
    for tag in 0..60 {
        let open = session.filter(|_| rng.below(30) > 0).unwrap_or_else(|| net.connect(1, 0));
        session = Some(open);
        let len = match rng.below(8) {
            0 => rng.below(100_000),
            1 | 2 => rng.below(5_000),
            _ => rng.below(200),
        } as usize;
        let deadline =
            if rng.below(6) == 0 { net.now.after(rng.below(20 * MS)) } else { Instant::NEVER };
        let mut message = Message::from(Oracle::body(tag, len));
        let Host { endpoint, port, .. } = &mut net.hosts[1];
        // Some by the short way, if that can be.
        let request = match rng.below(2) {
            0 => endpoint.request(net.now, open, tag, message, deadline),
            _ => endpoint.request_over(net.now, open, tag, &mut message, deadline, port),
        };
        match request {
            Ok(rpc) => {
                oracle.taken.insert(tag, (rpc, len));
                if rng.below(12) == 0 {
                    let now = net.now;
                    net.hosts[1].endpoint.cancel(now, rpc);
                }
            }
            Err(_) => session = None,
        }
        match rng.below(25) {
            0 => net.hosts[1].endpoint.close(net.now, open),
            1 if !lossless => {
                net.restart(0, Config::default());
                net.hosts[0].is_idempotent = is_idempotent;
            }
            2 => net.hosts[0].echo = false,
            _ => net.hosts[0].echo = true,
        }
        for _ in 0..rng.below(40) {
            net.step();
            oracle.note(&mut net);
        }
    }
    net.hosts[0].echo = true;
    net.run(60 * SECOND, |net| {
        oracle.note(net);
        oracle.ended.len() == oracle.taken.len()
    });
    oracle.judge(seed);
}

#[test]
fn at_most_once_whatever_the_wire_does() {
    for seed in 0..400 {
        a_world(seed);
    }
}

/// Sixteen megabytes in each direction arrive through a wire that loses one packet in fifty.
#[test]
fn large_messages_arrive_through_loss() {
    for (seed, len) in [(1, 300_000), (2, 1 << 20), (3, 16 << 20)] {
        let mut net = Net::new(seed, 2, false);
        let fault = Fault {
            drop_ppm: 20_000,
            duplicate_ppm: 1_000,
            reorder_ppm: 10_000,
            ..Fault::default()
        };
        net.fault(Fault { reorder_ns: 30 * US, ..fault });
        let session = net.connect(1, 0);
        net.request(1, session, 5, pattern(seed, len));
        assert!(
            net.run(60 * SECOND, |net| !net.hosts[1].seen.is_empty()),
            "{:?}",
            net.hosts[1].endpoint.stats()
        );
        let seen = net.seen(1);
        assert!(matches!(&seen[..], [Seen::Response(_, 5, bytes)] if *bytes == pattern(seed, len)));
        assert_eq!(net.hosts[0].endpoint.stats().requests, 1);
    }
}
