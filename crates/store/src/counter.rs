//! The description of a counter, from which JSON, Prometheus and documents are made.

/// A number that a server reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    /// The name, in lower case with underscores.
    pub name: &'static str,
    /// The kind of number.
    pub kind: Kind,
    /// The thing that is counted.
    pub unit: Unit,
    /// One sentence about the number.
    pub help: &'static str,
}

/// The kind of number that a [`Counter`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A sum since the start, which only grows.
    Total,
    /// A value at the time of the report.
    Level,
}

/// The thing that a [`Counter`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Clients.
    Clients,
    /// Connections, and attempts to open one.
    Connections,
    /// Events of other kinds.
    Events,
    /// Frames of a packet device.
    Frames,
    /// Objects of the store.
    Objects,
    /// Packets and datagrams.
    Packets,
    /// Completion records.
    Records,
    /// Replies to requests.
    Replies,
    /// Requests of clients.
    Requests,
    /// Segments of the log.
    Segments,
    /// Servers of the store.
    Servers,
    /// Sessions.
    Sessions,
    /// Tablets.
    Tablets,
}
