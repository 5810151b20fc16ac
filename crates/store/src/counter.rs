//! The description of a counter, from which JSON, Prometheus and documents are made.

/// A number that a server reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    /// The name of the counter, in lower case with underscores.
    pub name: &'static str,
    /// The kind of the counter's number: a total or a level.
    pub kind: Kind,
    /// The unit: the thing that the counter counts.
    pub unit: Unit,
    /// One sentence about the counter's number.
    pub help: &'static str,
}

/// The kind of number of a [`Counter`]: a total or a level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The counter is a sum since the server's start, which only grows.
    Total,
    /// The counter is a value at the time of the report.
    Level,
}

/// The thing that a [`Counter`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// The counter counts bytes.
    Bytes,
    /// The counter counts clients.
    Clients,
    /// The counter counts connections, or attempts to open one.
    Connections,
    /// The counter counts events of other kinds.
    Events,
    /// The counter counts frames of a packet device.
    Frames,
    /// The counter counts nanoseconds.
    Nanoseconds,
    /// The counter counts objects of the store.
    Objects,
    /// The counter counts packets or datagrams.
    Packets,
    /// The counter counts completion records.
    Records,
    /// The counter counts replies to requests.
    Replies,
    /// The counter counts requests of clients.
    Requests,
    /// The counter counts segments of the log.
    Segments,
    /// The counter counts servers of the store.
    Servers,
    /// The counter counts seconds.
    Seconds,
    /// The counter counts sessions.
    Sessions,
    /// The counter counts tables.
    Tables,
    /// The counter counts tablets.
    Tablets,
}
