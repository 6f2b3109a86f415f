//! Random values. Each random call of a session draws new numbers; a compiled program draws the same ones as an eager
//! session.

use super::{Record, Session, Var, lent};
use dittograd_numerics::environment::{self, single};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::random::{Bernoulli, BernoulliMask, Normal, Permutation, RandInt, Uniform, UniformRange};
use dittograd_ops::{AnyOp, Recorder, Val};

impl Session {
    /// Uniform draws in `[0, 1)`.
    #[doc(alias = "rand")]
    #[track_caller]
    pub fn uniform(&self, dims: &[usize]) -> Result<Var<'_>> {
        let shape = Shape::new(dims)?;
        self.random(&[], |seed, counter| Uniform { shape, seed, counter }.into())
    }

    /// Uniform draws in `[lo, hi)`, up to rounding.
    #[track_caller]
    pub fn uniform_range(&self, dims: &[usize], lo: f64, hi: f64) -> Result<Var<'_>> {
        let (shape, lo, hi) = (Shape::new(dims)?, single(lo), single(hi));
        self.random(&[], |seed, counter| UniformRange { shape, seed, counter, lo, hi }.into())
    }

    /// Normal draws.
    #[doc(alias = "randn")]
    #[track_caller]
    pub fn normal(&self, dims: &[usize], mean: f64, std: f64) -> Result<Var<'_>> {
        if std < 0.0 {
            return Err(Error::argument("normal", "std", format!("got {std}, which is below 0")));
        }
        let (shape, mean, std) = (Shape::new(dims)?, single(mean), single(std));
        self.random(&[], |seed, counter| Normal { shape, seed, counter, mean, std }.into())
    }

    /// A mask of ones with probability `keep` and zeros otherwise. Values outside of 0 to 1 count as the nearer end, NaN
    /// as 0, as in [`Session::bernoulli_mask`].
    #[track_caller]
    pub fn bernoulli(&self, dims: &[usize], keep: f64) -> Result<Var<'_>> {
        let (shape, keep) = (Shape::new(dims)?, single(keep));
        self.random(&[], |seed, counter| Bernoulli { shape, seed, counter, keep }.into())
    }

    /// [`Session::bernoulli`] with a probability `keep` that is a value of one element, with the same draws. No gradient
    /// flows into the probability.
    #[track_caller]
    pub fn bernoulli_mask<'s>(&'s self, dims: &[usize], keep: Var<'s>) -> Result<Var<'s>> {
        let shape = Shape::new(dims)?;
        self.random(&[keep], |seed, counter| BernoulliMask { shape, seed, counter }.into())
    }

    /// Random indices below `below`.
    #[track_caller]
    pub fn randint(&self, dims: &[usize], below: u32) -> Result<Var<'_>> {
        self.randint_range(dims, 0, below)
    }

    /// Random indices from `low` to below `high`.
    #[doc(alias = "randint")]
    #[track_caller]
    pub fn randint_range(&self, dims: &[usize], low: u32, high: u32) -> Result<Var<'_>> {
        let shape = Shape::new(dims)?;
        self.random(&[], |seed, counter| RandInt { shape, seed, counter, low, below: high }.into())
    }

    /// A random permutation of the indices below `n`.
    #[doc(alias = "randperm")]
    #[track_caller]
    pub fn permutation(&self, n: usize) -> Result<Var<'_>> {
        self.random(&[], |seed, counter| Permutation { n, seed, counter }.into())
    }

    #[track_caller]
    fn random(&self, ins: &[Var<'_>], op: impl FnOnce(u64, u64) -> AnyOp) -> Result<Var<'_>> {
        let mut ids: Vec<usize> = ins.iter().map(|v| self.check("random", *v)).collect::<Result<_>>()?;
        let id = {
            let mut state = self.state.borrow_mut();
            let op = op(state.seed, state.random_calls);
            let id = match &mut state.record {
                Record::Eager(tape) => tape.record(op, &ids)?,
                Record::Trace(graph) => {
                    ids.push(graph.random_base().0 as usize);
                    let vals: Vec<Val> = ids.iter().map(|&i| Val(i as u32)).collect();
                    graph.record(op, &vals)?.0 as usize
                }
                Record::Lent => return Err(lent(op.name())),
            };
            // The count may come from outside; kernels wrap too.
            state.random_calls = state.random_calls.wrapping_add(1);
            id
        };
        Ok(self.var(id))
    }
}

/// The probability of staying, if elements are dropped with probability `p`.
#[track_caller]
pub(super) fn kept(op: &'static str, p: f64) -> Result<f64> {
    match (0.0..=1.0).contains(&p) {
        true => Ok(1.0 - p),
        false => Err(Error::argument(op, "p", format!("got {p}, use 0 to 1"))),
    }
}

/// # Random values by elements
///
/// No gradient flows through any of them.
impl<'s> Var<'s> {
    /// 1 with the probability that the element is, and 0 otherwise. Values outside of 0 to 1 count as the nearer end, NaN as 0.
    #[track_caller]
    pub fn bernoulli(self) -> Result<Var<'s>> {
        self.session.uniform(self.shape()?.dims())?.lt(self.detach()?)
    }

    /// Normal draws, each with its own mean, this value, and its own standard deviation. Both broadcast. A deviation below 0 counts
    /// as its magnitude.
    #[track_caller]
    pub fn normal(self, std: Var<'s>) -> Result<Var<'s>> {
        let shape = self.shape()?.broadcast(&std.shape()?)?;
        self.session.normal(shape.dims(), 0.0, 1.0)?.mul(std.detach()?)?.add(self.detach()?)
    }

    /// `count` indices of the last axis, drawn with probabilities proportional to its elements, which must not be negative. Without
    /// `replacement` the indices of a row are different, and elements of 0 come after all others.
    #[track_caller]
    pub fn multinomial(self, count: usize, replacement: bool) -> Result<Var<'s>> {
        let (p, shape) = (self.detach()?, self.shape()?);
        let Some((&kinds, lead)) = shape.dims().split_last().filter(|(kinds, _)| **kinds > 0) else {
            let why = format!("{shape} has nothing to draw along its last axis");
            return Err(Error::argument("multinomial", "value", why));
        };
        if !replacement && count > kinds {
            let why = format!("is {count}, there are {kinds} to draw; draw fewer, or with replacement");
            return Err(Error::argument("multinomial", "count", why));
        }
        if replacement {
            let sums = p.cumsum(-1)?;
            let draws = self.session.uniform(&[lead, &[count]].concat())?;
            return sums.searchsorted(draws.mul(sums.narrow(-1, kinds - 1, 1)?)?, true);
        }
        // Of exponential variables with these rates, the smallest come first.
        let times = self.session.uniform(shape.dims())?.neg()?.log1p()?.neg()?.div(p)?;
        Ok(times.topk(count, -1, false)?.1)
    }
}

/// # Dropout
impl<'s> Var<'s> {
    /// Keeps each element with probability `1 - p`, scaled by `1 / (1 - p)`; the others become 0. With `p` 1 all become 0, without a draw.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.ones(&[1000])?;
    /// let y = x.dropout(0.25)?.value::<f32>()?;
    /// assert!(y.data().iter().all(|y| [0.0, 4.0 / 3.0].contains(y)));
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn dropout(self, p: f64) -> Result<Var<'s>> {
        let _strict = environment::enter();
        let keep = kept("dropout", p)?;
        if keep == 0.0 {
            return self.all_dropped();
        }
        let calls = self.session.random_calls();
        let mask = self.session.bernoulli(self.shape()?.dims(), keep)?;
        // After an error, undo the count, so that a second try draws the same numbers.
        let undone = |e| {
            self.session.seek_random(calls);
            e
        };
        self.mul(mask).and_then(|kept| kept.scale(1.0 / keep)).map_err(undone)
    }

    /// Zeros that depend on this value with a gradient of zero, whatever its elements are.
    #[track_caller]
    pub(super) fn all_dropped(self) -> Result<Var<'s>> {
        let zero = self.session.scalar(0.0)?;
        zero.where_(self, zero)
    }
}
