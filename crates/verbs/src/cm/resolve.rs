//! Binding an rdma_cm id to an address, resolving a peer's address, and the ports of a route.
//!
//! The kernel chooses the interface that leads to a peer: connecting a UDP socket to it sends no
//! packet and gives the socket the local address of the route. An engine with a device of its own
//! knows the routes itself.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use sprat_rdma::SocketOptions;

use super::address::{explain_restriction, read, wildcard};
use super::delivery::wait_outcome;
use super::event::{ADDR_ERROR, ADDR_RESOLVED, ROUTE_RESOLVED, own};
use super::id::{Id, Stage, State};
use crate::abi::cm::Id as Raw;
use crate::entry::{Errno, INVALID, export};

/// Binds an rdma_cm id that has no address.
pub(super) fn bind(
    id: &Id,
    state: &mut State,
    to: SocketAddr,
    connects: bool,
) -> Result<(), Errno> {
    let options = SocketOptions { connects, ..state.options };
    let bound = id.engine.device.bind(to, options)?;
    let local = bound.local_addr();
    // A loopback address does not select a device, as with the kernel's rdma_cm: programs such as
    // libfabric use one to ask for any device.
    if !local.ip().is_unspecified() && !local.ip().is_loopback() {
        id.set_device(local)?;
    }
    // The peer's address is unknown, but has the same family.
    id.set_route(Some(local), Some(wildcard(local)));
    state.bound = Some(bound);
    state.stage = Stage::Bound;
    Ok(())
}

/// The local address of the route to a peer.
fn source(id: &Id, from: Option<SocketAddr>, to: SocketAddr) -> Result<SocketAddr, Errno> {
    let from = from.unwrap_or_else(|| wildcard(to));
    if let Some(ip) = id.engine.device.route(to.ip())? {
        return Ok(SocketAddr::new(ip, from.port()));
    }
    let socket = UdpSocket::bind(SocketAddr::new(from.ip(), 0))?;
    // Port 9 stands for a port that is not known yet.
    let port = if to.port() == 0 { 9 } else { to.port() };
    let mut peer = to;
    peer.set_port(port);
    socket.connect(peer)?;
    let mut found = socket.local_addr()?;
    found.set_port(from.port());
    Ok(found)
}

export! {
    /// Binds an rdma_cm id to a local address.
    minus fn sprat_rdma_bind_addr(id: *mut Raw, addr: *mut libc::sockaddr) -> c_int {
        // SAFETY: The program passes null or a live id, and null or a valid address.
        let (own, to) = unsafe { (Id::usable(id)?, read(addr)?) };
        let mut state = own.state();
        if !matches!(state.stage, Stage::Idle) {
            return Err(INVALID);
        }
        bind(own, &mut state, to, false)?;
        Ok(0)
    }

    /// Finds the device that leads to a peer's address. An event reports the outcome.
    minus fn sprat_rdma_resolve_addr(
        id: *mut Raw,
        from: *mut libc::sockaddr,
        to: *mut libc::sockaddr,
        _timeout_ms: c_int,
    ) -> c_int {
        // SAFETY: The program passes null or a live id, and null or valid addresses.
        let (own, to) = unsafe { (Id::usable(id)?, read(to)?) };
        // SAFETY: The pointer is not null, and the program passes a valid address.
        let from = if from.is_null() { None } else { Some(unsafe { read(from) }?) };
        resolve(own, from, to)?;
        wait_outcome(own)?;
        Ok(0)
    }

    /// Resolves the route of an rdma_cm id to its resolved address, which takes no work.
    minus fn sprat_rdma_resolve_route(id: *mut Raw, _timeout_ms: c_int) -> c_int {
        // SAFETY: The program passes null or a live id.
        let id = unsafe { Id::usable(id) }?;
        let mut state = id.state();
        if !matches!(state.stage, Stage::Resolved) {
            return Err(INVALID);
        }
        state.stage = Stage::Routed;
        drop(state);
        id.id.post(own(ROUTE_RESOLVED, 0));
        wait_outcome(id)?;
        Ok(0)
    }
}

fn resolve(id: &Id, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), Errno> {
    let mut state = id.state();
    if !matches!(state.stage, Stage::Idle | Stage::Bound)
        || from.is_some_and(|f| f.is_ipv4() != to.is_ipv4())
    {
        return Err(INVALID);
    }
    let to = match to.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, to.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, to.port()).into(),
        _ => to,
    };
    id.engine.device.allows(to).inspect_err(|_| {
        explain_restriction(to, "belongs to another machine and is not reached")
    })?;
    if matches!(state.stage, Stage::Idle)
        && let Some(from) = from
    {
        bind(id, &mut state, from, true)?;
    }
    let bound = state.bound.as_ref().map(sprat_rdma::BoundAddress::local_addr);
    if bound.is_some_and(|b| b.is_ipv4() != to.is_ipv4()) {
        return Err(INVALID);
    }
    let found = source(id, bound, to).and_then(|own| id.set_device(own).map(|()| own));
    let word = match found {
        Ok(source) => {
            id.set_route(Some(source), Some(to));
            state.stage = Stage::Resolved;
            own(ADDR_RESOLVED, 0)
        }
        Err(error) => own(ADDR_ERROR, -error.0),
    };
    drop(state);
    id.id.post(word);
    Ok(())
}

/// A port of an rdma_cm id's route in network byte order; 0 without an address.
fn port(id: *mut Raw, of: impl FnOnce(&Raw) -> libc::sockaddr_storage) -> u16 {
    // SAFETY: The program passes null or a live id.
    let Some(raw) = (unsafe { id.as_ref() }) else { return 0 };
    let storage = of(raw);
    // SAFETY: The local variable has the size of the longest address.
    unsafe { read((&raw const storage).cast()) }.map_or(0, |address| address.port().to_be())
}

export! {
    /// The local port of an rdma_cm id.
    plain fn sprat_rdma_get_src_port(id: *mut Raw) -> u16 {
        Ok(port(id, |raw| raw.route.addr.source))
    }

    /// The peer's port of an rdma_cm id.
    plain fn sprat_rdma_get_dst_port(id: *mut Raw) -> u16 {
        Ok(port(id, |raw| raw.route.addr.destination))
    }
}
