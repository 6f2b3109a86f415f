//! Sizes at the limits of what kernels can count, and the bounds of indices: shape rules alone, so that no memory is needed.
//! The largest size that is allowed is taken, and one more is refused.

use crate::support::f;
use dittograd::device::{DType, Meta};
use dittograd::error::ErrorKind;
use dittograd::ops::Op;
use dittograd::ops::attention::rope::rope_table;
use dittograd::ops::attention::{Attention, AttentionMask, SelfAttention};
use dittograd::ops::conv::{self, Conv, Sizes};
use dittograd::ops::index::{IndexAdd, TakeAlongAxis};
use dittograd::ops::layout::AxisMap;
use dittograd::ops::loss::{CrossEntropyBwd, NllBwd, Reduction};
use dittograd::ops::norm::LayerNorm;
use dittograd::ops::pointwise::expression::Pointwise;
use dittograd::ops::pointwise::map::Map;
use dittograd::ops::pool::{AdaptiveAvgPool, MaxPool, PoolWindow, SmoothMaxPoolBwd, SmoothMaxPoolSum};
use dittograd::ops::reduce::extremum::Argmax;
use dittograd::ops::softmax::MaskedSoftmax;
use dittograd::ops::spectral::fft::{Irfft, Rfft};
use dittograd::ops::spectral::{DftTable, SpectralConv1d};
use dittograd::prelude::*;
use dittograd::scalar::Real;
use dittograd::shape::MAX_RANK;
use std::fmt::Debug;

fn u(dims: &[usize]) -> Meta {
    Meta { dtype: DType::U32, ..f(dims) }
}

/// `rule` takes `most`, and refuses what is above with an error that has these words in it.
#[track_caller]
fn limit<T: Debug>(most: usize, says: &str, rule: impl Fn(usize) -> Result<T>) {
    if let Err(e) = rule(most) {
        panic!("{most} is refused: {e}");
    }
    refused(says, rule(most + 1));
}

#[track_caller]
fn refused<T: Debug>(says: &str, made: Result<T>) {
    let e = made.unwrap_err().to_string();
    assert!(e.contains(says), "{e:?} does not say {says:?}");
}

#[test]
fn attention_counts_rows_in_32_bits() {
    let op = Attention { causal: true, scale: None };
    let qkv = |n: usize, d: usize| op.shape(&[f(&[n, d]), f(&[n, d]), f(&[n, d])]);
    limit(256, "use more heads", |d| qkv(3, d));
    limit(1 << 30, "does not fit", |n| qkv(n, 1));
    let op = SelfAttention { causal: true, scale: None };
    // 858993459 rows of five lists are as many as 32 bits count; 3 times 256 times the heads may be 2^30.
    limit(5, "does not fit", |lists| op.shape(&[f(&[lists, 858_993_459, 3, 1, 1])]));
    limit((1 << 30) / 768, "does not fit", |heads| op.shape(&[f(&[1, 3, heads, 256])]));
}

#[test]
fn convolutions_count_places_in_31_bits() {
    let most = i32::MAX as usize - 4096;
    let made = |input: usize, kernel: usize, stride: usize, dilation: usize| {
        let sizes = |n: usize| Sizes::new(&[n]);
        let plain = conv::ConvWindow::plain(1)?;
        let window = conv::ConvWindow { stride: sizes(stride)?, dilation: sizes(dilation)?, ..plain };
        Conv { window }.shape(&[f(&[1, 1, input]), f(&[1, 1, kernel])])
    };
    limit(most, "too long", |n| made(n, 1, 1, 1));
    limit(most, "too long", |n| made(7, 1, n, 1));
    limit(most - 1, "too long", |n| made(most, 2, 1, n));
    let plain = Conv { window: conv::ConvWindow::plain(1).unwrap() };
    let e = plain.shape(&[f(&[1, 1, 4])]).unwrap_err();
    assert_eq!(*e.kind(), ErrorKind::Arity { want: 3, got: 1 });
}

#[test]
fn pooling_counts_places_in_31_bits() {
    let pooled = |dims: &[usize], stride: usize| {
        let window = PoolWindow::new(&vec![1; dims.len()], &vec![stride; dims.len()], &vec![0; dims.len()]);
        MaxPool { window }.shape(&[f(dims)])
    };
    limit((1 << 31) - 1, "do not fit", |n| pooled(&[n], 1));
    limit((1 << 31) - 1, "31 bits", |s| pooled(&[3], s));
    // One plane less than 32 bits count, and as many as they do.
    assert!(pooled(&[2, (1 << 31) - 1], 1).is_ok());
    refused("does not fit", pooled(&[65535, 65537], 1));
    limit((1 << 31) - 1, "endless", |n| AdaptiveAvgPool { sizes: vec![1] }.shape(&[f(&[n])]));
    for beta in [0.0, f32::NAN, f32::INFINITY] {
        let (window, three) = (PoolWindow::new(&[2], &[2], &[0]), [f(&[4]), f(&[2]), f(&[2])]);
        refused("beta", SmoothMaxPoolBwd { window: window.clone(), beta }.shape(&three));
        refused("beta", SmoothMaxPoolSum { window, beta }.shape(&[f(&[4]), f(&[2]), f(&[4])]));
    }
}

#[test]
fn transforms_have_a_longest_line() {
    let most = 1 << 24;
    limit(most, "points", |n| Rfft { scaled: true }.shape(&[f(&[n])]));
    limit(most, "points", |n| DftTable { n, low: 1, high: 0, complex: false }.shape(&[]));
    let conv = |n: usize| SpectralConv1d.shape(&[f(&[n, 2]), f(&[1, 2, 3]), f(&[1, 2, 3])]);
    limit(most, "points", conv);
    refused("points", conv(0));
    let wrong = Irfft { n: 8, scaled: true }.shape(&[f(&[4, 2])]);
    refused("[5, 2]", wrong);
}

#[test]
fn indices_are_counted_in_32_bits() {
    let most = u32::MAX as usize - 1;
    limit(most, "more elements than an index", |n| Argmax::new(&[0])?.shape(&[f(&[n])]));
    let add = IndexAdd { axis: 0, size: 4, checked: true };
    limit(most, "too many", |n| add.shape(&[f(&[n]), u(&[n])]));
}

/// Which input holds indices, and below what they must be; nothing where they were not to be looked at.
#[test]
fn every_index_has_its_bound() {
    for checked in [true, false] {
        let want = |i: usize, below: usize| checked.then_some((i, below));
        let add = IndexAdd { axis: 0, size: 4, checked };
        assert_eq!(add.index_limit(&[f(&[3, 2]), u(&[3])]), want(1, 4));
        let take = TakeAlongAxis { axis: 1, checked };
        assert_eq!(take.index_limit(&[f(&[3, 5]), u(&[3, 2])]), want(1, 5));
    }
    for ignore in [None, Some(7)] {
        let want = |below: usize| ignore.is_none().then_some((1, below));
        let op = CrossEntropyBwd { ignore, smoothing: 0.0, reduction: Reduction::Mean };
        assert_eq!(op.index_limit(&[f(&[3, 5]), u(&[3]), f(&[])]), want(5));
        assert_eq!(NllBwd { ignore, classes: 6 }.index_limit(&[f(&[]), u(&[3])]), want(6));
    }
    // Masks of indices hold zeros and ones.
    let qkv = [f(&[3, 2]); 3];
    let attention = Attention { causal: false, scale: None };
    let causal = AttentionMask { causal: true, n: 3, m: 3 };
    for (mask, want) in [(u(&[3, 3]), true), (f(&[3, 3]), false)] {
        let bound = |i: usize| want.then_some((i, 2));
        assert_eq!(attention.index_limit(&[qkv[0], qkv[1], qkv[2], mask]), bound(3));
        assert_eq!(causal.index_limit(&[mask]), bound(0));
        assert_eq!(MaskedSoftmax.index_limit(&[f(&[3, 3]), mask]), bound(1));
    }
}

#[test]
fn axes_and_inputs_are_counted() {
    let axes = |n: usize| vec![None; n];
    limit(MAX_RANK, "beyond", |n| AxisMap::new(&axes(n)));
    limit(MAX_RANK - 1, "beyond", |a| AxisMap::new(&[Some(a)]));
    refused("named twice", Argmax::new(&[0, 1, 0]));
    let norm = LayerNorm { axes: 1, eps: 1e-5 };
    for (given, want) in [(0, 1), (4, 3)] {
        let e = norm.shape(&vec![f(&[4]); given]).unwrap_err();
        assert_eq!(*e.kind(), ErrorKind::Arity { want, got: given });
    }
    // Several results lie behind each other, each at an aligned place.
    let two = Pointwise::trace(1, |x| vec![x[0], x[0].exp()]);
    refused("multiple of 4", Map::new(two, Shape::new(&[5]).unwrap()).shape(&[f(&[5])]));
    for base in [0.0, -1.0, f64::INFINITY] {
        refused("base", rope_table(2, 4, base, 0));
    }
}
