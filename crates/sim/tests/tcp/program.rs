//! The programs at both ends of a connection: each writes bytes that depend on their place, reads
//! those of the other, and ends its direction or the connection as its plan says.

use sprat_proto::net::tcp::TcpError;
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};

use super::host::{Conn, Host};

/// The bytes that a program writes at once at most.
const CHUNK: usize = 4096;

/// The way in which a program ends its part of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It closes its direction when all is written.
    Close,
    /// It closes its direction when all is written, and the peer's direction has ended.
    CloseLast,
    /// It ends the connection at once when it has written and read this many bytes.
    Abort(u64),
}

/// The plan of the program at one end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The bytes to write, the most to write or read at once, and the time between two reads.
    pub(crate) len: u64,
    pub(crate) writes: usize,
    pub(crate) reads: usize,
    pub(crate) read_every_ns: u64,
    /// The number of bytes after which the program reads nothing for a while.
    pub(crate) stops_at: u64,
    pub(crate) stops_ns: u64,
    /// True if the program writes only when the peer's direction has ended.
    pub(crate) is_second: bool,
    pub(crate) end: End,
}

impl Plan {
    /// Returns the plan of a program that writes `len` bytes and closes.
    pub(crate) const fn plain(len: u64) -> Self {
        Self {
            len,
            writes: CHUNK,
            reads: 1 << 16,
            read_every_ns: 0,
            stops_at: u64::MAX,
            stops_ns: 0,
            is_second: false,
            end: End::Close,
        }
    }

    /// Draws the plans of both ends. Each writes at most `most` bytes, and a share `abort_ppm` of
    /// them aborts.
    pub(crate) fn draw(rng: &mut Rng, most: u64, abort_ppm: u32) -> [Self; 2] {
        let mut plans = [(); 2].map(|()| {
            let most = [1, 100, most / 10, most, most][rng.below(5) as usize];
            let len = rng.below(most + 1);
            let is_slow = rng.chance(200_000);
            let end = if rng.chance(abort_ppm) {
                End::Abort(rng.below(2 * most + 1))
            } else {
                End::Close
            };
            Self {
                len,
                writes: [1 + rng.below(100) as usize, CHUNK, CHUNK][rng.below(3) as usize],
                reads: if is_slow { 1 + rng.below(3000) as usize } else { 1 << 16 },
                read_every_ns: if is_slow { rng.below(20 * MS) } else { 0 },
                stops_at: if rng.chance(200_000) { rng.below(most) } else { u64::MAX },
                stops_ns: rng.below(20 * SECOND),
                is_second: false,
                end,
            }
        });
        // A byte at a time is for short streams.
        for plan in &mut plans {
            let least = (plan.len / 300) as usize;
            (plan.writes, plan.reads) = (plan.writes.max(least), plan.reads.max(least));
        }
        let end = rng.below(4) as usize;
        if let Some(plan) = plans.get_mut(end) {
            plan.is_second = rng.chance(500_000);
            if plan.end == End::Close {
                plan.end = End::CloseLast;
            }
        }
        plans
    }

    /// Makes the client speak without a word from the server. A server that answered with a cookie
    /// keeps nothing of the connection: if the acknowledgement is lost, only further segments of
    /// the client make it known.
    pub(crate) fn client_speaks(&mut self) {
        self.is_second = false;
        if self.end == End::CloseLast {
            self.end = End::Close;
        }
    }
}

/// Returns the byte of a stream at a place.
fn byte(stream: u64, at: u64) -> u8 {
    (at.wrapping_add(stream).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The program at one end of a connection.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) conn: Conn,
    pub(crate) plan: Plan,
    pub(crate) peer: Plan,
    /// The numbers of the streams that the program writes, and reads.
    streams: [u64; 2],
    pub(crate) written: u64,
    pub(crate) read: u64,
    may_read: bool,
    may_write: bool,
    has_stopped: bool,
    /// The program reads nothing before this time.
    reads_at: Instant,
    pub(crate) is_finished: bool,
    pub(crate) is_closed: bool,
    /// True if the program has ended the connection at once.
    pub(crate) has_aborted: bool,
    pub(crate) has_opened: bool,
    has_ended: bool,
    /// True if the connection has ended and everything was read, or the program needs it no more.
    pub(crate) is_over: bool,
    pub(crate) error: Option<TcpError>,
    /// True if the program lets the host forget the connection before it has ended.
    releases_early: bool,
    /// True if the peer lies, so that any bytes may come.
    is_lied_to: bool,
}

impl Program {
    /// Returns the program of the `side` of a connection: 0 has begun it. With lies any bytes may
    /// come.
    pub(crate) fn new(conn: Conn, plans: [Plan; 2], key: u64, side: usize, lies: bool) -> Self {
        let streams = [key.wrapping_mul(7919), key.wrapping_mul(104_729)];
        Self {
            conn,
            plan: plans[side],
            peer: plans[1 - side],
            streams: [streams[side], streams[1 - side]],
            written: 0,
            read: 0,
            may_read: true,
            may_write: true,
            has_stopped: false,
            reads_at: Instant::ZERO,
            is_finished: false,
            is_closed: false,
            has_aborted: false,
            has_opened: side == 1,
            has_ended: false,
            is_over: false,
            error: None,
            releases_early: key.is_multiple_of(3),
            is_lied_to: lies,
        }
    }

    /// Returns the time at which the program has something to do, if no event is before it.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        let waits = self.may_read && self.reads_at > Instant::ZERO && !self.is_over;
        waits.then_some(self.reads_at)
    }

    /// Lets the program read, write and end. It looks for data only after the host has reported
    /// changes.
    ///
    /// # Panics
    /// A byte is not the one that the peer has written.
    pub(crate) fn run(&mut self, host: &mut dyn Host, now: Instant) {
        let changes = host.changes(self.conn);
        self.has_opened |= changes.opened;
        self.may_read |= changes.readable;
        self.may_write |= changes.writable || changes.opened;
        self.has_ended |= changes.ended;
        if self.has_ended {
            // What has arrived can still be read, and will not get more.
            (self.may_read, self.reads_at) = (true, Instant::ZERO);
            self.plan.read_every_ns = 0;
            self.has_stopped = true;
        }
        self.read(host, now);
        if self.has_ended {
            let status = host.status(self.conn);
            assert!(status.has_ended, "{self:?}");
            (self.is_over, self.error) = (true, status.error);
            return host.release(self.conn);
        }
        self.write(host);
        self.end(host);
    }

    fn read(&mut self, host: &mut dyn Host, now: Instant) {
        let mut bytes = [0; 1 << 16];
        while self.may_read && self.reads_at <= now {
            let count = host.read(self.conn, &mut bytes[..self.plan.reads]);
            self.reads_at = Instant::ZERO;
            for (i, byte_read) in bytes[..count].iter().enumerate() {
                let wanted = byte(self.streams[1], self.read + i as u64);
                let is_right = self.is_lied_to || *byte_read == wanted;
                assert!(
                    is_right,
                    "{byte_read} is not {wanted}: byte {} of {self:?}",
                    self.read + i as u64
                );
            }
            self.read += count as u64;
            assert!(self.is_lied_to || self.read <= self.peer.len, "too many bytes: {self:?}");
            if count < self.plan.reads {
                self.may_read = false;
                self.is_finished |= host.status(self.conn).is_finished;
            }
            let stops = !self.has_stopped && self.read >= self.plan.stops_at;
            if stops {
                self.has_stopped = true;
                (self.may_read, self.reads_at) = (true, now.after(self.plan.stops_ns));
            } else if self.may_read && self.plan.read_every_ns > 0 {
                self.reads_at = now.after(self.plan.read_every_ns);
            }
        }
    }

    fn write(&mut self, host: &mut dyn Host) {
        let may_begin = !self.plan.is_second || self.is_finished;
        while self.may_write && may_begin && self.written < self.plan.len {
            let mut bytes = [0; CHUNK];
            let left = self.plan.len - self.written;
            let len = left.min(self.plan.writes.min(CHUNK) as u64) as usize;
            for (i, to) in bytes[..len].iter_mut().enumerate() {
                *to = byte(self.streams[0], self.written + i as u64);
            }
            let count = host.write(self.conn, &bytes[..len]);
            self.written += count as u64;
            self.may_write = count == len;
        }
    }

    fn end(&mut self, host: &mut dyn Host) {
        let is_written = self.written == self.plan.len;
        let wants = match self.plan.end {
            End::Abort(at) if self.written + self.read >= at => {
                host.abort(self.conn);
                (self.has_aborted, self.is_over) = (true, true);
                return;
            }
            End::Close | End::Abort(_) => is_written,
            End::CloseLast => is_written && self.is_finished,
        };
        // To close a connection before its handshake is over would give it up.
        if wants && self.has_opened && !self.is_closed {
            self.is_closed = true;
            host.close(self.conn);
        }
        if self.is_closed && self.is_finished && self.releases_early && !self.is_over {
            self.is_over = true;
            host.release(self.conn);
        }
    }
}
