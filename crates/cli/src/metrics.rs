//! Metrics of a process for Prometheus: the counters of its workers, over HTTP at `/metrics`.
//!
//! ```text
//! connection ── thread: reads a request ── asks the worker for its counters ── answers, closes
//! ```
//! The threads share no core or lock with the worker. It answers a request for its counters as it
//! answers `sprat stats`, between two turns. Scrapes that follow each other closely get the same
//! counters, so that none slows the worker down.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use sprat::internals::worker::Snapshots;
use sprat_bench::fail::{Fail, Named as _};
use sprat_proto::Instant;
use sprat_proto::time::MS;
use sprat_sys::clock;

use crate::counters::catalogue::Part;
use crate::counters::prometheus;

mod http;

/// The most connections that are answered at the same time. Prometheus opens one.
const CONNECTIONS: usize = 8;
/// The time that a peer has to send its request and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time that the workers have to give their counters.
const SNAPSHOT: Duration = Duration::from_secs(2);
/// The time in nanoseconds for which counters are given again.
const FRESH_NS: u64 = 100 * MS;
/// The pause after a failure to accept, which is mostly a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket at which a process serves its metrics.
#[derive(Debug)]
pub(crate) struct Metrics(TcpListener);

impl Metrics {
    /// Listens at `address`, which is one of loopback unless `anywhere`.
    pub(crate) fn listen(address: SocketAddr, anywhere: bool) -> Result<Self, Fail> {
        if !address.ip().is_loopback() && !anywhere {
            return Err(Fail::usage(format!("--metrics {address} is not an address of loopback"))
                .next("choose 127.0.0.1 or [::1], or allow this one with --insecure-network"));
        }
        let listener = TcpListener::bind(address).map_err(|error| {
            let fail = Fail::new(format!("cannot serve metrics at {address}: {error}"));
            match error.kind() {
                io::ErrorKind::AddrInUse => {
                    fail.next("another process serves there: choose another port")
                }
                _ => fail.next("choose an address of this machine and a port that you may use"),
            }
        })?;
        Ok(Self(listener))
    }

    /// Returns the address of the metrics.
    pub(crate) fn url(&self) -> String {
        let address = self.0.local_addr().map_or_else(|_| String::new(), |at| at.to_string());
        format!("http://{address}{}", http::PATH)
    }

    /// Serves the counters of workers in threads of their own, until the process ends.
    pub(crate) fn serve(self, part: Part, workers: Vec<Snapshots>) -> Result<(), Fail> {
        let source = Arc::new(Source { part, workers, last: Mutex::default() });
        let accept = move || {
            let open = Arc::new(AtomicUsize::new(0));
            for stream in self.0.incoming() {
                match stream {
                    Ok(stream) => answer(stream, &source, &open),
                    Err(_) => std::thread::park_timeout(PAUSE),
                }
            }
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(accept);
        thread.map(drop).named("cannot start a thread")
    }
}

/// Answers a connection in a thread of its own, or refuses it if there are too many.
fn answer(stream: TcpStream, source: &Arc<Source>, open: &Arc<AtomicUsize>) {
    if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
        open.fetch_sub(1, Ordering::Relaxed);
        http::refuse(&stream);
        return;
    }
    let (source, here) = (Arc::clone(source), Arc::clone(open));
    let work = move || {
        let until = clock::now().after(PATIENCE.as_nanos() as u64);
        http::answer(&stream, until, || source.text());
        here.fetch_sub(1, Ordering::Relaxed);
    };
    if std::thread::Builder::new().name("metrics".to_owned()).spawn(work).is_err() {
        open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters of workers as text.
struct Source {
    part: Part,
    workers: Vec<Snapshots>,
    /// The last text, and the time until which it is given again.
    last: Mutex<(Instant, Arc<str>)>,
}

impl Source {
    /// Returns the counters in Prometheus's text format, or none if a worker does not answer.
    fn text(&self) -> Option<Arc<str>> {
        // The lock lets one thread at a time ask the workers.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if clock::now() < last.0 {
            return Some(Arc::clone(&last.1));
        }
        let until = clock::now().after(SNAPSHOT.as_nanos() as u64);
        let asked: Vec<_> = self.workers.iter().map(Snapshots::ask).collect();
        let all = asked.into_iter().map(|answer| {
            let left = Duration::from_nanos(until.since(clock::now()));
            serde_json::from_slice(&answer?.recv_timeout(left).ok()?).ok()
        });
        let all: Vec<Map<String, Value>> = all.collect::<Option<_>>()?;
        let text: Arc<str> = prometheus::of_process(self.part, &all).into();
        *last = (clock::now().after(FRESH_NS), Arc::clone(&text));
        Some(text)
    }
}
