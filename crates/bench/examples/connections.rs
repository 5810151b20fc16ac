//! Measures what many idle TCP connections cost the busy ones: the time that a server takes for a
//! packet of a request and its answer, with 16 connections in each burst, of 16 and of 100,000
//! connections. The time of both ends together, client and server in one process, is beside it.
//!
//! ```text
//! cargo run --release -p sprat-bench --example connections [CONNECTIONS]
//! ```

#![allow(clippy::print_stdout)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant as Clock;

use sprat_proto::net::IpFields;
use sprat_proto::net::tcp::{
    Outgoing, PathLimits, Segment, TcpConfig, TcpFlow, TcpHost, TcpId, TcpOutput,
};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::wire::tcp::Tcp;
use sprat_proto::{Instant, Rng};

/// The connections that have data in a burst.
const BURST: usize = 16;
const BURSTS: usize = 40_000;
const PORT: u16 = 7;
/// The connections of one client address: less than there are dynamic ports.
const OF_CLIENT: usize = 10_000;

/// The segments that a host sends, as their receiver sees them.
#[derive(Default)]
struct Wire(Vec<(TcpFlow, Tcp, Vec<u8>)>);

impl TcpOutput for Wire {
    fn limits(&mut self, _: &TcpFlow) -> PathLimits {
        PathLimits { mss: 1460, link_mss: 1460, most: 0 }
    }

    fn emit(&mut self, flow: &TcpFlow, _: IpFields, outgoing: &Outgoing<'_>) -> bool {
        let data = [outgoing.data.0, outgoing.data.1].concat();
        let flow = TcpFlow { local: flow.peer, peer: flow.local };
        self.0.push((flow, outgoing.tcp, data));
        true
    }
}

struct World {
    now: Instant,
    server: TcpHost,
    client: TcpHost,
    packets: usize,
    /// The nanoseconds that the server took.
    served: u128,
}

/// Lets a host take the segments that have arrived in one burst.
fn take(host: &mut TcpHost, now: Instant, wire: &Wire) {
    host.look_ahead(wire.0.iter().map(|&(flow, ..)| flow));
    for (flow, tcp, data) in &wire.0 {
        host.input(now, *flow, &Segment { tcp: *tcp, data, is_marked: false });
    }
}

impl World {
    /// Carries segments both ways until there are none.
    fn exchange(&mut self) {
        loop {
            let [mut to_client, mut to_server] = [Wire::default(), Wire::default()];
            let start = Clock::now();
            self.server.output(self.now, &mut to_client);
            self.served += start.elapsed().as_nanos();
            self.client.output(self.now, &mut to_server);
            let count = to_client.0.len() + to_server.0.len();
            self.packets += count;
            if count == 0 {
                return;
            }
            self.now = self.now.after(US);
            take(&mut self.client, self.now, &to_client);
            let start = Clock::now();
            take(&mut self.server, self.now, &to_server);
            self.served += start.elapsed().as_nanos();
        }
    }

    /// Lets the programs answer and read what there is.
    fn serve(&mut self) -> Vec<TcpId> {
        let mut bytes = [0; 256];
        let mut opened = Vec::new();
        let start = Clock::now();
        while let Some((id, _)) = self.server.event() {
            let count = self.server.read(id, &mut bytes);
            self.server.write(id, &bytes[..count]);
        }
        self.served += start.elapsed().as_nanos();
        while let Some((id, changes)) = self.client.event() {
            self.client.read(id, &mut bytes);
            opened.extend(changes.opened.then_some(id));
        }
        opened
    }
}

/// Returns the nanoseconds that a packet takes at the server, received or sent, and those of both
/// ends.
fn measure(count: usize) -> [f64; 2] {
    let config = TcpConfig { no_delay: true, ..TcpConfig::default() };
    let host = |seed| TcpHost::new(config.clone(), 2 * count, Rng::seeded(seed));
    let now = Instant::from_ns(SECOND);
    let mut world = World { now, server: host(1), client: host(2), packets: 0, served: 0 };
    let server = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), PORT);
    world.server.listen(PORT, 1000).expect("the port is free");
    let mut ids = Vec::new();
    for n in 0..count {
        let client = Ipv4Addr::new(10, 1, 0, (n / OF_CLIENT) as u8);
        let from = SocketAddr::new(IpAddr::V4(client), 0);
        world.client.connect(world.now, from, server).expect("a port is free");
        if n % 100 == 0 || n + 1 == count {
            world.exchange();
            ids.extend(world.serve());
        }
    }
    assert_eq!(ids.len(), count);
    let mut rng = Rng::seeded(3);
    let mut spent = 0;
    world.packets = 0;
    for n in 0..BURSTS + BURSTS / 10 {
        if n == BURSTS / 10 {
            (spent, world.packets, world.served) = (0, 0, 0);
        }
        let start = Clock::now();
        for _ in 0..BURST {
            let id = ids[rng.below(count as u64) as usize];
            world.client.write(id, &[7; 64]);
        }
        world.exchange();
        world.serve();
        world.exchange();
        world.serve();
        world.now = world.now.after(MS);
        world.server.tick(world.now);
        world.client.tick(world.now);
        spent += start.elapsed().as_nanos();
    }
    [world.served, spent].map(|ns| ns as f64 / world.packets as f64)
}

fn main() {
    let most = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100_000);
    println!("connections  ns a packet: server  both ends");
    let few = measure(BURST);
    println!("{BURST:11}  {:18.0}  {:9.0}", few[0], few[1]);
    let many = measure(most);
    println!("{most:11}  {:18.0}  {:9.0}", many[0], many[1]);
    println!("      times  {:18.2}  {:9.2}", many[0] / few[0], many[1] / few[1]);
}
