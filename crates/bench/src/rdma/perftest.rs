//! `sprat rdma perftest`: the server that perftest's clients measure with `-R`, byte by byte
//! (docs/interop.md, "perftest's exchange").
//!
//! ```text
//!   client                              server
//!     control connection ────────────────►
//!     notes: version, sizes, a record ───►   each answered by a note of the same length
//!     data connection ───────────────────►
//!     notes: records ────────────────────►   … that say where the memory is
//!     the test, on the data connection ◄─►   Sends are sent back, Writes and Reads ask nobody
//!     notes: figures, a record ──────────►
//!     the end of both connections
//! ```
//!
//! Which test it is, how long its messages are and how many is the client's business: a note says by its length what it is,
//! a Send goes back as it came. So one server serves `ib_send_lat`, `ib_write_bw`, `ib_read_bw` and `ib_read_lat`.
//!
//! Deliberately not here: what a server would have to be told (`ib_write_lat`, where it looks for the octet that comes last)
//! or does by itself (`ib_send_bw` and its credits, both directions at once); more than one data connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sprat::verbs::{
    AcceptOptions, Access, CompletionQueue, ConnectError, ConnectRequest, Connection, Data, Device,
    Listener, MemoryRegion, PairOptions, ProtectionDomain, QueuePair, RecvRequest, Remote, SendOp,
    SendRequest,
};

use super::args::Perftest;
use super::{accept, device_for};
use crate::fail::{Fail, Named};
use crate::{out, process};

/// How long the client may take for one step of the start-up, and for leaving.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));
/// How long it may take for its test: as long as it is there.
const UNLIMITED: Option<Duration> = None;
/// Receives on the data connection, where the client waits for each answer.
const RECEIVES: usize = 16;

/// Octets of a note: the version, a figure of the result, where the memory is. Numbers (4) and the unit of transfer (2)
/// are agreed upon by the larger and the smaller one, so that an echo is a consent.
const VERSION: usize = 16;
const FIGURE: usize = 8;
const RECORD: usize = 56;
/// A client goes through as much memory even with small messages.
const CYCLE: usize = 4096;
/// What perftest 4.5 calls its exchange. Clients want 5.70 at least.
const OURS: &[u8; VERSION] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// Figures at the end of a test of throughput: octets, messages, best, average, messages a second.
const FIGURES: usize = 5;

/// Runs the command.
pub fn run(args: &Perftest) -> Result<(), Fail> {
    let at = SocketAddr::new(args.address, args.port);
    let device = device_for(&args.wire, at)?;
    let listener = device.listen(at).named(format_args!("cannot listen at {at}"))?;
    process::say_ready(&listener.local_addr().to_string())?;
    let served = serve(&device, &listener, args.size)?;
    out::print(format!("{served}\n"))
}

/// Serves the first client that comes as far as its test, until it leaves; the test may use memory of `largest` octets.
fn serve(device: &Device, listener: &Listener, largest: usize) -> Result<Served, Fail> {
    loop {
        let Some(request) = accept::next(listener, UNLIMITED) else { continue };
        let peer = request.peer();
        let mut client = Client::new(device, peer, listener.local_addr().ip(), largest)?;
        match client.start(listener, request) {
            Ok(()) => return client.serve().map_err(|fail| fail.at(peer)),
            Err(fail) => accept::pass_over(peer, fail),
        }
    }
}

/// What came of a client.
#[derive(Debug)]
struct Served {
    peer: SocketAddr,
    /// Sends that were sent back.
    sends: u64,
    /// What it has measured, if it says so.
    figures: Vec<u64>,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has left; Sends answered: {}", self.peer, self.sends)?;
        let [octets, messages, best, average, _] = self.figures[..] else { return Ok(()) };
        let [best, average] = [best, average].map(f64::from_bits);
        write!(
            f,
            "; its figures: {messages} messages of {octets} octets, {average:.2} MB/s, {best:.2} at best"
        )
    }
}

/// What came from the client.
#[derive(Debug)]
enum Heard {
    /// A note on the control connection.
    Note(Vec<u8>),
    /// A Send of so many octets on the data connection.
    Send(usize),
    /// The end of a connection.
    Left,
}

/// A client, and all that is there for it.
struct Client {
    served: Served,
    /// The address that it reached us at.
    here: IpAddr,
    domain: ProtectionDomain,
    /// Of both connections.
    queue: CompletionQueue,
    control: QueuePair,
    data: Option<QueuePair>,
    /// The note that came.
    note: MemoryRegion,
    /// The octets of the test.
    memory: MemoryRegion,
    record: [u8; RECORD],
}

impl Client {
    fn new(device: &Device, peer: SocketAddr, here: IpAddr, largest: usize) -> Result<Self, Fail> {
        let failed = "cannot make what a client needs";
        let domain = device.protection_domain().named(failed)?;
        let queue = device.completion_queue(256).named(failed)?;
        let control = domain.queue_pair(&PairOptions::new(&queue)).named(failed)?;
        let note = domain.register(RECORD, Access::LOCAL).named(failed)?;
        let memory = domain.register(largest.max(CYCLE), Access::ALL).named(failed)?;
        let record = record(0, 0, memory.remote(0), here);
        let served = Served { peer, sends: 0, figures: Vec::new() };
        Ok(Self { served, here, domain, queue, control, data: None, note, memory, record })
    }

    /// Accepts the control connection and answers notes until there is a data connection.
    fn start(&mut self, listener: &Listener, request: ConnectRequest) -> Result<(), Fail> {
        receive(&self.control, &self.note)?;
        connect(request, &self.control)?;
        while self.data.is_none() {
            let Heard::Note(note) = self.hear(PATIENCE)? else {
                return Err(Fail::new("the client has left before its test"));
            };
            let record = note.len() == RECORD;
            self.answer(note)?;
            if record {
                self.data = Some(self.accept_data(listener)?);
            }
        }
        Ok(())
    }

    /// The test, until the client leaves.
    fn serve(mut self) -> Result<Served, Fail> {
        loop {
            match (self.hear(UNLIMITED)?, &self.data) {
                (Heard::Note(note), _) => {
                    keep(&mut self.served.figures, &note);
                    self.answer(note)?;
                }
                (Heard::Send(octets), Some(data)) => {
                    receive(data, &self.memory)?;
                    let back = SendRequest::new(0, SendOp::Send, self.memory.sge(0..octets));
                    data.post_send(back.unsignaled()).named("cannot send back")?;
                    self.served.sends += 1;
                }
                (Heard::Left | Heard::Send(_), data) => {
                    // It closes the data connection first. Whatever is left of the other one is not worth an error.
                    let gone = data.as_ref().is_none_or(|data| data.disconnected(PATIENCE));
                    let _ = gone && self.control.disconnected(PATIENCE);
                    return Ok(self.served);
                }
            }
        }
    }

    /// What comes next.
    fn hear(&self, patience: Option<Duration>) -> Result<Heard, Fail> {
        let Some(completion) = self.queue.wait(patience) else {
            let fail = Fail::new("the client says nothing");
            return Err(fail.next(
                "start it with -R, and without -q and -b: they need more than this server has",
            ));
        };
        let control = completion.qp == self.control.number();
        match completion.result() {
            Ok(completion) if control => {
                let mut note = vec![0; completion.len as usize];
                self.note.read(0, &mut note).named("cannot read a note")?;
                receive(&self.control, &self.note)?;
                Ok(Heard::Note(note))
            }
            Ok(completion) => Ok(Heard::Send(completion.len as usize)),
            Err(status) => {
                let pair = if control { Some(&self.control) } else { self.data.as_ref() };
                match pair.map(QueuePair::connection) {
                    Some(Connection::Not(ConnectError::Disconnected {
                        cause: Some(cause),
                        ours,
                    })) => {
                        let whom = if ours { "we" } else { "the client" };
                        Err(Fail::new(format!("{status}; {whom} ended the connection: {cause}")))
                    }
                    _ => Ok(Heard::Left),
                }
            }
        }
    }

    /// Answers a note by one of the same length.
    fn answer(&self, mut note: Vec<u8>) -> Result<(), Fail> {
        match note.len() {
            VERSION => note.copy_from_slice(OURS),
            RECORD => note.copy_from_slice(&self.record),
            _ => {}
        }
        let answer = SendRequest::new(0, SendOp::Send, Data::Inline(note)).unsignaled();
        self.control.post_send(answer).named("cannot answer")
    }

    /// Accepts the data connection. A peer at another address is refused.
    fn accept_data(&mut self, listener: &Listener) -> Result<QueuePair, Fail> {
        loop {
            let request = accept::next(listener, PATIENCE);
            let request =
                request.ok_or_else(|| Fail::new("the client makes no data connection"))?;
            let peer = request.peer();
            if peer.ip() != self.served.peer.ip() {
                accept::pass_over(peer, Fail::new("another client is being served"));
                continue;
            }
            let data = self
                .domain
                .queue_pair(&PairOptions::new(&self.queue))
                .named("cannot make a queue pair")?;
            for _ in 0..RECEIVES {
                receive(&data, &self.memory)?;
            }
            let reads = request.ord().unwrap_or(0);
            match connect(request, &data) {
                Ok(()) => {
                    self.record = record(reads, data.number().0, self.memory.remote(0), self.here);
                    return Ok(data);
                }
                Err(fail) => accept::pass_over(peer, fail),
            }
        }
    }
}

/// Accepts, with the depths that the client asks for.
fn connect(request: ConnectRequest, pair: &QueuePair) -> Result<(), Fail> {
    let ird = request.ord().unwrap_or(0);
    let ord = request.ird().unwrap_or(0);
    request
        .accept(pair, AcceptOptions { ird, ord, ..AcceptOptions::default() })
        .named("cannot accept")?;
    pair.connected(PATIENCE).named("the client did not start up").map(drop)
}

fn receive(pair: &QueuePair, into: &MemoryRegion) -> Result<(), Fail> {
    pair.post_recv(RecvRequest::new(0, into.sge(0..into.len()))).named("cannot post a receive")
}

/// Keeps the figures of the last result.
fn keep(figures: &mut Vec<u64>, note: &[u8]) {
    if let Ok(figure) = <[u8; FIGURE]>::try_from(note) {
        if figures.len() == FIGURES {
            figures.clear();
        }
        figures.push(u64::from_be_bytes(figure));
    }
}

/// Where the memory is. All numbers are big endian; at 20 there is a gap, at 0 what only InfiniBand has.
fn record(reads: u16, pair: u32, memory: Remote, address: IpAddr) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[4..8].copy_from_slice(&u32::from(reads).to_be_bytes());
    record[8..12].copy_from_slice(&pair.to_be_bytes());
    record[16..20].copy_from_slice(&memory.stag.0.to_be_bytes());
    record[24..32].copy_from_slice(&memory.addr.to_be_bytes());
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    record[32..48].copy_from_slice(&address.octets());
    record
}

#[cfg(test)]
mod tests;
