//! The store's processes: a coordinator, or a server with its masters. Each is a worker that runs
//! until it is stopped, or several: a server has a shard for each core, and each shard is a worker.
//!
//! ```no_run
//! use sprat::server::{CoordinatorOptions, coordinator};
//!
//! let mut worker = coordinator(&CoordinatorOptions::at("tcp:host=127.0.0.1,port=7300"))?;
//! println!("{}", worker.transports().locators().join(";"));
//! worker.run()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sprat_proto::Rng;
use sprat_proto::time::{MS, SECOND};
use sprat_store::backup::flat_bytes;
use sprat_store::coordinator::{Candidate, Config};
pub use sprat_store::durability::Durability;
pub use sprat_store::master::MAX_REPLICAS;
use sprat_store::master::{self, Master, WallClock};
#[cfg(feature = "etcd")]
use sprat_store::message::control::MAX_LOCATORS;
use sprat_store::objects::cleaner::Worth;
use sprat_store::objects::segment::{SEGMENT_BYTES, segment_bytes};
use sprat_store::site::OwnedSite;
pub use sprat_store::site::{MAX_RACK, Role};
use sprat_store::types::WallTime;

pub use self::shards::{MAX_SHARDS, run, shard_directory, shards};

use self::ahead::Ahead;
use self::helper::Thread;
#[cfg(feature = "etcd")]
use crate::disk::EtcdDisk;
use crate::disk::{Disk, StateDisk};
pub use crate::disk::{EtcdError, EtcdOptions, State};
use crate::frames::{self, FileFrames, FrameDisk};
use crate::locator::Locator;
use crate::random::rng;
use crate::rings::SharedRings;
use crate::transports::{Options, Transports};
use crate::worker::Worker;
use sprat_sys::clock::Clock;
use sprat_sys::crc::crc32c;

mod ahead;
mod helper;
mod shards;

/// The number of segments on backups for each segment of a log: cleaned ones stay for a while.
const KEPT: u64 = 2;
/// The longest time in which a server that ends gives its replicas what it has acknowledged.
/// Replicas have it within milliseconds; a backup that has crashed is replaced meanwhile.
const DRAIN_NS: u64 = SECOND;
/// The longest time that a server which ends waits for the coordinator: a little more than its call
/// takes.
const LEAVE_NS: u64 = 600 * MS;
/// The time in which a server verifies all replicas in its directory, unless the options say
/// otherwise: a bit that changes is found before others do, and the disk hardly works for it.
pub const SCRUB: Duration = Duration::from_secs(7 * 24 * 3600);
/// The name of the file of replicas in a server's directory.
pub const FRAMES: &str = "frames";
/// The name of the journal in the directory of a server with [`Durability::Disk`].
pub const JOURNAL: &str = "journal";

/// The options of a coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorOptions {
    /// The locators at which the coordinator listens: one locator or several, separated by `;`.
    pub listen: String,
    /// The place of the coordinator's state. Without one a restarted coordinator begins a new
    /// cluster.
    pub state: Option<State>,
    /// The options of the coordinator's transports.
    pub transports: Options,
    /// The terms of the coordinator's leases, and the times and limits of its calls.
    pub config: Config,
}

impl CoordinatorOptions {
    /// Makes the options of a coordinator that listens at `listen` and forgets everything when it
    /// ends.
    #[must_use]
    pub fn at(listen: &str) -> Self {
        let (transports, config) = (Options::default(), Config::default());
        Self { listen: listen.to_owned(), state: None, transports, config }
    }
}

/// Makes a coordinator that listens. [`Worker::run`] serves its requests. If its state is in etcd,
/// it leads once the coordinators with this state have elected it.
///
/// # Errors
/// A locator is malformed or cannot be listened at, or the state cannot be used; the error names
/// it.
pub fn coordinator(options: &CoordinatorOptions) -> io::Result<Worker<Candidate>> {
    let own = match &options.state {
        Some(State::Etcd(_)) => None,
        Some(State::File(path)) => {
            let (disk, pairs) = StateDisk::open(path)?;
            Some((Some(Box::new(disk) as Box<dyn Disk>), pairs))
        }
        None => Some((None, Vec::new())),
    };
    let transports =
        Transports::listen(options.transports.clone(), &Locator::list(&options.listen)?)?;
    let locators = transports.locators().join(";");
    let config = Config { locators: locators.clone(), ..options.config.clone() };
    let (clock, mut rng) = (Clock::new(), rng()?);
    let (machine, disk) = match (own, &options.state) {
        (None, Some(State::Etcd(etcd))) => {
            let disk = etcd_disk(etcd, locators, rng.fork())?;
            (Candidate::new(config, rng), Some(disk))
        }
        (own, state) => {
            let (disk, pairs) = own.unwrap_or_default();
            let machine = Candidate::alone(clock.now(), config, rng, pairs).map_err(|e| {
                let file = state.as_ref().map(ToString::to_string).unwrap_or_default();
                io::Error::new(io::ErrorKind::InvalidData, format!("{file}: {e}"))
            })?;
            (machine, disk)
        }
    };
    Worker::new(machine, transports, disk, clock)
}

/// Connects to the etcd that holds the state of coordinators.
#[cfg(feature = "etcd")]
fn etcd_disk(options: &EtcdOptions, locators: String, rng: Rng) -> io::Result<Box<dyn Disk>> {
    if locators.len() > MAX_LOCATORS {
        let text = "the locators of a coordinator with its state in etcd are too long together";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(Box::new(EtcdDisk::open(options, locators, rng)?))
}

/// Refuses a state in etcd, since this build has no client of etcd.
#[cfg(not(feature = "etcd"))]
fn etcd_disk(_: &EtcdOptions, _: String, _: Rng) -> io::Result<Box<dyn Disk>> {
    let text = "this build has no client of etcd: it was made without the feature `etcd`";
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

/// The options of a store's server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The coordinator's locators: one locator or several, separated by `;`.
    pub coordinator: String,
    /// The locators by which clients reach this server: one locator or several, separated by `;`.
    pub listen: String,
    /// The locators by which the coordinator reaches the server. `None`: those of `listen`. The
    /// control path may take another transport than the data.
    pub control: Option<String>,
    /// Memory of the server for objects, in bytes. The server takes it as it needs it, and does not
    /// give it back.
    pub memory_bytes: u64,
    /// The number of replicas of each object in the memory of other servers, at most
    /// [`MAX_REPLICAS`]. A change is acknowledged when all of them have it. All servers of a
    /// cluster have the same number. The server holds replicas of other servers in further memory,
    /// up to twice `memory_bytes` for each replica.
    pub replicas: usize,
    /// The time at which the server acknowledges a change. All servers of a cluster have the same.
    /// `None`: [`Durability::of`] the replicas and the directory.
    pub durability: Option<Durability>,
    /// The roles of the server. With [`Role::Master`] it holds no replicas of other servers, and
    /// has no directory. With [`Role::Backup`] it gets no tablets.
    pub role: Role,
    /// The name of the rack of this machine, at most [`MAX_RACK`] bytes. Replicas of an object are
    /// in different racks, and never on one machine, as far as there are servers for that. Empty:
    /// unknown.
    pub rack: String,
    /// The directory of the replicas that the server holds, made if there is none. They survive the
    /// process then, and the next server with this directory has them. It grows as it fills, up to
    /// [`disk_bytes`]. `None`: the replicas are in memory.
    pub directory: Option<PathBuf>,
    /// True if the server holds the replicas of its own objects in its directory while no other
    /// server is up: they survive the process, and not the disk.
    pub own_replica: bool,
    /// The time in which the server verifies each replica in its directory once on the disk.
    /// `None`: it verifies none.
    pub scrub: Option<Duration>,
    /// The function that takes a warning: the server goes on without its replicas, since the disk
    /// of its directory has failed.
    pub warn: fn(&str),
    /// The options of the server's transports.
    pub transports: Options,
}

impl ServerOptions {
    /// Makes the options of a server that listens at `listen`, with 1 GiB for objects, in the
    /// cluster of the coordinator at `coordinator`.
    #[must_use]
    pub fn new(coordinator: &str, listen: &str) -> Self {
        Self {
            coordinator: coordinator.to_owned(),
            listen: listen.to_owned(),
            control: None,
            memory_bytes: 1 << 30,
            replicas: 0,
            durability: None,
            role: Role::default(),
            rack: String::new(),
            directory: None,
            own_replica: false,
            scrub: Some(SCRUB),
            warn: |_| {},
            transports: Options::default(),
        }
    }
}

/// Makes a server of one shard, which listens and will join its cluster. [`Worker::run`] serves its
/// requests.
///
/// # Errors
/// A locator is malformed or cannot be listened at, or the directory cannot be used; the error
/// names it. Too many replicas are an `InvalidInput`, and so are a durability that the replicas or
/// the directory do not allow, and a role that they contradict.
pub fn server(options: &ServerOptions) -> io::Result<Worker<Master>> {
    shard(options, (0, 0))
}

/// Makes the shard with the number `index` of the process with this number.
fn shard(options: &ServerOptions, (process, index): (u64, u16)) -> io::Result<Worker<Master>> {
    if options.replicas > MAX_REPLICAS {
        let text = format!("{} replicas are too many: {MAX_REPLICAS} at most", options.replicas);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let durability = durability(options)?;
    for locator in Locator::list(&options.coordinator)? {
        locator.kind()?;
    }
    // Before the server listens: another process may have the directory.
    let kept = options.directory.as_deref().map(|directory| frames_in(directory, options));
    let kept = kept.transpose()?;
    let data = Locator::list(&options.listen)?;
    let control = options.control.as_deref().map_or(Ok(Vec::new()), Locator::list)?;
    let transports =
        Transports::listen(options.transports.clone(), &[data.as_slice(), &control].concat())?;
    let all = transports.locators();
    let reached = if control.is_empty() { &all[..] } else { &all[data.len()..] };
    let config = master::Config {
        coordinator: options.coordinator.clone(),
        control: reached.join(";"),
        data: all[..data.len()].join(";"),
        log_bytes: options.memory_bytes,
        segment_bytes: segment_bytes(options.memory_bytes),
        backup_bytes: backup_bytes(options),
        frame_bytes: SEGMENT_BYTES,
        replicas: options.replicas,
        durability,
        // A machine without /proc is a host that is unknown.
        site: OwnedSite {
            role: options.role,
            host: frames::boot().unwrap_or(0),
            process,
            shard: index,
            rack: options.rack.clone(),
        },
        crc32c,
        wall: WallClock::new(|_| WallTime(sprat_sys::clock::wall_ms())),
        own_replica: options.own_replica && kept.is_some(),
        scrub_ns: options
            .scrub
            .map_or(0, |round| u64::try_from(round.as_nanos().max(1)).unwrap_or(u64::MAX)),
        boot: if kept.is_some() { frames::boot()? } else { 0 },
        ..master::Config::default()
    };
    let (mut master, disk): (_, Option<Box<dyn Disk>>) = match kept {
        Some((frames, disk)) => {
            let master = Master::with_frames(config, Box::new(frames), rng()?);
            (master, Some(Box::new(disk)))
        }
        None => (Master::new(config, rng()?), None),
    };
    master.prepare(Box::new(Ahead::default()));
    master.help(Box::new(Thread::default()), Worth::SERVER);
    if options.replicas > 0 {
        master.share(Box::new(SharedRings::new(options.directory.as_deref(), rng()?)?));
    }
    Worker::new(master, transports, disk, Clock::new())
}

/// Returns the durability of a server with these options.
fn durability(options: &ServerOptions) -> io::Result<Durability> {
    let (replicas, has_directory) = (options.replicas, options.directory.is_some());
    let default = Durability::of(replicas, has_directory);
    let durability = options.durability.unwrap_or(default);
    // A server without replicas of others needs no directory for them.
    let keeps = matches!(durability, Durability::Process | Durability::Disk);
    let has_one = has_directory || options.role == Role::Master && keeps;
    durability
        .check(replicas, has_one)
        .map_err(|contradiction| invalid(format!("{contradiction}: {}", contradiction.remedy())))?;
    match options.role {
        Role::Master if has_directory => Err(invalid(
            "a server with the role of a master alone holds no replicas: leave the directory out",
        )),
        Role::Backup if replicas == 0 => Err(invalid(
            "a server with the role of a backup holds replicas: give the cluster's --replicas",
        )),
        _ if options.rack.len() > MAX_RACK => {
            Err(invalid(format!("the name of a rack has at most {MAX_RACK} bytes")))
        }
        _ => Ok(durability),
    }
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text.into())
}

/// Ends a server in order, in 1.6 s at most. First it serves no more: clients that it refuses go to
/// the coordinator, and try again. It waits up to 1 s until its replicas have all that it has
/// acknowledged. Then it tells the coordinator, so that other servers recover its objects at once
/// and need not wait for the end of its lease. Returns when the coordinator knows, or does not
/// answer.
pub fn leave(worker: &mut Worker<Master>) {
    worker.machine().drain();
    turns(worker, DRAIN_NS, Master::is_drained);
    let now = worker.now();
    worker.machine().leave(now);
    turns(worker, LEAVE_NS, Master::has_left);
}

/// Makes turns of a server until `done`, for at most `limit_ns`.
fn turns(worker: &mut Worker<Master>, limit_ns: u64, done: impl Fn(&Master) -> bool) {
    let until = worker.now().after(limit_ns);
    // The turn after a call of the machine looks for what it wants to send.
    worker.waker().wake();
    while !done(worker.machine()) && worker.now() < until {
        worker.turn_and_rest();
    }
}

/// Opens the frames in a server's directory.
fn frames_in(directory: &Path, options: &ServerOptions) -> io::Result<(FileFrames, FrameDisk)> {
    std::fs::create_dir_all(directory)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", directory.display())))?;
    let count = backup_bytes(options) / u64::from(SEGMENT_BYTES);
    let journal = directory.join(JOURNAL);
    let waits = options.durability == Some(Durability::Disk);
    frames::open(
        (&directory.join(FRAMES), &journal),
        SEGMENT_BYTES,
        count.min(u32::MAX.into()) as u32,
        waits,
        options.warn,
    )
}

/// Returns the most bytes of disk that the directory of a server with these options takes.
#[must_use]
pub fn disk_bytes(options: &ServerOptions) -> u64 {
    let journal = match options.durability {
        Some(Durability::Disk) => frames::JOURNAL_BYTES,
        _ => 0,
    };
    journal + flat_bytes(SEGMENT_BYTES, (backup_bytes(options) / u64::from(SEGMENT_BYTES)) as u32)
}

/// Returns a warning about the file system of a directory, if it keeps data less well than a local
/// disk, or is not tested.
///
/// # Errors
/// The directory cannot be examined.
pub fn directory_warning(directory: &Path) -> io::Result<Option<&'static str>> {
    frames::warning(directory)
}

/// Returns the bytes of the frames in which a server holds replicas, as many as its own log has
/// elsewhere. A frame takes memory only as it fills.
fn backup_bytes(options: &ServerOptions) -> u64 {
    if !options.role.is_backup() {
        return 0;
    }
    let segments = options.memory_bytes / u64::from(segment_bytes(options.memory_bytes));
    let frames = (options.replicas as u64).saturating_mul(KEPT * segments);
    frames.saturating_mul(SEGMENT_BYTES.into())
}
