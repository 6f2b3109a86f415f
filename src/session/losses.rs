//! Losses.

use super::Var;
use crate::error::Result;
use crate::ops::loss::{Bce, BceWithLogits, CrossEntropy, Huber, KlDiv, L1, Mse, Nll, Reduction, SmoothL1};

impl<'s> Var<'s> {
    /// Mean cross-entropy of logits against labels.
    pub fn cross_entropy(self, labels: Var<'s>) -> Result<Var<'s>> {
        self.session().apply(CrossEntropy::default(), &[self, labels])
    }

    /// Mean cross-entropy of logits against labels, over the rows whose label is not `ignore`, against a target
    /// of which `label_smoothing` is spread over all classes.
    pub fn cross_entropy_with(
        self,
        labels: Var<'s>,
        ignore: Option<u32>,
        label_smoothing: f64,
    ) -> Result<Var<'s>> {
        self.session().apply(CrossEntropy { ignore, smoothing: label_smoothing as f32 }, &[self, labels])
    }

    /// Mean of `-x[label]` over the rows of log-probabilities whose label is not `ignore`.
    pub fn nll(self, labels: Var<'s>, ignore: Option<u32>) -> Result<Var<'s>> {
        self.session().apply(Nll { ignore }, &[self, labels])
    }

    /// Mean squared error against a target.
    pub fn mse(self, target: Var<'s>) -> Result<Var<'s>> {
        self.mse_loss(target, Reduction::Mean)
    }

    /// Squared error against a target.
    pub fn mse_loss(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(Mse { reduction }, &[self, target])
    }

    /// Absolute error against a target.
    pub fn l1_loss(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(L1 { reduction }, &[self, target])
    }

    /// Half the squared error up to `delta`, linear from there on.
    pub fn huber_loss(self, target: Var<'s>, delta: f64, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(Huber { delta: delta as f32, reduction }, &[self, target])
    }

    /// [`Var::huber_loss`] divided by its bound, here `beta`.
    pub fn smooth_l1_loss(self, target: Var<'s>, beta: f64, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(SmoothL1 { beta: beta as f32, reduction }, &[self, target])
    }

    /// Binary cross-entropy of probabilities against targets from 0 to 1.
    pub fn bce(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(Bce { reduction }, &[self, target])
    }

    /// Binary cross-entropy of logits against targets from 0 to 1.
    pub fn bce_with_logits(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(BceWithLogits { reduction }, &[self, target])
    }

    /// Divergence of log-probabilities from target probabilities. The mean is over all elements; for the mean
    /// over a batch take the sum and divide.
    pub fn kl_div(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(KlDiv { reduction }, &[self, target])
    }
}
