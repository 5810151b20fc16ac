//! Received data that a program uses where it lies in the frame that brought it: data in order,
//! which is lent, and data behind a gap, which is shown.
//!
//! Always: data behind a gap is in the connection's buffer too, and is read from there in its turn,
//! whatever the program did with it before.

use core::ops::Range;

use super::{TcpHost, TcpId};
use crate::net::tcp::connection::Connection;
use crate::net::tcp::input::Segment;
use crate::net::tcp::receive::Lends;

/// Data of a segment that the program may use where it lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpData {
    /// The connection.
    pub id: TcpId,
    /// The bytes of the segment's data.
    pub range: Range<usize>,
    /// The number of bytes of the stream before the data, modulo 2³², if the data is behind a gap.
    /// Data in order is lent.
    pub ahead: Option<u32>,
}

impl TcpHost {
    /// Lets received data of a connection be lent instead of copied. The bytes that
    /// [`TcpHost::input`] returns are lent.
    pub fn lend(&mut self, id: TcpId, lends: bool) {
        if let Some(entry) = self.entries.of_mut(id) {
            entry.connection.lend(lends);
        }
    }

    /// Ends the lending of the next `count` bytes of a connection, which the program has taken.
    pub fn take_lent(&mut self, id: TcpId, count: usize) {
        let Some(entry) = self.entries.of_mut(id) else { return };
        entry.connection.take_lent(count);
        entry.changes.readable |= entry.connection.is_finished();
        self.changed(id.index);
    }

    /// Ends the lending of the next bytes of a connection, which the program has not taken, and
    /// copies them. The connection is readable then.
    pub fn keep_lent(&mut self, id: TcpId, bytes: &[u8]) {
        let Some(entry) = self.entries.of_mut(id) else { return };
        entry.connection.keep_lent(bytes);
        entry.changes.readable = true;
        self.touch(id.index);
    }

    /// Lets received data of a connection be lent, and has [`TcpHost::input`] return data behind a
    /// gap too.
    pub fn lend_ahead(&mut self, id: TcpId) {
        if let Some(entry) = self.entries.of_mut(id) {
            entry.connection.receive.lends = Lends::All;
        }
    }

    /// Removes the next `count` received bytes, which the program does not read, or as many as
    /// there are. Returns their number.
    pub fn skip(&mut self, id: TcpId, count: usize) -> usize {
        let Some(entry) = self.entries.of_mut(id) else { return 0 };
        let count = entry.connection.readable().min(count);
        entry.connection.consume(count);
        self.touch(id.index);
        count
    }
}

/// Returns the first `count` bytes of a segment, which are behind a gap, if the program wants to
/// see them.
pub(super) fn ahead(
    id: TcpId,
    connection: &Connection,
    segment: &Segment<'_>,
    count: usize,
) -> Option<TcpData> {
    let is_shown = count > 0 && connection.receive.lends == Lends::All;
    let ahead = Some(connection.offset(segment.tcp.seq));
    is_shown.then_some(TcpData { id, range: 0..count, ahead })
}
