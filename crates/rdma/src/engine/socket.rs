//! System calls that move bytes between a stream and registered memory, from and to where the bytes
//! lie.
//!
//! Not here: what makes that sound ([`sprat_sys::gather`]).

use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::SendFlags;
use sprat_proto::rdma::{Part, Record, Span};
use sprat_proto::rpc::Slices;
use sprat_sys::gather::{self, Gather, Source, Target};
use sprat_sys::socket;

use super::regions::{Regions, Sink};

pub(super) use sprat_sys::gather::PIECES;

/// Sends the bytes of `record` behind the first `skip`; returns how many bytes the stream took.
///
/// # Errors
/// `WouldBlock`, or the error that ended the connection. `InvalidInput` or `EFAULT` if memory of
/// the record is unmapped.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    record: &Record,
    skip: usize,
    regions: &Regions,
    slices: &dyn Slices,
) -> io::Result<usize> {
    if let [Part::Bytes(range)] = &record.parts[..] {
        return send_bytes(socket, record.bytes[range.clone()].get(skip..).unwrap_or_default());
    }
    let mut pieces = Gather::new(skip);
    for part in &record.parts {
        match part {
            Part::Bytes(range) => pieces.add(Source::Bytes(&record.bytes[range.clone()])),
            Part::Memory(span) => {
                regions
                    .pieces(*span, slices, |piece| pieces.add(piece))
                    .map_err(|_| io::ErrorKind::InvalidInput)?;
            }
        }
    }
    pieces.send(socket)
}

/// True if a send failed since memory is unmapped, and the connection has not failed.
pub(super) fn is_unmapped(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput || error.raw_os_error() == Some(libc::EFAULT)
}

/// Sends bytes that lie in one piece, without a list of pieces.
fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
}

/// Receives into registered memory and, once that is full, into `then`. Returns the number of bytes
/// received, 0 at the end of the stream.
///
/// # Errors
/// `WouldBlock`, or the error that ended the connection. `InvalidInput` or `EFAULT` if the region
/// or its memory is gone.
pub(super) fn receive_into(
    socket: BorrowedFd<'_>,
    span: Span,
    regions: &mut Regions,
    then: &mut [u8],
) -> io::Result<usize> {
    let (offset, len) = (span.offset as usize, span.len as usize);
    let target = match regions.sink(span).ok_or(io::ErrorKind::InvalidInput)? {
        Sink::Region(region) => Target::Region(region, offset, len),
        Sink::Foreign(memory) => Target::Foreign(memory, offset, len),
        Sink::Message(message) => Target::Append(message, len),
    };
    gather::receive(socket, target, then)
}

/// The most bytes that TCP puts into one segment of this connection at present.
///
/// # Errors
/// The socket is no TCP socket any more.
pub(super) fn segment(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut value: libc::c_int = 0;
    socket::get(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, &mut value)?;
    u32::try_from(value).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Makes a later bind to port 0 choose no port: connecting chooses one, which connections to other
/// peers may share.
///
/// # Errors
/// The system has no such option.
pub(super) fn bind_without_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    let yes: libc::c_int = 1;
    socket::set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &yes)
}
