//! A process of a cluster, which starts again whenever it ends.
//!
//! ```text
//! Serving ── end ──► Waiting ── pause over ──► Starting ── prints its locators ──► Serving
//!                       ▲                          │ end, or no locators in time
//!                       └──────────────────────────┘
//! Held: the process was killed on purpose, and starts again when it is released.
//! Leaving: the process ends, and does not start again.
//! ```
//! The pause doubles with each end, up to [`LONGEST`]. A process that has served for [`HEALTHY`]
//! begins with the shortest pause again. So a process that cannot serve ends at most six times a
//! minute.

use std::time::{Duration, Instant};

use sprat::internals::transports::{Options, Transports};
use sprat::locator::{Kind, Locator};

use super::host::Host;
use crate::fail::Fail;
use crate::process::Process;

/// The pause between a process's end and its first restart. Servers serve without a coordinator
/// only as long as their lease holds, which is two seconds.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause between a process's end and its restart.
const LONGEST: Duration = Duration::from_secs(10);
/// Time of service after which a process counts as healthy. If it ends later, the cause was not
/// there at its start.
const HEALTHY: Duration = Duration::from_secs(60);

/// A process of the cluster, and the arguments to start it again.
pub(super) struct Member {
    pub(super) process: Process,
    /// Locators at which the process listens.
    pub(super) locators: String,
    core: Option<usize>,
    /// The emulated host of the process, if it has one of its own.
    host: Option<Host>,
    args: Vec<String>,
    /// The time within which the process has to serve after its start.
    patience: Duration,
    state: State,
    /// The number of starts after the first one.
    restarts: u64,
    /// The pause that follows the process's next end.
    pause: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Serving { since: Instant },
    Waiting { until: Instant },
    Starting { since: Instant },
    Held,
    Leaving,
}

impl Member {
    /// Starts a process of the cluster and waits until it serves, at most for `patience`.
    pub(super) fn start(
        name: String,
        core: Option<usize>,
        host: Option<Host>,
        args: Vec<String>,
        patience: Duration,
    ) -> Result<Self, Fail> {
        let mut process = start(&name, core, host.as_ref(), &args)?;
        let locators = process.ready(patience)?;
        let state = State::Serving { since: Instant::now() };
        Ok(Self { process, locators, core, host, args, patience, state, restarts: 0, pause: FIRST })
    }

    /// Sends the process SIGKILL. It does not start again until [`Member::release`].
    pub(super) fn hold(&mut self) {
        self.process.send_kill();
        self.state = State::Held;
    }

    /// Ends the process for good, without a wait.
    pub(super) fn leave(&mut self) {
        self.process.terminate();
        self.state = State::Leaving;
    }

    /// Returns true if a process that leaves has ended. `None` if it does not leave.
    pub(super) fn has_left(&mut self) -> Option<bool> {
        (self.state == State::Leaving).then(|| self.process.ended().is_some())
    }

    /// Lets a process that was held start again at the next [`Member::restart`].
    pub(super) fn release(&mut self, now: Instant) {
        if self.state == State::Held {
            (self.state, self.pause) = (State::Waiting { until: now }, FIRST);
        }
    }

    /// True if the process has printed its locators and runs.
    pub(super) fn serves(&mut self) -> bool {
        matches!(self.state, State::Serving { .. }) && self.process.ended().is_none()
    }

    /// Returns the number of times that the process was started again.
    pub(super) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Returns a text that says how the process ended. `None` if it runs.
    pub(super) fn died(&mut self) -> Option<String> {
        let (name, id) = (self.process.name().to_owned(), self.process.id());
        self.process.ended().map(|how| format!("{name} (process {id}) {how}"))
    }

    /// Starts the process again if it has ended, and returns a message when the pause begins. It
    /// never waits.
    pub(super) fn restart(&mut self, now: Instant) -> Option<String> {
        match self.state {
            State::Serving { since } => {
                let died = self.died()?;
                if now.duration_since(since) > HEALTHY {
                    self.pause = FIRST;
                }
                Some(self.wait(now, &died))
            }
            State::Starting { since } => {
                match self.process.ready_within(Duration::ZERO) {
                    Ok(Some(locators)) => {
                        self.locators = locators;
                        self.state = State::Serving { since: now };
                        return None;
                    }
                    Ok(None) if now.duration_since(since) < self.patience => return None,
                    // The process printed no locators in time, or closed its output: it will never
                    // serve.
                    Ok(None) | Err(_) => self.process.kill(),
                }
                let died = self.died()?;
                Some(self.wait(now, &died))
            }
            State::Held | State::Leaving => None,
            State::Waiting { until } if now < until => None,
            State::Waiting { .. } => {
                let name = self.process.name();
                match start(name, self.core, self.host.as_ref(), &self.args) {
                    Ok(process) => {
                        self.process = process;
                        self.restarts += 1;
                        self.state = State::Starting { since: now };
                        None
                    }
                    Err(fail) => Some(self.wait(now, &fail.to_string())),
                }
            }
        }
    }

    /// Removes the socket files that a killed process left behind: those of its names in shared
    /// memory.
    pub(super) fn remove_names(&mut self) {
        if self.process.ended_well() {
            return;
        }
        for locator in Locator::list(&self.locators).unwrap_or_default() {
            if matches!(locator.kind(), Ok(Kind::Shm { .. })) {
                // A server of this name replaces the dead one's socket and removes its own. If
                // another process serves there, nothing is left to remove.
                drop(Transports::listen(Options::default(), &[locator]));
            }
        }
    }

    /// Begins the pause before a restart. Returns a message with the cause of the process's end.
    fn wait(&mut self, now: Instant, why: &str) -> String {
        let pause = self.pause;
        self.state = State::Waiting { until: now + pause };
        self.pause = LONGEST.min(2 * pause);
        format!("{why}; it is started again in {:.1} s", pause.as_secs_f64())
    }
}

/// Starts a process on its host.
fn start(
    name: &str,
    core: Option<usize>,
    host: Option<&Host>,
    args: &[String],
) -> Result<Process, Fail> {
    let _inside = host.map(Host::enter).transpose()?;
    Process::start(name, core, args)
}
