//! Fuzzes TCP: whatever segments arrive for the connections of a host, in whatever order and time,
//! nothing panics, and the number of connections stays within its limit.
//!
//! The input is a script: a byte chooses the next step, and further bytes are its parameters. Near
//! numbers are added to those that the connection expects, so that segments are often acceptable.

#![no_main]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use sprat_proto::net::IpFields;
use sprat_proto::net::tcp::{
    Outgoing, PathLimits, Segment, TcpConfig, TcpFlow, TcpHost, TcpOutput,
};
use sprat_proto::time::MS;
use sprat_proto::wire::tcp::{Flags, Tcp, TcpOptions};
use sprat_proto::{Instant, Rng};

/// The most connections of the host.
const MOST: usize = 8;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.iter().copied();
    let Some(seed) = bytes.next() else { return };
    let mut host = TcpHost::new(TcpConfig::default(), MOST, Rng::seeded(seed.into()));
    let _ = host.listen(7, 4);
    let own = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 7);
    let peer = |n: u8| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 100 + u16::from(n));
    let mut now = Instant::from_ns(1);
    let mut flows = Vec::new();
    // The last header that the host has sent: what it expects, and what it has acknowledged.
    let mut last = Tcp::default();
    while let Some(step) = bytes.next() {
        let mut next = || bytes.next().unwrap_or(0);
        match step % 8 {
            0 => flows.push(TcpFlow { local: own, peer: peer(next() % 4) }),
            1 => {
                if let Ok(id) = host.connect(now, SocketAddr::new(own.ip(), 0), peer(next() % 4)) {
                    flows.extend(host.flow(id));
                }
            }
            2 => {
                now = now.after(u64::from(next()) * u64::from(next()) * MS);
                host.tick(now);
            }
            3 => {
                while let Some((id, changes)) = host.event() {
                    let mut into = [0; 300];
                    host.read(id, &mut into);
                    host.write(id, &into[..usize::from(next())]);
                    match next() % 4 {
                        0 => host.close(id),
                        1 => host.abort(id),
                        _ if changes.ended => host.release(id),
                        _ => {}
                    }
                }
            }
            _ => {
                let Some(&flow) = flows.get(usize::from(next()) % flows.len().max(1)) else {
                    continue;
                };
                let near = |value: u32, byte: u8| value.wrapping_add(byte as i8 as u32);
                let flags = Flags(next());
                let (seq, ack) = (near(last.ack, next()), near(last.seq, next()));
                let mut options = TcpOptions { mss: last.options.mss, ..TcpOptions::default() };
                options.timestamps = last.options.timestamps.map(|(a, b)| (near(b, next()), a));
                options.sack_permitted = next() % 2 == 0;
                for _ in 0..next() % 4 {
                    options.sack.push((near(ack, next()), near(ack, next())));
                }
                let window = u16::from(next()) << 8;
                let (from, to) = (flow.peer.port(), flow.local.port());
                let tcp = Tcp { from, to, seq, ack, flags, window, urgent: 0, options };
                let data = vec![1; usize::from(next())];
                host.input(now, flow, &Segment { tcp, data: &data, is_marked: step > 128 });
            }
        }
        host.output(now, &mut Recorder { last: &mut last, mtu: 600 + u16::from(next()) });
        flows.truncate(32);
        assert!(host.connections() <= MOST);
    }
});

/// Takes the segments of the host, and remembers what follows the last one.
struct Recorder<'a> {
    last: &'a mut Tcp,
    mtu: u16,
}

impl TcpOutput for Recorder<'_> {
    fn limits(&mut self, _: &TcpFlow) -> PathLimits {
        PathLimits { mss: self.mtu, link_mss: 1460, most: 3000 }
    }

    fn emit(&mut self, _: &TcpFlow, _: IpFields, outgoing: &Outgoing<'_>) -> bool {
        *self.last = outgoing.tcp;
        let len = outgoing.data.0.len() + outgoing.data.1.len();
        self.last.seq = self.last.seq.wrapping_add(len as u32);
        true
    }
}
