//! Normalisation of values.

use super::Var;
use dittograd_numerics::environment::{self, single};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_ops::layout::{self, Slice};
use dittograd_ops::norm::channel::{BatchNorm, GroupNorm, Moments, normalized_program};
use dittograd_ops::norm::{LayerNorm, RmsNorm, check_eps, inverse_std_program};
use dittograd_ops::pointwise::map::Map;

/// The inputs of a norm: the value, then gain and shift if given. A shift alone has a gain of ones.
#[track_caller]
fn inputs<'s>(x: Var<'s>, weight: Option<Var<'s>>, bias: Option<Var<'s>>) -> Result<Vec<Var<'s>>> {
    let weight = match (weight, bias) {
        (None, Some(bias)) => Some(bias.ones_like()?),
        (weight, _) => weight,
    };
    Ok([Some(x), weight, bias].into_iter().flatten().collect())
}

/// # Normalization
impl<'s> Var<'s> {
    /// Layer norm: `(x - mean) / sqrt(var + eps) * weight + bias`, with mean and biased variance over the last `axes`
    /// axes. PyTorch's default eps is 1e-5.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.layer_norm(1, None, None, 1e-5)?.to_string(), "[[-1.2247  0.      1.2247]\n [-1.2247  0.      1.2247]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn layer_norm(
        self,
        axes: usize,
        weight: Option<Var<'s>>,
        bias: Option<Var<'s>>,
        eps: f64,
    ) -> Result<Var<'s>> {
        let ins = inputs(self, weight, bias)?;
        self.session().apply(LayerNorm { axes, eps: single(eps) }, &ins)
    }

    /// RMS norm: `x / sqrt(mean(x^2) + eps) * weight`, with the mean over the last `axes` axes. An eps of 1e-6 is
    /// usual; PyTorch's default is the distance from 1 to the next float32, 1.1920929e-7.
    #[track_caller]
    pub fn rms_norm(self, axes: usize, weight: Option<Var<'s>>, eps: f64) -> Result<Var<'s>> {
        let ins = inputs(self, weight, None)?;
        self.session().apply(RmsNorm { axes, eps: single(eps) }, &ins)
    }

    /// Batch norm of `(N, C, …)` in training: mean and biased variance per channel, over all samples and positions.
    /// [`Var::moments`] gives these for running statistics. PyTorch's default eps is 1e-5.
    #[track_caller]
    pub fn batch_norm(self, weight: Option<Var<'s>>, bias: Option<Var<'s>>, eps: f64) -> Result<Var<'s>> {
        let ins = inputs(self, weight, bias)?;
        self.session().apply(BatchNorm { eps: single(eps) }, &ins)
    }

    /// Batch norm of `(N, C, …)` in evaluation, with given mean and variance per channel.
    #[track_caller]
    pub fn batch_norm_eval(
        self,
        mean: Var<'s>,
        var: Var<'s>,
        weight: Option<Var<'s>>,
        bias: Option<Var<'s>>,
        eps: f64,
    ) -> Result<Var<'s>> {
        let _strict = environment::enter();
        let shape = self.shape()?;
        if shape.rank() < 2 {
            let kind = ErrorKind::Rank { want: "at least 2: (N, C, …)", got: shape };
            return Err(Error::new("batch_norm_eval", kind));
        }
        check_eps("batch_norm_eval", single(eps))?;
        let per_channel = Moments::per_channel(&shape)?;
        let column = |v: Var<'s>| v.reshape(per_channel.dims());
        let r =
            self.session().apply(Map::new(inverse_std_program(single(eps)), per_channel), &[column(var)?])?;
        let mut ins = vec![self, column(mean)?, r];
        for v in &inputs(self, weight, bias)?[1..] {
            ins.push(column(*v)?);
        }
        self.session().apply(Map::new(normalized_program(ins.len()), shape), &ins)
    }

    /// Mean and biased variance per channel of `(N, C, …)`, over all samples and positions. No gradient flows through
    /// them.
    #[track_caller]
    pub fn moments(self) -> Result<(Var<'s>, Var<'s>)> {
        let shape = self.shape()?;
        let packed = self.session().apply(Moments, &[self])?;
        let parts = Moments::parts(&shape);
        let (starts, _) = layout::packed(&parts);
        let part = |i: usize| {
            let slice = Slice { axis: 0, start: starts[i], len: parts[i].numel(), step: 1 };
            self.session().apply(slice, &[packed])
        };
        Ok((part(0)?, part(1)?))
    }

    /// Group norm of `(N, C, …)`: mean and biased variance per group, where a sample's channels form `groups` equal
    /// groups. PyTorch's default eps is 1e-5.
    #[track_caller]
    pub fn group_norm(
        self,
        groups: usize,
        weight: Option<Var<'s>>,
        bias: Option<Var<'s>>,
        eps: f64,
    ) -> Result<Var<'s>> {
        let ins = inputs(self, weight, bias)?;
        self.session().apply(GroupNorm { groups, eps: single(eps) }, &ins)
    }

    /// Instance norm of `(N, C, …)`: group norm with one group per channel. PyTorch's default eps is 1e-5.
    #[track_caller]
    pub fn instance_norm(self, weight: Option<Var<'s>>, bias: Option<Var<'s>>, eps: f64) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let channels = shape.dims().get(1).copied().unwrap_or(1);
        self.group_norm(channels, weight, bias, eps)
    }
}
