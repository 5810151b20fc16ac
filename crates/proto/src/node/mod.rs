//! A node: a machine with its links, which handles all that one process receives. Production and
//! the simulator run the same one.
//!
//! ```text
//!     clock, idle, sleep: a worker                 virtual time: the simulator's process
//!        └──────────────── turn(now), pause(now), resume() ────────────────┘
//!   ┌────────────────────────────────┴─────────────────────────────────────┐
//!   │ Node: events, calls, timers                                          │
//!   │   ├─► Machine: request, response, output, deadline, tick             │
//!   │   ├─► links: servers, lanes, sessions, races                         │
//!   │   └─► Host: transports, locators, disk                               │
//!   └──────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Always: nothing in this module interprets the text of a locator; only the [`Host`] does.

pub mod machine;

mod answers;
mod counters;
mod fast;
mod held;
mod host;
mod links;
mod race;
mod reach;
mod transport;
mod turn;

#[cfg(test)]
mod tests;

pub use answers::{ANSWERED, ANSWERED_MOST_NS};
pub use fast::Fast;
pub use host::{Host, Opened, Pairs, Written};
pub use reach::ConnectError;
pub use transport::Transport;
pub use turn::Node;
