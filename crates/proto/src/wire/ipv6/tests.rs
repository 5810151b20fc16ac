use alloc::vec::Vec;

use super::*;

const A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0xa);
const B: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0xb);

/// The IPv6 headers of the last fragment of an echo request that Linux 6 sent, without the flow
/// label.
const LAST: [u8; HEADER + FRAGMENT] = [
    0x60, 0, 0, 0, 0x01, 0x70, 0x2c, 0x40, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0,
    0x0a, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0x0b, 0x3a, 0, 0x05, 0xa8, 0x4b,
    0xaa, 0x49, 0x4a,
];

#[test]
fn golden() {
    let mut packet = LAST.to_vec();
    packet.resize(HEADER + 0x170 + 3, 7);
    let (header, rest) = Ipv6::parse(&packet).unwrap();
    assert_eq!(
        header,
        Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: FRAGMENTED, hops: 64, from: A, to: B }
    );
    assert_eq!((header.emit(0x170), rest.len()), (*LAST.first_chunk().unwrap(), 0x170));
    let classed = Ipv6 { dscp: 46, ecn: Ecn::Ect0, ..header };
    assert_eq!(classed.emit(0)[..2], [0x6b, 0xa0]);
    assert_eq!(Ipv6::quoted(&classed.emit(0)), Ok((classed, &[][..])));
    let fragment = Fragment { next: ICMPV6, offset: 1448, more: false, ident: 0x4baa_494a };
    assert_eq!(upper(header.next, rest), Upper::Part(fragment, &rest[8..]));
    assert_eq!(fragment.emit(), LAST[HEADER..]);
    let first = Fragment { offset: 0, more: true, ..fragment };
    assert_eq!(Fragment::parse(&first.emit()), Some((first, &[][..])));
}

#[test]
fn truncated_packets_and_other_versions_are_rejected() {
    let mut packet = LAST.to_vec();
    packet.resize(HEADER + 0x170, 7);
    assert!(
        (0..packet.len()).all(|len| Ipv6::parse(&packet[..len]) == Err(Ipv6ParseError::Length))
    );
    packet[0] = 0x45;
    assert_eq!(Ipv6::parse(&packet), Err(Ipv6ParseError::Version));
}

#[test]
fn extension_headers_are_skipped_by_the_rules_of_rfc_8200() {
    let pad = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let whole = |first: u8, headers: &[[u8; 8]]| {
        let bytes: Vec<u8> = headers.concat().into_iter().chain([9, 9]).collect();
        match upper(first, &bytes) {
            Upper::Whole(protocol, rest) => Some((protocol, rest.len())),
            _ => None,
        }
    };
    assert_eq!(whole(UDP, &[]), Some((UDP, 2)));
    assert_eq!(whole(HOP_BY_HOP, &[pad(DESTINATION), pad(UDP)]), Some((UDP, 2)));
    // A routing header is skipped if no segments are left.
    assert_eq!(whole(ROUTING, &[[UDP, 0, 0, 0, 0, 0, 0, 0]]), Some((UDP, 2)));
    assert_eq!(whole(ROUTING, &[[UDP, 0, 0, 1, 0, 0, 0, 0]]), None);
    // Unknown options are skipped or fatal by their high bits. Options longer than their header are
    // invalid.
    assert_eq!(whole(DESTINATION, &[[UDP, 0, 0x3e, 4, 0, 0, 0, 0]]), Some((UDP, 2)));
    assert_eq!(whole(DESTINATION, &[[UDP, 0, 0xbe, 4, 0, 0, 0, 0]]), None);
    assert_eq!(whole(DESTINATION, &[[UDP, 0, 0x3e, 5, 0, 0, 0, 0]]), None);
    assert_eq!(whole(DESTINATION, &[[UDP, 0, 0, 0, 0, 0, 0, 5]]), None);
    assert_eq!(whole(DESTINATION, &[[UDP, 9, 1, 4, 0, 0, 0, 0]]), None);
    assert_eq!(whole(DESTINATION, &[pad(DESTINATION); 4]), None, "too many");
    assert_eq!(upper(HOP_BY_HOP, &[17]), Upper::Bad);
    assert_eq!(upper(FRAGMENTED, &[17; 7]), Upper::Bad);
}

/// IPv6 addresses are derived as in the examples of RFC 4291 appendix A and section 2.7.1 and by
/// the rule of RFC 2464 section 7.
#[test]
fn addresses_are_derived_from_mac_addresses_and_groups() {
    let mac = Mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
    assert_eq!(link_local(mac), "fe80::3656:78ff:fe9a:bcde".parse::<Ipv6Addr>().unwrap());
    let address = "4037::01:800:200e:8c6c".parse().unwrap();
    assert_eq!(solicited(address), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
    assert_eq!(group_mac(solicited(B)), Mac([0x33, 0x33, 0xff, 0, 0, 0xb]));
}
