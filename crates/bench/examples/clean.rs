//! Measures overwrites of random objects of 100 B in memory that is filled to a share, and the
//! cleaning that they pay for, in one thread and without a network; and again with a second thread
//! that helps the cleaner.
//!
//! The rate is the median of quarters of a second, beside the best of them.
//!
//! ```text
//! cargo run --release -p sprat-bench --example clean [GiB of log] [seconds] [percent…]
//! ```

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant as Clock};

use sprat_proto::Rng;
use sprat_store::message::Status;
use sprat_store::objects::cache;
use sprat_store::objects::cleaner::{Cleaner, Copier, Job, STEP, Worth};
use sprat_store::objects::memory::Memory;
use sprat_sys::cpu;
use sprat_sys::memory::huge;

mod objects;

use objects::{hash, memory, own_all, write};

/// Servers have huge pages too, without which nearly every access to an object misses the
/// translation cache.
#[global_allocator]
static ALLOCATOR: huge::Allocator = huge::Allocator;

/// The number of writes between two readings of the clock. A server knows of them before the first
/// is executed.
const BURST: usize = 16;
/// The number of bytes of an object that a server loads ahead.
const LOADED: usize = 192;

/// A thread that helps the cleaner. Like that of a server, it runs while a core has nothing else to
/// do.
#[derive(Debug)]
struct Thread {
    jobs: Sender<Box<Job>>,
    done: Receiver<Box<Job>>,
}

impl Thread {
    fn new() -> Self {
        let (jobs, waiting) = channel::<Box<Job>>();
        let (ready, done) = channel();
        thread::spawn(move || {
            cpu::run_when_idle().expect("a thread may lower its own priority");
            for mut job in waiting {
                job.run();
                if ready.send(job).is_err() {
                    break;
                }
            }
        });
        Self { jobs, done }
    }
}

impl Copier for Thread {
    fn start(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        self.jobs.send(job).map_err(|failed| failed.0)
    }

    fn done(&mut self) -> Option<Box<Job>> {
        self.done.try_recv().ok()
    }
}

/// The memory of a server, and the number of its last mutation.
struct Server {
    memory: Memory,
    cleaner: Cleaner,
    rpc: u64,
}

impl Server {
    /// Writes the object `number`. Returns the number of times that it found no free segment.
    fn write(&mut self, number: u64) -> u64 {
        self.rpc += 1;
        let mut waits = 0;
        loop {
            match write(&mut self.memory, self.rpc, number, &[7; 100]) {
                Ok(()) => break,
                Err(Status::Retry) => waits += 1,
                Err(status) => panic!("{status:?}"),
            }
            self.cleaner.step(&mut self.memory, STEP);
        }
        self.cleaner.pay(&mut self.memory);
        waits
    }

    /// Loads what the writes of these objects need into the processor's cache, as servers do.
    fn expect(&self, numbers: &[u64; BURST]) {
        let hashes = numbers.map(|number| hash(&self.memory, number));
        let table = &self.memory.table;
        black_box(hashes.iter().fold(0, |read, &hash| read ^ table.prefetch(hash)));
        for at in hashes.iter().filter_map(|&hash| table.first(hash)) {
            let bytes = self.memory.log.bytes(at);
            cache::load(&bytes[..bytes.len().min(LOADED)]);
        }
    }
}

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let bytes = arguments.first().map_or(4, |gib| *gib) << 30;
    let seconds = arguments.get(1).copied().unwrap_or(10);
    println!(
        "| live | threads | overwrites a second | best | moved per written byte | by the helper \
         | longest burst | waits |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let percents = if arguments.len() > 2 { &arguments[2..] } else { &[50, 90] };
    for (&percent, threads) in percents.iter().flat_map(|percent| [(percent, 1), (percent, 2)]) {
        let mut server = Server { memory: memory(bytes), cleaner: Cleaner::default(), rpc: 0 };
        if threads == 2 {
            server.cleaner.help(Box::new(Thread::new()), Worth::SERVER);
        }
        own_all(&mut server.memory);
        let mut objects = 0;
        while server.memory.log.live_bytes() < bytes / 100 * percent {
            objects += 1;
            server.write(objects);
        }
        let mut rng = Rng::seeded(1);
        let mut overwrite = |server: &mut Server, least: Duration| {
            let (began, from) = (Clock::now(), server.rpc);
            let (mut longest, mut waits, mut last) = (Duration::ZERO, 0, began);
            while last - began < least {
                let numbers = std::array::from_fn(|_| 1 + rng.below(objects));
                server.expect(&numbers);
                waits += numbers.iter().map(|number| server.write(*number)).sum::<u64>();
                let now = Clock::now();
                (longest, last) = (longest.max(now - last), now);
            }
            ((server.rpc - from) as f64 / (last - began).as_secs_f64(), longest, waits)
        };
        // Until the cleaner has a choice as it will have from then on.
        while server.memory.log.written_bytes() < 2 * bytes {
            overwrite(&mut server, Duration::from_millis(10));
        }
        let log = &server.memory.log;
        let (appended, written) = (log.appended_bytes(), log.written_bytes());
        let helped = server.cleaner.helped();
        let parts: Vec<_> =
            (0..seconds * 4).map(|_| overwrite(&mut server, Duration::from_millis(250))).collect();
        let mut rates: Vec<f64> = parts.iter().map(|part| part.0 / 1e6).collect();
        rates.sort_unstable_by(f64::total_cmp);
        let longest = parts.iter().map(|part| part.1).max().unwrap_or_default();
        let waits: u64 = parts.iter().map(|part| part.2).sum();
        let log = &server.memory.log;
        let written = log.written_bytes() - written;
        let moved = log.appended_bytes() - appended - written;
        let helped = (server.cleaner.helped() - helped) * u64::from(log.segment_bytes());
        println!(
            "| {percent} % | {threads} | {:.3} M | {:.3} M | {:.2} | {:.0} % | {:.0} µs \
             | {waits} |",
            rates[rates.len() / 2],
            rates[rates.len() - 1],
            moved as f64 / written as f64,
            helped as f64 * 100.0 / moved.max(1) as f64,
            longest.as_secs_f64() * 1e6,
        );
    }
}
