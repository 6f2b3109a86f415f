//! The dittograd program.

fn main() {}
