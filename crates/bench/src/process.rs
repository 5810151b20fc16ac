//! Child processes of this program, and the signals that end them.
//!
//! A child ends with its parent. The parent passes its id (`--parent`); the child asks the kernel
//! for SIGTERM at the parent's death (PR_SET_PDEATHSIG), and then checks that the parent is still
//! there. So no `unsafe` stands between fork and exec, and no death of the parent is missed. The
//! kernel sends the signal when the *thread* that started the child ends: start children from the
//! main thread only.

use std::ffi::OsStr;
use std::fmt;
use std::io::{Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::fail::{Fail, Named};

/// Time that a child process may take to end before it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// Time that a child process may take until it serves.
pub const START: Duration = Duration::from_secs(20);
/// Longest time of one wait for a child's output.
const ONE_WAIT: Duration = Duration::from_millis(100);
/// Longest first line of a child's output in bytes. The line has all of the child's locators.
const LONGEST_LINE: usize = 64 << 10;
/// Time between two checks of a condition that wakes no sleeper when it becomes true.
const CHECK_EVERY: Duration = Duration::from_millis(2);

/// Beginning of the line that a process prints when it serves. Its locators follow.
const READY: &str = "listening at ";

/// Prints the locators of this process, for people and for the parent ([`Process::ready`]).
pub fn print_ready(locators: &str) -> Result<(), Fail> {
    // A closed standard output is an error: the caller ends, and so does what it started.
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{READY}{locators}\n").as_bytes())
        .and_then(|()| out.flush())
        .named("cannot say where this process listens")
}

/// SIGINT and SIGTERM, caught as long as this value lives: a process that is interrupted while it
/// starts still removes what it has made. A second signal kills the process.
pub struct StopSignals(Signals);

impl StopSignals {
    /// Begins to catch SIGINT and SIGTERM.
    pub fn catch() -> Result<Self, Fail> {
        let flag = Arc::new(AtomicBool::new(false));
        let signals = [SIGINT, SIGTERM];
        for signal in signals {
            // The order matters: the first signal finds the flag unset, so that only the second one
            // kills.
            flag::register_conditional_default(signal, Arc::clone(&flag))
                .and_then(|_| flag::register(signal, Arc::clone(&flag)))
                .named("cannot catch signals")?;
        }
        Signals::new(signals).map(Self).named("cannot catch signals")
    }

    /// Calls `stop` in another thread when the process receives SIGINT or SIGTERM, at once if it
    /// already has.
    pub fn then(self, stop: impl FnOnce() + Send + 'static) -> Result<(), Fail> {
        self.on_first(move |_| stop())
    }

    /// Calls `clean` in another thread at the first SIGINT or SIGTERM, and then ends the process by
    /// that signal.
    pub fn then_die(self, clean: impl FnOnce() + Send + 'static) -> Result<(), Fail> {
        self.on_first(move |signal| {
            clean();
            // The call returns only if the signal cannot be raised.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        })
    }

    fn on_first(mut self, run: impl FnOnce(i32) + Send + 'static) -> Result<(), Fail> {
        let wait = move || {
            if let Some(signal) = self.0.forever().next() {
                run(signal);
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(wait)
            .map(|_| ())
            .named("cannot start a thread")
    }
}

/// Makes a write to a file that may not grow (`ulimit -f`) an error, as on a full disk, and not the
/// end of the process by SIGXFSZ.
pub fn survive_file_limit() -> Result<(), Fail> {
    flag::register(SIGXFSZ, Arc::default()).named("cannot catch signals").map(drop)
}

/// Makes this process end with its parent if `parent` is given, and binds it to `core` if that is
/// given.
pub fn settle(parent: Option<u32>, core: Option<usize>) -> Result<(), Fail> {
    if let Some(parent) = parent {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
            .named("cannot follow the parent process")?;
        let now = rustix::process::getppid().map(Pid::as_raw_nonzero);
        if now.is_none_or(|now| now.get().unsigned_abs() != parent) {
            return Err(Fail::new("the process that started this one is gone"));
        }
    }
    core.map_or(Ok(()), pin)
}

/// Binds the calling thread, and the threads that it starts later, to `core`.
pub fn pin(core: usize) -> Result<(), Fail> {
    let mut set = rustix::thread::CpuSet::new();
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Fail::usage(format!("there is no core {core}")));
    }
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).named(format_args!("cannot run on core {core}"))
}

/// Calls `run`, and lets the calling thread run on every core meanwhile. Processes that `run`
/// starts keep all cores.
pub fn unpinned<T>(run: impl FnOnce() -> Result<T, Fail>) -> Result<T, Fail> {
    let mine = cores();
    let mut all = rustix::thread::CpuSet::new();
    // The kernel ignores cores that do not exist.
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|core| all.set(core));
    rustix::thread::sched_setaffinity(None, &all).named("cannot run on all cores")?;
    let result = run();
    if let [core] = mine[..] {
        pin(core)?;
    }
    result
}

/// Returns the numbers of the cores that this process may use, in order.
pub fn cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Raises the limit of open files to the hard limit, and returns it. Over TCP each session is an
/// open file.
pub fn allow_files() -> u64 {
    let limits = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limits.maximum, maximum: limits.maximum };
    match setrlimit(Resource::Nofile, most) {
        Ok(()) => limits.maximum,
        Err(_) => limits.current,
    }
    .unwrap_or(u64::MAX)
}

/// A child process of this program, which ends when this value is dropped.
pub struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
    asked: bool,
    /// The child's output so far, up to the end of its first line.
    output: Vec<u8>,
}

impl Process {
    /// Starts this program with `args`. `name` names the process in messages.
    pub fn start<S: AsRef<OsStr>>(
        name: impl Into<String>,
        core: Option<usize>,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Self, Fail> {
        let name = name.into();
        let program = std::env::current_exe().named("cannot find this program's own file")?;
        let mut command = Command::new(program_path(program));
        command.arg("--parent").arg(std::process::id().to_string());
        if let Some(core) = core {
            command.arg("--core").arg(core.to_string());
        }
        // Ctrl-C reaches the parent alone, since the child has a process group of its own. The
        // parent then ends its children in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn().named(format_args!("cannot start {name}"))?;
        Ok(Self { name, child, ended: None, asked: false, output: Vec::new() })
    }

    /// Waits until the child serves, at most for `patience`, and returns its locators. A child that
    /// ends instead has printed the reason.
    pub fn ready(&mut self, patience: Duration) -> Result<String, Fail> {
        let begin = Instant::now();
        loop {
            if let Some(locators) = self.ready_within(ONE_WAIT)? {
                return Ok(locators);
            }
            if begin.elapsed() > patience {
                return Err(Fail::new(format!("{} does not start", self.name)));
            }
        }
    }

    /// Returns the child's locators, if it prints them within `wait`.
    pub fn ready_within(&mut self, wait: Duration) -> Result<Option<String>, Fail> {
        let Some(mut output) = self.child.stdout.take() else {
            return Err(Fail::new(format!("{} has no output", self.name)));
        };
        let left = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let mut byte = [0];
        while !self.output.ends_with(b"\n") && self.output.len() < LONGEST_LINE {
            if poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left)).unwrap_or(0) == 0 {
                self.child.stdout = Some(output);
                return Ok(None);
            }
            if output.read(&mut byte).named(format_args!("cannot listen to {}", self.name))? == 0 {
                wait_until(GRACE, || self.ended().is_some());
                let how = self
                    .ended()
                    .map_or_else(|| "closed its output".to_owned(), |ended| ended.to_string());
                let fail = Fail::new(format!("{} {how} before it served", self.name));
                return Err(fail.next("the message before this one says why"));
            }
            self.output.push(byte[0]);
        }
        // The pipe stays open, so that later output of the child does not fail.
        self.child.stdout = Some(output);
        let line = String::from_utf8_lossy(&self.output);
        Ok(Some(line.trim_end().strip_prefix(READY).unwrap_or_default().to_owned()))
    }

    /// Returns the child's name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the child's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status, if the child has ended.
    pub fn ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.map(Ended)
    }

    /// True if the child has ended by itself and without a failure.
    pub fn ended_well(&mut self) -> bool {
        self.ended().is_some_and(|Ended(status)| status.success())
    }

    /// Sends the child SIGTERM, but only once, since a second signal would kill it. The call never
    /// waits.
    pub fn terminate(&mut self) {
        if !self.asked {
            self.asked = true;
            self.signal(Signal::TERM);
        }
    }

    /// Sends the child SIGKILL. The call never waits.
    pub fn send_kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// Sends the child SIGKILL and waits for its end.
    pub fn kill(&mut self) {
        self.send_kill();
        self.ended = self.ended.or_else(|| self.child.wait().ok());
    }

    /// Sends the child SIGSTOP: it stands still until [`Process::resume`].
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    /// Sends the child SIGCONT.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Sends the child SIGTERM and waits for its end. Kills the child if that takes longer than
    /// [`GRACE`].
    pub fn end(&mut self) {
        self.terminate();
        if !wait_until(GRACE, || self.ended().is_some()) {
            self.kill();
        }
    }

    fn signal(&mut self, signal: Signal) {
        // The process id of a child that was waited for may belong to another process.
        if self.ended().is_none()
            && let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns a path of this program that works after its file was removed or replaced, as by an
/// upgrade.
fn program_path(program: PathBuf) -> PathBuf {
    if program.exists() { program } else { "/proc/self/exe".into() }
}

/// The exit status of a process, for messages.
#[derive(Clone, Copy)]
pub struct Ended(ExitStatus);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::os::unix::process::ExitStatusExt;
        match (self.0.signal(), self.0.code()) {
            (Some(signal), _) => {
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                write!(f, "was killed by {name}")
            }
            (None, Some(code)) => write!(f, "ended with exit code {code}"),
            (None, None) => f.write_str("ended"),
        }
    }
}

/// Calls `done` until it returns true, for at most `limit`. Returns true if it did.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        if done() {
            return true;
        }
        if begin.elapsed() > limit {
            return false;
        }
        std::thread::sleep(CHECK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a program whose file was replaced. After an upgrade `sprat up` could not start
    /// processes again: the kernel names the replaced file of a running program with " (deleted)"
    /// behind it.
    #[test]
    fn a_program_whose_file_is_gone_is_started_all_the_same() {
        let here = std::env::current_exe().expect("a program");
        assert_eq!(program_path(here.clone()), here);
        let gone = program_path("/nonexistent/sprat (deleted)".into());
        let same = |a: &std::path::Path, b: &std::path::Path| {
            use std::os::unix::fs::MetadataExt as _;
            let [a, b] = [a, b].map(|path| path.metadata().expect("a file"));
            (a.dev(), a.ino()) == (b.dev(), b.ino())
        };
        assert!(same(&gone, &here));
    }
}
