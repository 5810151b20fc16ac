//! A TCP world: hosts, the network between them, and the programs of all connections.
//!
//! Always: time moves from one event to the next, and everything follows from the seed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use sprat_proto::net::tcp::TcpError;
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};

use super::host::{Host, v4, v6};
use super::network::{Network, Options};
use super::program::{Plan, Program};

/// The port at which programs listen, and one at which none does.
pub(crate) const PORT: u16 = 7;
pub(crate) const CLOSED_PORT: u16 = 9;
/// The time after which a host that had too many connections is asked again.
const AGAIN_NS: u64 = 50 * MS;
/// The most events of a world. A world with more does not move on.
const MOST_EVENTS: u64 = 1_000_000;

/// A connection to begin.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) at: Instant,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) is_ipv6: bool,
    /// True if no program listens at the port.
    pub(crate) is_refused: bool,
    /// True if the peer lies: the connection may end as it likes.
    pub(crate) has_lies: bool,
    pub(crate) plans: [Plan; 2],
}

/// A program, the host that it runs on, and its connection's place in the world's list.
struct Running {
    host: usize,
    link: usize,
    program: Program,
}

/// A connection of the world: the programs of its ends, as far as they have begun.
struct Link {
    wish: Wish,
    programs: [Option<usize>; 2],
}

/// The hosts, the network and the programs.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) hosts: Vec<Box<dyn Host>>,
    pub(crate) network: Network,
    /// The hosts that may answer SYNs with cookies. Such a host keeps nothing of a connection that
    /// is not yet accepted or has ended: it may reset the former when its cookie is too old, and
    /// accept the latter again.
    pub(crate) cookies: Vec<usize>,
    wishes: Vec<Wish>,
    links: Vec<Link>,
    programs: Vec<Running>,
    /// The connections by the addresses and ports of both ends.
    by_ends: HashMap<(SocketAddr, SocketAddr), usize>,
    pub(crate) events: u64,
}

impl World {
    pub(crate) fn new(hosts: Vec<Box<dyn Host>>, options: Options, rng: Rng) -> Self {
        let network = Network::new(options, hosts.len(), rng);
        Self {
            now: Instant::from_ns(SECOND),
            hosts,
            network,
            cookies: Vec::new(),
            wishes: Vec::new(),
            links: Vec::new(),
            programs: Vec::new(),
            by_ends: HashMap::new(),
            events: 0,
        }
    }

    /// Begins a connection at its time.
    pub(crate) fn wish(&mut self, wish: Wish) {
        self.wishes.push(wish);
    }

    /// Returns the bytes that the programs of one side of a connection have read.
    pub(crate) fn read(&self, link: usize, side: usize) -> u64 {
        let program = self.links.get(link).and_then(|link| link.programs[side]);
        program.map_or(0, |program| self.programs[program].program.read)
    }

    /// Does what is to be done now. Returns the time of the next event.
    fn step(&mut self) -> Option<Instant> {
        let now = self.now;
        self.events += 1;
        let mut is_due = vec![false; self.hosts.len()];
        while let Some((to, frame)) = self.network.deliver(now) {
            self.hosts[to].deliver(frame);
            is_due[to] = true;
        }
        self.begin(&mut is_due);
        for (host, is_due) in is_due.iter_mut().enumerate() {
            *is_due |= self.hosts[host].deadline().is_some_and(|at| at <= now);
        }
        for running in &self.programs {
            is_due[running.host] |= running.program.wakes_at().is_some_and(|at| at <= now);
        }
        for host in (0..is_due.len()).filter(|host| is_due[*host]) {
            self.run(host);
        }
        let wishes = self.wishes.iter().map(|wish| wish.at.max(now.after(1)));
        let programs = self.programs.iter().filter_map(|running| running.program.wakes_at());
        let hosts = self.hosts.iter().filter_map(|host| host.deadline());
        wishes.chain(programs).chain(hosts).chain(self.network.next()).min()
    }

    /// Lets a host handle what has arrived, its programs run, and what they have to send leave.
    fn run(&mut self, at: usize) {
        let now = self.now;
        self.hosts[at].input(now);
        loop {
            self.accept(at);
            let host = &mut *self.hosts[at];
            for running in self.programs.iter_mut().filter(|r| r.host == at && !r.program.is_over) {
                running.program.run(host, now);
            }
            for frame in host.output(now) {
                self.network.transmit(now, at, frame);
            }
            if !host.has_news() {
                break;
            }
        }
        if let Some(complaint) = self.hosts[at].complaint() {
            panic!("{complaint}: {}", self.describe());
        }
    }

    /// Begins the programs of the connections that a host has accepted.
    fn accept(&mut self, at: usize) {
        while let Some(conn) = self.hosts[at].accept() {
            let (local, peer) = self.hosts[at].ends(conn);
            let link = *self.by_ends.get(&(peer, local)).expect("a program began the connection");
            if let Some(first) = self.links[link].programs[1] {
                let has_ended = self.programs[first].program.is_over;
                let is_again = has_ended && self.cookies.contains(&at);
                assert!(is_again, "the connection {peer} to {local} was accepted twice");
                self.hosts[at].abort(conn);
                continue;
            }
            let Wish { plans, has_lies, .. } = self.links[link].wish;
            let program = Program::new(conn, plans, link as u64, 1, has_lies);
            self.links[link].programs[1] = Some(self.programs.len());
            self.programs.push(Running { host: at, link, program });
        }
    }

    /// Begins the connections whose time has come.
    fn begin(&mut self, is_due: &mut [bool]) {
        let now = self.now;
        let mut later = Vec::new();
        for mut wish in std::mem::take(&mut self.wishes) {
            if wish.at > now {
                later.push(wish);
                continue;
            }
            let addr: IpAddr = if wish.is_ipv6 { v6(wish.to).into() } else { v4(wish.to).into() };
            let port = if wish.is_refused { CLOSED_PORT } else { PORT };
            let from = wish.from;
            is_due[from] = true;
            let Some(conn) = self.hosts[from].connect(now, SocketAddr::new(addr, port)) else {
                wish.at = now.after(AGAIN_NS);
                later.push(wish);
                continue;
            };
            let link = self.links.len();
            self.by_ends.insert(self.hosts[from].ends(conn), link);
            let program = Program::new(conn, wish.plans, link as u64, 0, wish.has_lies);
            self.links.push(Link { wish, programs: [Some(self.programs.len()), None] });
            self.programs.push(Running { host: from, link, program });
        }
        self.wishes.append(&mut later);
    }

    /// Runs until `done` or for `ns` nanoseconds. Returns true if it is done.
    pub(crate) fn run_until(&mut self, ns: u64, done: impl Fn(&mut Self) -> bool) -> bool {
        let end = self.now.after(ns);
        loop {
            let next = self.step();
            assert!(self.events < MOST_EVENTS, "too many events: {}", self.describe());
            if done(self) {
                return true;
            }
            match next {
                Some(next) if next <= end => self.now = next.max(self.now),
                _ => break,
            }
        }
        self.now = end;
        done(self)
    }

    /// Runs until all connections have ended and all hosts have forgotten them, and checks what
    /// their programs have got.
    ///
    /// # Panics
    /// If they do not end within `ns` nanoseconds, or anything is not as it should be.
    pub(crate) fn complete(&mut self, ns: u64) {
        let ended = self.run_until(ns, |world| world.is_over());
        assert!(ended, "connections do not end: {}", self.describe());
        self.abort_lied_to();
        let forgotten = self.run_until(ns, |world| {
            world.is_over() && world.hosts.iter_mut().all(|host| host.connections() == 0)
        });
        assert!(forgotten, "connections are left: {}", self.describe());
        for link in 0..self.links.len() {
            if let Err(why) = self.check(&self.links[link]) {
                panic!("connection {link}: {why}: {}", self.describe());
            }
        }
    }

    /// Returns true if all connections have begun, and those without lies are over.
    fn is_over(&self) -> bool {
        let is_over = |r: &Running| r.program.is_over || self.links[r.link].wish.has_lies;
        self.wishes.is_empty() && self.programs.iter().all(is_over)
    }

    /// Ends the connections with lies.
    fn abort_lied_to(&mut self) {
        for Running { host, link, program } in &mut self.programs {
            if self.links[*link].wish.has_lies && !program.is_over {
                program.is_over = true;
                self.hosts[*host].abort(program.conn);
                let frames = self.hosts[*host].output(self.now);
                frames.into_iter().for_each(|f| self.network.transmit(self.now, *host, f));
            }
        }
    }

    /// Checks the end of a connection.
    fn check(&self, link: &Link) -> Result<(), String> {
        let sides = link.programs.map(|program| program.map(|p| &self.programs[p].program));
        if link.wish.has_lies {
            return Ok(());
        }
        if link.wish.is_refused {
            let error = sides[0].and_then(|program| program.error);
            let is_right = error == Some(TcpError::Refused)
                || sides[0].is_some_and(|program| program.has_aborted);
            return if is_right { Ok(()) } else { Err(format!("{error:?} instead of refused")) };
        }
        let aborts = sides.iter().flatten().any(|program| program.has_aborted);
        if let [Some(Program { error: Some(TcpError::Reset), .. }), None] = sides
            && self.cookies.contains(&link.wish.to)
        {
            return Ok(());
        }
        for program in sides {
            let Some(program) = program else {
                if aborts {
                    continue;
                }
                return Err("nobody has accepted it".into());
            };
            let is_whole = program.is_finished && program.read == program.peer.len;
            let is_sound = is_whole && program.is_closed && program.written == program.plan.len;
            match program.error {
                _ if program.has_aborted => {}
                None if is_sound => {}
                None if aborts && program.is_closed => {}
                Some(TcpError::Reset) if aborts => {}
                error => return Err(format!("it ended with {error:?}: {program:?}")),
            }
        }
        Ok(())
    }

    /// Returns the condition of everything, as text.
    pub(crate) fn describe(&mut self) -> String {
        let mut text = format!("at {:?}, {:?}\n", self.now, self.network.options);
        let _ = writeln!(text, "{:?}", self.network.count);
        for running in &self.programs {
            let Running { host, link, program } = running;
            if !program.is_over {
                let _ = writeln!(text, "host {host}, connection {link}: {program:?}");
            }
        }
        for host in &mut self.hosts {
            let _ = writeln!(text, "{}", host.describe());
        }
        text + &self.network.log()
    }
}
