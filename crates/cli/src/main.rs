//! The command line of Sprat: see `sprat --help`.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use sprat_bench::fail::Fail;
use sprat_bench::{out, process};

mod commands;
mod counters;
mod destination;
mod log;
mod metrics;
mod options;
mod progress;
mod records;

use commands::bench::Bench;
use commands::chaos::Chaos;
use commands::completions::{Completions, Man};
use commands::coordinator::Coordinator;
use commands::demo::{Count, Demo};
use commands::disk::Disk;
use commands::doctor::Doctor;
use commands::down::Down;
use commands::echo::Echo;
use commands::etcd::Etcd;
use commands::exec::Exec;
use commands::export::Export;
use commands::find::Find;
use commands::import::Import;
use commands::index::Index;
use commands::object::{Append, Del, Get, Incr, Put, Swap, Touch};
use commands::perf::Perf;
use commands::ping::Ping;
use commands::rdma::Rdma;
use commands::recover::Recover;
use commands::scan::Scan;
use commands::server::Server;
use commands::stats::Stats;
use commands::status::Status;
use commands::table::Table;
use commands::tcp::Tcp;
use commands::trace::Trace;
use commands::transact::Transact;
use commands::up::Up;

/// The allocator of the program. Huge pages serve random accesses to a server's memory, and those
/// of the baselines alike.
#[global_allocator]
static ALLOCATOR: sprat_sys::memory::huge::Allocator = sprat_sys::memory::huge::Allocator;

/// Store objects and call services in microseconds.
///
/// Sprat keeps objects in the memory of servers. Clients read them in microseconds: over shared
/// memory on one machine, over UDP or TCP between machines.
#[derive(Parser, Debug)]
#[command(
    name = "sprat",
    version,
    arg_required_else_help = true,
    after_help = "First steps, in two terminals:
  sprat up                          a cluster of three servers on this machine; Ctrl-C ends it
  sprat table create books
  sprat put books dune 'Frank Herbert'
  sprat get books dune
  sprat bench echo                  how fast it is here, beside what the machine allows

A letter has one meaning: -C coordinator, -L locators, -c count, -s size, -i interval, -o output,
-p port. Commands that are named after another program (rdma rping, rdma perftest) take its letters.

Exit codes: 0 done; 1 failed (the message says what to do next); 2 wrong usage;
3 there is no such object; 4 an object does not meet a condition (--if-…, transact)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Process id of the parent; this process ends when the parent ends.
    #[arg(long, global = true, hide = true, value_name = "PID")]
    parent: Option<u32>,

    /// Run this process on this processor core only.
    #[arg(long, global = true, hide = true, value_name = "CORE")]
    core: Option<usize>,
}

/// The commands of `sprat`, in the order of the help.
#[derive(Subcommand, Debug)]
enum Command {
    Up(Up),
    Down(Down),
    Status(Status),
    Recover(Recover),
    Coordinator(Coordinator),
    Server(Server),
    #[command(subcommand)]
    Table(Table),
    Get(Get),
    Put(Put),
    Swap(Swap),
    Touch(Touch),
    Del(Del),
    Incr(Incr),
    Append(Append),
    Transact(Transact),
    Scan(Scan),
    #[command(subcommand)]
    Index(Index),
    Find(Find),
    Import(Import),
    Export(Export),
    Stats(Stats),
    #[command(subcommand)]
    Disk(Disk),
    #[command(subcommand)]
    Bench(Bench),
    Chaos(Chaos),
    #[command(subcommand)]
    Rdma(Rdma),
    #[command(subcommand)]
    Tcp(Tcp),
    Exec(Exec),
    Ping(Ping),
    Trace(Trace),
    Doctor(Doctor),
    Demo(Demo),
    Completions(Completions),
    Man(Man),
    #[command(hide = true)]
    Perf(Perf),
    #[command(hide = true)]
    Echo(Echo),
    #[command(hide = true)]
    Count(Count),
    #[command(hide = true)]
    Etcd(Etcd),
}

fn main() -> ExitCode {
    sprat_sys::memory::huge::keep_freed();
    match start() {
        Ok(code) => code,
        Err(fail) => {
            if fail.has_a_reader() {
                log::failed(&fail);
            }
            fail.code()
        }
    }
}

fn start() -> Result<ExitCode, Fail> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return show(&answer),
    };
    process::settle(cli.parent, cli.core)?;
    run(&cli.command)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints help and the version on standard output, and errors of usage on standard error.
fn show(answer: &clap::Error) -> Result<ExitCode, Fail> {
    let code = ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(1));
    // The message quotes the arguments, and a script may have passed the key of another user.
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
        Command::Up(args) => commands::up::run(args),
        Command::Down(args) => commands::down::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::Recover(args) => commands::recover::run(args),
        Command::Coordinator(args) => commands::coordinator::run(args),
        Command::Server(args) => commands::server::run(args),
        Command::Table(command) => commands::table::run(command),
        Command::Get(args) => commands::object::get(args),
        Command::Put(args) => commands::object::put(args),
        Command::Del(args) => commands::object::del(args),
        Command::Incr(args) => commands::object::incr(args),
        Command::Swap(args) => commands::object::swap(args),
        Command::Touch(args) => commands::object::touch(args),
        Command::Append(args) => commands::object::append(args),
        Command::Transact(args) => commands::transact::run(args),
        Command::Scan(args) => commands::scan::run(args),
        Command::Index(command) => commands::index::run(command),
        Command::Find(args) => commands::find::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::Export(args) => commands::export::run(args),
        Command::Stats(args) => commands::stats::run(args),
        Command::Disk(command) => commands::disk::run(command),
        Command::Bench(command) => commands::bench::run(command),
        Command::Chaos(args) => commands::chaos::run(args),
        Command::Perf(args) => commands::perf::run(args),
        Command::Rdma(command) => commands::rdma::run(command),
        Command::Tcp(command) => commands::tcp::run(command),
        Command::Exec(args) => commands::exec::run(args),
        Command::Ping(args) => commands::ping::run(args),
        Command::Trace(args) => commands::trace::run(args, &Cli::command()),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Demo(args) => commands::demo::run(args),
        Command::Completions(args) => commands::completions::completions(args, Cli::command()),
        Command::Man(args) => commands::completions::man(args, Cli::command()),
        Command::Echo(args) => commands::echo::run(args),
        Command::Count(args) => commands::demo::count(args),
        Command::Etcd(args) => commands::etcd::run(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    /// The letters that no option of another meaning may take, with the option that has each.
    /// Commands that are named after another program take that program's letters.
    const LETTERS: [(char, &str); 10] = [
        ('C', "coordinator"),
        ('L', "locators"),
        ('c', "count"),
        ('h', "help"),
        ('i', "interval"),
        ('o', "output"),
        ('p', "port"),
        ('s', "size"),
        ('V', "version"),
        ('v', "verbose"),
    ];
    const OTHERS: [&str; 2] = ["rping", "perftest"];

    /// Calls `check` with every command of `sprat`, and with its name.
    fn each(command: &clap::Command, name: &str, check: &mut impl FnMut(&clap::Command, &str)) {
        check(command, name);
        for inner in command.get_subcommands() {
            each(inner, &format!("{name} {}", inner.get_name()), check);
        }
    }

    #[test]
    fn a_letter_has_one_meaning() {
        each(&Cli::command(), "sprat", &mut |command, name| {
            if OTHERS.contains(&command.get_name()) {
                return;
            }
            for argument in command.get_arguments() {
                let Some(letter) = argument.get_short() else { continue };
                let long = argument.get_long().unwrap_or_default();
                let known = LETTERS.iter().find(|(known, _)| *known == letter);
                assert_eq!(known.map(|known| known.1), Some(long), "{name} -{letter}");
            }
        });
    }

    /// The first line of every command's help is a verb and its object, short enough for a list of
    /// commands.
    #[test]
    fn a_help_begins_with_a_verb() {
        const VERBS: [&str; 24] = [
            "Store", "Start", "End", "Show", "Run", "Create", "Drop", "List", "Read", "Write",
            "Remove", "Add", "Give", "Measure", "Try", "Check", "Exchange", "Serve", "Open",
            "Recover", "Split", "Merge", "Move", "Find",
        ];
        each(&Cli::command(), "sprat", &mut |command, name| {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let verb = about.split([' ', ',']).next().unwrap_or_default();
            assert!(VERBS.contains(&verb), "{name}: {about}");
            assert!(about.len() <= 100, "{name}: {about}");
        });
    }
}
