//! `sprat demo`: demonstrates a cluster of processes, real data, killed clients, a killed server
//! and figures, in under two minutes.
//!
//! The demonstration uses the code of the other commands: the cluster of `up`, `import` for the
//! data, `bench` for the figures. It ends with an error if any result is wrong.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Args;
use sprat::kv::{Condition, TableId};

use super::import;
use crate::options::Cluster as At;
use crate::records::{self, Format, Record};
use sprat_bench::cluster::{Cluster, LEASE, Plan, ports};
use sprat_bench::fail::{Fail, Named};
use sprat_bench::out;
use sprat_bench::perf;
use sprat_bench::process::{self, Process, StopSignals};
use sprat_bench::store::Store;

/// The number of servers of the demonstration's cluster.
const SERVERS: u16 = 3;
/// The memory of each server of the demonstration, in bytes.
const MEMORY: u64 = 256 << 20;
/// The number of clients that the demonstration kills.
const KILLS: u64 = 5;
/// The number of acknowledged increments after which the demonstration kills a client.
const BEFORE_KILL: usize = 2000;
/// The number of counters that the demonstration increments while it kills a server.
const COUNTERS: usize = 30;
/// The time for which the demonstration increments before and after the kill.
const AROUND_KILL: Duration = Duration::from_secs(1);
/// The time that the demonstration allows each increment to take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Show a cluster of processes, real data, killed clients, a killed server and figures, in two
/// minutes.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sprat demo")]
pub(crate) struct Demo {
    /// The data: a file of stanzas such as dpkg's.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/dpkg/status")]
    data: PathBuf,
}

/// Run the client that the demonstration kills in the middle of its increments.
#[derive(Args, Debug)]
pub(crate) struct Count {
    #[command(flatten)]
    at: At,
    /// Name of the table.
    table: String,
    /// Key of the object.
    key: String,
    /// File that takes each acknowledged sum before the next increment begins.
    record: PathBuf,
}

/// Runs `sprat demo`.
pub(crate) fn run(args: &Demo) -> Result<(), Fail> {
    let folder = Folder::new()?;
    let path = folder.0.clone();
    StopSignals::catch()?.then(move || {
        let _ = fs::remove_dir_all(&path);
        // The exit code of a program that Ctrl-C ended. The children end with this process.
        std::process::exit(130);
    })?;
    step("A cluster: one coordinator and three servers, each a process of its own")?;
    let name = format!("demo-{}", std::process::id());
    let port = perf::local::free_ports(ports(SERVERS))?;
    let (servers, memory, besides) = (SERVERS, MEMORY, Vec::new());
    let plan = Plan {
        name: &name,
        port,
        servers,
        memory,
        leaving: 0,
        replicas: 1,
        durability: None,
        directory: None,
        state: None,
        core: None,
        host: None,
        etcd: None,
        hosts: Vec::new(),
        besides,
        lease: LEASE,
        rebalance: None,
        tracepoints: false,
        populate: false,
        scrub: None,
        metrics: None,
        log_format: None,
    };
    let mut cluster = Cluster::start(&plan)?;
    out::print(cluster.table())?;
    let mut store = Store::over(cluster.coordinator(), &[])?;

    step("Real data: every stanza of the package database, imported and read back")?;
    real_data(&mut store, &args.data, &folder.0)?;

    step("Exactly once: a client is killed in the middle of its increments, again and again")?;
    killed_client(&mut store, cluster.coordinator(), &folder.0)?;

    step("Nothing lost: a server is killed under increments and reads")?;
    killed_server(&mut store, &mut cluster)?;
    drop(store);
    cluster.end();

    step("How fast it is here: each figure beside what the machine allows and beside kernel TCP")?;
    perf::demo()?;
    out::print("\nAll of it held. To go on: `sprat up`, then `sprat --help`.\n")
}

fn step(title: &str) -> Result<(), Fail> {
    out::print(format!("\n== {title}\n"))
}

/// The folder of one run of the demonstration. It is removed with its files.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Fail> {
        let path = std::env::temp_dir().join(format!("sprat-demo-{}", std::process::id()));
        fs::create_dir(&path).named(format_args!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Imports the stanzas of `data` and compares every object with its stanza.
fn real_data(store: &mut Store, data: &Path, folder: &Path) -> Result<(), Fail> {
    let text = fs::read(data).named(format_args!("cannot read {}", data.display()));
    let text =
        text.map_err(|fail| fail.next("name another file of stanzas: sprat demo --data FILE"))?;
    let packages = stanzas(&text);
    if packages.is_empty() {
        return Err(Fail::new(format!("{} has no stanza with a Package field", data.display())));
    }
    let path = folder.join("packages.jsonl");
    write_lines(&path, &packages)?;
    let table = store.create_table("packages", u32::from(SERVERS))?;
    let file = records::File::new("packages", path, Format::Jsonl);
    let input = import::Input::open(&file)?;
    let counts = import::file(&file, input, false, &mut import::sink(store, table))?;
    out::print(format!(
        "  {} stanzas of {} imported into a table over {SERVERS} servers\n",
        counts.written,
        data.display()
    ))?;
    let bytes = compare(store, table, &packages)?;
    out::print(format!(
        "  {} objects ({}) read back, every byte as it was\n",
        packages.len(),
        out::bytes(bytes)
    ))
}

/// Returns the stanzas of a file by package. The last stanza of a name counts, as in import.
fn stanzas(text: &[u8]) -> HashMap<Vec<u8>, Vec<u8>> {
    let mut found = HashMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.windows(2).position(|pair| pair == b"\n\n").map_or(rest.len(), |at| at + 1);
        let stanza = &rest[..end];
        let name = stanza.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(b"Package: "));
        if let Some(name) = name {
            found.insert(name.trim_ascii().to_vec(), stanza.to_vec());
        }
        rest = rest[end..].trim_ascii_start();
    }
    found
}

fn write_lines(path: &Path, records: &HashMap<Vec<u8>, Vec<u8>>) -> Result<(), Fail> {
    let failed = format!("cannot write {}", path.display());
    let mut writer =
        records::writer(Format::Jsonl, BufWriter::new(File::create(path).named(&failed)?));
    for (key, value) in records {
        writer
            .write(&Record { key: key.clone(), value: value.clone(), expires_ms: None })
            .named(&failed)?;
    }
    writer.finish().named(&failed)
}

/// Reads every object and compares it with its stanza. Returns the number of bytes.
fn compare(
    store: &mut Store,
    table: TableId,
    records: &HashMap<Vec<u8>, Vec<u8>>,
) -> Result<u64, Fail> {
    let mut bytes = 0;
    for (key, value) in records {
        let (stored, _) = store.read(table, key, Condition::always())?;
        if stored != *value {
            return Err(Fail::new(format!(
                "{} reads back other than it was written",
                out::name(key)
            )));
        }
        bytes += stored.len() as u64;
    }
    Ok(bytes)
}

/// Kills clients while they increment one object, then accounts for every increment.
fn killed_client(store: &mut Store, coordinator: &str, folder: &Path) -> Result<(), Fail> {
    let table = store.create_table("counters", 1)?;
    let mut all = Vec::new();
    for round in 0..=KILLS {
        let record = folder.join(format!("acknowledged-{round}"));
        let args = ["count", "-C", coordinator, "counters", "visits", &record.to_string_lossy()];
        let mut client = Process::start("the client", None, args)?;
        let enough = process::wait_until(PATIENCE, || {
            sums(&record).len() >= BEFORE_KILL || client.ended().is_some()
        });
        if !enough || client.ended().is_some() {
            return Err(Fail::new("the counting client makes no progress"));
        }
        // The last client gets SIGTERM, so that no increment is in flight when the sum is read.
        if round < KILLS {
            client.kill()
        } else {
            client.end()
        }
        all.push(sums(&record));
    }
    let value = store.increment(table, b"visits", 0, Condition::always())?.value;
    let account = Account::of(&all, value)?;
    out::print(format!(
        "  {KILLS} clients killed with SIGKILL, each with an increment in flight or between two \
         of them\n  \
           {} increments were acknowledged, and the object says {value}: none lost, none \
           doubled\n  \
           ({} of the {KILLS} in flight took effect before the kill; without an answer either \
           outcome is right)\n",
        account.acknowledged, account.in_flight
    ))
}

/// Kills a server while counters on all servers are incremented and read one after the other. Each
/// sum must be the next of its counter.
fn killed_server(store: &mut Store, cluster: &mut Cluster) -> Result<(), Fail> {
    store.set_timeout(PATIENCE);
    let table = store.create_table("numbers", u32::from(SERVERS))?;
    let victim = store.servers()?.into_iter().find(|server| server.tablets > 0);
    let victim = victim.ok_or_else(|| Fail::new("no server has a tablet"))?;
    let (begin, mut killed) = (Instant::now(), None);
    let (mut sums, mut longest) = (vec![0; COUNTERS], Duration::ZERO);
    let mut moved = false;
    for number in (0..COUNTERS).cycle() {
        let key = format!("number {number}");
        let before = Instant::now();
        sums[number] += 1;
        let sum = store.increment(table, key.as_bytes(), 1, Condition::always())?.value;
        let (read, _) = store.read(table, key.as_bytes(), Condition::always())?;
        if sum != sums[number] || read != sum.to_string().as_bytes() {
            let wrong = format!("increment {} of {key} has the sum {sum}", sums[number]);
            return Err(Fail::new(wrong));
        }
        longest = longest.max(before.elapsed());
        match killed {
            None if begin.elapsed() > AROUND_KILL => {
                cluster.kill(&victim.data)?;
                (killed, longest) = (Some(Instant::now()), Duration::ZERO);
            }
            // Each counter was used after the kill, so those of the killed server are recovered.
            Some(at) if number + 1 == COUNTERS => {
                let enough = at.elapsed() > AROUND_KILL;
                if std::mem::replace(&mut moved, true) && enough {
                    break;
                }
            }
            _ => {}
        }
    }
    let total: i64 = sums.iter().sum();
    out::print(format!(
        "  server {} with {} tablets killed with SIGKILL, under increments of {COUNTERS} \
         counters\n  \
           {total} increments acknowledged and read back: none lost, none doubled\n  \
           {} passed without an answer: the server's lease ended, and others recovered the \
         data\n",
        victim.server,
        victim.tablets,
        out::micros(longest.as_secs_f64() * 1e6)
    ))
}

/// Returns the sums that a killed client recorded. A line that the kill cut short is no record.
fn sums(record: &Path) -> Vec<i64> {
    let text = fs::read_to_string(record).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().filter_map(|line| line.parse().ok()).collect()
}

/// The account of all increments by killed clients.
#[derive(PartialEq, Eq, Debug)]
struct Account {
    acknowledged: i64,
    /// The number of increments that took effect, but whose client was killed before it recorded
    /// the answer.
    in_flight: i64,
}

impl Account {
    /// Accounts for clients that ran one after the other and recorded each acknowledged sum. Each
    /// sum must be one more than the one before. Where a client was killed, one sum may be missing:
    /// that of the increment in flight.
    fn of(clients: &[Vec<i64>], value: i64) -> Result<Self, Fail> {
        let mut account = Self { acknowledged: 0, in_flight: 0 };
        let mut last = 0;
        for client in clients {
            for (index, &sum) in client.iter().enumerate() {
                match sum - last {
                    1 => {}
                    2 if index == 0 && last != 0 => account.in_flight += 1,
                    _ => {
                        return Err(Fail::new(format!(
                            "after {last} the sum {sum} was acknowledged"
                        )));
                    }
                }
                last = sum;
                account.acknowledged += 1;
            }
        }
        if value != last || account.acknowledged + account.in_flight != value {
            return Err(Fail::new(format!(
                "the last sum acknowledged is {last}, but the object says {value}"
            )));
        }
        Ok(account)
    }
}

/// Runs the client that the demonstration kills. It increments the object, and records each sum in
/// the file before the next increment.
pub(crate) fn count(args: &Count) -> Result<(), Fail> {
    let failed = format!("cannot write {}", args.record.display());
    let mut record = File::options().create(true).append(true).open(&args.record).named(&failed)?;
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    StopSignals::catch()?.then(move || flag.store(true, Relaxed))?;
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    while !ended.load(Relaxed) {
        let sum = store.increment(table, args.key.as_bytes(), 1, Condition::always())?.value;
        // One system call writes the whole line: the kernel keeps what a killed process has
        // written.
        record.write_all(format!("{sum}\n").as_bytes()).named(&failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stanzas_are_found_by_their_package() {
        let text = b"Package: a\nVersion: 1\n\nPackage: b\nDescription: x\n .\n y\n\n\nOther: \
                     c\n\nPackage: a\nVersion: 2\n";
        let found = stanzas(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[b"a".as_slice()], b"Package: a\nVersion: 2\n");
        assert_eq!(found[b"b".as_slice()], b"Package: b\nDescription: x\n .\n y\n");
    }

    #[test]
    fn every_increment_is_accounted_for() {
        let account = Account::of(&[vec![1, 2, 3], vec![4, 5], vec![7, 8]], 8).expect("adds up");
        assert_eq!(account, Account { acknowledged: 7, in_flight: 1 });
        for (clients, value) in [
            (vec![vec![1, 2], vec![5]], 5),
            (vec![vec![1, 2], vec![2]], 2),
            (vec![vec![1, 3]], 3),
            (vec![vec![1, 2]], 3),
            (vec![vec![1, 2]], 1),
            (vec![vec![2]], 2),
        ] {
            assert!(Account::of(&clients, value).is_err(), "{clients:?} {value}");
        }
    }
}
