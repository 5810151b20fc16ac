//! A host with our IP stack and TCP.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::ops::Range;

use sprat_proto::device::{BURST, Headers, Info, Offload, RxOffload, Sent, send_concatenated};
use sprat_proto::net::tcp::{TcpChanges, TcpConfig, TcpHost, TcpId, TcpState};
use sprat_proto::net::{Ipv4Assignment, Stack, StackOptions};
use sprat_proto::time::US;
use sprat_proto::{Device, Instant, Rng};

use super::host::{Conn, Host, ROUTER, ROUTER4, ROUTER6, Status, mac, v4, v6};

/// The time after which a device that was full takes frames again.
const FULL_NS: u64 = 50 * US;

/// A device in memory.
#[derive(Debug)]
struct Nic {
    info: Info,
    inbox: VecDeque<Vec<u8>>,
    burst: Vec<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    /// The most frames that the device takes at a time.
    room: usize,
}

impl Device for Nic {
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        self.burst.extend(self.inbox.drain(..self.inbox.len().min(BURST)));
        self.burst.len()
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        (&self.burst[i], RxOffload::default())
    }

    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.burst[i][range]);
    }

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        if self.sent.len() >= self.room {
            return Sent::Full;
        }
        assert_eq!(offload, Offload::None, "the device has no offloads");
        let frame = parts.concat();
        assert!(frame.len() <= self.info.max_send, "{} bytes", frame.len());
        self.sent.push(frame);
        Sent::Yes
    }

    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        _: usize,
        offload: Offload,
    ) -> Sent {
        send_concatenated(self, headers, parts, offload)
    }

    fn flush(&mut self) {}

    fn info(&self) -> Info {
        self.info
    }

    fn rx_timestamp_ns(&self, _: usize) -> Option<u64> {
        None
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

/// The options of a host with our stack.
#[derive(Clone, Debug)]
pub(crate) struct OursOptions {
    pub(crate) tcp: TcpConfig,
    /// The most connections of the host.
    pub(crate) most: usize,
    pub(crate) mtu: usize,
    /// The most frames that the device takes at a time.
    pub(crate) room: usize,
    /// True if packets to other hosts go to a router.
    pub(crate) is_routed: bool,
}

impl Default for OursOptions {
    fn default() -> Self {
        let (tcp, room) = (TcpConfig::default(), usize::MAX);
        Self { tcp, most: 1000, mtu: 1500, room, is_routed: false }
    }
}

/// A host with our IP stack.
pub(crate) struct Ours {
    stack: Stack,
    nic: Nic,
    options: OursOptions,
    conns: Vec<(TcpId, (SocketAddr, SocketAddr), TcpChanges)>,
    numbers: BTreeMap<TcpId, Conn>,
    accepted: VecDeque<Conn>,
    /// The time at which a device that was full takes frames again.
    full_until: Option<Instant>,
    has_news: bool,
}

impl Ours {
    pub(crate) fn new(host: usize, options: OursOptions, mut rng: Rng) -> Self {
        let info = Info::without_offloads(mac(host), options.mtu);
        let bits = if options.is_routed { (32, 128) } else { (24, 64) };
        let stack_options = StackOptions {
            ipv4: Ipv4Assignment::Static { addr: v4(host), prefix: bits.0 },
            ipv6: Some((v6(host), bits.1)),
            gateway4: options.is_routed.then_some(ROUTER4),
            gateway6: options.is_routed.then_some(ROUTER6),
            ..StackOptions::default()
        };
        let mut stack = Stack::new(stack_options, info, rng.fork());
        stack.enable_tcp(options.tcp.clone(), options.most);
        for router in [ROUTER4.into(), ROUTER6.into()] {
            stack.set_neighbour(Instant::ZERO, router, ROUTER);
        }
        let (inbox, burst, sent, room) = (VecDeque::new(), Vec::new(), Vec::new(), options.room);
        Self {
            stack,
            nic: Nic { info, inbox, burst, sent, room },
            options,
            conns: Vec::new(),
            numbers: BTreeMap::new(),
            accepted: VecDeque::new(),
            full_until: None,
            has_news: false,
        }
    }

    fn tcp(&mut self) -> &mut TcpHost {
        self.stack.tcp().expect("the stack has TCP")
    }

    fn insert(&mut self, id: TcpId) -> Conn {
        let flow = self.tcp().flow(id).expect("the connection is new");
        self.conns.push((id, (flow.local, flow.peer), TcpChanges::default()));
        self.numbers.insert(id, self.conns.len() - 1);
        self.conns.len() - 1
    }

    fn id(&self, conn: Conn) -> TcpId {
        self.conns[conn].0
    }

    /// Takes the events of TCP.
    fn take_events(&mut self) {
        self.has_news = false;
        while let Some((id, changes)) = self.tcp().event() {
            let conn = match self.numbers.get(&id) {
                Some(&conn) => conn,
                None => {
                    assert!(changes.opened, "the program was not told of the connection {id:?}");
                    let conn = self.insert(id);
                    self.accepted.push_back(conn);
                    conn
                }
            };
            self.has_news = true;
            let all = &mut self.conns[conn].2;
            all.opened |= changes.opened;
            all.readable |= changes.readable;
            all.writable |= changes.writable;
            all.ended |= changes.ended;
        }
    }
}

impl Host for Ours {
    fn deliver(&mut self, frame: Vec<u8>) {
        self.nic.inbox.push_back(frame);
    }

    fn input(&mut self, now: Instant) {
        if self.full_until.is_some_and(|until| until <= now) {
            self.full_until = None;
        }
        while !self.nic.inbox.is_empty() {
            self.stack.input(now, &mut self.nic);
        }
        if self.stack.deadline().is_some_and(|at| at <= now) {
            self.stack.tick(now);
        }
        self.take_events();
    }

    fn output(&mut self, now: Instant) -> Vec<Vec<u8>> {
        if self.full_until.is_none() {
            loop {
                let before = self.nic.sent.len();
                self.stack.output(now, &mut self.nic);
                let is_full = self.nic.sent.len() >= self.nic.room;
                if is_full {
                    self.full_until = Some(now.after(FULL_NS));
                }
                if is_full || self.stack.is_idle() || self.nic.sent.len() == before {
                    break;
                }
            }
        }
        self.take_events();
        std::mem::take(&mut self.nic.sent)
    }

    fn has_news(&self) -> bool {
        self.has_news
    }

    fn deadline(&self) -> Option<Instant> {
        [self.stack.deadline(), self.full_until].into_iter().flatten().min()
    }

    fn listen(&mut self, port: u16, backlog: u32) {
        self.tcp().listen(port, backlog).expect("the port is free");
    }

    fn connect(&mut self, now: Instant, to: SocketAddr) -> Option<Conn> {
        let id = self.stack.connect_tcp(now, 0, to).ok()?;
        Some(self.insert(id))
    }

    fn accept(&mut self) -> Option<Conn> {
        self.accepted.pop_front()
    }

    fn ends(&self, conn: Conn) -> (SocketAddr, SocketAddr) {
        self.conns[conn].1
    }

    fn changes(&mut self, conn: Conn) -> TcpChanges {
        std::mem::take(&mut self.conns[conn].2)
    }

    fn status(&mut self, conn: Conn) -> Status {
        let id = self.id(conn);
        let Some(connection) = self.tcp().connection(id) else {
            return Status { is_finished: false, has_ended: true, error: None };
        };
        let (is_finished, error) = (connection.is_finished(), connection.error());
        let has_ended = matches!(connection.state(), TcpState::Closed | TcpState::TimeWait);
        Status { is_finished, has_ended, error }
    }

    fn write(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let id = self.id(conn);
        self.tcp().write(id, bytes)
    }

    fn read(&mut self, conn: Conn, into: &mut [u8]) -> usize {
        let id = self.id(conn);
        self.tcp().read(id, into)
    }

    fn close(&mut self, conn: Conn) {
        let id = self.id(conn);
        self.tcp().close(id);
    }

    fn abort(&mut self, conn: Conn) {
        let id = self.id(conn);
        self.tcp().abort(id);
    }

    fn release(&mut self, conn: Conn) {
        let id = self.id(conn);
        self.tcp().release(id);
    }

    fn connections(&mut self) -> usize {
        self.tcp().connections() + self.tcp().time_waits()
    }

    fn complaint(&mut self) -> Option<String> {
        let (most, bytes) = (self.options.most, self.options.tcp.receive_bytes as usize);
        let tcp = self.stack.tcp().expect("the stack has TCP");
        if tcp.connections() > most {
            return Some(format!("{} connections of {most}", tcp.connections()));
        }
        if tcp.connections() + tcp.time_waits() == 0 && tcp.deadline().is_some() {
            return Some("a timer is left".into());
        }
        let readable = |(id, ..): &(TcpId, _, _)| tcp.connection(*id).map_or(0, |c| c.readable());
        let largest = self.conns.iter().map(readable).max().unwrap_or(0);
        (largest > bytes).then(|| format!("{largest} bytes wait, and {bytes} may"))
    }

    fn describe(&mut self) -> String {
        let mut text = format!("{:?}\n", self.options);
        self.stack.counters().each(&mut |name, count| {
            if count > 0 {
                let _ = write!(text, "{name} {count} ");
            }
        });
        let tcp = self.stack.tcp().expect("the stack has TCP");
        for (id, ends, _) in &self.conns {
            if let Some(connection) = tcp.connection(*id) {
                let _ = write!(text, "\n{ends:?} {:?}", connection.state());
            }
        }
        text
    }
}
