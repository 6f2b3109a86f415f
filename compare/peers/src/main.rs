//! Training steps of other Rust frameworks on the CPU: `peers candle|burn WORKLOAD` prints the median milliseconds of a step as
//! one JSON object. Workloads are those of `dittograd bench`: mlp_b128 and cnn_b32, with AdamW. `compare/cpu.py --peers` runs it.

mod burns;
mod candles;

use std::time::Instant;

/// Median milliseconds of a call, after a warm-up.
fn median_ms(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut calls = 0;
    while calls < 3 || start.elapsed().as_millis() < 500 {
        call();
        calls += 1;
    }
    let one = start.elapsed().as_secs_f64() / f64::from(calls);
    let runs = (2.0 / one).clamp(9.0, 400.0) as usize;
    let time = |_| {
        let start = Instant::now();
        call();
        start.elapsed().as_secs_f64() * 1e3
    };
    let mut times: Vec<f64> = (0..runs).map(time).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ms = match args[..] {
        ["candle", "mlp_b128"] => candles::mlp(),
        ["candle", "cnn_b32"] => candles::cnn(),
        ["burn", "mlp_b128"] => burns::mlp(),
        ["burn", "cnn_b32"] => burns::cnn(),
        _ => {
            eprintln!("usage: peers candle|burn mlp_b128|cnn_b32");
            std::process::exit(2);
        }
    };
    println!("{{\"framework\": \"{}\", \"workload\": \"{}\", \"median_ms\": {ms}}}", args[0], args[1]);
}
