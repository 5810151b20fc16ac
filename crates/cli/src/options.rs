//! Options that several commands share, and the parsers of their values.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sprat::kv::ServerId;
use sprat::locator::Protocol;
use sprat::server::{self, Durability, Role};
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::memory;
use sprat_bench::store::Store;
use sprat_bench::units::scaled;
use sprat_store::message::control::MAX_SPAN;
use sprat_sys::cpu;

use crate::log::Format;

/// The name that `sprat up` gives its cluster, from which every shared-memory name derives.
pub(crate) const DEFAULT_NAME: &str = "sprat";
/// The coordinator's TCP port under `sprat up`; server `i` (from 1) listens on this port + `i`.
pub(crate) const DEFAULT_PORT: u16 = 7740;
/// The locator at which `sprat up` starts its coordinator.
pub(crate) const DEFAULT_COORDINATOR: &str = "tcp:host=127.0.0.1,port=7740";
/// The environment variable that names the coordinator.
pub(crate) const COORDINATOR: &str = "SPRAT_COORDINATOR";
/// The range of the number of servers that can share a table.
pub(crate) const SPANS: RangeInclusive<i64> = 1..=MAX_SPAN as i64;

/// Returns a parser that accepts the names of transports.
pub(crate) fn transports() -> PossibleValuesParser {
    PossibleValuesParser::new(Protocol::names())
}

/// Returns a parser of the time at which servers acknowledge a change.
pub(crate) fn durability() -> impl TypedValueParser<Value = Durability> {
    PossibleValuesParser::new(Durability::ALL.map(Durability::name))
        .try_map(|name| name.parse::<Durability>())
}

/// Returns a parser of the roles of a server.
pub(crate) fn role() -> impl TypedValueParser<Value = Role> {
    PossibleValuesParser::new(Role::ALL.map(Role::name)).try_map(|name| name.parse::<Role>())
}

/// Returns the durability of servers with these options.
pub(crate) fn durability_of(
    durability: Option<Durability>,
    replicas: u16,
    has_directory: bool,
) -> Result<Durability, Fail> {
    let default = Durability::of(replicas.into(), has_directory);
    let durability = durability.unwrap_or(default);
    match durability.check(replicas.into(), has_directory) {
        Ok(()) => Ok(durability),
        Err(contradiction) => {
            Err(Fail::usage(contradiction.to_string()).next(contradiction.remedy()))
        }
    }
}

/// Parses a server's id, as `2.1`.
pub(crate) fn server_id(text: &str) -> Result<ServerId, String> {
    let id = text.split_once('.').and_then(|(index, generation)| {
        Some(ServerId { index: index.parse().ok()?, generation: generation.parse().ok()? })
    });
    id.ok_or_else(|| "name a server as sprat status does, for example 2.1".to_owned())
}

/// The option that names the coordinator of a cluster.
#[derive(Args, Clone, Debug)]
pub(crate) struct Place {
    /// Locator of the coordinator; several with `;`, the best first: the client takes the first
    /// that answers.
    #[arg(
        short = 'C',
        long = "coordinator",
        value_name = "LOCATOR",
        env = COORDINATOR,
        hide_env_values = true,
        default_value = DEFAULT_COORDINATOR
    )]
    pub(crate) coordinator: String,
}

/// Options for the coordinator of a cluster, and for the way in which the client reaches its
/// servers.
#[derive(Args, Clone, Debug)]
pub(crate) struct Cluster {
    /// The option that names the cluster's coordinator.
    #[command(flatten)]
    pub(crate) at: Place,
    /// Reach servers by these transports only, the best first. The default is every transport that
    /// a server offers, in the server's order. The client skips a transport that fails, and tries
    /// the next one beside a transport that does not answer.
    #[arg(long, value_name = "T,T…", value_delimiter = ',', value_parser = transports())]
    pub(crate) transport: Vec<String>,
    /// Wait at most this many seconds for each answer [default: 10, and 2 for the first one].
    #[arg(long, value_name = "S", value_parser = timeout)]
    pub(crate) timeout: Option<Duration>,
}

impl Cluster {
    /// Opens a client of the cluster that the options name. A cluster that does not answer fails
    /// the first operation.
    pub(crate) fn connect(&self) -> Result<Store, Fail> {
        let mut store = Store::over(&self.at.coordinator, &self.transport)?;
        if let Some(timeout) = self.timeout {
            store.set_timeout(timeout);
        }
        Ok(store)
    }
}

/// The options of processes that serve: their log, their metrics, and addresses beyond loopback.
#[derive(Args, Clone, Debug)]
pub(crate) struct Served {
    /// Write messages to standard error in this format, each with its time, its level and the
    /// process. By default they are lines for people.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<Format>,
    /// Serve the counters of this process to Prometheus, at http://ADDRESS:PORT/metrics.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Allow an address other than loopback. Nothing is encrypted: every host that reaches it may
    /// read and write.
    #[arg(long)]
    pub(crate) insecure_network: bool,
}

/// Parses the time that a command waits for an answer, in seconds.
fn timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.001..=86_400.0).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected seconds from 0.001 to 86400".to_owned())
}

/// Parses the term of a server's lease, in seconds.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=60.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.1 to 60".to_owned())
}

/// The seconds between two searches for a part of a table that has to move, unless the option says
/// otherwise.
pub(crate) const REBALANCE: &str = "2";

/// Parses the time between two searches for a part of a table that has to move, in seconds.
pub(crate) fn rebalance(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=86_400.0).contains(s));
    let seconds = seconds.map(Duration::from_secs_f64);
    seconds.ok_or_else(|| "expected seconds from 0.1 to 86400".to_owned())
}

/// The days in which a server verifies all its replicas. `None`: it verifies none.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Scrub(Option<f64>);

/// The seconds of a day.
const DAY: f64 = 86_400.0;

impl Default for Scrub {
    fn default() -> Self {
        Self(Some(server::SCRUB.as_secs_f64() / DAY))
    }
}

impl Scrub {
    /// Returns the time in which a server verifies all its replicas.
    pub(crate) fn round(self) -> Option<Duration> {
        self.0.map(|days| Duration::from_secs_f64(days * DAY))
    }
}

impl fmt::Display for Scrub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(days) => write!(f, "{days}"),
            None => f.write_str("off"),
        }
    }
}

/// Parses the time in which a server verifies all its replicas, in days.
pub(crate) fn scrub(text: &str) -> Result<Scrub, String> {
    if text == "off" {
        return Ok(Scrub(None));
    }
    let days = text.parse().ok().filter(|days| (0.00001..=365.0).contains(days));
    days.map(|days| Scrub(Some(days)))
        .ok_or_else(|| "expected days from 0.00001 to 365, or off".to_owned())
}

/// The cores of a server: their number, and which they are if that matters.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Cores {
    count: u16,
    list: Vec<usize>,
}

impl Cores {
    /// Returns this number of cores, whichever they are.
    pub(crate) fn any(count: u16) -> Self {
        Self { count, list: Vec::new() }
    }

    /// Returns the number of cores.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// Returns the cores, none if any will do.
    pub(crate) fn list(&self) -> &[usize] {
        &self.list
    }

    /// Checks that the machine has the cores of the list, and that the shards of a server with this
    /// memory have enough each.
    pub(crate) fn check(&self, memory: u64) -> Result<(), Fail> {
        let allowed = cpu::allowed().named("cannot list the cores")?;
        if let Some(core) = self.list.iter().find(|core| !allowed.contains(core)) {
            let fail = Fail::usage(format!("--cores: core {core} is not for this process"));
            return Err(fail.next("choose from those that nproc counts and taskset -cp $$ lists"));
        }
        if memory / u64::from(self.count) < memory::LEAST {
            let least = memory::LEAST >> 20;
            let fail = Fail::usage(format!("each core needs {least}M of --memory"));
            return Err(fail.next(format!("give --memory {}M", u64::from(self.count) * least)));
        }
        Ok(())
    }
}

/// Parses the number of a server's cores, or a list of cores such as `0-3,8`.
pub(crate) fn cores(text: &str) -> Result<Cores, String> {
    let most = server::MAX_SHARDS;
    let expected = || format!("expected a number from 1 to {most}, or a list such as 0-3,8");
    if !text.contains([',', '-']) {
        let count = text.parse().unwrap_or(0);
        let cores = (1..=most).contains(&count).then(|| Cores::any(count));
        return cores.ok_or_else(expected);
    }
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.parse::<usize>().ok().zip(last.parse::<usize>().ok());
        let (first, last) = range.filter(|(first, last)| first <= last).ok_or_else(expected)?;
        list.extend((first..=last).take(usize::from(most) + 1));
        if list.len() > most.into() {
            return Err(expected());
        }
    }
    let mut sorted = list.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < list.len() {
        return Err("the list names a core twice".to_owned());
    }
    Ok(Cores { count: list.len() as u16, list })
}

/// Parses the size of a server's memory in bytes, which must be at least what its log needs.
pub(crate) fn server_memory(text: &str) -> Result<u64, String> {
    let bytes = limit(text)?;
    if bytes < memory::LEAST {
        return Err(format!("a server needs at least {}M for objects", memory::LEAST >> 20));
    }
    Ok(bytes)
}

/// Parses a number of bytes: K, M and G (also KiB, MiB and GiB) are powers of 1024.
fn limit(text: &str) -> Result<u64, String> {
    let unit = [("", 1), ("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30)];
    scaled(text, &unit, &["", "ib", "b"])
        .ok_or_else(|| "expected bytes such as 500000000, 512M or 4G".to_owned())
}

/// Parses the name of a cluster, from which shared-memory names derive.
pub(crate) fn cluster_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if (1..=32).contains(&text.len()) && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("expected 1 to 32 letters, digits, - or _".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_for_moves_takes_seconds() {
        assert_eq!(rebalance(REBALANCE), Ok(Duration::from_secs(2)));
        assert_eq!(rebalance("0.5"), Ok(Duration::from_millis(500)));
        assert!(
            rebalance("0").is_err() && rebalance("NaN").is_err() && rebalance("often").is_err()
        );
    }

    #[test]
    fn limits_are_binary() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64K", 65536),
            ("512M", 512 << 20),
            ("4g", 4 << 30),
            ("1GiB", 1 << 30),
            ("10b", 10),
        ] {
            assert_eq!(limit(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1T", "1.5G", "99999999999999999G", "1 2"] {
            assert!(limit(text).is_err(), "{text}");
        }
        assert_eq!(server_memory("48M"), Ok(memory::LEAST), "as the help says");
        for text in ["0", "47M", "50331647"] {
            assert!(server_memory(text).expect_err(text).contains("at least 48M"), "{text}");
        }
    }

    #[test]
    fn a_round_of_scrubbing_is_a_number_of_days_or_off() {
        assert_eq!(scrub("off"), Ok(Scrub(None)));
        for (text, seconds) in [("7", 604_800.0), ("0.5", 43_200.0), ("0.00001", 0.864)] {
            let days = scrub(text).expect(text);
            assert_eq!(days.round(), Some(Duration::from_secs_f64(seconds)));
            assert_eq!(scrub(&days.to_string()), Ok(days), "a server gets it as up did");
        }
        assert_eq!(Scrub::default().to_string(), "7");
        for text in ["0", "-1", "366", "1d", "on", "", "NaN"] {
            assert!(scrub(text).expect_err(text).contains("or off"), "{text}");
        }
    }

    #[test]
    fn a_timeout_is_a_number_of_seconds() {
        assert_eq!(timeout("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(lease("0.5"), Ok(Duration::from_millis(500)));
        assert!(lease("0.05").is_err() && lease("61").is_err() && lease("NaN").is_err());
        for text in ["", "0", "-1", "1e9", "nan", "inf", "1s"] {
            assert!(timeout(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_is_plain() {
        assert!(cluster_name("lab-2_b").is_ok());
        for bad in ["", "a/b", "..", "a b", &"x".repeat(33)] {
            assert!(cluster_name(bad).is_err(), "{bad}");
        }
    }
}
