//@ check
//~ expected `16`, found `8`
use dittograd::prelude::{AttentionOptions, Result};
use dittograd::typed::{Rank4, Typed};

pub fn attend<'s>(
    queries: Typed<'s, Rank4<2, 4, 10, 16>>,
    keys: Typed<'s, Rank4<2, 4, 12, 8>>,
    options: AttentionOptions<'s>,
) -> Result<Typed<'s, Rank4<2, 4, 10, 8>>> {
    queries.attention(keys, keys, options)
}
