//! Integration tests, in one binary so that they link once: every op against every property, and every
//! CUDA kernel through the compiler.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod kernels;
mod table;
