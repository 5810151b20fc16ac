//! The options of one connection in place of those of its host, and reports of the network. Few
//! connections have either.

use alloc::boxed::Box;
use core::fmt;
use core::net::IpAddr;

use super::config::TcpConfig;
use crate::net::ip::fields::IpFields;

/// The options of one connection. Those that are `None` are the host's, in `TcpConfig`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpSettings {
    /// True to send short segments at once (`TcpConfig::no_delay`).
    pub no_delay: Option<bool>,
    /// The Differentiated Services codepoint of all segments from now on, below 64
    /// (`TcpConfig::dscp`). A change while data is in flight may reorder segments: RFC 9293 SHLD-23
    /// advises against changes of an open connection.
    pub dscp: Option<u8>,
    /// The time to live, or hop limit, of all segments from now on (`TcpConfig::ttl`).
    pub ttl: Option<u8>,
    /// The idle time in nanoseconds after which the peer is probed (`TcpConfig::keep_alive_ns`).
    /// `Some(None)` stops the probes.
    pub keep_alive_ns: Option<Option<u64>>,
    /// The time for which data may stay unacknowledged, in nanoseconds
    /// (`TcpConfig::user_timeout_ns`). It is compared when the retransmission timeout expires.
    pub user_timeout_ns: Option<u64>,
}

impl TcpSettings {
    /// Returns the fields of the IP headers of a connection with these options.
    pub(super) fn fields(&self, config: &TcpConfig) -> IpFields {
        IpFields::new(self.dscp.unwrap_or(config.dscp), self.ttl.unwrap_or(config.ttl))
    }
}

/// A report of the network about segments of a connection: an ICMP error. The problem may be over
/// when the report arrives, so that it ends no connection (RFC 9293 3.9.2.2, RFC 5461). Any host on
/// the path can forge one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub struct TcpReport {
    /// The problem that the network reports.
    pub error: TcpSoftError,
    /// The host that has sent the report: a router, or the peer's host.
    pub from: IpAddr,
}

impl fmt::Display for TcpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            TcpSoftError::Unreachable { code } => match name(code, self.from.is_ipv4()) {
                Some(name) => f.write_str(name)?,
                None => self.error.fmt(f)?,
            },
            error => error.fmt(f)?,
        }
        write!(f, " from {}", self.from)
    }
}

/// Returns the meaning of the code of an ICMP error "destination unreachable" (RFC 792, RFC 1812
/// 5.2.7.1, RFC 4443 3.1).
const fn name(code: u8, is_v4: bool) -> Option<&'static str> {
    Some(match (code, is_v4) {
        (0, true) => "network unreachable",
        (1, true) | (3, false) => "host unreachable",
        (2, true) => "protocol unreachable",
        (0, false) => "no route to the destination",
        (9 | 10 | 13, true) | (1 | 5 | 6, false) => "communication prohibited",
        (2, false) => "beyond the scope of the source address",
        _ => return None,
    })
}

/// A problem that the network reports about segments of a connection, which may be over when the
/// report arrives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpSoftError {
    /// A router, or the peer's host, cannot deliver segments.
    #[error("destination unreachable (code {code})")]
    Unreachable {
        /// The code of the ICMP error: of RFC 792 over IPv4, of RFC 4443 over IPv6.
        code: u8,
    },
    /// Segments, or fragments of them, took too many hops or too long.
    #[error("time exceeded")]
    TimeExceeded,
    /// A router, or the peer's host, does not understand a header.
    #[error("parameter problem")]
    ParameterProblem,
}

/// The options and reports of a connection. They take no memory before there are some.
#[derive(Debug, Default)]
pub(super) struct Own(Option<Box<Rare>>);

#[derive(Debug, Default)]
struct Rare {
    settings: TcpSettings,
    /// The last report since the peer has acknowledged something new.
    soft_error: Option<TcpReport>,
}

impl Own {
    /// Forgets what the network has reported: the peer has answered.
    pub(super) fn forget_error(&mut self) {
        if let Some(rare) = &mut self.0 {
            rare.soft_error = None;
        }
    }

    pub(super) fn set(&mut self, settings: TcpSettings) {
        self.0.get_or_insert_default().settings = settings;
    }

    pub(super) fn report(&mut self, report: TcpReport) {
        self.0.get_or_insert_default().soft_error = Some(report);
    }

    pub(super) fn soft_error(&self) -> Option<TcpReport> {
        self.0.as_ref().and_then(|rare| rare.soft_error)
    }

    pub(super) fn settings(&self) -> TcpSettings {
        self.0.as_ref().map(|rare| rare.settings).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    /// The codes of an unreachable destination differ between the versions of IP, which the address
    /// of the reporter tells.
    #[test]
    fn reports_are_named_by_the_version_of_ip() {
        let text = |error, from: &str| TcpReport { error, from: from.parse().unwrap() }.to_string();
        let unreachable = |code| TcpSoftError::Unreachable { code };
        for (code, from, wanted) in [
            (1, "10.0.0.1", "host unreachable from 10.0.0.1"),
            (0, "10.0.0.1", "network unreachable from 10.0.0.1"),
            (13, "10.0.0.1", "communication prohibited from 10.0.0.1"),
            (3, "fe80::1", "host unreachable from fe80::1"),
            (0, "fe80::1", "no route to the destination from fe80::1"),
            (1, "fe80::1", "communication prohibited from fe80::1"),
            (5, "10.0.0.1", "destination unreachable (code 5) from 10.0.0.1"),
        ] {
            assert_eq!(text(unreachable(code), from), wanted);
        }
        assert_eq!(text(TcpSoftError::TimeExceeded, "10.0.0.1"), "time exceeded from 10.0.0.1");
    }
}
