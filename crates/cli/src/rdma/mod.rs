//! `sprat rdma`: verbs from the command line.

use crate::fail::Fail;

pub(crate) mod args;
mod ping;

/// Runs the command.
pub(crate) fn run(command: &args::Rdma) -> Result<(), Fail> {
    match command {
        args::Rdma::Ping(args) => ping::run(args),
    }
}
