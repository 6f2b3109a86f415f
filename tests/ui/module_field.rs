//@ check
//~ `Table` is not a module
//~ 16 |     table: Table,
//~ note: derive it: `#[derive(Module)]` on `Table`
//~ `#[module(skip)]`
use dittograd::prelude::*;

#[derive(Clone, Debug)]
pub struct Table {
    pub rows: usize,
}

#[derive(Clone, Debug, Module)]
pub struct Net {
    head: Linear,
    table: Table,
}
