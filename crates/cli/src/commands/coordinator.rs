//! `sprat coordinator`: runs the process that knows the tables and the servers.

use std::time::Duration;

use clap::Args;
use sprat::internals::transports::Options;
use sprat::internals::worker::Worker;
use sprat::server::{self, CoordinatorOptions, State};
use sprat_bench::fail::Fail;
use sprat_bench::process::{self, StopSignals};

use super::serve::{self, apart, listening};
use crate::counters::catalogue::Part;
use crate::log;
use crate::options::{COORDINATOR, DEFAULT_COORDINATOR, REBALANCE, Served, lease, rebalance};

/// Run a coordinator, which knows the tables and the servers.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat coordinator -C tcp:host=127.0.0.1,port=7740
  sprat coordinator -C 'fast+shm:name=lab;tcp:host=127.0.0.1,port=7740' --state lab.state
  sprat coordinator -C tcp:host=127.0.0.1,port=7741 --state etcd:host=127.0.0.1:2379")]
pub(crate) struct Coordinator {
    /// Locator to listen at; several with `;`.
    #[arg(
        short = 'C',
        long = "coordinator",
        value_name = "LOCATOR",
        env = COORDINATOR,
        hide_env_values = true,
        default_value = DEFAULT_COORDINATOR,
    )]
    locators: String,
    /// Keep the state in this file, so that it survives a restart. Without it the state is in
    /// memory only. The coordinator refuses a change that it cannot write there. With
    /// etcd:host=HOST:PORT,host=HOST:PORT,... the state is in etcd. Several coordinators, each with
    /// its own -C, share it, and one of them leads; clients and servers get the locators of all
    /// with -C. Further keys: cluster=NAME, user=USER,password=FILE, ca=FILE (TLS),
    /// cert=FILE,key=FILE.
    #[arg(long, value_name = "FILE|etcd:...")]
    state: Option<State>,
    /// Term of a server's lease, in seconds, 2 by default: other servers recover the objects of a
    /// silent server when its lease has ended, and a server that cannot renew it in time ends. With
    /// a shorter term a crash costs less time. A longer one survives longer pauses of a machine or
    /// a network without a recovery.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = lease)]
    lease: Duration,
    /// Move parts of tables by itself: a server that has joined gets an equal share of each table,
    /// and hot ranges of keys go from a server with much load to the one with the least. One part
    /// at a time moves, while clients use it. SECONDS is the time between two searches for a part,
    /// 2 by default.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = REBALANCE,
        value_parser = rebalance,
    )]
    rebalance: Option<Duration>,
    #[command(flatten)]
    served: Served,
}

/// Runs `sprat coordinator`.
pub(crate) fn run(args: &Coordinator) -> Result<(), Fail> {
    log::begin(args.served.log_format, "coordinator", &args.locators)?;
    apart(&[("-C", &args.locators)])?;
    let mut options = CoordinatorOptions::at(&args.locators);
    options.state = args.state.clone();
    options.config.server_term_ns = args.lease.as_nanos() as u64;
    options.config.rebalance_ns = args.rebalance.map_or(0, |each| each.as_nanos() as u64);
    options.transports = Options::default().insecure_network(args.served.insecure_network);
    let signals = StopSignals::catch()?;
    process::survive_file_limit()?;
    let metrics = serve::metrics(&args.served)?;
    let mut worker = server::coordinator(&options).map_err(|error| match &args.state {
        Some(State::Etcd(_)) if error.to_string().contains("etcd") => no_etcd(&error),
        Some(state) if error.to_string().starts_with(&state.to_string()) => unusable(&error),
        _ => listening(&error),
    })?;
    serve::report_stalls(&mut worker);
    let workers = vec![worker];
    serve::counters(metrics, Part::Coordinator, &workers)?;
    serve::run(
        signals,
        workers,
        "mend that, then start it anew with this --state: servers and their objects wait for it",
        |mut workers| workers.iter_mut().try_for_each(Worker::run),
    )
}

/// Returns the failure of a coordinator whose state in etcd cannot be used.
fn no_etcd(error: &std::io::Error) -> Fail {
    let fail = Fail::new(format!("cannot serve: {error}"));
    let text = error.to_string();
    fail.next(match error.kind() {
        std::io::ErrorKind::Unsupported => {
            "build it with the feature: cargo build --release -p sprat-cli --features etcd"
        }
        std::io::ErrorKind::PermissionDenied if text.contains("permission denied") => {
            "give a role of that user these keys: etcdctl role grant-permission ROLE readwrite \
             --prefix=true PREFIX"
        }
        std::io::ErrorKind::PermissionDenied => {
            "give a user of the etcd, and the file of its password: --state \
             etcd:host=...,user=USER,password=FILE"
        }
        _ if text.contains("peer certificate") => {
            "give the file of the authority that has signed etcd's certificate with ca=FILE in \
             --state, or mend etcd's certificate"
        }
        _ if text.contains("fatal alert") => {
            "give a certificate that etcd accepts with ca=FILE,cert=FILE,key=FILE in --state"
        }
        _ => {
            "start etcd, or mend its hosts or files in --state: an etcd with TLS needs ca=FILE, \
             also cert=FILE,key=FILE if it asks for a certificate; one without TLS needs neither"
        }
    })
}

/// Returns the failure of a coordinator whose state file cannot be used.
fn unusable(error: &std::io::Error) -> Fail {
    let fail = Fail::new(format!("cannot serve: {error}"));
    match error.kind() {
        std::io::ErrorKind::ResourceBusy => {
            fail.next("end the process that has it open, or name another file with --state")
        }
        std::io::ErrorKind::InvalidData => fail.next(
            "the file is left as it is; name another one with --state to begin a new cluster, \
             whose servers \
             start anew and empty",
        ),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            fail.next("make room there, or name another file with --state")
        }
        std::io::ErrorKind::NotFound
        | std::io::ErrorKind::PermissionDenied
        | std::io::ErrorKind::InvalidInput
        | std::io::ErrorKind::NotADirectory
        | std::io::ErrorKind::IsADirectory => fail.next(
            "name a regular file with --state that you may write, or one that does not \
                       exist yet",
        ),
        _ => fail.next("mend that, then start it anew with this --state, or name another file"),
    }
}
