//! A test of the help of every command, word by word, so that a change of it is reviewed.
//!
//! After an intended change: `SPRAT_WRITE_HELP=1 cargo test -p sprat-cli --test commands help`,
//! then review the diff.

use std::fs;
use std::path::Path;

use crate::cluster::{errors, run, sprat, text};

/// Returns the names of the commands that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then(|| name.to_owned())
    });
    names.collect()
}

#[test]
fn help_is_as_it_was_read_last() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/help");
    let mut commands: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(command) = commands.pop() {
        let args: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let output = run(&args);
        assert!(output.status.success(), "{command:?}");
        let name = format!("sprat {}", command.join(" ")).trim().replace(' ', "-");
        let path = folder.join(format!("{name}.txt"));
        if std::env::var_os("SPRAT_WRITE_HELP").is_some() {
            fs::create_dir_all(&folder)
                .and_then(|()| fs::write(&path, &output.stdout))
                .expect("writes");
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text(&output), golden, "{name}: see the head of this file");
        let has_example = golden.contains("Example") || golden.contains("Commands:");
        assert!(has_example, "{name} shows how it is used");
        commands.extend(listed(&golden).into_iter().map(|name| [&command[..], &[name]].concat()));
    }
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_how_it_is_right() {
    for args in [
        &["put", "t"][..],
        &["nonsense"],
        &["get"],
        &["bench"],
        &["bench", "nonsense"],
        &["bench", "echo", "--sessions", "1000"],
        &["perf"],
        &["perf", "nonsense"],
        &["scan"],
        &["completions"],
        &["down", "--name", "a/b"],
        &["up", "--servers", "0"],
        &["up", "--cores", "0"],
        &["up", "--cores", "3", "--memory", "64M"],
        &["up", "--servers", "64", "--cores", "64", "--port", "60000", "--memory", "4G"],
        &["server", "-L", "tcp:host=127.0.0.1,port=0", "--cores", "0"],
        &["server", "-L", "tcp:host=127.0.0.1,port=0", "--cores", "3-1"],
        &["server", "-L", "tcp:host=127.0.0.1,port=0", "--cores", "1,1"],
        &["server", "-L", "tcp:host=127.0.0.1,port=0", "--cores", "0-9999"],
        &["server", "-L", "tcp:host=127.0.0.1,port=0", "--cores", "4095"],
        &["server", "-L", "tcp:host=127.0.0.1,port=0", "--cores", "2", "--memory", "48M"],
        &["up", "--memory", "0"],
        &["up", "-L", "tcp:host=192.0.2.1,port=7000"],
        &["server", "-L", "fast+shm:name=x", "--memory", "47M"],
        &["server", "-L", "tcp:host=127.0.0.1,port=1", "--control", "tcp:host=127.0.0.1,port=1"],
        &["table", "create", "t", "--span", "257"],
        &["import", "t", "x.csv", "--create", "--span", "0"],
        &["up", "--name", "a/b"],
        &["incr", "t", "k", "much"],
        &["server"],
        &["import", "t", "x.txt"],
        &["perf", "sessions"],
        &["bench", "basic", "--objects", "18446744073709551615"],
        &["ping", "fast+shm:name=x", "--size", "18446744073709551615"],
        &["ping", "fast+shm:name=x", "--interval", "18446744073709551615"],
        &["ping", "fast+shm:name=x", "--count", "0"],
        &["rdma", "lat", "write", "--size", "0"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!errors(&output).is_empty() && text(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn the_version_is_told() {
    assert_eq!(text(&run(&["--version"])), format!("sprat {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_that_cannot_be_written_is_an_error_and_help_that_is_not_read_is_none() {
    for args in [&["--help"][..], &["--version"], &["get", "--help"], &["help", "up"]] {
        let full = fs::File::options().write(true).open("/dev/full").expect("opens");
        let output = sprat().args(args).stdout(full).output().expect("starts");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(
            errors(&output).contains("cannot write to standard output"),
            "{args:?}: {}",
            errors(&output)
        );
        let (reader, unread) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = sprat().args(args).stdout(unread).output().expect("starts");
        assert_eq!((output.status.code(), errors(&output)), (Some(0), String::new()), "{args:?}");
    }
}
