//! The options of one stream, and those with which the streams of a listener begin. An option that
//! the program has not set is the stack's ([`Options`](super::Options)).

use std::io;
use std::time::Duration;

use sprat_proto::net::tcp::{TcpConfig, TcpHost, TcpReport, TcpSettings};

use super::listener::Listener;
use super::options::ns;
use super::stream::Stream;

/// The largest codepoint of Differentiated Services, which has six bits (RFC 2474).
const MOST_DSCP: u8 = 63;

/// Returns a time to live as packets have it.
fn checked_ttl(ttl: u32) -> io::Result<u8> {
    let in_range = u8::try_from(ttl).ok().filter(|ttl| *ttl > 0);
    in_range.ok_or_else(|| invalid(format!("a time to live is 1 to 255, not {ttl}")))
}

fn checked_dscp(dscp: u8) -> io::Result<u8> {
    let in_range = Some(dscp).filter(|dscp| *dscp <= MOST_DSCP);
    in_range.ok_or_else(|| invalid(format!("a DSCP is 0 to {MOST_DSCP}, not {dscp}")))
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl Stream {
    fn change(&self, change: impl FnOnce(&mut TcpSettings)) {
        let id = self.id();
        self.shared().act(|core| {
            if let Some(mut settings) = core.interface.host().settings(id) {
                change(&mut settings);
                core.interface.set(id, settings);
            }
        });
    }

    /// Returns an option of the stream, or that of the stack.
    fn option<T>(&self, option: impl FnOnce(&TcpSettings, &TcpConfig) -> T) -> T {
        let id = self.id();
        self.shared().with(|core| {
            let host: &TcpHost = core.interface.host();
            option(&host.settings(id).unwrap_or_default(), host.config())
        })
    }

    /// Sends short segments at once, or holds one back while data is in flight (Nagle's
    /// algorithm).
    pub fn set_nodelay(&self, nodelay: bool) {
        self.change(|settings| settings.no_delay = Some(nodelay));
    }

    /// Returns true if short segments leave at once.
    #[must_use]
    pub fn nodelay(&self) -> bool {
        self.option(|settings, config| settings.no_delay.unwrap_or(config.no_delay))
    }

    /// Probes the peer after it was silent for `idle`; `None` never does. Nine probes without an
    /// answer end the connection.
    pub fn set_keep_alive(&self, idle: Option<Duration>) {
        self.change(|settings| settings.keep_alive_ns = Some(idle.map(ns)));
    }

    /// Returns the time of silence after which the peer is probed.
    #[must_use]
    pub fn keep_alive(&self) -> Option<Duration> {
        let idle_ns =
            self.option(|settings, config| settings.keep_alive_ns.unwrap_or(config.keep_alive_ns));
        idle_ns.map(Duration::from_nanos)
    }

    /// Ends the connection when its peer has not acknowledged data for so long, also of data that
    /// is in flight. The next retransmission compares the time.
    pub fn set_user_timeout(&self, longest: Duration) {
        self.change(|settings| settings.user_timeout_ns = Some(ns(longest)));
    }

    /// Returns the time for which data may stay unacknowledged.
    #[must_use]
    pub fn user_timeout(&self) -> Duration {
        let longest_ns = self
            .option(|settings, config| settings.user_timeout_ns.unwrap_or(config.user_timeout_ns));
        Duration::from_nanos(longest_ns)
    }

    /// Sets the time to live of the packets from now on over IPv4, and their hop limit over IPv6.
    ///
    /// # Errors
    /// `InvalidInput` if it is not 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = checked_ttl(ttl)?;
        self.change(|settings| settings.ttl = Some(ttl));
        Ok(())
    }

    /// Returns the time to live of the packets over IPv4, and their hop limit over IPv6.
    #[must_use]
    pub fn ttl(&self) -> u32 {
        self.option(|settings, config| settings.ttl.unwrap_or(config.ttl)).into()
    }

    /// Sets the codepoint of Differentiated Services of the packets from now on, the upper six bits
    /// of the byte that sockets call TOS or traffic class (RFC 2474). The stack sets the other two
    /// (ECN). A change while data is in flight may reorder packets.
    /// [`Options::dscp`](super::Options::dscp) sets the codepoint of SYNs, too.
    ///
    /// # Errors
    /// `InvalidInput` if it is more than 63.
    pub fn set_dscp(&self, dscp: u8) -> io::Result<()> {
        let dscp = checked_dscp(dscp)?;
        self.change(|settings| settings.dscp = Some(dscp));
        Ok(())
    }

    /// Returns the codepoint of Differentiated Services of the packets.
    #[must_use]
    pub fn dscp(&self) -> u8 {
        self.option(|settings, config| settings.dscp.unwrap_or(config.dscp))
    }

    /// Returns the last ICMP error about the connection since its peer has acknowledged something
    /// new: a router cannot deliver its packets, for example. The connection goes on, since the
    /// problem may pass and the report may be forged. If the connection times out later, the error
    /// names the report.
    #[must_use]
    pub fn soft_error(&self) -> Option<TcpReport> {
        let id = self.id();
        self.shared().with(|core| core.interface.host().soft_error(id))
    }
}

/// The options of a listener are those with which its next connections begin.
impl Listener {
    fn change(&self, change: impl FnOnce(&mut TcpSettings)) {
        let port = self.local_addr().port();
        self.shared().with(|core| {
            let host = core.interface.host();
            let mut settings = host.listener_settings(port);
            change(&mut settings);
            host.set_listener(port, settings);
        });
    }

    /// Sets [`Stream::set_nodelay`] of the next connections.
    pub fn set_nodelay(&self, nodelay: bool) {
        self.change(|settings| settings.no_delay = Some(nodelay));
    }

    /// Sets [`Stream::set_keep_alive`] of the next connections.
    pub fn set_keep_alive(&self, idle: Option<Duration>) {
        self.change(|settings| settings.keep_alive_ns = Some(idle.map(ns)));
    }

    /// Sets [`Stream::set_user_timeout`] of the next connections.
    pub fn set_user_timeout(&self, longest: Duration) {
        self.change(|settings| settings.user_timeout_ns = Some(ns(longest)));
    }

    /// Sets [`Stream::set_ttl`] of the next connections, from the answers to their SYNs on.
    ///
    /// # Errors
    /// The errors of [`Stream::set_ttl`].
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = checked_ttl(ttl)?;
        self.change(|settings| settings.ttl = Some(ttl));
        Ok(())
    }

    /// Sets [`Stream::set_dscp`] of the next connections, from the answers to their SYNs on.
    ///
    /// # Errors
    /// The errors of [`Stream::set_dscp`].
    pub fn set_dscp(&self, dscp: u8) -> io::Result<()> {
        let dscp = checked_dscp(dscp)?;
        self.change(|settings| settings.dscp = Some(dscp));
        Ok(())
    }
}
