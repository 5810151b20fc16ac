//! A network for one row of the matrix of programs: two connected interfaces in a namespace that
//! ends with the row. It needs root.
//!
//! It has IPv4 alone. IPv6 would assign each interface an address some seconds later, and a program
//! that starts meanwhile may see either state and use either address. Linux reports a new interface
//! as down until it has checked its carrier, up to a second later; the network is ready then.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// The address of the only interface beside loopback that has one.
const ADDRESS: &str = "10.78.0.1";

/// A network namespace, which one process holds.
pub(crate) struct Network {
    holder: Child,
}

impl Network {
    /// Creates the network namespace of a row.
    ///
    /// # Errors
    /// The reason why it cannot be created.
    pub(crate) fn new() -> Result<Self, String> {
        let setup = format!(
            "ip link set lo up && ip link add sprat0 type veth peer name sprat1 && \
             ip link set sprat0 addrgenmode none && ip link set sprat1 addrgenmode none && \
             ip addr add {ADDRESS}/24 dev sprat0 && ip link set sprat0 up && \
             ip link set sprat1 up && for end in sprat0 sprat1; do for n in $(seq 1000); do \
             ip link show $end | grep -q 'state UP' && break; sleep 0.01; done; done && \
             echo ready && exec sleep 1000"
        );
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", &setup])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("unshare: {e}"))?;
        let mut line = String::new();
        let told = BufReader::new(holder.stdout.take().expect("it is kept")).read_line(&mut line);
        let network = Self { holder };
        if told.is_ok() && line == "ready\n" {
            Ok(network)
        } else {
            Err("no network of our own".to_owned())
        }
    }

    /// The id of the process that holds the network namespace.
    pub(crate) fn process(&self) -> String {
        self.holder.id().to_string()
    }

    /// A command that runs `command` in this network namespace.
    pub(crate) fn within(&self, command: &Command) -> Command {
        let mut within = Command::new("nsenter");
        within.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg("--");
        within.arg(command.get_program()).args(command.get_args()).current_dir("/");
        within
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
