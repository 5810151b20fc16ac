//! `sprat up`: a whole cluster on this machine, each part a process of its own, until Ctrl-C.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use sprat::locator::{Kind, Locator};
use sprat_bench::cluster::{Cluster, Plan};
use sprat_bench::fail::Fail;
use sprat_bench::process::StopSignals;
use sprat_bench::{memory, out};

use crate::args;

/// How often the children are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the command.
pub(crate) fn run(args: &args::Up) -> Result<(), Fail> {
    let (stop, stopped) = channel();
    StopSignals::catch()?.then(move || {
        // The receiver lives until this process ends.
        let _ = stop.send(());
    })?;
    let besides = args.locators.as_deref().map_or_else(|| Ok(Vec::new()), Locator::list);
    let besides = besides.map_err(|error| Fail::usage(error.to_string()))?;
    besides.iter().try_for_each(on_loopback)?;
    memory::check(args.memory, args.servers)?;
    let plan = Plan {
        name: &args.name,
        port: args.port,
        servers: args.servers,
        memory: args.memory,
        state: args.state.as_deref(),
        core: None,
        host: None,
        besides,
        marks: args.marks,
    };
    let mut cluster = Cluster::start(&plan)?;
    out::print(introduction(&cluster))?;
    watch(&mut cluster, &stopped);
    cluster.end();
    out::print("The cluster has ended.\n")
}

/// Refuses the kernel's addresses on the network, which a server of its own may have.
fn on_loopback(besides: &Locator) -> Result<(), Fail> {
    let (Kind::Tcp(at) | Kind::Udp(at) | Kind::Rdma { at, .. }) =
        besides.kind().map_err(|error| Fail::usage(error.to_string()))?
    else {
        return Ok(());
    };
    match at.allowed(false) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(Fail::usage(
            format!("{besides}: {} is not on loopback, and nothing is encrypted", at.host),
        )
        .next("start servers of the network one by one: sprat server --insecure-network")),
        // Whatever else is wrong shows when the server listens.
        _ => Ok(()),
    }
}

/// Waits for Ctrl-C. Processes that die meanwhile are told of and started again.
fn watch(cluster: &mut Cluster, stopped: &Receiver<()>) {
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
        let now = Instant::now();
        cluster.tend(now).iter().for_each(out::note);
    }
}

fn introduction(cluster: &Cluster) -> String {
    let at = cluster.coordinator();
    let hint = if at == args::DEFAULT_COORDINATOR {
        "Other commands find it by themselves".to_owned()
    } else {
        format!("In other terminals: export SPRAT_COORDINATOR='{at}'")
    };
    let table = cluster.table();
    format!(
        "{table}\n{hint}; try: sprat table create books\nCtrl-C ends the cluster and forgets its objects.\n"
    )
}
