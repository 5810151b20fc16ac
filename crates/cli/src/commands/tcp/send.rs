//! `sprat tcp send`: sends bytes to a server, by one stream or several.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;

use clap::Args;
use sprat::tcp::TcpInfo;
use sprat_bench::fail::Fail;
use sprat_bench::units;
use sprat_proto::Instant;
use sprat_sys::clock;

use super::report::Report;
use super::streams::{Connected, Net, Settings};
use crate::progress::Progress;

/// Measure the goodput of streams to a server that discards them (serve --sink).
///
/// The time ends when the server has ended each stream: it has read everything then.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat tcp send utcp+packet:dev=eth0,host=192.0.2.9,port=5001 --seconds 10
  sprat tcp send tcp:host=192.0.2.9,port=5001 --bytes 1GB --streams 4 --json")]
pub(crate) struct Send {
    /// The server: our own TCP (utcp+DEVICE:…,host=H,port=P) or the kernel's (tcp:host=H,port=P).
    #[arg(value_name = "LOCATOR")]
    locator: String,
    /// Bytes to send by each stream [default: 100MB, without --seconds].
    #[arg(long, value_parser = units::data)]
    bytes: Option<u64>,
    /// Send for this number of seconds.
    #[arg(long, value_parser = units::seconds)]
    seconds: Option<f64>,
    /// Number of streams.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    streams: u16,
    /// Bytes of each write.
    #[arg(long, short = 's', value_name = "BYTES", value_parser = units::size,
        default_value = "128KB")]
    size: usize,
    /// Write the report as one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

/// The bytes that a stream sends if no option limits them.
const DEFAULT_BYTES: u64 = 100_000_000;

/// Runs `sprat tcp send`.
pub(super) fn run(args: &Send) -> Result<(), Fail> {
    let net = Net::towards(&args.locator, &args.settings)?;
    let streams = (0..args.streams).map(|_| net.connect()).collect::<Result<Vec<_>, _>>()?;
    let (end, most) = (
        args.seconds.map(|seconds| clock::now().after((seconds * 1e9) as u64)),
        args.bytes.unwrap_or_else(|| if args.seconds.is_some() { u64::MAX } else { DEFAULT_BYTES }),
    );
    let total = (most < u64::MAX).then(|| most.saturating_mul(args.streams.into()));
    let (sent, progress) = (AtomicU64::new(0), Progress::new("written", total));
    let start = clock::now();
    let results = scope(|threads| {
        let (last, others) = streams.split_last().expect("one stream at least");
        let job = Job { size: args.size.max(1), end, most, sent: &sent };
        let run: Vec<_> = others
            .iter()
            .map(|stream| threads.spawn(move || job.send(stream, |_, _| ())))
            .collect();
        let last = job.send(last, |bytes, writes| progress.at(bytes, writes));
        let joined = run.into_iter().map(|thread| thread.join().expect("a thread panicked"));
        joined.chain([last]).collect::<Result<Vec<Option<TcpInfo>>, Fail>>()
    })?;
    progress.end();
    let seconds = clock::now().since(start) as f64 / 1e9;
    let (command, to) = ("send", net.addr().to_string());
    let (streams, bytes) = (streams.len(), sent.into_inner());
    let mut report = Report { command, to, streams, bytes, seconds, ..Report::default() };
    report.add(results.iter().flatten());
    report.print(args.json)
}

/// The work of each stream.
#[derive(Clone, Copy)]
struct Job<'a> {
    size: usize,
    end: Option<Instant>,
    most: u64,
    /// The bytes that all streams have written.
    sent: &'a AtomicU64,
}

impl Job<'_> {
    /// Sends a stream, and waits until the server has ended it.
    fn send(self, mut stream: &Connected, at: impl Fn(u64, u64)) -> Result<Option<TcpInfo>, Fail> {
        let failed = |error: std::io::Error| Fail::new(error.to_string());
        let chunk = vec![0x5a; self.size];
        let (mut own, mut writes) = (0, 0);
        while own < self.most && self.end.is_none_or(|end| clock::now() < end) {
            let len = (self.most - own).min(self.size as u64) as usize;
            stream.write_all(&chunk[..len]).map_err(failed)?;
            (own, writes) = (own + len as u64, writes + 1);
            let all = self.sent.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
            at(all, writes);
        }
        stream.finish().map_err(failed)?;
        let mut room = [0; 4096];
        while stream.read(&mut room).map_err(failed)? > 0 {}
        Ok(stream.info())
    }
}
