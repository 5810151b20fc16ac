//! The records of one turn, copied out of the rings into memory that no other process can write.
//! Of a long record only the first bytes are copied: the others stay in the ring until the next
//! turn, and their receiver copies them to where they belong.
//!
//! A turn asks each polled ring for its next word and, until one has a record, does nothing else. A
//! ring that was found empty is not polled again in the same turn, since polling a line that the
//! peer is about to write costs both sides.

use arrayvec::ArrayVec;
use sprat_proto::datagrams::{BURST, LeftDatagram};

use super::connection::{self, State};
use super::options::Counters;
use super::table::{Table, slot_in};
use sprat_sys::ring::{Broken, LEFT_HEAD, LeftRecord, MAX_PAYLOAD, Record};

/// The number of records taken from one connection before it is the next connection's turn.
const SHARE: usize = 8;
/// The length of a burst in bytes, records that are left in their rings included: it ends when the
/// longest record would not fit any more. Small enough for the second-level cache.
const ARENA: usize = 4 * MAX_PAYLOAD;

/// A record of the burst: its connection and its place.
#[derive(Clone, Copy, Default)]
struct Piece {
    from: u64,
    start: usize,
    len: usize,
}

/// The records of a turn, copied out of the rings of several connections.
pub(super) struct Burst {
    arena: Box<[u8]>,
    used: usize,
    pieces: [Piece; BURST],
    len: usize,
    /// The long records whose bodies stay in their rings, each with the index of its piece in
    /// `pieces`. The arena has the first [`LEFT_HEAD`] bytes of each.
    left: ArrayVec<(usize, LeftRecord), BURST>,
    /// True if the burst leaves long records in their rings.
    leaves: bool,
    /// The place in the list of polled connections at which the next burst begins.
    next: usize,
    /// True if the last burst was not empty.
    streak: bool,
}

impl Burst {
    /// Makes an empty burst of records. If `leaves`, it leaves long records in their rings.
    pub(super) fn new(leaves: bool) -> Self {
        Self {
            arena: vec![0; ARENA].into(),
            used: 0,
            pieces: [Piece::default(); BURST],
            len: 0,
            left: ArrayVec::new(),
            leaves,
            next: 0,
            streak: false,
        }
    }

    /// The number of records in the burst.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The record with index `i` of the burst, with the number of its connection.
    #[inline(always)]
    pub(super) fn record(&self, i: usize) -> (u64, &[u8]) {
        let piece = self.pieces[..self.len][i];
        (piece.from, &self.arena[piece.start..piece.start + piece.len])
    }

    /// The first bytes of the record with index `i`, if the burst left the record in its ring.
    pub(super) fn left(&self, i: usize) -> Option<LeftDatagram<'_>> {
        let (_, record) = self.left.iter().find(|(place, _)| *place == i)?;
        let start = self.pieces[i].start;
        Some(LeftDatagram { head: &self.arena[start..start + LEFT_HEAD], len: record.len() })
    }

    /// Appends the bytes from `from` on of the record with index `i`, which the burst left in its
    /// ring, to `bytes`.
    pub(super) fn append_left(&self, i: usize, from: usize, bytes: &mut Vec<u8>) {
        if let Some((_, record)) = self.left.iter().find(|(place, _)| *place == i) {
            record.append_to(from, bytes);
        }
    }

    /// True if the burst left records in their rings, so that their producers lack the room.
    pub(super) fn holds(&self) -> bool {
        !self.left.is_empty()
    }

    /// Gives the producers the room of the records that were left in their rings.
    #[cold]
    #[inline(never)]
    fn release(&mut self, table: &mut Table, counters: &mut Counters) {
        for (place, _) in self.left.drain(..) {
            // The connection may have ended since.
            let Some(connection) = table.get(self.pieces[place].from) else { continue };
            let State::Open(rings) = &mut connection.state else { continue };
            rings.rx.release();
            if rings.rx.take_wake() {
                counters.wakes += 1;
                connection::wake(&connection.socket);
            }
        }
    }

    /// Takes records from the connections that are polled: from `all`, or from the busy ones.
    #[inline(always)]
    pub(super) fn fill(&mut self, table: &mut Table, all: bool, counters: &mut Counters) {
        if self.len > 0 {
            self.len = 0;
            if !self.left.is_empty() {
                self.release(table, counters);
            }
        }
        let due = table.due(all);
        let mut place = self.next;
        for _ in 0..due {
            if place >= due {
                place = 0;
            }
            if table.is_ready_at(place) {
                return self.fill_from(table, place, due, counters);
            }
            place += 1;
        }
        self.streak = false;
    }

    /// Fills the burst from several connections, round after round while one may have more records.
    /// The connection at `place`, which is first, has a record.
    #[inline(never)]
    fn fill_from(
        &mut self,
        table: &mut Table,
        mut place: usize,
        due: usize,
        counters: &mut Counters,
    ) {
        self.used = 0;
        // A record that comes alone is not kept waiting by a look for the next one.
        let share = match (self.streak, due) {
            (false, _) => 1,
            (true, 1) => BURST,
            (true, _) => SHARE,
        };
        let (mut left, mut more) = (due, false);
        'burst: while self.len < BURST && self.used + MAX_PAYLOAD <= ARENA {
            more |= self.take(table, place, share, counters);
            loop {
                place = if place + 1 < due { place + 1 } else { 0 };
                left -= 1;
                if left == 0 {
                    if !(self.streak && more) {
                        break 'burst;
                    }
                    (left, more) = (due, false);
                }
                if table.is_ready_at(place) {
                    break;
                }
            }
        }
        self.next = place;
        self.streak = self.len > 0;
        counters.received += self.len as u64;
    }

    /// Moves up to `most` records of a connection to the burst, which has room for at least one.
    /// Returns true if there may be more.
    #[inline(always)]
    fn take(
        &mut self,
        table: &mut Table,
        place: usize,
        most: usize,
        counters: &mut Counters,
    ) -> bool {
        let Some(connection) = table.polled_at(place) else { return false };
        let State::Open(rings) = &mut connection.state else { return false };
        let before = self.len;
        let end = (before + most).min(BURST);
        let mut over = false;
        loop {
            match rings.rx.pop(&mut self.arena[self.used..], self.leaves) {
                Ok(Some(Record::Copied(len))) => {
                    self.pieces[self.len] = Piece { from: connection.id, start: self.used, len };
                    self.len += 1;
                    self.used += (len + 15) & !15;
                }
                Ok(Some(Record::Left(record))) => {
                    let piece = Piece { from: connection.id, start: self.used, len: 0 };
                    self.pieces[self.len] = piece;
                    // It counts as if it were copied, so that the producer soon gets its room.
                    self.used += (record.len() + 15) & !15;
                    self.left.push((self.len, record));
                    self.len += 1;
                }
                Ok(None) => {
                    // The end is reported in a later burst than the last records.
                    over = connection.ended
                        && !self.pieces[..self.len].iter().any(|p| p.from == connection.id);
                    break;
                }
                Err(Broken) => {
                    counters.broken += 1;
                    over = true;
                    break;
                }
            }
            if self.len >= end || self.used + MAX_PAYLOAD > ARENA {
                break;
            }
        }
        if rings.rx.take_wake() {
            counters.wakes += 1;
            connection::wake(&connection.socket);
        }
        let taken = self.len - before;
        connection.spoke |= taken > 0;
        if over {
            let id = connection.id;
            table.remove(slot_in(id));
        } else if table.is_quiet(place) {
            table.activate_at(place);
        }
        taken == most
    }
}
