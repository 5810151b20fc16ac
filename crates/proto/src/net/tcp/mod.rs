//! TCP (RFC 9293): connections that send and receive streams of bytes. It does no I/O: segments and
//! time go in, segments and bytes come out.
//!
//! ```text
//!  Connection::input ─► receive: order, window, when to acknowledge
//!                   └─► ack: what was delivered ─► rack: what is lost ─► congestion: how much
//!  Connection::tick ──► timers ───────────────────────┘
//!  Connection::output ─► lost segments, probes, new data, acknowledgements
//! ```
//!
//! | file | |
//! | --- | --- |
//! | `connection` | the state, and what a program does |
//! | `input`, `receive`, `assembler` | segments that arrive, data in order and ahead, SACK blocks |
//! | `ack`, `scoreboard`, `rack`, `rtt` | acknowledgements, segments in flight, losses, timeouts |
//! | `congestion` | Reno, CUBIC and DCTCP |
//! | `records` | pieces of a stream that stay whole |
//! | `output`, `timers`, `expiry` | what to send, and when |
//! | `info` | what a connection knows, for programs that measure |
//! | `own`, `settings` | options of one connection, and reports of the network |
//! | `host`, `flow`, `id` | all connections of a host |
//! | `open` | connections that this end begins |
//! | `accept`, `listeners`, `cookies` | connections that peers begin |
//! | `time_wait` | connections that have ended, and are remembered |
//! | `stack` | a host over its IP stack |
//!
//! Always: a byte is delivered once and in order. No segment makes memory grow beyond the buffers
//! in [`TcpConfig`].

mod accept;
mod ack;
mod assembler;
mod config;
mod congestion;
mod connection;
mod cookies;
mod counters;
mod expiry;
mod flow;
mod host;
mod id;
mod info;
mod input;
mod listeners;
mod open;
mod output;
mod own;
mod rack;
mod receive;
mod records;
mod ring;
mod rtt;
mod scoreboard;
mod seq;
mod settings;
mod spare;
mod stack;
mod time_wait;
mod timers;

#[cfg(test)]
mod tests;

pub use config::TcpConfig;
pub use congestion::CongestionControl;
pub use connection::{Connection, TcpError, TcpState};
pub use counters::TcpCounters;
pub use flow::TcpFlow;
pub use host::{TcpData, TcpHost, TcpOutput};
pub use id::{TcpChanges, TcpId, TcpOpenError};
pub use info::{TcpInfo, TcpRecovery};
pub use input::{Received, Segment, refusal};
pub use output::{Emit, Outgoing, PathLimits};
pub use own::{TcpReport, TcpSettings, TcpSoftError};

/// The largest shift of a window (RFC 7323 2.3).
const MAX_SHIFT: u8 = 14;
