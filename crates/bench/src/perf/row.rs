//! The result of a measurement: a row of the tables and of the JSON.

use serde::{Deserialize, Serialize};

use super::measure::Figures;

/// The unit of the load that a test has offered.
const OFFERED: &str = "op/s offered";

/// One result of a benchmark: a line of the table, and an object of the JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// The name of the measurement.
    pub test: String,
    /// The transport, by its name in locators.
    pub transport: String,
    /// Payload bytes of one operation.
    pub size_bytes: Option<u64>,
    /// Number of operations in all rounds.
    pub count: u64,
    /// Mean time of an operation in µs: the median over the rounds.
    pub avg_us: Option<f64>,
    /// The shortest time of an operation in all rounds, in µs.
    pub min_us: Option<f64>,
    /// Median time of an operation in µs: the median over the rounds.
    pub p50_us: Option<f64>,
    /// 90th percentile of an operation's time in µs: the median over the rounds.
    pub p90_us: Option<f64>,
    /// 99th percentile of an operation's time in µs: the median over the rounds.
    pub p99_us: Option<f64>,
    /// 99.9th percentile of an operation's time in µs: the median over the rounds.
    pub p999_us: Option<f64>,
    /// The longest time of an operation in all rounds, in µs.
    pub max_us: Option<f64>,
    /// Payload bytes a second: the median over the rounds.
    pub bytes_per_s: Option<f64>,
    /// Operations a second: the median over the rounds.
    pub ops_per_s: Option<f64>,
    /// The name of the floor that the row's figures are compared with.
    pub floor: Option<String>,
    /// The median time of the row's floor, in µs.
    pub floor_us: Option<f64>,
    /// The median time of raw polling TCP that moves the same bytes, in µs.
    pub tcp_us: Option<f64>,
    /// The row's figure if it is neither a time nor a rate.
    pub value: Option<f64>,
    /// The unit of the row's figure that is neither a time nor a rate.
    pub unit: Option<String>,
    /// The distribution of the times: a time in µs, and the share of operations that took no
    /// longer. The JSON of a row leaves it out.
    #[serde(skip)]
    pub(crate) times: Vec<(f64, f64)>,
    /// True if the table has the test under several loads, which the end of the name tells apart.
    #[serde(skip)]
    pub(crate) under_load: bool,
}

impl Row {
    /// Makes a result row of times and rates.
    pub(crate) fn new(
        test: impl Into<String>,
        transport: impl Into<String>,
        size: Option<usize>,
        f: &Figures,
    ) -> Self {
        Self {
            test: test.into(),
            transport: transport.into(),
            size_bytes: size.map(|s| s as u64),
            count: f.count,
            avg_us: f.avg_us,
            min_us: f.min_us,
            p50_us: f.p50_us,
            p90_us: f.p90_us,
            p99_us: f.p99_us,
            p999_us: f.p999_us,
            max_us: f.max_us,
            bytes_per_s: f.bytes_per_s,
            ops_per_s: f.ops_per_s,
            times: f.times.clone(),
            ..Self::default()
        }
    }

    /// Makes a result row of one figure that is neither a time nor a rate.
    pub fn value(
        test: impl Into<String>,
        transport: impl Into<String>,
        value: f64,
        unit: &str,
    ) -> Self {
        Self {
            test: test.into(),
            transport: transport.into(),
            count: 1,
            value: Some(value),
            unit: Some(unit.to_owned()),
            ..Self::default()
        }
    }

    /// Adds the median times of the floor and of kernel TCP, in µs, to the row.
    pub fn beside(mut self, floor: &str, floor_us: Option<f64>, tcp_us: Option<f64>) -> Self {
        self.floor = floor_us.map(|_| floor.to_owned());
        self.floor_us = floor_us;
        self.tcp_us = tcp_us;
        self
    }

    /// Adds the load that the test has offered, in operations a second.
    pub(crate) fn offered(mut self, per_second: f64) -> Self {
        self.value = Some(per_second);
        self.unit = Some(OFFERED.to_owned());
        self
    }

    /// Returns the load in operations a second: the offered one if there is one.
    pub(crate) fn load(&self) -> Option<f64> {
        let is_offered = self.unit.as_deref() == Some(OFFERED);
        self.value.filter(|_| is_offered).or(self.ops_per_s)
    }

    /// Marks the row as one of a test under several loads.
    pub(crate) fn under_load(mut self) -> Self {
        self.under_load = true;
        self
    }
}

/// The field of a result's JSON that only tests of distributions have.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Distribution {
    /// Times in µs, each with the share of operations that took no longer.
    distribution: Vec<(f64, f64)>,
}

impl Distribution {
    /// Returns the distribution of the figures' times.
    pub(crate) fn of(figures: &Figures) -> Self {
        Self { distribution: figures.times.clone() }
    }
}
