//! Integration tests, in one binary so that they link once: every op against every property, every CUDA
//! kernel through the compiler, and the tape and the session as a program uses them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attention;
mod constants;
mod contexts;
mod conv;
mod derivatives;
mod endurance;
mod ergonomics;
mod faults;
mod golden;
mod graph;
mod hazards;
mod kernels;
mod laws;
mod layout;
mod lifecycle;
mod losses;
mod names;
mod nn;
mod norm;
mod onnx;
mod optim;
mod pointwise;
mod pool;
mod products;
mod program;
mod reductions;
mod scan;
mod seeds;
mod session;
mod shapes;
mod snapshots;
mod spectral;
mod support;
mod table;
mod tape;
mod tf32;
mod tokenizer;
mod typed;
