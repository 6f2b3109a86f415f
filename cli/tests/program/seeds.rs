//! The program's fuzz targets on stable Rust: every seed and everything that was ever found is run again.

#[path = "../../../fuzz/src/program.rs"]
mod targets;

use std::path::Path;

#[test]
fn are_all_run() {
    for (name, target) in targets::TARGETS {
        let mut count = 0;
        for kind in ["seeds", "regressions"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(kind).join(name);
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let bytes = std::fs::read(entry.unwrap().path()).unwrap();
                target(&bytes);
                // Cut off anywhere, it is another input.
                (0..bytes.len().min(200)).for_each(|end| target(&bytes[..end]));
                count += 1;
            }
        }
        assert!(count > 0, "fuzz/seeds/{name} has nothing");
    }
}
