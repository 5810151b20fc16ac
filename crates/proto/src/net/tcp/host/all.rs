//! Operations on all connections of a host, or on all of a listener.

use alloc::vec::Vec;

use super::{Entry, TcpHost, TcpId};
use crate::net::tcp::connection::TcpState;
use crate::net::tcp::own::TcpSettings;

impl TcpHost {
    /// Stops a listener from taking new connections for a while: peers send their SYNs again. The
    /// handshakes that have begun go on.
    pub fn pause(&mut self, port: u16, is_paused: bool) {
        self.listeners.pause(port, is_paused);
    }

    /// Sets the options that the connections of a listener begin with: those whose SYNs come from
    /// now on, and those that peers open by cookies from now on. The answers to their SYNs have
    /// them too.
    pub fn set_listener(&mut self, port: u16, settings: TcpSettings) {
        self.listeners.set(port, settings);
    }

    /// Returns the options that the connections of a listener begin with.
    #[must_use]
    pub fn listener_settings(&self, port: u16) -> TcpSettings {
        self.listeners.settings(port)
    }

    /// Returns the state of each connection.
    pub fn states(&self) -> impl Iterator<Item = TcpState> {
        self.entries.iter().map(|(_, entry)| entry.connection.state())
    }

    /// Ends all connections at once, and resets the peers' ends. Call [`TcpHost::output`] after it.
    pub fn abort_all(&mut self) {
        self.ids().into_iter().for_each(|id| self.abort(id));
    }

    /// Closes all connections, and forgets each as soon as it has ended ([`TcpHost::release`]), as
    /// a kernel does for a process that has ended. Call [`TcpHost::output`] after it.
    pub fn release_all(&mut self) {
        self.ids().into_iter().for_each(|id| self.release(id));
    }

    fn ids(&self) -> Vec<TcpId> {
        let id = |(index, entry): (u32, &Entry)| TcpId { index, generation: entry.generation };
        self.entries.iter().map(id).collect()
    }
}
