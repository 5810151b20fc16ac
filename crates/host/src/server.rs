//! The store's processes: a coordinator, or a server with its master, each a worker that runs until it is stopped.
//!
//! ```no_run
//! use sprat::server::{CoordinatorOptions, coordinator};
//!
//! let mut worker = coordinator(&CoordinatorOptions::at("tcp:host=127.0.0.1,port=7300"))?;
//! println!("{}", worker.doors().locators());
//! worker.run()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::path::PathBuf;

use sprat_store::coordinator::{Config, Coordinator};

use crate::clock::Clock;
use crate::disk::Disk;
use crate::doors::{Doors, Options};
use crate::locator::Locator;
use crate::open::rng;
use crate::worker::Worker;

/// How to run a coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorOptions {
    /// Where it listens: one locator or several, separated by `;`.
    pub listen: String,
    /// The file that holds its state, made if there is none. Without one a restarted coordinator begins a new cluster.
    pub state: Option<PathBuf>,
    /// What may be opened.
    pub doors: Options,
    /// Terms and limits.
    pub config: Config,
}

impl CoordinatorOptions {
    /// A coordinator at `listen` that forgets everything when it ends.
    #[must_use]
    pub fn at(listen: &str) -> Self {
        let (doors, config) = (Options::default(), Config::default());
        Self { listen: listen.to_owned(), state: None, doors, config }
    }
}

/// A coordinator that listens; [`Worker::run`] serves.
///
/// # Errors
/// A locator is malformed or cannot be listened at, or the state file cannot be used; the error names it.
pub fn coordinator(options: &CoordinatorOptions) -> io::Result<Worker<Coordinator>> {
    let (disk, pairs) = match &options.state {
        Some(path) => Disk::open(path).map(|(disk, pairs)| (Some(disk), pairs))?,
        None => (None, Vec::new()),
    };
    let doors = Doors::listen(options.doors.clone(), &Locator::list(&options.listen)?)?;
    let clock = Clock::new();
    let machine = Coordinator::restore(clock.now(), options.config.clone(), rng()?, pairs).map_err(|e| {
        let file = options.state.as_deref().unwrap_or_else(|| "".as_ref());
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", file.display()))
    })?;
    Worker::new(machine, doors, disk, clock)
}
