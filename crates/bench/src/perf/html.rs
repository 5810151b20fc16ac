//! The page of `--html`: the tables of a run and plots of them, in one file that loads no other.
//!
//! The plots follow from the rows of a table: the distribution of the times, the median by the size
//! of a message, the times by the load.

use std::fmt::Write as _;

use super::plot::{Axis, COLOURS, Plot, Series, Unit, escaped, svg};
use super::row::Row;
use crate::text::{Columns, bytes};

/// Most lines of one plot.
const MOST: usize = 12;

/// The colours of lines, on a light and on a dark page. Colour-blind readers can tell most of them
/// apart.
const LINES: [(&str, &str); COLOURS] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8a3d"),
    ("#009e73", "#2ecc9b"),
    ("#cc79a7", "#e79ac6"),
    ("#b8860b", "#f0c030"),
    ("#444444", "#cccccc"),
    ("#7b3fb5", "#b490e0"),
    ("#8b1a1a", "#e57373"),
];

const STYLE: &str = "
:root { --ink: #1a1a1a; --dim: #666; --rule: #ddd; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --dim: #a0a0a0; --rule: #3a3a3a; --page: #181818; }
}
body { color: var(--ink); background: var(--page); font: 15px/1.45 system-ui, sans-serif;
  margin: 2rem auto; max-width: 1200px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.context { color: var(--dim); }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .2rem .6rem; text-align: left; white-space: nowrap; }
td.n, th.n { text-align: right; }
thead th { border-bottom: 2px solid var(--rule); }
tbody td { border-bottom: 1px solid var(--rule); }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
svg.plot { max-width: 100%; height: auto; }
svg .head { font-size: 13px; font-weight: 600; } svg .tick { fill: var(--dim); }
svg .grid { stroke: var(--rule); fill: none; }
svg path.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .dashed { stroke-dasharray: 5 4; }
";

/// One table of the page, and its plots.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    title: String,
    /// The rows of the table, of which the first has the headings.
    cells: Vec<Vec<String>>,
    /// True for each column of numbers.
    numbers: Vec<bool>,
    plots: Vec<Plot>,
    /// A picture of the test's own, as an SVG element. Empty: there is none.
    picture: String,
}

impl Section {
    /// Makes the section of a picture without a table.
    pub(crate) fn picture(title: &str, svg: String) -> Self {
        let (cells, numbers, plots) = Default::default();
        Self { title: title.to_owned(), cells, numbers, plots, picture: svg }
    }

    /// Makes the section of a table, with the plots of its rows.
    pub(crate) fn new(title: &str, table: &Columns, rows: &[Row]) -> Self {
        let (cells, numbers) = (table.cells().to_vec(), table.numbers());
        Self { title: title.to_owned(), cells, numbers, plots: plots(rows), picture: String::new() }
    }
}

/// Returns the page of these sections. `context` describes the machine and the run.
pub(crate) fn page(context: &str, sections: &[Section]) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>sprat bench</title>\n\
         <style>",
    );
    out.push_str(STYLE);
    let colours = |pick: fn(&(&'static str, &'static str)) -> &'static str| -> String {
        let one = |(n, pair)| {
            let colour = pick(pair);
            format!(".c{n} {{ stroke: {colour}; }} circle.c{n} {{ fill: {colour}; }}\n")
        };
        LINES.iter().enumerate().map(one).collect()
    };
    // A string takes all text.
    let _ = write!(
        out,
        "{}@media (prefers-color-scheme: dark) {{\n{}}}\n</style>\n</head>\n<body>\n\
         <h1>sprat bench</h1>\n<p class=\"context\">{}</p>\n",
        colours(|pair| pair.0),
        colours(|pair| pair.1),
        escaped(context.trim_end()).replace('\n', "<br>")
    );
    for section in sections {
        one(&mut out, section);
    }
    out + "</body>\n</html>\n"
}

/// Adds a section to the page.
fn one(out: &mut String, section: &Section) {
    let (head, rest) = section.title.split_once(": ").unwrap_or((&section.title, ""));
    let _ = writeln!(out, "<section>\n<h2>{}</h2>\n<p>{}</p>", escaped(head), escaped(rest));
    let _ = writeln!(out, "<div class=\"plots\">");
    section.plots.iter().for_each(|plot| out.push_str(&svg(plot)));
    out.push_str(&section.picture);
    let _ = writeln!(out, "</div>\n<div class=\"table\"><table>\n<thead>");
    for (number, cells) in section.cells.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        out.push_str("<tr>");
        for (cell, number) in cells.iter().zip(&section.numbers) {
            let class = if *number { " class=\"n\"" } else { "" };
            let _ = write!(out, "<{tag}{class}>{}</{tag}>", escaped(cell));
        }
        out.push_str(if number == 0 { "</tr></thead>\n<tbody>\n" } else { "</tr>\n" });
    }
    let _ = writeln!(out, "</tbody></table></div>\n</section>");
}

/// Returns the plots that the rows of a table give.
fn plots(rows: &[Row]) -> Vec<Plot> {
    let mut all = distributions(rows);
    all.extend(by_size(rows));
    all.extend(by_load(rows));
    for plot in &mut all {
        plot.series.truncate(MOST);
    }
    all
}

/// Collects points into lines by their names. Lines and points keep the order of the rows.
fn collect(points: impl Iterator<Item = (String, (f64, f64))>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (name, point) in points {
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => all.push(Series { name, points: vec![point] }),
        }
    }
    all
}

fn time(label: &'static str) -> Axis {
    Axis { label, unit: Unit::Micros, log: true }
}

/// Returns the plots of the distributions of times: one of each test and size with a line for each
/// transport, or one of each transport if there are no transports to compare.
fn distributions(rows: &[Row]) -> Vec<Plot> {
    let timed = || rows.iter().filter(|row| row.times.len() > 1);
    let size = |row: &Row| row.size_bytes.map(|size| format!(" {}", bytes(size)));
    let test = |row: &Row| format!("{}{}", row.test, size(row).unwrap_or_default());
    let compared =
        timed().any(|a| timed().any(|b| test(a) == test(b) && a.transport != b.transport));
    let keys = |row: &Row| match compared {
        true => (test(row), row.transport.clone()),
        false => (row.transport.clone(), test(row)),
    };
    let mut plots: Vec<Plot> = Vec::new();
    for row in timed() {
        let (key, name) = keys(row);
        let title = format!("Distribution of times: {key}");
        let series = Series { name, points: row.times.clone() };
        match plots.iter_mut().find(|plot| plot.title == title) {
            Some(plot) => plot.series.push(series),
            None => {
                let y = Axis { label: "share of operations", unit: Unit::Share, log: false };
                plots.push(Plot { title, x: time("time"), y, series: vec![series] });
            }
        }
    }
    plots
}

/// Returns the plot of medians by size. `None`: no test has several sizes.
fn by_size(rows: &[Row]) -> Option<Plot> {
    let points = rows.iter().filter_map(|row| {
        let name = format!("{} {}", row.test, row.transport);
        Some((name, (row.size_bytes? as f64, row.p50_us?)))
    });
    let mut series = collect(points);
    for one in &mut series {
        one.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    series.retain(|one| one.points.first().map(|p| p.0) != one.points.last().map(|p| p.0));
    let x = Axis { label: "size of the message or value", unit: Unit::Bytes, log: true };
    let title = "Median time by size".to_owned();
    (!series.is_empty()).then_some(Plot { title, x, y: time("median time"), series })
}

/// Returns the plot of times by load, whose lines go from one load to the next, although more
/// clients may have a lower rate. `None`: the table has no test under several loads.
fn by_load(rows: &[Row]) -> Option<Plot> {
    let points = rows.iter().filter(|row| row.under_load).flat_map(|row| {
        let name = row.test.rsplit_once('.').map_or(&*row.test, |(name, _)| name);
        let load = row.load();
        let point = |end: &str, us: Option<f64>| {
            Some((format!("{name} {} {end}", row.transport), (load?, us?)))
        };
        [point("p50", row.p50_us), point("99 %", row.p99_us)]
    });
    let mut series = collect(points.flatten());
    series.retain(|one| one.points.len() > 1);
    let x = Axis { label: "operations a second", unit: Unit::OpsPerSecond, log: false };
    let title = "Time by load".to_owned();
    (!series.is_empty()).then_some(Plot { title, x, y: time("time"), series })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(test: &str, transport: &str, size: u64, us: f64) -> Row {
        Row {
            test: test.to_owned(),
            transport: transport.to_owned(),
            size_bytes: Some(size),
            p50_us: Some(us),
            p99_us: Some(2.0 * us),
            ops_per_s: Some(1e6 / us),
            times: vec![(us, 0.5), (2.0 * us, 1.0)],
            ..Row::default()
        }
    }

    fn titles(rows: &[Row]) -> Vec<String> {
        plots(rows).into_iter().map(|plot| plot.title).collect()
    }

    #[test]
    fn transports_are_compared_in_one_plot() {
        let rows = [row("echo", "tcp", 100, 9.0), row("echo", "fast+shm", 100, 1.0)];
        assert_eq!(titles(&rows), ["Distribution of times: echo 100 B"]);
        assert_eq!(plots(&rows)[0].series.len(), 2);
        let rows = [row("a", "tcp", 100, 9.0), row("b", "tcp", 100, 1.0)];
        assert_eq!(titles(&rows), ["Distribution of times: tcp"]);
    }

    #[test]
    fn sizes_and_loads_have_plots_of_their_own() {
        let sizes = [row("echo", "tcp", 100, 9.0), row("echo", "tcp", 1000, 10.0)];
        assert!(titles(&sizes).contains(&"Median time by size".to_owned()));
        let load =
            |n: u64| Row { under_load: true, ..row(&format!("loaded.{n}"), "tcp", 100, n as f64) };
        let rows = [load(10), load(50)];
        let all = plots(&rows);
        let plot = all.iter().find(|plot| plot.title == "Time by load").expect("a plot");
        let names: Vec<&str> = plot.series.iter().map(|series| &*series.name).collect();
        assert_eq!(names, ["loaded tcp p50", "loaded tcp 99 %"]);
        let times: Vec<f64> = plot.series[0].points.iter().map(|point| point.1).collect();
        assert_eq!(times, [10.0, 50.0], "from one load to the next");
        let aborted = Row { value: Some(12.5), unit: Some("% aborted".to_owned()), ..load(10) };
        let loads = [aborted, load(50).offered(70_000.0)].map(|row| row.load());
        assert_eq!(loads, [Some(100_000.0), Some(70_000.0)], "a share of tries is no load");
    }

    #[test]
    fn the_page_loads_nothing_and_escapes_text() {
        let mut table = Columns::new(&["test", ">p50"]);
        table.row(["a <script>", "1 µs"]);
        let section = Section::new("echo: <b>", &table, &[row("a<", "tcp", 100, 1.0)]);
        let page = page("commit 1 & 2\nline", &[section]);
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        for absent in ["<script", "http", "url(", "@import", "src=", "<b>"] {
            assert!(!page.contains(absent), "{absent}");
        }
        assert!(page.contains("a &lt;script&gt;") && page.contains("commit 1 &amp; 2<br>line"));
    }
}
