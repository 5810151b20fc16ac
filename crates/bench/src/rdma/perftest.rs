//! `sprat rdma perftest`: the server that perftest's clients measure with `-R`, byte by byte
//! (docs/interop.md, "perftest's exchange").
//!
//! ```text
//!   client                              server
//!     control connection ────────────────►
//!     messages: version, sizes, a record ───►   each answered by a message of the same length
//!     data connection ───────────────────►
//!     messages: records ────────────────────►   … that say where the memory is
//!     the test, on the data connection ◄─►   Sends return, Writes and Reads need no answer
//!     messages: figures, a record ──────────►
//!     the end of both connections
//! ```
//!
//! The client decides on the test and on the length and the number of its messages: the length of a
//! message on the control connection says what it is, and a Send returns unchanged. So one server
//! serves `ib_send_lat`, `ib_write_bw`, `ib_read_bw` and `ib_read_lat`.
//!
//! Not here: tests that need a parameter at the server (`ib_write_lat`, which polls the last byte)
//! or an active server (`ib_send_bw` with its credits, both directions at once); more than one data
//! connection.

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

/// Time that perftest's client may take for one step of the start-up, and for its end.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));
/// Time that perftest's client may take for its test, which has no limit.
const UNLIMITED: Option<Duration> = None;
/// Number of receives on the data connection, where the client waits for each answer.
const RECEIVES: usize = 16;

/// Bytes of the control message that carries the version. `FIGURE` has those of a figure of the
/// result, `RECORD` those of a record of memory. Both sides agree on numbers (4 bytes) by the
/// larger value and on the unit of transfer (2 bytes) by the smaller one, so an echo agrees.
const VERSION: usize = 16;
const FIGURE: usize = 8;
const RECORD: usize = 56;
/// Least memory in bytes for a client's test, also with small messages.
const CYCLE: usize = 4096;
/// The version of perftest's exchange that the server sends. Clients require 5.70 or higher.
const OUR_VERSION: &[u8; VERSION] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// Number of figures at the end of a throughput test: bytes, messages, best, average, messages a
/// second.
const FIGURES: usize = 5;

/// Runs `sprat rdma perftest`.
pub fn run(args: &Perftest) -> Result<(), Fail> {
    let at = SocketAddr::new(args.address, args.port);
    let device = device_for(&args.wire, at)?;
    let listener = device.listen(at).named(format_args!("cannot listen at {at}"))?;
    process::print_ready(&listener.local_addr().to_string())?;
    let served = serve(&device, &listener, args.size)?;
    out::print(format!("{served}\n"))
}

/// Serves the first client that begins its test, until it disconnects. The test may use memory of
/// `largest` bytes.
fn serve(device: &Device, listener: &Listener, largest: usize) -> Result<Served, Fail> {
    loop {
        let Some(request) = accept::next(listener, UNLIMITED) else { continue };
        let peer = request.peer();
        let mut client = Client::new(device, peer, listener.local_addr().ip(), largest)?;
        match client.start(listener, request) {
            Ok(()) => return client.serve().map_err(|fail| fail.at(peer)),
            Err(fail) => accept::skip(peer, fail),
        }
    }
}

/// The result of serving one of perftest's clients.
#[derive(Debug)]
struct Served {
    peer: SocketAddr,
    /// Number of the client's Sends that the server has returned.
    sends: u64,
    /// Figures that the client sent at the end of its test.
    figures: Vec<u64>,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has disconnected; Sends answered: {}", self.peer, self.sends)?;
        let [octets, messages, best, average, _] = self.figures[..] else { return Ok(()) };
        let [best, average] = [best, average].map(f64::from_bits);
        write!(
            f,
            "; its figures: {messages} messages of {octets} octets, {average:.2} MB/s, {best:.2} \
             at best"
        )
    }
}

/// An event on the two connections of perftest's client.
#[derive(Debug)]
enum Event {
    /// A message has arrived on the control connection, with these bytes.
    Control(Vec<u8>),
    /// A Send of this length has arrived on the data connection.
    Send(usize),
    /// One of the client's connections has ended.
    Disconnected,
}

/// One of perftest's clients, and the server's RDMA objects for it.
struct Client {
    served: Served,
    /// Our IP address at which the client connected.
    here: IpAddr,
    domain: ProtectionDomain,
    /// Completion queue of the control connection and of the data connection.
    queue: CompletionQueue,
    control: QueuePair,
    data: Option<QueuePair>,
    /// Memory for the received control message.
    message: MemoryRegion,
    /// Memory that the client's test reads and writes.
    memory: MemoryRegion,
    record: [u8; RECORD],
}

impl Client {
    fn new(device: &Device, peer: SocketAddr, here: IpAddr, largest: usize) -> Result<Self, Fail> {
        let failed = "cannot make what a client needs";
        let domain = device.protection_domain().named(failed)?;
        let queue = device.completion_queue(256).named(failed)?;
        let control = domain.queue_pair(&PairOptions::new(&queue)).named(failed)?;
        let message = domain.register(RECORD, Access::LOCAL).named(failed)?;
        let memory = domain.register(largest.max(CYCLE), Access::ALL).named(failed)?;
        let record = record(0, 0, memory.remote(0), here);
        let served = Served { peer, sends: 0, figures: Vec::new() };
        Ok(Self { served, here, domain, queue, control, data: None, message, memory, record })
    }

    /// Accepts the control connection, and answers its messages until the client has opened the
    /// data connection.
    fn start(&mut self, listener: &Listener, request: ConnectRequest) -> Result<(), Fail> {
        receive(&self.control, &self.message)?;
        connect(request, &self.control)?;
        while self.data.is_none() {
            let Event::Control(message) = self.hear(PATIENCE)? else {
                return Err(Fail::new("the client has disconnected before its test"));
            };
            let record = message.len() == RECORD;
            self.answer(message)?;
            if record {
                self.data = Some(self.accept_data(listener)?);
            }
        }
        Ok(())
    }

    /// Serves the client's test until the client disconnects. Returns the result.
    fn serve(mut self) -> Result<Served, Fail> {
        loop {
            match (self.hear(UNLIMITED)?, &self.data) {
                (Event::Control(message), _) => {
                    keep(&mut self.served.figures, &message);
                    self.answer(message)?;
                }
                (Event::Send(octets), Some(data)) => {
                    receive(data, &self.memory)?;
                    let back = SendRequest::new(0, SendOp::Send, self.memory.sge(0..octets));
                    data.post_send(back.unsignaled()).named("cannot send back")?;
                    self.served.sends += 1;
                }
                (Event::Disconnected | Event::Send(_), data) => {
                    // The client closes the data connection first. An error of the control
                    // connection after that does not matter.
                    let gone = data.as_ref().is_none_or(|data| data.disconnected(PATIENCE));
                    let _ = gone && self.control.disconnected(PATIENCE);
                    return Ok(self.served);
                }
            }
        }
    }

    /// Waits for the next event on the client's connections.
    fn hear(&self, patience: Option<Duration>) -> Result<Event, Fail> {
        let Some(completion) = self.queue.wait(patience) else {
            let fail = Fail::new("the client says nothing");
            return Err(fail.next(
                "start it with -R, and without -q and -b: they need more than this server has",
            ));
        };
        let control = completion.qp == self.control.number();
        match completion.result() {
            Ok(completion) if control => {
                let mut message = vec![0; completion.len as usize];
                self.message.read(0, &mut message).named("cannot read a message")?;
                receive(&self.control, &self.message)?;
                Ok(Event::Control(message))
            }
            Ok(completion) => Ok(Event::Send(completion.len as usize)),
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
                    _ => Ok(Event::Disconnected),
                }
            }
        }
    }

    /// Answers a control message with one of the same length.
    fn answer(&self, mut message: Vec<u8>) -> Result<(), Fail> {
        match message.len() {
            VERSION => message.copy_from_slice(OUR_VERSION),
            RECORD => message.copy_from_slice(&self.record),
            _ => {}
        }
        let answer = SendRequest::new(0, SendOp::Send, Data::Inline(message)).unsignaled();
        self.control.post_send(answer).named("cannot answer")
    }

    /// Accepts the data connection. Refuses a peer at another address.
    fn accept_data(&mut self, listener: &Listener) -> Result<QueuePair, Fail> {
        loop {
            let request = accept::next(listener, PATIENCE);
            let request =
                request.ok_or_else(|| Fail::new("the client makes no data connection"))?;
            let peer = request.peer();
            if peer.ip() != self.served.peer.ip() {
                accept::skip(peer, Fail::new("another client is being served"));
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
                Err(fail) => accept::skip(peer, fail),
            }
        }
    }
}

/// Accepts a connection with the depths of Reads that the client requests.
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

/// Keeps a figure of the result if `message` has the length of one. A new result replaces the
/// previous one.
fn keep(figures: &mut Vec<u64>, message: &[u8]) {
    if let Ok(figure) = <[u8; FIGURE]>::try_from(message) {
        if figures.len() == FIGURES {
            figures.clear();
        }
        figures.push(u64::from_be_bytes(figure));
    }
}

/// Makes the record that describes our memory to the client. All numbers are big endian. The bytes
/// at 20 are unused; those at 0 have a meaning for InfiniBand only.
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
