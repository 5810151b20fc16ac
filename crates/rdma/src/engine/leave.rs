//! The end of a device with our own TCP: what the kernel does for the sockets of a process that has
//! ended.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND};

use super::native::Native;
use super::shared::Shared;

/// The longest sleep until the next look at the connections.
const LONGEST_SLEEP_NS: u64 = 20 * MS;

impl Shared {
    /// Closes all connections of our own TCP. Sends what they have and waits until the peers have
    /// closed them too, at most for `limit`; then resets the rest. Without a limit it does not
    /// wait, and resets nothing.
    ///
    /// The device is of no use afterwards. It does nothing while another thread keeps the device
    /// locked: this thread may have interrupted it.
    pub(crate) fn leave(&self, limit: Option<Duration>) {
        if !self.is_native {
            return;
        }
        let Some(mut core) = self.lock_or_give_up() else { return };
        let now = self.clock.now();
        core.close_native(now);
        let Some(limit) = limit else { return };
        let until = now.after(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let now = self.clock.now();
            if !core.outlive_native(now) {
                return;
            }
            if now >= until {
                return core.native.iter_mut().for_each(|native| native.leave(now, true));
            }
            if core.native.as_deref_mut().is_some_and(Native::arm) {
                self.sleep_at_most(now, core.deadline().min(until));
            }
        }
    }

    /// Sleeps until the device has frames or `due` has passed.
    fn sleep_at_most(&self, now: Instant, due: Instant) {
        let limit_ns = due.since(now).min(LONGEST_SLEEP_NS);
        let limit =
            Timespec { tv_sec: (limit_ns / SECOND) as i64, tv_nsec: (limit_ns % SECOND) as i64 };
        let mut fds = [PollFd::new(self.epoll(), PollFlags::IN)];
        let _ = poll(&mut fds, Some(&limit));
    }
}
