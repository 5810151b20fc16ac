//! `sprat rdma rping`: rping's exchange, byte by byte (docs/interop.md, "rping's exchange").
//!
//! ```text
//!   client                          server
//!     Send: where my source is ──►
//!            ◄── Read ── Response ──►
//!                          ◄── Send: go ahead
//!     Send: where my sink is  ───►
//!                          ◄── Write, then Send: go ahead
//! ```
//!
//! Each side has exactly one receive posted at any time.

use std::net::SocketAddr;
use std::time::Duration;

use sprat::verbs::{
    AcceptOptions, Access, Completed, Completion, CompletionQueue, ConnectError, ConnectOptions,
    ConnectRequest, Connection, Device, Listener, MemoryRegion, PairOptions, QueuePair,
    RecvRequest, Remote, SendOp, SendRequest, Stag,
};
use sprat_sys::clock::Clock;

use super::args::Ping;
use super::{accept, connect, device_for};
use crate::fail::{Fail, Named};
use crate::out;
use crate::perf::measure::median;
use crate::process;

/// Time that the peer may take for one step of rping's exchange.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));
/// Bytes of every Send: an address, a steering tag, a size.
const MESSAGE: usize = 16;
/// Offset of the received message in the registered memory. The message to send lies before it.
const RECEIVED: usize = MESSAGE;

/// Runs `sprat rdma rping`.
pub fn run(args: &Ping) -> Result<(), Fail> {
    let at = SocketAddr::new(args.address, args.port);
    let device = device_for(&args.wire, at)?;
    if args.client { client(args, &device, at) } else { serve(args, &device, at) }
}

/// The RDMA objects of one side of rping's exchange.
struct Side {
    queue: CompletionQueue,
    pair: QueuePair,
    /// Memory for the message to send and for the received one.
    messages: MemoryRegion,
    /// A receive that completed before the completion that the side waited for.
    early: Option<Completion>,
}

impl Side {
    fn new(device: &Device) -> Result<(Self, sprat::verbs::ProtectionDomain), Fail> {
        let failed = "cannot make a queue pair";
        let domain = device.protection_domain().named(failed)?;
        let queue = device.completion_queue(64).named(failed)?;
        let pair = domain.queue_pair(&PairOptions::new(&queue)).named(failed)?;
        let messages = domain.register(2 * MESSAGE, Access::LOCAL).named(failed)?;
        let side = Self { queue, pair, messages, early: None };
        side.post_receive()?;
        Ok((side, domain))
    }

    /// Posts the one receive that a side of rping's exchange has.
    fn post_receive(&self) -> Result<(), Fail> {
        let into = self.messages.sge(RECEIVED..RECEIVED + MESSAGE);
        self.pair.post_recv(RecvRequest::new(0, into)).named("cannot post a receive")
    }

    fn completion(&self) -> Result<Completion, Fail> {
        let Some(completion) = self.queue.wait(PATIENCE) else {
            return Err(Fail::new("the peer does not answer")
                .next("see whether it speaks rping's exchange"));
        };
        completion
            .result()
            .map_err(|status| self.why(&format!("{} failed: {status}", completion.completed)))
    }

    /// Returns a failure with the text `what`. It adds the cause of the connection's end, if that
    /// is known.
    fn why(&self, what: &str) -> Fail {
        match self.pair.connection() {
            Connection::Not(ConnectError::Disconnected { cause: Some(cause), ours }) => {
                let whom = if ours { "we" } else { "the peer" };
                Fail::new(format!("{what}; {whom} ended the connection: {cause}"))
            }
            Connection::Not(error) => Fail::new(format!("{what}; {error}")),
            _ => Fail::new(what),
        }
    }

    /// Waits for the completion of a request of kind `what`.
    fn done(&mut self, what: Completed) -> Result<(), Fail> {
        loop {
            let completion = self.completion()?;
            if completion.completed == what {
                return Ok(());
            }
            // The answer to a Send may complete before the Send does.
            if completion.completed == Completed::Recv {
                self.early = Some(completion);
            }
        }
    }

    /// Sends a message of rping's exchange and waits for its completion.
    fn send(&mut self, message: &[u8; MESSAGE]) -> Result<(), Fail> {
        self.messages.write(0, message).named("cannot write a message")?;
        let send = SendRequest::new(1, SendOp::Send, self.messages.sge(0..MESSAGE));
        self.pair.post_send(send).map_err(|e| self.why(&format!("cannot send: {e}")))?;
        self.done(Completed::Send)
    }

    /// Waits for the peer's next message, posts the next receive, and returns the message.
    fn receive(&mut self) -> Result<[u8; MESSAGE], Fail> {
        let completion = match self.early.take() {
            Some(completion) => completion,
            None => self.completion()?,
        };
        if completion.completed != Completed::Recv || completion.len as usize != MESSAGE {
            return Err(Fail::new(format!(
                "the peer sent {} octets where {MESSAGE} are due",
                completion.len
            )));
        }
        let mut message = [0; MESSAGE];
        self.messages.read(RECEIVED, &mut message).named("cannot read a message")?;
        self.post_receive()?;
        Ok(message)
    }
}

fn write_message(at: Remote, size: u32) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..8].copy_from_slice(&at.addr.to_be_bytes());
    message[8..12].copy_from_slice(&at.stag.0.to_be_bytes());
    message[12..].copy_from_slice(&size.to_be_bytes());
    message
}

fn read_message(message: &[u8; MESSAGE]) -> (Remote, u32) {
    let [addr, rest] =
        [0, 8].map(|at| u64::from_be_bytes(message[at..at + 8].try_into().unwrap_or_default()));
    (Remote { addr, stag: Stag((rest >> 32) as u32) }, rest as u32)
}

/// Returns rping's data of round `n`: the round's number, letters that begin with another one in
/// each round, and a zero at the end.
fn text(n: u64, size: usize) -> Vec<u8> {
    const FIRST: u8 = b'A';
    const LETTERS: u64 = (b'z' - FIRST + 1) as u64;
    let mut text = format!("rdma-ping-{n}: ").into_bytes();
    let letters = (n % LETTERS..).map(|i| FIRST + (i % LETTERS) as u8);
    text.extend(letters.take(size.saturating_sub(1 + text.len())));
    text.truncate(size - 1);
    text.push(0);
    text
}

fn client(args: &Ping, device: &Device, at: SocketAddr) -> Result<(), Fail> {
    let (mut side, domain) = Side::new(device)?;
    let size = args.size as usize;
    let readable = Access { remote_read: true, ..Access::LOCAL };
    let source = domain.register(size, readable).named("cannot register memory")?;
    let writable = Access { remote_write: true, ..Access::LOCAL };
    let sink = domain.register(size, writable).named("cannot register memory")?;
    let options = ConnectOptions {
        ird: 1,
        ord: 1,
        revision: Some(args.revision),
        peer_to_peer: args.rtr.map(Into::into),
        first_fpdu_delay_ns: args.hold_ms * 1_000_000,
        ..ConnectOptions::default()
    };
    connect(&side.pair, at, options)?;
    let (clock, mut times) = (Clock::new(), Vec::new());
    let mut n = 0;
    while args.count == 0 || n < args.count {
        let begin = clock.now();
        let sent = text(n, size);
        source.write(0, &sent).named("cannot write the ping")?;
        round(&mut side, source.remote(0), sink.remote(0), args.size)?;
        let mut came = vec![0; size];
        sink.read(0, &mut came).named("cannot read the pong")?;
        if came != sent {
            return Err(Fail::new(format!("in round {n} the data came back changed")));
        }
        times.push(clock.now().since(begin) as f64 / 1e3);
        show(args.verbose, "pong", &came)?;
        n += 1;
    }
    let _ = side.pair.disconnect();
    side.pair.disconnected(PATIENCE);
    let us =
        median(times).map_or_else(String::new, |us| format!(", {} each (median)", out::micros(us)));
    out::print(format!("{n} rounds of {size} octets with {at}{us}\n"))
}

/// Runs one round of rping's exchange, as the client.
fn round(side: &mut Side, source: Remote, sink: Remote, size: u32) -> Result<(), Fail> {
    for memory in [source, sink] {
        side.send(&write_message(memory, size))?;
        side.receive()?;
    }
    Ok(())
}

fn serve(args: &Ping, device: &Device, at: SocketAddr) -> Result<(), Fail> {
    let listener = device.listen(at).named(format_args!("cannot listen at {at}"))?;
    process::print_ready(&listener.local_addr().to_string())?;
    loop {
        let (peer, rounds) = serve_next(args, device, &listener)?;
        out::print(format!("{rounds} rounds with {peer}\n"))?;
        if !args.persistent {
            return Ok(());
        }
    }
}

/// Serves the next client that completes its first round. Returns its address and its number of
/// rounds.
fn serve_next(
    args: &Ping,
    device: &Device,
    listener: &Listener,
) -> Result<(SocketAddr, u64), Fail> {
    loop {
        let Some(request) = accept::next(listener, None) else { continue };
        let peer = request.peer();
        let (mut side, domain) = Side::new(device)?;
        let buffer =
            domain.register(args.size as usize, Access::LOCAL).named("cannot register memory")?;
        let mut rounds = 0;
        match serve_one(args, request, &mut side, &buffer, &mut rounds) {
            Ok(()) if rounds > 0 => return Ok((peer, rounds)),
            Ok(()) => {
                accept::skip(peer, Fail::new("the client disconnected before its first round"))
            }
            Err(fail) if rounds == 0 || args.persistent => accept::skip(peer, fail),
            Err(fail) => return Err(fail.at(peer)),
        }
    }
}

/// Serves a client until it disconnects, and counts its rounds.
fn serve_one(
    args: &Ping,
    request: ConnectRequest,
    side: &mut Side,
    buffer: &MemoryRegion,
    rounds: &mut u64,
) -> Result<(), Fail> {
    let accept = AcceptOptions { ird: 1, ord: 1, ..AcceptOptions::default() };
    request.accept(&side.pair, accept).named("cannot accept")?;
    side.pair.connected(PATIENCE).named("the client did not start up")?;
    loop {
        let Some(message) = next_message(side)? else { return Ok(()) };
        let (source, size) = read_message(&message);
        if size == 0 || size as usize > buffer.len() {
            let _ = side.pair.disconnect();
            return Err(Fail::new(format!(
                "the client's ping has {size} octets, the buffer {}",
                buffer.len()
            ))
            .next("start the server with a larger -S"));
        }
        post(side, SendOp::Read(source), buffer, size as usize)?;
        side.done(Completed::Read)?;
        let mut ping = vec![0; size as usize];
        buffer.read(0, &mut ping).named("cannot read the ping")?;
        show(args.verbose, "ping", &ping)?;
        side.send(&[0; MESSAGE])?;
        let (sink, _) = read_message(&side.receive()?);
        let len = ping.iter().position(|octet| *octet == 0).map_or(ping.len(), |zero| zero + 1);
        post(side, SendOp::Write(sink), buffer, len)?;
        side.done(Completed::Write)?;
        side.send(&[0; MESSAGE])?;
        *rounds += 1;
    }
}

/// Waits for the client's next message. Returns `None` if the client has disconnected instead.
fn next_message(side: &mut Side) -> Result<Option<[u8; MESSAGE]>, Fail> {
    match side.receive() {
        Ok(message) => Ok(Some(message)),
        Err(fail) => match side.pair.connection() {
            Connection::Not(ConnectError::Disconnected { cause: None, .. }) => Ok(None),
            _ => Err(fail),
        },
    }
}

fn post(side: &Side, op: SendOp, buffer: &MemoryRegion, len: usize) -> Result<(), Fail> {
    let posted = side.pair.post_send(SendRequest::new(2, op, buffer.sge(0..len)));
    posted.map_err(|e| side.why(&format!("cannot post: {e}")))
}

fn show(verbose: bool, what: &str, data: &[u8]) -> Result<(), Fail> {
    if !verbose {
        return Ok(());
    }
    let end = data.iter().position(|octet| *octet == 0).unwrap_or(data.len());
    out::print(format!("{what} data: {}\n", String::from_utf8_lossy(&data[..end])))
}

#[cfg(test)]
mod tests {
    use super::super::args::{Switch, Wire};
    use super::*;

    /// Serves a client after two connections that are no clients: one that only probes the port,
    /// and one that speaks HTTP. Such connections once ended the server.
    #[test]
    fn a_server_of_one_client_skips_connections_that_are_no_client() {
        let args = |client: bool| Ping {
            server: !client,
            client,
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            port: 0,
            count: 2,
            size: 64,
            verbose: false,
            persistent: false,
            wire: Wire { crc: Switch::On, markers: false, insecure_network: false },
            revision: 2,
            rtr: None,
            hold_ms: 50,
        };
        let device = Device::open(args(false).wire.options()).expect("a device");
        let listener = device.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let at = listener.local_addr();
        let server = std::thread::spawn(move || serve_next(&args(false), &device, &listener));
        accept::connect_others(at);
        let device = Device::open(args(true).wire.options()).expect("a device");
        let (side, _) = Side::new(&device).expect("a queue pair");
        side.pair.connect(at, ConnectOptions::default(), PATIENCE).expect("connects");
        side.pair.disconnect().expect("leaves before its first round");
        client(&args(true), &device, at).expect("two rounds");
        let (_, rounds) = server.join().expect("does not panic").expect("serves");
        assert_eq!(rounds, 2);
    }

    #[test]
    fn the_text_is_rpings() {
        assert_eq!(text(0, 23), b"rdma-ping-0: ABCDEFGHI\0");
        assert_eq!(text(57, 20), b"rdma-ping-57: zABCD\0");
        assert_eq!(text(58, 20), b"rdma-ping-58: ABCDE\0");
        assert_eq!(text(1, 200).len(), 200);
        assert_eq!(text(1_000_000_000_000, 23).len(), 23);
    }

    #[test]
    fn a_message_is_an_address_a_tag_and_a_size() {
        let at = Remote { stag: Stag(0xd0ee_8500), addr: 0x561f_2f67_d370 };
        let message = write_message(at, 64);
        assert_eq!(
            message,
            [0, 0, 0x56, 0x1f, 0x2f, 0x67, 0xd3, 0x70, 0xd0, 0xee, 0x85, 0, 0, 0, 0, 64]
        );
        assert_eq!(read_message(&message), (at, 64));
    }
}
