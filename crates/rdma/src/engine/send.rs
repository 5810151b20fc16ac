//! Sending: takes records from the pure engine and hands them to the sockets.

use std::io;

use sprat_proto::Instant;
use sprat_proto::rdma::{Conn, Record, StreamEnd};
use sprat_proto::rpc::Slices;

use super::core::Core;
use super::native::Native;
use super::receive::READ;
use super::regions::Reach;
use super::socket;
use super::stream::{Pending, Stream, took};

/// The most bytes that one call hands to the kernel while other streams wait to send.
const BATCH: usize = 256 << 10;
/// The most bytes that one call hands to the kernel while no other stream waits: the kernel moves 1
/// MB in less time if it gets all of it at once.
const BATCH_ALONE: usize = 1 << 20;
/// The most payload that one send copies together (with CRC or markers): two messages of 64 KB, for
/// which the kernel makes fewer segments than one by one. More would leave the second-level cache
/// (docs/decisions.md, "A copy and its CRC in one pass").
const COPIED: usize = 128 << 10;
/// The bytes of an FPDU besides its payload: length, header and CRC. If they counted as payload,
/// the last bytes of the second message would leave in a send of their own.
const FRAMING: usize = 24;
/// The most bytes that one connection sends in a turn while others wait to send.
const WORK: usize = 1 << 20;
/// The most reads of a socket whose peer is gone: more than the kernel keeps.
const MOST_REST: usize = 1024;

impl Core {
    pub(super) fn send(&mut self, now: Instant, slices: &dyn Slices) -> bool {
        while let Some(conn) = self.rnic.ready() {
            if let Some(slot) = self.slot_of(conn) {
                self.mark_dirty(slot);
            }
        }
        let many = self.dirty.len();
        for _ in 0..many {
            let Some(slot) = self.dirty.pop_front() else {
                break;
            };
            if let Some(stream) = self.streams[slot as usize].as_deref_mut() {
                stream.dirty = false;
                let (conn, stalled) = (stream.conn(), stream.stalled);
                if let Some(conn) = conn {
                    // Even if nothing can be sent: the peer may not read before it is read from.
                    self.rnic.place_unexpected(now, conn, &mut self.regions);
                    if stalled && !self.rnic.is_stalled(conn) {
                        self.stall(slot, false);
                    }
                }
                self.send_on(now, slot, slices);
            }
        }
        many > 0
    }

    /// Marks a stream as one that may have something to send.
    pub(super) fn mark_dirty(&mut self, slot: u32) {
        if let Some(stream) = self.streams[slot as usize].as_deref_mut()
            && !stream.dirty
        {
            stream.dirty = true;
            self.dirty.push_back(slot);
        }
    }

    /// Sends the output of the stream in `slot`, until the kernel takes no more or other streams
    /// should have a turn.
    fn send_on(&mut self, now: Instant, slot: u32, slices: &dyn Slices) {
        if !self.send_pending(now, slot, slices) {
            return;
        }
        let Some(conn) = self.streams[slot as usize].as_deref().and_then(Stream::conn) else {
            return;
        };
        let batch = if self.dirty.is_empty() { BATCH_ALONE } else { BATCH };
        let mut work = 0;
        let is_tight = self.native.as_deref().is_some_and(Native::is_tight);
        loop {
            let (mut len, mut framing, mut more) = (0, 0, true);
            let within = |record: &Record, len, framing| {
                // A record is a segment.
                if is_tight {
                    return len == 0;
                }
                !record.push
                    && len < batch
                    && record.bytes.len() < COPIED + framing
                    && record.parts.len() < socket::PIECES / 2
            };
            while more && within(&self.record, len, framing) {
                let mut reach = Reach { regions: &mut self.regions, slices };
                more = self.rnic.output(now, conn, &mut self.record, &mut reach);
                len = self.record.len();
                framing += FRAMING;
            }
            if len == 0 {
                return;
            }
            let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
                return;
            };
            let socket = &stream.socket;
            let sent = socket.send(&mut self.native, &self.record, 0, &mut self.regions, slices);
            let n = match took(sent) {
                Ok(n) => n,
                Err(error) => {
                    let record = std::mem::take(&mut self.record);
                    return self.send_failed(now, slot, conn, &error, (&record, 0), slices);
                }
            };
            if n < len {
                let record = std::mem::take(&mut self.record);
                stream.pending = Some(Box::new(Pending { record, sent: n }));
                self.register(slot);
            } else {
                self.record.clear();
            }
            self.count_sent(Some(conn), n);
            work += n;
            if n < len || !more {
                return;
            }
            if work >= WORK {
                return self.mark_dirty(slot);
            }
        }
    }

    /// Handles a failed send of a record whose first bytes the kernel may have taken: the
    /// connection has ended, or memory of the record is unmapped.
    #[cold]
    fn send_failed(
        &mut self,
        now: Instant,
        slot: u32,
        conn: Conn,
        error: &io::Error,
        (record, sent): (&Record, usize),
        slices: &dyn Slices,
    ) {
        if socket::is_unmapped(error)
            && let Some(span) = self.regions.unreadable(record, sent, slices)
        {
            self.rnic.source_unmapped(now, conn, span);
        } else {
            self.receive_rest(now, slot, conn);
            self.ended(now, slot, conn, StreamEnd::Reset);
        }
    }

    /// Reads the last bytes of a peer whose connection can send no more. A program may send its
    /// last message and exit with unread bytes in its socket, which makes its kernel reset the
    /// connection. The kernel of this end still has the bytes that arrived before the reset.
    fn receive_rest(&mut self, now: Instant, slot: u32, conn: Conn) {
        for _ in 0..MOST_REST {
            let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
                return;
            };
            if stream.finished || stream.stalled || stream.conn() != Some(conn) {
                return;
            }
            let kept = stream.kept.len();
            let Some(Ok(n @ 1..)) = stream.read(&mut self.native, &mut self.buffer, kept + READ)
            else {
                return;
            };
            self.count_read(n);
            self.feed(now, slot, conn, n);
        }
    }

    fn count_sent(&mut self, conn: Option<Conn>, n: usize) {
        if n == 0 {
            return;
        }
        self.counters.sends += 1;
        self.counters.sent += n as u64;
        if let Some(conn) = conn {
            self.rnic.sent(conn, n);
        }
    }

    /// Sends the rest of a record that the kernel took in part; returns true if all of it has gone
    /// and the stream still exists.
    fn send_pending(&mut self, now: Instant, slot: u32, slices: &dyn Slices) -> bool {
        let Some(stream) = self.streams.get_mut(slot as usize).and_then(Option::as_deref_mut)
        else {
            return false;
        };
        if stream.pending.is_none() {
            return true;
        }
        let conn = stream.conn();
        match stream.send_pending(&mut self.native, &mut self.regions, slices) {
            Ok(n) => self.count_sent(conn, n),
            Err(error) => {
                let left = stream.pending.take();
                match (conn, left) {
                    (Some(conn), Some(left)) => {
                        self.send_failed(
                            now,
                            slot,
                            conn,
                            &error,
                            (&left.record, left.sent),
                            slices,
                        );
                    }
                    _ => self.remove(slot),
                }
                return false;
            }
        }
        let all = self.streams[slot as usize].as_deref().is_some_and(|s| s.pending.is_none());
        if all {
            self.register(slot);
            if conn.is_none() {
                self.finish_sending(slot);
            }
        }
        all
    }
}
