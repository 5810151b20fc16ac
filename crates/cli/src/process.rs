//! Processes of this program that another one starts, and the signals that end them.
//!
//! A child dies with its parent, however that ends: it is told the parent's id (`--parent`), asks the kernel for SIGTERM
//! at the parent's death, and then looks whether the parent is still there. No `unsafe` between fork and exec is needed
//! for that, and there is no moment in which the parent's death goes unseen.

use std::ffi::OsStr;
use std::fmt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::fail::{Fail, Named};

/// How long a child may take to end well before it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// How often a condition is looked at that nobody announces.
const LOOK: Duration = Duration::from_millis(2);

/// Set by SIGINT and SIGTERM from now on; a second one kills the process as usual.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Fail> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset, so that only the second one kills.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))
            .named("cannot catch signals")?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).named("cannot catch signals")?;
    }
    Ok(flag)
}

/// What a child does first: it binds its life to its parent's, and itself to a core.
pub(crate) fn settle(parent: Option<u32>, core: Option<usize>) -> Result<(), Fail> {
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

/// Binds the calling thread, and all threads that it starts later, to `core`.
pub(crate) fn pin(core: usize) -> Result<(), Fail> {
    let mut set = rustix::thread::CpuSet::new();
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Fail::usage(format!("there is no core {core}")));
    }
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).named(format_args!("cannot run on core {core}"))
}

/// The cores that this process may use, in order.
pub(crate) fn cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// A child process of this program. Dropping it ends it.
pub(crate) struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts this program again with `args`, its standard output going nowhere.
    pub(crate) fn start<S: AsRef<OsStr>>(
        name: impl Into<String>,
        core: Option<usize>,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Self, Fail> {
        let name = name.into();
        let program = std::env::current_exe().named("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.arg("--parent").arg(std::process::id().to_string());
        if let Some(core) = core {
            command.arg("--core").arg(core.to_string());
        }
        // A group of its own, so that Ctrl-C reaches the parent alone, which then ends its children in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().named(format_args!("cannot start {name}"))?;
        Ok(Self { name, child, ended: None })
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.map(Ended)
    }

    /// Asks it to end (SIGTERM); does not wait.
    pub(crate) fn ask_to_end(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Kills it (SIGKILL) and waits.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended = self.ended.or_else(|| self.child.wait().ok());
    }

    /// Ends it in good order; kills it if it does not.
    pub(crate) fn end(&mut self) {
        self.ask_to_end();
        if !wait_until(GRACE, || self.ended().is_some()) {
            self.kill();
        }
    }

    fn signal(&mut self, signal: Signal) {
        // A process that has been waited for is gone, and its number may be another's.
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

/// How a process ended, in words.
#[derive(Clone, Copy)]
pub(crate) struct Ended(ExitStatus);

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

/// Waits until `done` says so, at most `limit`; says whether it did.
pub(crate) fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        if done() {
            return true;
        }
        if begin.elapsed() > limit {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// True once `flag` was set by a signal.
pub(crate) fn stopped(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}
