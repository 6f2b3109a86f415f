//@ build
//~ multi_head_attention: 16 columns do not divide evenly among 3 heads
use dittograd::prelude::{AttentionOptions, Result};
use dittograd::typed::{Heads, Matrix};

pub fn attend<'s>(x: Matrix<'s, 5, 8>, w: Matrix<'s, 8, 16>, out: Matrix<'s, 16, 8>) -> Result<Matrix<'s, 5, 8>> {
    x.multi_head_attention([w, w, w], out, Heads::<3>, AttentionOptions::default())
}
