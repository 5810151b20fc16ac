//! Plots as SVG inside of a page: lines over two axes, each linear or logarithmic, and a legend.
//!
//! The colours and fonts come from the classes of the page's style sheet. A line shows its name and
//! a point its values when the pointer rests on it, without a script.

use std::fmt::Write as _;

use crate::text::{bytes, micros, rate};

/// Size of a plot without its legend, in pixels, and its margins: left, top, right, bottom.
const SIZE: (f64, f64) = (560.0, 320.0);
const MARGINS: (f64, f64, f64, f64) = (72.0, 34.0, 36.0, 46.0);
/// Decades of a logarithmic axis from which on only powers of ten have labels.
const DECADES: f64 = 2.0;
/// Height of a row of the legend, and the number of its columns.
const LEGEND: (f64, usize) = (18.0, 2);
/// Most characters of a name in the legend.
const NAME: usize = 38;
/// Number of classes of colours. Later series use the first ones again, with dashes.
pub(crate) const COLOURS: usize = 8;
/// Points from which on a line has no marks of its own.
const MANY: usize = 20;

/// The unit of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Micros,
    Bytes,
    OpsPerSecond,
    /// A share of one, as percent.
    Share,
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Self::Micros if value == 0.0 => "0".to_owned(),
            Self::Micros => micros(value),
            Self::Bytes => bytes(value as u64),
            Self::OpsPerSecond if value == 0.0 => "0".to_owned(),
            Self::OpsPerSecond => rate(value, "op"),
            Self::Share => format!("{:.0} %", value * 100.0),
        }
    }
}

/// An axis of a plot.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) unit: Unit,
    pub(crate) log: bool,
}

/// A line of a plot.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// The points, in the order in which the line joins them.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
}

/// Returns `text` with its special characters escaped for HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The values of an axis on a range of pixels.
struct Scale {
    from: f64,
    to: f64,
    log: bool,
    pixels: (f64, f64),
}

impl Scale {
    /// Makes the scale of values that `axis` shows between these pixels.
    fn of(axis: &Axis, values: impl Iterator<Item = f64> + Clone, pixels: (f64, f64)) -> Self {
        let most = values.clone().fold(f64::MIN, f64::max);
        let least = values.fold(f64::MAX, f64::min);
        // An axis without values needs some range all the same.
        let (least, most) = if least <= most { (least, most) } else { (1.0, 10.0) };
        let (from, to) = match (axis.log, axis.unit) {
            (_, Unit::Share) => (0.0, 1.0),
            (true, _) => (down(least), up(most)),
            (false, _) => (0.0, (most / step(most)).ceil() * step(most)),
        };
        // A single value needs some room around it.
        let to = if to > from { to } else { from * 10.0 + 1.0 };
        Self { from, to, log: axis.log, pixels }
    }

    fn at(&self, value: f64) -> f64 {
        let part = match self.log {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.pixels.0 + part * (self.pixels.1 - self.pixels.0)
    }

    /// Returns the values that have a line of the grid and a label.
    fn ticks(&self) -> Vec<f64> {
        if !self.log {
            let step = step(self.to);
            return (0..=10)
                .map(|n| f64::from(n) * step)
                .filter(|v| *v <= self.to * 1.001)
                .collect();
        }
        let decades = (self.to / self.from).log10();
        let factors: &[f64] = if decades > DECADES { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = self.from.log10().floor() as i32;
        let all = (first..first + 20).flat_map(|power| factors.iter().map(move |f| f * ten(power)));
        all.filter(|v| *v >= self.from * 0.999 && *v <= self.to * 1.001).collect()
    }
}

fn ten(power: i32) -> f64 {
    10.0_f64.powi(power)
}

/// Returns the distance of the labels of a linear axis from zero to `most`.
fn step(most: f64) -> f64 {
    up(most / 5.0)
}

/// Returns the least of 1, 2 and 5 times a power of ten that is not below `value`.
fn up(value: f64) -> f64 {
    let power = ten(value.max(f64::MIN_POSITIVE).log10().floor() as i32);
    [1.0, 2.0, 5.0, 10.0].map(|f| f * power).into_iter().find(|v| *v >= value).unwrap_or(value)
}

/// Returns the largest of 1, 2 and 5 times a power of ten that is not above `value`.
fn down(value: f64) -> f64 {
    let power = ten(value.max(f64::MIN_POSITIVE).log10().floor() as i32);
    [5.0, 2.0, 1.0].map(|f| f * power).into_iter().find(|v| *v <= value).unwrap_or(power)
}

/// Returns the plot as an SVG element. Points that a logarithmic axis cannot show are left out.
pub(crate) fn svg(plot: &Plot) -> String {
    let shown = |&(x, y): &(f64, f64)| {
        x.is_finite() && y.is_finite() && (x > 0.0 || !plot.x.log) && (y > 0.0 || !plot.y.log)
    };
    let lines: Vec<(&str, Vec<(f64, f64)>)> = plot
        .series
        .iter()
        .map(|series| (&*series.name, series.points.iter().copied().filter(shown).collect()))
        .collect();
    let points = lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (left, top, right, bottom) = MARGINS;
    let x = Scale::of(&plot.x, points.clone().map(|(x, _)| x), (left, SIZE.0 - right));
    let y = Scale::of(&plot.y, points.map(|(_, y)| y), (SIZE.1 - bottom, top));
    let height = SIZE.1 + LEGEND.0 * lines.len().div_ceil(LEGEND.1) as f64 + 6.0;
    let mut out = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {} {height}\" width=\"{}\" role=\"img\" \
         aria-label=\"{title}\">\n<text class=\"head\" x=\"{left}\" y=\"18\">{title}</text>\n",
        SIZE.0,
        SIZE.0,
        title = escaped(&plot.title)
    );
    grid(&mut out, plot, &x, &y);
    for (index, (name, points)) in lines.iter().enumerate() {
        line(&mut out, plot, (index, name), points, (&x, &y));
        legend(&mut out, index, name);
    }
    out + "</svg>\n"
}

/// Adds the lines of the grid, and the labels of both axes.
fn grid(out: &mut String, plot: &Plot, x: &Scale, y: &Scale) {
    // A string takes all text.
    let ((x0, x1), (y0, y1)) = (x.pixels, y.pixels);
    for value in x.ticks() {
        let at = x.at(value);
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{at:.1} {y0}V{y1}\"/><text class=\"tick\" x=\"{at:.1}\" \
             y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y0 + 15.0,
            plot.x.unit.text(value)
        );
    }
    for value in y.ticks() {
        let at = y.at(value);
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{x0} {at:.1}H{x1}\"/><text class=\"tick\" x=\"{:.1}\" \
             y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            x0 - 6.0,
            at + 4.0,
            plot.y.unit.text(value)
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"label\" transform=\"translate(13 {:.1}) rotate(-90)\" \
         text-anchor=\"middle\">{}</text>",
        (x0 + x1) / 2.0,
        y0 + 34.0,
        plot.x.label,
        (y0 + y1) / 2.0,
        plot.y.label
    );
}

/// Returns the classes of the line of a series.
fn class(index: usize) -> String {
    let dashed = if index >= COLOURS { " dashed" } else { "" };
    format!("line c{}{dashed}", index % COLOURS)
}

/// Adds the line of a series, and a mark at each of its points if they are few.
fn line(
    out: &mut String,
    plot: &Plot,
    (index, name): (usize, &str),
    points: &[(f64, f64)],
    (x, y): (&Scale, &Scale),
) {
    let name = escaped(name);
    let mut path = String::new();
    for (n, (px, py)) in points.iter().enumerate() {
        let letter = if n == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{:.1} {:.1}", x.at(*px), y.at(*py));
    }
    let class = class(index);
    let _ = writeln!(out, "<path class=\"{class}\" d=\"{path}\"><title>{name}</title></path>");
    if points.len() > MANY {
        return;
    }
    for (px, py) in points {
        let _ = writeln!(
            out,
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{name}: {}, {}\
             </title></circle>",
            x.at(*px),
            y.at(*py),
            plot.x.unit.text(*px),
            plot.y.unit.text(*py)
        );
    }
}

/// Adds the row of a series to the legend.
fn legend(out: &mut String, index: usize, name: &str) {
    let column = (SIZE.0 - MARGINS.0) / LEGEND.1 as f64;
    let at_x = MARGINS.0 + column * (index % LEGEND.1) as f64;
    let at_y = SIZE.1 + LEGEND.0 * (index / LEGEND.1) as f64 + 6.0;
    let short: String = match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    };
    let _ = writeln!(
        out,
        "<path class=\"{}\" d=\"M{at_x:.1} {at_y:.1}h18\"/><text class=\"tick\" x=\"{:.1}\" \
         y=\"{:.1}\">{}</text>",
        class(index),
        at_x + 24.0,
        at_y + 4.0,
        escaped(&short)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(log: bool, points: Vec<(f64, f64)>) -> Plot {
        let axis = |label, unit| Axis { label, unit, log };
        let series = vec![Series { name: "a <b> & c".to_owned(), points }];
        let (x, y) = (axis("size", Unit::Bytes), axis("time", Unit::Micros));
        Plot { title: "latency".to_owned(), x, y, series }
    }

    #[test]
    fn round_numbers_enclose_the_values() {
        for (value, above, below) in
            [(3.0, 5.0, 2.0), (0.07, 0.1, 0.05), (1.0, 1.0, 1.0), (64_000.0, 100_000.0, 50_000.0)]
        {
            assert!((up(value) - above).abs() < above * 1e-9, "{value}: {}", up(value));
            assert!((down(value) - below).abs() < below * 1e-9, "{value}: {}", down(value));
        }
    }

    #[test]
    fn a_linear_axis_ends_behind_its_values() {
        let axis = Axis { label: "", unit: Unit::OpsPerSecond, log: false };
        let scale = Scale::of(&axis, [10.0, 367_000.0].into_iter(), (0.0, 500.0));
        let ticks: Vec<u64> = scale.ticks().iter().map(|v| v.round() as u64).collect();
        assert_eq!(ticks, [0, 100_000, 200_000, 300_000, 400_000]);
    }

    #[test]
    fn a_logarithmic_axis_has_a_tick_a_decade() {
        let axis = Axis { label: "", unit: Unit::Micros, log: true };
        let scale = Scale::of(&axis, [1.0, 100_000.0].into_iter(), (0.0, 500.0));
        let ticks: Vec<u64> = scale.ticks().iter().map(|v| v.round() as u64).collect();
        assert_eq!(ticks, [1, 10, 100, 1000, 10_000, 100_000]);
        assert!(
            (scale.at(10.0) - 100.0).abs() < 1e-6 && (scale.at(100_000.0) - 500.0).abs() < 1e-6
        );
    }

    #[test]
    fn names_are_escaped_and_points_stay_inside() {
        let text = svg(&plot(true, vec![(100.0, 1.5), (1e6, 900.0), (0.0, 1.0)]));
        assert!(text.contains("a &lt;b&gt; &amp; c") && !text.contains("<b>"), "{text}");
        assert_eq!(text.matches("<circle").count(), 2, "zero is not on a logarithmic axis");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn a_plot_of_one_value_or_of_none_has_axes() {
        for points in [vec![], vec![(5.0, 5.0)], vec![(0.0, 0.0)]] {
            for log in [true, false] {
                let text = svg(&plot(log, points.clone()));
                assert!(!text.contains("NaN") && !text.contains("inf"), "{points:?}: {text}");
            }
        }
    }
}
