//! RPC for asynchronous programs, on any runtime.
//!
//! A thread owns the [`Client`] and makes its progress. Tasks send it requests through a queue and
//! wait for the outcome that it promised. The thread ends with the last [`AsyncClient`] and
//! [`AsyncSession`] and the last request in progress.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use sprat_proto::rpc::RpcError;

use super::client::{Builder, Client, Outcome, Rpc, Session};
use crate::promise::{Promise, Promised, Queue, Requests, promise, requests};

/// Most lanes of an asynchronous client's session, unless the program sets another number.
const LANES: u16 = 8;
/// Most requests that wait for the asynchronous client's thread.
const MOST_WAITING: usize = 1 << 16;
/// The time after which a task repeats a request that the full queue did not take.
const FULL_RETRY_NS: u64 = 1_000_000;

/// A message of a task to the client's thread: open a session, send a request, or end a session.
enum Request {
    Connect { locators: String, promise: Promise<io::Result<Session>> },
    Call { session: Session, bytes: Vec<u8>, timeout: Duration, promise: Promise<Outcome> },
    Close(Session),
}

/// Sessions with servers, for asynchronous programs.
///
/// It belongs to no runtime: its futures wake their task from a thread of the client. It is `Send`
/// and `Sync`. Clones share the thread and its sessions.
///
/// ```no_run
/// use std::time::Duration;
/// use sprat::rpc::Client;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::builder().build_async()?;
/// let session = client.connect("fast+shm:name=upper").await?;
/// assert_eq!(session.call(b"hello", Duration::from_secs(1)).await?, b"HELLO");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncClient {
    requests: Requests<Request>,
}

impl Builder {
    /// Makes a client for asynchronous programs and starts its thread.
    ///
    /// # Errors
    /// No file descriptor is left, or the thread could not be started.
    pub fn build_async(self) -> io::Result<AsyncClient> {
        let client = self.lanes_or(LANES).build()?;
        let (requests, queue) = requests(client.waker(), MOST_WAITING);
        thread::Builder::new().name("sprat-rpc".into()).spawn(move || run(client, &queue))?;
        Ok(AsyncClient { requests })
    }
}

/// The promises of the requests in progress, by the index of the request.
#[derive(Default)]
struct InProgress {
    promises: Vec<Option<(Rpc, Promise<Outcome>)>>,
    count: usize,
}

impl InProgress {
    fn add(&mut self, rpc: Rpc, promise: Promise<Outcome>) {
        if rpc.index() >= self.promises.len() {
            self.promises.resize_with(rpc.index() + 1, || None);
        }
        self.promises[rpc.index()] = Some((rpc, promise));
        self.count += 1;
    }

    fn ended(&mut self, rpc: Rpc) -> Option<Promise<Outcome>> {
        let (_, promise) = self.promises.get_mut(rpc.index())?.take_if(|p| p.0 == rpc)?;
        self.count -= 1;
        Some(promise)
    }
}

/// Serves the tasks until no task can send requests any more and no request is in progress.
fn run(mut client: Client, queue: &Queue<Request>) {
    let mut calls = InProgress::default();
    loop {
        let open = loop {
            match queue.take() {
                Ok(Some(request)) => serve(&mut client, &mut calls, request),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if !open && calls.count == 0 {
            return;
        }
        client.turn_and_rest();
        while let Some((rpc, outcome)) = client.completed() {
            if let Some(promise) = calls.ended(rpc) {
                promise.give(outcome.map(<[u8]>::to_vec));
            }
        }
    }
}

fn serve(client: &mut Client, calls: &mut InProgress, request: Request) {
    match request {
        Request::Connect { locators, promise } => promise.give(client.connect(&locators)),
        Request::Call { session, bytes, timeout, promise } => {
            if !promise.is_abandoned() {
                calls.add(client.start(session, &bytes, timeout), promise);
            }
        }
        Request::Close(session) => client.close(session),
    }
}

impl AsyncClient {
    /// Opens a session as [`Client::connect`] does.
    ///
    /// # Errors
    /// Those of [`Client::connect`], or the client's thread has ended by a panic.
    pub fn connect(
        &self,
        locators: &str,
    ) -> impl Future<Output = io::Result<AsyncSession>> + use<> {
        let ((promise, promised), requests) = (promise(), self.requests.clone());
        let sent = requests.send(Request::Connect { locators: locators.to_owned(), promise });
        async move {
            if !sent {
                return Err(io::Error::other("too many requests wait for the client's thread"));
            }
            let opened = std::future::poll_fn(|context| promised.poll(context)).await;
            let ended = || Err(io::Error::other("the client's thread has ended"));
            let session = opened.unwrap_or_else(ended)?;
            Ok(AsyncSession { open: Arc::new(Open { requests, session }) })
        }
    }
}

/// A session of an [`AsyncClient`] with one server. Clones are the same session, which ends with
/// the last of them.
#[derive(Clone, Debug)]
pub struct AsyncSession {
    open: Arc<Open>,
}

#[derive(Debug)]
struct Open {
    requests: Requests<Request>,
    session: Session,
}

impl Drop for Open {
    fn drop(&mut self) {
        // A session ends once, so sessions limit these requests.
        self.requests.send_beyond_limit(Request::Close(self.session));
    }
}

impl AsyncSession {
    /// Sends `request` and returns its reply.
    ///
    /// The request starts without a poll. After the future is dropped, the server may still execute
    /// it.
    ///
    /// # Errors
    /// [`RpcError`]. [`RpcError::Busy`] also if too many requests wait for the client's thread.
    pub fn call(&self, request: impl Into<Vec<u8>>, timeout: Duration) -> Response {
        let (promise, promised) = promise();
        let session = self.open.session;
        let call = Request::Call { session, bytes: request.into(), timeout, promise };
        let refused = !self.open.requests.send(call);
        Response { _session: self.clone(), promised, refused }
    }
}

/// The reply to a request of an [`AsyncSession`]. The session stays open until the response has
/// come or is dropped.
#[must_use = "a reply that nothing awaits is lost"]
pub struct Response {
    _session: AsyncSession,
    promised: Promised<Outcome>,
    refused: bool,
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response").finish_non_exhaustive()
    }
}

impl Future for Response {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        if self.refused {
            return Poll::Ready(Err(RpcError::Busy { retry_after_ns: FULL_RETRY_NS }));
        }
        // The thread ends only without clients, or by a panic.
        let outcome = ready!(self.promised.poll(context));
        Poll::Ready(outcome.unwrap_or(Err(RpcError::MaybeExecuted)))
    }
}
