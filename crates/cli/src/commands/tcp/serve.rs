//! `sprat tcp serve`: a server that echoes, discards, generates or sends files.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::spawn;
use std::time::Duration;

use clap::Args;
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out;
use sprat_bench::process::{self, StopSignals};
use sprat_sys::clock;

use super::http;
use super::report::Report;
use super::streams::{Connected, Listening, Settings};

/// The time between two checks whether the command shall end.
const CHECK: Duration = Duration::from_millis(200);
/// The size of reads and writes.
const CHUNK: usize = 256 << 10;

/// Serve streams: echo, discard or generate bytes, or send files.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat tcp serve utcp+packet:dev=eth0,host=192.0.2.7,port=7 --echo
  sprat tcp serve utcp+tap:dev=sprat0,host=192.0.2.7,port=80 --http /srv/www
  sprat tcp serve tcp:host=127.0.0.1,port=5001 --sink         the kernel's TCP")]
pub(crate) struct Serve {
    /// Our own TCP (utcp+DEVICE:…,host=H,port=P) or the kernel's (tcp:host=H,port=P).
    #[arg(value_name = "LOCATOR")]
    locator: String,
    #[command(flatten)]
    service: Service,
    #[command(flatten)]
    settings: Settings,
    /// Report each connection at its end.
    #[arg(long, short = 'v')]
    verbose: bool,
}

/// The service of each connection. The default is --sink.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
struct Service {
    /// Send each byte back.
    #[arg(long)]
    echo: bool,
    /// Discard all bytes.
    #[arg(long)]
    sink: bool,
    /// Send this number of bytes, and end the stream.
    #[arg(long, value_name = "BYTES", value_parser = sprat_bench::units::data)]
    source: Option<u64>,
    /// Send this file, and end the stream.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Serve the files of this folder by HTTP/1.0.
    #[arg(long, value_name = "FOLDER")]
    http: Option<PathBuf>,
}

/// Runs `sprat tcp serve`.
pub(super) fn run(args: &Serve) -> Result<(), Fail> {
    process::allow_files();
    for path in args.service.file.iter().chain(&args.service.http) {
        path.metadata().named(path.display())?;
    }
    let signals = StopSignals::catch()?;
    let (listener, locator) = Listening::open(&args.locator, &args.settings)?;
    process::print_ready(&locator)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    signals.then(move || stopping.store(true, Ordering::Relaxed))?;
    while !stop.load(Ordering::Relaxed) {
        let accepted = listener.accept(CHECK).named(&args.locator)?;
        let Some((stream, peer)) = accepted else { continue };
        let (service, is_verbose) = (args.service.clone(), args.verbose);
        spawn(move || {
            let start = clock::now();
            let (bytes, result) = service.serve(&stream);
            if let Err(error) = result {
                out::note(format_args!("{peer}: {error}"));
            }
            if is_verbose {
                let seconds = clock::now().since(start) as f64 / 1e9;
                let to = peer.to_string();
                let mut report = Report {
                    command: "serve",
                    to,
                    streams: 1,
                    bytes,
                    seconds,
                    ..Report::default()
                };
                report.add(&stream.info());
                out::note(report.text().trim_end());
            }
        });
    }
    Ok(())
}

impl Service {
    /// Serves one connection. Returns the number of its bytes.
    fn serve(&self, stream: &Connected) -> (u64, io::Result<()>) {
        let mut bytes = 0;
        let result = self.pass(stream, &mut bytes).and_then(|()| finish(stream));
        (bytes, result)
    }

    fn pass(&self, mut stream: &Connected, bytes: &mut u64) -> io::Result<()> {
        let mut room = vec![0; CHUNK];
        if let Some(len) = self.source {
            while *bytes < len {
                let most = (len - *bytes).min(CHUNK as u64) as usize;
                *bytes += stream.write(&room[..most])? as u64;
            }
            return Ok(());
        }
        if let Some(path) = &self.file {
            return send(path, stream, &mut room, bytes);
        }
        if let Some(folder) = &self.http {
            return http::answer(stream, folder);
        }
        loop {
            let count = stream.read(&mut room)?;
            if count == 0 {
                return Ok(());
            }
            *bytes += count as u64;
            if self.echo {
                stream.write_all(&room[..count])?;
            }
        }
    }
}

fn send(path: &Path, mut to: &Connected, room: &mut [u8], bytes: &mut u64) -> io::Result<()> {
    let mut file = File::open(path)?;
    loop {
        let count = file.read(room)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&room[..count])?;
        *bytes += count as u64;
    }
}

/// Ends a stream, and reads until the peer ends its own, so that nothing of it resets the
/// connection before the peer has all.
fn finish(mut stream: &Connected) -> io::Result<()> {
    stream.finish()?;
    let mut room = [0; 4096];
    while stream.read(&mut room)? > 0 {}
    Ok(())
}
