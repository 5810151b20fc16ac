//! Virtual time, the stack, and calls that block.
//!
//! packetdrill has two threads: one runs the script, the other makes the calls that the script
//! expects to block. A call that has to wait is left in [`World::blocked`]; the thread that makes
//! time advance completes it at the virtual time at which it can go on.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{ThreadId, current};

use sprat_proto::net::tcp::{TcpHost, TcpId};
use sprat_proto::net::{Ipv4Assignment, Stack, StackOptions};
use sprat_proto::{Device as _, Instant, Rng};

use crate::attempt::Call;
use crate::sockets::{Kind, Reply, Socket, errno};
use crate::wire::{PEER, Wire};
use crate::{options, sysctl};

/// The addresses of this end and of the peer that `interop/packetdrill/run` gives packetdrill.
const LOCAL4: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
const PEER4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LOCAL6: Ipv6Addr = Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1);
const PEER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// The MTU of packetdrill's device.
const MTU: usize = 1500;
/// The time at which a script starts.
const START_NS: u64 = 1_000_000_000_000;
/// The time for which packetdrill waits for a packet at most.
const PATIENCE_NS: u64 = 600_000_000_000;
/// The time that `gettimeofday` takes: packetdrill calls it until a time has come.
const LOOK_NS: u64 = 1000;
/// The most connections of the stack.
const CONNECTIONS: usize = 1000;

static WORLD: Mutex<Option<World>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The time at which this thread's last call that blocked has returned, until `gettimeofday`
    /// tells it: time may have advanced since.
    static RETURNED: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// The stack, its sockets and its time.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Instant,
    sysctl: Option<PathBuf>,
    stack: Option<Box<Stack>>,
    wire: Wire,
    pub(crate) sockets: BTreeMap<i32, Socket>,
    /// Connections that their programs have closed.
    orphans: Vec<TcpId>,
    /// The thread that runs the script.
    main: ThreadId,
    blocked: Option<Call>,
    finished: Option<(Result<Reply, i32>, Instant)>,
}

/// Starts a world. `sysctl` is the file of the script's system controls.
pub(crate) fn start(sysctl: Option<PathBuf>) {
    *lock() = Some(World {
        now: Instant::from_ns(START_NS),
        stack: None,
        wire: Wire::new(sysctl::mtu(sysctl.as_deref()).unwrap_or(MTU)),
        sysctl,
        sockets: BTreeMap::new(),
        orphans: Vec::new(),
        main: current().id(),
        blocked: None,
        finished: None,
    });
}

fn lock() -> MutexGuard<'static, Option<World>> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` with the world.
///
/// # Panics
/// If no world was started.
pub(crate) fn with<T>(body: impl FnOnce(&mut World) -> T) -> T {
    body(lock().as_mut().expect("packetdrill_interface_init comes first"))
}

/// Makes a socket call, and waits until it is done.
pub(crate) fn call(mut call: Call) -> Result<Reply, i32> {
    let mut guard = lock();
    let world = guard.as_mut().expect("packetdrill_interface_init comes first");
    world.turn();
    call.start(world.now);
    if let Some(reply) = world.attempt(&mut call) {
        world.turn();
        return reply;
    }
    if current().id() != world.main {
        world.blocked = Some(call);
        world.turn();
        loop {
            let world = guard.as_mut().expect("a world does not end");
            if let Some((reply, at)) = world.finished.take() {
                RETURNED.set(Some(at));
                return reply;
            }
            guard = CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
    // The thread of the script waits: nothing else makes time advance.
    let limit = world.now.after(PATIENCE_NS);
    loop {
        let next = world.deadline().min(call.until());
        if next > limit {
            note("a call would wait for ever");
            return Err(libc::EDEADLK);
        }
        world.advance(next);
        if let Some(reply) = world.attempt(&mut call) {
            world.turn();
            return reply;
        }
    }
}

/// Tells packetdrill's user why a call fails.
#[expect(clippy::print_stderr, reason = "packetdrill's own reports go there")]
pub(crate) fn note(text: &str) {
    eprintln!("sprat: {text}");
}

/// Returns the time for `gettimeofday`.
pub(crate) fn look() -> Instant {
    if let Some(at) = RETURNED.take() {
        return at;
    }
    with(|world| {
        world.advance(world.now.after(LOOK_NS));
        world.now
    })
}

impl World {
    /// Returns the stack with its options, which are those at the time of the first use.
    pub(crate) fn stack(&mut self) -> &mut Stack {
        self.stack.get_or_insert_with(|| {
            let addresses = StackOptions {
                ipv4: Ipv4Assignment::Static { addr: LOCAL4, prefix: 0 },
                ipv6: Some((LOCAL6, 0)),
                ..StackOptions::default()
            };
            let mut stack = Stack::new(addresses, self.wire.info(), Rng::seeded(1));
            stack.enable_tcp(sysctl::config(self.sysctl.as_deref()), CONNECTIONS);
            stack.tick(self.now);
            for peer in [IpAddr::V4(PEER4), IpAddr::V6(PEER6)] {
                stack.set_neighbour(self.now, peer, PEER);
            }
            Box::new(stack)
        })
    }

    /// Returns the stack's TCP.
    pub(crate) fn tcp(&mut self) -> &mut TcpHost {
        self.stack().tcp().expect("the stack has TCP")
    }

    /// Listens at a port.
    pub(crate) fn listen(&mut self, port: u16, backlog: u32) -> Result<(), i32> {
        let ecn = sysctl::answers_ecn(self.sysctl.as_deref());
        let tcp = self.tcp();
        tcp.config_mut().ecn = ecn;
        tcp.listen(port, backlog).map(drop).map_err(|_| libc::EADDRINUSE)
    }

    /// Takes an IP packet from packetdrill.
    pub(crate) fn inject(&mut self, packet: &[u8]) {
        self.wire.inject(packet);
        self.turn();
    }

    /// Returns the next packet that the stack sends, and its time. Time advances until there is
    /// one.
    pub(crate) fn next_packet(&mut self) -> Option<(Instant, Vec<u8>)> {
        let limit = self.now.after(PATIENCE_NS);
        loop {
            self.turn();
            if let Some(sent) = self.wire.sent.pop_front() {
                return Some(sent);
            }
            let next = self.deadline();
            if next > limit {
                return None;
            }
            self.advance(next);
        }
    }

    /// Returns the time at which something happens next.
    fn deadline(&self) -> Instant {
        let stack = self.stack.as_ref().and_then(|stack| stack.deadline());
        let blocked = self.blocked.as_ref().map(Call::until);
        stack.unwrap_or(Instant::NEVER).min(blocked.unwrap_or(Instant::NEVER))
    }

    /// Lets time advance up to `to`.
    pub(crate) fn advance(&mut self, to: Instant) {
        self.turn();
        loop {
            let next = self.deadline();
            if next > to {
                break;
            }
            self.now = self.now.max(next);
            self.turn();
            if self.deadline() <= self.now {
                // A deadline that does not move would make time stand still.
                self.now = self.now.after(1);
            }
        }
        self.now = self.now.max(to);
        self.turn();
    }

    /// Makes turns of the stack, and of the call that waits, until nothing changes.
    pub(crate) fn turn(&mut self) {
        let now = self.now;
        loop {
            self.stack();
            let Self { stack: Some(stack), wire, .. } = self else { return };
            wire.now = now;
            while !wire.is_idle() {
                stack.input(now, wire);
                stack.output(now, wire);
            }
            if stack.deadline().is_some_and(|at| at <= now) {
                stack.tick(now);
            }
            stack.output(now, wire);
            self.take_events();
            let Some(mut call) = self.blocked.take() else { break };
            let before = call.progress();
            if let Some(reply) = self.attempt(&mut call) {
                self.finished = Some((reply, now));
                CHANGED.notify_all();
                continue;
            }
            let has_advanced = call.progress() > before;
            self.blocked = Some(call);
            if !has_advanced {
                break;
            }
        }
        let Self { stack: Some(stack), wire, .. } = self else { return };
        stack.output(now, wire);
    }

    /// Tells sockets what has happened to their connections.
    fn take_events(&mut self) {
        while let Some((id, changes)) = self.tcp().event() {
            let Some(flow) = self.tcp().flow(id) else { continue };
            if self.orphans.contains(&id) {
                if changes.ended {
                    self.orphans.retain(|orphan| *orphan != id);
                    self.tcp().release(id);
                }
                continue;
            }
            let error = self.tcp().error(id);
            if let Some(socket) = self.sockets.values_mut().find(|s| s.id() == Some(id)) {
                socket.changes += 1;
                if changes.ended {
                    socket.error = error.map(errno).or(socket.error);
                }
                continue;
            }
            let port = flow.local.port();
            let listener = self.sockets.values_mut().find(|socket| socket.port == port);
            match listener.map(|socket| (&mut socket.kind, &mut socket.changes)) {
                Some((Kind::Listener(queue), count)) => {
                    if !queue.contains(&id) {
                        queue.push_back(id);
                    }
                    *count += 1;
                }
                _ => self.tcp().abort(id),
            }
        }
    }

    /// Makes a socket, and returns its number.
    pub(crate) fn open(&mut self, kind: Kind, is_v6: bool) -> Result<i32, i32> {
        use std::os::fd::AsRawFd as _;
        let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        let file = file.map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        let fd = file.as_raw_fd();
        self.sockets.insert(fd, Socket::new(kind, is_v6, file));
        Ok(fd)
    }

    /// Closes a socket.
    pub(crate) fn close(&mut self, fd: i32) -> Result<(), i32> {
        let socket = self.sockets.remove(&fd).ok_or(libc::EBADF)?;
        match socket.kind {
            Kind::Connection(id, _) => {
                let tcp = self.tcp();
                // RFC 9293 3.6.1: data that no program will read is lost. A reset tells the peer.
                let is_lost = tcp.connection(id).is_some_and(|c| c.readable() > 0);
                if socket.resets || is_lost {
                    tcp.abort(id);
                } else {
                    tcp.close(id);
                    tcp.release(id);
                }
            }
            Kind::Listener(queue) => {
                self.tcp().unlisten(socket.port);
                queue.into_iter().for_each(|id| self.tcp().abort(id));
            }
            Kind::New | Kind::Set(_) => {}
        }
        self.turn();
        Ok(())
    }

    /// Ends both directions of a socket's connection, or one of them.
    pub(crate) fn shut_down(&mut self, fd: i32, how: i32) -> Result<(), i32> {
        let socket = self.sockets.get_mut(&fd).ok_or(libc::EBADF)?;
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Err(libc::EINVAL);
        }
        let Kind::Connection(id, _) = socket.kind else { return Err(libc::ENOTCONN) };
        socket.is_read_shut |= how != libc::SHUT_WR;
        socket.is_write_shut |= how != libc::SHUT_RD;
        socket.changes += 1;
        if how != libc::SHUT_RD {
            self.tcp().close(id);
        }
        self.turn();
        Ok(())
    }

    /// Sets a socket option.
    pub(crate) fn set_option(&mut self, fd: i32, at: (i32, i32), value: &[u8]) -> Result<(), i32> {
        options::set(self, fd, at, value)?;
        self.turn();
        Ok(())
    }
}
