//@ build
//~ attention: 6 heads of queries do not divide evenly among 4 heads of keys
use dittograd::prelude::{AttentionOptions, Result};
use dittograd::typed::{Rank4, Typed};

pub fn attend<'s>(
    queries: Typed<'s, Rank4<2, 6, 10, 16>>,
    keys: Typed<'s, Rank4<2, 4, 12, 16>>,
    options: AttentionOptions<'s>,
) -> Result<Typed<'s, Rank4<2, 6, 10, 16>>> {
    queries.attention(keys, keys, options)
}
