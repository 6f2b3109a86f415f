//! The target that the environment variable `FUZZ_TARGET` names, so that one program has them all.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    dittograd_fuzz::target(&name).unwrap_or_else(|| {
        eprintln!("FUZZ_TARGET={name} is no target, use one of {}", dittograd_fuzz::names().join(" "));
        std::process::exit(2)
    })
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
