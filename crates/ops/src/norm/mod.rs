//! Normalisation of rows: layer norm and RMS norm over the last axes. Each has one forward and one backward kernel. A
//! row is contiguous, so sums along it follow the row rule. Sums over rows, for the gradients of gain and shift, follow
//! the column rule. The backward kernels have to read `x` anyway and recompute its statistics, so nothing but the
//! inputs is saved.

pub mod channel;

pub use channel::{BatchNorm, BatchNormBwd, GroupNorm, GroupNormBwd, Moments};
#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod cuda;

use crate::fused::{EpilogueCode, FusedCode, Fusion};
use crate::pointwise::device_function::device_function;
use crate::pointwise::expression::{Expr, Pointwise};
use crate::pointwise::record_pointwise;
use crate::reduce::Mean;
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, PerInput, Recorder, Val, layout, mismatch, typed,
};
pub(crate) use cpu::{chunk_squares, column_sums};
pub(crate) use cuda::clear_gaps;
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum::ROWS;
use dittograd_numerics::tensor::Tensor;

/// `1 / sqrt(var + eps)`: one division per row or channel instead of one per element.
#[inline(always)]
pub(crate) fn inverse_std<R: Real>(var: R, eps: R) -> R {
    R::c(1.0) / (var + eps).sqrt()
}

/// [`inverse_std`] as a program.
#[doc(hidden)]
pub fn inverse_std_program(eps: f32) -> Pointwise {
    Pointwise::trace(1, |v| vec![inverse_std(v[0], Real::c(f64::from(eps)))])
}

/// `(x - mean) r`.
#[inline(always)]
pub(crate) fn normalized<R: Real>(x: R, mean: R, r: R) -> R {
    (x - mean) * r
}

/// The gradient of a normalised value by its input: `(h - mean(h) - x^ mean(h x^)) r`.
#[inline(always)]
pub(crate) fn input_gradient<R: Real>(h: R, mean_h: R, hat: R, mean_hx: R, r: R) -> R {
    (-hat).fma(mean_hx, h - mean_h) * r
}

/// `1 / n`, formed in f64 and rounded once.
pub(crate) fn inverse(n: usize) -> f32 {
    (1.0 / n as f64) as f32
}

/// The formulas as device functions.
pub(crate) fn formulas() -> String {
    let function = |name: &str, n: usize, f: fn(&[Expr]) -> Expr| {
        device_function(name, &Pointwise::trace(n, |v| vec![f(v)]))
    };
    [
        function("inverse_std", 2, |v| inverse_std(v[0], v[1])),
        function("normalized", 3, |v| normalized(v[0], v[1], v[2])),
        function("input_gradient", 5, |v| input_gradient(v[0], v[1], v[2], v[3], v[4])),
    ]
    .concat()
}

/// Rows to normalise: how many, how long, and how.
#[derive(Clone, Copy, Debug)]
struct Rows {
    rows: usize,
    width: usize,
    centered: bool,
    eps: f32,
}

impl Rows {
    /// The rows of `shape`; its last `axes` axes form one row.
    fn of(shape: &Shape, axes: usize, centered: bool, eps: f32) -> Rows {
        let (lead, row) = shape.dims().split_at(shape.rank().saturating_sub(axes));
        Rows { rows: lead.iter().product(), width: row.iter().product(), centered, eps }
    }
}

/// The most blocks of a grid. Grid-stride loops cover larger values.
pub(crate) const MAX_BLOCKS: usize = 1 << 20;

/// How the CUDA kernels split rows of a given length. This changes the speed, not the sums.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    /// One warp per row, with `per_lane` elements per lane in registers.
    Warp { per_lane: usize },
    /// One block per row. With `keep`, the row stays in shared memory.
    Block { threads: u32, keep: bool },
}

/// Shapes of the packed gradients: of the input, of the gain if there is one, and of the shift if `bias`.
pub(crate) fn gradient_parts(ins: &[Meta], bias: bool) -> PerInput<Shape> {
    let more = if ins.len() == 3 { 1 + usize::from(bias) } else { 0 };
    let mut parts = PerInput::new(1 + more, ins[0].shape);
    parts.all_mut()[1..].fill(ins[ins.len().min(2) - 1].shape);
    parts
}

/// Errors unless `eps` is finite and not negative.
#[doc(hidden)]
pub fn check_eps(op: &'static str, eps: f32) -> Result<()> {
    if eps >= 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(Error::argument(op, "eps", format!("is {eps}, use a finite number that is not negative")))
}

/// Errors unless the number of inputs is in range and all are float32.
pub(crate) fn check_inputs(
    op: &'static str,
    ins: &[Meta],
    wanted: std::ops::RangeInclusive<usize>,
) -> Result<()> {
    if !wanted.contains(&ins.len()) {
        let want = if ins.len() < *wanted.start() { *wanted.start() } else { *wanted.end() };
        return Err(Error::new(op, ErrorKind::Arity { want, got: ins.len() }));
    }
    (0..ins.len()).try_for_each(|i| typed(op, ins, i, DType::F32))
}

/// The last `axes` dimensions of `x`, checked.
fn row_shape(op: &'static str, x: &Shape, axes: usize) -> Result<Shape> {
    if axes == 0 || axes > x.rank() {
        let why = format!("is {axes} for a value of rank {}, use at least 1 and at most the rank", x.rank());
        return Err(Error::argument(op, "axes", why));
    }
    let row = Shape::new(&x.dims()[x.rank() - axes..])?;
    if row.numel() == 0 {
        return Err(Error::argument(op, "axes", format!("a row of shape {row} has no elements")));
    }
    Ok(row)
}

/// A view of a recorded value in which each group spans whole axes.
pub(crate) struct Grouped {
    /// Shape of the view.
    pub view: Shape,
    /// Axes of the view that a group spans.
    pub reduced: Vec<usize>,
    /// Shape of gain and shift that broadcasts to the view.
    pub affine: Shape,
    /// Whether the mean is subtracted.
    pub centered: bool,
    /// Added to the variance.
    pub eps: f32,
}

impl Grouped {
    fn map(&self, r: &mut dyn Recorder, args: &[Val], f: impl FnOnce(&[Expr]) -> Expr) -> Result<Val> {
        record_pointwise(r, &Pointwise::trace(args.len(), |v| vec![f(v)]), self.view, args)
    }

    /// Means over the groups, in a shape that broadcasts to the view.
    fn mean(&self, r: &mut dyn Recorder, v: Val) -> Result<Val> {
        let mut kept = self.view.dims().to_vec();
        self.reduced.iter().for_each(|&a| kept[a] = 1);
        let mean = r.record(Mean::new(&self.reduced)?.into(), &[v])?;
        layout::reshape_to(r, mean, Shape::new(&kept)?)
    }

    /// Gradients of `<v, [dx | dgamma | dbeta]>` by `x`, `gamma` and `dy`, recorded as ordinary ops. `parts` are the
    /// shapes of the packed value.
    ///
    /// Let `h = dy gamma`, `D(q) = r (q - mean q - x^ mean(q x^))` and `v = [u | w | z]`. `D` is the derivative of `x^`
    /// by `x` and is symmetric; the derivative of `r` is `-r^2 x^ / n`. So the gradients are
    /// `by dy = gamma D(u) + w x^ + z`, `by gamma = sum dy D(u)`,
    /// `by x = D(w dy - r (mean(h x^) u + mean(u x^) h)) - r x^ mean(u D(h))`.
    pub(crate) fn second(
        &self,
        r: &mut dyn Recorder,
        [x, dy]: [Val; 2],
        gamma: Option<Val>,
        v: Val,
        parts: &[Shape],
    ) -> Result<[Option<Val>; 3]> {
        let shapes = [x, dy].map(|v| r.meta(v).shape);
        let (x, dy) = (layout::reshape_to(r, x, self.view)?, layout::reshape_to(r, dy, self.view)?);
        let u = layout::part(r, v, parts, 0)?;
        let u = layout::reshape_to(r, u, self.view)?;
        let affine = |r: &mut dyn Recorder, v: Val| layout::reshape_to(r, v, self.affine);
        let one = layout::part;
        let w = if parts.len() > 1 { Some(one(r, v, parts, 1)?) } else { None };
        let z = if parts.len() > 2 { Some(one(r, v, parts, 2)?) } else { None };
        let (w, z) = (w.map(|w| affine(r, w)).transpose()?, z.map(|z| affine(r, z)).transpose()?);
        let gain = gamma.map(|g| affine(r, g)).transpose()?;
        let d = if self.centered {
            let mean = self.mean(r, x)?;
            self.map(r, &[x, mean], |v| v[0] - v[1])?
        } else {
            x
        };
        let squares = self.map(r, &[d], |v| v[0] * v[0])?;
        let var = self.mean(r, squares)?;
        let kept = r.meta(var).shape;
        let rstd = record_pointwise(r, &inverse_std_program(self.eps), kept, &[var])?;
        let hat = self.map(r, &[d, rstd], |v| v[0] * v[1])?;
        let derivative = |r: &mut dyn Recorder, q: Val| -> Result<Val> {
            let product = self.map(r, &[q, hat], |v| v[0] * v[1])?;
            let moment = self.mean(r, product)?;
            if self.centered {
                let mean = self.mean(r, q)?;
                self.map(r, &[q, mean, hat, moment, rstd], |v| (v[0] - v[1] - v[2] * v[3]) * v[4])
            } else {
                self.map(r, &[q, hat, moment, rstd], |v| (v[0] - v[1] * v[2]) * v[3])
            }
        };
        let h = match gain {
            Some(g) => self.map(r, &[dy, g], |v| v[0] * v[1])?,
            None => dy,
        };
        let (of_u, of_h) = (derivative(r, u)?, derivative(r, h)?);
        let mut by_dy = match gain {
            Some(g) => self.map(r, &[of_u, g], |v| v[0] * v[1])?,
            None => of_u,
        };
        if let Some(w) = w {
            by_dy = self.map(r, &[by_dy, w, hat], |v| v[0] + v[1] * v[2])?;
        }
        if let Some(z) = z {
            by_dy = self.map(r, &[by_dy, z], |v| v[0] + v[1])?;
        }
        let by_gamma = match gamma {
            Some(gamma) => {
                let terms = self.map(r, &[dy, of_u], |v| v[0] * v[1])?;
                let sum = layout::sum_to(r, terms, self.affine)?;
                let shape = r.meta(gamma).shape;
                Some(layout::reshape_to(r, sum, shape)?)
            }
            None => None,
        };
        let moments = [h, u].map(|q| -> Result<Val> {
            let product = self.map(r, &[q, hat], |v| v[0] * v[1])?;
            self.mean(r, product)
        });
        let [of_hx, of_ux] = moments;
        let (of_hx, of_ux) = (of_hx?, of_ux?);
        let mut q = self.map(r, &[rstd, of_hx, u, of_ux, h], |v| -(v[0] * (v[1] * v[2] + v[3] * v[4])))?;
        if let Some(w) = w {
            q = self.map(r, &[q, w, dy], |v| v[0] + v[1] * v[2])?;
        }
        let of_q = derivative(r, q)?;
        let product = self.map(r, &[u, of_h], |v| v[0] * v[1])?;
        let mean = self.mean(r, product)?;
        let by_x = self.map(r, &[of_q, rstd, hat, mean], |v| v[0] - v[1] * v[2] * v[3])?;
        Ok([
            Some(layout::reshape_to(r, by_x, shapes[0])?),
            by_gamma,
            Some(layout::reshape_to(r, by_dy, shapes[1])?),
        ])
    }
}

/// Mean and standard deviation of a row, from the definition.
pub(crate) fn reference_stats<T: Scalar>(x: &[T], centered: bool, eps: f32) -> (T, T) {
    let n = T::c(x.len() as f64);
    let sum = |terms: &mut dyn Iterator<Item = T>| terms.fold(T::c(0.0), |s, t| s + t);
    let mean = if centered { sum(&mut x.iter().copied()) / n } else { T::c(0.0) };
    let var = sum(&mut x.iter().map(|&x| (x - mean) * (x - mean))) / n;
    (mean, (var + T::c(f64::from(eps))).sqrt())
}

macro_rules! row_norm {
    (
        $(#[$doc:meta])* $op:ident $name:literal,
        $(#[$bwd_doc:meta])* $bwd:ident $bwd_name:literal,
        centered: $centered:literal, affine: $affine:literal
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $op {
            /// Number of last axes that form a row.
            pub axes: usize,
            /// Added to the mean square.
            pub eps: f32,
        }

        $(#[$bwd_doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $bwd {
            /// Number of last axes that form a row.
            pub axes: usize,
            /// Added to the mean square.
            pub eps: f32,
            /// Whether to compute the gradient of the shift.
            pub bias: bool,
        }

        impl $op {
            fn rows(&self, x: &Meta) -> Rows {
                Rows::of(&x.shape, self.axes, $centered, self.eps)
            }
        }

        impl $bwd {
            fn rows(&self, x: &Meta) -> Rows {
                Rows::of(&x.shape, self.axes, $centered, self.eps)
            }

            /// Shapes of the packed gradients.
            fn parts(&self, ins: &[Meta]) -> PerInput<Shape> {
                gradient_parts(ins, self.bias)
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                check_inputs(Self::NAME, ins, 1..=1 + $affine)?;
                check_eps(Self::NAME, self.eps)?;
                let row = row_shape(Self::NAME, &ins[0].shape, self.axes)?;
                match ins[1..].iter().find(|m| m.shape != row) {
                    None => Ok(ins[0]),
                    Some(m) => {
                        let why = "gain and shift must have the shape of the normalised axes";
                        Err(mismatch(Self::NAME, why, row, m.shape))
                    }
                }
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                device.as_cuda().map_or(0, |cuda| self.rows(&ins[0]).sums_words(1, &Gpu::of(cuda)))
            }

            fn cpu(&self, run: CpuRun<'_>) {
                self.rows(&run.metas[0]).cpu(run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                self.rows(&run.metas[0]).cuda(run)
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                vec![self.rows(&ins[0]).module(1, ins.len() - 1, 0, gpu)]
            }

            fn fusion(&self, _ins: &[Meta]) -> Fusion {
                Fusion::rows(0, self.axes)
            }

            fn fused_modules(&self, ins: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
                let rows = self.rows(&ins[0]);
                let is_warp = matches!(rows.variant(1, gpu), Variant::Warp { .. });
                // An epilogue reads by column; a row of several axes has no single column axis.
                let is_plain = self.axes == 1 || !fused.epilogue.is_some_and(EpilogueCode::by_column);
                (is_warp && is_plain).then(|| vec![rows.module_with(1, ins.len() - 1, 0, gpu, fused)])
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let bwd = $bwd { axes: self.axes, eps: self.eps, bias: io.ins.len() == 3 };
                let mut ins = io.ins[..io.ins.len().min(2)].to_vec();
                ins.push(dy);
                let metas: Vec<Meta> = ins.iter().map(|&v| r.meta(v)).collect();
                let parts = bwd.parts(&metas);
                let packed = r.record(bwd.into(), &ins)?;
                (0..io.ins.len()).map(|i| layout::part(r, packed, &parts, i).map(Some)).collect()
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let x = ins[0].num()?;
                let affine: Vec<&Tensor<T>> = ins[1..].iter().map(AnyTensor::num).collect::<Result<_>>()?;
                let width = self.rows(&ins[0].meta()).width;
                let mut out = Vec::with_capacity(x.data().len());
                for row in x.data().chunks(width) {
                    let (mean, std) = reference_stats(row, $centered, self.eps);
                    for (j, &x) in row.iter().enumerate() {
                        let mut y = (x - mean) / std;
                        if let Some(gamma) = affine.first() {
                            y = y * gamma.data()[j];
                        }
                        if let Some(beta) = affine.get(1) {
                            y = y + beta.data()[j];
                        }
                        out.push(y);
                    }
                }
                Tensor::with_shape(x.shape(), out)
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![("axes", Attr::Num(self.axes as f64)), ("eps", Attr::Num(f64::from(self.eps)))]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&["axes", "eps"])?;
                Ok($op { axes: attrs.whole("axes")?, eps: attrs.num("eps")? as f32 })
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample> {
                let one = |(i, (d, axes)): (usize, &(&[usize], usize))| {
                    let affine = if i % 4 == 2 { 0 } else { $affine - usize::from(i == 5) };
                    let op = $op { axes: *axes, eps: if i % 2 == 0 { 1e-5 } else { 1e-6 } };
                    crate::Sample::new(op, cases::inputs(d, *axes, affine, false))
                };
                cases::SHAPES.iter().enumerate().map(one).collect()
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                let (d, axes) = cases::random_shape(stream);
                Some(crate::Sample::new($op { axes, eps: 1e-5 }, cases::inputs(&d, axes, $affine, false)))
            }

            fn rejects() -> Vec<crate::Reject> {
                let f = |d: &[usize]| Meta::f32(crate::dims(d));
                let op = |axes: usize, eps: f32| $op { axes, eps };
                let mut many = vec![f(&[2, 3])];
                many.extend(vec![f(&[3]); $affine + 1]);
                vec![
                    crate::Reject::new(op(1, 1e-5), vec![], "Arity"),
                    crate::Reject::new(op(1, 1e-5), many, "Arity"),
                    crate::Reject::new(op(0, 1e-5), vec![f(&[2, 3])], "Argument"),
                    crate::Reject::new(op(3, 1e-5), vec![f(&[2, 3])], "Argument"),
                    crate::Reject::new(op(1, 1e-5), vec![f(&[2, 0])], "Argument"),
                    crate::Reject::new(op(1, -1.0), vec![f(&[2, 3])], "Argument"),
                    crate::Reject::new(op(1, f32::NAN), vec![f(&[2, 3])], "Argument"),
                    crate::Reject::new(op(1, 1e-5), vec![f(&[2, 3]), f(&[2])], "Shapes"),
                    crate::Reject::new(op(1, 1e-5), vec![f(&[2, 3]), Meta::u32(crate::dims(&[3]))], "DType"),
                ]
            }

            fn bound(&self, ins: &[Meta]) -> crate::Bound {
                crate::Bound { ulps: 2.0, terms: 16.0 + 2.0 * crate::cases::depth(self.rows(&ins[0]).width) }
            }
        }

        impl Op for $bwd {
            const NAME: &'static str = $bwd_name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                check_inputs(Self::NAME, ins, 2..=3)?;
                check_eps(Self::NAME, self.eps)?;
                let row = row_shape(Self::NAME, &ins[0].shape, self.axes)?;
                let dy = ins[ins.len() - 1].shape;
                if dy != ins[0].shape {
                    return Err(mismatch(Self::NAME, "x and its upstream gradient differ", ins[0].shape, dy));
                }
                if self.bias && (ins.len() == 2 || $affine < 2) {
                    return Err(Error::argument(Self::NAME, "bias", "there is no shift in this norm"));
                }
                if ins.len() == 3 && ins[1].shape != row {
                    let why = "gain and shift must have the shape of the normalised axes";
                    return Err(mismatch(Self::NAME, why, row, ins[1].shape));
                }
                Ok(Meta::f32(Shape::new(&[layout::packed(&self.parts(ins)).1])?))
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                let (rows, sums) = (self.rows(&ins[0]), self.parts(ins).len() - 1);
                match device.as_cuda() {
                    Some(cuda) => rows.regions(sums, &Gpu::of(cuda)).iter().sum(),
                    None => rows.rows.div_ceil(ROWS) * sums * rows.width,
                }
            }

            fn cpu(&self, run: CpuRun<'_>) {
                self.rows(&run.metas[0]).cpu_bwd(&self.parts(run.metas), run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                self.rows(&run.metas[0]).cuda_bwd(&self.parts(run.metas), run)
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                vec![self.rows(&ins[0]).module(2, ins.len() - 2, self.parts(ins).len() - 1, gpu)]
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
                let metas: Vec<Meta> = io.ins.iter().map(|&v| r.meta(v)).collect();
                let rows = self.rows(&metas[0]);
                let grouped = Grouped {
                    view: Shape::new(&[rows.rows, rows.width])?,
                    reduced: vec![1],
                    affine: Shape::new(&[rows.width])?,
                    centered: $centered,
                    eps: self.eps,
                };
                let gamma = (io.ins.len() == 3).then(|| io.ins[1]);
                let ends = [io.ins[0], io.ins[io.ins.len() - 1]];
                let [by_x, by_gamma, by_dy] = grouped.second(r, ends, gamma, v, &self.parts(&metas))?;
                Ok(if gamma.is_some() { vec![by_x, by_gamma, by_dy] } else { vec![by_x, by_dy] })
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
                let (starts, len) = layout::packed(&self.parts(&metas));
                let width = self.rows(&metas[0]).width;
                let (x, dy) = (ins[0].num()?, ins[ins.len() - 1].num()?);
                let gamma = if ins.len() == 3 { Some(ins[1].num()?) } else { None };
                let (n, mut out) = (T::c(width as f64), vec![T::c(0.0); len]);
                for (row, (x, dy)) in x.data().chunks(width).zip(dy.data().chunks(width)).enumerate() {
                    let (mean, std) = reference_stats(x, $centered, self.eps);
                    let hat: Vec<T> = x.iter().map(|&x| (x - mean) / std).collect();
                    let h: Vec<T> =
                        dy.iter().enumerate().map(|(j, &g)| gamma.map_or(g, |t| g * t.data()[j])).collect();
                    let sum_h = h.iter().fold(T::c(0.0), |s, &h| s + h);
                    let sum_hx = h.iter().zip(&hat).fold(T::c(0.0), |s, (&h, &hat)| s + h * hat);
                    let mean_h = if $centered { sum_h / n } else { T::c(0.0) };
                    for j in 0..width {
                        out[row * width + j] = (h[j] - mean_h - hat[j] * (sum_hx / n)) / std;
                        if let Some(at) = starts.get(1) {
                            out[at + j] = out[at + j] + dy[j] * hat[j];
                        }
                        if let Some(at) = starts.get(2) {
                            out[at + j] = out[at + j] + dy[j];
                        }
                    }
                }
                Tensor::with_shape(Shape::new(&[len])?, out)
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![
                    ("axes", Attr::Num(self.axes as f64)),
                    ("eps", Attr::Num(f64::from(self.eps))),
                    ("bias", Attr::Bool(self.bias)),
                ]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$bwd> {
                attrs.only(&["axes", "eps", "bias"])?;
                let (axes, bias) = (attrs.whole("axes")?, attrs.flag("bias")?);
                Ok($bwd { axes, eps: attrs.num("eps")? as f32, bias })
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $bwd {
            fn samples() -> Vec<crate::Sample> {
                let one = |(i, (d, axes)): (usize, &(&[usize], usize))| {
                    let affine = usize::from(i % 4 != 2);
                    let bias = affine == 1 && $affine == 2 && i != 5;
                    let op = $bwd { axes: *axes, eps: if i % 2 == 0 { 1e-5 } else { 1e-6 }, bias };
                    crate::Sample::new(op, cases::inputs(d, *axes, affine, true))
                };
                let mut all: Vec<_> = cases::SHAPES.iter().enumerate().map(one).collect();
                // Enough rows that the GPU uses the one-kernel variant.
                let op = $bwd { axes: 1, eps: 1e-5, bias: $affine == 2 };
                all.push(crate::Sample::new(op, cases::inputs(&[4300, 9], 1, 1, true)));
                all
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                let (d, axes) = cases::random_shape(stream);
                let op = $bwd { axes, eps: 1e-5, bias: $affine == 2 };
                Some(crate::Sample::new(op, cases::inputs(&d, axes, 1, true)))
            }

            fn rejects() -> Vec<crate::Reject> {
                let f = |d: &[usize]| Meta::f32(crate::dims(d));
                let op = |axes: usize, eps: f32, bias: bool| $bwd { axes, eps, bias };
                let x = || f(&[2, 3]);
                vec![
                    crate::Reject::new(op(1, 1e-5, false), vec![x()], "Arity"),
                    crate::Reject::new(op(1, 1e-5, false), vec![x(), f(&[3]), f(&[3]), x()], "Arity"),
                    crate::Reject::new(op(4, 1e-5, false), vec![x(), x()], "Argument"),
                    crate::Reject::new(op(1, -1.0, false), vec![x(), x()], "Argument"),
                    crate::Reject::new(op(1, 1e-5, true), vec![x(), x()], "Argument"),
                    crate::Reject::new(op(1, 1e-5, false), vec![x(), f(&[3, 2])], "Shapes"),
                    crate::Reject::new(op(1, 1e-5, false), vec![x(), f(&[2]), x()], "Shapes"),
                    crate::Reject::new(op(1, 1e-5, false), vec![x(), Meta::u32(crate::dims(&[2, 3]))], "DType"),
                ]
            }

            fn bound(&self, ins: &[Meta]) -> crate::Bound {
                let rows = self.rows(&ins[0]);
                crate::Bound { ulps: 2.0, terms: 24.0 + 3.0 * crate::cases::depth(rows.width) + crate::cases::depth(rows.rows) }
            }
        }
    };
}

row_norm! {
    /// Layer norm: `y = x^ gamma + beta` with `x^ = (x - mean) / sqrt(var + eps)`, mean and biased variance over the
    /// last `axes` axes. Inputs are `x`, or `x, gamma`, or `x, gamma, beta`; gain and shift have the shape of those
    /// axes. A constant row gives `beta`.
    LayerNorm "layer_norm",
    /// Gradients of [`LayerNorm`] from `x, dy` or `x, gamma, dy`, packed as `[dx | dgamma | dbeta]`. With
    /// `h = dy gamma`: `dx = (h - mean(h) - x^ mean(h x^)) / sqrt(var + eps)`, and over all rows `dgamma = sum dy x^`,
    /// `dbeta = sum dy`.
    LayerNormBwd "layer_norm_bwd",
    centered: true, affine: 2
}

row_norm! {
    /// RMS norm: `y = x^ gamma` with `x^ = x / sqrt(mean(x^2) + eps)`, the mean over the last `axes` axes. Inputs are
    /// `x`, or `x, gamma`; the gain has the shape of those axes.
    RmsNorm "rms_norm",
    /// Gradients of [`RmsNorm`] from `x, dy` or `x, gamma, dy`, packed as `[dx | dgamma]`. With `h = dy gamma`:
    /// `dx = (h - x^ mean(h x^)) / sqrt(mean(x^2) + eps)`, and over all rows `dgamma = sum dy x^`.
    RmsNormBwd "rms_norm_bwd",
    centered: false, affine: 1
}
