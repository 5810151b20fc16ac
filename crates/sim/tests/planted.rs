//! Tests that the simulator finds bugs: a toy store directly on datagrams, first correct, then with
//! one planted bug at a time.

use std::collections::BTreeMap;

use sprat_proto::fault::Fault;
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::{Addr, Datagrams as _, Instant, Rng};
use sprat_sim::check::Verdict;
use sprat_sim::check::history::History;
use sprat_sim::check::store::{Answer, Op, Reject, Value};
use sprat_sim::disk::{Outcome, Write};
use sprat_sim::wire::HostId;
use sprat_sim::{Chaos, HostFaults, Options, Outside, Process, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// The planted bug: the server executes a duplicate request again.
    NoFilter,
    /// The planted bug: the server answers before the disk has completed the write.
    Hasty,
    /// The planted bug: after a restart the server ignores its disk.
    Forgetful,
    /// The planted bug: the server answers reads from an old state.
    Stale,
}

const KEYS: u64 = 3;

/// A toy server with a counter for each key. A request is `number, key, by` (`by` 0 reads), a reply
/// `number, version, sum`.
struct Server {
    bug: Bug,
    counters: BTreeMap<u64, (u64, u64)>,
    /// The last request of each client, by its number, and the reply to it.
    last: BTreeMap<String, (u64, [u64; 3])>,
    waiting: BTreeMap<u64, (Addr, [u64; 3])>,
    cache: BTreeMap<u64, (u64, u64)>,
    cached: Instant,
    seq: u64,
}

impl Server {
    fn execute(
        &mut self,
        from: Addr,
        [number, key, by]: [u64; 3],
        outside: &mut Outside<'_, History>,
    ) {
        let client = format!("{from}");
        if let Some((last, reply)) = self.last.get(&client)
            && self.bug != Bug::NoFilter
        {
            if *last == number && self.waiting.values().all(|(_, r)| r != reply) {
                send(outside, from, *reply);
            }
            if *last >= number {
                return;
            }
        }
        if by == 0 {
            let counters = if self.bug == Bug::Stale { &self.cache } else { &self.counters };
            let (version, sum) = counters.get(&key).copied().unwrap_or_default();
            // The server answers a read only while no write is pending.
            if self.waiting.is_empty() || self.bug == Bug::Hasty {
                send(outside, from, [number, version, sum]);
            }
            return;
        }
        let counter = self.counters.entry(key).or_default();
        *counter = (counter.0 + 1, counter.1 + by);
        let reply = [number, counter.0, counter.1];
        self.seq += 1;
        let puts = vec![
            (vec![0, key as u8], words(&[counter.0, counter.1])),
            ([&[1], client.as_bytes()].concat(), words(&reply)),
        ];
        outside.writes.push(Write { seq: self.seq, puts, deletes: vec![] });
        self.last.insert(client, (number, reply));
        if self.bug == Bug::Hasty {
            send(outside, from, reply);
        } else {
            self.waiting.insert(self.seq, (from, reply));
        }
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

fn parse(bytes: &[u8]) -> [u64; 3] {
    std::array::from_fn(|i| u64::from_be_bytes(bytes[8 * i..][..8].try_into().unwrap()))
}

fn send(outside: &mut Outside<'_, History>, to: Addr, message: [u64; 3]) {
    outside.port.send(to, &[&words(&message)]);
}

impl Process<History> for Server {
    fn turn(&mut self, outside: &mut Outside<'_, History>) -> bool {
        for outcome in std::mem::take(&mut outside.completed) {
            let Outcome::Safe(seq) = outcome else { panic!("no disk is full here") };
            if let Some((to, reply)) = self.waiting.remove(&seq) {
                send(outside, to, reply);
            }
        }
        if outside.now >= self.cached {
            self.cached = outside.now.after(MS);
            self.cache = self.counters.clone();
        }
        for i in 0..outside.port.recv_burst() {
            let (from, bytes) = outside.port.datagram(i);
            let request = parse(bytes);
            self.execute(from, request, outside);
        }
        false
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// A client of the toy store that sends one request after the other and repeats each until the
/// answer comes.
struct Client {
    rng: Rng,
    left: u32,
    number: u64,
    open: Option<(usize, [u64; 3])>,
    again: Instant,
}

impl Process<History> for Client {
    fn turn(&mut self, outside: &mut Outside<'_, History>) -> bool {
        for i in 0..outside.port.recv_burst() {
            let [number, version, sum] = parse(outside.port.datagram(i).1);
            if let Some((record, [asked, _, by])) = self.open
                && asked == number
            {
                let answer = match (by, version) {
                    (0, 0) => Answer::Missing,
                    (0, _) => Answer::Read(version, Value::Word(sum)),
                    _ => Answer::Sum(version, Value::Word(sum)),
                };
                outside.score.end(record, Some(answer));
                self.open = None;
            }
        }
        if self.open.is_none() && self.left > 0 {
            self.left -= 1;
            self.number += 1;
            let (key, by) = (self.rng.below(KEYS), self.rng.below(3));
            let op = match by {
                0 => Op::Read(Reject::default()),
                _ => Op::AddInteger(Reject::default(), by as i64),
            };
            self.open = Some((outside.score.call((1, key), op), [self.number, key, by]));
            self.again = outside.now;
        }
        if let Some((_, request)) = self.open
            && outside.now >= self.again
        {
            self.again = outside.now.after(500 * US);
            let server = outside.port.resolve(0).unwrap();
            send(outside, server, request);
        }
        false
    }

    fn deadline(&self) -> Option<Instant> {
        self.open.map(|_| self.again)
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

fn run(seed: u64, bug: Bug) -> Verdict {
    let mut options = Options::default();
    options.wire.fault = Fault {
        drop_ppm: 100_000,
        duplicate_ppm: 100_000,
        reorder_ppm: 100_000,
        reorder_ns: MS,
        ..Fault::default()
    };
    options.chaos = Chaos {
        every_ns: 10 * MS,
        weights: [1, 1, 0, 0],
        down_ns: 5 * MS,
        pause_ns: 5 * MS,
        ..Chaos::default()
    };
    let mut world = World::new(seed, options, History::default());
    world.host(HostFaults { crash: true, pause: true }, move |start| {
        let (mut counters, mut last) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in start.disk.iter().filter(|_| bug != Bug::Forgetful) {
            if key[0] == 0 {
                let [version, sum, _] = parse(&[&value[..], &[0; 8]].concat());
                counters.insert(u64::from(key[1]), (version, sum));
            } else {
                let reply = parse(value);
                last.insert(String::from_utf8(key[1..].to_vec()).unwrap(), (reply[0], reply));
            }
        }
        Box::new(Server {
            bug,
            cache: counters.clone(),
            counters,
            last,
            waiting: BTreeMap::new(),
            cached: start.now,
            seq: 0,
        })
    });
    let clients: Vec<HostId> = (0..4)
        .map(|_| {
            world.host(HostFaults { crash: false, pause: true }, |start| {
                Box::new(Client {
                    rng: start.rng,
                    left: 60,
                    number: 0,
                    open: None,
                    again: start.now,
                })
            })
        })
        .collect();
    world.run_for(2 * SECOND);
    world.end_faults();
    world.run_for(SECOND);
    assert_eq!(world.score.len(), 60 * clients.len());
    world.score.verdict(|_| ())
}

#[test]
fn the_correct_toy_store_is_linearizable() {
    for seed in 0..20 {
        assert_eq!(run(seed, Bug::None), Verdict::Good, "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in [Bug::NoFilter, Bug::Hasty, Bug::Forgetful, Bug::Stale] {
        let found = (0..60).filter(|&seed| matches!(run(seed, bug), Verdict::Broken(_))).count();
        assert!(found >= 5, "{bug:?} is found by {found} of 60 seeds");
    }
}
