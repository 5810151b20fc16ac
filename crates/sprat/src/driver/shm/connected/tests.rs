//! Tests of the pidfd of a peer; and copies of a peer's sockets that outlive it, for tests of dead
//! peers.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::*;
use sprat_sys::fork::Child;

/// A socket pair by which a forked child hands copies of its descriptors to the test. The test
/// holds them as would a process that the child has forked.
pub(crate) struct Copies(OwnedFd, OwnedFd);

impl Copies {
    pub(crate) fn new() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let ends = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .unwrap();
        Self(ends.0, ends.1)
    }

    /// Sends a copy of the descriptor `fd`; the child calls this.
    pub(crate) fn give(&self, fd: BorrowedFd<'_>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        rustix::net::sendmsg(&self.0, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty())
            .unwrap();
    }

    /// Waits for the next descriptor from the child and returns it; the test calls this.
    pub(crate) fn take(&self) -> OwnedFd {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let parts = &mut [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(&self.1, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
        let mut messages = ancillary.drain();
        match messages.next() {
            Some(RecvAncillaryMessage::ScmRights(mut fds)) => fds.next().unwrap(),
            _ => panic!("no descriptor came"),
        }
    }
}

#[test]
fn a_process_that_has_ended_is_refused_by_its_number() {
    assert!(by_number(rustix::process::getpid().as_raw_nonzero().get()).unwrap().is_some());
    assert!(by_number(0).unwrap().is_none(), "a process of another namespace may live");
    // The highest number that the kernel gives is 4,194,303.
    assert_eq!(by_number(i32::MAX).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn what_a_forked_process_drops_stays_connected() {
    let Copies(a, b) = Copies::new();
    let mut here = Some(Connected::new(a).unwrap());
    assert_eq!(here.as_ref().unwrap().user(), rustix::process::geteuid());
    Child::spawn(|| drop(here.take())).unwrap().wait();
    let here = here.unwrap();
    assert_eq!(rustix::net::send(&here, b"x", SendFlags::NOSIGNAL).unwrap(), 1);
    let copy = here.as_fd().try_clone_to_owned().unwrap();
    drop(here);
    let mut buffer = [0; 2];
    assert_eq!(rustix::net::recv(&b, &mut buffer[..], RecvFlags::DONTWAIT).unwrap().0, 1);
    assert_eq!(
        rustix::net::recv(&b, &mut buffer[..], RecvFlags::DONTWAIT).unwrap().0,
        0,
        "the end"
    );
    drop(copy);
}
