//! Tests of the networks that the other tests use: namespaces, veth pairs, the kernel's own UDP
//! across them.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use sprat_sys::netns::{Namespace, link};

use crate::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::root("networks::interfaces_are_made_described_and_removed", interfaces),
        Case::root("networks::the_kernels_own_udp_crosses_a_pair", kernel_udp),
    ]
}

fn interfaces() {
    let (a, b) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    link::veth([(&a, "left"), (&b, "right")], 9000, 1).unwrap();
    let left = a.run(|| link::find("left")).unwrap().unwrap();
    let right = b.run(|| link::find("right")).unwrap().unwrap();
    for end in [&left, &right] {
        assert!(end.up && end.mac.is_unicast() && !end.xdp, "{end:?}");
        assert_eq!((end.mtu, end.kind.as_str()), (9000, "veth"));
    }
    let kind = |name: &str| a.run(|| link::find(name)).unwrap().unwrap_err().kind();
    for name in ["right", "", "no\0name", "a name that is far too long"] {
        assert_eq!(kind(name), io::ErrorKind::NotFound, "{name:?}");
    }
    b.run(|| link::switch("right", false)).unwrap().unwrap();
    assert!(!b.run(|| link::find("right")).unwrap().unwrap().up);
    a.run(|| link::remove("left")).unwrap().unwrap();
    assert_eq!(b.run(|| link::of_index(right.index)).unwrap().unwrap(), None);
}

fn kernel_udp() {
    let (a, b) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    link::veth([(&a, "v"), (&b, "v")], 1500, 1).unwrap();
    for (here, there) in [("10.1.0.1", "10.1.0.2"), ("fd00::1", "fd00::2")] {
        a.run(|| link::address("v", here.parse().unwrap(), 24)).unwrap().unwrap();
        b.run(|| link::address("v", there.parse().unwrap(), 24)).unwrap().unwrap();
        let receiver = b.run(|| UdpSocket::bind((there, 7))).unwrap().unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let inside = a.enter().unwrap();
        let sender = UdpSocket::bind((here, 0)).unwrap();
        drop(inside);
        sender.send_to(b"across", (there, 7)).unwrap();
        let mut bytes = [0; 16];
        let (n, from) = receiver.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..n], from), (&b"across"[..], sender.local_addr().unwrap()));
        assert!(UdpSocket::bind((here, 0)).is_err(), "the thread has left");
    }
}
