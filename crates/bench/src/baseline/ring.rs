//! Baselines of shared memory: one cache line between two cores, and the product's ring alone.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

use super::{Flow, Limits, between, ended, sample};
use sprat_sys::clock::Clock;
use sprat_sys::cpu::{Idle, Rest};
use sprat_sys::memory::Region;
use sprat_sys::ring::{
    self, CONTROL, Consumer, DEFAULT_SIZE, MAX_PAYLOAD, Place, Producer, Push, Record,
};

const DATA: usize = 4096;

/// Measures round trips of one cache line: one side writes a number, the other side writes it back
/// into another line.
///
/// # Errors
/// A system call failed.
pub fn cache_line(limits: Limits) -> io::Result<Vec<u32>> {
    let lines = Arc::new(Region::anonymous(DATA)?);
    let theirs = Arc::clone(&lines);
    let wait = |word: &AtomicU64, number: u64| {
        let (mut idle, clock) = (Idle::new(), Clock::new());
        while word.load(Ordering::Acquire) != number {
            // No side sleeps: a cache line cannot wake one.
            idle.rest(true, || clock.now());
        }
    };
    between(
        move || {
            for number in 1.. {
                wait(theirs.word(0), number);
                theirs.word(256).store(number, Ordering::Release);
            }
            Ok(())
        },
        move || {
            let mut number = 0;
            sample(limits, || {
                number += 1;
                lines.word(0).store(number, Ordering::Release);
                wait(lines.word(256), number);
                Ok(())
            })
        },
    )
}

/// One end of a pair of shared-memory rings, with a socket that wakes the sleeping side.
struct Side {
    tx: Producer,
    rx: Consumer,
    bell: OwnedFd,
    idle: Idle,
    clock: Clock,
    arena: Box<[u8]>,
}

impl Side {
    fn pair() -> io::Result<[Self; 2]> {
        let memory = Arc::new(Region::anonymous(DATA + 2 * DEFAULT_SIZE)?);
        let fenced = !ring::has_barrier();
        let place = |n: usize| Place {
            memory: Arc::clone(&memory),
            control: n * CONTROL,
            data: DATA + n * DEFAULT_SIZE,
            size: DEFAULT_SIZE,
            secret: 0x5350_5254 + n as u64,
            fenced,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let side = |tx, rx, bell| Self {
            tx: Producer::new(tx),
            rx: Consumer::new(rx),
            bell,
            idle: Idle::new(),
            clock: Clock::new(),
            arena: vec![0; MAX_PAYLOAD].into(),
        };
        Ok([side(place(0), place(1), a), side(place(1), place(0), b)])
    }

    fn ring_bell(&self) {
        // A full socket wakes the peer anyway; a closed one is found when this side sleeps.
        let _ = rustix::net::send(&self.bell, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn sleep(&self) -> io::Result<()> {
        poll(&mut [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)], None)?;
        let mut rings = [0; 8];
        match rustix::net::recv(&self.bell, &mut rings, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(ended()),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        loop {
            match self.tx.push(&[payload]).map_err(io::Error::other)? {
                Push::Done { wake } => {
                    self.idle.worked();
                    if wake {
                        self.ring_bell();
                    }
                    return Ok(());
                }
                Push::Full => {}
            }
            if self.idle.rest(true, || self.clock.now()) == Rest::Sleep {
                self.tx.arm();
                ring::barrier();
                if !self.tx.has_room() {
                    self.sleep()?;
                }
                self.tx.disarm();
            }
        }
    }

    /// Waits for a record of the ring and copies it to this side's arena. Returns the record's
    /// length.
    fn receive(&mut self) -> io::Result<usize> {
        loop {
            let got = self.rx.pop(&mut self.arena, false).map_err(io::Error::other)?;
            if self.rx.take_wake() {
                self.ring_bell();
            }
            if let Some(Record::Copied(len)) = got {
                self.idle.worked();
                return Ok(len);
            }
            if self.idle.rest(true, || self.clock.now()) == Rest::Sleep {
                self.rx.arm();
                ring::barrier();
                if !self.rx.is_ready() {
                    self.sleep()?;
                }
                self.rx.disarm();
            }
        }
    }
}

/// Measures round trips of `size` bytes through a pair of rings: one copy in and one copy out in
/// each direction.
///
/// # Errors
/// A system call failed.
///
/// # Panics
/// If `size` exceeds 65,536.
pub fn ring(size: usize, limits: Limits) -> io::Result<Vec<u32>> {
    let [mut here, mut there] = Side::pair()?;
    let (ping, pong) = (vec![1; size], vec![2; size]);
    between(
        move || {
            loop {
                there.receive()?;
                there.send(&pong)?;
            }
        },
        move || {
            sample(limits, || {
                here.send(&ping)?;
                here.receive().map(drop)
            })
        },
    )
}

/// Measures messages of `size` bytes one way through a ring at full rate, at most `limits.count` of
/// them.
///
/// # Errors
/// A system call failed.
///
/// # Panics
/// If `size` exceeds 65,536.
pub fn ring_stream(size: usize, limits: Limits) -> io::Result<Flow> {
    let [mut here, mut there] = Side::pair()?;
    let payload = vec![1; size];
    between(
        move || {
            loop {
                there.send(&payload)?;
            }
        },
        move || {
            here.receive()?;
            let (start, mut flow) = (here.clock.now(), Flow { bytes: 0, ns: 0 });
            for _ in 0..limits.count {
                flow.bytes += here.receive()? as u64;
                flow.ns = here.clock.now().since(start);
                if flow.ns >= limits.time_ns {
                    break;
                }
            }
            Ok(flow)
        },
    )
}
