//! The common parts of the commands that serve: `sprat coordinator`, `sprat server` and `sprat
//! echo`.
//!
//! Each prints its locators as soon as it listens, and runs until SIGINT or SIGTERM.

use sprat::internals::worker::{Stall, Stop, Worker};
use sprat::locator::{Kind, Locator};
use sprat_bench::fail::Fail;
use sprat_bench::out;
use sprat_bench::process::{self, StopSignals};
use sprat_proto::node::machine::Machine;
use sprat_proto::time::MS;

use crate::counters::catalogue::Part;
use crate::log::{self, Level, Message};
use crate::metrics::Metrics;
use crate::options::Served;

/// The name of the option that allows a server to listen beyond loopback.
pub(super) const INSECURE: &str = sprat_bench::cluster::INSECURE;

/// Runs the workers of a process by `serve` until a signal stops all of them, or until a machine
/// stops. If one does, the error message ends with `next`.
pub(super) fn run<M: Machine>(
    signals: StopSignals,
    workers: Vec<Worker<M>>,
    next: &str,
    serve: impl FnOnce(Vec<Worker<M>>) -> Result<(), String>,
) -> Result<(), Fail> {
    process::allow_files();
    let locators = workers.iter().flat_map(|worker| worker.transports().locators());
    process::print_ready(&locators.collect::<Vec<_>>().join(";"))?;
    let stops: Vec<_> = workers.iter().map(Worker::stop).collect();
    signals.then(move || {
        log::ends();
        stops.iter().for_each(Stop::stop);
    })?;
    serve(workers).map_err(|reason| Fail::new(reason).next(next))?;
    log::flush();
    Ok(())
}

/// Listens at the address of the metrics, if the options name one.
pub(super) fn metrics(options: &Served) -> Result<Option<Metrics>, Fail> {
    let listen = |address| Metrics::listen(address, options.insecure_network);
    options.metrics.map(listen).transpose()
}

/// Serves the counters of workers, if there are metrics.
pub(super) fn counters<M: Machine>(
    metrics: Option<Metrics>,
    part: Part,
    workers: &[Worker<M>],
) -> Result<(), Fail> {
    let Some(metrics) = metrics else { return Ok(()) };
    log::write(&Message::new(Level::Info, format!("metrics at {}", metrics.url())));
    metrics.serve(part, workers.iter().map(Worker::snapshots).collect())
}

/// The time in nanoseconds from which a turn is reported to people. A log with a format has shorter
/// ones, too, and the counters have all.
const LONG_FOR_PEOPLE_NS: u64 = 100 * MS;

/// Writes turns of a worker's loop that take long to the log.
pub(super) fn report_stalls<M: Machine>(worker: &mut Worker<M>) {
    worker.report_stalls(|stall| {
        let is_long = stall.processor_ns + stall.preempted_ns >= LONG_FOR_PEOPLE_NS;
        if is_long || log::has_format() {
            log::queue(stalled(stall));
        }
    });
}

/// Returns the message about a turn that took long.
fn stalled(stall: &Stall) -> Message {
    let us = |ns: u64| ns as f64 / 1e3;
    let waited = out::micros(us(stall.preempted_ns));
    let mut text = if stall.processor_ns == 0 {
        format!("the process did not run for {waited}")
    } else {
        let used = out::micros(us(stall.processor_ns));
        let done = match &stall.done[..] {
            [] => "messages alone".to_owned(),
            done => done.join(", "),
        };
        format!("a turn used the processor for {used} and did not run for {waited}: {done}")
    };
    if stall.unreported > 0 {
        text += &format!("; {} others since the last message", stall.unreported);
    }
    let fields = vec![
        ("processor_us", (stall.processor_ns / 1000).into()),
        ("preempted_us", (stall.preempted_ns / 1000).into()),
        ("done", stall.done.clone().into()),
        ("unreported", stall.unreported.into()),
    ];
    Message { level: Level::Warning, text, fields }
}

/// Refuses two locators at which a server would listen at one place, because the error of the
/// second would report another process. Malformed locators are reported when the server listens.
pub(super) fn apart(options: &[(&str, &str)]) -> Result<(), Fail> {
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

/// Returns the place at which a server with this locator listens. `None` if the kernel chooses it.
fn place(locator: &Locator) -> Option<String> {
    match locator.kind().ok()? {
        Kind::Shm { name } => Some(format!("shm {name}")),
        // RDMA listens at a TCP port.
        Kind::Tcp(at) | Kind::Rdma { at, .. } => {
            (at.port != 0).then(|| format!("tcp {} {}", at.host, at.port))
        }
        Kind::Udp { at, .. } => (at.port != 0).then(|| format!("udp {} {}", at.host, at.port)),
        _ => Some(locator.to_string()),
    }
}

/// Returns the failure of a server that cannot listen.
pub(super) fn listening(error: &std::io::Error) -> Fail {
    let fail = Fail::new(format!("cannot serve: {error}"));
    let text = error.to_string();
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            fail.next("another process serves there: end it, or choose another port or name")
        }
        std::io::ErrorKind::PermissionDenied if text.contains(INSECURE) => {
            fail.next("choose an address of loopback, or allow this one with --insecure-network")
        }
        // The error of a device says what it lacks.
        std::io::ErrorKind::PermissionDenied if !text.contains("CAP_") => {
            fail.next("choose an address and a port that you may use")
        }
        _ => fail,
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
