//! Tests of the promises of every packet device: one test for each promise and device.

use sprat::internals::device::Nic as _;
use sprat_proto::Rng;
use sprat_proto::device::{
    BURST, Device as _, HEADER, Headers, MAX_PARTS, Offload, Segmentation, Sent,
};
use sprat_sys::netns::link;

use crate::Case;
use crate::house::{KINDS, Kind, Pair, counter, drain, frame, receive, send, sleep};

const MTU: usize = 1500;
/// Ethernet types that the kernel on the way handles, and a length.
const KINDS_OF_OTHERS: [u16; 5] = [0x0800, 0x0806, 0x86dd, 0x8100, 5];

/// A test of packet devices: its name, and its function, which gets a kind of device.
type Test = (&'static str, fn(&Kind));

/// The tests that run against every kind of device.
const EACH: &[Test] = &[
    ("frames_of_all_sizes_go_there_and_back", all_sizes),
    ("jumbo_frames_go_there_and_back", jumbo),
    ("parts_arrive_as_one_frame", parts),
    ("bursts_arrive_in_order", bursts),
    ("a_full_ring_loses_nothing_but_frames_that_are_counted", ring_full),
    ("what_does_not_fit_is_counted_and_dropped", refused),
    ("garbage_arrives_as_it_was_sent", garbage),
    ("a_sleeper_is_woken", sleeper),
    ("a_peer_that_vanishes_harms_nobody", vanished_peer),
    ("segments_are_cut_and_summed", segments),
    ("frames_say_when_they_came_where_that_is_known", stamps),
];

/// The tests that run against every kind of device that sits on an interface of the kernel.
const ON_INTERFACES: &[Test] = &[
    ("an_interface_that_is_deleted_is_gone", deleted),
    ("an_interface_that_is_switched_off_comes_back", switched_off),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        let more = if kind.root { ON_INTERFACES } else { &[] };
        for (name, run) in EACH.iter().chain(more) {
            // DPDK's side of memif knows no MTU but 1500.
            if kind.name == "dpdk" && (name.starts_with("jumbo") || name.starts_with("parts")) {
                continue;
            }
            let name = format!("{}::{name}", kind.name);
            cases.push(Case {
                name,
                root: kind.root,
                program: None,
                run: Box::new(move || run(kind)),
            });
        }
    }
    cases
}

fn bytes_of(frames: Vec<(Vec<u8>, sprat_proto::device::RxOffload)>) -> Vec<Vec<u8>> {
    frames.into_iter().map(|(bytes, _)| bytes).collect()
}

/// Sends each frame there and back. A frame that arrives may be padded to 60 bytes.
fn there_and_back(pair: &mut Pair, sizes: impl Iterator<Item = usize>) {
    let (a, b) = (pair.a.info().mac, pair.b.info().mac);
    assert!(a.is_unicast() && b.is_unicast() && a != b);
    for (number, len) in sizes.enumerate() {
        let number = number as u32;
        let there = frame(a, b, number, len);
        send(&mut pair.a, &there);
        let got = receive(&mut pair.b, 1);
        assert_eq!(got.len(), 1);
        assert!(got[0].0.starts_with(&there) && got[0].0.len() <= len.max(60), "{len}");
        let back = frame(b, a, number + 9, len);
        send(&mut pair.b, &back);
        let got = receive(&mut pair.a, 1);
        assert!(got[0].0.starts_with(&back) && got[0].0.len() <= len.max(60), "{len}");
    }
}

fn all_sizes(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    assert_eq!(pair.a.info().mtu, MTU);
    let sizes = (HEADER..200).chain((200..MTU).step_by(61)).chain(MTU..=MTU + HEADER);
    there_and_back(&mut pair, sizes);
    // With room for the ring to turn over several times.
    there_and_back(&mut pair, std::iter::repeat_n(64, 5000));
}

fn jumbo(kind: &Kind) {
    let mut pair = (kind.pair)(9000);
    let most = HEADER + pair.a.info().mtu;
    there_and_back(
        &mut pair,
        [60, 1514, 2048, 3000, 4096, 4097, 7000, 8191, 9000].into_iter().chain([most, most - 1]),
    );
}

fn parts(kind: &Kind) {
    let mut pair = (kind.pair)(9000);
    let (a, b) = (pair.a.info().mac, pair.b.info().mac);
    for len in [100, 1514, 9014] {
        let whole = frame(a, b, 3, len);
        let mut parts = vec![&whole[..HEADER], &[]];
        let rest = len - HEADER;
        let pieces = MAX_PARTS - 2;
        parts.extend(
            (0..pieces)
                .map(|i| &whole[HEADER + rest * i / pieces..HEADER + rest * (i + 1) / pieces]),
        );
        assert_eq!(parts.len(), MAX_PARTS);
        assert_eq!(pair.a.send(&parts, Offload::None), Sent::Yes);
        pair.a.flush();
        assert_eq!(bytes_of(receive(&mut pair.b, 1)), [&whole[..]]);
        for head in [42, 62] {
            let (headers, rest) = (Headers::from_bytes(&whole[..head]), &whole[head..]);
            let (a, b) = rest.split_at(rest.len() / 3);
            assert_eq!(
                pair.a.send_with_headers(&headers, &[a, &[], b], rest.len(), Offload::None),
                Sent::Yes
            );
            pair.a.flush();
            assert_eq!(bytes_of(receive(&mut pair.b, 1)), [&whole[..]]);
        }
    }
}

fn bursts(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    let (a, b) = (pair.a.info().mac, pair.b.info().mac);
    for size in [1, 2, BURST - 1, BURST, BURST + 1, 2 * BURST] {
        let sent: Vec<_> = (0..size as u32).map(|i| frame(a, b, i, 60 + 13 * i as usize)).collect();
        for bytes in &sent {
            assert_eq!(pair.a.send(&[bytes], Offload::None), Sent::Yes);
        }
        pair.a.flush();
        assert_eq!(bytes_of(receive(&mut pair.b, size)), sent);
    }
    assert_eq!(pair.b.recv_burst(), 0);
}

fn ring_full(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    // Both ways.
    for _ in 0..2 {
        flood(&mut pair);
        std::mem::swap(&mut pair.a, &mut pair.b);
    }
    drain(&mut pair.a);
    there_and_back(&mut pair, [60, 1514].into_iter());
}

/// Sends more frames than any ring holds. Each lost frame is counted, at one end or by the kernel
/// between them.
fn flood(pair: &mut Pair) {
    let (a, b) = (pair.a.info().mac, pair.b.info().mac);
    let before = lost(pair);
    let mut offered = Vec::new();
    for i in 0..12_000 {
        let bytes = frame(a, b, i, 200);
        match pair.a.send(&[&bytes], Offload::None) {
            Sent::Yes => offered.push(bytes),
            Sent::Full => pair.a.flush(),
            Sent::Gone => panic!("it has not vanished"),
        }
    }
    let mut got = Vec::new();
    // What found no room at first goes the second time.
    for _ in 0..2 {
        pair.a.flush();
        got.extend(bytes_of(drain(&mut pair.b)));
    }
    assert!(got.len() >= 100 && got.len() < 12_000, "{}", got.len());
    let mut sent = offered.iter();
    assert!(got.iter().all(|g| sent.any(|s| s == g)), "each as it was sent, in this order");
    let (missing, lost) = ((offered.len() - got.len()) as u64, lost(pair) - before);
    assert!(missing <= lost, "{missing} frames are missing, {lost} counted");
}

/// Returns the number of frames that were counted as lost: by the devices, and by the kernel's
/// interfaces at both ends.
fn lost(pair: &Pair) -> u64 {
    let mut lost = 0;
    for nic in [&pair.a, &pair.b] {
        nic.counters(&mut |name, count| {
            let losses =
                ["frames_unsent", "frames_ring_full", "frames_no_chunk", "frames_unconnected"];
            lost += if losses.contains(&name) { count } else { 0 };
        });
    }
    for end in pair.net.iter().flat_map(|net| [net.end(0), net.end(1)]) {
        let text =
            end.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap().unwrap();
        for line in text.lines().filter_map(|line| line.split_once(':')) {
            // Of what was received and of what was sent.
            let columns =
                line.1.split_whitespace().enumerate().filter(|(i, _)| [3, 11].contains(i));
            lost += columns.map(|(_, count)| count.parse::<u64>().unwrap()).sum::<u64>();
        }
    }
    lost
}

fn refused(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    let (a, b) = (pair.a.info().mac, pair.b.info().mac);
    let offloads = pair.a.info().offloads;
    for len in [0, 1, HEADER - 1, MTU + HEADER + 1, 70_000] {
        let bytes = frame(a, b, 1, len);
        assert_eq!(pair.a.send(&[&bytes[..len.min(bytes.len())]], Offload::None), Sent::Yes);
    }
    let bytes = frame(a, b, 1, 100);
    let many: Vec<&[u8]> = bytes.chunks(8).collect();
    assert!(many.len() > MAX_PARTS);
    assert_eq!(pair.a.send(&many, Offload::None), Sent::Yes);
    let mut expected = 6;
    if !offloads.checksum {
        assert_eq!(pair.a.send(&[&bytes], Offload::Checksum { start: 34, offset: 6 }), Sent::Yes);
        expected += 1;
    }
    pair.a.flush();
    assert_eq!(counter(&pair.a, "frames_refused"), expected);
    assert!(drain(&mut pair.b).is_empty());
    there_and_back(&mut pair, [60, 1514].into_iter());
}

fn garbage(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    let (a, b) = (pair.a.info().mac, pair.b.info().mac);
    let mut rng = Rng::seeded(7);
    for i in 0..2000 {
        let len = HEADER + rng.below(MTU as u64 + 1) as usize;
        let mut bytes = frame(a, b, i, len);
        rng.fill(&mut bytes[HEADER..]);
        send(&mut pair.a, &bytes);
        let got = receive(&mut pair.b, 1);
        assert!(got[0].0.starts_with(&bytes));
        // Frames of types that the kernel on the way knows, to any address, must not stop the
        // device.
        let mut wild = bytes;
        rng.fill(&mut wild[..12]);
        wild[12..14].copy_from_slice(&KINDS_OF_OTHERS[rng.below(5) as usize].to_be_bytes());
        send(&mut pair.a, &wild);
        pair.b.recv_burst();
    }
    drain(&mut pair.b);
    drain(&mut pair.a);
    there_and_back(&mut pair, [60, 1514].into_iter());
}

fn sleeper(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    let (a, b) = (pair.a.info().mac, pair.b.info().mac);
    drain(&mut pair.b);
    for i in 0..100 {
        assert_eq!(pair.b.recv_burst(), 0);
        std::thread::scope(|scope| {
            let (from, to) = (&mut pair.a, &mut pair.b);
            let woken =
                scope.spawn(move || sleep(to, &rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 }));
            send(from, &frame(a, b, i, 64));
            assert!(woken.join().unwrap());
        });
        assert_eq!(receive(&mut pair.b, 1).len(), 1);
    }
}

fn vanished_peer(kind: &Kind) {
    let Pair { mut a, b, net, .. } = (kind.pair)(MTU);
    let bytes = frame(a.info().mac, b.info().mac, 1, 500);
    drop(b);
    for _ in 0..2000 {
        let _ = a.send(&[&bytes], Offload::None);
        a.flush();
        a.recv_burst();
    }
    assert!(drain(&mut a).is_empty());
    drop(net);
}

fn deleted(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    let net = pair.net.as_ref().unwrap();
    let bytes = frame(pair.a.info().mac, pair.b.info().mac, 1, 500);
    net.end(0).run(|| link::remove(pair.dev)).unwrap().unwrap();
    for nic in [&mut pair.a, &mut pair.b] {
        for _ in 0..100 {
            nic.recv_burst();
            let _ = nic.send(&[&bytes], Offload::None);
            nic.flush();
        }
        assert_eq!(nic.send(&[&bytes], Offload::None), Sent::Gone);
        assert!(drain(nic).is_empty());
        assert_eq!(nic.recv_burst(), 0);
    }
}

fn switched_off(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    let net = pair.net.as_ref().unwrap();
    let bytes = frame(pair.a.info().mac, pair.b.info().mac, 1, 500);
    net.end(0).run(|| link::switch(pair.dev, false)).unwrap().unwrap();
    for _ in 0..100 {
        assert_ne!(pair.a.send(&[&bytes], Offload::None), Sent::Gone);
        pair.a.flush();
    }
    drain(&mut pair.a);
    drain(&mut pair.b);
    net.end(0).run(|| link::switch(pair.dev, true)).unwrap().unwrap();
    // What waited in a ring meanwhile goes now.
    send(&mut pair.a, &bytes);
    drain(&mut pair.b);
    there_and_back(&mut pair, [60, 1514].into_iter());
}

fn stamps(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    // The kernel's packet sockets alone say.
    assert_eq!(
        pair.b.has_rx_timestamps(),
        kind.name.starts_with("packet") || kind.name.starts_with("tap")
    );
    let (a, b) = (pair.a.info().mac, pair.b.info().mac);
    send(&mut pair.a, &frame(a, b, 1, 100));
    for _ in 0..1_000_000 {
        if pair.b.recv_burst() > 0 {
            let stamp = pair.b.rx_timestamp_ns(0);
            assert_eq!(stamp.is_some_and(|ns| ns > 0), pair.b.has_rx_timestamps(), "{stamp:?}");
            return;
        }
        std::thread::yield_now();
    }
    panic!("it does not arrive");
}

/// Returns the ones' complement sum of `bytes`, which begin at an even offset, added to `start`.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let words =
        bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b)));
    let mut sum = words.fold(start, |sum, w| sum.wrapping_add(w));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

const IP: usize = HEADER;
const UDP: usize = IP + 20;
const DATA: usize = UDP + 8;

/// Returns the sum of the pseudo-header of a UDP datagram over IPv4.
fn pseudo(frame: &[u8]) -> u32 {
    u32::from(sum(&frame[IP + 12..IP + 20], 17 + (frame.len() - UDP) as u32))
}

/// Returns a UDP datagram with `len` bytes of payload. Its checksum field is prepared for the
/// device.
fn datagram(pair: &Pair, len: usize) -> Vec<u8> {
    let (a, b) = (pair.a.info().mac, pair.b.info().mac);
    let mut f = [&b.0[..], &a.0, &0x0800_u16.to_be_bytes()].concat();
    let total = (len + 28) as u16;
    f.extend([0x45, 0]);
    f.extend(total.to_be_bytes());
    f.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
    let header = !sum(&f[IP..IP + 20], 0);
    f[IP + 10..IP + 12].copy_from_slice(&header.to_be_bytes());
    f.extend(9_u16.to_be_bytes());
    f.extend(99_u16.to_be_bytes());
    f.extend((len as u16 + 8).to_be_bytes());
    f.extend([0, 0]);
    f.extend((0..len).map(|i| ((i * 7) >> 3) as u8));
    let part = sum(&[], pseudo(&f));
    f[UDP + 6..UDP + 8].copy_from_slice(&part.to_be_bytes());
    f
}

fn segments(kind: &Kind) {
    let mut pair = (kind.pair)(MTU);
    let offloads = pair.a.info().offloads;
    if !offloads.checksum {
        assert_eq!(pair.a.info().max_send, HEADER + MTU);
        return;
    }
    for (len, mss) in [(100, 0), (1472, 0), (3000, 1400), (60_000, 1472), (65_400, 1024)] {
        let sent = datagram(&pair, len);
        let start = UDP as u16;
        let offload = match mss {
            0 => Offload::Checksum { start, offset: 6 },
            mss => Offload::Segments { kind: Segmentation::Udp, start, header: DATA as u16, mss },
        };
        assert_eq!(pair.a.send(&[&sent[..DATA], &sent[DATA..]], offload), Sent::Yes);
        pair.a.flush();
        let mut payload = Vec::new();
        while payload.len() < len {
            for (bytes, arrival) in datagrams(&mut pair) {
                let joined = arrival.segment_size > 0;
                assert!(!joined || arrival.segment_size == mss, "{arrival:?}");
                assert!(joined || bytes.len() <= HEADER + MTU);
                let right = sum(&bytes[UDP..], pseudo(&bytes)) == 0xffff;
                assert!(
                    right || arrival.checksum_valid,
                    "a checksum that nobody computed and nobody vouches for"
                );
                payload.extend_from_slice(&bytes[DATA..]);
            }
        }
        assert_eq!(payload, &sent[DATA..]);
    }
}

/// Returns the test's datagrams in the next burst of the device `b`.
fn datagrams(pair: &mut Pair) -> Vec<(Vec<u8>, sprat_proto::device::RxOffload)> {
    let mut n = pair.b.recv_burst();
    if n == 0 {
        assert!(
            sleep(&mut pair.b, &rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 }),
            "nothing arrives"
        );
        n = pair.b.recv_burst();
    }
    let frames = (0..n).map(|i| pair.b.frame(i)).map(|(bytes, arrival)| (bytes.to_vec(), arrival));
    frames
        .filter(|(bytes, _)| {
            bytes.get(12..14) == Some(&[8, 0]) && bytes[UDP + 2..UDP + 4] == [0, 99]
        })
        .collect()
}
