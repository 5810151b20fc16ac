//! Datagrams that wait to be sent: gathered into runs.
//!
//! ```text
//! buffer   [ A 96 ][ B 96 ][ A 96 ][ A 40 ][ B 96 ] …     in the order of `send`
//! runs     A 96: two pieces · B 96: two pieces · A 40: joins the run of A at the end
//! ```
//!
//! A *run* is datagrams to one peer of one length, which leave as one kernel super-packet
//! (UDP_SEGMENT); its last datagram may be shorter. Up to [`BURST`] runs are open at a time, so
//! that replies to several peers, or long and short ones to one peer, leave in a few messages in
//! whatever order they came. Datagrams of different lengths to a peer may overtake each other.
//!
//! Not here: the system calls.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use arrayvec::ArrayVec;
use sprat_proto::datagrams::BURST;
use sprat_sys::datagram::{Name, Outgoing};

/// The maximum of bytes in a run of datagrams: the most that UDP over IPv4 carries.
pub(super) const MAX_RUN: usize = 65_507;
/// The maximum of datagrams in a run; older kernels take no more.
const MAX_SEGMENTS: usize = 64;
/// The length of the buffer of a batch: room for several runs, small enough to stay in the
/// second-level cache until the kernel has copied it.
const BYTES: usize = 128 << 10;
/// The maximum of pieces of a batch. Datagrams of a run that lie end to end are one piece.
const PIECES: usize = 256;
/// The number of no piece, which ends a list of pieces.
const NONE: u16 = u16::MAX;
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A piece of a run: bytes of the buffer, and the next piece.
#[derive(Clone, Copy)]
struct Piece {
    start: u32,
    end: u32,
    next: u16,
}

#[derive(Clone, Copy)]
struct Run {
    socket: usize,
    to: SocketAddr,
    name: Name,
    bytes: usize,
    /// The length of the run's first datagram, which no later one exceeds.
    segment: usize,
    datagrams: usize,
    /// The pieces of the run: the first, the last and their number.
    first: u16,
    last: u16,
    pieces: usize,
    /// True if the run ends in a shorter datagram, so that no other may follow.
    closed: bool,
}

impl Run {
    fn takes(&self, to: &SocketAddr, len: usize) -> bool {
        !self.closed
            && self.bytes + len <= MAX_RUN
            && self.datagrams < MAX_SEGMENTS
            && self.to == *to
    }
}

/// A batch: datagrams that wait to be sent, gathered into runs.
pub(super) struct Batch {
    buffer: Box<[u8]>,
    len: usize,
    runs: [Run; BURST],
    count: usize,
    pieces: ArrayVec<Piece, PIECES>,
}

impl Batch {
    /// Makes an empty batch of datagrams.
    pub(super) fn new() -> Self {
        let run = Run {
            socket: 0,
            to: NOWHERE,
            name: Name::default(),
            bytes: 0,
            segment: 0,
            datagrams: 0,
            first: NONE,
            last: NONE,
            pieces: 0,
            closed: true,
        };
        Self {
            buffer: vec![0; BYTES].into(),
            len: 0,
            runs: [run; BURST],
            count: 0,
            pieces: ArrayVec::new(),
        }
    }

    /// True if no datagram waits in the batch.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of runs in the batch.
    #[inline]
    pub(super) fn runs(&self) -> usize {
        self.count
    }

    /// Removes all datagrams from the batch.
    pub(super) fn clear(&mut self) {
        (self.len, self.count) = (0, 0);
        self.pieces.clear();
    }

    /// Adds a datagram of `len` bytes to a run of the same peer and length. Returns false if there
    /// is no such run, or no room.
    #[inline]
    pub(super) fn join(&mut self, to: &SocketAddr, len: usize, parts: &[&[u8]]) -> bool {
        if self.len + len > BYTES || self.pieces.is_full() {
            return false;
        }
        // The last one first, which it is in a stream of packets.
        let same = |run: &Run| run.segment == len && len > 0 && run.takes(to, len);
        let Some(i) = self.runs[..self.count].iter().rposition(same) else { return false };
        self.append(i, len, parts);
        true
    }

    /// True if the batch has room for a datagram of `len` bytes in a run of its own.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.count < BURST && self.len + len <= BYTES && !self.pieces.is_full()
    }

    /// Begins a run with a datagram of `len` bytes, for which the batch has room.
    pub(super) fn begin(&mut self, socket: usize, to: SocketAddr, len: usize, parts: &[&[u8]]) {
        self.runs[self.count] = Run {
            socket,
            to,
            name: Name::new(to),
            bytes: 0,
            segment: len,
            datagrams: 0,
            first: NONE,
            last: NONE,
            pieces: 0,
            closed: false,
        };
        self.count += 1;
        self.append(self.count - 1, len, parts);
    }

    /// Copies a datagram into the batch's buffer, as the last one of run `i`.
    #[inline]
    fn append(&mut self, i: usize, len: usize, parts: &[&[u8]]) {
        let (start, run) = (self.len as u32, &mut self.runs[i]);
        for part in parts {
            self.buffer[self.len..self.len + part.len()].copy_from_slice(part);
            self.len += part.len();
        }
        run.bytes += len;
        run.datagrams += 1;
        let end = self.len as u32;
        match self.pieces.get_mut(usize::from(run.last)) {
            Some(last) if last.end == start => last.end = end,
            _ => {
                let piece = self.pieces.len() as u16;
                self.pieces.push(Piece { start, end, next: NONE });
                self.link(i, piece, piece, 1);
            }
        }
    }

    /// Appends a list of pieces to those of run `i`.
    fn link(&mut self, i: usize, first: u16, last: u16, pieces: usize) {
        let run = &mut self.runs[i];
        run.pieces += pieces;
        match self.pieces.get_mut(usize::from(run.last)) {
            Some(piece) => piece.next = first,
            None => run.first = first,
        }
        run.last = last;
    }

    /// Joins runs of a single datagram to the end of another run to the same peer, whose datagrams
    /// are longer.
    pub(super) fn close(&mut self) {
        for single in (0..self.count).rev() {
            let one = self.runs[single];
            if one.datagrams != 1 || one.segment == 0 {
                continue;
            }
            let longer = |run: &Run| run.segment > one.segment && run.takes(&one.to, one.segment);
            let Some(i) = self.runs[..self.count].iter().position(longer) else { continue };
            self.link(i, one.first, one.last, one.pieces);
            let run = &mut self.runs[i];
            run.bytes += one.segment;
            run.datagrams += 1;
            run.closed = true;
            self.count -= 1;
            self.runs.copy_within(single + 1..=self.count, single);
        }
    }

    /// Calls `each` with each socket's runs, as lists of pieces.
    pub(super) fn each_socket(&self, mut each: impl FnMut(usize, &[Outgoing<'_>])) {
        for same in self.runs[..self.count].chunk_by(|a, b| a.socket == b.socket) {
            let mut slices = ArrayVec::<IoSlice<'_>, PIECES>::new();
            for run in same {
                let mut at = run.first;
                while let Some(piece) = self.pieces.get(usize::from(at)) {
                    slices
                        .push(IoSlice::new(&self.buffer[piece.start as usize..piece.end as usize]));
                    at = piece.next;
                }
            }
            let mut items = ArrayVec::<Outgoing<'_>, BURST>::new();
            let mut rest = &slices[..];
            for run in same {
                let (own, others) = rest.split_at(run.pieces);
                rest = others;
                items.push(Outgoing {
                    to: &run.name,
                    pieces: own,
                    segment: (run.datagrams > 1).then_some(run.segment as u16),
                });
            }
            each(same[0].socket, &items);
        }
    }
}
