//! Tests of records, which stay whole on a segment, and of data that is lent.

use super::super::receive::{Due, Receive, Taken};
use super::super::records::Records;
use super::super::seq::Seq;
use super::*;

/// Returns a connection whose end 0 sends records of these lengths, and the segments' data that it
/// may have: the places of the records in the stream, by their beginnings.
fn with_records(lens: &[usize], faults: Faults, seed: u64) -> (Net, BTreeMap<usize, usize>) {
    let config = TcpConfig { user_timeout_ns: 3600 * SECOND, ..TcpConfig::default() };
    let mut net = Net::new([config.clone(), config], faults, seed);
    net.give(0, lens.iter().sum());
    net.ends[0].records = lens.iter().copied().collect();
    let mut at = 0;
    let place = |&len: &usize| {
        at += len;
        (at - len, len)
    };
    let places = lens.iter().map(place).collect();
    (net, places)
}

/// Returns the places in the stream of the data that end 0 has sent.
fn sent(net: &Net) -> Vec<(usize, usize)> {
    let initial = net.log.iter().find(|l| l.1 == 0).map_or(0, |l| l.2.seq);
    let data = net.log.iter().filter(|(_, end, _, len)| *end == 0 && *len > 0);
    data.map(|(_, _, tcp, len)| (tcp.seq.wrapping_sub(initial) as usize - 1, *len)).collect()
}

/// RFC 5044 5.1: a segment holds whole records, also when it is sent again.
#[test]
fn each_segment_holds_whole_records_also_when_it_is_sent_again() {
    let mut whole = 0;
    for seed in 0..100 {
        let mut rng = Rng::seeded(seed);
        let lens: Vec<_> = (0..300)
            .map(|_| [1448, 4 + rng.below(1445) as usize, 64][rng.below(3) as usize])
            .collect();
        let faults = Faults { loss_ppm: 50_000, jitter_ns: 2 * MS, ..Faults::default() };
        let (mut net, places) = with_records(&lens, faults, seed);
        net.ends[0].most = [0, 60_000][rng.below(2) as usize];
        net.complete(1000 * SECOND, [lens.iter().sum(), 0]).unwrap();
        // After two timeouts in a row segments are shorter, and records do not fit.
        if net.connection(0).mss() < 1448 {
            continue;
        }
        whole += 1;
        for (at, len) in sent(&net) {
            let mut end = at;
            while end < at + len {
                let record = places.get(&end).expect("a record begins where the last one ends");
                end += record;
            }
            assert_eq!(end, at + len, "seed {seed}: {len} bytes at {at}");
            assert!(len <= 1448, "seed {seed}: {len} bytes in a segment");
        }
    }
    assert!(whole > 90, "{whole} of 100 seeds");
}

/// A device that cuts segments gets records of one length together.
#[test]
fn records_of_one_length_leave_together() {
    let (mut net, _) = with_records(&[1000; 40], Faults::default(), 1);
    net.ends[0].most = 64_000;
    let calls = core::cell::Cell::new(0);
    net.run_until(SECOND, |net| {
        calls.set(calls.get() + 1);
        net.ends[1].received.len() == 40_000
    });
    let times: alloc::collections::BTreeSet<_> =
        net.log.iter().filter(|l| l.1 == 0 && l.3 > 0).map(|l| l.0).collect();
    assert!(times.len() <= 4, "{} bursts", times.len());
}

/// Records that wait share a segment, as many as fit: the device cuts at the ends of records.
#[test]
fn short_records_share_a_segment() {
    for most in [0, 64_000] {
        let (mut net, _) = with_records(&[100; 40], Faults::default(), 1);
        net.ends[0].most = most;
        net.run_until(SECOND, |net| net.ends[1].received.len() == 4000);
        assert_eq!(sent(&net), [(0, 1400), (1400, 1400), (2800, 1200)]);
    }
}

/// The segments of a batch are of one length, but the last, and hold whole records.
#[test]
fn a_batch_of_records_is_cut_at_their_ends() {
    let batch = |lens: &[u32], room, most| {
        let mut records = Records::default();
        records.begin(lens[0]);
        lens[1..].iter().for_each(|len| records.push(*len));
        records.next(room, most, 1000).map(|batch| (batch.len, batch.unit)).unwrap()
    };
    const ALL: u32 = 100_000;
    assert_eq!(batch(&[400, 400, 400], ALL, 0), (800, 800));
    assert_eq!(batch(&[400; 5], ALL, ALL), (2000, 800), "the last is shorter");
    assert_eq!(batch(&[400, 400, 300, 300, 300], ALL, ALL), (1400, 800), "so is the second");
    assert_eq!(batch(&[400, 700, 900], ALL, ALL), (400, 400), "a longer one");
    assert_eq!(batch(&[900, 200, 300, 500], ALL, ALL), (1400, 900), "500 would be the third");
    assert_eq!(batch(&[1000, 1000, 64, 64, 1000], ALL, ALL), (2128, 1000));
    assert_eq!(batch(&[400; 5], 1300, ALL), (1200, 800), "room for three");
    assert_eq!(batch(&[400; 5], 399, ALL), (0, 400), "room for none");
    assert_eq!(batch(&[2500, 400], ALL, ALL), (2500, 1000), "longer than a segment");
    assert_eq!(batch(&[2500, 400], ALL, 0), (1000, 1000));
}

/// A path that becomes too narrow splits records, and so do a window that stays too small and a
/// length above the MSS. The stream is right then too.
#[test]
fn records_that_do_not_fit_are_split() {
    let faults = Faults { mtus: Vec::from([(30, 600)]), ..Faults::default() };
    let (mut net, _) = with_records(&[1448; 200], faults, 1);
    net.complete(100 * SECOND, [200 * 1448, 0]).unwrap();
    let (mut net, _) = with_records(&[5000, 1448, 20_000, 7], Faults::default(), 1);
    net.complete(100 * SECOND, [26_455, 0]).unwrap();
    let (mut net, _) = with_records(&[1448; 10], Faults::default(), 1);
    net.ends[1].config.receive_bytes = 1000;
    net.complete(100 * SECOND, [14_480, 0]).unwrap();
}

/// Bytes written before the first record are a stream, and all that is written after it are
/// records.
#[test]
fn a_stream_may_become_one_of_records() {
    let mut net = Net::plain();
    net.ends[0].closes = false;
    net.run_until(SECOND, |net| net.state(1) == TcpState::Established);
    net.ends[0].closes = true;
    let config = net.ends[0].config.clone();
    let bytes: Vec<u8> = (0..6000).map(byte).collect();
    let connection = net.connection(0);
    assert_eq!(connection.write(&config, &bytes[..2000]), 2000);
    assert!(connection.write_record(&config, &[&bytes[2000..3000]]));
    assert!(connection.write_record(&config, &[&[], &bytes[3000..3100], &bytes[3100..4000]]));
    assert_eq!(connection.write(&config, &bytes[4000..]), 2000);
    net.complete(10 * SECOND, [6000, 0]).unwrap();
    let places = [(0, 1448), (1448, 552), (2000, 1000), (3000, 1000), (4000, 1448), (5448, 552)];
    assert_eq!(sent(&net), places);
    let connection = net.connection(0);
    assert!(!connection.write_record(&config, &[b"late"]), "the end was sent");
}

/// Data in order is lent, and that behind a gap, or behind data that was not taken, is not.
#[test]
fn lent_data_that_is_not_taken_can_be_read_later() {
    for seed in 0..50 {
        let faults = Faults { loss_ppm: 30_000, jitter_ns: MS, ..Faults::default() };
        let mut net = Net::new(Default::default(), faults, seed);
        net.give(0, 200_000);
        net.give(1, 50_000);
        (net.ends[0].borrows, net.ends[1].borrows) = (true, true);
        net.ends[1].reads = [100, 2000, usize::MAX][seed as usize % 3];
        net.complete(1000 * SECOND, [200_000, 50_000]).unwrap();
    }
}

/// A program sees data behind a gap: once for each segment, with its place in the stream. The data
/// is in the connection's buffer too, and comes again in its turn.
#[test]
fn a_program_sees_data_behind_a_gap() {
    let faults = Faults { lost: [Vec::from([5]), Vec::new()], ..Faults::default() };
    let (mut net, _) = with_records(&[1000; 8], faults, 1);
    net.ends[1].borrows = true;
    net.complete(100 * SECOND, [8000, 0]).unwrap();
    let behind = net.ends[1].ahead;
    assert!(behind >= 3000 && behind.is_multiple_of(1000), "{behind} bytes");
    let mut seen = 0;
    for seed in 0..50 {
        let faults =
            Faults { loss_ppm: 30_000, duplicate_ppm: 10_000, jitter_ns: MS, ..Faults::default() };
        let mut net = Net::new(Default::default(), faults, seed);
        net.give(0, 100_000);
        net.ends[1].borrows = true;
        net.complete(1000 * SECOND, [100_000, 0]).unwrap();
        seen += net.ends[1].ahead;
    }
    assert!(seen > 100_000, "{seen} bytes");
}

/// The place in the stream is counted from the first byte, whatever its sequence number, and what
/// the window has no room for is not shown.
#[test]
fn data_behind_a_gap_has_its_place_in_the_stream() {
    const MSS: u32 = 1000;
    for initial in [0, u32::MAX - 3, 1 << 31] {
        let first = Seq(initial) + 1;
        let mut receive = Receive::default();
        receive.begin(Seq(initial), 10, 0);
        let mut take =
            |at: u32, data: &[u8]| receive.take(first + at, data, false, MSS, receive::SEGMENTS);
        assert_eq!(take(4, b"efghijkl"), Taken::Ahead(6));
        assert_eq!(take(0, b"ab"), Taken::InOrder(2));
        assert_eq!(take(3, b"de"), Taken::Ahead(2));
        assert_eq!(take(2, b"cd"), Taken::InOrder(8));
        assert_eq!([0, 4, 9].map(|at| receive.offset((first + at).0)), [0, 4, 9]);
        let (a, b) = receive.peek(0..10);
        assert_eq!([a, b].concat(), b"abcdefghij");
    }
}

/// Lent data counts against the window until the program has taken it.
#[test]
fn the_window_counts_lent_data() {
    let mut net = Net::plain();
    net.ends[1].config.receive_bytes = 10_000;
    net.ends.iter_mut().for_each(|end| end.closes = false);
    net.run_until(SECOND, |net| net.state(1) == TcpState::Established);
    let (now, config) = (net.now, net.ends[1].config.clone());
    let (_, _, syn, _) = net.log[0];
    let connection = net.connection(1);
    connection.lend(true);
    let tcp = Tcp { seq: syn.seq.wrapping_add(1), flags: Flags::ACK, ..net.log[2].2 };
    let connection = net.connection(1);
    let received =
        connection.input(now, &config, &Segment { tcp, data: &[1; 4000], is_marked: false });
    assert_eq!((received.bytes, received.lent), (0, (0, 4000)));
    assert_eq!(connection.header(now, Flags::ACK).window, 6000);
    connection.take_lent(3000);
    connection.keep_lent(&[1; 1000]);
    assert_eq!(connection.readable(), 1000);
    assert_eq!(connection.header(now, Flags::ACK).window, 9000);
}

/// A burst brings data that is lent, then data behind a gap, then what fills the gap. What was lent
/// comes first even if the program does not take it: it was once put behind what filled the gap,
/// and over what was behind it.
#[test]
fn lent_data_that_is_kept_comes_before_what_arrived_behind_it() {
    const MSS: u32 = 1000;
    for fills in [false, true] {
        let mut receive = Receive::default();
        receive.begin(Seq(0), 10_000, 0);
        receive.lends = receive::Lends::InOrder;
        assert_eq!(receive.take(Seq(1), b"ab", false, MSS, receive::SEGMENTS), Taken::Lent(0, 2));
        assert_eq!(receive.take(Seq(3), b"cd", false, MSS, receive::SEGMENTS), Taken::Lent(0, 2));
        assert_eq!(receive.take(Seq(7), b"gh", false, MSS, receive::SEGMENTS), Taken::Ahead(2));
        if fills {
            assert_eq!(
                receive.take(Seq(5), b"ef", false, MSS, receive::SEGMENTS),
                Taken::InOrder(4)
            );
        }
        receive.take_lent(1, MSS);
        receive.keep_lent(b"b");
        receive.keep_lent(b"cd");
        if !fills {
            assert_eq!(
                receive.take(Seq(5), b"ef", false, MSS, receive::SEGMENTS),
                Taken::InOrder(4)
            );
        }
        let (a, b) = receive.peek(0..7);
        assert_eq!([a, b].concat(), b"bcdefgh");
    }
}

/// The congestion window of a new connection holds two segments of the path, or one and a shorter
/// one. The receiver once acknowledged that by its timer alone.
#[test]
fn a_segment_and_a_shorter_one_are_acknowledged_at_once() {
    const MSS: u32 = 8948;
    let mut receive = Receive::default();
    receive.begin(Seq(0), 1 << 20, 5);
    receive.acknowledge();
    receive.take(Seq(1), &[1; 8948], false, MSS, receive::SEGMENTS);
    assert_eq!(receive.due(), Due::Delayed);
    receive.take(Seq(8949), &[1; 4000], false, MSS, receive::SEGMENTS);
    assert_eq!(receive.due(), Due::Now);
}

/// A program reads a full buffer in pieces, each of less than half of it. The peer learns of the
/// window when it has doubled: it once learned nothing before its own timer expired.
#[test]
fn a_window_that_opens_in_small_steps_is_told() {
    const MSS: u32 = 1000;
    let mut receive = Receive::default();
    receive.begin(Seq(0), 10_000, 0);
    assert_eq!(
        receive.take(Seq(1), &[1; 9500], false, MSS, receive::SEGMENTS),
        Taken::InOrder(9500)
    );
    receive.acknowledge();
    let told = (0..9).filter(|_| {
        receive.consume(1000, MSS);
        let is_due = receive.due() == Due::Now;
        if is_due {
            receive.acknowledge();
        }
        is_due
    });
    assert_eq!(told.collect::<Vec<_>>(), [0, 2, 6]);
}
