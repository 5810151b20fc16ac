//! Operations on one connection that few programs need: options of its own, and reports of the
//! network.

use super::TcpHost;
use crate::Instant;
use crate::net::tcp::connection::Connection;
use crate::net::tcp::flow::TcpFlow;
use crate::net::tcp::id::TcpId;
use crate::net::tcp::own::{TcpReport, TcpSettings};

impl TcpHost {
    /// Sets the options of one connection, which may be open. Call [`TcpHost::output`] after it.
    pub fn set(&mut self, now: Instant, id: TcpId, settings: TcpSettings) {
        if let Some(entry) = self.entries.of_mut(id) {
            entry.connection.set(now, &self.config, settings);
            entry.fields = settings.fields(&self.config);
            self.touch(id.index);
        }
    }

    /// Returns the options that the program has set for one connection, or that it has from its
    /// listener.
    #[must_use]
    pub fn settings(&self, id: TcpId) -> Option<TcpSettings> {
        self.connection(id).map(Connection::settings)
    }

    /// Makes the next acknowledgement of a connection an event ([`TcpChanges::writable`]), as a
    /// write for which there is not enough room does.
    ///
    /// [`TcpChanges::writable`]: crate::net::tcp::TcpChanges::writable
    pub fn want_room(&mut self, id: TcpId) {
        if let Some(entry) = self.entries.of_mut(id) {
            entry.wants_room = true;
        }
    }

    /// Returns the last report of the network about a connection since its peer has acknowledged
    /// something new. At one that has timed out it is the likely reason.
    #[must_use]
    pub fn soft_error(&self, id: TcpId) -> Option<TcpReport> {
        self.connection(id).and_then(|connection| connection.soft_error())
    }

    /// Returns true if the sequence number is one that a connection has sent and that its peer has
    /// not acknowledged.
    #[must_use]
    pub fn is_in_flight(&self, flow: &TcpFlow, seq: Option<u32>) -> bool {
        let entry = self.find(flow).and_then(|index| self.entries.get(index));
        entry.zip(seq).is_some_and(|(entry, seq)| entry.connection.is_in_flight(seq))
    }

    /// Takes the news that the host of a peer reports a port without listener. That ends a
    /// connection in its handshake, and no other (RFC 5927 6).
    pub fn unreachable(&mut self, flow: &TcpFlow) {
        let Some(index) = self.find(flow) else { return };
        if let Some(entry) = self.entries.get_mut(index) {
            entry.connection.unreachable();
            self.touch(index);
        }
    }

    /// Takes the news that the path to the peer of a connection has changed.
    pub fn path_changed(&mut self, flow: &TcpFlow) {
        if let Some(index) = self.find(flow) {
            self.touch(index);
        }
    }

    /// Takes a report of the network about a segment of a connection, of which the program hears.
    /// `is_hard` is true if it says that the peer has no TCP, which ends a connection in its
    /// handshake, and no other.
    pub fn reported(&mut self, flow: &TcpFlow, report: TcpReport, is_hard: bool) {
        let Some(index) = self.find(flow) else { return };
        if let Some(entry) = self.entries.get_mut(index) {
            entry.connection.reported(report, is_hard);
            entry.changes.warned = true;
            self.counters.soft_errors += 1;
            self.touch(index);
        }
    }
}
