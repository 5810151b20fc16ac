//! Tests of FPDUs: memory, modes and an oracle for streams.

mod fpdu;
mod fpdu_ahead;
mod fpdu_streams;

use alloc::vec;
use alloc::vec::Vec;

use crate::rand::Rng;
use crate::rdma::iwarp::deframer::{Deframed, Deframer, FpduError};
use crate::rdma::iwarp::framer::{Framer, Piece};
use crate::rdma::memory::{Memory, Part, Record, Span, Unmapped};
use crate::wire::checksum::crc32c;
use crate::wire::ddp::header_len;
use crate::wire::mpa::*;

/// One region as registered memory for tests. It counts how often it is read.
#[derive(Default)]
pub(super) struct Region {
    pub(super) bytes: Vec<u8>,
    pub(super) reads: usize,
}

impl Region {
    pub(super) fn new(len: usize) -> Self {
        let mut bytes = vec![0; len];
        Rng::seeded(len as u64).fill(&mut bytes);
        Self { bytes, reads: 0 }
    }
}

impl Memory for Region {
    fn write(&mut self, _: Span, _: &[u8]) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        self.reads += 1;
        let at = span.offset as usize;
        bytes.copy_from_slice(self.bytes.get(at..at + bytes.len()).ok_or(Unmapped)?);
        Ok(())
    }

    fn atomic(&mut self, _: Span, _: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        Err(Unmapped)
    }
}

pub(super) fn span(offset: u64, len: u32) -> Span {
    Span { region: 7, offset, len }
}

/// The framing of a stream: with or without CRC, and with or without markers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mode {
    pub(super) crc: bool,
    pub(super) markers: bool,
}

pub(super) const MODES: [Mode; 4] = [
    Mode { crc: false, markers: false },
    Mode { crc: false, markers: true },
    Mode { crc: true, markers: false },
    Mode { crc: true, markers: true },
];
pub(super) const BOTH: Mode = MODES[3];

impl Mode {
    pub(super) fn framer(self) -> Framer {
        Framer::new(self.crc.then_some(crc32c), self.markers)
    }

    pub(super) fn deframer(self) -> Deframer {
        Deframer::new(self.crc.then_some(crc32c), self.markers)
    }

    /// The stream of these ULPDUs, made word by word from the text of RFC 5044.
    pub(super) fn stream(self, ulpdus: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for ulpdu in ulpdus {
            let mut words = (ulpdu.len() as u16).to_be_bytes().to_vec();
            words.extend(ulpdu);
            words.resize(words.len().next_multiple_of(4) + 4, 0);
            let (start, mut length_at) = (stream.len(), None);
            let last = words.len() / 4 - 1;
            for (i, word) in words.chunks(4).enumerate() {
                if self.markers && stream.len() % 512 == 0 {
                    let back = length_at.map_or(0, |at| stream.len() - at);
                    stream.extend((back as u32).to_be_bytes());
                }
                length_at.get_or_insert(stream.len());
                if i == last && self.crc {
                    stream.extend(crc32c(0, &stream[start..]).to_le_bytes());
                } else {
                    stream.extend(word);
                }
            }
        }
        stream
    }
}

/// A ULPDU of `len` bytes whose first bit marks it as tagged or untagged.
pub(super) fn ulpdu(len: usize, tagged: bool) -> Vec<u8> {
    let mut ulpdu: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
    if let Some(first) = ulpdu.first_mut() {
        *first = if tagged { 0x81 } else { 0x41 };
    }
    ulpdu
}

/// Frames the bytes of `ulpdu` and appends the FPDU to `record`.
pub(super) fn put(framer: &mut Framer, ulpdu: &[u8], record: &mut Record) {
    let (header, payload) = ulpdu.split_at(header_len(ulpdu[0]));
    framer.frame(header, &[Piece::Bytes(payload)], &mut Region::default(), record).unwrap();
}

/// The bytes of a record as they go out on the stream.
pub(super) fn flat(record: &Record, region: &Region) -> Vec<u8> {
    let mut stream = Vec::new();
    for part in &record.parts {
        match part {
            Part::Bytes(range) => stream.extend(&record.bytes[range.clone()]),
            Part::Memory(span) => {
                stream.extend(&region.bytes[span.offset as usize..][..span.len as usize]);
            }
        }
    }
    stream
}

/// Deframes a whole stream. Returns the ULPDUs and the final error.
pub(super) fn take(deframer: &mut Deframer, mut bytes: &[u8]) -> (Vec<Vec<u8>>, Option<FpduError>) {
    let (mut ulpdus, mut scratch) = (Vec::new(), Vec::new());
    loop {
        match deframer.next(bytes, &mut scratch) {
            Deframed::More => return (ulpdus, None),
            Deframed::Error(fault) => return (ulpdus, Some(fault)),
            Deframed::Piece { header, payload, rest, last, consumed } => {
                assert!(last && rest == 0, "all of it is there");
                ulpdus.push([header.unwrap(), payload].concat());
                bytes = &bytes[consumed..];
            }
        }
    }
}

/// A copy of `stream`, which is one FPDU, with `bits` flipped at `at` and a correct CRC.
pub(super) fn forged(stream: &[u8], at: usize, bits: u8) -> Vec<u8> {
    let mut forged = stream.to_vec();
    forged[at] ^= bits;
    let body = forged.len() - CRC;
    let crc = crc32c(0, &forged[..body]);
    forged[body..].copy_from_slice(&crc.to_le_bytes());
    forged
}

/// The sample FPDU of RFC 5044 section 4.4: an untagged header with this MSN, and 24 zeros.
pub(super) fn sample(msn: u8) -> [u8; 42] {
    let mut ulpdu = [0; 42];
    (ulpdu[0], ulpdu[1], ulpdu[13]) = (0x41, 0x43, msn);
    ulpdu
}

/// Deframes `stream` in pieces. `cut` returns the length of each piece from the bytes that are
/// left. With `direct` the caller places payload itself if it may.
pub(super) fn receive(
    mode: Mode,
    stream: &[u8],
    cut: &mut dyn FnMut(usize) -> usize,
    direct: bool,
) -> Vec<Vec<u8>> {
    let (mut deframer, mut scratch) = (mode.deframer(), Vec::new());
    let (mut ulpdus, mut current) = (Vec::new(), Vec::new());
    let (mut here, mut end) = (0, 0);
    while end < stream.len() {
        end += cut(stream.len() - end).clamp(1, stream.len() - end);
        if direct && deframer.rest() > 0 && here < end {
            let n = deframer.rest().min(end - here);
            current.extend(&stream[here..here + n]);
            deframer.skip(n);
            here += n;
        }
        loop {
            match deframer.next(&stream[here..end], &mut scratch) {
                Deframed::More => break,
                Deframed::Error(fault) => panic!("{fault}"),
                Deframed::Piece { header, payload, rest, last, consumed } => {
                    assert_eq!(header.is_some(), current.is_empty());
                    assert_eq!(rest, deframer.rest());
                    current.extend(header.unwrap_or_default());
                    current.extend(payload);
                    here += consumed;
                    if last {
                        ulpdus.push(core::mem::take(&mut current));
                    }
                    assert_eq!(last, deframer.between());
                }
            }
        }
    }
    assert_eq!(here, stream.len(), "all of it is used up");
    ulpdus
}
