//! RPC for programs: a [`Client`] with sessions to any number of servers, and a [`Server`] that
//! answers.
//!
//! Requests and replies are bytes, up to 16 MiB. A request runs at most once, unless its service
//! calls it idempotent ([`Replied::Idempotent`]); when the client cannot know whether it ran, the
//! error says so ([`RpcError::maybe_executed`]). A session survives the loss of its connection: the
//! requests in flight fail, the next one connects anew.
//!
//! Neither type starts a thread: a client makes progress while one of its methods runs, a server
//! while [`Server::run`] does. Both are `Send` and not `Sync`: one thread at a time. To answer from
//! other threads, see [`Replier`].
//!
//! ```no_run
//! use std::time::Duration;
//! use sprat::rpc::{Client, Server, Stop};
//!
//! let name = "fast+udp:host=127.0.0.1,port=0";
//! let upper = |call: sprat::rpc::Call<'_>| Some(call.payload.to_ascii_uppercase());
//! let mut server = Server::listen(&[name], upper)?;
//! let (at, stop) = (server.locators(), server.stop());
//! let thread = std::thread::spawn(move || server.run());
//!
//! let mut client = Client::new()?;
//! let session = client.connect(&at)?;
//! let reply = client.call(session, b"hello", Duration::from_secs(1))?;
//! assert_eq!(reply, b"HELLO");
//!
//! stop.stop();
//! thread.join().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod asynchronous;
mod client;
mod server;

pub use sprat_proto::node::machine::{Caller, Replied};
pub use sprat_proto::rpc::{Message, Payload, RpcError};

pub use crate::transports::Options;
pub use crate::worker::Stop;
pub use asynchronous::{AsyncClient, AsyncSession, Response};
pub use client::{Builder, Client, Outcome, Rpc, Session};
pub use server::{Call, Replier, Server, ServerBuilder, Service};
