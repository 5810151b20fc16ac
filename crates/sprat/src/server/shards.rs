//! The shards of a server: one for each of its cores.
//!
//! ```text
//! process ─┬─ thread: shard 0 ── Worker<Master> ── id, lease, log, memory, tablets, replicas
//!          └─ thread: shard 1 ── Worker<Master> ── …
//! ```
//! The shards share nothing but the process. To the cluster each is a member like any other:
//! clients go straight to the shard of a key, tablets move between shards as between servers, and
//! other servers recover them in parallel. They end together: when one ends, all do. No segment has
//! two replicas in one process.

use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::thread;

use sprat_store::master::Master;

use super::{ServerOptions, invalid, leave, shard};
use crate::locator::Locator;
use crate::random::rng;
use crate::worker::{Stop, Worker};
use sprat_sys::cpu;

/// The most shards of a server.
pub const MAX_SHARDS: u16 = 64;

/// Makes the shards of a server, `count` of them, which listen and will join their cluster. [`run`]
/// serves their requests.
///
/// Each shard has an equal part of the memory. Shard 0 has the locators and the directory of the
/// options. Shard `i` has the locators of [`Locator::worker`] and the directory `shard-i` in that
/// of the options.
///
/// # Errors
/// The errors of [`server`](super::server) for each shard. An `InvalidInput` if there are no
/// shards or more than [`MAX_SHARDS`], or if the directory has replicas of further shards.
pub fn shards(options: &ServerOptions, count: u16) -> io::Result<Vec<Worker<Master>>> {
    if count == 0 || count > MAX_SHARDS {
        return Err(invalid(format!("a server has 1 to {MAX_SHARDS} shards, one for each core")));
    }
    if let Some(directory) = &options.directory {
        let further = (count..MAX_SHARDS).rev().find(|&i| shard_directory(directory, i).exists());
        if let Some(last) = further {
            return Err(invalid(format!(
                "{} has the replicas of {} shards: start the server with as many --cores",
                directory.display(),
                last + 1
            )));
        }
    }
    let process = if count == 1 { 0 } else { 1 + rng()?.below(u64::MAX) };
    (0..count)
        .map(|index| {
            let own = ServerOptions {
                listen: locators(&options.listen, index)?,
                control: options.control.as_deref().map(|all| locators(all, index)).transpose()?,
                memory_bytes: options.memory_bytes / u64::from(count),
                directory: options.directory.as_deref().map(|dir| shard_directory(dir, index)),
                ..options.clone()
            };
            shard(&own, (process, index))
        })
        .collect()
}

/// Returns the locators of a shard, for those of its server.
fn locators(list: &str, index: u16) -> io::Result<String> {
    let own = Locator::list(list)?.into_iter().map(|locator| locator.worker(index));
    let own = own.map(|locator| locator.map(|locator| locator.to_string()));
    Ok(own.collect::<Result<Vec<_>, _>>()?.join(";"))
}

/// Returns the directory of the shard with this number: that of its server for shard 0, else one in
/// it.
#[must_use]
pub fn shard_directory(directory: &Path, index: u16) -> PathBuf {
    match index {
        0 => directory.to_owned(),
        _ => directory.join(format!("shard-{index}")),
    }
}

/// Serves the requests of the shards of a server until [`Stop::stop`] of one of them, each in a
/// thread of its own. Then all of them [`leave`] the cluster. If there are `cores`, the thread of
/// shard `i` runs on core `i` of them alone.
///
/// # Errors
/// A shard must stop for good; the text says why. The other shards have left the cluster. Or a
/// thread cannot be started or bound to its core.
///
/// # Panics
/// A shard has panicked. The other shards have left the cluster.
pub fn run(shards: Vec<Worker<Master>>, cores: &[usize]) -> Result<(), String> {
    let stops: Vec<_> = shards.iter().map(Worker::stop).collect();
    let cores = cores.iter().copied().map(Some).chain(iter::repeat(None));
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut outcome = Ok(());
        for (index, (shard, core)) in shards.into_iter().zip(cores).enumerate() {
            let stops = StopAll(&stops);
            let work = move || serve(shard, core, stops);
            let name = format!("shard {index}");
            match thread::Builder::new().name(name).spawn_scoped(scope, work) {
                Ok(thread) => threads.push(thread),
                Err(error) => outcome = Err(format!("cannot start a thread: {error}")),
            }
        }
        for thread in threads {
            // A shard that panicked has stopped the others.
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(ended);
        }
        outcome
    })
}

/// Stops all shards when it is dropped, also by a panic.
struct StopAll<'s>(&'s [Stop]);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(Stop::stop);
    }
}

/// Runs a shard in this thread until it ends. The others end when it does.
fn serve(mut shard: Worker<Master>, core: Option<usize>, stops: StopAll<'_>) -> Result<(), String> {
    if let Some(core) = core {
        cpu::pin(core).map_err(|error| format!("cannot run on core {core}: {error}"))?;
    }
    let ended = shard.run();
    drop(stops);
    if ended.is_ok() {
        leave(&mut shard);
    }
    ended
}
