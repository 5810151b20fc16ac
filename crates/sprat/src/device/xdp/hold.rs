//! Holding programs on an interface, which has one at a time.
//!
//! ```text
//! all queues   our program itself
//! one queue    a program that calls the program in its table at the frame's queue; each process
//!              puts its own program into the table for its queue
//! ```
//!
//! A second process finds the first one's program and table by their numbers in the kernel, and
//! holds them too. So they stay until the last process ends, and no name in a file system is left
//! behind. The entry of a process that has ended leads to a map without sockets, which leaves
//! frames to the kernel; the next process that takes the queue replaces it.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use super::failed::Failed;
use super::program;
use sprat_sys::bpf::{self, Mode};
use sprat_sys::netns::link;

/// The name of the program that goes on to others: what else an interface may have is not ours to
/// change.
const NAME: [u8; 16] = *b"sprat_by_queue\0\0";
/// Most queues of the table.
const QUEUES: u32 = 4096;
/// Attempts: the other process may end between two steps.
const TRIES: usize = 4;

/// A program that is held on an interface.
#[derive(Debug)]
pub(super) struct Held {
    _link: OwnedFd,
    /// The table of programs, if there is one.
    programs: Option<OwnedFd>,
}

impl Held {
    /// Holds `program` for all queues of interface number `index`.
    pub(super) fn all(program: BorrowedFd<'_>, index: u32, mode: Mode) -> Result<Self, Failed> {
        let link =
            bpf::attach(program, index, mode).map_err(|e| Failed("to attach the program", e))?;
        Ok(Self { _link: link, programs: None })
    }

    /// Holds a table of programs, or shares the one that is there. `frags` as for all programs of
    /// the table.
    pub(super) fn shared(index: u32, mode: Mode, frags: bool) -> Result<Self, Failed> {
        let mut busy = None;
        for _ in 0..TRIES {
            match Self::make(index, mode, frags) {
                Err(Failed(what, e))
                    if matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) =>
                {
                    busy = Some(Failed(what, e));
                }
                done => return done,
            }
            let joined = join(index, mode).map_err(|e| Failed("to share the program", e))?;
            if let Some(held) = joined {
                return Ok(held);
            }
        }
        Err(busy.expect("it was tried"))
    }

    fn make(index: u32, mode: Mode, frags: bool) -> Result<Self, Failed> {
        let programs = bpf::program_map(QUEUES).map_err(|e| Failed("a map", e))?;
        let root = program::by_queue(programs.as_raw_fd());
        let root = bpf::load(&root, NAME, frags).map_err(|e| Failed("the program", e))?;
        Ok(Self { programs: Some(programs), ..Self::all(root.as_fd(), index, mode)? })
    }

    /// Has `program` run for what arrives on `queue`, which must be ours.
    pub(super) fn put(&self, queue: u32, program: BorrowedFd<'_>) -> io::Result<()> {
        self.programs.as_ref().map_or(Ok(()), |programs| bpf::put(programs.as_fd(), queue, program))
    }
}

/// Finds the table on the interface; none if there is none, or no more.
fn join(index: u32, mode: Mode) -> io::Result<Option<Held>> {
    let gone =
        |e: io::Error| if e.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(e) };
    let number =
        link::of_index(index)?.and_then(|link| link.programs[usize::from(mode == Mode::Generic)]);
    let Some(number) = number else { return Ok(None) };
    let table = match bpf::program_of(number) {
        Ok(program) => bpf::table_of(program.as_fd(), NAME)?,
        Err(e) => return gone(e),
    };
    let Some(table) = table else { return Ok(None) };
    let programs = match bpf::map_of(table) {
        Ok(programs) => programs,
        Err(e) => return gone(e),
    };
    let link = bpf::link_of(number)?;
    Ok(link.map(|link| Held { _link: link, programs: Some(programs) }))
}
