//! Losses.

use super::Var;
use dittograd_device::DType;
use dittograd_numerics::environment::{single, strict};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Real;
use dittograd_ops::Op;
use dittograd_ops::index::{IndexSelect, TakeAlongAxis};
use dittograd_ops::loss::{
    Bce, BceWithLogits, CrossEntropy, Huber, KlDiv, L1, LabelWeights, Mse, Nll, Reduction, SmoothL1,
};
use dittograd_ops::pointwise::expression::{Expr, Pointwise};
use dittograd_ops::pointwise::map::Map;

/// What weights of losses must be.
const WEIGHTS: &str = "the weights must have the shape of the losses";

/// How losses of labels are weighted and combined.
#[derive(Clone, Copy, Debug, Default)]
pub struct LabelLoss<'s> {
    /// A weight per class, `(C)`; by default all 1.
    pub weight: Option<Var<'s>>,
    /// Label of rows that do not count: their loss is 0.
    pub ignore: Option<u32>,
    /// Label smoothing: the part of the target spread over all classes, from 0 to 1.
    pub label_smoothing: f64,
    /// How the losses of the rows are combined.
    pub reduction: Reduction,
    /// The axis of the classes; by default the last. In PyTorch it is axis 1: of images `(N, C, H, W)` with labels
    /// `(N, H, W)`, set `Some(1)`.
    pub axis: Option<usize>,
}

/// The weights of rows.
struct RowCounts<'s> {
    /// The weight of the row's label; 0 if the label is ignored.
    weights: Var<'s>,
    /// 1, or 0 for an ignored label; present only if labels can be ignored.
    mask: Option<Var<'s>>,
}

impl<'s> RowCounts<'s> {
    #[track_caller]
    fn new(
        op: &str,
        x: Var<'s>,
        labels: Var<'s>,
        weight: Var<'s>,
        ignore: Option<u32>,
    ) -> Result<RowCounts<'s>> {
        let (shape, session) = (weight.shape()?, x.session());
        let classes = x.shape()?.last();
        if shape.dims() != [classes] {
            let why = "there must be one weight for each class";
            return Err(Error::new(op, ErrorKind::Shapes { why, left: x.shape()?, right: shape }));
        }
        let select = IndexSelect { axis: 0, checked: ignore.is_none() };
        let weights = session.apply(select, &[weight, labels])?;
        if ignore.is_none() {
            return Ok(RowCounts { weights, mask: None });
        }
        let mask = session.apply(LabelWeights { ignore, classes, mean: false }, &[labels])?;
        Ok(RowCounts { weights: weights.mul(mask)?, mask: Some(mask) })
    }

    #[track_caller]
    fn reduced(self, losses: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        match reduction {
            Reduction::None => Ok(losses),
            Reduction::Sum => losses.sum(),
            Reduction::Mean => {
                let total = self.weights.sum()?;
                let nothing = total.eq(total.session().scalar(0.0)?)?;
                losses.sum()?.div(total.add(nothing)?)
            }
        }
    }
}

/// # Losses
impl<'s> Var<'s> {
    /// Mean cross-entropy of logits `(…, C)` against labels `(…)`, or against class probabilities `(…, C)`.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let logits = session.variable(&Tensor::new(&[2, 2], vec![0.0f32, 0.0, 0.0, 0.0])?)?;
    /// let labels = session.labels(&Tensor::new(&[2], vec![0, 1])?)?;
    /// assert_eq!(logits.cross_entropy(labels)?.item()?, std::f32::consts::LN_2);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn cross_entropy(self, labels: Var<'s>) -> Result<Var<'s>> {
        if labels.meta()?.dtype == DType::F32 && labels.shape()? == self.shape()? {
            return self.cross_entropy_loss(labels, LabelLoss::default());
        }
        self.session().apply(CrossEntropy::default(), &[self, labels])
    }

    /// Mean cross-entropy of logits against labels, over the rows whose label is not `ignore`, with label smoothing.
    #[track_caller]
    pub fn cross_entropy_with(
        self,
        labels: Var<'s>,
        ignore: Option<u32>,
        label_smoothing: f64,
    ) -> Result<Var<'s>> {
        self.cross_entropy_loss(labels, LabelLoss { ignore, label_smoothing, ..LabelLoss::default() })
    }

    /// Cross-entropy of logits `(…, C)` against labels `(…)`, or against class probabilities `(…, C)`. The loss of a row is `w[label] · -ln p[label]`; with label
    /// smoothing `e` it is `(1 - e) w[label] · -ln p[label] + e/C Σ_c w[c] · -ln p[c]`. A weighted mean is the sum of the
    /// losses divided by the sum of `w[label]` over the rows that count; 0 if that is 0.
    ///
    /// With probabilities `q` the loss of a row is `Σ_c w[c] q[c] · -ln p[c]`, where smoothing makes them
    /// `(1 - e) q[c] + e/C`. The mean is over all rows, and no row can be ignored.
    #[track_caller]
    pub fn cross_entropy_loss(self, labels: Var<'s>, options: LabelLoss<'s>) -> Result<Var<'s>> {
        if labels.meta()?.dtype == DType::F32 && labels.shape()? == self.shape()? {
            return self.cross_entropy_of_probabilities(labels, options);
        }
        if let Some(axis) = options.axis {
            let options = LabelLoss { axis: None, ..options };
            return self.classes_last("cross_entropy", axis)?.cross_entropy_loss(labels, options);
        }
        let LabelLoss { weight, ignore, label_smoothing, reduction, axis: _ } = options;
        let op = CrossEntropy { ignore, smoothing: single(label_smoothing), reduction };
        let Some(weight) = weight else { return self.session().apply(op, &[self, labels]) };
        // The op's checks of values and smoothing come first.
        let plain = CrossEntropy { smoothing: 0.0, reduction: Reduction::None, ..op };
        op.shape(&[self.meta()?, labels.meta()?])?;
        let rows = self.session().apply(plain, &[self, labels])?;
        let counts = RowCounts::new("cross_entropy", self, labels, weight, ignore)?;
        let mut losses = rows.mul(counts.weights)?;
        if label_smoothing > 0.0 {
            let shape = self.shape()?;
            let (lead, classes) = (labels.shape()?, shape.last());
            // Rows that do not count may hold anything, so mask them.
            let x = match counts.mask {
                Some(mask) => mask.unsqueeze(lead.rank())?.where_(self, self.session().scalar(0.0)?)?,
                None => self,
            };
            let logs = x.log_softmax()?.reshape(&[lead.numel(), classes])?;
            let spread = logs.matmul(weight.reshape(&[classes, 1])?)?.reshape(lead.dims())?;
            let spread = match counts.mask {
                Some(mask) => spread.mul(mask)?,
                None => spread,
            };
            let e = f64::from(single(label_smoothing));
            let (rest, share) = strict(|| (1.0 - e, -e / classes as f64));
            losses = losses.scale(rest)?.axpy(share, spread)?;
        }
        counts.reduced(losses, reduction)
    }

    /// [`Var::cross_entropy_loss`] of a linear layer of rows `(…, features)`: the logits are `x wᵀ`, plus the bias `(C, …)`. The weight is
    /// `(C, …, features)`; axes after the classes are axes of the labels too, and then `options.axis` names that of the classes.
    #[track_caller]
    pub fn linear_cross_entropy(
        self,
        weight: Var<'s>,
        bias: Option<Var<'s>>,
        labels: Var<'s>,
        options: LabelLoss<'s>,
    ) -> Result<Var<'s>> {
        const NAME: &str = "linear_cross_entropy";
        let (x, of) = (self.shape()?, weight.shape()?);
        let (Some((features, outs)), Some((last, rows))) = (of.dims().split_last(), x.dims().split_last())
        else {
            let got = if of.rank() == 0 { of } else { x };
            return Err(Error::new(NAME, ErrorKind::Rank { want: "at least 1", got }));
        };
        if features != last {
            let why = "rows and weights must have one number of features";
            return Err(Error::new(NAME, ErrorKind::Shapes { why, left: x, right: of }));
        }
        let mut logits =
            self.matmul_with(weight.reshape(&[outs.iter().product(), *features])?, false, true)?;
        if let Some(bias) = bias {
            if bias.shape()?.dims() != outs {
                let why = "the bias must have the shape of the weight without the features";
                return Err(Error::new(NAME, ErrorKind::Shapes { why, left: of, right: bias.shape()? }));
            }
            logits = logits.add(bias.flatten()?)?;
        }
        logits.reshape(&[rows, outs].concat())?.cross_entropy_loss(labels, options)
    }

    /// The axis of the classes as the last one.
    #[track_caller]
    fn classes_last(self, op: &str, axis: usize) -> Result<Var<'s>> {
        let shape = self.shape()?;
        match shape.rank() {
            rank if axis + 1 == rank => Ok(self),
            rank if axis < rank => self.movedim(axis, rank - 1),
            _ => Err(Error::new(op, ErrorKind::Axis { axis, shape })),
        }
    }

    /// [`Var::cross_entropy_loss`] of probabilities of this shape.
    #[track_caller]
    fn cross_entropy_of_probabilities(self, target: Var<'s>, options: LabelLoss<'s>) -> Result<Var<'s>> {
        const NAME: &str = "cross_entropy";
        let LabelLoss { weight, ignore, label_smoothing, reduction, axis } = options;
        let shape = self.shape()?;
        if ignore.is_some() {
            let why = "rows of probabilities have no label to ignore; use None";
            return Err(Error::argument(NAME, "ignore", why));
        }
        if !(0.0..=1.0).contains(&label_smoothing) {
            let why = format!("got {label_smoothing}, use 0 to 1");
            return Err(Error::argument(NAME, "label_smoothing", why));
        }
        let Some(last) = shape.rank().checked_sub(1) else {
            return Err(Error::new(NAME, ErrorKind::Rank { want: "at least 1", got: shape }));
        };
        let axis = axis.unwrap_or(last);
        let classes = match shape.dims().get(axis) {
            Some(&classes) if classes > 0 => classes,
            Some(_) => {
                let why = format!("axis {axis} of {shape} is empty, use at least 1 class");
                return Err(Error::argument(NAME, "x", why));
            }
            None => return Err(Error::new(NAME, ErrorKind::Axis { axis, shape })),
        };
        let logs = self.log_softmax_axis(axis)?;
        let e = f64::from(single(label_smoothing));
        let (rest, share) = strict(|| (1.0 - e, e / classes as f64));
        let mut ins = vec![target];
        if let Some(weight) = weight {
            if weight.shape()?.dims() != [classes] {
                let why = "there must be one weight for each class";
                return Err(Error::new(NAME, ErrorKind::Shapes { why, left: shape, right: weight.shape()? }));
            }
            let mut dims = vec![1; shape.rank() - axis];
            dims[0] = classes;
            ins.push(weight.reshape(&dims)?);
        }
        // A class of probability 0 costs nothing, whatever its logarithm.
        let parts = logs.formula_of(NAME, &ins, |v| {
            let q = if e > 0.0 { v[1].fma(Expr::c(rest), Expr::c(share)) } else { v[1] };
            let q = if v.len() > 2 { q * v[2] } else { q };
            Expr::where_eq(q, Expr::c(0.0), Expr::c(0.0), -(q * v[0]))
        })?;
        parts.sum_axes(&[axis])?.reduced(reduction)
    }

    /// Mean of `-x[label]` over the rows of log-probabilities whose label is not `ignore`.
    #[track_caller]
    pub fn nll(self, labels: Var<'s>, ignore: Option<u32>) -> Result<Var<'s>> {
        self.session().apply(Nll { ignore }, &[self, labels])
    }

    /// Losses `-w[label] · x[label]` of rows of log-probabilities `(…, C)` against labels `(…)`, with the options of
    /// [`Var::cross_entropy_loss`]. There is no label smoothing.
    #[track_caller]
    pub fn nll_loss(self, labels: Var<'s>, options: LabelLoss<'s>) -> Result<Var<'s>> {
        if let Some(axis) = options.axis {
            let options = LabelLoss { axis: None, ..options };
            return self.classes_last("nll_loss", axis)?.nll_loss(labels, options);
        }
        let LabelLoss { weight, ignore, label_smoothing, reduction, axis: _ } = options;
        if label_smoothing != 0.0 {
            let why = format!("got {label_smoothing}, but only cross_entropy_loss has it");
            return Err(Error::argument("nll_loss", "label_smoothing", why));
        }
        let plain = Nll { ignore };
        if weight.is_none() && reduction == Reduction::Mean {
            return self.session().apply(plain, &[self, labels]);
        }
        plain.shape(&[self.meta()?, labels.meta()?])?;
        let last = labels.shape()?.rank();
        let take = TakeAlongAxis { axis: last, checked: ignore.is_none() };
        let picked = self.session().apply(take, &[self, labels.unsqueeze(last)?])?.squeeze(last)?.neg()?;
        let one = self.session().full(&[self.shape()?.last()], 1.0)?;
        let counts = RowCounts::new("nll_loss", self, labels, weight.unwrap_or(one), ignore)?;
        let weighed = picked.mul(counts.weights)?;
        let losses = match counts.mask {
            Some(mask) => mask.where_(weighed, self.session().scalar(0.0)?)?,
            None => weighed,
        };
        counts.reduced(losses, reduction)
    }

    /// Mean squared error against a target.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.mse((x + 2.0)?)?.item()?, 4.0);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn mse(self, target: Var<'s>) -> Result<Var<'s>> {
        self.mse_loss(target, Reduction::Mean)
    }

    /// Squared error against a target.
    #[track_caller]
    pub fn mse_loss(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(Mse { reduction }, &[self, target])
    }

    /// Absolute error against a target.
    #[track_caller]
    pub fn l1_loss(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(L1 { reduction }, &[self, target])
    }

    /// [`Var::mse_loss`] times weights of the losses' shape. The mean is the sum divided by the sum of the weights.
    #[track_caller]
    pub fn mse_loss_weighted(
        self,
        target: Var<'s>,
        weight: Var<'s>,
        reduction: Reduction,
    ) -> Result<Var<'s>> {
        self.mse_loss(target, Reduction::None)?.weighted_mean("mse_loss_weighted", weight, reduction)
    }

    /// [`Var::l1_loss`] times weights of the losses' shape. The mean is the sum divided by the sum of the weights.
    #[track_caller]
    pub fn l1_loss_weighted(self, target: Var<'s>, weight: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.l1_loss(target, Reduction::None)?.weighted_mean("l1_loss_weighted", weight, reduction)
    }

    /// [`Var::huber_loss`] times weights of the losses' shape. The mean is over the elements.
    #[track_caller]
    pub fn huber_loss_weighted(
        self,
        target: Var<'s>,
        weight: Var<'s>,
        delta: f64,
        reduction: Reduction,
    ) -> Result<Var<'s>> {
        let losses = self.huber_loss(target, delta, Reduction::None)?;
        losses.same_shape("huber_loss_weighted", weight, WEIGHTS)?;
        losses.mul(weight)?.reduced(reduction)
    }

    /// These losses times weights, whose mean is divided by the sum of the weights.
    #[track_caller]
    fn weighted_mean(self, op: &str, weight: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.same_shape(op, weight, WEIGHTS)?;
        let losses = self.mul(weight)?;
        match reduction {
            Reduction::Mean => losses.sum()?.div(weight.sum()?),
            Reduction::Sum | Reduction::None => losses.reduced(reduction),
        }
    }

    /// Huber loss: half the squared error up to `delta`, linear from there on.
    #[track_caller]
    pub fn huber_loss(self, target: Var<'s>, delta: f64, reduction: Reduction) -> Result<Var<'s>> {
        if !(delta > 0.0 && single(delta).is_finite()) {
            return Err(Error::argument("huber_loss", "delta", format!("got {delta}, use a number above 0")));
        }
        self.session().apply(Huber { delta: single(delta), reduction }, &[self, target])
    }

    /// [`Var::huber_loss`] with `delta = beta`, divided by `beta`.
    #[track_caller]
    pub fn smooth_l1_loss(self, target: Var<'s>, beta: f64, reduction: Reduction) -> Result<Var<'s>> {
        if !(beta > 0.0 && single(beta).is_finite()) {
            return Err(Error::argument(
                "smooth_l1_loss",
                "beta",
                format!("got {beta}, use a number above 0"),
            ));
        }
        self.session().apply(SmoothL1 { beta: single(beta), reduction }, &[self, target])
    }

    /// Binary cross-entropy of probabilities against targets from 0 to 1.
    #[doc(alias = "binary_cross_entropy")]
    #[track_caller]
    pub fn bce(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(Bce { reduction }, &[self, target])
    }

    /// Binary cross-entropy of logits against targets from 0 to 1.
    #[doc(alias = "binary_cross_entropy_with_logits")]
    #[track_caller]
    pub fn bce_with_logits(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(BceWithLogits { reduction }, &[self, target])
    }

    /// [`Var::bce_with_logits`] with a weight for positive targets, which broadcasts by NumPy's rule:
    /// `w t softplus(-x) + (1 - t) softplus(x)`.
    #[track_caller]
    pub fn bce_with_logits_weighted(
        self,
        target: Var<'s>,
        pos_weight: Var<'s>,
        reduction: Reduction,
    ) -> Result<Var<'s>> {
        let shape =
            BceWithLogits { reduction: Reduction::None }.shape(&[self.meta()?, target.meta()?])?.shape;
        let formula = Pointwise::trace(3, |v| {
            let (x, t, w, one) = (v[0], v[1], v[2], Expr::c(1.0));
            vec![w * (t * (-x).softplus()) + (one - t) * x.softplus()]
        });
        self.session().apply(Map::new(formula, shape), &[self, target, pos_weight])?.reduced(reduction)
    }

    /// [`Var::bce`] times weights, which broadcast to the losses.
    #[track_caller]
    pub fn bce_loss(self, target: Var<'s>, weight: Option<Var<'s>>, reduction: Reduction) -> Result<Var<'s>> {
        self.weighed(self.bce(target, Reduction::None)?, weight)?.reduced(reduction)
    }

    /// [`Var::bce_with_logits`] with all its weights: `weight` of the losses, and `pos_weight` of positive targets as in
    /// [`Var::bce_with_logits_weighted`]. Both broadcast.
    #[track_caller]
    pub fn bce_with_logits_loss(
        self,
        target: Var<'s>,
        weight: Option<Var<'s>>,
        pos_weight: Option<Var<'s>>,
        reduction: Reduction,
    ) -> Result<Var<'s>> {
        let losses = match pos_weight {
            Some(w) => self.bce_with_logits_weighted(target, w, Reduction::None)?,
            None => self.bce_with_logits(target, Reduction::None)?,
        };
        self.weighed(losses, weight)?.reduced(reduction)
    }

    /// Applies the reduction to the losses. The mean of no losses is 0.
    #[track_caller]
    pub(super) fn reduced(self, reduction: Reduction) -> Result<Var<'s>> {
        match reduction {
            Reduction::None => Ok(self),
            Reduction::Mean if self.shape()?.numel() > 0 => self.mean(),
            _ => self.sum(),
        }
    }

    /// Kullback-Leibler divergence of log-probabilities from target probabilities. The mean is over all elements; for
    /// the mean over a batch, take the sum and divide.
    #[track_caller]
    pub fn kl_div(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        self.session().apply(KlDiv { reduction }, &[self, target])
    }

    /// [`Var::kl_div`] from log-probabilities: `e^t (t - x)`, PyTorch's `log_target=True`. Where the target is `-∞`, the
    /// loss is 0.
    #[track_caller]
    pub fn kl_div_log(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        let losses = self.formula_of("kl_div", &[target], |v| {
            let loss = v[1].exp() * (v[1] - v[0]);
            Expr::where_eq(v[1], Expr::c(f64::NEG_INFINITY), Expr::c(0.0), loss)
        })?;
        losses.reduced(reduction)
    }

    /// The sum of [`Var::kl_div`], or with `log_target` of [`Var::kl_div_log`], divided by the size of the first axis:
    /// PyTorch's `reduction="batchmean"`.
    #[track_caller]
    pub fn kl_div_batchmean(self, target: Var<'s>, log_target: bool) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let Some(&batch) = shape.dims().first() else {
            return Err(Error::new("kl_div", ErrorKind::Rank { want: "at least 1", got: shape }));
        };
        let sum = match log_target {
            true => self.kl_div_log(target, Reduction::Sum)?,
            false => self.kl_div(target, Reduction::Sum)?,
        };
        sum.scale(strict(|| 1.0 / batch.max(1) as f64))
    }
}
