//! `sprat tcp bridge`: passes frames between two interfaces, and treats them as bad lines do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use rustix::net::{AddressFamily, SocketType, socket};
use sprat::internals::device::bridge::{Bridge as Lines, Line, LineCounters};
use sprat::internals::device::{self, AnyNic, Options};
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out;
use sprat_bench::process::{self, StopSignals};
use sprat_proto::fault::Fault;
use sprat_proto::time::{MS, US};
use sprat_sys::ethtool::{InterfaceOffload, set_offload};
use sprat_sys::netns::link;

/// Run a bridge between two interfaces that loses, delays, reorders, limits and marks frames.
///
/// The bridge does so in both directions, as a seed decides. It needs interfaces without addresses
/// of the kernel, and switches their offloads off; switch those of the other ends off too (ethtool
/// -K DEV tx off gro off), or they send frames longer than the MTU, which the bridge drops.
#[derive(Args, Debug)]
#[command(after_help = "Example, in a network namespace between two others:
  sprat tcp bridge left right --loss 1 --delay 5 --rate 100")]
pub(crate) struct Bridge {
    /// The two interfaces.
    #[arg(value_name = "DEV", num_args = 2, required = true)]
    devices: Vec<String>,
    /// Percentage of frames that are lost.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    loss: f64,
    /// Percentage of frames that arrive twice.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    duplicate: f64,
    /// Percentage of frames that later ones overtake.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    reorder: f64,
    /// The longest further delay of frames that are overtaken or arrive twice, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1.0)]
    reorder_by: f64,
    /// Delay of each frame in one direction, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    delay: f64,
    /// Rate of each direction in Mbit/s [default: no limit].
    #[arg(long, value_name = "MBIT/S")]
    rate: Option<f64>,
    /// Frames that wait because of the rate; those beyond are lost.
    #[arg(long, value_name = "FRAMES", default_value_t = 1000)]
    queue: usize,
    /// Mark congestion (ECN) while more frames than this wait.
    #[arg(long, value_name = "FRAMES")]
    mark_from: Option<usize>,
    /// Percentage of frames on which the bridge marks congestion (ECN).
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    mark: f64,
    /// Seed of all decisions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Bridge {
    fn line(&self) -> Line {
        let ppm = |percent: f64| (percent * 1e4) as u32;
        let fault = Fault {
            drop_ppm: ppm(self.loss),
            duplicate_ppm: ppm(self.duplicate),
            reorder_ppm: ppm(self.reorder),
            reorder_ns: (self.reorder_by * MS as f64) as u64,
            ..Fault::default()
        };
        Line {
            fault,
            delay_ns: (self.delay * 1e3) as u64 * US,
            rate: self.rate.map(|mbit| (mbit * 1e6) as u64),
            queue: self.queue,
            mark_from: self.mark_from,
            mark_ppm: ppm(self.mark),
        }
    }
}

/// Opens an interface of the bridge.
fn open(dev: &str) -> Result<AnyNic, Fail> {
    let index = link::find(dev).named(dev)?.index;
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).named("a socket")?;
    for offload in InterfaceOffload::ALL {
        // An interface without the offload needs no switch.
        let _ = set_offload(std::os::fd::AsFd::as_fd(&any), index, offload, false);
    }
    let options =
        Options { dev: dev.to_owned(), promiscuous: true, no_offload: true, ..Options::default() };
    device::open("packet", &options).map_err(|error| Fail::new(error.to_string()))
}

/// Runs `sprat tcp bridge`.
pub(super) fn run(args: &Bridge) -> Result<(), Fail> {
    let signals = StopSignals::catch()?;
    let [a, b] = &args.devices[..] else { return Err(Fail::usage("two interfaces are needed")) };
    let line = args.line();
    let mut lines = Lines::new([open(a)?, open(b)?], [line, line], args.seed);
    process::print_ready(&format!("{a} and {b}"))?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    signals.then(move || stopping.store(true, Ordering::Relaxed))?;
    lines.run(&stop).named("the bridge")?;
    for (i, (from, to)) in [(a, b), (b, a)].into_iter().enumerate() {
        let LineCounters { forwarded, lost, dropped, marked, .. } = lines.counters(i);
        out::note(format_args!(
            "{from} to {to}: {forwarded} forwarded, {lost} lost, {dropped} dropped, {marked} marked"
        ));
    }
    Ok(())
}
