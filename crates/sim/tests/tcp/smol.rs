//! A host with smoltcp, a TCP that others have written.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{CongestionControl, RecvError, Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant as Time};
use smoltcp::wire::{EthernetAddress, IpCidr, IpEndpoint, IpListenEndpoint};
use sprat_proto::net::tcp::{TcpChanges, TcpError};
use sprat_proto::time::{MS, US};
use sprat_proto::{Instant, Rng};

use super::host::{Conn, Host, Status, mac, v4, v6};

/// The options of a host with smoltcp.
#[derive(Clone, Debug)]
pub(crate) struct SmolOptions {
    pub(crate) mtu: usize,
    pub(crate) receive_bytes: usize,
    pub(crate) send_bytes: usize,
    pub(crate) has_timestamps: bool,
    pub(crate) is_cubic: bool,
    pub(crate) has_nagle: bool,
    pub(crate) keep_alive_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Nic {
    mtu: usize,
    inbox: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

struct Arrived(Vec<u8>);

struct Leaving<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl Device for Nic {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Time) -> Option<(Arrived, Leaving<'_>)> {
        let frame = self.inbox.pop_front()?;
        Some((Arrived(frame), Leaving(&mut self.sent)))
    }

    fn transmit(&mut self, _: Time) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + sprat_proto::device::HEADER;
        capabilities
    }
}

/// A connection: its socket, until the program has released it and it has ended.
struct Socketed {
    handle: Option<SocketHandle>,
    ends: (SocketAddr, SocketAddr),
    has_opened: bool,
    /// True if the peer's direction has ended, which a closed socket does not know any more.
    is_finished: bool,
    is_closed: bool,
    is_released: bool,
}

/// A host with smoltcp.
pub(crate) struct Smol {
    interface: Interface,
    nic: Nic,
    sockets: SocketSet<'static>,
    options: SmolOptions,
    conns: Vec<Socketed>,
    listening: Vec<(u16, SocketHandle)>,
    accepted: VecDeque<Conn>,
    rng: Rng,
    /// The time at which smoltcp wants its next turn.
    due: Option<Instant>,
}

fn time(now: Instant) -> Time {
    CLOCK.set((now.as_ns() / MS) as u32);
    Time::from_micros((now.as_ns() / US) as i64)
}

thread_local! {
    /// The milliseconds of virtual time, for smoltcp's timestamps: it asks for them by a function
    /// without arguments.
    static CLOCK: Cell<u32> = const { Cell::new(0) };
}

fn stamp() -> u32 {
    CLOCK.get()
}

fn address(end: IpEndpoint) -> SocketAddr {
    SocketAddr::new(end.addr.into(), end.port)
}

impl Smol {
    pub(crate) fn new(host: usize, options: SmolOptions, mut rng: Rng) -> Self {
        let mut nic = Nic { mtu: options.mtu, ..Nic::default() };
        let mut config = Config::new(EthernetAddress(mac(host).0).into());
        config.random_seed = rng.u64();
        let mut interface = Interface::new(config, &mut nic, Time::from_micros(0));
        interface.update_ip_addrs(|addrs| {
            let own = [IpCidr::new(v4(host).into(), 24), IpCidr::new(v6(host).into(), 64)];
            own.into_iter().for_each(|own| addrs.push(own).expect("there is room"));
        });
        Self {
            interface,
            nic,
            sockets: SocketSet::new(Vec::new()),
            options,
            conns: Vec::new(),
            listening: Vec::new(),
            accepted: VecDeque::new(),
            rng,
            due: None,
        }
    }

    fn socket(&self) -> Socket<'static> {
        let options = &self.options;
        let buffer = |bytes: usize| SocketBuffer::new(vec![0; bytes]);
        let mut socket = Socket::new(buffer(options.receive_bytes), buffer(options.send_bytes));
        socket.set_nagle_enabled(options.has_nagle);
        if options.is_cubic {
            socket.set_congestion_control(CongestionControl::Cubic);
        }
        if options.has_timestamps {
            socket.set_tsval_generator(Some(stamp));
        }
        let keep_alive = options.keep_alive_ns.map(|ns| Duration::from_micros(ns / US));
        socket.set_keep_alive(keep_alive);
        socket
    }

    /// Returns the socket of a connection, if the host has it still.
    fn of(&mut self, conn: Conn) -> Option<&mut Socket<'static>> {
        self.conns[conn].handle.map(|handle| self.sockets.get_mut(handle))
    }

    /// Finds listening sockets that have a peer, and adds others. No socket is removed, so that one
    /// that listens is always behind those with connections: smoltcp gives a SYN that comes again
    /// to the first socket that takes it.
    fn settle(&mut self) {
        for i in 0..self.listening.len() {
            let (port, handle) = self.listening[i];
            let socket = self.sockets.get::<Socket<'_>>(handle);
            if matches!(socket.state(), State::Listen | State::SynReceived) {
                continue;
            }
            let mut next = self.socket();
            next.listen(port).expect("the port is none of others");
            let next = self.sockets.add(next);
            self.listening[i].1 = next;
            let socket = self.sockets.get::<Socket<'_>>(handle);
            let (Some(own), Some(peer)) = (socket.local_endpoint(), socket.remote_endpoint())
            else {
                continue;
            };
            self.conns.push(Socketed {
                handle: Some(handle),
                ends: (address(own), address(peer)),
                has_opened: true,
                is_finished: false,
                is_closed: false,
                is_released: false,
            });
            self.accepted.push_back(self.conns.len() - 1);
        }
        for conn in &mut self.conns {
            let Some(handle) = conn.handle else { continue };
            let state = self.sockets.get::<Socket<'_>>(handle).state();
            conn.has_opened |=
                !matches!(state, State::SynSent | State::SynReceived | State::Closed);
            if state == State::Closed && conn.is_released {
                conn.handle = None;
            }
        }
    }
}

impl Host for Smol {
    fn deliver(&mut self, frame: Vec<u8>) {
        self.nic.inbox.push_back(frame);
    }

    fn input(&mut self, now: Instant) {
        self.interface.poll(time(now), &mut self.nic, &mut self.sockets);
        self.settle();
    }

    fn output(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.interface.poll(time(now), &mut self.nic, &mut self.sockets);
        self.settle();
        // smoltcp asks for more turns than it has segments, in TIME-WAIT for instance.
        let pause_ns = if self.nic.sent.is_empty() { MS } else { US };
        let at = self.interface.poll_at(time(now), &self.sockets);
        let at = at.map(|at| Instant::from_ns(at.total_micros().max(0) as u64 * US));
        self.due = at.map(|at| at.max(now.after(pause_ns)));
        std::mem::take(&mut self.nic.sent)
    }

    fn has_news(&self) -> bool {
        !self.accepted.is_empty()
    }

    fn deadline(&self) -> Option<Instant> {
        self.due
    }

    fn listen(&mut self, port: u16, backlog: u32) {
        for _ in 0..backlog {
            let mut socket = self.socket();
            socket.listen(port).expect("the port is not 0");
            self.listening.push((port, self.sockets.add(socket)));
        }
    }

    fn connect(&mut self, _: Instant, to: SocketAddr) -> Option<Conn> {
        let mut socket = self.socket();
        let port = loop {
            let port = 49_152 + self.rng.below(16_384) as u16;
            if self.conns.iter().all(|conn| conn.ends.0.port() != port) {
                break port;
            }
        };
        let local = IpListenEndpoint::from(port);
        socket.connect(self.interface.context(), to, local).ok()?;
        let own = socket.local_endpoint().map(address)?;
        let handle = Some(self.sockets.add(socket));
        self.conns.push(Socketed {
            handle,
            ends: (own, to),
            has_opened: false,
            is_finished: false,
            is_closed: false,
            is_released: false,
        });
        Some(self.conns.len() - 1)
    }

    fn accept(&mut self) -> Option<Conn> {
        self.accepted.pop_front()
    }

    fn ends(&self, conn: Conn) -> (SocketAddr, SocketAddr) {
        self.conns[conn].ends
    }

    fn changes(&mut self, conn: Conn) -> TcpChanges {
        let ended = self.status(conn).has_ended;
        let (opened, warned) = (self.conns[conn].has_opened, false);
        TcpChanges { opened, readable: true, writable: true, ended, warned }
    }

    fn status(&mut self, conn: Conn) -> Status {
        let Socketed { has_opened, is_closed, .. } = self.conns[conn];
        let Some(socket) = self.of(conn) else {
            return Status { is_finished: false, has_ended: true, error: None };
        };
        let has_ended = socket.state() == State::Closed;
        let has_finished = has_opened && socket.peek(1) == Err(RecvError::Finished);
        self.conns[conn].is_finished |= has_finished;
        let is_finished = self.conns[conn].is_finished;
        let error = if !has_ended || is_finished && is_closed {
            None
        } else {
            Some(if has_opened { TcpError::Reset } else { TcpError::Refused })
        };
        Status { is_finished, has_ended, error }
    }

    fn write(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        self.of(conn).map_or(0, |socket| socket.send_slice(bytes).unwrap_or(0))
    }

    fn read(&mut self, conn: Conn, into: &mut [u8]) -> usize {
        self.of(conn).map_or(0, |socket| socket.recv_slice(into).unwrap_or(0))
    }

    fn close(&mut self, conn: Conn) {
        self.conns[conn].is_closed = true;
        self.of(conn).into_iter().for_each(|socket| socket.close());
    }

    fn abort(&mut self, conn: Conn) {
        self.of(conn).into_iter().for_each(|socket| socket.abort());
        self.release(conn);
    }

    fn release(&mut self, conn: Conn) {
        self.conns[conn].is_released = true;
    }

    fn connections(&mut self) -> usize {
        self.conns.iter().filter(|conn| conn.handle.is_some()).count()
    }

    fn complaint(&mut self) -> Option<String> {
        None
    }

    fn describe(&mut self) -> String {
        let mut text = format!("smoltcp {:?}", self.options);
        for conn in &self.conns {
            let state = conn.handle.map(|h| self.sockets.get::<Socket<'_>>(h).state());
            text += &format!("\n{:?} {state:?}", conn.ends);
        }
        text
    }
}
