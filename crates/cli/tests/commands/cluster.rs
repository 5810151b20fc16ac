//! The cluster of a test of commands, with unique names and ports. It ends with the test, also if
//! that fails.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use sprat_bench::process::wait_until;
use tempfile::TempDir;

/// The time that any step of a test may take before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the options that make a cluster keep nothing, unless `options` name a directory.
fn ephemeral(options: &[&str]) -> &'static [&'static str] {
    if options.contains(&"--dir") { &[] } else { &["--ephemeral"] }
}

/// Returns a command that runs `sprat` without the environment variables that change its behaviour.
pub(crate) fn sprat() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sprat"));
    // Without the last two no test can write to the data of the user that runs it.
    for name in ["SPRAT_COORDINATOR", "COLUMNS", "RUST_BACKTRACE", "HOME", "XDG_DATA_HOME"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs `sprat` with these arguments to its end, and returns its output.
pub(crate) fn run(args: &[&str]) -> Output {
    sprat().args(args).output().expect("the program starts")
}

/// Returns the standard output of a process that has ended, as text.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the standard error of a process that has ended, as text.
pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a number that no other test of this machine has at this time, and the first of `count`
/// consecutive free ports.
pub(crate) fn unique(count: u16) -> (u32, u16) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The ports are below those that the kernel assigns.
        let first = 10_000 + ((std::process::id() * 211 + number * 17) % 20_000) as u16;
        let free = |port: &u16| {
            TcpListener::bind(("127.0.0.1", *port)).is_ok()
                && UdpSocket::bind(("127.0.0.1", *port)).is_ok()
        };
        if (first..first + count).all(|port| free(&port)) {
            return (std::process::id() * 1000 + number % 1000, first);
        }
    }
}

/// A running process of `sprat`, which is killed when this value is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Starts a process of `sprat`. [`Running::wait_for`] reads its standard output.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = sprat();
        command.args(args);
        Self::of(command)
    }

    /// Starts a command of `sprat`. [`Running::wait_for`] reads its standard output.
    pub(crate) fn of(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the program starts"))
    }

    /// Reads the process's standard output up to a line that contains `mark`, and returns all of
    /// it.
    pub(crate) fn wait_for(&mut self, mark: &str) -> String {
        let mut output =
            BufReader::with_capacity(1, self.0.stdout.take().expect("standard output is kept"));
        let mut all = String::new();
        while !all.lines().any(|line| line.contains(mark)) {
            let read = output.read_line(&mut all).expect("standard output can be read");
            if read == 0 {
                let mut why = String::new();
                let _ = std::io::Read::read_to_string(
                    &mut self.0.stderr.take().expect("is kept"),
                    &mut why,
                );
                panic!("{mark:?} is not in {all:?}; {why}");
            }
        }
        self.0.stdout = Some(output.into_inner());
        all
    }

    /// Sends the signal with this name to the process.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.0.id(), name);
    }

    /// Waits for the process to end, at most for [`PATIENCE`].
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("it is our child") {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "the process does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Sends a signal to a process of the test.
pub(crate) fn signal(id: u32, name: &str) {
    let sent = try_signal(id, name);
    assert!(sent.is_ok(), "SIG{name} to {id}: {sent:?}");
}

/// Sends a signal by the system call, since not every machine has the program `kill`.
fn try_signal(id: u32, name: &str) -> rustix::io::Result<()> {
    let signal = match name {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        _ => return Err(Errno::INVAL),
    };
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    kill_process(pid, signal)
}

/// Kills all processes of a cluster at once.
pub(crate) fn kill(cluster: &mut Cluster) {
    for id in [&[cluster.up.0.id()], &cluster.ids[..]].concat() {
        signal(id, "KILL");
    }
    let _ = cluster.up.ended();
    assert!(wait_until(PATIENCE, || !cluster.ids.iter().any(|&id| lives(id))));
}

/// True while the process with this id runs. A process that has ended and was not waited for does
/// not run.
pub(crate) fn lives(id: u32) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
}

/// Returns the arguments of a new cluster with this number of servers and these options, its name
/// and its port.
fn start(servers: u16, options: &[&str]) -> (Vec<String>, String, u16) {
    let cores = options.iter().position(|option| *option == "--cores");
    let cores = cores.map_or(1, |at| options[at + 1].parse().expect("a number"));
    let (number, port) = unique(1 + 2 * servers * cores);
    let name = format!("test-{number}");
    let (servers, memory) = (servers.to_string(), format!("{}M", 64 * cores));
    let at = port.to_string();
    let args = ["up", "--servers", &servers, "--name", &name, "--port", &at, "--memory", &memory];
    let args = [&args, ephemeral(options), options].concat();
    (args.into_iter().map(str::to_owned).collect(), name, port)
}

/// A cluster that `sprat up` runs for a test.
pub(crate) struct Cluster {
    pub(crate) up: Running,
    pub(crate) coordinator: String,
    pub(crate) name: String,
    pub(crate) port: u16,
    /// The ids of the cluster's processes: the coordinator's first, then the servers' in order.
    pub(crate) ids: Vec<u32>,
    folder: TempDir,
}

impl Cluster {
    /// Starts a cluster with this number of servers and waits until it is ready.
    pub(crate) fn up(servers: u16) -> Self {
        Self::up_with(servers, &[])
    }

    /// Starts a cluster with this number of servers and these further options, and waits until it
    /// is ready.
    pub(crate) fn up_with(servers: u16, options: &[&str]) -> Self {
        let (args, name, port) = start(servers, options);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut up = Running::start(&args);
        let said = up.wait_for("Ctrl-C ends the cluster");
        let ids = said
            .lines()
            .filter(|line| line.starts_with("  coordinator ") || line.starts_with("  server "))
            .filter_map(|line| {
                line.split_whitespace()
                    .find_map(|word| word.parse().ok().filter(|&id: &u32| id > 99))
            })
            .collect();
        let coordinator = format!("tcp:host=127.0.0.1,port={port}");
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { up, coordinator, name, port, ids, folder }
    }

    /// Starts a cluster that must fail to start; returns its standard error.
    pub(crate) fn refused(servers: u16, options: &[&str]) -> String {
        let (args, ..) = start(servers, options);
        let output = sprat().args(&args).output().expect("the program starts");
        assert!(!output.status.success(), "{args:?}: {}", text(&output));
        errors(&output)
    }

    /// Returns a command of `sprat` against this cluster.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = sprat();
        command.args(args).env("SPRAT_COORDINATOR", &self.coordinator);
        command
    }

    /// Runs a command of `sprat` against this cluster to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    /// Runs a command of `sprat` against this cluster with `input` on its standard input.
    pub(crate) fn feed(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("standard input is ours");
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // A command that has read enough closes its end.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().expect("the program ends");
        feeder.join().expect("writing does not panic");
        output
    }

    /// Runs a command against this cluster that must succeed; returns its standard output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", errors(&output));
        text(&output)
    }

    /// Runs a command against this cluster that must fail with this exit code; returns its standard
    /// error.
    pub(crate) fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}{}",
            text(&output),
            errors(&output)
        );
        errors(&output)
    }

    /// Returns a path in the folder of this test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Ends the test's cluster as Ctrl-C does, and checks that nothing is left of it.
    pub(crate) fn end(mut self) {
        self.up.signal("INT");
        assert!(self.up.ended().success(), "Ctrl-C is a good end");
        assert!(!self.ids.iter().any(|&id| lives(id)), "no process is left");
        assert_eq!(left_of(&self.name), Vec::<PathBuf>::new(), "no name is left");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SIGTERM first, so that the cluster leaves nothing behind.
        if self.up.0.try_wait().is_ok_and(|status| status.is_none()) {
            // A destructor that panics during a panic aborts the test program.
            let _ = try_signal(self.up.0.id(), "TERM");
            let begin = Instant::now();
            while self.up.0.try_wait().is_ok_and(|status| status.is_none())
                && begin.elapsed() < PATIENCE
            {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        // A killed server leaves its socket, which the next server of that name would remove.
        for path in left_of(&self.name) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the files that a cluster has left of its shared-memory names.
pub(crate) fn left_of(name: &str) -> Vec<PathBuf> {
    let entries = shm_folders()
        .into_iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten();
    let ours = |entry: &fs::DirEntry| {
        let file = entry.file_name().to_string_lossy().into_owned();
        file.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', '-']))
    };
    entries.filter(ours).map(|entry| entry.path()).collect()
}

/// Returns the folders in which servers put the names of their shared memory.
pub(crate) fn shm_folders() -> Vec<PathBuf> {
    let run = std::env::var_os("XDG_RUNTIME_DIR").map(|base| Path::new(&base).join("sprat"));
    let temporary = fs::read_dir("/tmp").into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sprat-"))
    };
    run.into_iter().chain(temporary.filter(ours)).collect()
}
