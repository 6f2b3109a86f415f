//! Losses. The reduction decides the shape of the result.

use super::{Dim, Dims, EndsIn, Scalar, Typed};
use crate::error::Result;
use crate::ops::loss::Reduction;
use crate::session::{LabelLoss, Var};

/// How losses of shape `S` are combined, as an argument: [`ToMean`], [`ToSum`] or [`Each`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what becomes of losses",
    note = "use `ToMean`, `ToSum`, or `Each` for all of them as they are"
)]
pub trait ReduceTo<S> {
    /// The resulting shape.
    type Output: Dims;
    /// The untyped reduction.
    const REDUCTION: Reduction;
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident $reduction:ident $out:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl<S: Dims> ReduceTo<S> for $name {
            type Output = $out;
            const REDUCTION: Reduction = Reduction::$reduction;
        }
    )*};
}

reductions! {
    /// The mean of all losses.
    ToMean Mean ();
    /// The sum of all losses.
    ToSum Sum ();
    /// No reduction: one loss per element.
    Each None S;
}

macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*);)*) => {
        /// Losses against a target of the same shape.
        impl<'s, S: Dims> Typed<'s, S> {$(
            $(#[$doc])*
            #[doc = concat!("\n\nSee [`Var::", stringify!($name), "`].")]
            #[track_caller]
            pub fn $name<R: ReduceTo<S>>(
                self,
                target: Typed<'s, S>
                $(, $arg: f64)*,
                _: R,
            ) -> Result<Typed<'s, R::Output>> {
                Ok(Typed::trust(self.var.$name(target.var $(, $arg)*, R::REDUCTION)?))
            }
        )*}
    };
}

losses! {
    /// Squared error.
    mse_loss();
    /// Absolute error.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Each, Matrix, Scalar, ToMean};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let mean: Scalar = x.l1_loss(x, ToMean)?;
    /// let each: Matrix<3, 4> = x.l1_loss(x, Each)?;
    /// # Ok(())
    /// # }
    /// ```
    l1_loss();
    /// Half the squared error up to `delta`, linear from there on.
    huber_loss(delta);
    /// Huber loss divided by its bound `beta`.
    smooth_l1_loss(beta);
    /// Binary cross-entropy of probabilities against targets from 0 to 1.
    bce();
    /// Binary cross-entropy of logits against targets from 0 to 1.
    bce_with_logits();
    /// Divergence of log-probabilities from target probabilities.
    kl_div();
}

/// Further losses.
impl<'s, S: Dims> Typed<'s, S> {
    /// Mean squared error against a target.
    #[track_caller]
    pub fn mse(self, target: Typed<'s, S>) -> Result<Scalar<'s>> {
        self.mse_loss(target, ToMean)
    }

    /// Mean cross-entropy of logits against a label for each row.
    #[track_caller]
    pub fn cross_entropy<C: Dim>(self, labels: Typed<'s, S::Lead, u32>) -> Result<Scalar<'s>>
    where
        S: EndsIn<C>,
    {
        Ok(Typed::trust(self.var.cross_entropy(labels.var)?))
    }

    /// Mean of `-x[label]` over the rows of log-probabilities whose label is not `ignore`.
    #[track_caller]
    pub fn nll<C: Dim>(self, labels: Typed<'s, S::Lead, u32>, ignore: Option<u32>) -> Result<Scalar<'s>>
    where
        S: EndsIn<C>,
    {
        Ok(Typed::trust(self.var.nll(labels.var, ignore)?))
    }

    /// Cross-entropy of logits with class weights, an ignored label and label smoothing: [`Var::cross_entropy_loss`].
    #[track_caller]
    pub fn cross_entropy_loss<C: Dim, R: ReduceTo<S::Lead>>(
        self,
        labels: Typed<'s, S::Lead, u32>,
        weight: Option<Typed<'s, (C,)>>,
        ignore: Option<u32>,
        label_smoothing: f64,
        _: R,
    ) -> Result<Typed<'s, R::Output>>
    where
        S: EndsIn<C>,
    {
        let weight = weight.map(Var::from);
        let options = LabelLoss { weight, ignore, label_smoothing, reduction: R::REDUCTION, axis: None };
        Ok(Typed::trust(self.var.cross_entropy_loss(labels.var, options)?))
    }

    /// Negative log-likelihood of log-probabilities with class weights and an ignored label: [`Var::nll_loss`].
    #[track_caller]
    pub fn nll_loss<C: Dim, R: ReduceTo<S::Lead>>(
        self,
        labels: Typed<'s, S::Lead, u32>,
        weight: Option<Typed<'s, (C,)>>,
        ignore: Option<u32>,
        _: R,
    ) -> Result<Typed<'s, R::Output>>
    where
        S: EndsIn<C>,
    {
        let options = LabelLoss {
            weight: weight.map(Var::from),
            ignore,
            reduction: R::REDUCTION,
            ..Default::default()
        };
        Ok(Typed::trust(self.var.nll_loss(labels.var, options)?))
    }
}
