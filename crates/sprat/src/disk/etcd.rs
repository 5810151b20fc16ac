//! The coordinator's state in etcd: a thread of its own that sends the requests of [`EtcdState`],
//! each to one member, and to the next member after a failure.
//!
//! ```text
//!  worker ── writes ─► thread "sprat-etcd": EtcdState ── requests ─► a member of the etcd
//!         ◄─ Written, eventfd ─┘                      ◄─ results ───┘
//! ```
//! Elsewhere: what the requests are ([`sprat_store::etcd`]).

use std::error::Error as _;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, CompareOp, ConnectOptions, DeleteOptions, Error, GetOptions, Identity,
    TlsOptions, TxnOp, TxnOpResponse,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use sprat_proto::Rng;
use sprat_proto::node::{Pairs, Written};
use sprat_store::etcd::{
    EtcdState, Failure, Is, Keys, Op, Pair, Reply, Request, TRY_NS, Txn, is_turn,
};
use sprat_sys::clock::Clock;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::Disk;
use super::address::EtcdOptions;

/// The time that etcd has to answer when a coordinator starts.
const START: Duration = Duration::from_secs(5);
/// The pause between two tries of a start.
const START_PAUSE: Duration = Duration::from_millis(100);
/// The time that the writes which wait have when a coordinator ends.
const END: Duration = Duration::from_secs(1);
/// The codes of gRPC with which etcd refuses a request that it never executes: INVALID_ARGUMENT,
/// PERMISSION_DENIED, OUT_OF_RANGE.
const REFUSALS: [i32; 3] = [3, 7, 11];
/// The code of gRPC with which etcd refuses a request if it is full, or has too many requests:
/// RESOURCE_EXHAUSTED.
const EXHAUSTED: i32 = 8;
/// The text of etcd's error when its database is full.
const FULL: &str = "database space exceeded";
/// The text of etcd's error when users or roles have changed since the user got its token. A new
/// token mends it.
const OLD_TOKEN: &str = "revision of auth store is old";

type Outcome = Result<Reply, Failure>;

struct Write {
    turn: u64,
    seq: u64,
    puts: Pairs,
    deletes: Vec<Vec<u8>>,
}

/// The state of a coordinator in etcd, and the thread that talks to etcd.
#[derive(Debug)]
pub(crate) struct EtcdDisk {
    writes: Option<UnboundedSender<Write>>,
    /// The number of elections and refusals that the machine was informed of.
    turns: u64,
    done: Receiver<Written>,
    ready: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl EtcdDisk {
    /// Connects to etcd. `locators` are those of this coordinator.
    ///
    /// # Errors
    /// No member of the etcd answers, etcd refuses the user, or a file cannot be read.
    pub(crate) fn open(options: &EtcdOptions, locators: String, rng: Rng) -> io::Result<Self> {
        let members = Members::new(options)?;
        let keys = options.keys().ok_or(io::ErrorKind::InvalidInput)?;
        let ready = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (writes, queue) = unbounded_channel();
        let (report, done) = channel();
        let (started, start) = channel();
        let bell = Arc::clone(&ready);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let thread =
            std::thread::Builder::new().name("sprat-etcd".to_owned()).spawn(move || {
                runtime.block_on(async move {
                    let mut members = members;
                    let outcome = members.start(&keys).await;
                    let failed = outcome.is_err();
                    let _ = started.send(outcome);
                    if !failed {
                        let state = EtcdState::new(Clock::new().now(), keys, locators, rng);
                        Talker { state, members, report, bell }.run(queue).await;
                    }
                });
            })?;
        let lost = || Err(io::Error::other("the thread for etcd has ended"));
        start.recv().unwrap_or_else(|_| lost())?;
        Ok(Self { writes: Some(writes), turns: 0, done, ready, thread: Some(thread) })
    }
}

impl Disk for EtcdDisk {
    fn persist(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>) {
        if let Some(writes) = &self.writes {
            // If the thread is gone, `completed` says why.
            let _ = writes.send(Write { turn: self.turns, seq, puts, deletes });
        }
    }

    fn completed(&mut self) -> Option<Written> {
        match self.done.try_recv() {
            Ok(written) => {
                self.turns += u64::from(is_turn(&written));
                if let Written::Failed(_) = written {
                    // The thread ends, which must not count as another failure.
                    self.writes = None;
                }
                Some(written)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self
                .writes
                .take()
                .map(|_| Written::Failed("the thread for etcd has ended".to_owned())),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.ready, &mut count);
    }
}

impl Drop for EtcdDisk {
    /// Waits until all writes are finished, or etcd does not take them.
    fn drop(&mut self) {
        self.writes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The part of a state in etcd that runs in the thread of its own.
struct Talker {
    state: EtcdState,
    members: Members,
    report: Sender<Written>,
    bell: Arc<OwnedFd>,
}

impl Talker {
    async fn run(mut self, mut queue: UnboundedReceiver<Write>) {
        let clock = Clock::new();
        let mut requests = JoinSet::new();
        let (mut open, mut end) = (true, None);
        loop {
            let now = clock.now();
            self.state.tick(now);
            while let Some((id, request)) = self.state.output(now) {
                let talk = self.members.talk();
                requests.spawn(async move { (id, talk.ask(request).await) });
            }
            while let Some(written) = self.state.event() {
                let failed = matches!(written, Written::Failed(_));
                let _ = self.report.send(written);
                let _ = rustix::io::write(&*self.bell, &[0, 0, 0, 0, 0, 0, 0, 1]);
                if failed {
                    return;
                }
            }
            if !open && (!self.state.is_writing() || end.is_some_and(|at| clock.now() >= at)) {
                return;
            }
            let pause = Duration::from_nanos(self.state.deadline().since(clock.now()));
            tokio::select! {
                write = queue.recv(), if open => match write {
                    Some(Write { turn, seq, puts, deletes }) => {
                        self.state.persist(turn, seq, puts, deletes);
                    }
                    None => {
                        open = false;
                        end = Some(clock.now().after(END.as_nanos() as u64));
                    }
                },
                Some(done) = requests.join_next() => if let Ok((id, (told, outcome))) = done {
                    self.members.told(told);
                    self.state.response(clock.now(), id, outcome);
                },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// The members of an etcd, of which one gets the requests.
struct Members {
    options: ConnectOptions,
    hosts: Vec<String>,
    clients: Vec<Option<Client>>,
    current: usize,
}

/// A request on the way to one member.
struct Talk {
    member: usize,
    host: String,
    options: ConnectOptions,
    client: Option<Client>,
}

/// The state of a member after a request: its client, or the advice to ask another member.
struct Told {
    member: usize,
    client: Option<Client>,
    failed: bool,
}

impl Members {
    fn new(options: &EtcdOptions) -> io::Result<Self> {
        let named = |path: &Path, e: io::Error| {
            io::Error::new(e.kind(), format!("a file for etcd, {}: {e}", path.display()))
        };
        let read = |path: &Path| std::fs::read(path).map_err(|e| named(path, e));
        // The library takes a file without certificates, and trusts no member then.
        let pem = |path: &Path, what: &str| {
            let bytes = read(path)?;
            let begins = String::from_utf8_lossy(&bytes).lines().any(|line| {
                line.starts_with("-----BEGIN ")
                    && line.trim_end().ends_with(&format!("{what}-----"))
            });
            let why = || io::Error::new(io::ErrorKind::InvalidData, format!("it has no {what}"));
            if begins { Ok(bytes) } else { Err(named(path, why())) }
        };
        let mut connect = ConnectOptions::new();
        if let Some((user, password)) = &options.user {
            let text = String::from_utf8(read(password)?);
            let text = text.map_err(|e| named(password, io::Error::other(e)))?;
            connect = connect.with_user(user, text.trim_end_matches(['\r', '\n']));
        }
        if let Some(ca) = &options.ca {
            let mut tls =
                TlsOptions::new().ca_certificate(Certificate::from_pem(pem(ca, "CERTIFICATE")?));
            if let Some((cert, key)) = &options.identity {
                let cert = pem(cert, "CERTIFICATE")?;
                tls = tls.identity(Identity::from_pem(cert, pem(key, "PRIVATE KEY")?));
            }
            connect = connect.with_tls(tls);
        }
        let clients = vec![None; options.hosts.len()];
        Ok(Self { options: connect, hosts: options.hosts.clone(), clients, current: 0 })
    }

    /// Returns a request to the member that is asked now.
    fn talk(&self) -> Talk {
        let member = self.current;
        let (host, options) = (self.hosts[member].clone(), self.options.clone());
        Talk { member, host, options, client: self.clients[member].clone() }
    }

    fn told(&mut self, told: Told) {
        self.clients[told.member] = told.client;
        if told.failed && self.current == told.member {
            self.current = (told.member + 1) % self.hosts.len();
        }
    }

    /// Waits until a member answers, and names the failures of all if none does.
    async fn start(&mut self, keys: &Keys) -> io::Result<()> {
        let clock = Clock::new();
        let end = clock.now().after(START.as_nanos() as u64);
        let mut failures = vec![String::new(); self.hosts.len()];
        loop {
            let talk = self.talk();
            let (member, host) = (talk.member, talk.host.clone());
            let (told, outcome) = talk.ask(Request::Txn(rights(keys))).await;
            self.told(told);
            match outcome {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(why)) => {
                    let prefix = keys.prefix();
                    let text = format!("etcd at {host} refuses the keys at {prefix}: {why}");
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
                }
                Err(Failure::Unknown(why)) => failures[member] = format!("{host}: {why}"),
            }
            if clock.now() >= end {
                failures.retain(|why| !why.is_empty());
                let text = format!("etcd does not answer: {}", failures.join("; "));
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }
}

impl Talk {
    /// Sends the request, over a new connection if there is none.
    async fn ask(self, request: Request) -> (Told, Outcome) {
        let Self { member, host, options, mut client } = self;
        let asked = async {
            if client.is_none() {
                client = Some(Client::connect([&host], Some(options)).await?);
            }
            let Some(client) = &mut client else { return Ok(Reply::default()) };
            send(client, request).await
        };
        let outcome = match tokio::time::timeout(Duration::from_nanos(TRY_NS), asked).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(failure(&error)),
            Err(_) => Err(Failure::Unknown(format!("{host} does not answer in time"))),
        };
        // A new connection also gets a new token of the user: etcd forgets tokens.
        let failed = matches!(outcome, Err(Failure::Unknown(_)));
        (Told { member, client: client.filter(|_| !failed), failed }, outcome)
    }
}

/// Returns a transaction that etcd refuses unless the user may read and write the cluster's keys.
/// It changes nothing: without conditions the other branch, whose rights etcd checks too, is never
/// executed. A full etcd takes it, for it adds nothing.
fn rights(keys: &Keys) -> Txn {
    let name = |text: &str| format!("{}{text}", keys.prefix()).into_bytes();
    let all = Op::Get { from: name(""), end: name("\u{7f}"), limit: 1 };
    let write = Op::Delete { from: name("rights"), end: Vec::new() };
    Txn { otherwise: Vec::from([all, write]), ..Txn::default() }
}

/// Executes a request.
async fn send(client: &mut Client, request: Request) -> Result<Reply, Error> {
    let txn = match request {
        Request::Txn(txn) => txn,
        Request::Compact(revision) => {
            client.compact(revision, None).await?;
            return Ok(Reply { succeeded: true, ..Reply::default() });
        }
    };
    let compare = |compare: sprat_store::etcd::Compare| match compare.is {
        Is::Modified(at) => etcd_client::Compare::mod_revision(compare.key, CompareOp::Equal, at),
        Is::Value(value) => etcd_client::Compare::value(compare.key, CompareOp::Equal, value),
    };
    let ops = |ops: Vec<Op>| ops.into_iter().map(operation).collect::<Vec<_>>();
    let compares: Vec<_> = txn.compares.into_iter().map(compare).collect();
    let (then, otherwise) = (ops(txn.then), ops(txn.otherwise));
    let txn = etcd_client::Txn::new().when(compares).and_then(then).or_else(otherwise);
    let mut kv = client.kv_client().max_decoding_message_size(usize::MAX);
    let response = kv.txn(txn).await?;
    let read = response.op_responses().into_iter().filter_map(|response| match response {
        TxnOpResponse::Get(get) => Some(get),
        _ => None,
    });
    let pair = |kv: &etcd_client::KeyValue| Pair {
        key: kv.key().to_vec(),
        value: kv.value().to_vec(),
        modified: kv.mod_revision(),
    };
    Ok(Reply {
        succeeded: response.succeeded(),
        revision: response.header().map_or(0, etcd_client::ResponseHeader::revision),
        read: read.map(|get| get.kvs().iter().map(pair).collect()).collect(),
    })
}

fn operation(op: Op) -> TxnOp {
    match op {
        Op::Put { key, value } => TxnOp::put(key, value, None),
        Op::Delete { from, end } if end.is_empty() => TxnOp::delete(from, None),
        Op::Delete { from, end } => TxnOp::delete(from, Some(DeleteOptions::new().with_range(end))),
        Op::Get { from, end, limit } => {
            let options = GetOptions::new().with_limit(limit);
            let options = if end.is_empty() { options } else { options.with_range(end) };
            TxnOp::get(from, Some(options))
        }
    }
}

/// Returns what an error says about the request.
fn failure(error: &Error) -> Failure {
    match error {
        Error::GRpcStatus(status) => {
            let (code, mut text) = (status.code() as i32, status.message().to_owned());
            if text.contains(OLD_TOKEN) {
                return Failure::Unknown(text);
            }
            let refused = REFUSALS.contains(&code) || code == EXHAUSTED && text.contains(FULL);
            if refused {
                return Failure::Refused(text);
            }
            add_causes(&mut text, status.source());
            Failure::Unknown(text)
        }
        Error::InvalidArgs(_) | Error::InvalidUri(_) => Failure::Refused(error.to_string()),
        Error::TransportError(error) => {
            let mut text = error.to_string();
            add_causes(&mut text, error.source());
            Failure::Unknown(text)
        }
        error => Failure::Unknown(error.to_string()),
    }
}

/// Adds the causes of an error to its text: that of a failed connection is only "transport error".
fn add_causes(text: &mut String, mut cause: Option<&(dyn std::error::Error + 'static)>) {
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) && more != "transport error" {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
}
