//! The measurements of a run: lines of numbers by name, and all of them as a table.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The step of a line of measurements, and its numbers by name.
pub(crate) fn points(line: &[u8]) -> Option<(f64, Vec<(String, f64)>)> {
    let line: BTreeMap<String, Value> = serde_json::from_slice(line).ok()?;
    let step = line.get("step")?.as_f64()?;
    let number = |(name, value): (String, Value)| Some((name, value.as_f64()?));
    Some((step, line.into_iter().filter(|(name, _)| name != "step").filter_map(number).collect()))
}

/// The measurements of a run as CSV: a row for each step of the file, a column for each name.
pub(crate) fn csv(path: &Path) -> std::io::Result<Vec<u8>> {
    let lines = BufReader::new(File::open(path)?).split(b'\n').map_while(Result::ok);
    let mut rows: Vec<(f64, BTreeMap<String, f64>)> = Vec::new();
    // What a line only says in words has no number.
    for (step, values) in lines.filter_map(|l| points(&l)).filter(|(_, values)| !values.is_empty()) {
        match rows.last_mut().filter(|last| last.0 == step) {
            Some(last) => last.1.extend(values),
            None => rows.push((step, values.into_iter().collect())),
        }
    }
    let names: BTreeSet<&String> = rows.iter().flat_map(|(_, values)| values.keys()).collect();
    let quoted = |name: &&String| {
        // A spreadsheet would compute what begins so.
        let safe = if name.starts_with(['=', '+', '-', '@']) { format!("'{name}") } else { name.to_string() };
        match safe.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", safe.replace('"', "\"\"")),
            false => safe,
        }
    };
    let mut text = format!("step,{}\n", names.iter().map(quoted).collect::<Vec<_>>().join(","));
    for (step, values) in &rows {
        let cells = names.iter().map(|name| values.get(*name).map_or_else(String::new, f64::to_string));
        text += &format!("{step},{}\n", cells.collect::<Vec<_>>().join(","));
    }
    Ok(text.into_bytes())
}
