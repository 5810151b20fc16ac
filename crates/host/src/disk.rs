//! The durable state of one machine: a redb file, written by a thread of its own so that a slow disk never stops the
//! worker.
//!
//! The disk is a peer like any other: [`Disk::persist`] goes out, [`Disk::persisted`] comes in. Writes that wait together
//! are committed together, in order; the file holds one table of bytes to bytes.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

const STATE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("state");

/// Keys with their values.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

struct Write {
    seq: u64,
    puts: Pairs,
    deletes: Vec<Vec<u8>>,
}

/// A machine's durable state.
#[derive(Debug)]
pub struct Disk {
    writes: Option<Sender<Write>>,
    done: Receiver<u64>,
    ready: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// Opens the file at `path`, made if there is none, and reads what it holds.
    ///
    /// # Errors
    /// The file cannot be read or written, is no state file, or another process has it open.
    pub fn open(path: &Path) -> io::Result<(Self, Pairs)> {
        let named = |e: redb::Error| io::Error::other(format!("{}: {e}", path.display()));
        let db = Database::create(path).map_err(|e| named(e.into()))?;
        let pairs = read(&db).map_err(named)?;
        let ready = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (writes, queue) = channel();
        let (report, done) = channel();
        let bell = Arc::clone(&ready);
        let file = path.display().to_string();
        let thread = std::thread::Builder::new()
            .name("sprat-disk".to_owned())
            .spawn(move || write_all(&db, &queue, &report, &bell, &file))?;
        Ok((Self { writes: Some(writes), done, ready, thread: Some(thread) }, pairs))
    }

    /// Writes, all or nothing and after everything before it; its number comes back by [`Disk::persisted`].
    pub fn persist(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>) {
        if let Some(writes) = &self.writes {
            // If the thread is gone the write is never confirmed, which `persisted` turns into a panic.
            let _ = writes.send(Write { seq, puts, deletes });
        }
    }

    /// The number of a write that is safe now.
    ///
    /// # Panics
    /// If the disk failed: nothing that follows could be acknowledged, and the process is better restarted.
    pub fn persisted(&mut self) -> Option<u64> {
        match self.done.try_recv() {
            Ok(seq) => Some(seq),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the state file cannot be written any more"),
        }
    }

    /// Readable when [`Disk::persisted`] has something new since [`Disk::clear`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Makes [`Disk::fd`] unreadable until more is written; call it before the last look at [`Disk::persisted`].
    pub fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.ready, &mut count);
    }
}

impl Drop for Disk {
    /// Waits until what was handed in is written.
    fn drop(&mut self) {
        self.writes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read(db: &Database) -> Result<Pairs, redb::Error> {
    let init = db.begin_write()?;
    init.open_table(STATE)?;
    init.commit()?;
    let table = db.begin_read()?.open_table(STATE)?;
    let mut pairs = Vec::new();
    for entry in table.iter()? {
        let (key, value) = entry?;
        pairs.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(pairs)
}

fn commit(db: &Database, batch: &[Write]) -> Result<(), redb::Error> {
    let transaction = db.begin_write()?;
    {
        let mut table = transaction.open_table(STATE)?;
        for write in batch {
            for (key, value) in &write.puts {
                table.insert(key.as_slice(), value.as_slice())?;
            }
            for key in &write.deletes {
                table.remove(key.as_slice())?;
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

fn write_all(db: &Database, queue: &Receiver<Write>, report: &Sender<u64>, bell: &OwnedFd, file: &str) {
    while let Ok(first) = queue.recv() {
        let mut batch = vec![first];
        batch.extend(queue.try_iter().take(1023));
        if let Err(e) = commit(db, &batch) {
            #[expect(clippy::print_stderr, reason = "the process is about to end for this reason")]
            {
                eprintln!("sprat: {file}: {e}");
            }
            return;
        }
        for write in &batch {
            if report.send(write.seq).is_err() {
                return;
            }
        }
        let _ = rustix::io::write(bell, &[0, 0, 0, 0, 0, 0, 0, 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::Disk;

    fn wait(disk: &mut Disk, seq: u64) {
        loop {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(disk.fd(), rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            disk.clear();
            while let Some(done) = disk.persisted() {
                if done == seq {
                    return;
                }
            }
        }
    }

    #[test]
    fn what_was_persisted_is_there_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let (mut disk, pairs) = Disk::open(&path).unwrap();
        assert!(pairs.is_empty());
        disk.persist(1, vec![(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())], vec![]);
        disk.persist(2, vec![(b"c".to_vec(), b"3".to_vec())], vec![b"a".to_vec()]);
        wait(&mut disk, 2);
        drop(disk);
        let (_disk, pairs) = Disk::open(&path).unwrap();
        assert_eq!(pairs, [(b"b".to_vec(), b"2".to_vec()), (b"c".to_vec(), b"3".to_vec())]);
        assert!(Disk::open(&path).is_err(), "the file is open already");
    }

    #[test]
    fn a_file_that_is_no_state_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("junk");
        std::fs::write(&path, b"not a database").unwrap();
        let error = Disk::open(&path).unwrap_err().to_string();
        assert!(error.contains("junk"), "{error}");
    }
}
