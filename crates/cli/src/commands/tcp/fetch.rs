//! `sprat tcp fetch`: reads a stream, or a file by HTTP.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::PathBuf;

use clap::Args;
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out;
use sprat_sys::clock;

use super::http;
use super::report::Report;
use super::streams::{Net, Settings};
use crate::progress::Progress;

/// The size of reads.
const CHUNK: usize = 256 << 10;

/// Read a stream to its end, or a file by HTTP.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat tcp fetch utcp+packet:dev=eth0,host=192.0.2.9,port=80 /index.html
  sprat tcp fetch utcp+packet:dev=eth0,host=192.0.2.9,port=5001 -o /dev/null --json")]
pub(crate) struct Fetch {
    /// The server: our own TCP (utcp+DEVICE:…,host=H,port=P) or the kernel's (tcp:host=H,port=P).
    #[arg(value_name = "LOCATOR")]
    locator: String,
    /// Path of a file, which the command requests by HTTP/1.0. Without it the command reads what
    /// the server sends.
    #[arg(value_name = "PATH")]
    path: Option<String>,
    /// Write to this file, and the report to standard output.
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the report as one JSON object; needs --output.
    #[arg(long, requires = "output")]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Runs `sprat tcp fetch`.
pub(super) fn run(args: &Fetch) -> Result<(), Fail> {
    let net = Net::towards(&args.locator, &args.settings)?;
    let stream = net.connect()?;
    let peer = net.addr();
    let mut output: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(File::create(path).named(path.display())?),
        None => Box::new(io::stdout().lock()),
    };
    let start = clock::now();
    let mut wanted = None;
    let mut bytes = 0;
    let mut reader = &stream;
    if let Some(path) = &args.path {
        let request = http::request(&peer.ip().to_string(), path);
        reader.write_all(request.as_bytes()).named(peer)?;
        let (head, rest) = http::head(reader).named(peer)?;
        let (code, line, len) = http::status(&head);
        if code != 200 {
            return Err(Fail::new(format!("{peer}: {path}: {line}")));
        }
        (wanted, bytes) = (len, rest.len() as u64);
        output.write_all(&rest).map_err(|error| out::failed(&error))?;
    }
    let progress = Progress::new("read", wanted);
    let (mut room, mut reads) = (vec![0; CHUNK], 0);
    while wanted.is_none_or(|wanted| bytes < wanted) {
        let count = reader.read(&mut room).map_err(|error| Fail::new(error.to_string()))?;
        if count == 0 {
            break;
        }
        (bytes, reads) = (bytes + count as u64, reads + 1);
        progress.at(bytes, reads);
        output.write_all(&room[..count]).map_err(|error| out::failed(&error))?;
    }
    progress.end();
    output.flush().map_err(|error| out::failed(&error))?;
    if let Some(wanted) = wanted.filter(|&wanted| wanted > bytes) {
        return Err(Fail::new(format!(
            "{peer}: the stream has ended after {bytes} of {wanted} bytes"
        )));
    }
    let seconds = clock::now().since(start) as f64 / 1e9;
    let (command, to) = ("fetch", peer.to_string());
    let mut report = Report { command, to, streams: 1, bytes, seconds, ..Report::default() };
    report.add(&stream.info());
    if args.output.is_some() { report.print(args.json) } else { Ok(()) }
}
