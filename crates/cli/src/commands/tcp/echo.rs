//! `sprat tcp echo`: measures round trips to a server that echoes.

use std::io::{Read as _, Write as _};
use std::thread::scope;

use clap::Args;
use sprat_bench::fail::Fail;
use sprat_bench::units;
use sprat_proto::Instant;
use sprat_sys::clock;

use super::report::{Echoes, Report};
use super::streams::{Connected, Net, Settings};

/// Measure round trips to a server that sends each byte back (serve --echo).
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat tcp echo utcp+packet:dev=eth0,host=192.0.2.9,port=7 --size 64 --no-delay
  sprat tcp echo tcp:host=192.0.2.9,port=7 --seconds 5 --json")]
pub(crate) struct Echo {
    /// The server: our own TCP (utcp+DEVICE:…,host=H,port=P) or the kernel's (tcp:host=H,port=P).
    #[arg(value_name = "LOCATOR")]
    locator: String,
    /// Number of echoes of each stream [default: 10000, without --seconds].
    #[arg(long, short = 'c', value_name = "N")]
    count: Option<u64>,
    /// Exchange echoes for this number of seconds.
    #[arg(long, value_parser = units::seconds)]
    seconds: Option<f64>,
    /// Number of streams, each with a thread of its own.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    streams: u16,
    /// Bytes of each echo.
    #[arg(long, short = 's', value_name = "BYTES", value_parser = units::size,
        default_value = "64")]
    size: usize,
    /// Write the report as one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

/// The echoes of a stream if no option limits them.
const DEFAULT_COUNT: u64 = 10_000;
/// The most round trips of a stream that are kept.
const MOST_KEPT: usize = 4_000_000;

/// Runs `sprat tcp echo`.
pub(super) fn run(args: &Echo) -> Result<(), Fail> {
    let net = Net::towards(&args.locator, &args.settings)?;
    let streams = (0..args.streams).map(|_| net.connect()).collect::<Result<Vec<_>, _>>()?;
    let start = clock::now();
    let end = args.seconds.map(|seconds| start.after((seconds * 1e9) as u64));
    let most = args.count.unwrap_or_else(|| if end.is_some() { u64::MAX } else { DEFAULT_COUNT });
    let size = args.size.max(1);
    let times = scope(|threads| {
        let run: Vec<_> = streams
            .iter()
            .map(|stream| threads.spawn(move || exchange(stream, size, most, end)))
            .collect();
        let joined = run.into_iter().map(|thread| thread.join().expect("a thread panicked"));
        joined.collect::<Result<Vec<_>, Fail>>()
    })?
    .concat();
    let seconds = clock::now().since(start) as f64 / 1e9;
    let (command, to) = ("echo", net.addr().to_string());
    let bytes = times.len() as u64 * size as u64;
    let count = streams.len();
    let mut report = Report { command, to, streams: count, bytes, seconds, ..Report::default() };
    report.echoes = Echoes::of(times);
    let infos: Vec<_> = streams.iter().filter_map(Connected::info).collect();
    report.add(&infos);
    report.print(args.json)
}

/// Exchanges echoes. Returns the time of each round trip in nanoseconds.
fn exchange(
    mut stream: &Connected,
    size: usize,
    most: u64,
    end: Option<Instant>,
) -> Result<Vec<u64>, Fail> {
    let failed = |error: std::io::Error| Fail::new(error.to_string());
    let (mut times, mut room) = (Vec::new(), vec![0; size]);
    let sent = vec![0xa5; size];
    let mut now = clock::now();
    let mut count = 0;
    while count < most && end.is_none_or(|end| now < end) {
        let start = now;
        stream.write_all(&sent).map_err(failed)?;
        stream.read_exact(&mut room).map_err(failed)?;
        now = clock::now();
        if times.len() < MOST_KEPT {
            times.push(now.since(start));
        }
        count += 1;
        if room != sent {
            return Err(Fail::new("the echo differs from what was sent"));
        }
    }
    Ok(times)
}
