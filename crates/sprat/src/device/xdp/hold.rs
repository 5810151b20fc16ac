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

/// The name in the kernel of the program that calls the program of the frame's queue. A program of
/// another name on the interface is not ours to change.
const NAME: [u8; 16] = *b"sprat_by_queue\0\0";
/// The number of entries of the table of programs: the most queues.
const QUEUES: u32 = 4096;
/// The number of attempts to share the table, since the other process may end between two steps.
const TRIES: usize = 4;

/// Keeps a program attached to an interface as long as this value lives.
#[derive(Debug)]
pub(super) struct Held {
    _link: OwnedFd,
    /// The table of programs by queue; `None` if one program serves all queues.
    programs: Option<OwnedFd>,
}

impl Held {
    /// Attaches `program` to interface number `index`, for all of its queues.
    pub(super) fn all(program: BorrowedFd<'_>, index: u32, mode: Mode) -> Result<Self, Failed> {
        let link =
            bpf::attach(program, index, mode).map_err(|e| Failed("to attach the program", e))?;
        Ok(Self { _link: link, programs: None })
    }

    /// Attaches a program with a table of programs by queue to the interface, or shares the table
    /// that is there. `frags` says that all programs of the table accept frames in several parts.
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

    /// Makes the kernel run `program` for frames that arrive on `queue`, which must be ours.
    pub(super) fn put(&self, queue: u32, program: BorrowedFd<'_>) -> io::Result<()> {
        self.programs.as_ref().map_or(Ok(()), |programs| bpf::put(programs.as_fd(), queue, program))
    }
}

/// Finds the table of programs on the interface. `None` if there is none, or if it has just gone.
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
