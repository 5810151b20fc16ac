//! The log of errors that end connections. The thread that finds an error logs one line, on both
//! sides.
//!
//! So a program that asks for no event, or that exits at once, still leaves the reason in its log.
//! At most [`BURST`] lines are written at once and [`LINES_PER_SECOND`] a second afterwards; the
//! next line
//! states how many were suppressed.

use std::sync::Mutex;

use sprat_rdma::Failure;
use sprat_sys::clock;

use crate::log::{Level, log, on};
use crate::object::lock;

/// The most log lines at once about failed connections: enough for the connections of one failing
/// program, and few enough to read.
const BURST: u64 = 64;
const LINES_PER_SECOND: u64 = 10;
/// The interval in nanoseconds between two log lines about failed connections at the sustained
/// rate.
const EACH_NS: u64 = 1_000_000_000 / LINES_PER_SECOND;

/// A token bucket that limits log lines.
#[derive(Debug)]
struct TokenBucket {
    /// The time at which the token bucket is full again, in nanoseconds.
    full_ns: u64,
    suppressed: u64,
}

impl TokenBucket {
    /// Takes one log line from the bucket. Returns the number of lines suppressed before it, or
    /// `None` to suppress this one.
    fn take(&mut self, now_ns: u64) -> Option<u64> {
        let full_ns = self.full_ns.max(now_ns) + EACH_NS;
        if full_ns > now_ns + BURST * EACH_NS {
            self.suppressed += 1;
            return None;
        }
        self.full_ns = full_ns;
        Some(std::mem::take(&mut self.suppressed))
    }
}

static BUCKET: Mutex<TokenBucket> = Mutex::new(TokenBucket { full_ns: 0, suppressed: 0 });

/// Logs an error that ended a connection. The caller holds the engine's lock.
pub(crate) fn log(failure: &Failure) {
    if !on(Level::Error) {
        return;
    }
    let Some(suppressed) = lock(&BUCKET).take(clock::now().as_ns()) else { return };
    let Failure { pair, peer, cause, ours } = failure;
    let peer = peer.map_or_else(|| "its peer".to_owned(), |peer| peer.to_string());
    let by = if *ours {
        "detected here and reported by a Terminate"
    } else {
        "reported by a Terminate of the peer"
    };
    let before =
        if suppressed > 0 { format!("; {suppressed} more were not logged") } else { String::new() };
    log!(
        Error,
        "an error ends the connection of queue pair {} to {peer}, {by}: layer/type/code {cause}; \
         posted requests are flushed{before}",
        pair.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_is_counted_instead_of_logged() {
        let mut rate = TokenBucket { full_ns: 0, suppressed: 0 };
        let now = 1_000 * EACH_NS;
        for _ in 0..BURST {
            assert_eq!(rate.take(now), Some(0));
        }
        for _ in 0..1_000 {
            assert_eq!(rate.take(now), None);
        }
        assert_eq!(rate.take(now + EACH_NS), Some(1_000));
        assert_eq!(rate.take(now + EACH_NS), None);
        assert_eq!(rate.take(now + 2 * EACH_NS), Some(1));
    }
}
