//! Baselines of the kernel's network: UDP and TCP, over loopback or over a wire between two
//! namespaces, polling and blocking.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Duration;

use super::{Flow, Limits, Waiting, between, ended, sample};
use sprat_sys::clock::Clock;
use sprat_sys::cpu::Idle;
use sprat_sys::netns::Wire;
use sprat_sys::{datagram, socket};

/// The kernel's UDP and TCP, over loopback or over a wire between two network namespaces.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'w> {
    wire: Option<&'w Wire>,
}

/// Time after which a datagram counts as lost, and the sender sends another one.
const LOST_NS: u64 = 200_000_000;
/// Largest payload of one datagram over IPv4.
const MAX_DATAGRAM: usize = 65_507;

/// The way in which one side of a socket waits. It polls a non-blocking call on the schedule of
/// Sprat's workers but never sleeps, or it blocks in the call.
struct Wait {
    waiting: Waiting,
    idle: Idle,
    clock: Clock,
}

impl Wait {
    fn new(waiting: Waiting) -> Self {
        Self { waiting, idle: Idle::new(), clock: Clock::new() }
    }

    /// Repeats `call` until it returns a result. Returns `TimedOut` after [`LOST_NS`].
    fn until<T>(&mut self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut first = None;
        loop {
            match call() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e)
                    if e.kind() == io::ErrorKind::WouldBlock
                        && self.waiting == Waiting::Polling =>
                {
                    let mut now = None;
                    self.idle.rest(true, || *now.insert(self.clock.now()));
                    if let Some(now) = now
                        && now.since(*first.get_or_insert(now)) > LOST_NS
                    {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                // A blocking socket returns this when its time limit is over.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                other => {
                    self.idle.worked();
                    return other;
                }
            }
        }
    }
}

impl<'w> Kernel<'w> {
    /// Returns the kernel's network over loopback.
    #[must_use]
    pub const fn loopback() -> Self {
        Self { wire: None }
    }

    /// Returns the kernel's network from one end of `wire` to the other.
    #[must_use]
    pub const fn over(wire: &'w Wire) -> Self {
        Self { wire: Some(wire) }
    }

    /// Runs `body` in the network namespace of the wire's end `i`, with an address there.
    fn at<T: Send>(
        self,
        i: usize,
        body: impl FnOnce(SocketAddr) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        match self.wire {
            None => body((Ipv4Addr::LOCALHOST, 0).into()),
            Some(wire) => wire.end(i).run(|| body((Wire::kernel(i), 0).into()))?,
        }
    }

    fn udp_pair(self, waiting: Waiting) -> io::Result<[UdpSocket; 2]> {
        let pair = [self.at(0, UdpSocket::bind)?, self.at(1, UdpSocket::bind)?];
        pair[0].connect(pair[1].local_addr()?)?;
        pair[1].connect(pair[0].local_addr()?)?;
        for socket in &pair {
            socket.set_nonblocking(waiting == Waiting::Polling)?;
            socket.set_read_timeout(Some(Duration::from_nanos(LOST_NS)))?;
        }
        Ok(pair)
    }

    /// Measures round trips of datagrams of `size` bytes, which is brought into the range of 8 to
    /// 65,507.
    ///
    /// # Errors
    /// A system call failed.
    pub fn udp(self, size: usize, waiting: Waiting, limits: Limits) -> io::Result<Vec<u32>> {
        let size = size.clamp(8, MAX_DATAGRAM);
        let [here, there] = self.udp_pair(waiting)?;
        let echo = move || {
            let (mut wait, mut buffer) = (Wait::new(waiting), vec![0; MAX_DATAGRAM]);
            loop {
                match wait.until(|| there.recv(&mut buffer)) {
                    Err(e) if e.kind() == io::ErrorKind::TimedOut => continue,
                    n => there.send(&buffer[..n?])?,
                };
            }
        };
        let measure = move || {
            let (mut wait, mut ping, mut pong) = (Wait::new(waiting), vec![1; size], vec![0; size]);
            let mut number = 0u64;
            sample(limits, || {
                number += 1;
                ping[..8].copy_from_slice(&number.to_be_bytes());
                here.send(&ping)?;
                loop {
                    match wait.until(|| here.recv(&mut pong)) {
                        Ok(_) if pong[..8] == ping[..8] => return Ok(()),
                        // The echo of a datagram that counted as lost.
                        Ok(_) => {}
                        Err(e) if e.kind() == io::ErrorKind::TimedOut => drop(here.send(&ping)?),
                        Err(e) => return Err(e),
                    }
                }
            })
        };
        between(echo, measure)
    }

    /// Measures datagrams of `segment` bytes one way at full rate, in super-packets of up to 64 KB
    /// in both directions of the socket. A datagram that finds no room is lost and does not count.
    ///
    /// # Errors
    /// A system call failed; the kernel has no segmentation offload for UDP.
    pub fn udp_stream(self, segment: usize, limits: Limits) -> io::Result<Flow> {
        let segment = segment.clamp(8, MAX_DATAGRAM);
        // Older kernels take at most 64 segments at once, newer ones 128.
        let bytes = segment * (MAX_DATAGRAM / segment).clamp(1, 64);
        let [here, there] = self.udp_pair(Waiting::Polling)?;
        socket::set(there.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, &(segment as libc::c_int))?;
        datagram::set_gro(here.as_fd())?;
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&here, 8 << 20);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&there, 8 << 20);
        let send = move || {
            let (mut wait, payload) = (Wait::new(Waiting::Polling), vec![1; bytes]);
            loop {
                match wait.until(|| there.send(&payload)) {
                    Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
                    other => drop(other?),
                }
            }
        };
        let receive = move || {
            let (mut wait, mut buffer) = (Wait::new(Waiting::Polling), vec![0; 1 << 16]);
            wait.until(|| here.recv(&mut buffer))?;
            let (start, mut flow) = (wait.clock.now(), Flow { bytes: 0, ns: 0 });
            for _ in 0..limits.count {
                flow.bytes += wait.until(|| here.recv(&mut buffer))? as u64;
                flow.ns = wait.clock.now().since(start);
                if flow.ns >= limits.time_ns {
                    break;
                }
            }
            Ok(flow)
        };
        between(send, receive)
    }

    /// Makes both ends of a TCP connection.
    fn tcp_pair(self, waiting: Waiting) -> io::Result<[TcpStream; 2]> {
        let listener = self.at(1, TcpListener::bind)?;
        let at = listener.local_addr()?;
        let here = self.at(0, |_| TcpStream::connect(at))?;
        let own = here.local_addr()?;
        // Another process may connect to the port at this moment.
        let there = loop {
            let (there, from) = listener.accept()?;
            if from == own {
                break there;
            }
        };
        for socket in [&here, &there] {
            socket.set_nodelay(true)?;
            socket.set_nonblocking(waiting == Waiting::Polling)?;
        }
        Ok([here, there])
    }

    /// Measures round trips of `size` bytes over a TCP connection.
    ///
    /// # Errors
    /// A system call failed.
    pub fn tcp(self, size: usize, waiting: Waiting, limits: Limits) -> io::Result<Vec<u32>> {
        self.tcp_exchange(size, size, waiting, limits)
    }

    /// Measures exchanges over TCP: a request of `request` bytes for an answer of `answer` bytes,
    /// each at least one byte.
    ///
    /// # Errors
    /// A system call failed.
    pub fn tcp_exchange(
        self,
        request: usize,
        answer: usize,
        waiting: Waiting,
        limits: Limits,
    ) -> io::Result<Vec<u32>> {
        let (request, answer) = (request.max(1), answer.max(1));
        let [here, there] = self.tcp_pair(waiting)?;
        let serve = move || {
            let (mut wait, mut asked, given) =
                (Wait::new(waiting), vec![0; request], vec![2; answer]);
            loop {
                read_exact(&mut wait, &there, &mut asked)?;
                write_all(&mut wait, &there, &given)?;
            }
        };
        let measure = move || {
            let (mut wait, asked, mut given) =
                (Wait::new(waiting), vec![1; request], vec![0; answer]);
            sample(limits, || {
                write_all(&mut wait, &here, &asked)?;
                read_exact(&mut wait, &here, &mut given)
            })
        };
        between(serve, measure)
    }

    /// Measures TCP messages of `size` bytes (at least one) one way at full rate. The sender makes
    /// one write for each message; the receiver reads the bytes that are there.
    ///
    /// # Errors
    /// A system call failed.
    pub fn tcp_stream(self, size: usize, limits: Limits) -> io::Result<Flow> {
        let size = size.max(1);
        let [here, there] = self.tcp_pair(Waiting::Polling)?;
        let send = move || {
            let (mut wait, message) = (Wait::new(Waiting::Polling), vec![1; size]);
            loop {
                write_all(&mut wait, &there, &message)?;
            }
        };
        let receive = move || {
            let (mut wait, mut buffer) =
                (Wait::new(Waiting::Polling), vec![0; size.clamp(1 << 16, 1 << 18)]);
            wait.until(|| (&here).read(&mut buffer))?;
            let (start, mut flow) = (wait.clock.now(), Flow { bytes: 0, ns: 0 });
            for _ in 0..limits.count {
                match wait.until(|| (&here).read(&mut buffer))? {
                    0 => return Err(ended()),
                    n => flow.bytes += n as u64,
                }
                flow.ns = wait.clock.now().since(start);
                if flow.ns >= limits.time_ns {
                    break;
                }
            }
            Ok(flow)
        };
        between(send, receive)
    }
}

fn write_all(wait: &mut Wait, mut socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match wait.until(|| socket.write(bytes)) {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
            n => bytes = &bytes[n?..],
        }
    }
    Ok(())
}

fn read_exact(wait: &mut Wait, mut socket: &TcpStream, bytes: &mut [u8]) -> io::Result<()> {
    let mut have = 0;
    while have < bytes.len() {
        match wait.until(|| socket.read(&mut bytes[have..])) {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
            Ok(0) => return Err(ended()),
            n => have += n?,
        }
    }
    Ok(())
}
