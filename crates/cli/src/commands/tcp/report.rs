//! The report of a measurement: a table for people, or one JSON object.

use serde::Serialize;
use sprat::tcp::TcpInfo;
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out::{self, Columns};

/// The figures of a measurement. Without our own TCP there are no counters of connections.
#[derive(Serialize, Debug, Default)]
pub(super) struct Report {
    pub(super) command: &'static str,
    pub(super) to: String,
    pub(super) streams: usize,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retransmissions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeouts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rtt_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) congestion_window: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) echoes: Option<Echoes>,
}

/// The round trips of echoes, in microseconds.
#[derive(Serialize, Debug)]
pub(super) struct Echoes {
    pub(super) count: usize,
    pub(super) median_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    pub(super) most_us: f64,
}

impl Echoes {
    /// Returns the percentiles of round trips in nanoseconds.
    pub(super) fn of(mut ns: Vec<u64>) -> Option<Self> {
        ns.sort_unstable();
        let count = ns.len();
        let at = |part: f64| {
            let index = (count as f64 * part) as usize;
            Some(*ns.get(index.min(count.checked_sub(1)?))? as f64 / 1e3)
        };
        let (median_us, p90_us, p99_us, most_us) = (at(0.5)?, at(0.9)?, at(0.99)?, at(1.0)?);
        Some(Self { count, median_us, p90_us, p99_us, most_us })
    }
}

impl Report {
    /// Adds what connections have counted.
    pub(super) fn add<'a>(&mut self, infos: impl IntoIterator<Item = &'a TcpInfo>) {
        for info in infos {
            *self.retransmissions.get_or_insert(0) += info.retransmissions;
            *self.timeouts.get_or_insert(0) += info.timeouts;
            self.rtt_us = (info.rtt_ns > 0).then_some(info.rtt_ns as f64 / 1e3).or(self.rtt_us);
            self.congestion_window = Some(info.congestion_window);
        }
    }

    fn mbit_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 * 8.0 / self.seconds / 1e6 } else { 0.0 }
    }

    /// Writes the report to standard output.
    pub(super) fn print(&self, as_json: bool) -> Result<(), Fail> {
        if as_json {
            let mut row = serde_json::to_value(self).named("the report")?;
            row["goodput_mbit_per_s"] = self.mbit_per_second().into();
            return out::raw(format!("{row}\n"));
        }
        out::print(self.text())
    }

    /// Returns the report as a table.
    pub(super) fn text(&self) -> String {
        let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let time = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), out::micros);
        if let Some(echoes) = &self.echoes {
            let mut table =
                Columns::new(&["to", ">echoes", ">median", ">90 %", ">99 %", ">most", ">resent"]);
            let &Echoes { count, median_us, p90_us, p99_us, most_us } = echoes;
            let [median, p90, p99, most] = [median_us, p90_us, p99_us, most_us].map(out::micros);
            let resent = number(self.retransmissions);
            table.row([self.to.clone(), count.to_string(), median, p90, p99, most, resent]);
            return table.text();
        }
        let mut table = Columns::new(&[
            "to",
            ">streams",
            ">bytes",
            ">seconds",
            ">Mbit/s",
            ">resent",
            ">timeouts",
            ">RTT",
        ]);
        table.row([
            self.to.clone(),
            self.streams.to_string(),
            self.bytes.to_string(),
            format!("{:.3}", self.seconds),
            format!("{:.1}", self.mbit_per_second()),
            number(self.retransmissions),
            number(self.timeouts),
            time(self.rtt_us),
        ]);
        table.text()
    }
}
