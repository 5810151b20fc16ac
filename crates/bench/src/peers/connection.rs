//! A connection to a peer's server: one non-blocking socket with many requests in progress.
//!
//! Requests that are queued between two turns leave in one system call, and one call takes the
//! replies that have arrived. A turn without work rests on the schedule of Sprat's workers: it
//! polls, yields, and then sleeps in `poll` until the socket is ready.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat_sys::clock::Clock;
use sprat_sys::cpu::{Idle, Rest};

use super::reply::{Parsed, Reply};
use super::{memcached, resp};
use crate::fail::{Fail, Named as _};

/// Bytes that one call receives at most.
const CHUNK: usize = 256 << 10;
/// Time for which the server may leave requests without an answer, in seconds.
const PATIENCE_S: i64 = 10;

/// A protocol that a peer's server speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// RESP, the protocol of Redis.
    Resp,
    /// The meta commands of memcached.
    Memcached,
}

impl Protocol {
    /// Adds a request that asks whether the server lives to `out`.
    fn ping(self, out: &mut Vec<u8>) {
        match self {
            Self::Resp => resp::ping(out),
            Self::Memcached => memcached::ping(out),
        }
    }

    /// Returns the reply at the beginning of `bytes`. `None`: it is incomplete.
    fn reply(self, bytes: &[u8]) -> Result<Option<Parsed>, String> {
        match self {
            Self::Resp => resp::parse(bytes),
            Self::Memcached => memcached::parse(bytes),
        }
    }
}

/// The address of a peer's server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// An address of TCP.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A connected socket.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn connect(at: &Address) -> io::Result<Self> {
        match at {
            Address::Tcp(at) => {
                let stream = TcpStream::connect(at)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Self::Tcp(stream))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(Self::Unix(stream))
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
}

/// A connection to a peer's server. Replies come in the order of the requests.
#[derive(Debug)]
pub struct Connection {
    protocol: Protocol,
    socket: Socket,
    /// The requests that have not left yet: those from byte `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// The received bytes, of which those before `taken` are parsed.
    input: Vec<u8>,
    taken: usize,
    /// End of the received bytes in `input`.
    filled: usize,
    /// The last reply in `input`, until the next turn.
    last: Range<usize>,
    /// The tags of the requests without a reply, in order.
    tags: VecDeque<u32>,
    idle: Idle,
    clock: Clock,
}

impl Connection {
    /// Connects to a server.
    pub fn open(protocol: Protocol, at: &Address) -> io::Result<Self> {
        Ok(Self {
            protocol,
            socket: Socket::connect(at)?,
            out: Vec::new(),
            sent: 0,
            input: vec![0; CHUNK],
            taken: 0,
            filled: 0,
            last: 0..0,
            tags: VecDeque::new(),
            idle: Idle::new(),
            clock: Clock::new(),
        })
    }

    /// Queues a request that reads an object. Its reply has the tag `tag`.
    pub fn get(&mut self, key: &[u8], tag: u32) {
        match self.protocol {
            Protocol::Resp => resp::get(&mut self.out, key),
            Protocol::Memcached => memcached::get(&mut self.out, key),
        }
        self.tags.push_back(tag);
    }

    /// Queues a request that writes an object. Its reply has the tag `tag`.
    pub fn set(&mut self, key: &[u8], value: &[u8], tag: u32) {
        match self.protocol {
            Protocol::Resp => resp::set(&mut self.out, key, value),
            Protocol::Memcached => memcached::set(&mut self.out, key, value),
        }
        self.tags.push_back(tag);
    }

    /// Queues a write of an object and of its key to the sorted set of keys. Both replies have the
    /// tag `tag`.
    pub fn insert_ordered(&mut self, key: &[u8], value: &[u8], tag: u32) {
        resp::set(&mut self.out, key, value);
        resp::add_to_order(&mut self.out, key);
        self.tags.extend([tag, tag]);
    }

    /// Queues a request for `count` keys of the sorted set, from `key` on. Its reply, a list, has
    /// the tag `tag`.
    pub fn keys_from(&mut self, key: &[u8], count: u64, tag: u32) {
        resp::keys_from(&mut self.out, key, count);
        self.tags.push_back(tag);
    }

    /// Queues a request that reads the objects whose keys are the elements of the last reply. Its
    /// reply, a list, has the tag `tag`.
    pub fn read_listed(&mut self, tag: u32) {
        let keys: Vec<&[u8]> = resp::elements(&self.input[self.last.clone()]).flatten().collect();
        resp::read_all(&mut self.out, &keys);
        self.tags.push_back(tag);
    }

    /// Iterates over the elements of the last reply, a list, until the next turn.
    pub fn elements(&self) -> impl Iterator<Item = Option<&[u8]>> {
        resp::elements(&self.input[self.last.clone()])
    }

    /// Sends what is queued and receives what has arrived. Rests if there was neither.
    ///
    /// # Errors
    /// The server closes the connection, or leaves requests without an answer for
    /// [`PATIENCE_S`] seconds.
    pub fn turn(&mut self) -> Result<(), Fail> {
        let sent = self.send()?;
        let received = self.receive()?;
        if sent || received {
            self.idle.worked();
            return Ok(());
        }
        match self.idle.rest(!self.tags.is_empty(), || self.clock.now()) {
            Rest::Spun | Rest::Yielded => Ok(()),
            Rest::Sleep => self.sleep(),
        }
    }

    fn sleep(&self) -> Result<(), Fail> {
        if self.tags.is_empty() {
            return Ok(());
        }
        let mut wanted = PollFlags::IN;
        if self.sent < self.out.len() {
            wanted |= PollFlags::OUT;
        }
        let limit = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        match poll(&mut [PollFd::from_borrowed_fd(self.socket.fd(), wanted)], Some(&limit)) {
            Ok(0) => Err(Fail::new("the server has stopped answering")),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Fail::new(format!("cannot wait for the server: {error}"))),
        }
    }

    fn send(&mut self) -> Result<bool, Fail> {
        if self.sent == self.out.len() {
            return Ok(false);
        }
        let count = some(self.socket.write(&self.out[self.sent..]))?;
        self.sent += count;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        Ok(count > 0)
    }

    fn receive(&mut self) -> Result<bool, Fail> {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        } else if self.taken > 0 && self.input.len() - self.filled < CHUNK / 2 {
            self.input.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
        }
        if self.filled == self.input.len() {
            self.input.resize(self.filled + CHUNK, 0);
        }
        let read = self.socket.read(&mut self.input[self.filled..]);
        if matches!(read, Ok(0)) {
            return Err(Fail::new("the server has closed the connection"));
        }
        let count = some(read)?;
        self.filled += count;
        Ok(count > 0)
    }

    /// Returns the next reply and the tag of its request. `None`: none has arrived.
    ///
    /// # Errors
    /// The server reports an error, or sends bytes that are no reply.
    pub fn reply(&mut self) -> Result<Option<(u32, Reply)>, Fail> {
        let parsed = self.protocol.reply(&self.input[self.taken..self.filled]);
        let Some((reply, bytes)) = parsed.map_err(Fail::new)? else { return Ok(None) };
        self.last = self.taken..self.taken + bytes;
        self.taken += bytes;
        match self.tags.pop_front() {
            Some(tag) => Ok(Some((tag, reply))),
            None => Err(Fail::new("the server sent a reply without a request")),
        }
    }

    /// Returns true if the server answers.
    pub fn answers(&mut self) -> bool {
        self.protocol.ping(&mut self.out);
        self.tags.push_back(0);
        loop {
            if self.turn().is_err() {
                return false;
            }
            match self.reply() {
                Ok(None) => {}
                Ok(Some((_, reply))) => return reply == Reply::Done,
                Err(_) => return false,
            }
        }
    }
}

/// Returns the number of bytes that a call has moved: 0 if the socket was not ready.
fn some(moved: io::Result<usize>) -> Result<usize, Fail> {
    match moved {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(0)
        }
        other => other.named("the connection to the server"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Bytes at random, made of pieces of replies, are a reply, incomplete or an error. A reply is
    /// never longer than the bytes.
    #[test]
    fn no_bytes_break_the_parsers() {
        let pieces: [&[u8]; 14] = [
            b"*2\r\n",
            b":",
            b"$",
            b"-1",
            b"\r\n",
            b"VA ",
            b"9",
            b"+OK\r\n",
            b"HD\r\n",
            b"EN\r\n",
            b"\r",
            b"-ERR",
            b"18446744073709551615",
            b"\0",
        ];
        let mut rng = sprat_proto::Rng::seeded(11);
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..rng.below(8) {
                bytes.extend_from_slice(pieces[rng.below(pieces.len() as u64) as usize]);
            }
            for protocol in [Protocol::Resp, Protocol::Memcached] {
                if let Ok(Some((_, length))) = protocol.reply(&bytes) {
                    assert!(length > 0 && length <= bytes.len(), "{protocol:?}: {bytes:?}");
                }
            }
        }
    }

    /// A server that sends canned bytes: the client sends its requests in order, and finds replies
    /// that arrive in pieces.
    #[test]
    fn replies_have_the_tags_of_their_requests() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let mut client =
            Connection::open(Protocol::Resp, &Address::Unix(path)).expect("it connects");
        let (mut server, _) = listener.accept().expect("a client");
        client.get(b"a", 7);
        client.set(b"b", b"xyz", 8);
        client.get(b"c", 9);
        client.turn().expect("it sends");
        let mut expected = Vec::new();
        resp::get(&mut expected, b"a");
        resp::set(&mut expected, b"b", b"xyz");
        resp::get(&mut expected, b"c");
        let mut received = vec![0; expected.len()];
        server.read_exact(&mut received).expect("the requests");
        assert_eq!(received, expected);
        let mut found = Vec::new();
        for piece in [&b"$3\r\nab"[..], b"c\r\n+OK\r", b"\n$-1\r\n"] {
            server.write_all(piece).expect("the client lives");
            client.turn().expect("it receives");
            while let Some(reply) = client.reply().expect("replies") {
                found.push(reply);
            }
        }
        assert_eq!(found, [(7, Reply::Value(3)), (8, Reply::Done), (9, Reply::Absent)]);
        server.write_all(b"+OK\r\n").expect("the client lives");
        client.turn().expect("it receives");
        assert!(client.reply().is_err(), "a reply without a request");
        drop(server);
        assert!(client.turn().is_err(), "the server is gone");
    }
}
