//! The processes that `perf --local` measures: started when a test first needs them, ended with the run.

use std::net::{TcpListener, UdpSocket};

use crate::fail::{Fail, Named};
use crate::process::{self, Process};

/// Processes of this run.
pub(crate) struct Local {
    cores: Vec<usize>,
    transports: Vec<String>,
    echo: Option<Echo>,
}

/// A process that answers with what it is asked.
pub(crate) struct Echo {
    process: Process,
    locators: String,
}

impl Local {
    pub(crate) fn new(transports: &[String]) -> Self {
        Self { cores: process::cores(), transports: transports.to_vec(), echo: None }
    }

    /// The core for this process, if there are two to share out.
    pub(crate) fn client_core(&self) -> Option<usize> {
        (self.cores.len() > 1).then(|| self.cores[0])
    }

    /// The core for what this process calls.
    pub(crate) fn server_core(&self) -> Option<usize> {
        (self.cores.len() > 1).then(|| self.cores[1])
    }

    /// The echo server, started if need be.
    pub(crate) fn echo(&mut self) -> Result<&Echo, Fail> {
        if self.echo.is_none() {
            let locators = locators("echo", &self.transports)?;
            let mut process =
                Process::start("the echo server", self.server_core(), ["echo", "-L", &locators])?;
            let locators = process.ready()?;
            self.echo = Some(Echo { process, locators });
        }
        Ok(self.echo.as_ref().expect("it was started above"))
    }

    /// Another echo server that has served nobody yet, on one transport.
    pub(crate) fn fresh_echo(&self, role: &str, transport: &str) -> Result<Echo, Fail> {
        self.start_echo(role, &[transport.to_owned()])
    }

    fn start_echo(&self, role: &str, transports: &[String]) -> Result<Echo, Fail> {
        let locators = locators(role, transports)?;
        let mut process = Process::start("the echo server", self.server_core(), ["echo", "-L", &locators])?;
        let locators = process.ready()?;
        Ok(Echo { process, locators })
    }
}

impl Echo {
    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where it is reached, if it has one transport.
    pub(crate) fn only(&self) -> String {
        self.locators.clone()
    }

    /// Where it is reached over `transport`.
    pub(crate) fn at(&self, transport: &str) -> Result<String, Fail> {
        pick(&self.locators, transport)
    }
}

/// The one of `locators` that speaks `transport`.
pub(crate) fn pick(locators: &str, transport: &str) -> Result<String, Fail> {
    let found = locators.split(';').find(|l| l.split(':').next() == Some(transport));
    found.map(str::to_owned).ok_or_else(|| {
        let known: Vec<&str> = locators.split(';').filter_map(|l| l.split(':').next()).collect();
        Fail::usage(format!("the server does not listen on {transport}"))
            .next(format!("choose from: {}", known.join(", ")))
    })
}

/// Locators for one process of this run, one for each transport: a name of its own, and a port that is free on TCP and on
/// UDP.
pub(crate) fn locators(role: &str, transports: &[String]) -> Result<String, Fail> {
    let port = free_port()?;
    let name = format!("perf-{}-{role}", std::process::id());
    let of = |transport: &String| match transport.as_str() {
        "fast+shm" => format!("fast+shm:name={name}"),
        other => format!("{other}:host=127.0.0.1,port={port}"),
    };
    Ok(transports.iter().map(of).collect::<Vec<_>>().join(";"))
}

/// A port that nobody uses at this moment, on TCP nor UDP.
pub(crate) fn free_port() -> Result<u16, Fail> {
    for _ in 0..100 {
        let tcp = TcpListener::bind(("127.0.0.1", 0)).named("cannot find a free port")?;
        let port = tcp.local_addr().named("cannot find a free port")?.port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Fail::new("cannot find a port that is free on TCP and on UDP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_picks_its_locator() {
        let locators = "fast+shm:name=a;fast+udp:host=::1,port=7;tcp:host=127.0.0.1,port=7";
        assert_eq!(pick(locators, "fast+udp").ok().as_deref(), Some("fast+udp:host=::1,port=7"));
        assert!(pick(locators, "fast").expect_err("no such").to_string().contains("fast+shm, fast+udp, tcp"));
    }
}
