//@ check
//~ the one option is `#[module(skip)]`: the field is cloned as it is
//~ 7 |     #[module(ignore)]
use dittograd::prelude::*;
#[derive(Clone, Debug, Module)]
pub struct Net {
    #[module(ignore)]
    head: Linear,
}
