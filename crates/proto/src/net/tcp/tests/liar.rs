//! A peer that lies: what it can make this end hold is within the options, whatever it sends.

use super::*;
use crate::wire::tcp::SackBlocks;

/// The bytes of bookkeeping for a byte in flight at most: a segment of the least MSS has an entry.
const PER_SEGMENT: usize = size_of::<scoreboard::Sent>();
const LEAST_MSS: usize = 48;

/// Returns a number near another one, or at the other side of all numbers.
fn near(rng: &mut Rng, value: u32) -> u32 {
    let most = [3, 2000, 100_000, 1 << 32][rng.below(4) as usize];
    let distance = rng.below(most) as u32;
    if rng.chance(500_000) { value.wrapping_add(distance) } else { value.wrapping_sub(distance) }
}

/// Returns a segment that the peer could have sent, with some fields that are wrong.
fn lie(rng: &mut Rng, truth: Tcp) -> (Tcp, Vec<u8>) {
    let mut tcp = truth;
    if rng.chance(400_000) {
        tcp.seq = near(rng, tcp.seq);
    }
    if rng.chance(500_000) {
        // Of what never arrived, of a part of a segment, of long ago.
        tcp.ack = near(rng, tcp.ack);
    }
    if rng.chance(500_000) {
        tcp.options.sack = SackBlocks::default();
        for _ in 0..1 + rng.below(4) {
            tcp.options.sack.push((near(rng, truth.ack), near(rng, truth.ack)));
        }
    }
    if rng.chance(300_000) {
        tcp.window = [0, 1, rng.u32() as u16][rng.below(3) as usize];
    }
    let len = if rng.chance(400_000) { rng.below(1400) as usize } else { 0 };
    let mut data = alloc::vec![0; len];
    rng.fill(&mut data);
    (tcp, data)
}

fn check(net: &mut Net, seed: u64) {
    let config = net.ends[0].config.clone();
    let connection = net.connection(0);
    let (send, receive) = (config.send_bytes as usize, config.receive_bytes as usize);
    let board = connection.send.board.capacity() * PER_SEGMENT;
    assert!(connection.send.data.capacity() <= send.next_power_of_two(), "seed {seed}");
    assert!(connection.receive.capacity() <= receive.next_power_of_two(), "seed {seed}");
    let segments = (send / LEAST_MSS + 2).next_power_of_two().max(32);
    assert!(board <= 2 * segments * PER_SEGMENT, "seed {seed}: {board} bytes for segments");
    let (una, next) = (connection.send.una, connection.send.next);
    assert!(next.since(una) as usize <= send + 1, "seed {seed}");
    let window = connection.send.congestion.window() as usize;
    assert!(connection.pipe() as usize <= window.max(send) + 1, "seed {seed}");
}

#[test]
fn a_peer_that_lies_gets_no_more_memory_than_the_options_allow() {
    for seed in 0..200 {
        let mut rng = Rng::seeded(seed);
        let config = TcpConfig {
            receive_bytes: [3000, 100_000][rng.below(2) as usize],
            send_bytes: [3000, 100_000][rng.below(2) as usize],
            sack: rng.chance(700_000),
            timestamps: rng.chance(700_000),
            mss: [100, 1460][rng.below(2) as usize],
            ..TcpConfig::default()
        };
        let faults = Faults { jitter_ns: MS, loss_ppm: 10_000, ..Faults::default() };
        let mut net = Net::new([config.clone(), config], faults, seed);
        net.give(0, 300_000);
        net.give(1, 300_000);
        net.ends.iter_mut().for_each(|end| end.closes = false);
        net.ends[0].reads = [0, 100, usize::MAX][rng.below(3) as usize];
        for _ in 0..1500 {
            if !net.step() || net.state(0) == TcpState::Closed {
                break;
            }
            let Some(&(_, _, truth, _)) = net.log.iter().rev().find(|l| l.1 == 1) else { continue };
            if rng.chance(300_000) && net.ends[1].connection.is_some() {
                let (tcp, data) = lie(&mut rng, truth);
                let now = net.now;
                let End { connection, config, .. } = &mut net.ends[0];
                let connection = connection.as_mut().expect("the end has a connection");
                connection.input(now, config, &Segment { tcp, data: &data, is_marked: true });
                net.work();
                check(&mut net, seed);
            }
        }
    }
}
