//! The log of errors that end connections: one line each, on both sides, from the thread that finds the error.
//!
//! So a program that asks for no event, or that ends at once, still says why its connection ended. At most [`BURST`] lines
//! go out at once and [`A_SECOND`] a second later on; the next line says how many were left out.

use std::sync::Mutex;

use sprat::verbs::Failure;
use sprat_sys::clock;

use crate::log::{Level, log, on};
use crate::object::locked;

/// Enough for the connections of one program that fails, and few enough to be read.
const BURST: u64 = 64;
const A_SECOND: u64 = 10;
/// Nanoseconds for one line.
const EACH_NS: u64 = 1_000_000_000 / A_SECOND;

/// How many lines may go out.
#[derive(Debug)]
struct Rate {
    /// When the allowance is full again, in nanoseconds.
    full_ns: u64,
    left_out: u64,
}

impl Rate {
    /// Takes one line: how many were left out before it, or nothing if this one is too.
    fn take(&mut self, now_ns: u64) -> Option<u64> {
        let full_ns = self.full_ns.max(now_ns) + EACH_NS;
        if full_ns > now_ns + BURST * EACH_NS {
            self.left_out += 1;
            return None;
        }
        self.full_ns = full_ns;
        Some(std::mem::take(&mut self.left_out))
    }
}

static RATE: Mutex<Rate> = Mutex::new(Rate { full_ns: 0, left_out: 0 });

/// Logs a failure. The engine is locked meanwhile.
pub(crate) fn log(failure: &Failure) {
    if !on(Level::Error) {
        return;
    }
    let Some(left_out) = locked(&RATE).take(clock::now().as_ns()) else { return };
    let Failure { pair, peer, cause, ours } = failure;
    let peer = peer.map_or_else(|| "its peer".to_owned(), |peer| peer.to_string());
    let by = if *ours {
        "found here and told by a Terminate"
    } else {
        "told by a Terminate of the peer"
    };
    let before =
        if left_out > 0 { format!("; {left_out} more were not logged") } else { String::new() };
    log!(
        Error,
        "an error ends the connection of queue pair {} with {peer}, {by}: layer/type/code {cause}; \
         what was posted is flushed{before}",
        pair.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_is_counted_instead_of_logged() {
        let mut rate = Rate { full_ns: 0, left_out: 0 };
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
