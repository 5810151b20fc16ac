//! Results for people (a table for each test) and for machines (JSON Lines).
//!
//! The first line of the JSON is the context: the build and the machine. Each line after it is one
//! result and has every field of [`Row`], null where it has no meaning. Sizes and rates are
//! decimal.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::html::{self, Section};
pub use super::row::Row;
use crate::fail::{Fail, Named};
use crate::out::{self, Columns};

/// The build, the machine and the options of a run: the first line of the JSON.
#[derive(Serialize)]
pub struct Context {
    /// The commit that the program was built from.
    pub commit: &'static str,
    /// The version of the program that measured.
    pub version: &'static str,
    /// `release` or `debug`.
    pub build: &'static str,
    /// The release of the machine's kernel.
    pub kernel: String,
    /// The model of the machine's processor.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// The machine's load average of the last minute.
    pub load: f64,
    /// The frequency governor of the machine's first processor.
    pub governor: String,
    /// Number of rounds over which each figure is measured.
    pub rounds: u16,
    /// Time of each figure in seconds, over all rounds.
    pub seconds: f64,
}

impl Context {
    /// Returns the context of this machine now.
    pub fn now(rounds: u16, seconds: f64) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let info = read("/proc/cpuinfo");
        let model = info
            .lines()
            .find(|line| line.starts_with("model name"))
            .and_then(|line| line.split_once(':'));
        let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        Self {
            commit: env!("SPRAT_COMMIT"),
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            kernel: read("/proc/sys/kernel/osrelease"),
            cpu: model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned()),
            cores: crate::process::cores().len(),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0.0),
            governor: if governor.is_empty() { "none".to_owned() } else { governor },
            rounds,
            seconds,
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "commit {} · kernel {} · {} · {} cores · load {:.2} · governor {}\n",
            self.commit, self.kernel, self.cpu, self.cores, self.load, self.governor
        );
        if self.build == "debug" {
            text.push_str(
                "This is a debug build: its times say nothing. Measure with `cargo build \
                 --release`.\n",
            );
        }
        text
    }
}

/// One line of the JSON: a result row, and further fields beside it.
#[derive(Serialize)]
struct Line<'r, T> {
    #[serde(flatten)]
    row: &'r Row,
    #[serde(flatten)]
    more: &'r T,
}

/// The destination of the JSON lines: standard output or a file.
enum Json {
    Stdout,
    File(fs::File, PathBuf),
}

/// Collects the result rows of a table, and writes each row's JSON at once.
pub struct Report {
    json: Option<Json>,
    quiet: bool,
    brief: bool,
    last: Vec<Row>,
    title: String,
    page: Option<Page>,
}

/// The page of a run: its file, and the tables so far.
struct Page {
    path: PathBuf,
    context: String,
    sections: Vec<Section>,
}

impl Page {
    /// Adds a section and writes the page. It is whole after each section, so that a run that fails
    /// leaves what it has measured.
    fn add(&mut self, section: Section) -> Result<(), Fail> {
        self.sections.push(section);
        fs::write(&self.path, html::page(&self.context, &self.sections))
            .named(format_args!("cannot write {}", self.path.display()))
    }
}

impl Report {
    /// Makes a report to standard output, which begins with a line about the machine. It also
    /// writes JSON to the file `json` if there is one. With `-`, standard output has only JSON.
    pub fn new(json: Option<&Path>, context: &Context) -> Result<Self, Fail> {
        let report = Self::without_context(json, context)?;
        report.print(&context.text())?;
        Ok(report)
    }

    /// Makes a report whose table has no line about the machine before it.
    pub fn without_context(json: Option<&Path>, context: &Context) -> Result<Self, Fail> {
        let quiet = json.is_some_and(|path| path.as_os_str() == "-");
        let json = match json {
            None => None,
            Some(_) if quiet => Some(Json::Stdout),
            Some(path) => {
                let file = fs::File::create(path)
                    .named(format_args!("cannot write {}", path.display()))?;
                Some(Json::File(file, path.to_path_buf()))
            }
        };
        let mut report =
            Self { json, quiet, brief: false, last: Vec::new(), title: String::new(), page: None };
        report.write_json(context)?;
        Ok(report)
    }

    /// Makes a report whose tables show only medians, beside those of the floor and of kernel TCP.
    pub fn brief(context: &Context) -> Result<Self, Fail> {
        Ok(Self { brief: true, ..Self::new(None, context)? })
    }

    /// Begins a table with this title.
    pub fn begin(&mut self, title: impl Into<String>) {
        self.title = title.into();
        self.last.clear();
    }

    /// Adds a result row to the table and to the JSON.
    pub fn row(&mut self, row: Row) -> Result<(), Fail> {
        self.row_with(row, &())
    }

    /// Adds a result row to the table and to the JSON, where the fields of `more` stand beside the
    /// row's.
    pub fn row_with(&mut self, row: Row, more: &impl Serialize) -> Result<(), Fail> {
        self.write_json(&Line { row: &row, more })?;
        if !self.quiet && !self.brief {
            let label = format!("{} {}", row.test, row.transport);
            let shown =
                row.p50_us.map(out::micros).or_else(|| row.ops_per_s.map(|r| out::rate(r, "op")));
            out::note(format_args!("  {label}: {}", shown.unwrap_or_else(|| value_text(&row))));
        }
        self.last.push(row);
        Ok(())
    }

    /// Adds a result row to the JSON only, with the fields of `more` beside it.
    pub fn json_row(&mut self, row: &Row, more: &impl Serialize) -> Result<(), Fail> {
        self.write_json(&Line { row, more })
    }

    /// Has the report write its tables and plots of them to `path` too, as one page of HTML.
    pub(crate) fn with_page(mut self, path: Option<&Path>, context: &Context) -> Self {
        let page = |path: &Path| Page {
            path: path.to_path_buf(),
            context: context.text(),
            sections: Vec::new(),
        };
        self.page = path.map(page);
        self
    }

    /// Ends the table and prints it.
    pub fn end(&mut self) -> Result<(), Fail> {
        let table = if self.brief { brief_table(&self.last) } else { table(&self.last) };
        self.end_with(&table)
    }

    /// Ends the table and prints `table` in its place.
    pub(crate) fn end_with(&mut self, table: &Columns) -> Result<(), Fail> {
        self.print(&format!("\n{}\n{}", self.title, table.text()))?;
        let Some(page) = &mut self.page else { return Ok(()) };
        page.add(Section::new(&self.title, table, &self.last))
    }

    /// Adds a picture, which is an SVG element, to the page of the run.
    pub(crate) fn picture(&mut self, title: &str, svg: String) -> Result<(), Fail> {
        self.page.as_mut().map_or(Ok(()), |page| page.add(Section::picture(title, svg)))
    }

    /// Prints text for people, unless standard output has the JSON.
    pub fn print(&self, text: &str) -> Result<(), Fail> {
        if self.quiet { Ok(()) } else { out::print(text) }
    }

    fn write_json(&mut self, line: &impl Serialize) -> Result<(), Fail> {
        let Some(json) = &mut self.json else { return Ok(()) };
        let mut text = serde_json::to_vec(line).named("cannot write JSON")?;
        text.push(b'\n');
        match json {
            Json::Stdout => out::raw(text),
            Json::File(file, path) => {
                file.write_all(&text).named(format_args!("cannot write {}", path.display()))
            }
        }
    }
}

fn value_text(row: &Row) -> String {
    let Some(value) = row.value else { return String::new() };
    format!("{} {}", trim_number(value), row.unit.as_deref().unwrap_or(""))
}

fn trim_number(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

/// Formats result rows as a table. A column that no row fills is left out.
fn table(rows: &[Row]) -> Columns {
    type Cell = fn(&Row) -> String;
    fn us(value: Option<f64>) -> String {
        value.map(out::micros).unwrap_or_default()
    }
    let columns: [(&str, Cell); 16] = [
        ("test", |r| r.test.clone()),
        ("transport", |r| r.transport.clone()),
        (">size", |r| r.size_bytes.map(out::bytes).unwrap_or_default()),
        (">p50", |r| us(r.p50_us)),
        (">floor", |r| us(r.floor_us)),
        (">× floor", |r| ratio(r.p50_us, r.floor_us)),
        (">kernel TCP", |r| us(r.tcp_us)),
        (">faster ×", |r| ratio(r.tcp_us, r.p50_us)),
        (">avg", |r| us(r.avg_us)),
        (">best", |r| us(r.min_us)),
        (">90 %", |r| us(r.p90_us)),
        (">99 %", |r| us(r.p99_us)),
        (">99.9 %", |r| us(r.p999_us)),
        (">worst", |r| us(r.max_us)),
        (">rate", |r| r.ops_per_s.map(|n| out::rate(n, "op")).unwrap_or_default()),
        (">bandwidth", |r| {
            r.bytes_per_s.filter(|&b| b > 0.0).map(|n| out::rate(n, "B")).unwrap_or_default()
        }),
    ];
    let mut shown: Vec<(&str, Cell)> = columns.to_vec();
    shown.push((">value", value_text));
    shown.retain(|(_, cell)| rows.iter().any(|row| !cell(row).is_empty()));
    let headings: Vec<&str> = shown.iter().map(|(name, _)| *name).collect();
    let mut text = Columns::new(&headings);
    for row in rows {
        text.row(shown.iter().map(|(_, cell)| cell(row)));
    }
    text
}

/// Formats result rows as a table of medians, with the names of operations instead of those of
/// tests.
fn brief_table(rows: &[Row]) -> Columns {
    let mut text = Columns::new(&[
        "operation",
        "over",
        ">median time",
        ">floor",
        ">× floor",
        ">kernel TCP",
        ">times as fast",
    ]);
    for row in rows {
        let operation = match row.test.as_str() {
            "basic.read" => "read an object",
            "basic.write" => "write an object",
            "echo" => "echo a message",
            other => other,
        };
        let us = |value: Option<f64>| value.map(out::micros).unwrap_or_default();
        text.row([
            format!("{operation} of {}", row.size_bytes.map(out::bytes).unwrap_or_default()),
            row.transport.clone(),
            us(row.p50_us),
            us(row.floor_us),
            ratio(row.p50_us, row.floor_us),
            us(row.tcp_us),
            ratio(row.tcp_us, row.p50_us),
        ]);
    }
    text
}

fn ratio(a: Option<f64>, b: Option<f64>) -> String {
    match (a, b) {
        (Some(a), Some(b)) if b > 0.0 => format!("{:.2}", a / b),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::measure::Figures;

    #[test]
    fn every_field_is_always_there() {
        let fields = [
            "test",
            "transport",
            "size_bytes",
            "count",
            "avg_us",
            "min_us",
            "p50_us",
            "p90_us",
            "p99_us",
            "p999_us",
            "max_us",
            "bytes_per_s",
            "ops_per_s",
            "floor",
            "floor_us",
            "tcp_us",
            "value",
            "unit",
        ];
        let json = serde_json::to_value(Row::default()).expect("a row is JSON");
        let names: Vec<&String> = json.as_object().expect("an object").keys().collect();
        assert_eq!(names.len(), fields.len());
        for field in fields {
            assert!(json.get(field).is_some(), "{field}");
        }
    }

    #[test]
    fn a_table_shows_ratios_and_leaves_out_empty_columns() {
        let figures = Figures { count: 9, p50_us: Some(1.0), ..Figures::default() };
        let row = Row::new("echo", "fast+shm", Some(100), &figures).beside(
            "raw ring",
            Some(0.5),
            Some(7.0),
        );
        assert_eq!(
            brief_table(std::slice::from_ref(&row)).text(),
            "  operation                over      median time   floor  × floor  kernel TCP  \
             times as fast\n  echo a message of 100 B  fast+shm      1.00 µs  500 ns     2.00     \
             7.00 µs           7.00\n"
        );
        assert_eq!(
            table(&[row]).text(),
            "  test  transport   size      p50   floor  × floor  kernel TCP  faster ×\n  \
               echo  fast+shm   100 B  1.00 µs  500 ns     2.00     7.00 µs      7.00\n"
        );
    }

    #[test]
    fn the_context_names_the_machine() {
        let context = Context::now(5, 1.0);
        assert!(context.cores >= 1 && !context.kernel.is_empty() && !context.commit.is_empty());
    }
}
