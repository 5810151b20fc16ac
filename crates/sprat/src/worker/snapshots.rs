//! Snapshots of a worker's counters for other threads.
//!
//! ```text
//! thread ── request ──► channel      wakes the worker; its next turn answers
//!        ◄── counters ── channel ──┘
//! ```
//! A turn of a worker that nothing has woken does not look for requests.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use super::waker::Waker;

/// A handle by which another thread gets the counters of a worker.
#[derive(Clone, Debug)]
pub struct Snapshots {
    requests: Sender<SyncSender<Vec<u8>>>,
    waker: Waker,
}

impl Snapshots {
    /// Returns the counters of the worker as an object in JSON, or `None` if the worker gives none
    /// within `patience`.
    #[must_use]
    pub fn take(&self, patience: Duration) -> Option<Vec<u8>> {
        self.ask()?.recv_timeout(patience).ok()
    }

    /// Asks for the counters of the worker, which come as an object in JSON. `None`: the worker is
    /// gone.
    #[must_use]
    pub fn ask(&self) -> Option<Receiver<Vec<u8>>> {
        let (answer, answered) = sync_channel(1);
        self.requests.send(answer).ok()?;
        self.waker.wake();
        Some(answered)
    }
}

/// The worker's end: requests for its counters.
#[derive(Debug)]
pub(super) struct Requests {
    requests: Receiver<SyncSender<Vec<u8>>>,
    /// Handles are made from it.
    sender: Sender<SyncSender<Vec<u8>>>,
}

impl Requests {
    pub(super) fn new() -> Self {
        let (sender, requests) = channel();
        Self { requests, sender }
    }

    /// Returns a handle for another thread.
    pub(super) fn handle(&self, waker: Waker) -> Snapshots {
        Snapshots { requests: self.sender.clone(), waker }
    }

    /// Answers all requests with what `counters` returns, which is called if there are any.
    pub(super) fn answer(&self, counters: impl FnOnce() -> Vec<u8>) {
        let requests: Vec<_> = self.requests.try_iter().collect();
        if requests.is_empty() {
            return;
        }
        let counters = counters();
        for request in requests {
            // A thread that has given up has no receiver.
            let _ = request.try_send(counters.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_the_counters_and_one_that_gave_up_does_no_harm() {
        let requests = Requests::new();
        let waker = Waker::new().unwrap();
        let snapshots = requests.handle(waker.clone());
        requests.answer(|| panic!("no request"));
        assert_eq!(snapshots.take(Duration::ZERO), None);
        assert!(waker.clear(), "the worker is woken");
        let thread = std::thread::spawn(move || snapshots.take(Duration::from_secs(30)));
        while !thread.is_finished() {
            requests.answer(|| b"{}".to_vec());
            std::thread::yield_now();
        }
        assert_eq!(thread.join().unwrap().unwrap(), b"{}");
    }
}
