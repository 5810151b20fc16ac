//! Tests of registered memory that the program unmaps, protects or truncates.

use std::io::ErrorKind;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use rustix::process::WaitStatus;

use super::*;
use crate::fork::Child;

const PAGE: usize = 4096;

/// Pages that a test maps, protects and unmaps.
struct Pages {
    base: *mut u8,
    len: usize,
}

impl Pages {
    fn anonymous(pages: usize) -> Self {
        let (len, flags) = (pages * PAGE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping touches no memory of ours.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        Self { base: base.unwrap().cast(), len }
    }

    /// Maps pages of a file. Returns the file too.
    fn of_file(pages: usize) -> (Self, std::os::fd::OwnedFd) {
        let len = pages * PAGE;
        let file = memfd_create("sprat-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len as u64).unwrap();
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: as above.
        let base = unsafe { mmap(std::ptr::null_mut(), len, rights, flags, &file, 0) };
        (Self { base: base.unwrap().cast(), len }, file)
    }

    fn protect(&self, rights: MprotectFlags) {
        // SAFETY: no reference to this memory exists.
        unsafe { mprotect(self.base.cast(), self.len, rights) }.unwrap();
    }

    /// Makes all pages but the first inaccessible. They stay mapped, so that no other thread maps
    /// memory there.
    fn cut(&self) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: as above; all of it is ours.
        unsafe {
            let rest = self.base.add(PAGE).cast();
            mmap_anonymous(rest, self.len - PAGE, ProtFlags::empty(), flags).unwrap();
        }
    }

    /// Unmaps the test's pages.
    fn unmap(&self) {
        // SAFETY: as above.
        unsafe { munmap(self.base.add(PAGE).cast(), self.len - PAGE) }.unwrap();
    }

    fn register(&self, writable: bool) -> io::Result<Foreign> {
        // SAFETY: no reference to this memory exists.
        unsafe { Foreign::new(self.base, self.len, writable) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: no code uses this memory any more.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

fn errno(result: io::Result<Foreign>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// Lengths of copies in bytes: all at which the copy changes its method.
const LENGTHS: [usize; 20] =
    [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 1024, 4096];

#[test]
fn every_octet_is_copied_and_no_other() {
    let pages = Pages::anonymous(4);
    let memory = pages.register(true).unwrap();
    for len in LENGTHS {
        for at in [0, 1, 9, 4000] {
            memory.copy_in(0, &[0xee; 4 * PAGE]).unwrap();
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            memory.copy_in(at, &bytes).unwrap();
            let mut back = vec![0; len];
            memory.copy_out(at, &mut back).unwrap();
            assert_eq!(back, bytes, "{len} at {at}");
            let mut all = vec![7];
            memory.append_to(0, 4 * PAGE, &mut all).unwrap();
            assert!(
                all[1..=at].iter().chain(&all[1 + at + len..]).all(|&b| b == 0xee),
                "{len} at {at}"
            );
            assert_eq!(all[1 + at..][..len], bytes);
        }
    }
}

#[test]
fn what_is_not_there_or_not_to_be_written_is_found_at_once() {
    let pages = Pages::anonymous(3);
    assert_eq!(pages.register(true).unwrap().len(), 3 * PAGE);
    pages.protect(MprotectFlags::READ);
    assert_eq!(errno(pages.register(true)), Some(libc::EFAULT));
    assert!(pages.register(false).is_ok());
    pages.protect(MprotectFlags::empty());
    assert_eq!(errno(pages.register(false)), Some(libc::EFAULT));
    pages.protect(MprotectFlags::READ | MprotectFlags::WRITE);
    pages.cut();
    assert_eq!(errno(pages.register(true)), Some(libc::EFAULT));
    assert_eq!(errno(pages.register(false)), Some(libc::EFAULT));
    for (base, len) in [
        (pages.base, 0),
        (pages.base, usize::MAX),
        (std::ptr::without_provenance_mut(usize::MAX - 8), 9),
    ] {
        // SAFETY: refused.
        let refused = unsafe { Foreign::new(base, len, true) };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput, "{len}");
    }
}

#[test]
fn what_goes_later_is_an_error_of_the_copy() {
    let pages = Pages::anonymous(2);
    let memory = pages.register(true).unwrap();
    memory.copy_in(0, &[1; 2 * PAGE]).unwrap();
    pages.protect(MprotectFlags::READ);
    for len in LENGTHS.into_iter().filter(|&n| n > 0) {
        assert_eq!(memory.copy_in(3, &vec![2; len]), Err(Gone), "{len}");
    }
    assert_eq!(memory.atomic(8, &mut |_| 0), Err(Gone));
    let mut bytes = [0; PAGE];
    memory.copy_out(PAGE, &mut bytes).unwrap();
    assert_eq!(bytes, [1; PAGE]);
    pages.protect(MprotectFlags::READ | MprotectFlags::WRITE);
    memory.copy_in(3, &[2; 9]).unwrap();
    pages.cut();
    for len in LENGTHS.into_iter().filter(|&n| n > 0) {
        let at = PAGE - len + 1;
        assert_eq!(memory.copy_out(at.min(PAGE), &mut vec![0; len]), Err(Gone), "{len}");
        let mut appended = vec![9];
        assert_eq!(memory.append_to(at, len, &mut appended), Err(Gone), "{len}");
        assert_eq!(appended, [9]);
        assert_eq!(memory.copy_in(at, &vec![0; len]), Err(Gone), "{len}");
    }
    assert_eq!(memory.atomic(PAGE, &mut |_| 0), Err(Gone));
    memory.copy_out(0, &mut bytes).unwrap();
}

#[test]
fn unmapped_memory_is_an_error_too() {
    // In a process of its own, in which no other thread maps something there meanwhile.
    let child = Child::spawn(|| {
        let pages = Pages::anonymous(2);
        let (memory, mut bytes) = (pages.register(true).unwrap(), [0; 8]);
        pages.unmap();
        let gone = [
            memory.copy_in(PAGE - 1, &[1, 2]),
            memory.copy_out(PAGE, &mut bytes),
            memory.atomic(PAGE, &mut |_| 0).map(|_| ()),
            memory.probe(0, 2 * PAGE),
        ];
        let refused = errno(pages.register(true)) == Some(libc::EFAULT);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(if refused && gone == [Err(Gone); 4] { 7 } else { 8 }) }
    });
    assert_eq!(child.unwrap().wait().and_then(WaitStatus::exit_status), Some(7));
}

#[test]
fn a_file_that_is_cut_off_is_an_error_too() {
    let (pages, file) = Pages::of_file(2);
    let memory = pages.register(true).unwrap();
    memory.copy_in(PAGE - 4, &[5; 8]).unwrap();
    ftruncate(&file, PAGE as u64).unwrap();
    assert_eq!(memory.copy_in(PAGE - 4, &[6; 8]), Err(Gone));
    assert_eq!(memory.copy_out(PAGE, &mut [0; 8]), Err(Gone));
    assert_eq!(memory.copy_out(PAGE, &mut [0; 2048]), Err(Gone));
    assert_eq!(memory.atomic(PAGE, &mut |_| 0), Err(Gone));
    assert_eq!(errno(pages.register(true)), Some(libc::EFAULT));
    let mut bytes = [0; 4];
    memory.copy_out(PAGE - 8, &mut bytes).unwrap();
}

#[test]
fn an_atomic_changes_one_aligned_word() {
    let pages = Pages::anonymous(1);
    let memory = pages.register(true).unwrap();
    assert_eq!(memory.atomic(8, &mut |_| 5), Ok(0));
    assert_eq!(memory.atomic(8, &mut |old| old + 2), Ok(5));
    assert_eq!(memory.atomic(8, &mut |old| old), Ok(7));
    assert_eq!(memory.atomic(4, &mut |old| old), Err(Gone));
    // The address counts, not the place in the registration.
    // SAFETY: no reference to this memory exists.
    let odd = unsafe { Foreign::new(pages.base.add(4), 64, true) }.unwrap();
    assert_eq!(odd.atomic(0, &mut |old| old), Err(Gone));
    assert_eq!(odd.atomic(4, &mut |old| old), Ok(7));
}
