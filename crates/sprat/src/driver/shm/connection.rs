//! One connection over shared memory: a socket, which carries wake-ups and the peer's end, and two
//! rings after the hellos.
//!
//! ```text
//! memory file:  256 B control of the ring to the server · 256 B control of the ring to the client
//!               unused to 4096 · data of the ring to the server · data of the ring to the client
//! ```
//!
//! The server makes the memory, so that it need not trust the peer's layout. The client checks the
//! layout that it gets.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::connected::Connected;
use super::hello::{self, Grant, Kind, Refusal};
use sprat_sys::memory::{Region, Sealed};
use sprat_sys::ring::{self, CONTROL, Consumer, Place, Producer};

/// The stage of a connection over shared memory.
#[derive(Debug)]
pub(super) enum State {
    /// The server waits for the client's hello.
    Accepted,
    /// The client waits for the server's hello.
    Opening,
    /// Both sides have exchanged hellos; the connection has two rings.
    Open(Rings),
}

/// The two rings of an open connection.
#[derive(Debug)]
pub(super) struct Rings {
    /// The ring that carries data from the peer.
    pub(super) rx: Consumer,
    /// The ring that carries data to the peer.
    pub(super) tx: Producer,
}

fn rings(memory: Region, grant: &Grant, fenced: bool, server: bool) -> Rings {
    let memory = Arc::new(memory);
    let place = |n: usize, secret| Place {
        memory: Arc::clone(&memory),
        control: n * CONTROL,
        data: hello::DATA + n * grant.ring_bytes,
        size: grant.ring_bytes,
        secret,
        fenced,
    };
    let (to_server, to_client) = (place(0, grant.to_server), place(1, grant.to_client));
    if server {
        Rings { rx: Consumer::new(to_server), tx: Producer::new(to_client) }
    } else {
        Rings { rx: Consumer::new(to_client), tx: Producer::new(to_server) }
    }
}

fn file_bytes(ring_bytes: usize) -> usize {
    hello::DATA + 2 * ring_bytes
}

/// Sends the client's hello on a new connection.
pub(super) fn greet(socket: &Connected, kind: Kind) -> io::Result<()> {
    let hello = hello::of_client(kind, ring::has_barrier());
    rustix::net::send(socket, &hello, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Reads one message from a connection's socket into `buffer`: its bytes, or `None` for the end;
/// `Err(WouldBlock)` if there is no message.
fn read<'b>(socket: &Connected, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
    // A message that fills the buffer is longer than a hello: so it is none, and its length shows
    // it.
    let (n, _) = rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT)?;
    Ok(if n == 0 { None } else { Some(&buffer[..n]) })
}

/// At the server: reads the client's hello if it has arrived, and answers it.
pub(super) fn answer(
    socket: &Connected,
    kind: Kind,
    ring_bytes: usize,
    secrets: [u64; 2],
) -> io::Result<Option<Rings>> {
    let mut buffer = [0; hello::LEN + 1];
    let message = match read(socket, &mut buffer) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        other => other?.ok_or(io::ErrorKind::UnexpectedEof)?,
    };
    let client_barrier = hello::read_client(kind, message).inspect_err(|refusal| {
        if let Some(answer) = refusal.answer(kind) {
            let _ = rustix::net::send(socket, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    });
    let client_barrier = client_barrier.map_err(refused)?;
    let grant = Grant {
        ring_bytes,
        to_server: secrets[0],
        to_client: secrets[1],
        barrier: ring::has_barrier(),
    };
    let file = Sealed::create(file_bytes(ring_bytes))?;
    let memory = Region::map(&file)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [file.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let hello = hello::of_server(kind, &grant);
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[io::IoSlice::new(&hello)], &mut ancillary, flags)?;
    Ok(Some(rings(memory, &grant, !(grant.barrier && client_barrier), true)))
}

/// At the client: reads the server's hello and its memory file if they have arrived.
pub(super) fn accept(socket: &Connected, kind: Kind) -> io::Result<Option<Rings>> {
    let mut buffer = [0; hello::LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = match rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut buffer)],
        &mut ancillary,
        flags,
    ) {
        Err(Errno::AGAIN) => return Ok(None),
        other => other?,
    };
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let grant = hello::read_server(kind, &buffer[..got.bytes]).map_err(refused)?;
    let file = ancillary
        .drain()
        .find_map(|m| match m {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| refused(Refusal::Garbage))?;
    let file = Sealed::check(file, file_bytes(grant.ring_bytes))?;
    let fenced = !(grant.barrier && ring::has_barrier());
    Ok(Some(rings(Region::map(&file)?, &grant, fenced, false)))
}

fn refused(refusal: Refusal) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, refusal)
}

/// Wakes the peer by a byte on the socket. A failure needs no report: a full socket holds enough
/// wakes, and the end of a closed one is an event.
#[cold]
pub(super) fn wake(socket: &Connected) {
    let _ = rustix::net::send(socket, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Takes the wake-ups that have arrived; false if the peer is gone. Takes no more than a few at
/// once, since a peer may send them without end.
pub(super) fn take_wakes(socket: &Connected) -> bool {
    let mut buffer = [0; 8];
    for _ in 0..4 {
        match read(socket, &mut buffer) {
            Ok(Some(_)) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
            Ok(None) | Err(_) => return false,
        }
    }
    true
}
