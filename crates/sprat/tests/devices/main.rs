//! Runs one suite of tests against every packet device, in network namespaces that each test makes
//! itself and that end with it.
//!
//! A test that needs root counts as ignored if there is no root. In CI (the variable CI is set) it
//! counts as failed, so that a machine without root is noticed. The arguments are those that cargo
//! passes: parts of the names of tests to run. Options are ignored.

#![allow(clippy::print_stdout, reason = "it is its own harness")]

use std::panic::catch_unwind;
use std::process::ExitCode;

use sprat_sys::netns::Namespace;

mod bonds;
mod captures;
mod ends;
mod house;
mod lines;
mod machines;
mod networks;
mod queues;
mod stack;
mod suite;
mod tcp;
mod tcp_streams;
mod testpmd;

/// A test of packet devices: its name, whether it needs root, and its function, which panics if
/// something is wrong.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) root: bool,
    /// A program that the test needs besides, and the package that installs it.
    pub(crate) program: Option<&'static str>,
    pub(crate) run: Box<dyn Fn() + std::panic::RefUnwindSafe>,
}

impl Case {
    fn root(name: &str, run: impl Fn() + std::panic::RefUnwindSafe + 'static) -> Self {
        Self { name: name.into(), root: true, program: None, run: Box::new(run) }
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "--flooding") {
        ends::flooding(&arguments[2..]);
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let mut cases = networks::cases();
    cases.extend(stack::cases());
    cases.extend(suite::cases());
    cases.extend(tcp::cases());
    cases.extend(tcp_streams::cases());
    cases.extend(bonds::cases());
    cases.extend(queues::cases());
    cases.extend(testpmd::cases());
    cases.extend(captures::cases());
    cases.extend(ends::cases());
    cases.extend(machines::cases());
    let all = cases.len();
    cases.retain(|case| wanted.is_empty() || wanted.iter().any(|w| case.name.contains(w.as_str())));
    let filtered = all - cases.len();
    let why_not = Namespace::new().err();
    let strict = std::env::var_os("CI").is_some();
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    println!("\nrunning {} tests", cases.len());
    for case in cases {
        let missing = case.program.filter(|p| !is_installed(p)).map(|p| format!("there is no {p}"));
        let rootless = why_not.as_ref().filter(|_| case.root).map(ToString::to_string);
        let verdict = match rootless.or(missing) {
            Some(why) if !strict => {
                ignored += 1;
                format!("ignored ({why})")
            }
            Some(why) => {
                failed += 1;
                format!("FAILED ({why})")
            }
            _ if catch_unwind(&case.run).is_ok() => {
                passed += 1;
                "ok".to_owned()
            }
            _ => {
                failed += 1;
                "FAILED".to_owned()
            }
        };
        println!("test {} ... {verdict}", case.name);
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored; \
         0 measured; {filtered} filtered out\n"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
