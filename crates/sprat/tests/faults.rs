//! The RPC endpoint over real UDP sockets that lose, double, reorder and damage: every request
//! completes with the right reply, and none is executed twice.

use std::collections::HashMap;

use sprat::internals::driver::fault::Faulty;
use sprat::internals::driver::udp::{Options, Udp};
use sprat::internals::transport::SystemTransport;
use sprat_proto::fault::Fault;
use sprat_proto::node::{Fast, Transport};
use sprat_proto::rpc::{Config, Event};
use sprat_proto::tracepoint::NoProbe;
use sprat_proto::{Instant, Rng};
use sprat_sys::clock::Clock;
use sprat_sys::crc::crc32c;

/// The deadline of a request, in nanoseconds. No request takes this long; it only ends a broken
/// test.
const FOREVER_NS: u64 = 300_000_000_000;
/// Number of requests that the test keeps in progress.
const DEPTH: usize = 6;

type FaultyUdp = Fast<Faulty<Udp>>;

fn open(driver: Udp, serve: bool, fault: Fault, seed: u64) -> FaultyUdp {
    let config = Config { crc32c, serve, ..Config::default() };
    Fast::new(
        Faulty::new(driver, fault, Rng::seeded(seed)),
        config,
        Rng::seeded(seed + 100),
        NoProbe,
    )
}

/// Makes a request of `len` bytes, which begins with its number as far as it has room.
fn request(number: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (number * 131 + i * 7 + i / 251) as u8).collect();
    for (to, from) in bytes.iter_mut().zip((number as u32).to_be_bytes()) {
        *to = from;
    }
    bytes
}

/// Returns the service's reply to a request.
fn answer(request: &[u8]) -> Vec<u8> {
    request.iter().map(|b| b ^ 0x5a).collect()
}

/// Sends requests of the lengths `lens` over faulty UDP. Fails if a reply is wrong or a request is
/// executed twice.
fn run(fault: Fault, seed: u64, options: Options, lens: &[usize]) {
    let at = "fast+udp:host=127.0.0.1,port=0".parse().unwrap();
    let mut server = open(Udp::listen(&at, options).unwrap(), true, fault, seed);
    let mut client = open(Udp::client(options).unwrap(), false, fault, seed + 1);
    let clock = Clock::new();
    let session = client.connect(clock.now(), &server.locator().unwrap().parse().unwrap()).unwrap();
    let mut executed: HashMap<Vec<u8>, usize> = HashMap::new();
    let (mut next, mut done) = (0, 0);
    while done < lens.len() {
        let now = clock.now();
        assert!(now.as_ns() < FOREVER_NS, "seed {seed}: {done} of {} requests done", lens.len());
        while next < lens.len() && next - done < DEPTH {
            let mut message = request(next, lens[next]).into();
            client.request(now, session, next as u64, &mut message, Instant::NEVER).unwrap();
            next += 1;
        }
        for transport in [&mut server, &mut client] {
            transport.input(now);
            if transport.deadline().is_some_and(|at| at <= now) {
                transport.tick(now);
            }
        }
        while let Some(event) = server.event(now) {
            let Event::Request { rpc, payload, .. } = event else {
                panic!("seed {seed}: {event:?}")
            };
            *executed.entry(payload.to_vec()).or_default() += 1;
            let reply = answer(&payload);
            server.reply(now, rpc, &mut reply.into(), false);
        }
        while let Some(event) = client.event(now) {
            let Event::Response { tag, payload, .. } = event else {
                panic!("seed {seed}: {event:?}")
            };
            let tag = tag as usize;
            assert!(
                *payload == *answer(&request(tag, lens[tag])),
                "seed {seed}: request {tag} of {}",
                lens[tag]
            );
            done += 1;
        }
        for transport in [&mut server, &mut client] {
            transport.output(now, &());
            while transport.released().is_some() {}
        }
    }
    let mut sent: HashMap<Vec<u8>, usize> = HashMap::new();
    for (number, len) in lens.iter().enumerate() {
        *sent.entry(request(number, *len)).or_default() += 1;
    }
    assert!(executed == sent, "seed {seed}: a request was executed twice, or not at all");
    let faults = [server.driver().counters(), client.driver().counters()];
    assert!(faults.iter().all(|f| f.dropped > 0 && f.delayed > 0), "{faults:?}");
}

fn tenth() -> Fault {
    let tenth = 100_000;
    Fault {
        drop_ppm: tenth,
        duplicate_ppm: tenth,
        reorder_ppm: tenth,
        reorder_ns: 50_000,
        ..Fault::default()
    }
}

#[test]
fn small_requests_through_a_tenth_of_loss_duplication_and_reordering() {
    let lens: Vec<usize> = (0..400).map(|i| [0, 1, 4, 100, 1000, 3000][i % 6]).collect();
    run(tenth(), 1, Options::default(), &lens);
}

#[test]
fn requests_of_every_size_up_to_1_mb() {
    let lens = [10_000, 100_000, 1_000_000, 0, 65_536, 7, 300_000, 1_000_000, 1_452, 50_000];
    run(tenth(), 11, Options::default(), &lens);
}

#[test]
fn the_packets_of_a_network() {
    let lens = [100, 10_000, 100_000, 0, 300_000, 1_400, 1_500];
    run(tenth(), 21, Options { max_payload: Some(1452), ..Options::default() }, &lens);
}

#[test]
fn damage_is_found_and_counts_as_loss() {
    let fault = Fault { corrupt_ppm: 50_000, truncate_ppm: 50_000, ..tenth() };
    let lens: Vec<usize> = (0..100).map(|i| [0, 10, 2_000, 40_000][i % 4]).collect();
    run(fault, 31, Options::default(), &lens);
}
