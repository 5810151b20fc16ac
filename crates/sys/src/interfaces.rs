//! The machine's IP interfaces, as the RDMA devices that they stand for: one device each, loopback
//! included.
//!
//! Always holds: an interface that is listed has a name and at least one IP address. The list shows
//! the state at the time of the call; an interface may come and go at any time.
//!
//! Not here: sockets, and the uses that each device allows.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The prefix of the names of RDMA devices. The interface's name follows.
const PREFIX: &str = "iw_";
/// The MTU of an interface that reports none: Ethernet's, in bytes.
const ETHERNET_MTU: u32 = 1500;

/// An IP interface of this machine, which stands for one RDMA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The interface's name, `lo` or `eth0`.
    pub name: String,
    /// The interface's number in the system (its index).
    pub index: u32,
    /// True if the interface is up and has a carrier.
    pub up: bool,
    /// True if the interface leads back to this machine.
    pub loopback: bool,
    /// The interface's longest packet (MTU), in bytes.
    pub mtu: u32,
    /// The interface's rate in Mb/s, if it reports one.
    pub mbps: Option<u32>,
    /// The interface's hardware address; zeros where it has none.
    pub mac: [u8; 6],
    /// The interface's addresses: IPv4 first, link-local ones last, otherwise in the system's
    /// order.
    pub addresses: Vec<IpAddr>,
}

impl Interface {
    /// Returns the name of the interface's RDMA device: `iw_lo` for `lo`.
    #[must_use]
    pub fn device(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// Returns the GUID of the interface's RDMA device, which depends on the hardware address
    /// alone: its EUI-64 (RFC 4291, appendix A). Without an address, the GUID is marked as local
    /// and has the interface's number.
    #[must_use]
    pub fn guid(&self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.mac;
        if self.mac == [0; 6] {
            let [_, i, j, k] = self.index.to_be_bytes();
            return [0x02, b's', b'p', 0xff, 0xfe, i, j, k];
        }
        [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f]
    }

    /// Returns the interface's addresses as GIDs of verbs, 16 bytes each: an IPv4 address is
    /// `::ffff:a.b.c.d`.
    pub fn gids(&self) -> impl Iterator<Item = [u8; 16]> + '_ {
        self.addresses.iter().map(|address| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

/// Returns all interfaces with an IP address, in the order of their numbers.
///
/// # Errors
/// The system does not list them.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found = BTreeMap::new();
    let mut macs = BTreeMap::new();
    let mut first = std::ptr::null_mut();
    // SAFETY: the pointer is to a local variable, into which the call puts the head of a list that
    // is ours to free.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut at = first;
    // SAFETY: `at` is null or an entry of the list, which lives until it is freed below.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        // SAFETY: every entry names its interface by a string that ends with a zero and lives as
        // long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        match address(entry.ifa_addr) {
            Some(Address::Ip(ip)) => {
                found.entry(name).or_insert_with(|| (entry.ifa_flags, vec![])).1.push(ip)
            }
            Some(Address::Mac(mac)) => {
                macs.insert(name, mac);
            }
            None => {}
        }
    }
    // SAFETY: the list's head, as the system gave it, freed once; nothing of it is used from here
    // on.
    unsafe { libc::freeifaddrs(first) };
    let mut all: Vec<Interface> = found
        .into_iter()
        .map(|(name, (flags, addresses))| {
            let mac = macs.get(&name).copied().unwrap_or_default();
            interface(name, flags, mac, addresses)
        })
        .collect();
    all.sort_by_key(|i| i.index);
    Ok(all)
}

fn interface(name: String, flags: u32, mac: [u8; 6], mut addresses: Vec<IpAddr>) -> Interface {
    let has = |flag: libc::c_int| flags & flag.cast_unsigned() != 0;
    // The sort is stable, so that the system's order holds within each kind.
    addresses.sort_by_key(|address| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    });
    let number = |what: &str| -> Option<u32> {
        let text = std::fs::read_to_string(format!("/sys/class/net/{name}/{what}")).ok()?;
        text.trim().parse().ok()
    };
    Interface {
        index: number("ifindex").unwrap_or_default(),
        up: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        mtu: number("mtu").unwrap_or(ETHERNET_MTU),
        // Interfaces without a wire say -1, or nothing.
        mbps: number("speed"),
        mac,
        addresses,
        name,
    }
}

enum Address {
    Ip(IpAddr),
    Mac([u8; 6]),
}

/// Parses an address of the system's list: an IP address or a hardware address.
fn address(at: *const libc::sockaddr) -> Option<Address> {
    // SAFETY: null, or an address of the list that `interfaces` walks, which lives.
    let family = unsafe { at.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family has this shape, and the system aligns it for any.
            let v4 = unsafe { &*at.cast::<libc::sockaddr_in>() };
            // The bytes are in the order of the wire.
            Some(Address::Ip(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            Some(Address::Ip(Ipv6Addr::from(v6.sin6_addr.s6_addr).into()))
        }
        libc::AF_PACKET => {
            // SAFETY: as above.
            let link = unsafe { &*at.cast::<libc::sockaddr_ll>() };
            let mac = link.sll_addr.get(..usize::from(link.sll_halen))?;
            Some(Address::Mac(mac.try_into().ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_a_device() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|i| i.loopback).expect("every machine that tests run on has one");
        assert_eq!(lo.device(), format!("iw_{}", lo.name));
        assert!(lo.up && lo.mtu >= 1500 && lo.index > 0, "{lo:?}");
        assert!(lo.addresses.contains(&Ipv4Addr::LOCALHOST.into()), "{lo:?}");
        assert!(all.iter().all(|i| !i.addresses.is_empty()));
    }

    #[test]
    fn numbers_and_gids_come_from_addresses() {
        let addresses = vec![
            "fe80::1".parse().unwrap(),
            "10.1.2.3".parse().unwrap(),
            "2001:db8::1".parse().unwrap(),
        ];
        let mut i =
            interface("nothing-has-this-name".to_owned(), 0, [0x52, 0x54, 0, 1, 2, 3], addresses);
        assert_eq!(i.guid(), [0x50, 0x54, 0, 0xff, 0xfe, 1, 2, 3]);
        let gids: Vec<[u8; 16]> = i.gids().collect();
        assert_eq!(gids[0], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(
            (gids[1][..4].to_vec(), gids[2][..2].to_vec()),
            (vec![0x20, 1, 0x0d, 0xb8], vec![0xfe, 0x80])
        );
        assert!(!i.up && !i.loopback && i.mtu == 1500);
        (i.mac, i.index) = ([0; 6], 0x0102_0304);
        assert_eq!(i.guid(), [2, b's', b'p', 0xff, 0xfe, 2, 3, 4]);
    }
}
