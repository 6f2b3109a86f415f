#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dittograd_fuzz::run("record", data));
