//! The counters of a cluster at one time, and the rates between two times.

use serde_json::{Map, Value, json};
use sprat::kv::ServerInfo;
use sprat_bench::fail::Fail;
use sprat_bench::store::Store;
use sprat_proto::Instant;
use sprat_store::counter::Kind;
use sprat_sys::clock;

use crate::counters::catalogue::{self, Part};

/// The counters of all servers and of the coordinator at one time.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) at: Instant,
    /// The time of day in milliseconds since 1970.
    pub(super) wall_ms: u64,
    pub(super) servers: Vec<ServerInfo>,
    /// The counters of the servers, in their order. A server that does not answer has none.
    pub(super) counters: Vec<Option<Map<String, Value>>>,
    pub(super) coordinator: Option<Map<String, Value>>,
}

impl Sample {
    /// Asks the coordinator and all servers for their counters.
    pub(super) fn take(store: &mut Store) -> Result<Self, Fail> {
        let servers = store.servers()?;
        let parsed = |bytes: Vec<u8>| serde_json::from_slice::<Map<String, Value>>(&bytes).ok();
        // A server that does not answer has no counters; the others are still shown.
        let counters =
            servers.iter().map(|server| store.counters(server).ok().and_then(parsed)).collect();
        let coordinator = store.coordinator_counters().ok().and_then(parsed);
        Ok(Self { at: clock::now(), wall_ms: clock::wall_ms(), servers, counters, coordinator })
    }

    /// Returns the seconds since an earlier sample.
    pub(super) fn seconds_since(&self, before: &Self) -> f64 {
        self.at.since(before.at) as f64 / 1e9
    }

    /// Returns the counters of the server at this index in its earlier sample, if that has them.
    pub(super) fn earlier<'b>(
        &self,
        index: usize,
        before: &'b Self,
    ) -> Option<&'b Map<String, Value>> {
        let server = self.servers.get(index)?.server;
        let there = before.servers.iter().position(|other| other.server == server)?;
        before.counters.get(there)?.as_ref()
    }

    /// Returns one JSON object a server and line. With an earlier sample it has rates per second.
    pub(super) fn json(&self, watched: Option<Option<&Self>>) -> String {
        let mut lines = String::new();
        for (index, (server, counters)) in self.servers.iter().zip(&self.counters).enumerate() {
            let mut about = json!({
                "server": server.server.to_string(), "tablets": server.tablets,
                "control": server.control, "locators": server.data, "counters": counters,
            });
            if let Some(before) = watched {
                about["time_ms"] = self.wall_ms.into();
                about["seconds"] = before.map(|before| self.seconds_since(before)).into();
                about["rates"] = before
                    .zip(counters.as_ref())
                    .and_then(|(before, counters)| {
                        let earlier = self.earlier(index, before)?;
                        Some(rates(earlier, counters, self.seconds_since(before)))
                    })
                    .into();
            }
            lines += &format!("{about}\n");
        }
        lines
    }
}

/// Returns the rates per second of all totals of a server.
fn rates(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    seconds: f64,
) -> Map<String, Value> {
    let mut rates = Map::new();
    for (name, value) in after {
        let counter =
            catalogue::of_store(Part::Server, name).or_else(|| catalogue::of_process(name));
        if counter.is_some_and(|counter| counter.kind == Kind::Total) {
            let earlier = before.get(name).and_then(Value::as_u64).unwrap_or(0);
            let passed = value.as_u64().unwrap_or(0).saturating_sub(earlier);
            rates.insert(name.clone(), (passed as f64 / seconds.max(1e-9)).into());
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_totals() {
        let before = json!({ "reads": 10, "objects": 5, "uptime_seconds": 1 });
        let after = json!({
            "reads": 40, "objects": 9, "uptime_seconds": 3, "refused_Retry": 3, "stalls": 1,
            "tcp": { "requests": 4 }, "unheard_of": 7,
        });
        let [before, after] = [before, after].map(|of| of.as_object().cloned().expect("object"));
        let expected = json!({ "reads": 15.0, "refused_Retry": 1.5, "stalls": 0.5 });
        assert_eq!(Value::from(rates(&before, &after, 2.0)), expected);
    }
}
