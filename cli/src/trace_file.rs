//! Traces for Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing): what ran when, on which track.

use crate::Answer;
use dittograd::io::atomic;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The id of the only process in a trace.
const PROCESS: u32 = 1;

/// Spans of time and counters, in microseconds from any origin.
#[derive(Default)]
pub(crate) struct Trace {
    tracks: Vec<String>,
    events: Vec<Value>,
}

impl Trace {
    /// An empty trace.
    pub(crate) fn new() -> Trace {
        Trace::default()
    }

    /// Adds a span of time. Tracks are shown in the order of their first use. Spans of one track may be nested, but
    /// must not overlap otherwise.
    pub(crate) fn span(
        &mut self,
        track: &str,
        name: &str,
        start_us: f64,
        duration_us: f64,
        args: &[(&str, Value)],
    ) {
        let thread = self.track(track);
        let mut event = json!({
            "ph": "X", "pid": PROCESS, "tid": thread, "name": name, "ts": time(start_us),
            "dur": time(duration_us.max(0.0)),
        });
        if !args.is_empty() {
            let args: Map<String, Value> = args.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
            event["args"] = Value::Object(args);
        }
        self.events.push(event);
    }

    /// Sets a quantity from now on; drawn as steps. Values that are not finite are left out.
    pub(crate) fn counter(&mut self, name: &str, at_us: f64, value: f64) {
        if value.is_finite() {
            let args = json!({ "value": value });
            self.events.push(json!({
                "ph": "C", "pid": PROCESS, "name": name, "ts": time(at_us), "args": args,
            }));
        }
    }

    /// Writes the trace atomically.
    pub(crate) fn write(&self, path: &Path) -> Answer<()> {
        atomic::write_with(path, |file| {
            let mut names = vec![
                json!({ "ph": "M", "pid": PROCESS, "name": "process_name", "args": { "name": "dittograd" } }),
            ];
            for (i, track) in self.tracks.iter().enumerate() {
                let tid = i + 1;
                names.push(json!({
                    "ph": "M", "pid": PROCESS, "tid": tid, "name": "thread_name", "args": { "name": track },
                }));
                names.push(json!({
                    "ph": "M", "pid": PROCESS, "tid": tid, "name": "thread_sort_index", "args": { "sort_index": i },
                }));
            }
            file.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
            for (i, event) in names.iter().chain(&self.events).enumerate() {
                file.write_all(if i == 0 { b"\n" } else { b",\n" })?;
                serde_json::to_writer(&mut *file, event)?;
            }
            file.write_all(b"\n]}\n")
        })?;
        Ok(())
    }

    /// The number of a track, from 1.
    fn track(&mut self, name: &str) -> usize {
        let found = self.tracks.iter().position(|t| t == name);
        found.unwrap_or_else(|| {
            self.tracks.push(name.to_string());
            self.tracks.len() - 1
        }) + 1
    }
}

/// Microseconds with a precision of nanoseconds; 0 if not finite.
fn time(us: f64) -> Value {
    let us = if us.is_finite() { (us * 1e3).round() / 1e3 } else { 0.0 };
    json!(us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_comes_back_as_it_was_meant() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("trace.json");
        let mut trace = Trace::new();
        trace.span("cpu", "step \"1\"\n", 10.0, 5.5, &[]);
        trace.span("cuda:0", "matmul", 11.0, 2.000_4, &[("bytes", json!(4096)), ("shape", json!([8, 8]))]);
        trace.span("cpu", "odd", f64::NAN, -1.0, &[]);
        trace.counter("memory", 12.0, 1e6);
        trace.counter("memory", 13.0, f64::INFINITY);
        assert_eq!(trace.events.len(), 4);
        assert!(trace.write(&path).is_ok());
        let read: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let all = read["traceEvents"].as_array().unwrap();
        assert_eq!(all.len(), 1 + 2 * 2 + 4);
        let named = |tid: u64| {
            let name = all.iter().find(|e| e["name"] == "thread_name" && e["tid"] == tid).unwrap();
            name["args"]["name"].as_str().unwrap().to_string()
        };
        assert_eq!([named(1), named(2)], ["cpu", "cuda:0"]);
        assert_eq!(
            all[5],
            json!({"ph": "X", "pid": 1, "tid": 1, "name": "step \"1\"\n", "ts": 10.0, "dur": 5.5})
        );
        assert_eq!(
            all[6],
            json!({"ph": "X", "pid": 1, "tid": 2, "name": "matmul", "ts": 11.0, "dur": 2.0,
                "args": {"bytes": 4096, "shape": [8, 8]}})
        );
        assert_eq!((&all[7]["ts"], &all[7]["dur"]), (&json!(0.0), &json!(0.0)));
        assert_eq!(
            all[8],
            json!({"ph": "C", "pid": 1, "name": "memory", "ts": 12.0, "args": {"value": 1e6}})
        );
        assert!(Trace::new().write(&path).is_ok());
        assert!(serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).is_ok());
        assert!(trace.write(&here.path().join("no/such")).is_err());
    }
}
