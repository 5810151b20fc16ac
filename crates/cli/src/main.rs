//! The command line of Sprat: see `sprat --help`.

use std::process::ExitCode;

use clap::Parser;

mod args;
mod export;
mod fail;
mod import;
mod out;
mod perf;
mod process;
mod progress;
mod records;
mod serve;

use args::{Cli, Command};
use fail::Fail;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match process::settle(cli.parent, cli.core).and_then(|()| run(&cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fail) => {
            out::note(&fail);
            fail.code()
        }
    }
}

fn run(command: &Command) -> Result<(), Fail> {
    match command {
        Command::Perf(args) => perf::run(args),
        Command::Echo(args) => serve::echo(args),
        _ => Err(Fail::new("this command is not built yet")),
    }
}
