//! TCP of our own on a packet device, by an interface like that of sockets.
//!
//! A [`Stack`] has an address of its own on a device: no byte of a stream passes the kernel's
//! network stack. It connects to any TCP, and any TCP connects to it.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use sprat::tcp::Stack;
//!
//! let stack = Stack::open("utcp+packet:dev=eth0,host=192.0.2.7", &Default::default())?;
//! let listener = stack.listen(7, 128)?;
//! loop {
//!     let (mut stream, peer) = listener.accept()?;
//!     println!("{peer} has connected");
//!     std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Any number of threads use a stack and its streams; one lock is around them. A call that has to
//! wait handles frames meanwhile, and then sleeps until the device has some. While no call waits,
//! a thread of the stack handles frames and timers, so that a dropped stream still sends what it
//! has. Buffers are limited: a stream has those of [`Options`], and a listener at most twice its
//! backlog of connections that the program has not accepted.
//!
//! Errors of streams are [`io::Error`](std::io::Error)s with the kinds that sockets have. Their
//! sources are [`TcpError`] and [`TcpOpenError`]. One that has timed out names the last report of
//! the network ([`Stream::soft_error`]).
//!
//! [`native`] is the interface below: events instead of calls that wait, and received bytes where
//! the device has put them.

mod core;
mod error;
mod handle;
mod listener;
pub mod native;
mod options;
mod settings;
mod shared;
mod stack;
mod stream;

#[cfg(test)]
mod tests;

pub use sprat_proto::net::tcp::{
    CongestionControl, TcpError, TcpInfo, TcpOpenError, TcpRecovery, TcpReport, TcpSoftError,
    TcpState,
};

pub use error::StreamError;
pub use listener::Listener;
pub use options::Options;
pub use stack::Stack;
pub use stream::Stream;
