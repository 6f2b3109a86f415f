//@ check
//~ expected `3`, found `5`
use dittograd::torchlean::TypedBatchnormChannelFirst;
use dittograd::typed::{Rank3, Typed, Vector};

fn norm<'s>(x: Typed<'s, Rank3<3, 6, 5>>, w: Vector<'s, 5>) {
    let _ = x.batchnorm_channel_first(w, w);
}
