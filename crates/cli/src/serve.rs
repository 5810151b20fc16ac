//! The processes that serve: a coordinator, a server, an echo. Each says where it listens as soon as it does, and runs
//! until SIGINT or SIGTERM.

use sprat::doors::Options;
use sprat::probe::Marks;
use sprat::rpc::{Call, Server};
use sprat::server::{self, CoordinatorOptions, ServerOptions};
use sprat::worker::Worker;
use sprat_store::machine::Machine;

use crate::args;
use crate::fail::Fail;
use crate::process::{self, StopSignals};

/// Runs a coordinator.
pub(crate) fn coordinator(args: &args::Coordinator) -> Result<(), Fail> {
    let mut options = CoordinatorOptions::at(&args.locators);
    options.state = args.state.clone();
    options.doors = Options { insecure_network: args.insecure_network, ..Options::default() };
    let signals = StopSignals::catch()?;
    run(signals, server::coordinator(&options).map_err(|error| listening(&error))?)
}

/// Runs a server.
pub(crate) fn server(args: &args::Server) -> Result<(), Fail> {
    let mut options = ServerOptions::new(&args.at.coordinator, &args.locators);
    options.control = args.control.clone();
    options.memory_bytes = args.memory;
    let marks = args.marks.then(Marks::new);
    options.doors = Options { insecure_network: args.insecure_network, marks, ..Options::default() };
    let signals = StopSignals::catch()?;
    run(signals, server::server(&options).map_err(|error| listening(&error))?)
}

/// Serves until a signal comes, or until the machine itself must stop.
fn run<M: Machine>(signals: StopSignals, mut worker: Worker<M>) -> Result<(), Fail> {
    process::allow_files();
    process::say_ready(&worker.doors().locators().join(";"))?;
    let stop = worker.stop();
    signals.then(move || stop.stop())?;
    worker
        .run()
        .map_err(|reason| Fail::new(reason).next("start it anew: it joins the cluster as a new server"))
}

/// The answer to a request: its own bytes.
pub(crate) fn answer(Call { payload, mut room, .. }: Call<'_>) -> Option<Vec<u8>> {
    room.extend_from_slice(&payload);
    Some(room)
}

/// Answers every request with its own bytes, or with how many there were.
pub(crate) fn echo(args: &args::Echo) -> Result<(), Fail> {
    if !args.tally {
        return serve(args, answer);
    }
    let mut executed = 0_u64;
    serve(args, move |_: Call<'_>| {
        executed += 1;
        Some(executed.to_be_bytes().to_vec())
    })
}

fn serve(args: &args::Echo, service: impl FnMut(Call<'_>) -> Option<Vec<u8>>) -> Result<(), Fail> {
    process::allow_files();
    let signals = StopSignals::catch()?;
    let marks = args.marks.then(Marks::new);
    let options = Options { insecure_network: args.insecure_network, marks, ..Options::default() };
    let server = Server::listen_with(options, &[&args.locators], service);
    let mut server = server.map_err(|error| listening(&error))?;
    process::say_ready(&server.locators())?;
    let stop = server.stop();
    signals.then(move || stop.stop())?;
    server.run();
    Ok(())
}

/// Why nothing can be served, and what to do about it.
fn listening(error: &std::io::Error) -> Fail {
    let fail = Fail::new(format!("cannot serve: {error}"));
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            fail.next("another process serves there: end it, or choose another port or name")
        }
        // A device says by itself what it lacks.
        std::io::ErrorKind::PermissionDenied if !error.to_string().contains("CAP_") => {
            fail.next("choose an address and a port that you may use")
        }
        _ => fail,
    }
}
