//! One row: its processes, from their start to their end.
//!
//! Always holds: no process outlives its row; none waits longer than PATIENCE.

use std::fs;
use std::io::{Read as _, Seek as _};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::left;
use crate::network::Network;
use crate::place::Place;
use crate::table::{self, Ends, Row, Shows, State};

/// How long a program may take. The longest (all sizes up to 8 MiB) take some seconds; two that spin on two cores that others
/// want, too, many more.
const PATIENCE: Duration = Duration::from_secs(60);
/// The exit code of valgrind's that tells of errors.
const FOUND: i32 = 99;
/// How much of a program's output is shown when it fails.
const SHOWN: usize = 600;

/// A program that was started. Its output goes to a file, so that it never waits for us to read.
struct Running {
    child: Child,
    output: fs::File,
    command: String,
}

impl Running {
    fn start(place: &Place, command: &str, network: Option<&Network>) -> Self {
        let output = tempfile::tempfile().expect("a file can be made");
        let both = || Stdio::from(output.try_clone().expect("a descriptor more"));
        let mut exec = place.nobody();
        exec.args(["exec", "--"]).args(command.split_whitespace());
        if let Some(network) = network {
            exec = network.within(&exec);
        }
        let child = exec
            .stdin(Stdio::null())
            .stdout(both())
            .stderr(both())
            .spawn()
            .expect("setpriv and sh are there");
        Self { child, output, command: command.to_owned() }
    }

    /// Waits until `done` or its end, whichever is first; `None` if neither comes.
    fn wait(&mut self, deadline: Instant, done: impl Fn() -> bool) -> Option<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return Some(Some(status));
            }
            if done() {
                return Some(None);
            }
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn text(&mut self) -> String {
        let mut bytes = Vec::new();
        self.output
            .rewind()
            .and_then(|()| self.output.read_to_end(&mut bytes))
            .expect("it is a file");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What is wrong with it, with the end of its output.
    fn wrong(&mut self, what: &str) -> String {
        let text = self.text();
        let from = text.len().saturating_sub(SHOWN);
        let from = (from..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or_default();
        format!("{}: {what}\n{}", self.command, text[from..].trim_end())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL by its id; it has kept that from setpriv through sh and sprat to the program.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Who the programs run as: the first lines that each of them prints.
pub(crate) fn who(place: &Place) -> String {
    let mut id = Running::start(place, "id", None);
    let _ = id.wait(Instant::now() + PATIENCE, || false);
    id.text()
}

/// Whether a TCP port is listened at, by anybody who has the network of that process.
fn listening(process: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let table = fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            // 0A is LISTEN.
            fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("0A")
        })
    })
}

/// A port that is free, below those that the kernel hands out by itself.
fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let next = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + ((std::process::id() * 211 + next * 3) % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Runs a row.
///
/// # Errors
/// It did not end, or not so, or did not show what it should.
pub(crate) fn row(place: &Place, row: &Row) -> Result<(), String> {
    let port = free_port();
    let network = if row.network { Some(Network::new()?) } else { None };
    let network = network.as_ref();
    let suppressions = place.folder.path().join("valgrind.supp");
    let command = |text: &str| {
        let text = row.shown(text).replace(table::UNDER, table::VALGRIND);
        text.replace("SUPPRESSIONS", &suppressions.display().to_string())
            .replace("PORT", &port.to_string())
    };
    let deadline = Instant::now() + PATIENCE;
    let mut server =
        row.server.as_ref().map(|server| Running::start(place, &command(server), network));
    if let Some(server) = &mut server {
        let process = network.map_or_else(|| "self".to_owned(), Network::process);
        match server.wait(deadline, || listening(&process, port)) {
            Some(None) => {}
            // A server that refuses what it cannot do is what was asked for.
            Some(Some(status)) if refused(row, status) => return Ok(()),
            Some(Some(status)) => return Err(server.wrong(&format!("ended, {status}"))),
            None => return Err(server.wrong("does not listen")),
        }
    }
    let mut client = Running::start(place, &command(&row.client), network);
    let seen = asked(row, &mut client, deadline);
    match (server, seen) {
        (Some(mut server), Err(why)) => Err(why + "\n" + &server.wrong("beside it")),
        (Some(mut server), Ok(())) if matches!(row.state, State::Works) => {
            ended(&mut server, row.ends, deadline)?;
            clean(row, &mut client)?;
            clean(row, &mut server)
        }
        (_, seen) => seen,
    }
}

/// What it left behind is what is known.
fn clean(row: &Row, program: &mut Running) -> Result<(), String> {
    if !row.valgrind {
        return Ok(());
    }
    left::expected(&program.text(), row.leaves)
        .map_err(|what| format!("{}: {what}", program.command))
}

/// The client, from its start to its end.
fn asked(row: &Row, client: &mut Running, deadline: Instant) -> Result<(), String> {
    let Some(Some(status)) = client.wait(deadline, || false) else {
        return Err(client.wrong("does not end"));
    };
    let as_it_should = match row.state {
        State::Refused(_) => refused(row, status),
        State::Works => status.success(),
    };
    if !as_it_should {
        return Err(client.wrong(&format!("ended, {status}")));
    }
    shown(row.shows, &client.text()).map_err(|what| client.wrong(&what))
}

fn refused(row: &Row, status: ExitStatus) -> bool {
    matches!(row.state, State::Refused(_)) && !status.success() && status.signal().is_none()
}

fn ended(server: &mut Running, ends: Ends, deadline: Instant) -> Result<(), String> {
    if ends == Ends::Never {
        return match server.child.try_wait().expect("it is our child") {
            None => Ok(()),
            Some(status) => Err(server.wrong(&format!("ended, {status}"))),
        };
    }
    match server.wait(deadline, || false) {
        Some(Some(status)) if status.success() => Ok(()),
        Some(Some(status))
            if ends == Ends::Somehow
                && status.signal().is_none()
                && status.code() != Some(FOUND) =>
        {
            Ok(())
        }
        Some(Some(status)) => Err(server.wrong(&format!("ended, {status}"))),
        _ => Err(server.wrong("does not end")),
    }
}

/// Whether a program's output holds what it should.
fn shown(shows: Shows, text: &str) -> Result<(), String> {
    match shows {
        Shows::Nothing => Ok(()),
        Shows::Text(expected) if text.contains(expected) => Ok(()),
        Shows::Text(expected) => Err(format!("does not say {expected:?}")),
        Shows::Figures(count) => {
            let seen = text.lines().filter(|line| is_figures(line)).count();
            if seen == count {
                Ok(())
            } else {
                Err(format!("{seen} lines of figures, not {count}"))
            }
        }
    }
}

/// A line of perftest's: a size, how many times, and figures behind them.
fn is_figures(line: &str) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    line.starts_with(' ')
        && fields.len() >= 4
        && fields[..2].iter().all(|f| f.parse::<u64>().is_ok())
        && fields[2..].iter().all(|f| f.parse::<f64>().is_ok())
}
