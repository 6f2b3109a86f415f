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
        let shape = Shape::new(dims)?;
        self.random(&[], |seed, counter| RandInt { shape, seed, counter, below }.into())
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

/// # Dropout
impl<'s> Var<'s> {
    /// Keeps each element with probability `1 - p`, scaled by `1 / (1 - p)`; the others become 0.
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
        let keep = 1.0 - p;
        if !(keep > 0.0 && keep <= 1.0) {
            return Err(Error::argument("dropout", "p", format!("got {p}, use at least 0 and below 1")));
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
}
