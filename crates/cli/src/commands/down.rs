//! `sprat down`: ends the cluster that a `sprat up` of this user runs.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out;

use super::up::address;
use crate::options::{DEFAULT_NAME, cluster_name};

/// The time in which `sprat down` expects a cluster to end: `sprat up` kills a process that takes 3
/// s.
const PATIENCE: Duration = Duration::from_secs(30);

/// End the cluster that `sprat up` runs, with all its processes.
///
/// The directory of the cluster keeps the objects, and the next `sprat up` with it has them. The
/// objects of a cluster with --ephemeral are gone.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat down
  sprat down --name test                  the cluster of: sprat up --name test")]
pub(crate) struct Down {
    /// Name of the cluster.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME, value_parser = cluster_name)]
    name: String,
}

/// Runs `sprat down`.
pub(crate) fn run(args: &Down) -> Result<(), Fail> {
    let name = &args.name;
    let connected = address(name).and_then(|at| UnixStream::connect_addr(&at));
    let Ok(socket) = connected else {
        return Err(Fail::new(format!("no cluster named {name} runs on this machine"))
            .next("name it as `sprat up --name` did: sprat down --name NAME"));
    };
    let failed = format!("cannot end the cluster {name}");
    let peer = socket_peercred(&socket).named(&failed)?;
    if peer.uid != geteuid() && !geteuid().is_root() {
        return Err(
            Fail::new(format!("{failed}: another user started it")).next("end it as that user")
        );
    }
    let process = pidfd_open(peer.pid, PidfdFlags::empty()).named(&failed)?;
    pidfd_send_signal(&process, Signal::TERM).named(&failed)?;
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    // A pidfd is readable when its process has ended.
    if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)).named(&failed)? == 0 {
        return Err(Fail::new(format!(
            "{failed}: process {} does not end",
            peer.pid.as_raw_nonzero()
        ))
        .next("see what it prints, or kill it with SIGKILL: its servers end with it"));
    }
    out::print(format!("The cluster {name} has ended.\n"))
}
