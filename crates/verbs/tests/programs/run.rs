//! Runs one row of the matrix of programs: its processes from their start to their end.
//!
//! Invariant: no process outlives its row, and none waits longer than [`PATIENCE`].

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::left;
use crate::network::Network;
use crate::over::Over;
use crate::support::Staging;
use crate::table::{self, Ends, Row, Shows, State};

/// The longest time that a program of the matrix may take. The longest programs (all sizes up to 8
/// MiB) take some seconds, and longer if two of them spin on busy cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// The exit code by which valgrind reports errors.
const FOUND: i32 = 99;
/// The number of bytes of a failed program's output that the test shows.
const SHOWN: usize = 600;

/// A running program of the matrix. Its output goes to a file, so a full pipe cannot block it.
struct Running {
    child: Child,
    output: fs::File,
    command: String,
}

impl Running {
    fn start(
        staging: &Staging,
        command: &str,
        options: &[String],
        network: Option<&Network>,
        logs: bool,
    ) -> Self {
        let output = tempfile::tempfile().expect("a file can be made");
        let both = || Stdio::from(output.try_clone().expect("a descriptor more"));
        // A packet device on an interface needs root.
        let mut exec = if options.iter().any(|option| option.contains("+packet:")) {
            Command::new(staging.sprat())
        } else {
            staging.nobody()
        };
        exec.arg("exec").args(options).arg("--").args(command.split_whitespace());
        if let Some(network) = network {
            exec = network.within(&exec);
        }
        let child = exec
            .env("SPRAT_LOG", if logs { "info" } else { "" })
            .stdin(Stdio::null())
            .stdout(both())
            .stderr(both())
            .spawn()
            .expect("setpriv and sh are there");
        Self { child, output, command: command.to_owned() }
    }

    /// Waits until `done` returns true or the program ends; returns `None` at the deadline.
    fn wait(
        &mut self,
        deadline: Instant,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Option<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return Some(Some(status));
            }
            if done(self) {
                return Some(None);
            }
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn text(&self) -> String {
        let len = self.output.metadata().expect("it is a file").len();
        let mut bytes = vec![0; len as usize];
        // Not by a seek: the program's own descriptor has the same offset.
        self.output.read_exact_at(&mut bytes, 0).expect("a file does not shrink");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Describes a failure of a program, with the end of its output.
    fn wrong(&self, what: &str) -> String {
        let text = self.text();
        let from = text.len().saturating_sub(SHOWN);
        let from = (from..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or_default();
        format!("{}: {what}\n{}", self.command, text[from..].trim_end())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL by process id, which setpriv, sh and sprat all keep for the program.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The user id under which the programs run, as the first lines that each of them prints.
pub(crate) fn user(staging: &Staging) -> String {
    let mut id = Running::start(staging, "id", &[], None, false);
    let _ = id.wait(Instant::now() + PATIENCE, |_| false);
    id.text()
}

/// True if a process in the network of `process` listens on this TCP port.
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

/// A free TCP port below those that the kernel assigns.
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

/// Runs a row of the matrix of programs.
///
/// # Errors
/// A program did not end, ended otherwise, or printed something else.
pub(crate) fn row(staging: &Staging, row: &Row) -> Result<(), String> {
    let port = free_port();
    let network = if row.network { Some(Network::new()?) } else { None };
    let network = network.as_ref();
    let suppressions = staging.folder.path().join("valgrind.supp");
    let command = |text: &str| {
        let text = row.shown(text).replace(table::UNDER, table::VALGRIND);
        text.replace("SUPPRESSIONS", &suppressions.display().to_string())
            .replace("PORT", &port.to_string())
    };
    let start = |text: &str, is_server| {
        let options = row.over.options(port, is_server);
        // Its log tells that a server listens.
        let logs = is_server && row.over != Over::Loopback;
        Running::start(staging, &command(text), &options, network, logs)
    };
    let deadline = Instant::now() + PATIENCE;
    let mut server = row.server.as_ref().map(|server| start(server, true));
    if let Some(server) = &mut server {
        let process = network.map_or_else(|| "self".to_owned(), Network::process);
        match server.wait(deadline, |server| match row.over {
            Over::Loopback => listening(&process, port),
            // The libraries log it. No file of the kernel lists what our own TCP listens to.
            _ => server.text().contains("info: listens on "),
        }) {
            Some(None) => {}
            // The server reported that it cannot do this, as the row expects.
            Some(Some(status)) if refused(row, status) => return Ok(()),
            Some(Some(status)) => return Err(server.wrong(&format!("ended, {status}"))),
            None => return Err(server.wrong("does not listen")),
        }
    }
    let mut client = start(&row.client, row.server.is_none());
    let seen = asked(row, &mut client, deadline);
    match (server, seen) {
        (Some(server), Err(why)) => Err(why + "\n" + &server.wrong("beside it")),
        (Some(mut server), Ok(())) if matches!(row.state, State::Works) => {
            ended(&mut server, row.ends, deadline)?;
            clean(row, &client)?;
            clean(row, &server)
        }
        (_, seen) => seen,
    }
}

/// Checks that a program of the row left open only the descriptors that the row expects.
fn clean(row: &Row, program: &Running) -> Result<(), String> {
    if !row.valgrind {
        return Ok(());
    }
    left::expected(&program.text(), row.leaves)
        .map_err(|what| format!("{}: {what}", program.command))
}

/// Runs the client of a row of the matrix of programs to its end, and checks its exit status and
/// output.
fn asked(row: &Row, client: &mut Running, deadline: Instant) -> Result<(), String> {
    let Some(Some(status)) = client.wait(deadline, |_| false) else {
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
    match server.wait(deadline, |_| false) {
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

/// Checks a program's output against the output that its row of the matrix expects.
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

/// True for a line of perftest's figures: a size, a count and results.
fn is_figures(line: &str) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    line.starts_with(' ')
        && fields.len() >= 4
        && fields[..2].iter().all(|f| f.parse::<u64>().is_ok())
        && fields[2..].iter().all(|f| f.parse::<f64>().is_ok())
}
