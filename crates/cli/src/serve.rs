//! The processes that serve: a coordinator, a server, an echo. Each says where it listens as soon as it does, and runs
//! until SIGINT or SIGTERM.

use std::sync::Arc;

use signal_hook::consts::SIGXFSZ;
use sprat::doors::Options;
use sprat::locator::{Kind, Locator};
use sprat::rpc::{Call, Server};
use sprat::server::{self, CoordinatorOptions, ServerOptions};
use sprat::trace::Marks;
use sprat::worker::Worker;
use sprat_proto::node::machine::Machine;

use crate::args;
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::memory;
use sprat_bench::perf::echo::answer;
use sprat_bench::process::{self, StopSignals};

/// Runs a coordinator.
pub(crate) fn coordinator(args: &args::Coordinator) -> Result<(), Fail> {
    apart(&[("-C", &args.locators)])?;
    let mut options = CoordinatorOptions::at(&args.locators);
    options.state = args.state.clone();
    options.doors = Options { insecure_network: args.insecure_network, ..Options::default() };
    let signals = StopSignals::catch()?;
    // A file that may not grow (ulimit -f) is an error of the write then, as a full disk is.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).named("cannot catch signals")?;
    let worker = server::coordinator(&options).map_err(|error| match &args.state {
        Some(path) if error.to_string().starts_with(&path.display().to_string()) => {
            unusable(&error)
        }
        _ => listening(&error),
    })?;
    run(
        signals,
        worker,
        "mend that, then start it anew with this --state: servers and their objects wait for it",
    )
}

/// Runs a server.
pub(crate) fn server(args: &args::Server) -> Result<(), Fail> {
    apart(&[("-L", &args.locators), ("--control", args.control.as_deref().unwrap_or_default())])?;
    memory::check(args.memory, 1)?;
    let mut options = ServerOptions::new(&args.at.coordinator, &args.locators);
    options.control = args.control.clone();
    options.memory_bytes = args.memory;
    let marks = args.marks.then(Marks::new);
    options.doors =
        Options { insecure_network: args.insecure_network, marks, ..Options::default() };
    let signals = StopSignals::catch()?;
    let worker = server::server(&options).map_err(|error| listening(&error))?;
    run(signals, worker, "start it anew: it joins the cluster as a new server")
}

/// Serves until a signal comes, or until the machine itself must stop; `next` is what to do then.
fn run<M: Machine>(signals: StopSignals, mut worker: Worker<M>, next: &str) -> Result<(), Fail> {
    process::allow_files();
    process::say_ready(&worker.doors().locators().join(";"))?;
    let stop = worker.stop();
    signals.then(move || stop.stop())?;
    worker.run().map_err(|reason| Fail::new(reason).next(next))
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

/// Refuses two locators that would listen at one place: the second would find the place in use, as if by another process.
/// Locators that are malformed are left to the start.
fn apart(options: &[(&str, &str)]) -> Result<(), Fail> {
    let mut taken: Vec<(String, &str, Locator)> = Vec::new();
    for &(option, list) in options {
        for locator in Locator::list(list).unwrap_or_default() {
            let Some(place) = place(&locator) else { continue };
            if let Some((_, other, first)) = taken.iter().find(|(known, ..)| *known == place) {
                let fail = Fail::usage(format!(
                    "{other} {first} and {option} {locator} name one place to listen at"
                ));
                return Err(fail.next(if option == *other {
                    "leave one of them out, or choose another port or name"
                } else {
                    "leave --control out: the coordinator then reaches the server at -L"
                }));
            }
            taken.push((place, option, locator));
        }
    }
    Ok(())
}

/// What a locator takes for itself by listening; nothing if that is chosen when it listens.
fn place(locator: &Locator) -> Option<String> {
    match locator.kind().ok()? {
        Kind::Shm { name } => Some(format!("shm {name}")),
        // RDMA listens at a TCP port.
        Kind::Tcp(at) | Kind::Rdma { at, .. } => {
            (at.port != 0).then(|| format!("tcp {} {}", at.host, at.port))
        }
        Kind::Udp(at) => (at.port != 0).then(|| format!("udp {} {}", at.host, at.port)),
        _ => Some(locator.to_string()),
    }
}

/// Why nothing can be served, and what to do about it.
fn listening(error: &std::io::Error) -> Fail {
    let fail = Fail::new(format!("cannot serve: {error}"));
    let text = error.to_string();
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            fail.next("another process serves there: end it, or choose another port or name")
        }
        std::io::ErrorKind::PermissionDenied if text.contains(sprat_bench::cluster::INSECURE) => {
            fail.next("choose an address of loopback, or allow this one with --insecure-network")
        }
        // A device says by itself what it lacks.
        std::io::ErrorKind::PermissionDenied if !text.contains("CAP_") => {
            fail.next("choose an address and a port that you may use")
        }
        _ => fail,
    }
}

/// Why a state file cannot be used, and what to do about it.
fn unusable(error: &std::io::Error) -> Fail {
    let fail = Fail::new(format!("cannot serve: {error}"));
    match error.kind() {
        std::io::ErrorKind::ResourceBusy => {
            fail.next("end the process that has it open, or name another file with --state")
        }
        std::io::ErrorKind::InvalidData => fail.next(
            "the file is left as it is; name another one with --state to begin a new cluster, whose servers \
             start anew and empty",
        ),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            fail.next("make room there, or name another file with --state")
        }
        std::io::ErrorKind::NotFound
        | std::io::ErrorKind::PermissionDenied
        | std::io::ErrorKind::InvalidInput
        | std::io::ErrorKind::NotADirectory
        | std::io::ErrorKind::IsADirectory => {
            fail.next("name a regular file with --state that you may write, or one that does not exist yet")
        }
        _ => fail.next("mend that, then start it anew with this --state, or name another file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_is_not_listened_at_twice() {
        let tcp = "tcp:host=127.0.0.1,port=7741";
        for (data, control) in [
            (tcp, tcp),
            (tcp, "tcp:port=7741,host=127.0.0.1"),
            (tcp, "rdma:host=127.0.0.1,port=7741,crc=off"),
            (
                "fast+shm:name=a;fast+udp:host=127.0.0.1,port=1",
                "tcp:host=::1,port=1;fast+shm:name=a",
            ),
        ] {
            let fail =
                apart(&[("-L", data), ("--control", control)]).expect_err(control).to_string();
            assert!(fail.contains("--control") && fail.contains("leave --control out"), "{fail}");
        }
        let fail = apart(&[("-L", &format!("{tcp};{tcp}")), ("--control", "")])
            .expect_err("twice")
            .to_string();
        assert!(!fail.contains("--control"), "{fail}");
        for (data, control) in [
            (tcp, "fast+udp:host=127.0.0.1,port=7741"),
            (tcp, "tcp:host=127.0.0.1,port=7742"),
            ("tcp:host=127.0.0.1,port=0", "tcp:host=127.0.0.1,port=0"),
            (tcp, ""),
            ("nonsense", "nonsense"),
        ] {
            apart(&[("-L", data), ("--control", control)]).expect(control);
        }
    }
}
