//! Tests of listeners of queue pairs that serve the programs of one machine and refuse other
//! machines.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use sprat::verbs::{ConnectionId, Device, Options, SocketOptions};
use sprat_sys::netns::Wire;

use crate::Case;

/// The time after which a connection that is not open fails the test.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::root("machines::a_listener_for_this_machine_serves_no_other", one_machine)]
}

/// Without `insecure_network` a program connects to each address of its own machine, also to one
/// that is not on loopback. No connection to or from another machine is possible.
fn one_machine() {
    let net = Wire::new(1500).unwrap();
    let at = |i| SocketAddr::from((Wire::kernel(i), 0));
    let inside = net.end(0).enter().unwrap();
    let device = Device::open(Options::default()).unwrap();
    device.allows(at(0)).unwrap();
    assert_eq!(device.allows(at(1)).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    let channel = device.connection_channel().unwrap();
    let id = ConnectionId::new(&channel, 0);
    let bound = device.bind(at(0), SocketOptions::default()).unwrap();
    assert!(bound.is_local_only());
    let to = id.listen(bound, 1).unwrap();
    let own = TcpStream::connect(to).unwrap();
    let other = net.end(1).run(|| TcpStream::connect(to)).unwrap().unwrap();
    let goes_on = |mut peer: &TcpStream| {
        let end = peer.read(&mut [0]);
        end.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
    };
    for peer in [&own, &other] {
        peer.set_nonblocking(true).unwrap();
    }
    assert!(device.wait(PATIENCE, || !goes_on(&other)), "a peer on another machine");
    let counted = device.counters();
    assert_eq!((counted.accepted, counted.accept_refused), (1, 1));
    assert!(goes_on(&own), "a peer with the address that it connects to");
    drop(inside);
}
