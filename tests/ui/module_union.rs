//@ check
//~ a union cannot be a module: its active field is unknown; use an enum
use dittograd::prelude::*;

#[derive(Clone, Copy, Module)]
pub union Either {
    a: u32,
    b: f32,
}
