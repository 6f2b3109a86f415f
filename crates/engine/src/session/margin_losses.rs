//! Losses of margins and of embeddings, and likelihoods of distributions. Most are one formula of their inputs.

use super::Var;
use dittograd_device::DType;
use dittograd_numerics::environment::{single, strict};
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::scalar::Real;
use dittograd_ops::index::{ScatterAdd, TakeAlongAxis};
use dittograd_ops::loss::Reduction;
use dittograd_ops::pointwise::expression::Expr;
use dittograd_ops::pointwise::map::Map;

/// Options of [`Var::triplet_margin_loss`].
#[derive(Clone, Copy, Debug)]
pub struct TripletMargin {
    /// How much nearer the positive must be than the negative.
    pub margin: f64,
    /// The norm of the distance: see [`Var::norm`].
    pub p: f64,
    /// Added to each difference, so that no distance is exactly 0.
    pub eps: f64,
    /// Whether the distance from the positive to the negative counts if it is the smaller one.
    pub swap: bool,
    /// How the losses of the rows are combined.
    pub reduction: Reduction,
}

impl Default for TripletMargin {
    /// PyTorch's defaults.
    fn default() -> TripletMargin {
        TripletMargin { margin: 1.0, p: 2.0, eps: 1e-6, swap: false, reduction: Reduction::Mean }
    }
}

/// Options of [`Var::multi_margin_loss`].
#[derive(Clone, Copy, Debug)]
pub struct MultiMargin<'s> {
    /// How far the label's score must be above the others.
    pub margin: f64,
    /// Whether each hinge is squared: PyTorch's `p=2`.
    pub squared: bool,
    /// A weight per class, `(C)`; by default all 1.
    pub weight: Option<Var<'s>>,
    /// How the losses of the rows are combined.
    pub reduction: Reduction,
}

impl Default for MultiMargin<'_> {
    /// PyTorch's defaults.
    fn default() -> Self {
        MultiMargin { margin: 1.0, squared: false, weight: None, reduction: Reduction::Mean }
    }
}

/// Options of [`Var::poisson_nll_loss`].
#[derive(Clone, Copy, Debug)]
pub struct PoissonNll {
    /// Whether the value is the logarithm of the rate.
    pub log_input: bool,
    /// Whether to add Stirling's approximation of `ln t!` for targets above 1.
    pub full: bool,
    /// Added to a rate before its logarithm.
    pub eps: f64,
    /// How the losses are combined.
    pub reduction: Reduction,
}

impl Default for PoissonNll {
    /// PyTorch's defaults.
    fn default() -> PoissonNll {
        PoissonNll { log_input: true, full: false, eps: 1e-8, reduction: Reduction::Mean }
    }
}

/// `max(0, z)`. The slope at 0 is 0, as of PyTorch's `clamp_min`; NaN stays.
fn hinge<R: Real>(z: R) -> R {
    R::where_le(z, R::c(0.0), R::c(0.0), z)
}

/// A number of the program, as float32 has it.
#[track_caller]
fn finite(op: &str, what: &'static str, x: f64) -> Result<f64> {
    match single(x).is_finite() {
        true => Ok(f64::from(single(x))),
        false => Err(Error::argument(op, what, format!("got {x}, use a finite number"))),
    }
}

/// # Losses of margins and distributions
impl<'s> Var<'s> {
    /// One formula of this value and others, which broadcast by NumPy's rule.
    #[track_caller]
    pub(super) fn formula_of(
        self,
        op: &str,
        others: &[Var<'s>],
        f: impl Fn(&[Expr]) -> Expr,
    ) -> Result<Var<'s>> {
        let ins = [&[self], others].concat();
        let metas = ins.iter().map(|v| v.meta()).collect::<Result<Vec<_>>>()?;
        for (i, meta) in metas.iter().enumerate() {
            meta.dtype.require(DType::F32, op, i)?;
        }
        let formula = Map::of(&metas, f).map_err(|e| Error::new(op, e.kind().clone()));
        self.session().apply(formula.located()?, &ins)
    }

    /// Errors unless another value has this shape.
    #[track_caller]
    pub(super) fn same_shape(self, op: &str, other: Var<'s>, why: &'static str) -> Result<()> {
        let (left, right) = (self.shape()?, other.shape()?);
        if left == right { Ok(()) } else { Err(Error::new(op, ErrorKind::Shapes { why, left, right })) }
    }

    /// The last axis and its size. Errors for a scalar and for an empty axis.
    #[track_caller]
    fn classes(self, op: &str) -> Result<(usize, usize)> {
        let shape = self.shape()?;
        match shape.rank().checked_sub(1) {
            Some(last) if shape.last() > 0 => Ok((last, shape.last())),
            Some(last) => Err(Error::argument(
                op,
                "x",
                format!("axis {last} of {shape} is empty, use at least 1 class"),
            )),
            None => Err(Error::new(op, ErrorKind::Rank { want: "at least 1", got: shape })),
        }
    }

    /// `max(0, margin - t (x - other))` for targets `t` of 1 (this value should be the larger) or -1. PyTorch's default
    /// margin is 0.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let scores = |v: [f32; 2]| session.variable(&Tensor::new(&[2], v.to_vec())?);
    /// let (good, bad) = (scores([2.0, 0.5])?, scores([1.0, 1.0])?);
    /// let loss = good.margin_ranking_loss(bad, good.ones_like()?, 0.25, Reduction::None)?;
    /// assert_eq!(loss.to_string(), "[0.   0.75]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn margin_ranking_loss(
        self,
        other: Var<'s>,
        target: Var<'s>,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Var<'s>> {
        const NAME: &str = "margin_ranking_loss";
        let margin = finite(NAME, "margin", margin)?;
        let f = |v: &[Expr]| hinge(Expr::c(margin) - v[2] * (v[0] - v[1]));
        self.formula_of(NAME, &[other, target], f)?.reduced(reduction)
    }

    /// `ln(1 + e^(-t x))` for targets `t` of 1 or -1, without overflow.
    #[track_caller]
    pub fn soft_margin_loss(self, target: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        const NAME: &str = "soft_margin_loss";
        self.same_shape(NAME, target, "the targets must have the value's shape")?;
        self.formula_of(NAME, &[target], |v| (-(v[0] * v[1])).softplus())?.reduced(reduction)
    }

    /// `x` for targets of 1, and `max(0, margin - x)` for targets of -1; for other targets the sum of both. PyTorch's
    /// default margin is 1.
    #[track_caller]
    pub fn hinge_embedding_loss(self, target: Var<'s>, margin: f64, reduction: Reduction) -> Result<Var<'s>> {
        const NAME: &str = "hinge_embedding_loss";
        let margin = finite(NAME, "margin", margin)?;
        let f = |v: &[Expr]| {
            let (x, t, zero) = (v[0], v[1], Expr::c(0.0));
            let near = Expr::where_eq(t, Expr::c(-1.0), zero, x);
            Expr::where_eq(t, Expr::c(1.0), zero, hinge(Expr::c(margin) - x)) + near
        };
        self.formula_of(NAME, &[target], f)?.reduced(reduction)
    }

    /// Loss of the cosine `c` of the angle between rows `(…, D)` of this value and another, with targets `(…)`: `1 - c`
    /// for 1, `max(0, c - margin)` for -1, else 0. `c` is `x·y / sqrt((x·x + 1e-12) (y·y + 1e-12))`. PyTorch's default
    /// margin is 0.
    #[track_caller]
    pub fn cosine_embedding_loss(
        self,
        other: Var<'s>,
        target: Var<'s>,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Var<'s>> {
        const NAME: &str = "cosine_embedding_loss";
        let margin = finite(NAME, "margin", margin)?;
        let (last, _) = self.classes(NAME)?;
        self.same_shape(NAME, other, "both embeddings must have one shape")?;
        let dot = self.mul(other)?.sum_axes(&[last])?;
        dot.same_shape(NAME, target, "there must be one target for each row")?;
        let squares = [self.square()?.sum_axes(&[last])?, other.square()?.sum_axes(&[last])?];
        let f = |v: &[Expr]| {
            let (zero, one, eps) = (Expr::c(0.0), Expr::c(1.0), Expr::c(1e-12));
            let cosine = v[0] / ((v[1] + eps) * (v[2] + eps)).sqrt();
            let far = Expr::where_eq(v[3], Expr::c(-1.0), hinge(cosine - Expr::c(margin)), zero);
            Expr::where_eq(v[3], one, one - cosine, far)
        };
        dot.formula_of(NAME, &[squares[0], squares[1], target], f)?.reduced(reduction)
    }

    /// `max(0, margin + |x - positive| - |x - negative|)` of rows `(…, D)`, which give losses `(…)`.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # use dittograd::session::TripletMargin;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let row = |x: f32, y: f32| session.variable(&Tensor::new(&[1, 2], vec![x, y])?);
    /// let options = TripletMargin { eps: 0.0, ..TripletMargin::default() };
    /// let loss = row(0.0, 0.0)?.triplet_margin_loss(row(3.0, 4.0)?, row(0.0, 2.0)?, options)?;
    /// assert_eq!(loss.item()?, 4.0); // 1 + 5 - 2
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn triplet_margin_loss(
        self,
        positive: Var<'s>,
        negative: Var<'s>,
        options: TripletMargin,
    ) -> Result<Var<'s>> {
        const NAME: &str = "triplet_margin_loss";
        let TripletMargin { margin, p, eps, swap, reduction } = options;
        let (margin, eps) = (finite(NAME, "margin", margin)?, finite(NAME, "eps", eps)?);
        let (last, _) = self.classes(NAME)?;
        let distance = |a: Var<'s>, b: Var<'s>| -> Result<Var<'s>> {
            a.formula_of(NAME, &[b], |v| v[0] - v[1] + Expr::c(eps))?.norm(p, &[last], false)
        };
        self.same_shape(NAME, positive, "anchors and positives must have one shape")?;
        self.same_shape(NAME, negative, "anchors and negatives must have one shape")?;
        let (near, far) = (distance(self, positive)?, distance(self, negative)?);
        let swapped = if swap { Some(distance(positive, negative)?) } else { None };
        near.triplet_margin_of_distances(far, swapped, margin, reduction)
    }

    /// [`Var::triplet_margin_loss`] of distances of any kind: these, of the anchors to their positives, and `far`, of the anchors to their
    /// negatives. `swapped`, of the positives to the negatives, counts where it is smaller than `far`.
    #[doc(alias = "triplet_margin_with_distance_loss")]
    #[track_caller]
    pub fn triplet_margin_of_distances(
        self,
        far: Var<'s>,
        swapped: Option<Var<'s>>,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Var<'s>> {
        const NAME: &str = "triplet_margin_of_distances";
        let margin = finite(NAME, "margin", margin)?;
        let far = match swapped {
            Some(swapped) => far.min(swapped)?,
            None => far,
        };
        self.formula_of(NAME, &[far], |v| hinge(Expr::c(margin) + v[0] - v[1]))?.reduced(reduction)
    }

    /// Hinges of the scores `(…, C)` against labels `(…)`: `w[label]/C Σ_(c ≠ label) max(0, margin - x[label] + x[c])`,
    /// each hinge squared if wanted. A label at or above C is an error.
    #[track_caller]
    pub fn multi_margin_loss(self, labels: Var<'s>, options: MultiMargin<'s>) -> Result<Var<'s>> {
        const NAME: &str = "multi_margin_loss";
        let MultiMargin { margin, squared, weight, reduction } = options;
        let margin = finite(NAME, "margin", margin)?;
        let (last, classes) = self.classes(NAME)?;
        if self.shape()?.dims()[..last] != *labels.shape()?.dims() {
            let why = "labels must have the scores' shape without its last axis";
            let kind = ErrorKind::Shapes { why, left: self.shape()?, right: labels.shape()? };
            return Err(Error::new(NAME, kind));
        }
        let column = labels.unsqueeze(last)?;
        let picked = self.take_along_axis(last, column)?;
        let own = labels.one_hot(classes)?;
        let f = |v: &[Expr]| {
            let z = hinge(Expr::c(margin) - v[1] + v[0]);
            Expr::where_eq(v[2], Expr::c(0.0), if squared { z * z } else { z }, Expr::c(0.0))
        };
        let sums = self.formula_of(NAME, &[picked, own], f)?.sum_axes(&[last])?;
        let losses = sums.scale(strict(|| 1.0 / classes as f64))?;
        match weight {
            Some(weight) if weight.shape()?.dims() != [classes] => {
                let why = "there must be one weight for each class";
                let kind = ErrorKind::Shapes { why, left: self.shape()?, right: weight.shape()? };
                Err(Error::new(NAME, kind))
            }
            Some(weight) => losses.mul(weight.index_select(0, labels)?)?.reduced(reduction),
            None => losses.reduced(reduction),
        }
    }

    /// Hinges of the scores `(…, C)` against lists of labels `(…, C)`: `1/C Σ max(0, 1 - (x[label] - x[c]))` over the
    /// labels of the list and the classes `c` that are not in it. A list ends before its first entry that is no class, such
    /// as `u32::MAX`: PyTorch's -1.
    #[track_caller]
    pub fn multilabel_margin_loss(self, labels: Var<'s>, reduction: Reduction) -> Result<Var<'s>> {
        const NAME: &str = "multilabel_margin_loss";
        let (last, classes) = self.classes(NAME)?;
        labels.meta()?.dtype.require(DType::U32, NAME, 1)?;
        self.same_shape(NAME, labels, "lists of labels must have the scores' shape")?;
        let s = self.session();
        // 1 for entries before the end of the list.
        let listed = labels.to_float()?.lt(s.scalar(classes as f64)?)?.cumprod(last)?.detach()?;
        let place = ScatterAdd { axis: last, size: classes, checked: false };
        let member = s.apply(place, &[listed, labels, self.zeros_like()?])?.detach()?;
        let picked = s.apply(TakeAlongAxis { axis: last, checked: false }, &[self, labels])?;
        let f = |v: &[Expr]| {
            let (zero, z) = (Expr::c(0.0), hinge(Expr::c(1.0) - (v[1] - v[0])));
            Expr::where_eq(v[2], zero, zero, Expr::where_eq(v[3], zero, z, zero))
        };
        let (row, column) = (last, last + 1);
        let ins = [picked.unsqueeze(column)?, listed.unsqueeze(column)?, member.unsqueeze(row)?];
        let sums = self.unsqueeze(row)?.formula_of(NAME, &ins, f)?.sum_axes(&[row, column])?;
        sums.scale(strict(|| 1.0 / classes as f64))?.reduced(reduction)
    }

    /// The mean over classes of [`Var::bce_with_logits`] of logits `(…, C)` against targets `(…, C)`, with a weight per
    /// class, which broadcasts; the losses are `(…)`.
    #[track_caller]
    pub fn multilabel_soft_margin_loss(
        self,
        target: Var<'s>,
        weight: Option<Var<'s>>,
        reduction: Reduction,
    ) -> Result<Var<'s>> {
        let (last, _) = self.classes("multilabel_soft_margin_loss")?;
        let losses = self.bce_with_logits(target, Reduction::None)?;
        self.weighed(losses, weight)?.mean_axes(&[last])?.reduced(reduction)
    }

    /// Losses of this shape times weights, which broadcast to it.
    #[track_caller]
    pub(super) fn weighed(self, losses: Var<'s>, weight: Option<Var<'s>>) -> Result<Var<'s>> {
        match weight {
            Some(weight) => losses.mul(weight.broadcast_to(self.shape()?)?),
            None => Ok(losses),
        }
    }

    /// Negative log-likelihood of counts under Poisson distributions: `e^x - t x` of logarithms of rates, or
    /// `x - t ln(x + eps)` of rates. Terms without `x` are left out, unless `full` adds their approximation.
    #[track_caller]
    pub fn poisson_nll_loss(self, target: Var<'s>, options: PoissonNll) -> Result<Var<'s>> {
        const NAME: &str = "poisson_nll_loss";
        let PoissonNll { log_input, full, eps, reduction } = options;
        let eps = finite(NAME, "eps", eps)?;
        let f = |v: &[Expr]| {
            let (x, t, one) = (v[0], v[1], Expr::c(1.0));
            let loss = if log_input { x.exp() - t * x } else { x - t * (x + Expr::c(eps)).log() };
            if !full {
                return loss;
            }
            let stirling = t * t.log() - t + Expr::c(0.5) * (Expr::c(std::f64::consts::TAU) * t).log();
            loss + Expr::where_gt(t, one, stirling, Expr::c(0.0))
        };
        self.formula_of(NAME, &[target], f)?.reduced(reduction)
    }

    /// Negative log-likelihood of targets under normal distributions with this value as mean, and a variance:
    /// `(ln v + (x - t)^2 / v) / 2` with `v` at least `eps`; `full` adds `ln(2π) / 2`. The variance has this shape, this
    /// shape without the last axis, or one that broadcasts to it. As in PyTorch, the gradient passes the bound `eps`. A
    /// variance below 0 gives NaN. PyTorch's default eps is 1e-6.
    #[track_caller]
    pub fn gaussian_nll_loss(
        self,
        target: Var<'s>,
        var: Var<'s>,
        full: bool,
        eps: f64,
        reduction: Reduction,
    ) -> Result<Var<'s>> {
        const NAME: &str = "gaussian_nll_loss";
        let eps = finite(NAME, "eps", eps)?;
        if eps <= 0.0 {
            return Err(Error::argument(NAME, "eps", format!("got {eps}, use a number above 0")));
        }
        let (shape, of) = (self.shape()?, var.shape()?);
        let rows = shape.rank() > 0 && shape != of && shape.dims()[..shape.rank() - 1] == *of.dims();
        let var = if rows { var.unsqueeze(of.rank())? } else { var };
        let held = |v: &[Expr]| {
            let held = Expr::where_gt(Expr::c(eps), v[0], Expr::c(eps), v[0]);
            Expr::where_gt(Expr::c(0.0), v[0], Expr::c(f64::NAN), held)
        };
        // The bound without its slope: what it adds to the variance is a constant.
        let bound = var.detach()?.formula_of(NAME, &[], held)?;
        let held = bound.formula_of(NAME, &[var, var.detach()?], |v| v[0] + (v[1] - v[2]))?;
        let f = |v: &[Expr]| {
            let d = v[0] - v[1];
            let loss = Expr::c(0.5) * (v[2].log() + d * d / v[2]);
            let rest = 0.5 * libm::log(std::f64::consts::TAU);
            if full { loss + Expr::c(rest) } else { loss }
        };
        self.formula_of(NAME, &[target, held], f)?.reduced(reduction)
    }
}
