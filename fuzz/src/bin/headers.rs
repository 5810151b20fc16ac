//! Fuzzes the headers of IP and below it: no bytes panic; a header that parses is written back as
//! the same bytes, except for parts that the parser skips.
//!
//! The first byte chooses the header; the rest is a peer's. The fuzzer corrects checksums first,
//! because a wrong one would end the parsing.

#![no_main]

use core::net::{Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::fuzz_target;
use sprat_proto::wire::arp::Arp;
use sprat_proto::wire::checksum::Sum;
use sprat_proto::wire::ethernet::Ethernet;
use sprat_proto::wire::icmp::Icmp;
use sprat_proto::wire::icmpv6::Icmpv6;
use sprat_proto::wire::ipv4::{Ecn, Ipv4};
use sprat_proto::wire::ipv6::{Fragment, ICMPV6, Ipv6, Upper, upper};
use sprat_proto::wire::tcp::{MAX_HEADER, Tcp};
use sprat_proto::wire::udp::Udp;

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    match which % 9 {
        0 => {
            if let Some((header, payload)) = Ethernet::parse(bytes) {
                assert_eq!([&header.emit()[..], payload].concat(), bytes);
            }
        }
        1 => {
            if let Some(arp) = Arp::parse(bytes) {
                assert_eq!(arp.emit(), bytes[..28]);
            }
        }
        2 => v4(bytes),
        3 => {
            if let Ok((header, payload)) = Ipv6::parse(bytes) {
                assert_eq!(
                    Ipv6::parse(&[&header.emit(payload.len())[..], payload].concat()),
                    Ok((header, payload))
                );
            }
        }
        4 => extensions(bytes),
        5 => {
            if let Some((header, payload)) = Udp::parse(bytes) {
                assert_eq!(header.emit(payload.len()), bytes[..8]);
            }
        }
        6 => icmp(bytes),
        7 => tcp(bytes),
        _ => icmpv6(bytes),
    }
});

/// A header keeps its fields. SACK blocks that have no room beside the other options are left out.
fn tcp(bytes: &[u8]) {
    let Ok((mut header, _)) = Tcp::parse(bytes) else { return };
    let mut out = [0; MAX_HEADER];
    let len = header.emit(&mut out);
    let (again, _) = Tcp::parse(&out[..len]).expect("it was emitted");
    header.options.sack.truncate(again.options.sack.as_slice().len());
    assert_eq!(again, header);
}

/// Returns `bytes` with the checksum at `at` corrected. The checksum begins with `sum`.
fn mended(bytes: &[u8], at: usize, len: usize, sum: Sum) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.fill(0);
        let checksum = sum.bytes(&bytes[..len.min(bytes.len())]).checksum();
        bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    bytes
}

fn v4(bytes: &[u8]) {
    let Some(&first) = bytes.first() else { return };
    let bytes = mended(bytes, 10, usize::from(first & 15) * 4, Sum::new());
    let Ok((header, payload)) = Ipv4::parse(&bytes) else { return };
    assert_eq!(Ipv4::quoted(&bytes).map(|(quoted, _)| quoted), Some(header));
    let again = header.emit(payload.len());
    assert_eq!(Ipv4::parse(&[&again, payload].concat()), Ok((header, payload)));
}

fn extensions(bytes: &[u8]) {
    let Some((&next, rest)) = bytes.split_first() else { return };
    match upper(next, rest) {
        Upper::Whole(_, payload) => assert!(rest.ends_with(payload)),
        Upper::Part(fragment, payload) => {
            assert!(rest.ends_with(payload) && rest.len() - payload.len() >= 8);
            let again = fragment.emit();
            assert_eq!(Fragment::parse(&again), Some((fragment, &[][..])));
        }
        Upper::Bad => assert!(matches!(next, 0 | 43 | 44 | 60), "all others are payload"),
    }
}

fn icmp(bytes: &[u8]) {
    let bytes = mended(bytes, 2, usize::MAX, Sum::new());
    let Ok((message, data)) = Icmp::parse(&bytes) else { return };
    // What is known of another message is its type alone.
    if !matches!(message, Icmp::Other(_)) {
        let again = [&message.emit(data)[..], data].concat();
        assert_eq!(Icmp::parse(&again).map(|(message, _)| message), Ok(message));
    }
    if let Some((_, quoted)) = Ipv4::quoted(data) {
        assert!(data.ends_with(quoted));
    }
}

fn icmpv6(bytes: &[u8]) {
    let [from, to] =
        [Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST].map(|a| Ipv6Addr::from(a.to_ipv6_mapped()));
    let ip = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: ICMPV6, hops: 255, from, to };
    let bytes = mended(bytes, 2, usize::MAX, ip.pseudo(ICMPV6, bytes.len()));
    let Ok((message, data)) = Icmpv6::parse(&ip, &bytes) else { return };
    if !matches!(message, Icmpv6::Other(_)) {
        let again = message.emit(&ip, data);
        assert_eq!(Icmpv6::parse(&ip, &again).map(|(message, _)| message), Ok(message));
    }
}
