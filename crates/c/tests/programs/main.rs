//! Tests of the C API by programs in C, on clusters whose processes are threads of this one.
//!
//! The programs are compiled with `include/sprat.h` and linked with the libraries that `scripts/c`
//! builds.

mod cluster;
mod header;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use cluster::Cluster;

/// The last line of the test programs.
const END: &str = "all as it should be\n";

/// The flags of every compilation.
const FLAGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The folder of this crate.
pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the two libraries. The first call builds them.
pub(crate) fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let repository = folder().join("../..");
        let built = output(Command::new("scripts/c").arg("test").current_dir(repository));
        PathBuf::from(built.trim_end())
    })
}

/// The output of a command, which must succeed.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|e| panic!("{command:?}: {e}: is it installed?"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// A C program, compiled in a folder of its own.
struct Program {
    folder: TempDir,
}

impl Program {
    /// Compiles a source file of this crate with these flags besides.
    fn new(source: &str, flags: &[&str]) -> Self {
        let this = Self { folder: tempfile::tempdir().expect("a folder can be made") };
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L"]).args(FLAGS);
        compiler.arg("-I").arg(folder().join("include")).arg("-o").arg(this.path());
        compiler.arg(folder().join(source)).arg("-L").arg(libraries());
        output(compiler.args(flags));
        this
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// A command that runs the program.
    fn command(&self, locator: &str) -> Command {
        let mut command = Command::new(self.path());
        command.arg(locator).env("LD_LIBRARY_PATH", libraries());
        command
    }
}

fn every_function(transport: &str) {
    let cluster = Cluster::start(transport, "store", 2);
    let program = Program::new("tests/programs/store.c", &["-lsprat"]);
    assert_eq!(output(&mut program.command(&cluster.coordinator)), END);
}

#[test]
fn every_function_works_over_shared_memory() {
    every_function("fast+shm");
}

#[test]
fn every_function_works_over_tcp() {
    every_function("tcp");
}

#[test]
fn bad_input_is_refused() {
    let cluster = Cluster::start("fast+shm", "misuse", 1);
    let program = Program::new("tests/programs/misuse.c", &["-lsprat", "-lpthread"]);
    assert_eq!(output(&mut program.command(&cluster.coordinator)), END);
}

fn indexes(transport: &str) {
    let cluster = Cluster::start(transport, "indexes", 2);
    let program = Program::new("tests/programs/indexes.c", &["-lsprat"]);
    assert_eq!(output(&mut program.command(&cluster.coordinator)), END);
}

#[test]
fn indexes_work_over_shared_memory() {
    indexes("fast+shm");
}

#[test]
fn indexes_work_over_tcp() {
    indexes("tcp");
}

#[test]
fn bad_input_to_indexes_is_refused() {
    let cluster = Cluster::start("fast+shm", "indexes-misuse", 1);
    let program = Program::new("tests/programs/indexes_misuse.c", &["-lsprat", "-lpthread"]);
    assert_eq!(output(&mut program.command(&cluster.coordinator)), END);
}

/// A cluster that ends while a program has a client: its operations end at their deadlines.
fn a_cluster_ends(transport: &str) {
    let cluster = Cluster::start(transport, "gone", 1);
    let program = Program::new("tests/programs/gone.c", &["-lsprat"]);
    let mut command = program.command(&cluster.coordinator);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    drop(cluster);
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
    let mut rest = String::new();
    lines.read_line(&mut rest).expect("a line");
    let status = child.wait().expect("it ends");
    assert!(status.success() && line == "written\n" && rest == END, "{status}: {line}{rest}");
}

#[test]
fn operations_end_without_a_cluster_over_shared_memory() {
    a_cluster_ends("fast+shm");
}

#[test]
fn operations_end_without_a_cluster_over_tcp() {
    a_cluster_ends("tcp");
}

/// The output of the example on a cluster.
const EXAMPLE: &str = "sprat: a fish after all\n\
                       a second write: refused\n\
                       2 robins, 3 wrens, eagle: the object does not exist\n\
                       robin: 3\n\
                       wren: 2\n\
                       3 objects\n";

/// The output of the example with an index on a cluster.
const INDEXES_EXAMPLE: &str = "in Paris: Ada,Paris Dora,Paris\n\
                               in Oslo: Ada,Oslo Bob,Oslo\n\
                               in Oslo after the exchange: Ada,Oslo Cleo,Oslo\n\
                               from the last one down to M: Dora,Paris Cleo,Oslo Ada,Oslo\n";

#[test]
fn the_example_with_an_index_runs() {
    let cluster = Cluster::start("fast+shm", "indexes-example", 1);
    let program = Program::new("examples/indexes.c", &["-lsprat"]);
    assert_eq!(output(&mut program.command(&cluster.coordinator)), INDEXES_EXAMPLE);
}

#[test]
fn the_example_runs_with_either_library() {
    let cluster = Cluster::start("fast+shm", "example", 1);
    let shared = Program::new("examples/store.c", &["-lsprat"]);
    assert_eq!(output(&mut shared.command(&cluster.coordinator)), EXAMPLE);
    let loaded = output(Command::new("ldd").arg(shared.path()));
    assert!(loaded.contains("libsprat.so.0"), "{loaded}");

    let system = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];
    let flags: Vec<&str> = ["-l:libsprat.a"].into_iter().chain(system).collect();
    let linked = Program::new("examples/store.c", &flags);
    assert_eq!(output(&mut linked.command(&cluster.coordinator)), EXAMPLE);
    let loaded = output(Command::new("ldd").arg(linked.path()));
    assert!(!loaded.contains("libsprat"), "{loaded}");
}

/// A program that includes the header alone, for both languages.
#[test]
fn the_header_stands_alone_in_both_languages() {
    let scratch = tempfile::tempdir().expect("a folder can be made");
    let source = scratch.path().join("alone.c");
    let code = "#include <sprat.h>\n\
                sprat_options a = SPRAT_OPTIONS_INIT;\n\
                sprat_table_options b = SPRAT_TABLE_OPTIONS_INIT;\n\
                sprat_operation_options c = SPRAT_OPERATION_OPTIONS_INIT;\n\
                sprat_counters d = SPRAT_COUNTERS_INIT;\n";
    fs::write(&source, code).expect("it is our folder");
    let c = |standard| ("c", standard, Command::new("cc"));
    let cxx = ("c++", "-std=c++11", Command::new("c++"));
    for (name, standard, mut compiler) in [c("-std=c99"), c("-std=c11"), cxx] {
        compiler.args(["-fsyntax-only", standard, "-x", name]).args(FLAGS).arg("-I");
        output(compiler.arg(folder().join("include")).arg(&source));
    }
}
