//! The fuzz targets on stable Rust: every seed and everything that was ever found is run again, and bytes of all kinds with
//! them. `fuzz/` has the targets; `.ci/fuzz` runs them for longer.

#[path = "../../fuzz/src/library/mod.rs"]
mod library;

use dittograd::graph::Graph;
use dittograd::numerics::rng::Stream;
use std::path::Path;

/// The committed inputs of a target.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for kind in ["seeds", "regressions"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind).join(target);
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            all.push((path.display().to_string(), std::fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

/// The bytes change a little, so that there is more than what was committed.
fn changed(bytes: &[u8], stream: &mut Stream) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + stream.below(3) {
        let at = stream.below(bytes.len().max(1));
        match stream.below(3) {
            0 if at < bytes.len() => bytes[at] = stream.below(256) as u8,
            1 => bytes.truncate(at.max(1)),
            _ => bytes.insert(at.min(bytes.len()), stream.below(256) as u8),
        }
    }
    bytes
}

#[test]
fn are_all_run() {
    let mut stream = Stream::new(1, 0);
    for (name, target) in library::TARGETS {
        let inputs = inputs(name);
        assert!(!inputs.is_empty(), "fuzz/seeds/{name} has nothing");
        for (path, bytes) in &inputs {
            println!("{path}");
            target(bytes);
            (0..8).for_each(|_| target(&changed(bytes, &mut stream)));
        }
    }
}

/// A seed that is refused at its first line leads nowhere.
#[test]
fn of_programs_are_programs() {
    for (path, bytes) in inputs("graph_text").iter().filter(|(path, _)| path.contains("seeds")) {
        let text = std::str::from_utf8(bytes).unwrap();
        Graph::parse(text).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
}
