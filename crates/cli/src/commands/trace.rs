//! `sprat trace`: runs another command, and captures every packet device that it and its processes
//! open in pcap files.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use clap::Args;
use rustix::process::{Pid, Signal};
use sprat::internals::device::pcap;

use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out;
use sprat_bench::process::StopSignals;

/// The number of bytes before the first frame of a pcap file, and before each frame.
const HEADS: [usize; 2] = [24, 16];

/// Run a command and capture the frames of its packet devices, for Wireshark and tcpdump.
///
/// Each device that the command or a child of it opens has a file: FILE with the process id and a
/// number before its ending. To capture one device alone, give its locator the key pcap=FILE.
/// Shared memory has no frames; tcpdump(8) captures those of kernel UDP and TCP.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat trace -o wire.pcap -- ping fast+packet:dev=eth0,host=192.0.2.7,port=0
  sprat trace -o wire.pcap -- bench echo --transport fast+packet
  sprat trace -o wire.pcap -- ./program-of-mine
  tshark -r wire.4711-1.pcap")]
pub(crate) struct Trace {
    /// File of the capture.
    #[arg(long, short = 'o', value_name = "FILE", default_value = "sprat.pcap")]
    output: PathBuf,
    /// One of our commands with its arguments, or another program.
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

/// Runs `sprat trace`: runs the command, prints the captures, and ends with the command's exit
/// code. `ours` has the commands of `sprat`.
pub(crate) fn run(args: &Trace, ours: &clap::Command) -> Result<(), Fail> {
    let folder = args.output.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new(".")).canonicalize();
    let folder = folder.named(format_args!("cannot write to {}", args.output.display()))?;
    let Some(name) = args.output.file_name() else {
        return Err(Fail::usage(format!("{} is no file", args.output.display())));
    };
    let output = folder.join(name);
    let before = captured(&output)?;
    let status = command(args, &output, ours)?;
    let mut files = captured(&output)?;
    files.retain(|file, state| before.get(file) != Some(state));
    for file in files.keys() {
        let frames = frames(&std::fs::read(file).named(file.display())?);
        out::note(format_args!("{}: {frames} frames", file.display()));
    }
    if files.is_empty() {
        out::note(
            "nothing was captured: the command opened no packet device. Shared memory has no \
             frames; \
             tcpdump(8) captures those of kernel UDP and TCP",
        );
    }
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => Err(Fail::new(format!("{} was killed", args.command[0].display()))),
    }
}

/// Runs the traced command to its end, and passes on to it a signal that would end this process.
fn command(args: &Trace, output: &Path, ours: &clap::Command) -> Result<ExitStatus, Fail> {
    let (first, rest) = (&args.command[0], &args.command[1..]);
    let mut command = if is_ours(first, ours) {
        let program = std::env::current_exe().named("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.arg(first);
        command
    } else {
        Command::new(first)
    };
    let signals = StopSignals::catch()?;
    command.args(rest).env(pcap::VARIABLE, output);
    // A group of its own, so that Ctrl-C reaches it once: by us.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().named(format_args!("cannot start {}", first.display()))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    signals.then(move || {
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    })?;
    child.wait().named(format_args!("cannot wait for {}", first.display()))
}

/// True if `word` is one of the commands of `sprat`.
fn is_ours(word: &OsStr, ours: &clap::Command) -> bool {
    word.to_str().is_some_and(|word| ours.find_subcommand(word).is_some())
}

/// Returns the files of captures to `output`, each with its length and time of change.
fn captured(output: &Path) -> Result<BTreeMap<PathBuf, [i64; 3]>, Fail> {
    let folder = output.parent().unwrap_or_else(|| Path::new("/"));
    let mut files = BTreeMap::new();
    for entry in folder.read_dir().named(folder.display())? {
        let entry = entry.named(folder.display())?;
        if is_of(output, &entry.path())
            && let Ok(data) = entry.metadata()
        {
            files.insert(entry.path(), [data.len() as i64, data.mtime(), data.mtime_nsec()]);
        }
    }
    Ok(files)
}

/// True if `file` has the name of a capture to `output`: a process id and a number before the
/// ending.
fn is_of(output: &Path, file: &Path) -> bool {
    let numbers = file.file_stem().map(Path::new).and_then(Path::extension).and_then(OsStr::to_str);
    let numbers = numbers
        .and_then(|numbers| numbers.split_once('-'))
        .and_then(|(process, number)| Some((process.parse().ok()?, number.parse().ok()?)));
    // Without an ending the numbers are the ending.
    let bare = || {
        let (process, number) = file.extension()?.to_str()?.split_once('-')?;
        Some((process.parse().ok()?, number.parse().ok()?))
    };
    numbers
        .or_else(bare)
        .is_some_and(|(process, number)| pcap::beside(output, process, number) == file)
}

/// Returns the number of whole frames in a pcap file.
fn frames(file: &[u8]) -> usize {
    let mut rest = file.get(HEADS[0]..).unwrap_or_default();
    let mut count = 0;
    while let Some(kept) =
        rest.get(8..12).and_then(|kept| kept.try_into().ok()).map(u32::from_ne_bytes)
    {
        let Some(next) = rest.get(HEADS[1] + kept as usize..) else { break };
        rest = next;
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_this_capture_are_told_from_others() {
        let is = |file: &str| is_of(Path::new("/a/b.pcap"), Path::new(file));
        assert!(is("/a/b.12-1.pcap") && is("/a/b.4000000000-12.pcap"));
        for other in [
            "/a/b.pcap",
            "/a/b.12.pcap",
            "/a/c.12-1.pcap",
            "/a/b.12-1",
            "/a/b.x-1.pcap",
            "/a/b.1-2.txt",
        ] {
            assert!(!is(other), "{other}");
        }
        assert!(is_of(Path::new("/a/b"), Path::new("/a/b.12-1")));
    }

    #[test]
    fn frames_are_counted_as_far_as_they_are_whole() {
        let frame = |len: usize| {
            let words = [0, 0, len as u32, len as u32].map(u32::to_ne_bytes).concat();
            [words, vec![7; len]].concat()
        };
        let file = [vec![0; 24], frame(60), frame(0), frame(1500)].concat();
        assert_eq!(frames(&file), 3);
        assert_eq!((frames(&file[..file.len() - 1]), frames(&file[..24]), frames(&[])), (2, 0, 0));
    }

    #[test]
    fn our_own_commands_are_known() {
        let ours = clap::Command::default().subcommand(clap::Command::default().name("ping"));
        assert!(is_ours(OsStr::new("ping"), &ours) && !is_ours(OsStr::new("/bin/ls"), &ours));
    }
}
