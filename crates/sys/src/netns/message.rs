//! Messages to and from rtnetlink(7), the kernel's interface for network interfaces.
//!
//! ```text
//! message    length: u32, type: u16, flags: u16, sequence: u32, sender: u32, body, attributes …
//! attribute  length: u16 (4 + value), type: u16, value, padding to a multiple of four
//! ```
//! All numbers are in the machine's byte order.

use std::io;

use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType};

pub(super) const DUMP_ROOM: usize = 32 << 10;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// Flags that, with [`REQUEST`], make an object that must not exist yet.
pub(super) const CREATE: u16 = 0x600;
/// Flags that, with [`REQUEST`], make an object or replace the one that exists.
pub(super) const REPLACE: u16 = 0x500;
const ERROR: u16 = 2;
const NESTED: u16 = 0x8000;

/// Returns the two bytes of a number in the machine's byte order.
pub(super) fn u16s(value: u16) -> [u8; 2] {
    value.to_le().to_le_bytes()
}

/// Returns the four bytes of a number in the machine's byte order.
pub(super) fn u32s(value: u32) -> [u8; 4] {
    value.to_le().to_le_bytes()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le(u32::from_le_bytes(four)))
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_le(u16::from_le_bytes(two)))
}

/// A request to rtnetlink under construction.
#[derive(Debug)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Begins a request of type `kind`, with the fixed part `body`.
    pub(super) fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&u16s(kind));
        bytes[6..8].copy_from_slice(&u16s(REQUEST | ACK | flags));
        bytes.extend_from_slice(body);
        Self { bytes }
    }

    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.bytes.extend_from_slice(&u16s(4 + value.len() as u16));
        self.bytes.extend_from_slice(&u16s(kind));
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// Adds an attribute that holds the attributes that `inner` adds.
    pub(super) fn nest(mut self, kind: u16, inner: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&u16s(kind | NESTED));
        let mut done = inner(self);
        let len = (done.bytes.len() - start) as u16;
        done.bytes[start..start + 2].copy_from_slice(&u16s(len));
        done
    }

    /// Adds bytes that are no attribute of their own: the fixed part inside an attribute.
    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Sends the request to the kernel, in the calling thread's network namespace. Returns the
    /// kernel's first answer without its header; an answer that only acknowledges the request is
    /// empty.
    pub(super) fn ask(mut self) -> io::Result<Vec<u8>> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&u32s(len));
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::send(&socket, &self.bytes, SendFlags::empty())?;
        let mut answer = vec![0; DUMP_ROOM];
        let (got, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
        answer.truncate(got);
        let short =
            || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is too short");
        let kind = u16_at(&answer, 4).ok_or_else(short)?;
        if kind == ERROR {
            let code = u32_at(&answer, 16).ok_or_else(short)? as i32;
            return if code == 0 {
                Ok(Vec::new())
            } else {
                Err(io::Error::from_raw_os_error(-code))
            };
        }
        let len = u32_at(&answer, 0).ok_or_else(short)? as usize;
        Ok(answer.get(16..len.min(answer.len())).ok_or_else(short)?.to_vec())
    }
}

/// Returns the types and values of the attributes in `bytes`. The flags of the types are left out.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}
