use std::os::fd::AsFd;

use super::*;

/// Copies of every length up to past the last change of method, at odd offsets: the copied bytes
/// are exact, and no others change.
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

/// A window masks every position, and refuses a copy past its own end even where the region goes
/// on.
#[test]
fn a_window_ends_where_it_was_said() {
    let region = std::sync::Arc::new(Region::anonymous(4096).unwrap());
    let window = Window::new(&region, 1024, 512);
    window.copy_in(512 * 7 + 8, b"sprat");
    window.copy_words_in(512 * 3 + 504, &[*b"the last"]);
    let mut seen = [0; 512];
    region.copy_out(1024, &mut seen);
    assert_eq!((&seen[8..13], &seen[504..]), (&b"sprat"[..], &b"the last"[..]));
    window.word(504 + 512).store(u64::MAX, Ordering::Relaxed);
    window.flag(500).store(7, Ordering::Relaxed);
    window.short(512 + 499).store(9, Ordering::Relaxed);
    region.copy_out(1024, &mut seen);
    assert_eq!((seen[498], seen[500], &seen[504..]), (9, 7, &[0xFF; 8][..]));
    let mut whole = [0; 4096];
    region.copy_out(0, &mut whole);
    assert!(whole[..1024].iter().chain(&whole[1536..]).all(|b| *b == 0), "outside");
    let refused =
        |what: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_err();
    assert!(refused(&|| window.copy_in(508, b"sprat")));
    assert!(refused(&|| window.copy_words_in(504, &[[0; 8]; 2])));
    assert!(refused(&|| window.copy_out(511, &mut [0; 2])));
    assert!(refused(&|| drop(Window::new(&region, 3584, 1024))));
    assert!(refused(&|| drop(Window::new(&region, 4, 512))));
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
