//! One UDP socket of the driver: the peers that it reaches, and the system calls that receive and
//! send.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;

use rustix::net::sockopt;
use sprat_sys::datagram::{self, Outgoing};

use super::options::Counters;
use super::received::{Rx, STRIDE};

/// The size in bytes that the driver asks of the kernel for each socket's buffers; the kernel
/// grants less without privilege.
const SOCKET_BUFFER: usize = 8 << 20;

/// A UDP socket of the driver.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) inner: UdpSocket,
    pub(super) local: SocketAddr,
    /// The socket's only peer, if it is connected.
    pub(super) peer: Option<SocketAddr>,
    /// True until the kernel refuses to segment super-packets for the socket.
    pub(super) gso: bool,
}

impl Socket {
    /// Opens a UDP socket bound to `addr`.
    pub(super) fn open(addr: SocketAddr) -> io::Result<Self> {
        let inner = UdpSocket::bind(addr)?;
        inner.set_nonblocking(true)?;
        // Larger buffers and joined receives only make it faster: whatever the kernel refuses, it
        // works without.
        if sockopt::set_socket_recv_buffer_size_force(&inner, SOCKET_BUFFER).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&inner, SOCKET_BUFFER);
        }
        if sockopt::set_socket_send_buffer_size_force(&inner, SOCKET_BUFFER).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&inner, SOCKET_BUFFER);
        }
        let _ = datagram::set_gro(inner.as_fd());
        let local = inner.local_addr()?;
        Ok(Self { inner, local, peer: None, gso: true })
    }

    /// Connects the socket to its only peer.
    pub(super) fn connect(&mut self, peer: SocketAddr) -> io::Result<()> {
        self.inner.connect(peer)?;
        self.peer = Some(peer);
        Ok(())
    }

    /// True if datagrams to `to` can leave by this socket.
    pub(super) fn reaches(&self, to: &SocketAddr) -> bool {
        if let Some(peer) = &self.peer {
            return peer == to;
        }
        let local = self.local.ip();
        local.is_ipv4() == to.is_ipv4()
            && (!local.to_canonical().is_loopback() || to.ip().to_canonical().is_loopback())
    }

    /// Receives messages from the socket. Returns true if any arrived.
    pub(super) fn receive(&self, rx: &mut Rx, counters: &mut Counters) -> bool {
        let fd = self.inner.as_fd();
        let want = rx.want();
        let got = if want > 1 {
            datagram::recv(fd, &mut rx.buffer, STRIDE, &mut rx.messages[..want])
        } else {
            let one = datagram::recv_one(fd, &mut rx.buffer[..STRIDE], self.peer.is_none());
            one.map(|one| {
                rx.messages[0] = one;
                1
            })
        };
        match got {
            Ok(got) => {
                rx.begin(got, self.peer);
                true
            }
            Err(e) => {
                let idle =
                    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                counters.receive_errors += u64::from(!idle);
                false
            }
        }
    }

    /// Sends the runs of datagrams `items` by the socket.
    pub(super) fn transmit(&mut self, mut items: &[Outgoing<'_>], counters: &mut Counters) {
        let (mut refused, named) = (false, self.peer.is_none());
        while let Some(first) = items.first() {
            let sent = match (items, first.segment, first.pieces) {
                ([_], None, [bytes]) => {
                    let to = named.then_some(first.to);
                    datagram::send_one(self.inner.as_fd(), to, bytes).map(|()| 1)
                }
                (_, Some(segment), _) if !self.gso => {
                    for bytes in first.pieces.iter().flat_map(|p| p.chunks(usize::from(segment))) {
                        let pieces = &[IoSlice::new(bytes)];
                        self.transmit(&[Outgoing { pieces, segment: None, ..*first }], counters);
                    }
                    items = &items[1..];
                    continue;
                }
                _ => datagram::send(self.inner.as_fd(), items, named),
            };
            match sent {
                Ok(n) => {
                    counters.sent += items[..n].iter().map(datagrams).sum::<u64>();
                    items = &items[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The error of a connected socket belongs to an earlier datagram; this one was not
                // sent yet.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && !refused => {
                    refused = true;
                }
                // The device does not compute checksums (EIO), the path's MTU is smaller than a
                // datagram (EINVAL, EMSGSIZE), or the kernel is too old: singly they may pass.
                Err(e) if first.segment.is_some() && segmentation_refused(&e) => self.gso = false,
                Err(_) => {
                    counters.send_dropped += datagrams(first);
                    items = &items[1..];
                }
            }
        }
    }
}

/// The number of datagrams in a message to the kernel.
fn datagrams(item: &Outgoing<'_>) -> u64 {
    let Some(segment) = item.segment else { return 1 };
    item.pieces.iter().map(|piece| piece.len().div_ceil(usize::from(segment)) as u64).sum()
}

fn segmentation_refused(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}
