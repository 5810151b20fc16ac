//! The test `tcp`: our own TCP at its interface by events, between two processes over a packet
//! device. Each figure takes turns with that of the raw device and that of polling kernel TCP.

use std::hint::black_box;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat::locator::Locator;
use sprat::tcp::Options;
use sprat::tcp::native::{Interface, TcpConfig, TcpId};
use sprat_proto::Instant;
use sprat_sys::clock::Clock;
use sprat_sys::cpu::{Idle, Rest};
use sprat_sys::netns::Wire;

use super::bench::Bench;
use super::lanes::{Exchange, flow, times};
use super::measure::Lane;
use super::net;
use crate::baseline::{self, Flow, Limits};
use crate::fail::Fail;

/// The protocols of transports on our own TCP begin so.
const PROTOCOL: &str = "utcp+";
/// The port of the server.
const PORT: u16 = 7;
/// The bytes of a long message.
const LONG: usize = 1_000_000;
/// The bytes that the sender of a stream writes at a time.
const CHUNK: usize = 256 << 10;
/// The time that the client gives the server to open its device, and to answer.
const PATIENCE_NS: u64 = 5_000_000_000;
/// The time between two attempts to open a device.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// The longest sleep of an end that waits for frames.
const MAX_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Runs the test `tcp` over all transports on our own TCP.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let own: Vec<String> =
        bench.transports.iter().filter(|t| t.starts_with(PROTOCOL)).cloned().collect();
    if own.is_empty() {
        return Err(Fail::usage("none of the transports is on our own TCP")
            .next("name some: --transport utcp+shmnet,utcp+packet"));
    }
    bench.report.begin("tcp: our own TCP by events: an echo, and a long message one way");
    for transport in own {
        let world = World::of(bench, &transport);
        for size in bench.sizes(&[64, 1000]) {
            let both = Exchange::both(size);
            let product = times(both, |limits| world.echo(size, limits));
            let compared = bench.compare(&transport, both, product)?;
            bench.report.row(compared.row("tcp.echo", &transport, size))?;
        }
        let long = Exchange { request: 64, reply: LONG };
        let product: Lane<'_> = flow(long, |limits| world.stream(limits));
        let compared = bench.compare(&transport, long, product)?;
        bench.report.row(compared.row("tcp.stream", &transport, LONG))?;
    }
    bench.report.end()
}

/// The locators of both ends, and the network that they are in, if they need one.
struct World {
    server: String,
    client: Option<Locator>,
    wire: Option<Arc<Wire>>,
}

impl World {
    /// Returns the ends of `transport`.
    fn of(bench: &Bench, transport: &str) -> Self {
        if let Some(server) = bench.local.memory_locator("tcp", transport, PORT) {
            return Self { server, client: None, wire: None };
        }
        let wire = bench.local.wire();
        let server = net::at(transport, 1, PORT);
        Self { server, client: net::own(transport), wire }
    }

    /// Measures round trips of `size` bytes.
    fn echo(&self, size: usize, limits: Limits) -> io::Result<Vec<u32>> {
        let answer = || {
            let (mut end, mut bytes) = (self.serve()?, Vec::new());
            loop {
                end.receive(|data| bytes.extend_from_slice(data))?;
                if bytes.len() == size {
                    end.send(&bytes)?;
                    bytes.clear();
                }
            }
        };
        let ask = || {
            let (mut end, bytes) = (self.connect()?, vec![1; size]);
            baseline::sample(limits, || {
                end.send(&bytes)?;
                let mut left = size;
                while left > 0 {
                    end.receive(|data| left = left.saturating_sub(data.len()))?;
                }
                Ok(())
            })
        };
        baseline::between(answer, ask)
    }

    /// Measures a stream one way at full rate. The receiver copies it to memory of its own, as the
    /// kernel does for a socket.
    fn stream(&self, limits: Limits) -> io::Result<Flow> {
        let send = || {
            let (mut end, bytes) = (self.serve()?, vec![1; CHUNK]);
            loop {
                end.send(&bytes)?;
            }
        };
        let receive = || {
            let mut end = self.connect()?;
            end.send(&[0; 8])?;
            let (start, mut flow) = (end.clock.now(), Flow { bytes: 0, ns: 0 });
            let mut own = Vec::with_capacity(LONG);
            for _ in 0..limits.count {
                end.receive(|data| {
                    if own.len() + data.len() > LONG {
                        black_box(&own);
                        own.clear();
                    }
                    own.extend_from_slice(data);
                    flow.bytes += data.len() as u64;
                })?;
                flow.ns = end.clock.now().since(start);
                if flow.ns >= limits.time_ns {
                    break;
                }
            }
            Ok(flow)
        };
        baseline::between(send, receive)
    }

    fn options(&self) -> Options {
        let config = TcpConfig { no_delay: true, ..TcpConfig::default() };
        Options::default().config(config).local(self.client.clone())
    }

    /// Opens the server's end, and waits for its client.
    fn serve(&self) -> io::Result<End> {
        let _inside = self.wire.as_ref().map(|wire| wire.end(1).enter()).transpose()?;
        let mut end = End::over(Interface::open(&self.server, &self.options())?);
        end.tcp.host().listen(PORT, 1).map_err(io::Error::other)?;
        end.until_open(None)?;
        Ok(end)
    }

    /// Opens the client's end, and connects to the server when that is ready.
    fn connect(&self) -> io::Result<End> {
        let _inside = self.wire.as_ref().map(|wire| wire.end(0).enter()).transpose()?;
        let to: Locator = self.server.parse().map_err(io::Error::other)?;
        let peer = to.option("host").and_then(|host| host.parse().ok()).ok_or_else(ended)?;
        let clock = Clock::new();
        let give_up = clock.now().after(PATIENCE_NS);
        let tcp = loop {
            match Interface::towards(&self.server, &self.options()) {
                Ok(tcp) => break tcp,
                Err(error) if clock.now() > give_up => return Err(error),
                // The server is not yet there.
                Err(_) => {
                    poll(&mut [], Some(&AGAIN))?;
                }
            }
        };
        let mut end = End::over(tcp);
        while end.tcp.connect(SocketAddr::new(peer, PORT)).is_err() {
            if clock.now() > give_up {
                return Err(ended());
            }
            end.keep()?;
        }
        end.until_open(Some(give_up))?;
        Ok(end)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.wire.is_none() {
            net::remove_name(&self.server);
        }
    }
}

/// One end of the connection.
struct End {
    tcp: Interface,
    id: Option<TcpId>,
    /// Received data that [`End::receive`] returns first.
    early: Vec<u8>,
    idle: Idle,
    clock: Clock,
}

impl End {
    fn over(tcp: Interface) -> Self {
        Self { tcp, id: None, early: Vec::new(), idle: Idle::new(), clock: Clock::new() }
    }

    /// Waits until the connection is open.
    fn until_open(&mut self, until: Option<Instant>) -> io::Result<()> {
        while self.id.is_none() {
            if until.is_some_and(|until| self.clock.now() > until) {
                return Err(ended());
            }
            self.keep()?;
        }
        Ok(())
    }

    /// Writes `bytes` as there is room for them, and sends them.
    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let id = self.id.ok_or_else(ended)?;
        loop {
            let count = self.tcp.host().write(id, bytes);
            bytes = &bytes[count..];
            self.tcp.output();
            if bytes.is_empty() {
                return Ok(());
            }
            self.keep()?;
        }
    }

    /// Waits until data has come. Calls `each` with it.
    fn receive(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        if !self.early.is_empty() {
            each(&std::mem::take(&mut self.early));
            return Ok(());
        }
        while !self.turn(&mut each)? {
            if self.idle.rest(true, || self.clock.now()) == Rest::Sleep
                && self.tcp.prepare_to_sleep().is_some()
            {
                let frames = self.tcp.descriptor();
                let mut frames = [PollFd::from_borrowed_fd(frames, PollFlags::IN)];
                poll(&mut frames, Some(&MAX_SLEEP))?;
            }
        }
        Ok(())
    }

    /// Handles frames once, and keeps their data for [`End::receive`]: a request may come in the
    /// burst that opens the connection.
    fn keep(&mut self) -> io::Result<()> {
        let mut early = std::mem::take(&mut self.early);
        let handled = self.turn(&mut |data| early.extend_from_slice(data));
        self.early = early;
        handled.map(|_| ())
    }

    /// Handles frames once. Calls `each` with their data. Returns false if they have none.
    fn turn(&mut self, each: &mut impl FnMut(&[u8])) -> io::Result<bool> {
        let has_input = self.tcp.input();
        let mut has_data = false;
        for piece in 0..self.tcp.lent_pieces() {
            let data = self.tcp.lent(piece).1;
            each(data);
            let count = data.len();
            self.tcp.take(piece, count);
            has_data = true;
        }
        while let Some((id, changes)) = self.tcp.event() {
            if changes.ended {
                return Err(ended());
            }
            if changes.opened {
                self.tcp.host().lend(id, true);
                self.id = Some(id);
            }
            // What came before the connection lent its data.
            let mut bytes = [0; 4096];
            while let count @ 1.. = self.tcp.host().read(id, &mut bytes) {
                each(&bytes[..count]);
                has_data = true;
            }
        }
        if has_input {
            self.tcp.output();
            self.idle.worked();
        }
        Ok(has_data)
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection of the measurement has ended")
}
