//! The command line of Sprat: see `sprat --help`.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

mod args;
mod client;
mod demo;
mod destination;
mod doctor;
mod exec;
mod export;
mod import;
mod kv;
mod ping;
mod progress;
mod rdma;
mod records;
mod serve;
mod stats;
mod table;
mod trace;
mod up;

use args::{Cli, Command};
use sprat_bench::fail::Fail;
use sprat_bench::{out, perf, process};

/// The servers' memory is touched at random, and the floors' likewise.
#[global_allocator]
static ALLOCATOR: sprat_sys::memory::huge::Allocator = sprat_sys::memory::huge::Allocator;

fn main() -> ExitCode {
    sprat_sys::memory::huge::keep_freed();
    match start() {
        Ok(code) => code,
        Err(fail) => {
            if fail.is_worth_saying() {
                out::note(&fail);
            }
            fail.code()
        }
    }
}

fn start() -> Result<ExitCode, Fail> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return say(&answer),
    };
    process::settle(cli.parent, cli.core)?;
    run(&cli.command)?;
    Ok(ExitCode::SUCCESS)
}

/// Says what clap answers: help and the version on standard output, wrong usage on standard error.
fn say(answer: &clap::Error) -> Result<ExitCode, Fail> {
    let code = ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(1));
    // The message shows what was typed, and a script may have typed the key of another user.
    if answer.use_stderr() && !std::env::args_os().all(|arg| out::is_plain(&arg.to_string_lossy()))
    {
        out::note(answer.render());
        return Ok(code);
    }
    let written = answer.print().and_then(|()| std::io::stdout().flush());
    if !answer.use_stderr() {
        written.map_err(|error| out::failed(&error))?;
    }
    Ok(code)
}

fn run(command: &Command) -> Result<(), Fail> {
    match command {
        Command::Up(args) => up::run(args),
        Command::Coordinator(args) => serve::coordinator(args),
        Command::Table(command) => table::run(command),
        Command::Get(args) => kv::get(args),
        Command::Put(args) => kv::put(args),
        Command::Del(args) => kv::del(args),
        Command::Incr(args) => kv::incr(args),
        Command::Stats(args) => stats::run(args),
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Count(args) => demo::count(args),
        Command::Server(args) => serve::server(args),
        Command::Perf(args) => perf::run(&args.options()),
        Command::Rdma(command) => rdma::run(command),
        Command::Doctor(args) => doctor::run(args),
        Command::Exec(args) => exec::run(args),
        Command::Ping(args) => ping::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Echo(args) => serve::echo(args),
    }
}
