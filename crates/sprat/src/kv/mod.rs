//! The key-value store for programs.
//!
//! A [`Client`] belongs to one cluster. A [`Table`] of it holds objects. An object has a key of up
//! to 64 KiB, a value of up to 1 MiB, and a version. Every change of an object raises its version.
//!
//! ```no_run
//! use sprat::kv::{Client, Condition};
//!
//! let client = Client::connect("fast+shm:name=sprat")?;
//! let birds = client.create_table("birds", 1)?;
//! let version = birds.put(b"sprat", b"a fish after all")?;
//! let object = birds.get(b"sprat")?.expect("written above");
//! assert_eq!(object.value, b"a fish after all");
//! assert_eq!(birds.get(b"eagle")?, None);
//!
//! // Fails with `Error::WrongVersion` if another client has changed the object since.
//! birds.put_if(b"sprat", b"Sprattus sprattus", Condition::if_version(version))?;
//! assert_eq!(birds.increment(b"seen", 1)?, 1);
//!
//! // Two operations in progress at a time.
//! let (first, second) = (birds.start_get(b"sprat"), birds.start_get(b"eagle"));
//! assert!(first.wait()?.is_some() && second.wait()?.is_none());
//!
//! // Many objects in few requests.
//! for object in birds.multi_get([b"sprat", b"eagle"])? {
//!     println!("{:?}", object?);
//! }
//!
//! // Both objects change, or none: again after a conflict with another client.
//! client.transact(|transaction| {
//!     let text = transaction.get(&birds, b"sprat")?.map_or(Vec::new(), |object| object.value);
//!     transaction.put(&birds, b"Sprattus", &text)?;
//!     transaction.remove(&birds, b"sprat")
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Every mutation executes exactly once, however often the client has to send it. The client
//! repeats what slow, restarted or moved servers leave unanswered until the timeout passes; an
//! [`Error`] is final.
//!
//! A `Client` starts no thread. It makes progress while one of its methods runs. It is `Send` and
//! not `Sync`: one thread at a time uses it. An [`AsyncClient`] has a thread of its own and futures
//! for any runtime.

mod answers;
mod asynchronous;
mod client;
mod condition;
mod draft;
mod indexed;
mod indexed_async;
mod known;
mod machine;
mod multi;
mod object;
mod operation;
mod pauses;
mod pending;
mod shared;
mod table;
mod transaction;
mod transaction_async;

pub use sprat_store::client::{
    Answer, Counters, Cursor, Error, LeaderInfo, Listed, MigrationInfo, Page, PartAnswer, Parts,
    ServerInfo, TableInfo, TableOptions, TabletInfo, Value, WaitedFor,
};
pub use sprat_store::durability::TableDurability;
pub use sprat_store::index::{
    Building, Definition, Error as IndexError, Found, Page as IndexPage, Range as IndexRange,
    Source, node_table, pack, unpack,
};
pub use sprat_store::message::control::{ServerState, TabletState};
pub use sprat_store::message::migration::MigrationState;
pub use sprat_store::message::recovery::{DamagedReplica, Loss, Range, SegmentRange};
pub use sprat_store::objects::number::double_text;
pub use sprat_store::objects::segment::SegmentId;
pub use sprat_store::site::{OwnedSite, Role};
pub use sprat_store::types::{
    MAX_INDEX_KEY, MAX_INDEX_NAME, MAX_INDEXES, MAX_KEY, MAX_PARTS, MAX_TRANSACTION,
    MAX_TRANSACTION_BYTES, MAX_VALUE, ServerId, TableId, Version,
};

pub use asynchronous::{AsyncClient, AsyncTable};
pub use client::{Builder, Client};
pub use condition::Condition;
#[doc(hidden)]
pub use draft::Draft;
pub use indexed::{IndexScan, IndexedTable};
pub use indexed_async::AsyncIndexedTable;
pub use known::AnyTable;
#[doc(hidden)]
pub use known::KnownIndexes;
pub use machine::Outcome;
pub use multi::Part;
pub use object::{Committed, MAX_LIFETIME, Number, Object};
pub use operation::Operation;
pub use pending::{OperationId, Pending};
pub use table::{Scan, Table};
pub use transaction::Transaction;
pub use transaction_async::AsyncTransaction;
