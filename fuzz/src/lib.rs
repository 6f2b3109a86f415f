//! Fuzz targets of dittograd: functions of any bytes that must come back. A target feeds the bytes to a part of the library
//! or the program and panics if what comes out breaks a promise; the sanitizer and the limits on memory find the rest.
//!
//! `library` has those that need the library only and `program` those that need the program's. Both are also part of the
//! ordinary tests (`tests/it/seeds.rs`, `cli/tests/program/seeds.rs`), which replay `seeds/` and `regressions/` on stable Rust.

pub mod library;
pub mod program;

/// The target of that name.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    library::TARGETS.iter().chain(program::TARGETS).find(|(n, _)| *n == name).map(|(_, target)| *target)
}

/// Names of all targets.
pub fn names() -> Vec<&'static str> {
    library::TARGETS.iter().chain(program::TARGETS).map(|(name, _)| *name).collect()
}

/// Runs the target of that name, which must be one.
pub fn run(name: &str, data: &[u8]) {
    target(name).expect("a name of the list")(data)
}
