//! A hand-made peer, which can send segments that no engine sends and records every segment it
//! receives.

use super::*;
use crate::rdma::iwarp::deframer::{Deframed, Deframer};
use crate::rdma::iwarp::framer::{Framer, Piece};
use crate::wire::checksum::crc32c;
use crate::wire::ddp::{self, Buffer, Header};
use crate::wire::rdmap::{Cause, Opcode, Terminate};

/// A DDP segment: its header and its payload.
pub(super) type Segment = (Header, Vec<u8>);

/// Parses the DDP segments in `bytes`.
pub(super) fn segments(bytes: &[u8], crc: bool) -> Vec<Segment> {
    let mut deframer = Deframer::new(crc.then_some(crc32c), false);
    let (mut scratch, mut at, mut all) = (Vec::new(), 0, Vec::new());
    loop {
        match deframer.next(&bytes[at..], &mut scratch) {
            Deframed::More => break,
            Deframed::Piece { header, payload, rest, consumed, .. } => {
                at += consumed;
                if let Some(header) = header {
                    assert_eq!(rest, 0);
                    all.push((ddp::parse(header).unwrap(), payload.to_vec()));
                }
            }
            Deframed::Error(fault) => panic!("{fault}"),
        }
    }
    assert_eq!(at, bytes.len());
    all
}

/// The header of a tagged DDP segment.
pub(super) fn tagged(opcode: Opcode, stag: Stag, to: u64, last: bool) -> Header {
    Header { last, control: opcode.control(), buffer: Buffer::Tagged { stag: stag.0, to } }
}

/// The header of an untagged DDP segment.
pub(super) fn untagged(opcode: Opcode, msn: u32, mo: u32, last: bool) -> Header {
    let qn = opcode.queue().unwrap_or(0);
    Header { last, control: opcode.control(), buffer: Buffer::Untagged { ulp: 0, qn, msn, mo } }
}

/// An engine (side `b` of a pair), connected with a hand-made peer that was the initiator, with
/// CRCs. The engine has one region of 256 bytes at 0x1000 with all rights.
pub(super) struct Peer {
    pub(super) pair: Pair,
    pub(super) stag: Stag,
}

impl Peer {
    pub(super) fn new() -> Self {
        Self::with(&Setup::default())
    }

    pub(super) fn with(setup: &Setup) -> Self {
        let mut pair = Pair::connected(setup);
        let stag = pair.b.region(vec![0xee; 256], 0x1000);
        pair.b.sent.clear();
        // The responder may send after the first FPDU.
        let mut peer = Self { pair, stag };
        peer.say(tagged(Opcode::Write, Stag(1), 0, true), &[]);
        assert!(peer.hear().is_empty());
        peer
    }

    pub(super) fn us(&mut self) -> &mut Side {
        &mut self.pair.b
    }

    /// Sends the engine a ULPDU as it is.
    pub(super) fn say_raw(&mut self, header: &[u8], payload: &[u8]) {
        let mut record = Record::default();
        let piece = [Piece::Bytes(payload)];
        Framer::new(Some(crc32c), false)
            .frame(header, &piece, &mut Ram::default(), &mut record)
            .unwrap();
        self.pair.b.take(self.pair.now, &record.bytes);
    }

    /// Sends the engine a segment.
    pub(super) fn say(&mut self, header: Header, payload: &[u8]) {
        self.say_raw(&header.emit(), payload);
    }

    /// Returns the segments that the engine sent since the last call.
    pub(super) fn hear(&mut self) -> Vec<Segment> {
        self.pair.b.send(self.pair.now);
        self.pair.b.hear();
        self.pair.b.wire.clear();
        segments(&core::mem::take(&mut self.pair.b.sent), true)
    }

    /// Returns the engine's Terminate, which must be the only message. The stream must be closed in
    /// order after it, and the queue pair be in error.
    #[track_caller]
    pub(super) fn terminated(&mut self) -> Terminate {
        let heard = self.hear();
        let [(header, payload)] = &heard[..] else { panic!("{heard:?} {:?}", self.pair.b.events) };
        assert_eq!(*header, untagged(Opcode::Terminate, 1, 0, true));
        let terminate = Terminate::parse(payload).unwrap();
        let us = &self.pair.b;
        assert_eq!(us.closed, Some(false));
        assert_eq!(us.rnic.state(us.qp), Some(QpState::Error));
        let qp = us.qp;
        let failed = Event::QpFailed { qp, cause: terminate.cause, ours: true };
        let at = us.events.iter().position(|e| *e == failed).expect("the program is told");
        let later = us.events.iter().position(|e| *e == Event::Disconnected { qp }).unwrap();
        assert!(at < later);
        terminate
    }

    /// Returns the cause in the engine's Terminate.
    #[track_caller]
    pub(super) fn cause(&mut self) -> Cause {
        self.terminated().cause
    }

    /// The bytes of the engine's memory region.
    pub(super) fn region(&mut self) -> &mut Vec<u8> {
        &mut self.pair.b.ram.0[0]
    }

    /// Checks that the engine placed nothing in its memory region.
    #[track_caller]
    pub(super) fn untouched(&mut self) {
        assert!(self.region().iter().all(|&byte| byte == 0xee));
    }

    /// Posts a receive of `len` bytes at the start of the engine's memory region.
    pub(super) fn recv(&mut self, id: u64, len: u32) {
        let stag = self.stag;
        self.us().recv(id, &[(stag, 0x1000, len)]);
    }
}
