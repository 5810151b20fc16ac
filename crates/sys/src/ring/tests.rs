use std::sync::atomic::AtomicBool;
use std::thread;

use sprat_proto::Rng;

use super::*;

fn place(size: usize, secret: u64, fenced: bool) -> Place {
    let memory = Arc::new(Region::anonymous(4096 + size).unwrap());
    Place { memory, control: 0, data: 4096, size, secret, fenced }
}

fn pair(size: usize) -> (Producer, Consumer) {
    let place = place(size, 0x1234_5678_9ABC_DEF0, false);
    (Producer::new(place.clone()), Consumer::new(place))
}

/// Copies the next record, however long it is, and returns its length.
fn pop(consumer: &mut Consumer, into: &mut [u8]) -> Result<Option<usize>, Broken> {
    Ok(consumer.pop(into, false)?.map(|record| match record {
        Record::Copied(len) => len,
        Record::Left(record) => panic!("{record:?} was to be copied"),
    }))
}

/// Writes the content of record `number` into `buffer` and returns its length. The content follows
/// from the number, so that the reader can compare.
fn record(number: u64, buffer: &mut [u8]) -> usize {
    let mut rng = Rng::seeded(number);
    let len = match rng.below(8) {
        0 => 0,
        1 => rng.below(MAX_PAYLOAD as u64 + 1) as usize,
        2 => MAX_PAYLOAD,
        _ => rng.below(300) as usize,
    };
    for (i, chunk) in buffer[..len].chunks_mut(8).enumerate() {
        let value = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(i as u64).to_le_bytes();
        chunk.copy_from_slice(&value[..chunk.len()]);
    }
    len
}

#[test]
fn records_arrive_whole_and_in_order_between_two_threads() {
    const RECORDS: u64 = 20_000;
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    let writer = thread::spawn(move || {
        let mut buffer = vec![0; MAX_PAYLOAD];
        for number in 0..RECORDS {
            let len = record(number, &mut buffer);
            let (a, rest) = buffer[..len].split_at(len / 3);
            let (b, c) = rest.split_at(rest.len() / 2);
            while producer.push(&[a, b, &[], c]).unwrap() == Push::Full {
                thread::yield_now();
            }
        }
    });
    let (mut expected, mut buffer) = (vec![0; MAX_PAYLOAD], vec![0; MAX_PAYLOAD]);
    for number in 0..RECORDS {
        let len = loop {
            match pop(&mut consumer, &mut buffer).unwrap() {
                Some(len) => break len,
                None => thread::yield_now(),
            }
        };
        assert_eq!(len, record(number, &mut expected), "record {number}");
        assert!(buffer[..len] == expected[..len], "record {number}");
    }
    assert_eq!(pop(&mut consumer, &mut buffer), Ok(None));
    writer.join().unwrap();
}

#[test]
fn a_header_and_a_part_make_the_record_that_they_would_make_as_parts() {
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    let (mut buffer, mut expected) = (vec![0; MAX_PAYLOAD], vec![0; MAX_PAYLOAD]);
    // More than a lap, through every place in a line and at the end of the ring.
    for number in 0..8000 {
        let (head_len, len) = ([0, 32, 36, 40][number % 4], number % 300);
        let mut head = [0; PaddedHeader::CAPACITY];
        (0..head_len).for_each(|i| head[i] = (number + i) as u8 | 1);
        let body: Vec<u8> = (0..len).map(|i| (number * 7 + i) as u8).collect();
        let pushed = producer.push_short(&PaddedHeader::new(head, head_len), &body).unwrap();
        assert_eq!(pushed, Push::Done { wake: false });
        assert_eq!(producer.push(&[&head[..head_len], &body]).unwrap(), Push::Done { wake: false });
        let n = pop(&mut consumer, &mut buffer).unwrap().unwrap();
        assert_eq!(pop(&mut consumer, &mut expected).unwrap(), Some(n));
        assert!(buffer[..n] == expected[..n] && n == head_len + len, "record {number}");
    }
    assert_eq!(pop(&mut consumer, &mut buffer), Ok(None));
}

#[test]
fn headers_and_parts_make_the_record_that_they_would_make_as_parts() {
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    let (mut buffer, mut expected) = (vec![0; MAX_PAYLOAD], vec![0; MAX_PAYLOAD]);
    for number in 0..8000 {
        let whole: Vec<u8> = (0..14 + number * 7 % 500).map(|i| (number * 7 + i) as u8).collect();
        let (headers, rest) = whole.split_at([42, 62, 64, 14][number % 4].min(whole.len()));
        let (a, b) = rest.split_at(rest.len() / 3);
        let pushed =
            producer.push_behind(&Headers::from_bytes(headers), &[a, &[], b], rest.len()).unwrap();
        assert_eq!(pushed, Push::Done { wake: false });
        assert_eq!(producer.push(&[&whole]).unwrap(), Push::Done { wake: false });
        let n = pop(&mut consumer, &mut buffer).unwrap().unwrap();
        assert_eq!(pop(&mut consumer, &mut expected).unwrap(), Some(n));
        assert!(buffer[..n] == expected[..n] && n == whole.len(), "record {number}");
    }
    assert_eq!(pop(&mut consumer, &mut buffer), Ok(None));
    // Nothing beyond a full ring's room is written: what was there first is still as it was.
    let mut records = 0;
    while producer.push_behind(&Headers::from_bytes(&[7; 14]), &[], 0).unwrap()
        == (Push::Done { wake: false })
    {
        records += 1;
    }
    for _ in 0..records {
        assert_eq!(pop(&mut consumer, &mut buffer), Ok(Some(14)));
        assert_eq!(buffer[..14], [7; 14]);
    }
    assert_eq!(pop(&mut consumer, &mut buffer), Ok(None));
}

/// Runs random pushes and pops in one thread and compares the ring with a queue. Small and large
/// records make every case of wrapping occur.
#[test]
fn random_turns_agree_with_a_queue() {
    let mut rng = Rng::seeded(7);
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    let mut queue = std::collections::VecDeque::new();
    let (mut made, mut full, mut buffer) = (0, 0, vec![0; MAX_PAYLOAD]);
    let mut left = Vec::new();
    for _ in 0..60_000 {
        if rng.below(2) == 0 {
            let len = record(made, &mut buffer);
            match producer.push(&[&buffer[..len]]).unwrap() {
                Push::Done { wake } => {
                    assert!(!wake);
                    queue.push_back(made);
                    made += 1;
                }
                Push::Full => {
                    full += 1;
                    assert!(producer.is_waiting() && !(queue.is_empty() && left.is_empty()));
                }
            }
        } else {
            assert_eq!(consumer.is_ready(), consumer.word() & !LEN_MASK == consumer.expect);
            let mut expected = vec![0; MAX_PAYLOAD];
            match consumer.pop(&mut buffer, rng.below(2) == 0).unwrap() {
                Some(Record::Copied(len)) => {
                    let number = queue.pop_front().expect("nothing was sent");
                    assert_eq!(len, record(number, &mut expected));
                    assert!(buffer[..len] == expected[..len]);
                }
                Some(Record::Left(long)) => {
                    assert!(long.len() > LONG);
                    left.push((queue.pop_front().expect("nothing was sent"), long));
                }
                None => assert!(queue.is_empty()),
            }
            // What is left stays whole however much is sent meanwhile.
            if rng.below(4) == 0 {
                for (number, long) in left.drain(..) {
                    let (mut bytes, from) = (Vec::new(), rng.below(100) as usize);
                    long.append_to(from, &mut bytes);
                    let len = record(number, &mut expected);
                    assert!(long.len() == len && bytes == expected[from..len]);
                }
                consumer.release();
            }
        }
    }
    assert!(full > 1000 && made > 10_000, "full {full}, made {made}");
}

#[test]
fn the_longest_records_pass_even_through_the_smallest_ring() {
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    let (longest, mut buffer) = (vec![7; MAX_PAYLOAD], vec![0; MAX_PAYLOAD]);
    for lap in 0..100 {
        // A reader that has read all has always published enough room for the next record, so
        // neither side waits for ever.
        assert_eq!(producer.push(&[&longest]), Ok(Push::Done { wake: false }), "lap {lap}");
        assert_eq!(producer.push(&[&longest[..lap]]), Ok(Push::Done { wake: false }), "lap {lap}");
        assert_eq!(pop(&mut consumer, &mut buffer), Ok(Some(MAX_PAYLOAD)));
        assert_eq!(pop(&mut consumer, &mut buffer), Ok(Some(lap)));
    }
}

/// The producer changes a long record after it was published. The receiver checks the first
/// bytes, and must not find others there later.
#[test]
fn the_first_bytes_of_a_record_left_in_the_ring_are_copied_at_once() {
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    let (long, mut buffer) = (vec![7; LONG + 1], vec![0; MAX_PAYLOAD]);
    producer.push(&[&long]).unwrap();
    let popped = consumer.pop(&mut buffer, true).unwrap();
    let Some(Record::Left(record)) = popped else { panic!("{popped:?}") };
    producer.ring.data.copy_in(PAYLOAD, &[8; LONG + 1]);
    assert_eq!(buffer[..LEFT_HEAD], [7; LEFT_HEAD]);
    let mut rest = Vec::new();
    record.append_to(LEFT_HEAD, &mut rest);
    assert!(record.len() == long.len() && rest == [8; LONG + 1 - LEFT_HEAD]);
    // One of this length at most is copied whole.
    producer.push(&[&long[1..]]).unwrap();
    let popped = consumer.pop(&mut buffer, true).unwrap();
    assert!(matches!(popped, Some(Record::Copied(LONG))), "{popped:?}");
}

/// The release of the last record publishes the room, and wakes a producer that waits for it.
#[test]
fn the_room_of_records_left_in_the_ring_is_free_once_they_are_released() {
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    let (long, mut buffer) = (vec![7; MAX_PAYLOAD], vec![0; MAX_PAYLOAD]);
    let mut records = 0;
    while producer.push(&[&long]).unwrap() != Push::Full {
        records += 1;
    }
    producer.arm();
    for _ in 0..records {
        let popped = consumer.pop(&mut buffer, true).unwrap();
        assert!(matches!(popped, Some(Record::Left(_))), "{popped:?}");
    }
    assert!(!producer.has_room() && !consumer.take_wake());
    consumer.release();
    assert!(producer.has_room() && consumer.take_wake());
}

#[test]
fn an_old_word_and_a_word_in_a_payload_are_no_records() {
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    let mut buffer = vec![0; MAX_PAYLOAD];
    // Every line of the ring holds a word that was a record's once, at this very place.
    for _ in 0..3 * MIN_SIZE / LINE {
        producer.push(&[b"x"]).unwrap();
        assert_eq!(pop(&mut consumer, &mut buffer), Ok(Some(1)));
        assert_eq!(pop(&mut consumer, &mut buffer), Ok(None));
    }
    // A payload that holds, where the next record's word will be, the word of another position.
    let mut forged = [0; 256];
    for at in (LINE - WORD..forged.len()).step_by(LINE) {
        forged[at..at + 8].copy_from_slice(&(producer.ring.tag(producer.tail) | 4).to_le_bytes());
    }
    producer.push(&[&forged]).unwrap();
    producer.push(&[&forged]).unwrap();
    assert_eq!(pop(&mut consumer, &mut buffer), Ok(Some(256)));
    assert_eq!(pop(&mut consumer, &mut buffer), Ok(Some(256)));
    assert_eq!(pop(&mut consumer, &mut buffer), Ok(None));
}

#[test]
fn lengths_that_cannot_be_break_the_ring() {
    let mut buffer = vec![0; MAX_PAYLOAD];
    for bad in [MAX_PAYLOAD as u64 + 1, LEN_MASK - 1, PAD] {
        let (mut producer, mut consumer) = pair(MIN_SIZE);
        producer.forge(bad);
        assert!(consumer.is_ready());
        assert_eq!(pop(&mut consumer, &mut buffer), Err(Broken), "{bad:#x}");
    }
    // A record that would run past the end of the ring.
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    for _ in 0..MIN_SIZE / LINE - 1 {
        producer.push(&[]).unwrap();
        pop(&mut consumer, &mut buffer).unwrap();
    }
    producer.forge(100);
    assert_eq!(pop(&mut consumer, &mut buffer), Err(Broken));
}

#[test]
fn heads_that_cannot_be_break_the_ring() {
    for bad in [1, 64 << 20, u64::MAX, u64::MAX - 63, 32] {
        let (mut producer, _consumer) = pair(MIN_SIZE);
        let record = [0; 1000];
        while let Ok(Push::Done { .. }) = producer.push(&[&record]) {}
        producer.ring.control.word(HEAD).store(bad, Ordering::Relaxed);
        assert_eq!(producer.push(&[&record]), Err(Broken), "{bad:#x}");
    }
    // A head that goes back.
    let (mut producer, mut consumer) = pair(MIN_SIZE);
    let (record, mut buffer) = ([0; 1000], vec![0; MAX_PAYLOAD]);
    while producer.push(&[&record]) != Ok(Push::Full) {}
    while pop(&mut consumer, &mut buffer).unwrap().is_some() {}
    while producer.push(&[&record]) != Ok(Push::Full) {}
    producer.ring.control.word(HEAD).store(0, Ordering::Relaxed);
    assert_eq!(producer.push(&[&record]), Err(Broken));
}

/// Writes random bytes over the whole region, sometimes with the right tags, while one side reads
/// and writes the ring. The ring may break, but nothing else may happen.
#[test]
fn a_hostile_peer_cannot_do_more_than_break_the_ring() {
    let mut rng = Rng::seeded(11);
    let (mut broken, mut buffer, payload) = (0, vec![0; MAX_PAYLOAD], vec![1; MAX_PAYLOAD]);
    for round in 0..20 {
        let place = place(MIN_SIZE, rng.u64(), round % 2 == 0);
        let (mut producer, mut consumer) =
            (Producer::new(place.clone()), Consumer::new(place.clone()));
        let done = Arc::new(AtomicBool::new(false));
        let (stop, theirs, mut own) = (done.clone(), place.clone(), rng.fork());
        let scribbler = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                scribble(&theirs, &mut own);
            }
        });
        for _ in 0..3_000 {
            scribble(&place, &mut rng);
            let _ = consumer.is_ready();
            consumer.arm();
            let popped = consumer.pop(&mut buffer, rng.below(2) == 0);
            match &popped {
                Ok(Some(Record::Copied(n))) => assert!(*n <= MAX_PAYLOAD),
                Ok(Some(Record::Left(record))) => {
                    let mut bytes = Vec::new();
                    record.append_to(0, &mut bytes);
                    assert!(bytes.len() == record.len() && record.len() <= MAX_PAYLOAD);
                }
                Ok(None) | Err(Broken) => {}
            }
            consumer.release();
            let _ = consumer.take_wake();
            let pushed = producer.push(&[&payload[..rng.below(2000) as usize]]);
            producer.arm();
            let _ = producer.has_room();
            broken += u32::from(popped.is_err()) + u32::from(pushed.is_err());
        }
        done.store(true, Ordering::Relaxed);
        scribbler.join().unwrap();
    }
    assert!(broken > 0);
}

fn scribble(place: &Place, rng: &mut Rng) {
    let line = rng.below((place.memory.len() / LINE) as u64) as usize * LINE;
    for at in (line..line + LINE).step_by(8) {
        place.memory.word(at).store(rng.u64(), Ordering::Relaxed);
    }
    // The peer knows the secret: it can write true tags with false lengths at the first positions.
    let position = rng.below(64) * LINE as u64;
    let len = if rng.below(2) == 0 { rng.below(200) } else { rng.u64() & LEN_MASK };
    let ring = Ring::new(place);
    ring.data.word(position).store(ring.tag(position) | len, Ordering::Relaxed);
    ring.control.word(HEAD).store(rng.below(1 << 20), Ordering::Relaxed);
}

/// Runs both sides of a ring in threads. Each side sleeps whenever it can do nothing, and only the
/// ring's flags wake it.
#[test]
fn nobody_sleeps_for_ever() {
    const RECORDS: u64 = 30_000;
    for fenced in [false, true] {
        let place = place(MIN_SIZE, 5, fenced);
        let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place));
        let (to_reader, reader_bell) = std::sync::mpsc::channel();
        let (to_writer, writer_bell) = std::sync::mpsc::channel();
        let writer = thread::spawn(move || {
            let payload = vec![3; 5000];
            for i in 0..RECORDS {
                loop {
                    match producer.push(&[&payload[..(i % 5000) as usize]]).unwrap() {
                        Push::Done { wake: false } => break,
                        Push::Done { wake: true } => break to_reader.send(()).unwrap(),
                        Push::Full => {}
                    }
                    producer.arm();
                    barrier();
                    if !producer.has_room() {
                        writer_bell.recv().unwrap();
                    }
                    producer.disarm();
                }
            }
        });
        let mut buffer = vec![0; MAX_PAYLOAD];
        for i in 0..RECORDS {
            loop {
                if let Some(len) = pop(&mut consumer, &mut buffer).unwrap() {
                    assert_eq!(len as u64, i % 5000);
                    break;
                }
                consumer.arm();
                barrier();
                if !consumer.is_ready() {
                    // The last bell may be the writer's end.
                    let _ = reader_bell.recv();
                }
                consumer.disarm();
            }
            if consumer.take_wake() {
                to_writer.send(()).unwrap();
            }
        }
        writer.join().unwrap();
    }
}

#[test]
fn a_record_counts_or_the_ring_is_closed() {
    for round in 0..200 {
        let place = place(MIN_SIZE, round, true);
        let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place));
        let writer = thread::spawn(move || {
            (0u64..)
                .take_while(|number| {
                    let pushed = producer.push(&[&number.to_le_bytes()]).unwrap();
                    pushed != Push::Full && !producer.is_closed()
                })
                .count() as u64
        });
        let mut buffer = vec![0; MAX_PAYLOAD];
        let mut taken = 0;
        // The number of records that it takes before it closes differs from round to round.
        while taken < round {
            taken += u64::from(pop(&mut consumer, &mut buffer).unwrap().is_some());
        }
        consumer.close();
        while pop(&mut consumer, &mut buffer).unwrap().is_some() {
            taken += 1;
        }
        let counted = writer.join().unwrap();
        assert!(taken >= counted, "{counted} records count, and {taken} were taken");
    }
}

#[test]
fn a_consumer_goes_on_where_the_last_one_has_published_its_position() {
    let place = place(MIN_SIZE, 5, true);
    let mut producer = Producer::new(place.clone());
    let mut buffer = vec![0; MAX_PAYLOAD];
    let mut first = Consumer::new(place.clone());
    let (mut pushed, mut taken) = (0u64, 0u64);
    // More than a lap.
    while pushed < 3 * (MIN_SIZE / LINE) as u64 / 2 {
        assert!(matches!(producer.push(&[&pushed.to_le_bytes()]), Ok(Push::Done { .. })));
        pushed += 1;
        if pushed % 7 != 0 {
            assert_eq!(pop(&mut first, &mut buffer), Ok(Some(8)));
            taken += 1;
        }
        if pushed - taken > 3_000 {
            while pop(&mut first, &mut buffer).unwrap().is_some() {
                taken += 1;
            }
        }
    }
    drop(first);
    let mut second = Consumer::resume(place.clone()).unwrap();
    let mut next = None;
    while pop(&mut second, &mut buffer).unwrap().is_some() {
        let number = u64::from_le_bytes(*buffer.first_chunk().unwrap());
        assert!(next.is_none_or(|next| next == number), "in order");
        assert!(next.is_some() || number <= taken, "none is left out");
        next = Some(number + 1);
    }
    assert_eq!(next, Some(pushed), "to the last");
    place.memory.word(0).store(3, Ordering::Relaxed);
    assert_eq!(Consumer::resume(place).unwrap_err(), Broken);
}
