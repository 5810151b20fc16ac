//! A capture of two siws (Linux 6.1) that talk to each other, read by our parsers and written again
//! by our emitters: every octet of every stream is understood, and comes out of our own code as it
//! stands there, pad excepted. See `data/README.md`.

mod capture;

use std::collections::BTreeMap;

use capture::{Connection, connections};
use sprat_proto::rdma::iwarp::deframer::{Deframed, Deframer};
use sprat_proto::rdma::iwarp::framer::{Framer, Piece};
use sprat_proto::rdma::{Memory, Record, Span, Unmapped};
use sprat_proto::wire::ddp::{self, Buffer, Header};
use sprat_proto::wire::mpa::{CRC, Kind, LENGTH, Start, fpdu_len};
use sprat_proto::wire::rdmap::{Opcode, ReadRequest};

const CAPTURE: &[u8] = include_bytes!("data/siw-siw.pcap");

/// One direction of a stream, its FPDUs taken apart.
struct Direction {
    segments: Vec<(Header, Vec<u8>)>,
}

/// Nothing here is registered.
struct NoMemory;

impl Memory for NoMemory {
    fn write(&mut self, _: Span, _: &[u8]) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn read(&mut self, _: Span, _: &mut [u8]) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn atomic(&mut self, _: Span, _: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        Err(Unmapped)
    }
}

/// The iWARP connections of the capture; the others are not MPA.
fn iwarp() -> Vec<Connection> {
    let (frames, all) = connections(CAPTURE);
    assert_eq!((frames, all.len()), (1_485, 10));
    all.into_values().filter(|c| c.client.starts_with(b"MPA ID Req Frame")).collect()
}

/// Takes the start-up frame off `bytes`, checks that we would write it as siw did, and says whether
/// it wants CRCs.
fn take_start(bytes: &mut &[u8], kind: Kind) -> bool {
    let (start, len) = Start::parse(bytes).expect("it is well formed").expect("it is whole");
    assert_eq!((start.kind, start.revision, start.markers, start.reject), (kind, 2, false, false));
    let depths = start.enhanced.expect("siw speaks RFC 6581");
    assert!(depths.rtr.is_none() && depths.ird <= 128 && depths.ord <= 128);
    let mut again = Vec::new();
    start.emit(&mut again).expect("it fits");
    assert_eq!(again, bytes[..len]);
    *bytes = &bytes[len..];
    start.crc
}

/// Reads all FPDUs of `bytes`, which arrive `step` octets at a time.
fn deframe(bytes: &[u8], step: usize) -> Direction {
    let (mut deframer, mut scratch) = (Deframer::new(None, false), Vec::new());
    let mut segments: Vec<(Header, Vec<u8>)> = Vec::new();
    let (mut done, mut arrived) = (0, 0);
    while done < bytes.len() {
        match deframer.next(&bytes[done..arrived], &mut scratch) {
            Deframed::More => {
                assert!(arrived < bytes.len(), "an FPDU is cut off");
                arrived = bytes.len().min(arrived + step);
            }
            Deframed::Piece { header, payload, consumed, .. } => {
                if let Some(header) = header {
                    let parsed = ddp::parse(header).expect("siw's headers are sound");
                    assert_eq!(parsed.emit().as_slice(), header, "we would write the same");
                    segments.push((parsed, Vec::new()));
                }
                segments.last_mut().expect("a header came first").1.extend_from_slice(payload);
                done += consumed;
            }
            Deframed::Error(fault) => panic!("{fault}"),
        }
    }
    assert!(deframer.between());
    Direction { segments }
}

/// The octets that our framer makes of the segments.
fn frame(direction: &Direction) -> Vec<u8> {
    let (mut framer, mut record) = (Framer::new(None, false), Record::default());
    for (header, payload) in &direction.segments {
        framer
            .frame(&header.emit(), &[Piece::Bytes(payload)], &mut NoMemory, &mut record)
            .expect("no memory is read");
    }
    assert_eq!(record.len(), record.bytes.len());
    record.bytes
}

/// The stream with zeros for pad, where siw sends whatever stood there before.
fn with_clean_pads(bytes: &[u8]) -> Vec<u8> {
    let (mut clean, mut at) = (bytes.to_vec(), 0);
    while at < clean.len() {
        let ulpdu = usize::from(u16::from_be_bytes([clean[at], clean[at + 1]]));
        let next = at + fpdu_len(ulpdu);
        clean[at + LENGTH + ulpdu..next - CRC].fill(0);
        at = next;
    }
    clean
}

/// The messages of a direction, each with its first header and whole payload; numbers and offsets
/// are checked on the way.
fn messages(direction: &Direction) -> Vec<(Opcode, Header, Vec<u8>)> {
    let mut messages: Vec<(Opcode, Header, Vec<u8>)> = Vec::new();
    let (mut numbers, mut open) = ([0; 4], false);
    for (header, payload) in &direction.segments {
        let opcode = Opcode::of(header).expect("siw sends what belongs where it is");
        let (_, first, whole) = match messages.last_mut().filter(|_| open) {
            Some(message) => message,
            None => {
                if let Buffer::Untagged { qn, .. } = header.buffer {
                    numbers[qn as usize] += 1;
                }
                messages.push((opcode, *header, Vec::new()));
                messages.last_mut().expect("just pushed")
            }
        };
        assert_eq!(first.control, header.control);
        match (first.buffer, header.buffer) {
            (Buffer::Tagged { stag, to }, Buffer::Tagged { stag: same, to: here }) => {
                assert_eq!((stag, to + whole.len() as u64), (same, here));
            }
            (_, Buffer::Untagged { ulp, qn, msn, mo }) => {
                assert!(ulp == 0 || opcode.invalidates());
                assert_eq!((msn, mo), (numbers[qn as usize], whole.len() as u32));
            }
            _ => panic!("a message is of one form"),
        }
        whole.extend_from_slice(payload);
        open = !header.last;
    }
    assert!(!open, "the last message is whole");
    messages
}

/// Every Read of `asked` is answered in `answered`, in order, where it said and as long as it said.
fn reads_are_answered(asked: &[(Opcode, Header, Vec<u8>)], answered: &[(Opcode, Header, Vec<u8>)]) {
    let requests =
        asked.iter().filter(|(opcode, ..)| *opcode == Opcode::ReadRequest).map(|(.., payload)| {
            let request = ReadRequest::parse(payload).expect("it is as long as it must be");
            assert_eq!(request.emit().as_slice(), payload);
            (Buffer::Tagged { stag: request.sink_stag, to: request.sink_to }, request.size as usize)
        });
    let responses = answered.iter().filter(|(opcode, ..)| *opcode == Opcode::ReadResponse);
    let responses = responses.map(|(_, header, payload)| (header.buffer, payload.len()));
    assert!(requests.eq(responses));
}

#[test]
fn every_frame_of_two_siws_is_understood() {
    let mut counts = BTreeMap::new();
    let connections = iwarp();
    assert_eq!(connections.len(), 9);
    for connection in &connections {
        let (mut client, mut server) = (connection.client.as_slice(), connection.server.as_slice());
        let crc = take_start(&mut client, Kind::Request) | take_start(&mut server, Kind::Reply);
        assert!(!crc, "this siw neither asks for CRCs nor sends any");
        let sides = [client, server].map(|bytes| {
            let direction = deframe(bytes, usize::MAX);
            assert!(frame(&direction) == with_clean_pads(bytes), "we would send the same octets");
            messages(&direction)
        });
        reads_are_answered(&sides[0], &sides[1]);
        reads_are_answered(&sides[1], &sides[0]);
        for (opcode, ..) in sides.iter().flatten() {
            *counts.entry(*opcode as u8).or_insert(0) += 1;
        }
    }
    let numbers = [
        (Opcode::Write, 403),
        (Opcode::ReadRequest, 203),
        (Opcode::ReadResponse, 203),
        (Opcode::Send, 528),
    ];
    assert_eq!(counts, numbers.map(|(opcode, count)| (opcode as u8, count)).into());
}

#[test]
fn f15_it_does_not_matter_how_the_stream_was_cut() {
    for connection in iwarp() {
        for (bytes, kind) in
            [(&connection.client, Kind::Request), (&connection.server, Kind::Reply)]
        {
            let mut bytes = bytes.as_slice();
            take_start(&mut bytes, kind);
            let whole = deframe(bytes, usize::MAX).segments;
            for step in [1, 3, 17, 64, 1_448] {
                assert!(deframe(bytes, step).segments == whole);
            }
        }
    }
}
