//! Tests of options and soft errors of streams, over a wire in memory.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread::{scope, yield_now};
use std::time::Duration;

use sprat_proto::device::{Device as _, HEADER, Mac, Offload};
use sprat_proto::net::tcp::TcpConfig;
use sprat_proto::net::{self, Ipv4Assignment, StackOptions};
use sprat_proto::time::MS;
use sprat_proto::wire::ethernet::{self, Ethernet};
use sprat_proto::wire::icmp::Icmp;
use sprat_proto::wire::ipv4::{self, Ecn, Ipv4};
use sprat_proto::{Instant, Rng};
use sprat_sys::clock;

use super::native::Interface;
use super::*;
use crate::device::AnyNic;
use crate::device::fake::{self, Fake};
use crate::interface::Opened;

const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
const PORT: u16 = 7;

/// Returns the address of an end of the wire.
fn address(end: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + end as u8)
}

fn at(end: usize, port: u16) -> SocketAddr {
    SocketAddr::new(address(end).into(), port)
}

/// Returns the IP stack of an end of the wire, which knows the other end.
fn interface<D: sprat_proto::Device>(end: usize, device: D) -> net::Interface<D> {
    let ipv4 = Ipv4Assignment::Static { addr: address(end), prefix: 24 };
    let options = StackOptions { ipv4, ..StackOptions::default() };
    let mut interface = net::Interface::new(options, device, Rng::seeded(end as u64));
    interface.set_neighbour(address(1 - end).into(), MACS[1 - end]);
    interface.tick(clock::now());
    interface
}

/// Returns the TCP stack of an end of the wire.
fn stack(end: usize, device: Fake, options: &Options) -> Stack {
    let locator = format!("utcp+packet:dev=fake,host={}", address(end)).parse().unwrap();
    let interface = interface(end, AnyNic::other(device));
    let opened = Opened { interface, own: at(end, 0), crc: true };
    Stack::over(Interface::over(locator, opened, options), options).unwrap()
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A stream has the options of its stack or of its listener until the program sets its own, which
/// change no other stream.
#[test]
fn options_are_those_of_the_stack_the_listener_or_the_stream() {
    let [a, b] = fake::pair(MACS, 1500).unwrap();
    let options = Options::default().dscp(46).ttl(200).keep_alive(Some(seconds(9)));
    let (client, server) = (stack(0, a, &options), stack(1, b, &Options::default()));
    let listener = server.listen(PORT, 8).unwrap();
    listener.set_ttl(9).unwrap();
    listener.set_dscp(10).unwrap();
    listener.set_nodelay(true);
    listener.set_keep_alive(Some(seconds(100)));
    listener.set_user_timeout(seconds(50));
    let [one, other] = [(); 2].map(|()| client.connect(at(1, PORT)).unwrap());
    let (accepted, _) = listener.accept().unwrap();
    let all = |stream: &Stream| {
        let (keep_alive, user_timeout) = (stream.keep_alive(), stream.user_timeout());
        (stream.dscp(), stream.ttl(), stream.nodelay(), keep_alive, user_timeout)
    };
    assert_eq!(all(&accepted), (10, 9, true, Some(seconds(100)), seconds(50)));
    let of_stack = (46, 200, false, Some(seconds(9)), seconds(120));
    assert_eq!(all(&one), of_stack);
    one.set_dscp(63).unwrap();
    one.set_ttl(255).unwrap();
    one.set_nodelay(true);
    one.set_keep_alive(None);
    one.set_user_timeout(seconds(3));
    assert_eq!(all(&one), (63, 255, true, None, seconds(3)));
    assert_eq!(all(&other), of_stack);
}

#[test]
fn options_out_of_range_are_refused_and_change_nothing() {
    let [a, b] = fake::pair(MACS, 1500).unwrap();
    let (client, server) = (stack(0, a, &Options::default()), stack(1, b, &Options::default()));
    let listener = server.listen(PORT, 8).unwrap();
    let stream = client.connect(at(1, PORT)).unwrap();
    for ttl in [0, 256, 64 + 256] {
        for result in [stream.set_ttl(ttl), listener.set_ttl(ttl)] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), format!("a time to live is 1 to 255, not {ttl}"));
        }
    }
    for result in [stream.set_dscp(64), listener.set_dscp(64)] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "a DSCP is 0 to 63, not 64");
    }
    let (accepted, _) = listener.accept().unwrap();
    for stream in [stream, accepted] {
        assert_eq!((stream.ttl(), stream.dscp()), (64, 0));
    }
}

/// The other end of the wire, by hand: an IP stack that the test drives, until it is silent.
struct Peer(net::Interface<Fake>);

impl Peer {
    fn turn(&mut self) {
        self.0.tick(clock::now());
        while self.0.input() > 0 {}
        self.0.output();
    }

    /// Returns the next IP packet on the wire that ends with these bytes, and takes no notice of
    /// any.
    fn catch(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            let device = self.0.device_mut();
            for i in 0..device.recv_burst() {
                if let (frame, _) = device.frame(i)
                    && frame.ends_with(end)
                {
                    return frame[HEADER..].to_vec();
                }
            }
            yield_now();
        }
    }

    /// Sends the ICMP error "host unreachable" of a router about a packet.
    fn report(&mut self, from: Ipv4Addr, packet: &[u8]) {
        let head = Icmp::Unreachable { code: 1 }.emit(packet);
        let ip = Ipv4 {
            dscp: 0,
            ecn: Ecn::NotEct,
            dont_fragment: true,
            more: false,
            offset: 0,
            ident: 0,
            ttl: 64,
            protocol: ipv4::ICMP,
            from,
            to: address(0),
        };
        let ethernet = Ethernet { to: MACS[0], from: MACS[1], kind: ethernet::IPV4 };
        let ip = ip.emit(head.len() + packet.len());
        self.0.device_mut().send(&[&ethernet.emit(), &ip, &head, packet], Offload::None);
    }
}

/// Waits until a value is there.
fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let end: Instant = clock::now().after(20_000 * MS);
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(clock::now() < end, "nothing has come");
        yield_now();
    }
}

/// A report of the network ends no connection. The error of a connection that times out later, and
/// of a call whose time is over, names it.
#[test]
fn a_soft_error_is_named_by_the_timeout_that_follows() {
    let [a, b] = fake::pair(MACS, 1500).unwrap();
    let config = TcpConfig { min_timeout_ns: MS, ..TcpConfig::default() };
    let client = stack(0, a, &Options::default().config(config).linger(Duration::ZERO));
    let mut peer = Peer(interface(1, b));
    peer.0.stack_mut().enable_tcp(TcpConfig::default(), 10);
    peer.0.tcp().unwrap().listen(PORT, 5).unwrap();
    let mut stream = scope(|threads| {
        let connecting = threads.spawn(|| client.connect(at(1, PORT)).unwrap());
        while !connecting.is_finished() {
            peer.turn();
            yield_now();
        }
        connecting.join().unwrap()
    });
    peer.turn();
    assert_eq!(stream.soft_error(), None);
    stream.write_all(b"lost").unwrap();
    let packet = peer.catch(b"lost");
    let router = Ipv4Addr::new(10, 0, 0, 99);
    peer.report(router, &packet);
    let report = until(|| stream.soft_error());
    let error = TcpSoftError::Unreachable { code: 1 };
    assert_eq!(report, TcpReport { error, from: IpAddr::V4(router) });
    assert_eq!(stream.take_error(), None);
    stream.set_read_timeout(Some(Duration::from_millis(1)));
    let late = stream.read(&mut [0]).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::WouldBlock);
    let named = "; the last report was: host unreachable from 10.0.0.99";
    assert!(late.to_string().contains(&format!("no answer in time{named}")), "{late}");
    stream.set_read_timeout(None);
    stream.set_user_timeout(Duration::from_millis(1));
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains(&format!("connection timed out{named}")), "{error}");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamError>()).unwrap();
    assert_eq!((inner.ended(), inner.report()), (Some(TcpError::TimedOut), Some(report)));
}
