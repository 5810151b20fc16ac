//! The client's side of the store: it turns operations into requests to the right servers, and ends
//! every operation exactly once.
//!
//! ```text
//!  read, write … ─► slot ─► table ─► tablet ─► link ─► output ─► … ─► response ─► Done
//!                    ▲        └ unknown: ask the coordinator ┘               └ retry, paused ┐
//!                    └───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariants:
//! - An operation ends once, by the return value of [`Client::response`] or by [`Client::event`],
//!   at the latest soon after its deadline.
//! - A mutation is executed at most once, however often it is sent, and exactly once if it succeeds
//!   (RIFL, [`WINDOW`]). If its lease ends before its reply arrives, it ends with
//!   [`Error::Unknown`] and is never sent again.
//! - Each operation has at most one call in progress, so that a reply cannot belong to another try.
//! - The client copes with servers that move, restart or are slow. An [`Error`] is final.
//!
//! Elsewhere: transports and time. The caller drives [`Client::output`], [`Client::response`] and
//! [`Client::tick`].

mod answer;
mod bundle;
mod commit;
mod counters;
mod cursor;
mod deciding;
mod drive;
mod error;
mod failures;
mod multi;
mod op;
mod parts;
mod replies;
mod rifl;
mod routes;
mod rules;
mod send;
mod start;
mod state;
#[cfg(test)]
mod tests;
mod transaction;
mod values;

pub use answer::{
    Answer, Done, LeaderInfo, MigrationInfo, Page, ServerInfo, TableInfo, TabletInfo, Value,
};
pub use counters::Counters;
pub use cursor::Cursor;
pub use error::{Error, WaitedFor};
pub use op::{Op, PeerId};
pub use parts::{Part, PartAnswer, PartRequest, Parts};
pub use rifl::WINDOW;
pub use send::Call;
pub use state::{Client, Config, TableOptions};
pub use transaction::{OwnedTransactionPart, TransactionPart};

pub use crate::message::list::Listed;
pub use crate::message::transaction::Change;
