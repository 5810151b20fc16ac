use std::os::fd::AsFd;

use super::*;

/// Every length up to past the last change of method, and odd offsets: what goes in comes out, and
/// nothing else changes.
#[test]
fn copies_are_exact_at_every_length_and_offset() {
    let region = Region::anonymous(8192).unwrap();
    let source: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
    let fill = vec![0xAA; 8192];
    for n in (0..300).chain([1000, 1023, 1024, 1025, 2000, 4096]) {
        for shift in [0, 1, 7, 8, 40, 63] {
            region.copy_in(0, &fill);
            region.copy_in(64 + shift, &source[..n]);
            let mut all = vec![0; 8192];
            region.copy_out(0, &mut all);
            assert!(all[..64 + shift].iter().all(|&b| b == 0xAA), "before, n={n} shift={shift}");
            assert_eq!(all[64 + shift..64 + shift + n], source[..n], "n={n} shift={shift}");
            assert!(all[64 + shift + n..].iter().all(|&b| b == 0xAA), "after, n={n} shift={shift}");
            let mut part = vec![0; n];
            region.copy_out(64 + shift, &mut part);
            assert_eq!(part, source[..n]);
        }
    }
}

#[test]
fn nothing_is_reached_past_the_end() {
    let region = Region::anonymous(4096).unwrap();
    region.copy_in(4089, &[0; 7]);
    assert!(std::panic::catch_unwind(|| region.copy_in(4090, &[0; 7])).is_err());
}

#[test]
fn a_sealed_file_is_shared_and_cannot_change_its_size() {
    let file = Sealed::create(8192).unwrap();
    let (a, b) = (Region::map(&file).unwrap(), Region::map(&file).unwrap());
    a.copy_in(100, b"sprat");
    let mut seen = [0; 5];
    b.copy_out(100, &mut seen);
    assert_eq!(&seen, b"sprat");
    assert!(rustix::fs::ftruncate(file.as_fd(), 4096).is_err());
    assert!(rustix::fs::ftruncate(file.as_fd(), 16384).is_err());
    let copy = file.as_fd().try_clone_to_owned().unwrap();
    assert!(Sealed::check(copy, 8192).is_ok());
}

#[test]
fn files_of_the_wrong_kind_are_refused() {
    let copy = |file: &Sealed| file.as_fd().try_clone_to_owned().unwrap();
    let file = Sealed::create(8192).unwrap();
    assert!(Sealed::check(copy(&file), 4096).is_err(), "size");
    let open = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 8192).unwrap();
    assert!(Sealed::check(open, 8192).is_err(), "no seals");
    let disk = tempfile::tempfile().unwrap();
    disk.set_len(8192).unwrap();
    assert!(Sealed::check(disk.into(), 8192).is_err(), "no memory file");
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert!(Sealed::check(pipe, 8192).is_err(), "a pipe");
}
