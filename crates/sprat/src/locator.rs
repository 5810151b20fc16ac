//! Service locators: one line of text that says where a service is and how to reach it, in
//! RAMCloud's grammar.
//!
//! ```text
//! locators := locator (';' locator)*
//! locator  := protocol ':' [ key '=' value (',' key '=' value)* ]
//! protocol := [A-Za-z0-9_+]+        transport, or transport '+' driver: "tcp", "fast+udp"
//! key      := [A-Za-z0-9_]+
//! value    := plain text, where '\' escapes one of  \ " , ;  or a space
//!           | '"' text '"', where '\' escapes one of  \ "
//! ```
//! Spaces may stand around every token. Of a key given twice the last one holds.
//!
//! [`Locator`] is the text taken apart and nothing more: any protocol and any keys.
//! [`Locator::kind`] says what it means by the table of protocols ([`PROTOCOLS`]). `Display` writes
//! a form that parses to an equal locator.
//!
//! Not here: sockets. A name is looked up by [`HostPort::resolve`], which may block on the
//! resolver.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

mod device;
mod parse;
mod protocols;
#[cfg(test)]
mod tests;

pub use device::{DevicePort, Over};
pub use protocols::{DeviceFacts, PROTOCOLS, Poll, Protocol};

/// The longest list of locators that is parsed, in bytes.
pub const MAX_LEN: usize = 4096;

/// One locator, parsed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Locator {
    protocol: String,
    /// The options of the locator, in the order of the text. Each key stands once.
    options: Vec<(String, String)>,
}

/// The meaning of a locator: one of the protocols that are built.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// `fast+shm:name=N`: the RPC endpoint over shared memory on this machine.
    Shm {
        /// The name of the service in shared memory: letters, digits, `.`, `_` and `-`, and no dot
        /// at the beginning, so that it is safe as a file's name.
        name: String,
    },
    /// `fast+udp:host=H,port=P[,crc=off]`: the RPC endpoint over kernel UDP.
    Udp {
        /// The host and the port of the service.
        at: HostPort,
        /// True if packets have a CRC32C. It is false only if the server says so.
        crc: bool,
    },
    /// `fast+packet:dev=D,host=H,port=P` and its like: the RPC endpoint, our own TCP or queue pairs
    /// over our own IP stack on a packet device.
    Device(DevicePort),
    /// `tcp:host=H,port=P`: kernel TCP.
    Tcp(HostPort),
    /// `rdma:host=H,port=P[,crc=off]`: the queue pairs of software iWARP, over kernel TCP.
    Rdma {
        /// The host and the port of the service.
        at: HostPort,
        /// Request a CRC32C of everything sent. A connection has none only if neither side requests
        /// it.
        crc: bool,
    },
}

/// A host, by name or address, and a port of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// The host's name, its IPv4 address, or its IPv6 address without brackets.
    pub host: String,
    /// The port of the host; 0 lets the kernel choose one when listening.
    pub port: u16,
}

/// The reason why a locator cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocatorError {
    /// The locator's text does not follow the grammar.
    #[error("bad locator {text:?}: expected {expected} at byte {at}")]
    Grammar {
        /// The whole text of the locators.
        text: String,
        /// The offset in bytes at which the text stops to follow the grammar.
        at: usize,
        /// The token that the grammar expects at this place.
        expected: &'static str,
    },
    /// The text has this many bytes, more than [`MAX_LEN`].
    #[error("a list of locators has {0} bytes, the limit is {MAX_LEN}")]
    TooLong(usize),
    /// The protocol of the locator is planned and not built yet.
    #[error("the protocol {0:?} is not built yet; there are {all}", all = Protocol::forms())]
    NotBuilt(String),
    /// No protocol has the name that the locator begins with.
    #[error("there is no protocol {0:?}; there are {all}", all = Protocol::forms())]
    UnknownProtocol(String),
    /// The locator has a key that its protocol does not have.
    #[error("{protocol} has no key {key:?}; its keys are {allowed}")]
    UnknownKey {
        /// The protocol of the locator.
        protocol: &'static str,
        /// The unknown key of the locator.
        key: String,
        /// The keys that the protocol has.
        allowed: String,
    },
    /// The locator lacks a key that its protocol needs.
    #[error("{protocol} needs {key}=…")]
    MissingKey {
        /// The protocol of the locator.
        protocol: &'static str,
        /// The missing key of the locator.
        key: &'static str,
    },
    /// The locator has a value that its key does not accept.
    #[error("{key}={value:?}: {expected}")]
    BadValue {
        /// The key whose value is wrong.
        key: &'static str,
        /// The wrong value of the key.
        value: String,
        /// The values that the key accepts.
        expected: &'static str,
    },
}

impl From<LocatorError> for io::Error {
    fn from(e: LocatorError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, e)
    }
}

/// Names of transports that are planned. The error for one of these differs from that for a typing
/// error.
const PLANNED: [&str; 3] = ["fast", "utcp", "rdma"];

/// True if a driver of this name is built or planned.
fn is_driver(name: &str) -> bool {
    ["shm", "udp", "tcp"].contains(&name) || DeviceFacts::of(name).is_some()
}

impl Locator {
    /// Makes a locator of its parts. A later option replaces an earlier one with the same key.
    ///
    /// # Errors
    /// [`LocatorError::Grammar`] if the protocol or a key has a character that the grammar does not
    /// allow there.
    pub fn new(protocol: &str, options: &[(&str, &str)]) -> Result<Self, LocatorError> {
        let bad =
            |text: &str, expected| LocatorError::Grammar { text: text.into(), at: 0, expected };
        if protocol.is_empty() || !protocol.bytes().all(parse::in_protocol) {
            return Err(bad(protocol, parse::PROTOCOL));
        }
        let mut locator = Self { protocol: protocol.into(), options: Vec::new() };
        for (key, value) in options {
            if key.is_empty() || !key.bytes().all(parse::in_key) {
                return Err(bad(key, parse::KEY));
            }
            locator.set(key, value);
        }
        Ok(locator)
    }

    /// Parses a list of locators separated by `;`.
    ///
    /// # Errors
    /// [`LocatorError::Grammar`] or [`LocatorError::TooLong`].
    pub fn list(text: &str) -> Result<Vec<Self>, LocatorError> {
        parse::list(text)
    }

    /// Returns the whole protocol of the locator, as in `fast+udp`.
    #[must_use]
    pub fn protocol(&self) -> &str {
        &self.protocol
    }

    /// Returns the locator's transport, the part of the protocol before the first `+`: `fast` of
    /// `fast+udp`.
    #[must_use]
    pub fn transport(&self) -> &str {
        self.protocol.split('+').next().unwrap_or_default()
    }

    /// Returns the locator's driver, the part of the protocol after the first `+`: `udp` of
    /// `fast+udp`.
    #[must_use]
    pub fn driver(&self) -> Option<&str> {
        self.protocol.split_once('+').map(|(_, driver)| driver)
    }

    /// Returns the value of the locator's option `key`.
    #[must_use]
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Returns the meaning of the locator.
    ///
    /// # Errors
    /// The protocol is unknown or not built yet, a key is unknown or missing, or a value is not one
    /// that its key takes.
    pub fn kind(&self) -> Result<Kind, LocatorError> {
        let Some(protocol) = Protocol::named(&self.protocol) else {
            let driver = self.driver().unwrap_or("tcp");
            let planned = PLANNED.contains(&self.transport()) && is_driver(driver);
            return Err(match planned && self.protocol != "fast" {
                true => LocatorError::NotBuilt(self.protocol.clone()),
                false => LocatorError::UnknownProtocol(self.protocol.clone()),
            });
        };
        if let Some(facts) = &protocol.device {
            return device::port(self, protocol, facts).map(Kind::Device);
        }
        match protocol.name {
            "fast+shm" => {
                self.allow(protocol)?;
                let name = self.need(protocol.name, "name")?;
                Ok(Kind::Shm { name: shm_name(name)?.into() })
            }
            "fast+udp" => {
                let at = self.host_port(protocol)?;
                Ok(Kind::Udp { at, crc: self.switch("crc", true)? })
            }
            "rdma" => {
                let at = self.host_port(protocol)?;
                Ok(Kind::Rdma { at, crc: self.switch("crc", true)? })
            }
            _ => self.host_port(protocol).map(Kind::Tcp),
        }
    }

    /// Returns the locator of worker `i` of a service. Worker 0 has the locator itself. The others
    /// have `name=N.i` or the port that is `i` higher, and the queue that is `i` higher, if one is
    /// named. A port of 0 stays 0: the kernel chooses each worker's.
    ///
    /// # Errors
    /// The errors of [`Locator::kind`], and a port beyond 65535.
    pub fn worker(&self, i: u16) -> Result<Self, LocatorError> {
        let mut own = self.clone();
        let kind = self.kind()?;
        if let (Kind::Device(DevicePort { queue: Some(queue), .. }), true) = (&kind, i > 0) {
            own.set("queue", &(queue + u32::from(i)).to_string());
        }
        match kind {
            _ if i == 0 => {}
            Kind::Shm { name } => own.set("name", &format!("{name}.{i}")),
            Kind::Device(port) if port.facts().one_per_worker => own.set_own_device(&port, i),
            // The stack of each worker would reset the connections of the others.
            Kind::Device(port) if port.over != Over::Datagrams => {
                let expected = "one worker: TCP of our own shares its address with no other";
                return Err(LocatorError::BadValue { key: "host", value: port.at.host, expected });
            }
            Kind::Udp { at, .. }
            | Kind::Tcp(at)
            | Kind::Rdma { at, .. }
            | Kind::Device(DevicePort { at, .. })
                if at.port == 0 => {}
            Kind::Udp { at: HostPort { port, .. }, .. }
            | Kind::Tcp(HostPort { port, .. })
            | Kind::Device(DevicePort { at: HostPort { port, .. }, .. })
            | Kind::Rdma { at: HostPort { port, .. }, .. } => {
                let port = port.checked_add(i).ok_or_else(|| LocatorError::BadValue {
                    key: "port",
                    value: format!("{port}+{i}"),
                    expected: "the ports of all workers must fit below 65536",
                })?;
                own.set("port", &port.to_string());
            }
        }
        own.kind()?;
        Ok(own)
    }

    /// Adds an option to the locator, or replaces the option with this key.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        match self.options.iter_mut().find(|(k, _)| k == key) {
            Some((_, v)) => *v = value.into(),
            None => self.options.push((key.into(), value.into())),
        }
    }

    /// Removes the option with this key, if there is one.
    pub(crate) fn unset(&mut self, key: &str) {
        self.options.retain(|(k, _)| k != key);
    }

    /// Parses the option `key`, `on` or `off`. Returns `default` if the locator lacks it.
    fn switch(&self, key: &'static str, default: bool) -> Result<bool, LocatorError> {
        match self.option(key) {
            None => Ok(default),
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(other) => {
                Err(LocatorError::BadValue { key, value: other.into(), expected: "on or off" })
            }
        }
    }

    fn host_port(&self, protocol: &Protocol) -> Result<HostPort, LocatorError> {
        self.allow(protocol)?;
        let host = self.need(protocol.name, "host")?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if bare.is_empty()
            || bare.contains(|c: char| c.is_whitespace() || c.is_control() || "[]".contains(c))
        {
            return Err(LocatorError::BadValue {
                key: "host",
                value: host.into(),
                expected: "a host's name, an IPv4 address, or an IPv6 address with or without [ ]",
            });
        }
        let port = self.need(protocol.name, "port")?;
        // `parse` alone would take "+80".
        let number = port.bytes().all(|b| b.is_ascii_digit()).then(|| port.parse().ok()).flatten();
        let Some(number) = number else {
            return Err(LocatorError::BadValue {
                key: "port",
                value: port.into(),
                expected: "a number up to 65535",
            });
        };
        Ok(HostPort { host: bare.into(), port: number })
    }

    fn need(&self, protocol: &'static str, key: &'static str) -> Result<&str, LocatorError> {
        self.option(key).ok_or(LocatorError::MissingKey { protocol, key })
    }

    fn allow(&self, protocol: &Protocol) -> Result<(), LocatorError> {
        match self.options.iter().find(|(k, _)| !protocol.keys.contains(&k.as_str())) {
            None => Ok(()),
            Some((key, _)) => Err(LocatorError::UnknownKey {
                protocol: protocol.name,
                key: key.clone(),
                allowed: protocol.keys.join(", "),
            }),
        }
    }
}

/// Checks that a name can be the last part of a path and cannot leave its directory.
fn shm_name(name: &str) -> Result<&str, LocatorError> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(fits) {
        return Err(LocatorError::BadValue {
            key: "name",
            value: name.into(),
            expected: "1 to 64 letters, digits, dots, underscores and hyphens, \
                       without a dot at the start",
        });
    }
    Ok(name)
}

impl HostPort {
    /// Returns the addresses of the host, in the resolver's order. An address of the form
    /// `::ffff:a.b.c.d` becomes the IPv4 address that it stands for. The call may block on a name
    /// server.
    ///
    /// # Errors
    /// The host has no address; the error names it.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("host {:?}: {e}", self.host));
        let plain = |a: SocketAddr| match a.ip().to_canonical() {
            v4 @ IpAddr::V4(_) => SocketAddr::new(v4, a.port()),
            IpAddr::V6(_) => a,
        };
        let found: Vec<_> =
            (self.host.as_str(), self.port).to_socket_addrs().map_err(named)?.map(plain).collect();
        if found.is_empty() {
            return Err(named(io::Error::new(io::ErrorKind::NotFound, "it has no address")));
        }
        Ok(found)
    }

    /// Returns the host's addresses that requests may go to or that a service may listen at: all if
    /// `insecure_network`, otherwise only those of loopback, since nothing is encrypted yet.
    ///
    /// # Errors
    /// The errors of [`HostPort::resolve`]; `PermissionDenied` if the host is elsewhere and
    /// `insecure_network` is false.
    pub fn allowed(&self, insecure_network: bool) -> io::Result<Vec<SocketAddr>> {
        let mut found = self.resolve()?;
        if !insecure_network {
            found.retain(|a| a.ip().is_loopback());
        }
        if found.is_empty() {
            let why = format!(
                "{} is not on loopback: traffic is not encrypted, so it needs --insecure-network",
                self.host
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(found)
    }
}

impl FromStr for Locator {
    type Err = LocatorError;

    /// Parses text that is exactly one locator.
    fn from_str(text: &str) -> Result<Self, LocatorError> {
        let mut all = parse::list(text)?;
        match (all.pop(), all.is_empty()) {
            (Some(one), true) => Ok(one),
            _ => {
                let expected = "one locator, not a list";
                Err(LocatorError::Grammar { text: text.into(), at: 0, expected })
            }
        }
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.protocol)?;
        for (i, (key, value)) in self.options.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{key}=")?;
            if value.contains(|c: char| c.is_whitespace() || "\\\",;".contains(c)) {
                write!(f, "\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))?;
            } else {
                f.write_str(value)?;
            }
        }
        Ok(())
    }
}
