//! Tests of an export's destination: every kind of node that a path can lead to, and the files that
//! are left when an export ends early.

use std::os::unix::fs::{FileTypeExt as _, symlink};

use tempfile::TempDir;

use super::*;

/// Makes a folder with a file `old` of mode 0640.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("old");
    fs::write(&file, "old").expect("writes");
    fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("sets the mode");
    (folder, file)
}

fn write(path: &Path) -> Result<(), String> {
    let destination = Destination::open(path).map_err(|fail| fail.to_string())?;
    assert!(!destination.is_stdout());
    destination.writer().write_all(b"new").map_err(|e| e.to_string())?;
    destination.finish().map_err(|e| e.to_string())
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).expect("lists");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("is there").mode() & 0o7777
}

#[test]
fn a_replaced_file_keeps_its_mode_and_its_owner() {
    let (folder, file) = folder();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(65_534), Some(65_534)).expect("root gives it away");
    }
    let before = fs::metadata(&file).expect("is there");
    write(&file).expect("replaces it");
    let after = fs::metadata(&file).expect("is there");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    assert_eq!(
        (fs::read_to_string(&file).expect("reads"), names(&folder)),
        ("new".into(), vec!["old".into()])
    );
}

#[test]
fn a_new_file_has_the_mode_that_any_program_gives_it() {
    let (folder, _) = folder();
    let (ours, theirs) = (folder.path().join("a"), folder.path().join("b"));
    write(&ours).expect("makes it");
    fs::write(&theirs, "").expect("makes it");
    assert_eq!(mode(&ours), mode(&theirs));
}

#[test]
fn links_stay_and_what_they_lead_to_is_replaced() {
    let (folder, file) = folder();
    let at = |name: &str| folder.path().join(name);
    symlink("old", at("near")).expect("links");
    symlink(at("near"), at("far")).expect("links");
    write(&at("far")).expect("replaces the file");
    assert_eq!(fs::read_to_string(&file).expect("reads"), "new");
    assert_eq!(mode(&file), 0o640);
    symlink("not-there-yet", at("dangling")).expect("links");
    write(&at("dangling")).expect("makes the file");
    assert_eq!(fs::read_to_string(at("not-there-yet")).expect("reads"), "new");
    for link in ["near", "far", "dangling"] {
        assert!(at(link).is_symlink(), "{link}");
    }
    symlink("circle", at("circle")).expect("links");
    assert!(write(&at("circle")).expect_err("leads nowhere").contains("symbolic link"));
}

#[test]
fn a_fifo_a_device_and_an_open_file_are_written_in_place() {
    let (folder, file) = folder();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).expect("makes it");
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read_to_string(fifo)
    });
    write(&fifo).expect("writes into it");
    assert_eq!(reader.join().expect("no panic").expect("reads"), "new");
    assert!(fs::metadata(&fifo).expect("is there").file_type().is_fifo());

    assert!(write(Path::new("/dev/full")).expect_err("takes nothing").contains("No space left"));
    write(Path::new("/dev/null")).expect("takes all");
    assert!(fs::metadata("/dev/null").expect("is there").file_type().is_char_device());

    // As `sprat export /dev/fd/3 3>>old` has it: behind what is there.
    use std::os::fd::AsRawFd as _;
    let open = File::options().append(true).open(&file).expect("opens");
    for folder in ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"] {
        fs::write(&file, "old").expect("writes");
        write(&Path::new(folder).join(open.as_raw_fd().to_string())).expect("writes into it");
        assert_eq!(fs::read_to_string(&file).expect("reads"), "oldnew", "{folder}");
    }
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        assert!(Destination::open(Path::new(name)).expect("opens").is_stdout(), "{name}");
    }
}

#[test]
fn what_cannot_be_written_is_an_error_that_names_the_path() {
    let (folder, _) = folder();
    let at = |name: &str| folder.path().join(name);
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("binds");
    for (path, why) in [
        (at("socket"), "socket"),
        (folder.path().to_path_buf(), "directory"),
        (at("old/"), "Not a directory"),
        (at("new/"), "directory"),
        (at("no/such/folder"), "No such file"),
        (PathBuf::new(), "No such file"),
    ] {
        let error = write(&path).expect_err(why);
        assert!(error.contains(why) && error.contains(&path.display().to_string()), "{error}");
        assert!(!error.contains(".part"), "the random name says nothing: {error}");
    }
    assert_eq!(names(&folder), ["old", "socket"]);
}

#[test]
fn an_export_that_ends_early_leaves_the_old_file_and_nothing_else() {
    let (folder, file) = folder();
    let destination = Destination::open(&file).expect("opens");
    destination.writer().write_all(b"half").expect("writes");
    let hidden = names(&folder);
    assert_eq!(
        (hidden.len(), hidden[0].len()),
        (2, ".sprat-".len() + RANDOM_CHARS + ".part".len())
    );
    assert_eq!(mode(&folder.path().join(&hidden[0])), 0o600, "the old file may be secret");
    drop(destination);
    assert_eq!(
        (names(&folder), fs::read_to_string(&file).expect("reads")),
        (vec!["old".into()], "old".into())
    );
}

#[test]
fn what_another_user_put_into_a_shared_folder_is_refused() {
    let (root, me, other) = (0, 1000, 1001);
    // As /tmp is: the owner of a file there is the user that made it.
    for (folder, owner, node, planted) in [
        (0o1777, root, other, true),
        (0o1777, root, me, false),
        (0o1777, root, root, false),
        (0o1777, other, other, false),
        (0o1770, root, other, false),
        (0o777, root, other, false),
        (0o755, me, other, false),
    ] {
        assert_eq!(is_planted(folder, owner, node, me), planted, "{folder:o} of {owner}, {node}");
    }
    assert!(is_planted(0o41777, me, other, root), "above all for root");
    let (folder, file) = folder();
    let link = folder.path().join("link");
    symlink("old", &link).expect("links");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).expect("sets the mode");
    write(&link).expect("all of it is ours");
    if rustix::process::geteuid().is_root() {
        for path in [&link, &file] {
            std::os::unix::fs::lchown(path, Some(65_534), None).expect("root gives it away");
            assert!(write(path).expect_err("it is another's").contains("user 65534's"));
            std::os::unix::fs::lchown(path, Some(0), None).expect("root takes it back");
        }
    }
}
