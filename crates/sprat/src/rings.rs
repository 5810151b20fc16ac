//! Rings in shared memory by which servers of one machine post writes to each other's replicas.
//!
//! ```text
//!  file    0     256                        4096
//!          | control of the ring | header   | data of the ring, 256 KiB
//!  header  magic u64 | secret u64 | boot u64, in the machine's byte order
//! ```
//!
//! A ring is a file in memory (memfd), which its peer opens by the number of the process and of the
//! descriptor. A server with a directory keeps its rings there, since what was posted must survive
//! its process as the frames do.
//!
//! Always holds:
//! - A server opens a file that another one offers only if it is a regular file of its own user, of
//!   the right size, with the secret of the offer.
//! - The memory file of a ring cannot shrink. A program that cuts off a file in the
//!   directory damages the server's data, and ends the server.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use sprat_proto::Rng;
use sprat_store::backup::{Inbox, Outbox, Posted, Rings};
use sprat_sys::memory::{Region, Sealed};
use sprat_sys::ring::{Consumer, MAX_PAYLOAD, MIN_SIZE, Place, Producer, Push, Record};

use crate::frames::boot;

pub(crate) mod check;

/// The offset of the data in the file of a ring.
const DATA: usize = 4096;
/// The bytes of the file of a ring.
const BYTES: usize = DATA + MIN_SIZE;
/// The offset of the header's magic number, and that number.
const MAGIC_AT: usize = 256;
const MAGIC: u64 = u64::from_be_bytes(*b"SPRTRNG1");
/// The offset of the ring's secret, by which a peer knows that it has the right file.
const SECRET_AT: usize = 264;
/// The offset of a number of this run of the machine.
const BOOT_AT: usize = 272;
/// The beginning of the names of rings in a server's directory.
const NAME: &str = "ring-";

/// The rings of one server.
#[derive(Debug)]
pub(crate) struct SharedRings {
    /// The directory of the rings, if they survive the process.
    directory: Option<PathBuf>,
    /// A number of this run of the machine.
    boot: u64,
    /// A number of this run of the machine and of the namespace of its process numbers.
    machine: u64,
    rng: Rng,
    /// The number of the next ring in the directory.
    next: u32,
    /// The files that an earlier process has left.
    left: Vec<PathBuf>,
}

impl SharedRings {
    /// Makes the rings of a server, which has this directory for itself if it has one.
    ///
    /// # Errors
    /// The directory cannot be read, or the kernel does not tell what machine this is.
    pub(crate) fn new(directory: Option<&Path>, rng: Rng) -> io::Result<Self> {
        let boot = boot()?;
        let namespace = std::fs::metadata("/proc/self/ns/pid")?.ino();
        let directory = directory.map(Path::canonicalize).transpose()?;
        let left = directory.as_deref().map_or_else(|| Ok(Vec::new()), rings_in)?;
        let next = left.iter().filter_map(|path| number(path)).max().map_or(0, |last| last + 1);
        Ok(Self { directory, boot, machine: boot ^ namespace, rng, next, left })
    }

    /// Makes the file of a ring. Returns the text that names it, and its path if it has one.
    fn make(&mut self) -> io::Result<(Region, String, Option<PathBuf>, Option<OwnedFd>)> {
        let machine = self.machine;
        let Some(directory) = &self.directory else {
            let memory = Sealed::create(BYTES)?;
            let region = Region::map(&memory)?;
            let file = OwnedFd::from(File::from(memory));
            let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            return Ok((region, format!("{machine:x} {path}"), None, Some(file)));
        };
        let path = directory.join(format!("{NAME}{}", self.next));
        self.next += 1;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let region = fallocate(&file, FallocateFlags::empty(), 0, BYTES as u64)
            .map_err(io::Error::from)
            .and_then(|()| Region::of_file(&file, BYTES))
            // Half a ring is of no use.
            .inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        Ok((region, format!("{machine:x} {}", path.display()), Some(path), None))
    }
}

/// Returns the paths of the rings in a directory.
fn rings_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.iter().map(std::fs::DirEntry::path).filter(|p| number(p).is_some()).collect())
}

/// Returns the number of a ring with this path.
fn number(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix(NAME)?.parse().ok()
}

fn place(region: Region, secret: u64) -> Place {
    let memory = Arc::new(region);
    Place { memory, control: 0, data: DATA, size: MIN_SIZE, secret, fenced: true }
}

/// Opens a file that another process has offered, without effect if it is something else.
fn open_offered(path: &str) -> io::Result<File> {
    let unusable = || io::Error::new(io::ErrorKind::InvalidData, "this is no ring of this user");
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&found)?;
    let is_regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
    if !is_regular || !is_own || u64::try_from(stat.st_size) != Ok(BYTES as u64) {
        return Err(unusable());
    }
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    OpenOptions::new().read(true).write(true).open(path)
}

impl Rings for SharedRings {
    fn offer(&mut self) -> Option<(String, Box<dyn Inbox>)> {
        // Without shared memory the writes have replies.
        let (region, name, path, file) = self.make().ok()?;
        let secret = self.rng.u64();
        region.word(SECRET_AT).store(secret, Ordering::Relaxed);
        region.word(BOOT_AT).store(self.boot, Ordering::Relaxed);
        region.word(MAGIC_AT).store(MAGIC, Ordering::Release);
        let consumer = Consumer::new(place(region, secret));
        let inbox =
            RingIn { consumer, buffer: vec![0; MAX_PAYLOAD], path, _file: file, closed: false };
        Some((format!("{secret:x} {name}"), Box::new(inbox)))
    }

    fn accept(&mut self, offer: &str) -> Option<Box<dyn Outbox>> {
        let mut words = offer.splitn(3, ' ');
        let secret = u64::from_str_radix(words.next()?, 16).ok()?;
        let machine = u64::from_str_radix(words.next()?, 16).ok()?;
        let path = words.next().filter(|_| machine == self.machine)?;
        let region = Region::of_file(&open_offered(path).ok()?, BYTES).ok()?;
        let word = |at| region.word(at).load(Ordering::Acquire);
        if (word(MAGIC_AT), word(SECRET_AT)) != (MAGIC, secret) {
            return None;
        }
        Some(Box::new(RingOut { producer: Producer::new(place(region, secret)) }))
    }

    fn left(&mut self) -> Option<Box<dyn Inbox>> {
        while let Some(path) = self.left.pop() {
            match take_left(&path, self.boot) {
                Some(consumer) => {
                    let buffer = vec![0; MAX_PAYLOAD];
                    let path = Some(path);
                    return Some(Box::new(RingIn {
                        consumer,
                        buffer,
                        path,
                        _file: None,
                        closed: false,
                    }));
                }
                // What was posted before a loss of power is lost. Replies do not rest on it for
                // long.
                None => drop(std::fs::remove_file(path)),
            }
        }
        None
    }
}

/// Returns the reader of a ring that an earlier process has left, in this run of the machine.
fn take_left(path: &Path, boot: u64) -> Option<Consumer> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let region = Region::of_file(&file, BYTES).ok()?;
    let word = |at| region.word(at).load(Ordering::Acquire);
    let secret = word(SECRET_AT);
    if (word(MAGIC_AT), word(BOOT_AT)) != (MAGIC, boot) {
        return None;
    }
    Consumer::resume(place(region, secret)).ok()
}

/// The reader's end of a ring.
#[derive(Debug)]
struct RingIn {
    consumer: Consumer,
    buffer: Vec<u8>,
    /// The file of the ring, if it survives the process.
    path: Option<PathBuf>,
    /// The memory of the ring, for peers that open it.
    _file: Option<OwnedFd>,
    /// True if the backup has closed the ring.
    closed: bool,
}

impl Inbox for RingIn {
    fn take(&mut self, into: &mut Vec<u8>) -> bool {
        let Ok(Some(Record::Copied(len))) = self.consumer.pop(&mut self.buffer, false) else {
            return false;
        };
        into.clear();
        into.extend_from_slice(&self.buffer[..len]);
        true
    }

    fn close(&mut self) {
        self.consumer.close();
        self.closed = true;
    }
}

impl Drop for RingIn {
    /// Closes the ring. If the backup has, it has also taken all that was in it.
    fn drop(&mut self) {
        self.consumer.close();
        if let Some(path) = &self.path
            && self.closed
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The writer's end of a ring.
#[derive(Debug)]
struct RingOut {
    producer: Producer,
}

impl Outbox for RingOut {
    #[inline]
    fn post(&mut self, parts: [&[u8]; 2]) -> Posted {
        match self.producer.push(&parts) {
            Ok(Push::Full) => Posted::Full,
            Ok(Push::Done { .. }) if !self.producer.is_closed() => Posted::Done,
            Ok(Push::Done { .. }) | Err(_) => Posted::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(directory: Option<&Path>) -> SharedRings {
        SharedRings::new(directory, Rng::seeded(1)).unwrap()
    }

    #[test]
    fn what_one_server_posts_another_takes_until_it_closes_the_ring() {
        let (mut backup, mut master) = (rings(None), rings(None));
        let (offer, mut inbox) = backup.offer().unwrap();
        let mut outbox = master.accept(&offer).unwrap();
        let mut write = vec![1; 3];
        assert!(!inbox.take(&mut write));
        assert_eq!(outbox.post([b"ab", b"c"]), Posted::Done);
        inbox.close();
        assert_eq!(outbox.post([b"d", b""]), Posted::Closed);
        assert!(inbox.take(&mut write), "it was there before");
        assert_eq!(write, b"abc");
    }

    #[test]
    fn a_full_ring_takes_more_once_it_was_read() {
        let (mut backup, mut master) = (rings(None), rings(None));
        let (offer, mut inbox) = backup.offer().unwrap();
        let mut outbox = master.accept(&offer).unwrap();
        let long = vec![7; 16 << 10];
        let mut posted = 0;
        while outbox.post([b"", &long]) == Posted::Done {
            posted += 1;
        }
        assert!((10..=16).contains(&posted), "{posted}");
        assert_eq!(outbox.post([b"", &long]), Posted::Full);
        let mut write = Vec::new();
        while inbox.take(&mut write) {
            assert_eq!(write, long);
            posted -= 1;
        }
        assert_eq!(posted, 0);
        assert_eq!(outbox.post([b"", &long]), Posted::Done);
    }

    #[test]
    fn a_ring_in_a_directory_survives_its_process_and_is_removed_once_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(folder.path()).unwrap().count();
        let mut backup = rings(Some(folder.path()));
        let (offer, inbox) = backup.offer().unwrap();
        let mut outbox = rings(None).accept(&offer).unwrap();
        assert_eq!(outbox.post([b"kept", b""]), Posted::Done);
        // As kill -9 does.
        std::mem::forget(inbox);
        assert_eq!(outbox.post([b" too", b""]), Posted::Done);
        let mut next = rings(Some(folder.path()));
        assert!(next.offer().is_some(), "under another name");
        let mut left = next.left().unwrap();
        left.close();
        let mut write = Vec::new();
        assert!(left.take(&mut write) && write == b"kept");
        assert!(left.take(&mut write) && write == b" too");
        assert!(!left.take(&mut write) && next.left().is_none());
        assert_eq!(outbox.post([b"late", b""]), Posted::Closed);
        drop(left);
        assert_eq!(count(), 1, "the new one is left");
        // In another run of the machine.
        let mut later = rings(Some(folder.path()));
        later.boot ^= 1;
        assert!(later.left().is_none());
        assert_eq!(count(), 0);
    }

    #[test]
    #[expect(clippy::host_endian_bytes, reason = "a ring is memory of this machine")]
    fn the_rings_of_a_directory_are_checked_without_a_change() {
        use super::check::{RingCondition, check};
        let folder = tempfile::tempdir().unwrap();
        let mut backup = rings(Some(folder.path()));
        let path = |n: u32| folder.path().join(format!("{NAME}{n}"));
        let file = |n: u32| OpenOptions::new().write(true).open(path(n)).unwrap();
        (0..7).for_each(|_| std::mem::forget(backup.offer().unwrap()));
        let put = |n, at: usize, word: u64| {
            std::os::unix::fs::FileExt::write_all_at(&file(n), &word.to_ne_bytes(), at as u64)
                .unwrap();
        };
        put(1, BOOT_AT, backup.boot ^ 1);
        put(2, MAGIC_AT, 0);
        put(3, MAGIC_AT, MAGIC ^ 1);
        put(4, 0, 63);
        file(5).set_len(5000).unwrap();
        file(6).set_len(0).unwrap();
        let bytes = |n: u32| std::fs::read(path(n)).unwrap();
        let before: Vec<_> = (0..7).map(bytes).collect();
        let found = check(folder.path()).unwrap();
        let conditions: Vec<_> = found.iter().map(|ring| ring.condition).collect();
        let [damaged, unfinished] = [RingCondition::Damaged, RingCondition::Unfinished];
        let [sound, earlier] = [RingCondition::Sound, RingCondition::Earlier];
        let expected = [sound, earlier, unfinished, damaged, damaged, damaged, unfinished];
        assert_eq!(conditions, expected);
        assert_eq!((found[0].bytes, found[5].bytes), (BYTES as u64, 5000));
        assert_eq!((found[0].path.clone(), before), (path(0), (0..7).map(bytes).collect()));
        // The server agrees about what it takes.
        let taken = (0..7).filter(|n| take_left(&path(*n), backup.boot).is_some());
        assert_eq!(taken.collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn offers_that_name_no_ring_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut master = rings(None);
        let machine = master.machine;
        let short = folder.path().join("short");
        std::fs::write(&short, b"short").unwrap();
        let zeros = folder.path().join("zeros");
        std::fs::write(&zeros, vec![0; BYTES]).unwrap();
        let (good, _inbox) = rings(None).offer().unwrap();
        for offer in [
            String::new(),
            "1".to_owned(),
            "x y z".to_owned(),
            format!("1 {machine:x} {}", short.display()),
            format!("1 {machine:x} {}", zeros.display()),
            format!("1 {machine:x} /dev/null"),
            format!("1 {machine:x} /proc/self/fd/999999"),
            format!("1 {:x} {}", machine ^ 1, zeros.display()),
            format!("1{good}"),
        ] {
            assert!(master.accept(&offer).is_none(), "{offer}");
        }
        assert!(master.accept(&good).is_some());
    }
}
