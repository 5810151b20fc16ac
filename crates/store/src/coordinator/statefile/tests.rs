use alloc::{format, vec};

use proptest::prelude::*;
use sprat_proto::Rng;

use super::*;

/// A state file in memory, and the sectors of it that no sync has made safe.
#[derive(Clone, Default)]
struct File {
    bytes: Vec<u8>,
    safe: Vec<u8>,
}

const SECTOR: usize = 512;

impl File {
    fn write(&mut self, piece: &Piece) {
        let (at, end) = (piece.at as usize, piece.end() as usize);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(&piece.bytes);
    }

    fn sync(&mut self) {
        self.safe.clone_from(&self.bytes);
    }

    fn create() -> (Self, Log) {
        let (mut file, mut log) = (Self::default(), Log::new());
        file.bytes.resize(AREA as usize, 0);
        file.seal(&mut log);
        file.sync();
        (file, log)
    }

    fn seal(&mut self, log: &mut Log) {
        self.write(&log.seal());
        self.write(&log.seal());
    }

    /// Returns the file after a power failure: each sector that is not safe has its old or its new
    /// bytes.
    fn crash(&self, rng: &mut Rng) -> Vec<u8> {
        let len = if rng.chance(500_000) {
            self.bytes.len()
        } else {
            self.safe.len().min(self.bytes.len())
        };
        let mut left = self.bytes[..len].to_vec();
        for at in (0..len).step_by(SECTOR) {
            let end = (at + SECTOR).min(len);
            if rng.chance(500_000) {
                for (i, byte) in left.iter_mut().enumerate().take(end).skip(at) {
                    *byte = self.safe.get(i).copied().unwrap_or(0);
                }
            }
        }
        left
    }
}

fn body(pairs: &[(&[u8], &[u8])], deletes: &[&[u8]]) -> Body {
    let mut body = Body::default();
    assert!(pairs.iter().all(|(key, value)| body.put(key, value)));
    assert!(deletes.iter().all(|key| body.delete(key)));
    body
}

/// A state file with one record has the bytes that docs/formats.md gives.
#[test]
fn golden_file() {
    let (mut file, mut log) = File::create();
    let record = log.record(&body(&[(b"k", b"vv")], &[b"d"])).unwrap();
    assert_eq!(record.at, 8192);
    file.write(&record);
    log.wrote(&record);
    file.seal(&mut log);

    let seed = [[0, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0x20, 0]].concat();
    let changes = [1, 0, 1, b'k', 0, 0, 0, 2, b'v', b'v', 2, 0, 1, b'd'];
    let covered = [&crc32c(0, &seed).to_be_bytes(), &[0, 0, 0, 14][..], &changes].concat();
    let chain = crc32c(0, &covered).to_be_bytes();
    assert_eq!(file.bytes[8192..], [&[0, 0, 0, 14][..], &chain, &changes].concat());
    for (at, serial) in [(0, 4), (4096, 3)] {
        let mut block = b"SPRATST\n\0\x02\0\0\0\0\0\0".to_vec();
        block.extend([
            0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0x20, 22,
        ]);
        block.extend([&chain[..], &[0; 4], &[0, 0, 0, 0, 0, 0, 0, serial], &[0; 4]].concat());
        block.extend(crc32c(0, &block).to_be_bytes());
        assert_eq!(file.bytes[at..at + 64], block, "superblock at {at}");
    }
    let opened = read(&file.bytes).unwrap();
    assert_eq!(opened.pairs, Pairs::from([(b"k".to_vec(), b"vv".to_vec())]));
    assert_eq!((opened.log, opened.unsealed), (log, None));
}

/// A state file with some records, as a killed process leaves it, and its contents.
fn written(records: usize) -> (File, Pairs) {
    let (mut file, mut log) = File::create();
    let mut pairs = Pairs::new();
    for i in 0..records {
        let (key, value) = (format!("key {}", i % 7), vec![i as u8; 40 + i * 13 % 300]);
        let gone = format!("key {}", (i + 3) % 7);
        let record = log.record(&body(&[(key.as_bytes(), &value)], &[gone.as_bytes()])).unwrap();
        file.write(&record);
        log.wrote(&record);
        pairs.insert(key.into_bytes(), value);
        pairs.remove(gone.as_bytes());
        file.seal(&mut log);
        if i == records / 2 {
            let (new, pieces) = log.checkpoint(&pairs);
            pieces.iter().for_each(|piece| file.write(piece));
            log = new;
            file.seal(&mut log);
        }
    }
    file.bytes.resize(file.bytes.len() + 3000, 0);
    (file, pairs)
}

/// A state file that is damaged in one place or two is refused, or holds exactly the contents that
/// it held before.
#[test]
fn no_damage_changes_what_a_file_holds() {
    let (file, pairs) = written(40);
    assert_eq!(read(&file.bytes).unwrap().pairs, pairs);
    let len = file.bytes.len();
    let (mut tried, mut refused) = (0, 0);
    let mut check = |damaged: &[u8], what: &dyn core::fmt::Debug| {
        tried += 1;
        match read(damaged) {
            Ok(opened) => assert_eq!(opened.pairs, pairs, "{what:?}"),
            Err(_) => refused += 1,
        }
    };
    for at in 0..len {
        let mut damaged = file.bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        check(&damaged, &("a bit", at));
    }
    for cut in (0..len).step_by(61) {
        check(&file.bytes[..cut], &("cut", cut));
    }
    for size in [SECTOR, 4096] {
        for at in (0..len - size).step_by(size) {
            let mut damaged = file.bytes.clone();
            damaged[at..at + size].fill(0);
            check(&damaged, &("zeros", at, size));
            damaged[at..at + size].fill(0xff);
            check(&damaged, &("ones", at, size));
            for other in (0..at).step_by(size) {
                let mut damaged = file.bytes.clone();
                let (low, high) = damaged.split_at_mut(at);
                low[other..other + size].swap_with_slice(&mut high[..size]);
                check(&damaged, &("swapped", other, at, size));
                damaged.copy_from_slice(&file.bytes);
                damaged.copy_within(other..other + size, at);
                check(&damaged, &("written elsewhere", other, at, size));
            }
        }
    }
    assert!(refused > tried / 10, "{refused} of {tried} were noticed");
}

#[test]
fn what_is_no_state_file_is_named() {
    assert_eq!(read(b"").unwrap_err(), Damage::Empty);
    assert_eq!(read(b"not a state file").unwrap_err(), Damage::Foreign);
    assert_eq!(read(&[0; 10_000]).unwrap_err(), Damage::Foreign);
    assert_eq!(read(b"redb\x1a\x0a\xa9\x0d\x0a").unwrap_err(), Damage::Format(1));
    let (mut file, _) = File::create();
    for at in [0, 4096] {
        file.bytes[at + 9] = 3;
    }
    assert_eq!(read(&file.bytes).unwrap_err(), Damage::Format(3));
    // A whole superblock whose numbers no writer can have written.
    let mut log = Log { serial: u64::MAX - 2, ..Log::new() };
    file.seal(&mut log);
    assert_eq!(read(&file.bytes).unwrap_err(), Damage::Superblocks);
}

#[test]
fn a_checkpoint_goes_to_the_front_when_there_is_room() {
    let (_, mut log) = File::create();
    let pairs: Pairs = (0..9000u32).map(|i| (i.to_be_bytes().to_vec(), vec![1; 90])).collect();
    let mut starts = Vec::new();
    for _ in 0..4 {
        let (new, pieces) = log.checkpoint(&pairs);
        assert_eq!(pieces[0].at, new.start);
        assert!(
            pieces.windows(2).all(|two| two[0].end() == two[1].at),
            "records follow each other"
        );
        assert!(new.start >= log.end || new.end <= log.start, "the old generation is touched");
        starts.push(new.start);
        log = new;
    }
    assert_eq!(starts, [8192, starts[1], 8192, starts[1]]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A power failure at any moment keeps all acknowledged changes, with or without the change in
    /// progress.
    #[test]
    fn a_crash_keeps_what_was_acknowledged(seed: u64) {
        let mut rng = Rng::seeded(seed);
        let (mut file, mut log) = File::create();
        let mut pairs = Pairs::new();
        for _ in 0..rng.below(40) {
            let before = pairs.clone();
            let mut made = Body::default();
            for _ in 0..1 + rng.below(3) {
                let key = vec![rng.below(9) as u8];
                if rng.chance(300_000) {
                    prop_assert!(made.delete(&key));
                    pairs.remove(&key);
                } else {
                    let value = vec![rng.u32() as u8; rng.below(1500) as usize];
                    prop_assert!(made.put(&key, &value));
                    pairs.insert(key, value);
                }
            }
            let record = log.record(&made).unwrap();
            if rng.chance(200_000) {
                // A record that did not fit is no part of the log, whatever of it was written.
                let mut part = record.clone();
                part.bytes.truncate(rng.below(part.bytes.len() as u64) as usize);
                file.write(&part);
                pairs = before;
                continue;
            }
            file.write(&record);
            let left = read(&file.crash(&mut rng)).unwrap();
            prop_assert!(left.pairs == before || left.pairs == pairs);
            file.sync();
            log.wrote(&record);
            prop_assert_eq!(&read(&file.crash(&mut rng)).unwrap().pairs, &pairs);
            file.seal(&mut log);
            if rng.chance(100_000) {
                let (new, pieces) = log.checkpoint(&pairs);
                pieces.iter().for_each(|piece| file.write(piece));
                prop_assert_eq!(&read(&file.crash(&mut rng)).unwrap().pairs, &pairs);
                file.sync();
                log = new;
                for _ in 0..2 {
                    file.write(&log.seal());
                    prop_assert_eq!(&read(&file.crash(&mut rng)).unwrap().pairs, &pairs);
                    file.sync();
                }
                file.bytes.truncate((log.end() as usize).max(AREA as usize));
            }
            if rng.chance(100_000) {
                let opened = read(&file.crash(&mut rng)).unwrap();
                prop_assert_eq!(&opened.pairs, &pairs);
                log = opened.log;
                if let Some(piece) = &opened.unsealed {
                    file.write(piece);
                }
                file.sync();
                file.seal(&mut log);
            }
        }
    }

    /// A state file of any bytes behind a whole superblock is refused or read; nothing panics.
    #[test]
    fn arbitrary_files(seed: u64) {
        let mut rng = Rng::seeded(seed);
        let mut log = Log {
            generation: rng.u64(), start: AREA + rng.below(9), end: AREA + rng.below(40),
            chain: rng.u32(),
            serial: rng.u64() >> 2,
        };
        let (mut file, _) = File::create();
        file.seal(&mut log);
        let rest = (0..rng.below(99)).map(|_| rng.below(3) as u8).collect();
        file.write(&Piece { at: AREA, bytes: rest });
        let _ = read(&file.bytes);
    }
}
