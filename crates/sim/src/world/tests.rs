use std::any::Any;

use super::*;
use crate::disk::Write;
use sprat_proto::Datagrams as _;

/// A process that sends its count to the next host every millisecond, and writes to disk how far it
/// has got.
struct Ticker {
    host: HostId,
    of: usize,
    next: Instant,
    count: u64,
    safe: u64,
}

#[derive(Default, Debug)]
struct Seen {
    /// The number of datagrams that each host has received.
    got: [u64; 3],
    /// The number of writes that each host's disk had acknowledged.
    safe: [u64; 3],
    /// The number of times that a disk refused writes because it was full.
    refused: u64,
}

impl Process<Seen> for Ticker {
    fn turn(&mut self, outside: &mut Outside<'_, Seen>) -> bool {
        for outcome in outside.completed.drain(..) {
            let Outcome::Safe(seq) = outcome else {
                // What waited was refused; it is not asked for again.
                (self.safe, outside.score.refused) = (self.count, outside.score.refused + 1);
                continue;
            };
            assert_eq!(seq, self.safe + 1);
            self.safe = seq;
            outside.score.safe[self.host] += 1;
        }
        outside.score.got[self.host] += outside.port.recv_burst() as u64;
        if outside.now >= self.next {
            self.next = outside.now.after(MS);
            self.count += 1;
            let to = outside.port.resolve((self.host + 1) % self.of).unwrap();
            outside.port.send(to, &[&self.count.to_be_bytes()]);
            let key = outside.now.as_ns().to_be_bytes().to_vec();
            outside.writes.push(Write {
                seq: self.count,
                puts: vec![(key, vec![])],
                deletes: vec![],
            });
        }
        false
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.next)
    }

    fn state(&mut self) -> &mut dyn Any {
        self
    }
}

fn world(seed: u64, options: Options) -> World<Seen> {
    let mut world = World::new(seed, options, Seen::default());
    for _ in 0..3 {
        world.host(HostFaults { crash: true, pause: true }, |start| {
            Box::new(Ticker { host: start.host, of: 3, next: start.now, count: 0, safe: 0 })
        });
    }
    world
}

fn wild() -> Options {
    let chaos = Chaos {
        every_ns: 20 * MS,
        weights: [1, 1, 1, 1],
        down_ns: 30 * MS,
        pause_ns: 30 * MS,
        partition_ns: 30 * MS,
        full_ns: 30 * MS,
    };
    Options { chaos, ..Options::default() }
}

#[test]
fn time_passes_alike_for_everyone() {
    let mut world = world(1, Options::default());
    world.run_for(SECOND - 1);
    assert!(world.score.got.iter().all(|n| (999..=1001).contains(n)), "{:?}", world.score);
    assert_eq!(world.now(), Instant::from_ns(SECOND - 1));
}

#[test]
fn a_seed_repeats_itself_and_another_does_not() {
    let run = |seed| {
        let mut world = world(seed, wild());
        world.run_for(SECOND);
        (world.trace_hash(), world.score.got)
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3).0, run(4).0);
}

#[test]
fn a_dead_process_starts_anew_with_its_disk() {
    let mut world = World::new(5, Options::default(), Seen::default());
    let host = world.host(HostFaults { crash: true, pause: true }, |start| {
        Box::new(Ticker { host: 0, of: 1, next: start.now, count: 0, safe: 0 })
    });
    for life in 1..20 {
        world.run_for(10 * MS);
        assert_eq!(world.life(host), life);
        world.crash(host, Some(MS));
        assert!(!world.is_up(host));
        let found = world.hosts[host].disk.contents().len() as u64;
        assert!(found >= world.score.safe[0]);
        assert!(found <= world.score.safe[0] + 3 * life);
        world.run_for(2 * MS);
    }
}

#[test]
fn a_paused_process_finds_its_mail() {
    let mut world = world(6, Options::default());
    world.run_for(10 * MS);
    let before = world.score.got[1];
    world.pause(1, 100 * MS);
    world.run_for(99 * MS);
    assert_eq!(world.score.got[1], before);
    world.run_for(10 * MS);
    assert!(world.score.got[1] >= before + 90);
}

#[test]
fn end_faults_ends_all_faults() {
    for seed in 0..20 {
        let mut world = world(seed, wild());
        world.run_for(SECOND);
        world.end_faults();
        world.run_for(5 * MS);
        let before = world.score.got;
        world.run_for(100 * MS);
        for host in 0..3 {
            assert!(world.is_up(host));
            assert!(
                (98..=102).contains(&(world.score.got[host] - before[host])),
                "{before:?} {world:?}"
            );
        }
    }
}

#[test]
fn clocks_differ_but_agree_with_themselves() {
    let clock = Clock { ahead_ns: 77, ppm: 999_800 };
    for ns in [0, 1, 999, 1_000_000, 123_456_789_012] {
        let local = clock.local(Instant::from_ns(ns));
        let truth = clock.truth(local);
        assert!(truth <= Instant::from_ns(ns) && clock.local(truth) >= local);
    }
    assert_eq!(clock.truth(Instant::NEVER), Instant::NEVER);
}

/// A process that asks for another turn whatever has arrived.
struct Spinner;

impl Process<Seen> for Spinner {
    fn turn(&mut self, _: &mut Outside<'_, Seen>) -> bool {
        true
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn state(&mut self) -> &mut dyn Any {
        self
    }
}

#[test]
fn a_process_that_turns_for_nothing_is_found() {
    let mut world = World::new(1, Options::default(), Seen::default());
    world.host(HostFaults::NONE, |_| Box::new(Spinner));
    let run = std::panic::AssertUnwindSafe(|| world.run_for(10 * SECOND));
    let why = std::panic::catch_unwind(run).expect_err("it turns for nothing");
    assert!(why.downcast::<String>().is_ok_and(|why| why.starts_with("host 0 turns for nothing")));
}
