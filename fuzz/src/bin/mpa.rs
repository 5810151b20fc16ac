//! Fuzzes MPA: no bytes make start-up or an FPDU stream panic; the output does not depend on where
//! the stream is cut; the deframer returns the bytes that were framed; a start-up frame that parses
//! is written as the same frame.
//!
//! The first byte chooses the test and its options; the rest is the input of a peer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::rdma::iwarp::deframer::{Deframed, Deframer, FpduError};
use sprat_proto::rdma::iwarp::framer::{Framer, Piece};
use sprat_proto::rdma::iwarp::start::{
    Depths, FirstFpdu, Initiator, Negotiated, ReceivedReply, ReceivedRequest, Responder,
    StartOptions,
};
use sprat_proto::rdma::{Memory, Part, Record, Span, Unmapped};
use sprat_proto::wire::checksum::crc32c;
use sprat_proto::wire::ddp::header_len;
use sprat_proto::wire::mpa::{FPDU_MAX, MULPDU_MAX, Rtr, Start};

fuzz_target!(|bytes: &[u8]| {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let (crc, markers) = (how & 1 == 1, how & 2 == 2);
    match how & 12 {
        0 => start(how, bytes),
        4 => stream(crc, markers, usize::from(how >> 4) + 1, bytes),
        8 => stream(crc, markers, usize::from(how >> 4) + 1, &mended(markers, bytes)),
        _ => framed(crc, markers, bytes),
    }
});

/// Passes a peer's start-up frame to an initiator and to a responder, and checks their results.
fn start(how: u8, bytes: &[u8]) {
    if let Ok(Some((start, len))) = Start::parse(bytes) {
        let mut again = Vec::new();
        start.emit(&mut again).expect("what was parsed can be written");
        assert_eq!(Start::parse(&again), Ok(Some((start, len))));
    }
    let rtr = (how & 64 == 64).then_some(Rtr {
        send: how & 1 == 1,
        write: how & 2 == 2,
        read: how & 128 == 128,
    });
    let options =
        StartOptions { crc: how & 1 == 1, markers: how & 2 == 2, revision: (how >> 4) % 3, rtr };
    let depths = Depths { ird: u16::from(how), ord: u16::from(how.reverse_bits()) };
    let mut out = Vec::new();
    let Ok(initiator) = Initiator::new(options, depths, b"", &mut out) else { return };
    if let ReceivedReply::Accepted { negotiated, peer, consumed, .. } = initiator.input(bytes) {
        assert!(consumed <= bytes.len());
        agreed(options, depths, negotiated);
        assert!(peer.ird.is_none_or(|ird| negotiated.depths.ord <= ird));
        assert!(peer.ord.is_none_or(|ord| negotiated.depths.ird >= ord));
        assert!(matches!(negotiated.first, FirstFpdu::Free | FirstFpdu::Send(_)));
    }
    let mut responder = Responder::new(options);
    if let ReceivedRequest::Request { peer, consumed, .. } = responder.input(bytes) {
        assert_eq!(consumed, bytes.len());
        out.clear();
        let negotiated = responder.accept(depths, b"private", &mut out).expect("it was asked");
        agreed(options, depths, negotiated);
        assert!(peer.ird.is_none_or(|ird| negotiated.depths.ord <= ird));
        assert!(matches!(negotiated.first, FirstFpdu::Wait | FirstFpdu::WaitFor(_)));
        let (reply, len) = Start::parse(&out).expect("our own").expect("all of it");
        assert_eq!((len, reply.revision, reply.reject), (out.len(), negotiated.revision, false));
    }
}

/// Checks the result of a start-up: it has the CRCs and markers that this side requests, and depths
/// within this side's limits, except for one Read as the first frame.
fn agreed(options: StartOptions, depths: Depths, negotiated: Negotiated) {
    assert!(negotiated.crc || !options.crc);
    assert_eq!(negotiated.markers_in, options.markers);
    assert!(negotiated.depths.ird <= depths.ird.max(1) && negotiated.depths.ord <= depths.ord);
}

/// Checks that the deframer's output is the same for a stream cut into pieces as for the whole
/// stream.
fn stream(crc: bool, markers: bool, piece: usize, bytes: &[u8]) {
    let whole = run(crc, markers, bytes.len(), false, bytes);
    assert_eq!(run(crc, markers, piece, false, bytes), whole);
    assert_eq!(run(crc, markers, piece, true, bytes), whole);
}

/// Deframes a stream in pieces. Returns all bytes that come out, the position where its last FPDU
/// began, and its error.
fn run(
    crc: bool,
    markers: bool,
    piece: usize,
    direct: bool,
    bytes: &[u8],
) -> (Vec<u8>, usize, Option<FpduError>) {
    let mut deframer = Deframer::new(crc.then_some(crc32c), markers);
    let (mut out, mut scratch) = (Vec::new(), Vec::new());
    let (mut here, mut end, mut begun) = (0, 0, 0);
    while end < bytes.len() {
        end = bytes.len().min(end + piece);
        if direct && deframer.rest() > 0 {
            let n = deframer.rest().min(end - here);
            out.extend_from_slice(&bytes[here..here + n]);
            deframer.skip(n);
            here += n;
        }
        loop {
            match deframer.next(&bytes[here..end], &mut scratch) {
                Deframed::More => break,
                Deframed::Error(fault) => return (out, begun, Some(fault)),
                Deframed::Piece { header, payload, last, consumed, rest } => {
                    assert!(consumed > 0 && consumed <= end - here && rest == deframer.rest());
                    assert!(header.is_none_or(|header| header.len() == header_len(header[0])));
                    out.extend_from_slice(header.unwrap_or_default());
                    out.extend_from_slice(payload);
                    here += consumed;
                    begun = if last { here } else { begun };
                }
            }
        }
        assert!(end - here < FPDU_MAX, "what is kept has a bound");
    }
    (out, begun, None)
}

/// Returns the bytes as a valid stream of FPDUs, with correct markers and CRCs, so that they reach
/// more code of the deframer.
fn mended(markers: bool, bytes: &[u8]) -> Vec<u8> {
    let mut framer = Framer::new(Some(crc32c), markers);
    let mut record = Record::default();
    for ulpdu in bytes.split(|&b| b == 0xfe).filter(|ulpdu| ulpdu.len() <= MULPDU_MAX) {
        framer.frame(ulpdu, &[], &mut Region(&[]), &mut record).expect("no memory");
    }
    record.bytes
}

/// Frames parts of the bytes as memory, and checks that the deframer returns the same bytes.
fn framed(crc: bool, markers: bool, bytes: &[u8]) {
    let mut framer = Framer::new(crc.then_some(crc32c), markers);
    let mut record = Record::default();
    let mut expected = Vec::new();
    let mut region = Region(bytes);
    for (i, cut) in bytes.chunks(3).take(64).enumerate() {
        let header = [if i % 2 == 0 { 0x81 } else { 0x41 }; 18];
        let header = &header[..header_len(header[0])];
        let number = |i: usize| cut.get(i).copied().map_or(0, usize::from);
        let (at, len) = (16 * number(0), 16 * number(1) + number(2) % 16);
        let span = Span { region: 1, offset: at as u64, len: len as u32 };
        let before = record.clone();
        let pieces = [Piece::Bytes(cut), Piece::Memory(span), Piece::Bytes(cut)];
        match (framer.frame(header, &pieces, &mut region, &mut record), memory(bytes, at, len)) {
            (Ok(()), Some(memory)) => expected.extend([header, cut, memory, cut].concat()),
            // A span that is only referred to is not touched here.
            (Ok(()), None) if !crc && !markers && len >= 2_048 => return,
            (Err(Unmapped), None) => assert_eq!(record, before),
            (done, _) => panic!("{done:?}"),
        }
    }
    let mut stream = Vec::new();
    for part in &record.parts {
        match part {
            Part::Bytes(range) => stream.extend_from_slice(&record.bytes[range.clone()]),
            Part::Memory(span) => {
                stream.extend_from_slice(&bytes[span.offset as usize..][..span.len as usize])
            }
        }
    }
    assert_eq!(run(crc, markers, 1_000, true, &stream), (expected, stream.len(), None));
}

/// Returns the `len` bytes at `at`, the memory that the framer reads.
fn memory(bytes: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    if len == 0 { Some(&[]) } else { bytes.get(at..at + len) }
}

/// A memory region that holds these bytes, which nothing may write.
struct Region<'a>(&'a [u8]);

impl Memory for Region<'_> {
    fn write(&mut self, _: Span, _: &[u8]) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let at = span.offset as usize;
        bytes.copy_from_slice(self.0.get(at..at + bytes.len()).ok_or(Unmapped)?);
        Ok(())
    }

    fn atomic(&mut self, _: Span, _: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        Err(Unmapped)
    }
}
