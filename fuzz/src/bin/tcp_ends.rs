//! Fuzzes two hosts with our TCP and the wire between them, both played by the fuzzer: whatever the
//! wire does to their frames and whatever their programs call, nothing panics, memory and output
//! stay within their limits, timers move on, and in the end all connections go and a new one works.
//!
//! The input is a script: the options of both hosts, and then steps. A byte chooses the step, and
//! further bytes are its parameters.
//!
//! ```text
//!  program ─► host 0 ─► wire: lost, doubled, late, cut, damaged, edited, old ─► host 1
//! ```
//!
//! On an honest wire, which does not mend the checksums of what it changes, a program reads a
//! prefix of what the other one has written, and all of it in the end. A wire that edits segments
//! can put bytes into a stream, and so the bytes count for nothing there.

#![no_main]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use sprat_fuzz::two_hosts::{
    MACS, Nic, Script, byte, congestion, edit, icmp, join, mark, tcp_options, v4, v6,
};
use sprat_proto::device::{Info, Offloads};
use sprat_proto::net::tcp::{TcpConfig, TcpError, TcpFlow, TcpHost, TcpId, TcpSettings, TcpState};
use sprat_proto::net::{Interface, Ipv4Assignment, StackOptions};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::{Instant, Rng};

/// The most connections of a host.
const MOST: usize = 8;
/// The most connections that the program of a host begins.
const MOST_BEGUN: usize = 40;
/// The number of frames that the wire remembers, to send them again.
const SEEN: usize = 64;
/// The most frames that are on the wire.
const ON_WIRE: usize = 4096;
/// The most frames that both hosts send before a timer has to expire.
const MOST_FRAMES: usize = 100_000;
/// The most timers that expire until all connections have ended.
const MOST_TICKS: usize = 20_000;
/// The most timers that expire until a program that waits gives up.
const SOME_TICKS: usize = 300;
/// The least length of a record: each is a segment.
const RECORD: usize = 16;

/// A connection of a program.
struct Conn {
    id: TcpId,
    flow: TcpFlow,
    /// Tells the bytes of the connection from those of others.
    salt: u64,
    written: usize,
    read: usize,
    /// True if the program has closed its direction.
    is_closed: bool,
    /// True if the program has ended the connection early.
    is_cut: bool,
}

/// A host, and its program.
struct End {
    port: Interface<Nic>,
    options: TcpConfig,
    conns: Vec<Conn>,
    /// The share of lent data that the program takes, in quarters.
    takes: usize,
}

impl End {
    fn new(side: usize, script: &mut Script<'_>, rng: &mut Rng) -> Self {
        let mtu = script.choose([1280, 1500, 9000]);
        let mut info = Info::without_offloads(MACS[side], mtu);
        if script.byte() & 1 == 1 {
            info.offloads = Offloads { checksum: true, tcp_segments: true, udp_segments: false };
            info.max_send = 20_000;
        }
        let nic = Nic::new(info);
        let stack = StackOptions {
            ipv4: Ipv4Assignment::Static { addr: v4(side), prefix: 24 },
            ipv6: Some((v6(side), 64)),
            ..StackOptions::default()
        };
        let mut port = Interface::new(stack, nic, rng.fork());
        port.set_neighbour(v4(1 - side).into(), MACS[1 - side]);
        port.set_neighbour(v6(1 - side).into(), MACS[1 - side]);
        let options = tcp_options(script);
        port.stack_mut().enable_tcp(options.clone(), MOST);
        Self { port, options, conns: Vec::new(), takes: 4 }
    }

    fn tcp(&mut self) -> &mut TcpHost {
        self.port.tcp().expect("the stack has TCP")
    }

    /// Takes a new connection of the program.
    fn insert(&mut self, side: usize, id: TcpId) {
        let flow = self.tcp().flow(id).expect("the connection is new");
        let salt = (2 * self.conns.len() + side) as u64;
        self.conns.push(Conn {
            id,
            flow,
            salt,
            written: 0,
            read: 0,
            is_closed: false,
            is_cut: false,
        });
    }

    fn state(&mut self, id: TcpId) -> Option<(TcpState, Option<TcpError>)> {
        self.tcp().connection(id).map(|c| (c.state(), c.error()))
    }

    /// Takes a part of the data that is lent. Behind what the program leaves it takes nothing.
    fn take_lent(&mut self, got: &mut Vec<(TcpId, Vec<u8>)>) {
        let mut left = Vec::new();
        for i in 0..self.port.stack().lent_tcp() {
            let (id, bytes) = self.port.tcp_data(i);
            let count = if left.contains(&id) { 0 } else { bytes.len() * self.takes / 4 };
            if count < bytes.len() {
                left.push(id);
            }
            got.push((id, bytes[..count].to_vec()));
            self.port.take_tcp(i, count);
        }
    }

    /// Reads what the program can read, and closes all connections.
    fn read_and_close(&mut self, got: &mut Vec<(TcpId, Vec<u8>)>) {
        for Conn { id, is_closed, .. } in &mut self.conns {
            let tcp = self.port.tcp().expect("the stack has TCP");
            let mut into = vec![0; tcp.connection(*id).map_or(0, |c| c.readable())];
            if !into.is_empty() {
                tcp.read(*id, &mut into);
                got.push((*id, into));
            }
            // A program that closes while it connects has no connection.
            let state = tcp.connection(*id).map(|c| c.state());
            if state != Some(TcpState::SynSent) && !std::mem::replace(is_closed, true) {
                tcp.close(*id);
            }
        }
    }

    /// Checks the memory of the host.
    fn check(&mut self) {
        let (most, sends) = (self.options.receive_bytes + 64, self.options.send_bytes);
        let tcp = self.port.tcp().expect("the stack has TCP");
        assert!(tcp.connections() <= MOST && tcp.time_waits() <= MOST);
        for conn in &self.conns {
            let Some(info) = tcp.info(conn.id) else { continue };
            let readable = tcp.connection(conn.id).map_or(0, |c| c.readable());
            assert!(readable <= most as usize, "{readable} bytes wait");
            assert!(info.window <= most && info.unacknowledged_bytes <= sends, "{info:?}");
            assert!(info.unacknowledged_segments <= sends + 2, "{info:?}");
        }
    }
}

struct World {
    now: Instant,
    ends: [End; 2],
    is_honest: bool,
    /// True once the programs read all, and close.
    is_ending: bool,
    /// The frames on the wire, with their receivers, and whether they are damaged.
    wire: VecDeque<(usize, Vec<u8>, bool)>,
    /// Earlier frames, with their receivers.
    seen: VecDeque<(usize, Vec<u8>)>,
}

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let first = script.byte();
        let mut rng = Rng::seeded(u64::from(first >> 1));
        let mut ends = [0, 1].map(|side| End::new(side, script, &mut rng));
        for end in &mut ends {
            let _ = end.tcp().listen(7, 2);
        }
        let (wire, seen) = (VecDeque::new(), VecDeque::new());
        let now = Instant::from_ns(SECOND);
        Self { now, ends, is_honest: first & 1 == 0, is_ending: false, wire, seen }
    }

    /// Lets a host handle what has arrived and what is due, and send what it has to send.
    fn turn(&mut self, side: usize) {
        let (now, is_ending) = (self.now, self.is_ending);
        let end = &mut self.ends[side];
        end.port.set_now(now);
        end.port.device_mut().was_full = false;
        let mut got = Vec::new();
        while !end.port.device().inbox.is_empty() {
            end.port.input();
            end.take_lent(&mut got);
        }
        for round in 0.. {
            end.port.tick(now);
            let waits = end.port.output() && !end.port.device().was_full;
            let is_due = end.port.deadline().is_some_and(|due| due <= now);
            if end.port.device().was_full || !waits && !is_due {
                break;
            }
            assert!(round < 8, "the host does not come to rest: {waits} {is_due}");
        }
        let mut events = 0;
        while let Some((id, changes)) = end.tcp().event() {
            events += 1;
            assert!(events < 10 * MOST, "events without end");
            if end.conns.iter().all(|conn| conn.id != id) {
                assert!(changes.opened, "the program does not know {id:?}");
                end.insert(side, id);
            }
        }
        if is_ending {
            end.read_and_close(&mut got);
        }
        end.check();
        let sent = std::mem::take(&mut end.port.device_mut().sent);
        let most = MOST * (end.options.send_bytes as usize / 8 + 64) + 300;
        assert!(sent.len() <= most, "{} frames at once", sent.len());
        for frame in sent {
            if self.seen.len() == SEEN {
                self.seen.pop_front();
            }
            self.seen.push_back((1 - side, frame.clone()));
            if self.wire.len() < ON_WIRE {
                self.wire.push_back((1 - side, frame, false));
            }
        }
        got.iter().for_each(|(id, bytes)| self.got(side, *id, bytes));
    }

    /// Takes what a program has read.
    fn got(&mut self, side: usize, id: TcpId, bytes: &[u8]) {
        let Some(at) = self.ends[side].conns.iter().position(|conn| conn.id == id) else { return };
        let start = self.ends[side].conns[at].read;
        self.ends[side].conns[at].read += bytes.len();
        if !self.is_honest || bytes.is_empty() {
            return;
        }
        if let Some(peer) = self.peer(side, at) {
            let Conn { salt, written, .. } = self.ends[1 - side].conns[peer];
            assert!(start + bytes.len() <= written, "{} bytes of {written}", start + bytes.len());
            let is_right = |(i, b): (usize, &u8)| *b == byte(salt, start + i);
            let is_right = bytes.iter().enumerate().all(is_right);
            assert!(is_right, "other bytes at {start} of {id:?} at {side}: {}", self.describe());
        }
    }

    /// Returns the other end of a connection, if no other connection has had its addresses.
    fn peer(&self, side: usize, at: usize) -> Option<usize> {
        let TcpFlow { local, peer } = self.ends[side].conns[at].flow;
        let places = |side: usize, flow: TcpFlow| {
            let all = self.ends[side].conns.iter().enumerate();
            all.filter(move |(_, conn)| conn.flow == flow).map(|(at, _)| at).collect::<Vec<_>>()
        };
        let own = places(side, TcpFlow { local, peer });
        let others = places(1 - side, TcpFlow { local: peer, peer: local });
        if own.len() == 1 && others.len() == 1 { Some(others[0]) } else { None }
    }

    /// Delivers what is on the wire, and what answers to that, until nothing is. Each way takes a
    /// microsecond.
    fn settle(&mut self) {
        let mut frames = 0;
        loop {
            (0..2).for_each(|side| self.turn(side));
            let is_idle = self.ends.iter().all(|end| end.port.stack().is_idle());
            if self.wire.is_empty() && is_idle {
                return;
            }
            frames += self.wire.len() + 1;
            assert!(frames < MOST_FRAMES, "the hosts do not come to rest: {}", self.describe());
            // A segment that leaves after another one has a later time, by which RACK orders them.
            self.now = self.now.after(US);
            while let Some((to, frame, _)) = self.wire.pop_front() {
                self.ends[to].port.device_mut().receive(frame);
            }
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let op = script.byte();
        let side = usize::from(op >> 7);
        match op & 31 {
            0..=7 => self.call(side, op & 31, script),
            8 => self.host(side, script),
            9 => self.now = self.now.after(u64::from(script.byte()) * 10 * US),
            10 => self.now = self.now.after(u64::from(script.word()) * MS),
            11 | 12 => {
                if let Some(next) = self.next() {
                    self.now = next.max(self.now);
                }
            }
            // Days, and months, in which clocks of 32 bits turn around.
            13 => self.now = self.now.after(u64::from(script.word()) * 1000 * SECOND),
            14..=17 => return self.settle(),
            18 => {
                if let Some((to, frame)) = self.seen.get(usize::from(script.byte()) % SEEN)
                    && let Some(error) = icmp(1 - to, frame, script)
                {
                    self.ends[1 - to].port.device_mut().receive(error);
                }
            }
            19 => {
                let old = self.seen.get(usize::from(script.byte()) % SEEN).cloned();
                if let Some((to, frame)) = old {
                    self.wire.push_front((to, frame, false));
                }
            }
            _ => self.disturb(op & 31, script),
        }
        (0..2).for_each(|side| self.turn(side));
    }

    /// Returns the time at which the next timer expires.
    fn next(&self) -> Option<Instant> {
        self.ends.iter().filter_map(|end| end.port.deadline()).min()
    }

    /// Lets a program do something with a connection.
    fn call(&mut self, side: usize, op: u8, script: &mut Script<'_>) {
        let choice = usize::from(script.byte());
        let end = &mut self.ends[side];
        end.port.set_now(self.now);
        if op == 0 {
            if end.conns.len() < MOST_BEGUN {
                let (own, port) = [(0, 7), (5000, 7), (0, 8), (5000, 5001)][choice & 3];
                let (own, port) = if side == 1 && port > 8 { (port, own) } else { (own, port) };
                let to: IpAddr =
                    if choice & 4 == 0 { v4(1 - side).into() } else { v6(1 - side).into() };
                if let Ok(id) = end.port.connect_tcp(own, SocketAddr::new(to, port)) {
                    end.insert(side, id);
                }
            }
            return;
        }
        let count = end.conns.len();
        let Some(at) = count.checked_sub(1 + choice % 16 % count.max(1)) else { return };
        let (id, salt, written) = {
            let conn = &end.conns[at];
            (conn.id, conn.salt, conn.written)
        };
        let len = RECORD + usize::from(script.byte()) * 32;
        match op {
            1 | 2 => {
                let bytes: Vec<u8> = (0..len).map(|i| byte(salt, written + i)).collect();
                let parts = [&bytes[..len / 3], &bytes[len / 3..]];
                let count = match op {
                    1 => end.tcp().write(id, &bytes),
                    _ => usize::from(end.tcp().write_record(id, &parts)) * len,
                };
                end.conns[at].written += count;
            }
            3 => {
                let mut into = vec![0; len];
                let count = end.tcp().read(id, &mut into);
                self.got(side, id, &into[..count]);
            }
            4 => {
                end.tcp().lend(id, choice & 16 == 0);
                end.takes = choice >> 5 & 3;
            }
            5 => {
                let is_early = end.state(id).is_some_and(|(state, _)| state == TcpState::SynSent);
                end.conns[at].is_cut |= is_early;
                end.tcp().close(id);
            }
            6 => {
                end.conns[at].is_cut = true;
                end.tcp().abort(id);
            }
            _ => {
                end.conns[at].is_cut = true;
                end.tcp().release(id);
            }
        }
    }

    /// Changes something at a whole host.
    fn host(&mut self, side: usize, script: &mut Script<'_>) {
        let (choice, congestion) = (script.byte(), congestion(script));
        let end = &mut self.ends[side];
        match choice % 8 {
            0 => end.port.device_mut().room = [usize::MAX, 1, 2, 7][usize::from(choice >> 6)],
            1 => end.tcp().pause(7, choice & 128 == 0),
            2 => end.tcp().unlisten(7),
            3 => drop(end.tcp().listen(7, u32::from(choice >> 6))),
            4 => drop(end.tcp().listen(8, u32::from(choice >> 6))),
            5 => {
                let options = end.tcp().config_mut();
                options.no_delay = choice & 8 == 0;
                options.congestion = congestion;
                options.keep_alive_ns = (choice & 16 == 0).then_some(SECOND);
                options.user_timeout_ns = if choice & 32 == 0 { 120 * SECOND } else { SECOND };
            }
            6 => {
                let settings = TcpSettings {
                    no_delay: Some(choice & 8 == 0),
                    dscp: (choice & 64 == 0).then_some(choice),
                    ttl: (choice & 64 == 0).then_some(choice),
                    keep_alive_ns: (choice & 16 == 0).then_some(Some(SECOND)),
                    user_timeout_ns: (choice & 32 == 0).then_some(3 * SECOND),
                };
                let last = end.conns.last().map(|conn| conn.id);
                last.into_iter().for_each(|id| end.tcp().set(self.now, id, settings));
            }
            _ if choice & 0xf0 == 0 => {
                end.conns.iter_mut().for_each(|conn| conn.is_cut = true);
                if choice & 8 == 0 { end.tcp().abort_all() } else { end.tcp().release_all() }
            }
            _ => {}
        }
    }

    /// Does something to a frame on the wire.
    fn disturb(&mut self, op: u8, script: &mut Script<'_>) {
        if self.wire.is_empty() {
            return;
        }
        let at = usize::from(script.byte()) % self.wire.len();
        let (_, frame, is_damaged) = &mut self.wire[at];
        // Two changes together may leave a checksum right.
        let may_damage = !self.is_honest || !*is_damaged;
        match op {
            20 => drop(self.wire.remove(at)),
            21 => {
                let again = self.wire[at].clone();
                self.wire.push_back(again);
            }
            22 => {
                let last = self.wire.remove(at).expect("it is there");
                self.wire.push_back(last);
            }
            23 if may_damage => {
                *is_damaged = true;
                frame.truncate(usize::from(script.byte()) * frame.len() / 256);
            }
            24 if may_damage => {
                *is_damaged = true;
                let place = usize::from(script.byte()) % frame.len().clamp(1, 100);
                frame.iter_mut().skip(place).take(1).for_each(|b| *b ^= script.byte().max(1));
            }
            25 => mark(frame),
            26..=28 if !self.is_honest => edit(frame, script),
            29 if !self.is_honest => {
                let other = self.seen.get(usize::from(script.byte()) % SEEN);
                if let Some((_, other)) = other {
                    join(frame, other);
                }
            }
            // The first frames arrive.
            _ => {
                for _ in 0..1 + at.min(20) {
                    let Some((to, frame, _)) = self.wire.pop_front() else { break };
                    self.ends[to].port.device_mut().receive(frame);
                }
            }
        }
    }

    /// Lets timers expire and frames arrive until `is_done`, or nothing is left to do.
    fn run(&mut self, most: usize, mut is_done: impl FnMut(&mut Self) -> bool) -> bool {
        for _ in 0..most {
            self.settle();
            if is_done(self) {
                return true;
            }
            let Some(next) = self.next() else { return false };
            self.now = next.max(self.now);
        }
        assert!(most < MOST_TICKS, "timers without end: {}", self.describe());
        false
    }

    /// Returns the conditions of all connections, as text.
    fn describe(&mut self) -> String {
        let mut text = format!("{:?}", self.now);
        for (to, frame) in self.seen.iter().rev().take(12) {
            text += &format!("\nto {to}: {:x?}", &frame[12..frame.len().min(94)]);
        }
        for end in &mut self.ends {
            text += &format!("\n{:?}", end.options);
            for at in 0..end.conns.len() {
                let Conn { id, flow, .. } = end.conns[at];
                text += &format!("\n{flow:?} {:?}", end.tcp().info(id));
            }
        }
        text
    }

    /// Mends the wire, and lets the programs read all and close.
    fn finish(mut self) {
        self.is_ending = true;
        for end in &mut self.ends {
            end.port.device_mut().room = usize::MAX;
        }
        let is_over = |end: &mut End, id| {
            end.state(id).is_none_or(|(s, _)| matches!(s, TcpState::Closed | TcpState::TimeWait))
        };
        // A window that a forged segment has closed stays so while its program waits for it.
        self.run(if self.is_honest { MOST_TICKS } else { SOME_TICKS }, |world| {
            let all = |end: &mut End| (0..end.conns.len()).all(|at| is_over(end, end.conns[at].id));
            world.ends.iter_mut().all(all)
        });
        for (side, at) in (0..self.ends[0].conns.len()).map(|at| (0, at)) {
            self.compare(side, at);
        }
        for end in &mut self.ends {
            end.tcp().release_all();
            (7..9).for_each(|port| end.tcp().unlisten(port));
        }
        let count = |end: &mut End| end.tcp().connections() + end.tcp().time_waits();
        let is_empty =
            self.run(MOST_TICKS, |world| world.ends.iter_mut().all(|end| count(end) == 0));
        assert!(is_empty, "connections stay");
        assert!(self.ends.iter_mut().all(|end| end.tcp().deadline().is_none()), "a timer stays");
        self.ends.iter_mut().for_each(|end| end.conns.clear());
        self.begin_anew();
    }

    /// Compares what an end of a connection has read with what the other one has written.
    fn compare(&mut self, side: usize, at: usize) {
        let Some(peer) = self.peer(side, at).filter(|_| self.is_honest) else { return };
        let ids = [(side, at), (1 - side, peer)];
        let is_whole = |&(side, at): &(usize, usize)| {
            let id = self.ends[side].conns[at].id;
            !self.ends[side].conns[at].is_cut
                && self.ends[side].state(id).is_some_and(|(_, error)| error.is_none())
        };
        if ids.iter().all(is_whole) {
            let [a, b] = ids.map(|(side, at)| &self.ends[side].conns[at]);
            assert_eq!((a.written, b.written), (b.read, a.read), "{:?}", a.flow);
        }
    }

    /// Makes a new connection, whatever the hosts have learned before.
    fn begin_anew(&mut self) {
        self.is_ending = false;
        for end in &mut self.ends {
            *end.tcp().config_mut() = end.options.clone();
        }
        self.ends[1].tcp().listen(99, 1).expect("the port is free");
        self.ends[0].port.set_now(self.now);
        let to = SocketAddr::new(v4(1).into(), 99);
        let id = self.ends[0].port.connect_tcp(0, to).expect("there is room");
        self.ends[0].insert(0, id);
        let bytes: Vec<u8> = (0..900).map(|i| byte(0, i)).collect();
        self.ends[0].conns[0].written = self.ends[0].tcp().write(id, &bytes);
        self.is_ending = true;
        self.is_honest = true;
        self.run(SOME_TICKS, |world| {
            world.ends[1].conns.first().is_some_and(|conn| conn.read == 900)
        });
        let read = self.ends[1].conns.first().map(|conn| conn.read);
        assert_eq!(read, Some(900), "nothing passes any more");
    }
}

fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    let mut world = World::new(&mut script);
    while !script.0.is_empty() {
        world.step(&mut script);
    }
    world.finish();
});
