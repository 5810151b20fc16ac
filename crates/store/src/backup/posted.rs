//! Posted writes: writes to replicas that a master hands over in memory that it shares with the
//! backup. They count without a reply.
//!
//! ```text
//!  master ── OpenRing ──► backup: makes a ring        once for a master and a backup
//!         ── push ──────► ring: a write, or many      the master acknowledges at once
//!                         backup takes them later: before any message of the master, before it
//!                         fences the master, at its ticks
//! ```
//!
//! A ring lies in memory of the machine that outlives the master, and if the frames outlive the
//! backup's process, so does the ring. The backup closes the ring when it fences the master, and
//! takes what was pushed before. The other side of a closed ring knows that its write does not
//! count. So a recovery finds all writes that count.
//!
//! A ring proves nothing about the life of the backup. So the master follows posted writes by one
//! with a reply, soon after, and stops to post when that one fails.
//!
//! Invariant: a posted write only appends to a replica that is open. All other writes have replies.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Debug;

use crate::message::Status;
use crate::types::ServerId;

/// The most rings of a backup, for as many masters. A further master gets replies.
const MAX_RINGS: usize = 64;

/// The most writes that a backup takes from a ring at a time: more than a ring holds, so that all
/// that were posted before are among them. Without it a master that posts fast could keep the
/// backup busy.
pub(super) const MOST_TAKEN: usize = 1 << 14;

/// The outcome of [`Outbox::post`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posted {
    /// The backup takes the write, unless its memory is lost.
    Done,
    /// The ring has no room now. Nothing was written.
    Full,
    /// The backup takes no more writes from the ring.
    Closed,
}

/// The end of a ring at which a master writes.
pub trait Outbox: Debug + Send {
    /// Pushes one write, whose bytes are these parts one after the other.
    fn post(&mut self, parts: [&[u8]; 2]) -> Posted;
}

/// The end of a ring from which a backup takes writes. It holds fewer than 16,384.
pub trait Inbox: Debug + Send {
    /// Replaces the bytes in `into` by the next write. Returns false if there is none.
    fn take(&mut self, into: &mut Vec<u8>) -> bool;

    /// Closes the ring. What is in it can still be taken, and nothing more gets in.
    fn close(&mut self);
}

/// The memory that a server shares with other servers of its machine.
pub trait Rings: Debug + Send {
    /// Makes a ring for posted writes. Returns the text by which [`Rings::accept`] of another
    /// server finds it. `None` if there is no memory for it.
    fn offer(&mut self) -> Option<(String, Box<dyn Inbox>)>;

    /// Returns the writer's end of a ring that another server has offered. `None` if that server
    /// is on another machine, or is another user's.
    fn accept(&mut self, offer: &str) -> Option<Box<dyn Outbox>>;

    /// Returns a ring that an earlier life of this server has left, each one once.
    fn left(&mut self) -> Option<Box<dyn Inbox>>;
}

/// The rings of a backup, one for each master.
#[derive(Debug, Default)]
pub(super) struct Inboxes {
    host: Option<Box<dyn Rings>>,
    open: BTreeMap<ServerId, Box<dyn Inbox>>,
    /// The write that is taken from a ring.
    write: Vec<u8>,
    /// The number of writes that were taken.
    taken: u64,
}

impl Inboxes {
    pub(super) fn set_host(&mut self, host: Box<dyn Rings>) {
        self.host = Some(host);
    }

    /// Makes a ring for `master`, which has none. Returns the text by which the master finds it.
    ///
    /// # Errors
    /// [`Status::NoSpace`] if there is no room for another ring, or no shared memory.
    pub(super) fn offer(&mut self, master: ServerId) -> Result<String, Status> {
        if self.open.len() >= MAX_RINGS {
            return Err(Status::NoSpace);
        }
        let host = self.host.as_mut().ok_or(Status::NoSpace)?;
        let (offer, inbox) = host.offer().ok_or(Status::NoSpace)?;
        self.open.insert(master, inbox);
        Ok(offer)
    }

    pub(super) fn accept(&mut self, offer: &str) -> Option<Box<dyn Outbox>> {
        self.host.as_mut()?.accept(offer)
    }

    pub(super) fn left(&mut self) -> Option<Box<dyn Inbox>> {
        self.host.as_mut()?.left()
    }

    /// Takes the ring of a master out, to read it.
    #[inline]
    pub(super) fn take_out(&mut self, master: ServerId) -> Option<(Box<dyn Inbox>, Vec<u8>)> {
        let inbox = self.open.remove(&master)?;
        Some((inbox, core::mem::take(&mut self.write)))
    }

    /// Puts the ring of a master back, from which `taken` writes were read.
    pub(super) fn put_back(
        &mut self,
        master: ServerId,
        inbox: Option<Box<dyn Inbox>>,
        (write, taken): (Vec<u8>, u64),
    ) {
        self.open.extend(inbox.map(|inbox| (master, inbox)));
        self.write = write;
        self.taken += taken;
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the masters that have rings.
    pub(super) fn masters(&self) -> Vec<ServerId> {
        self.open.keys().copied().collect()
    }

    /// Returns the number of writes that were taken from rings.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}
