//! Normalisation of channels: batch norm and group norm on values `(N, C, spatial…)`. Instance norm is group norm with
//! one group per channel.
//!
//! The statistics of a group need a single pass over it. A run is the contiguous elements of one channel of one sample.
//! Every run is cut into chunks of the row rule. A chunk gives its sum `a`, its mean `m` and its squares about that
//! mean, `q = sum (x - m)^2`. Then `mean = sum a / n` and `var = sum (q + len (m - mean)^2) / n`, both by the column
//! rule over the group's chunks in memory order. The gradients use `b = sum dy` and `p = sum dy (x - m)` in the same
//! way, since `sum dy (x - mean) = sum (p + (m - mean) b)`.

#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod cuda;

use crate::magnitudes::Lines;
use crate::norm::{Grouped, check_eps, check_inputs, gradient_parts, inverse, normalized, reference_stats};
use crate::pointwise::expression::Pointwise;
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, PerInput, Recorder, Val, dims, layout, mismatch,
};
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum::CHUNK;
use dittograd_numerics::tensor::Tensor;

/// Squares of a chunk about the group's mean: `q + len (m - mean)^2`.
#[inline(always)]
fn about_mean<R: Real>(q: R, len: R, m: R, mean: R) -> R {
    q + len * ((m - mean) * (m - mean))
}

/// Products of a chunk about the group's mean: `p + (m - mean) b`.
#[inline(always)]
fn moment_about_mean<R: Real>(p: R, m: R, mean: R, b: R) -> R {
    (m - mean).fma(b, p)
}

/// Which elements are normalised together. The value is `n c` runs of `s` contiguous elements.
#[derive(Clone, Copy, Debug)]
struct Channels {
    n: usize,
    c: usize,
    s: usize,
    /// Groups per sample, or `None` if a group is one channel of all samples.
    groups: Option<usize>,
    eps: f32,
}

impl Channels {
    fn of(shape: &Shape, groups: Option<usize>, eps: f32) -> Channels {
        let d = shape.dims();
        // Empty samples need no work, however many there are.
        let n = if shape.numel() == 0 { 0 } else { d[0] };
        Channels { n, c: d[1], s: d[2..].iter().product(), groups, eps }
    }

    fn pieces(&self) -> usize {
        self.n * self.c
    }

    /// Chunks of a run.
    fn chunks(&self) -> usize {
        self.s.div_ceil(CHUNK)
    }

    /// Chunks whose sums are stored. A run of one element is its own sum and needs none.
    fn leaves(&self) -> usize {
        if self.s == 1 { 0 } else { self.pieces() * self.chunks() }
    }

    fn group_count(&self) -> usize {
        self.groups.map_or(self.c, |g| self.n * g)
    }

    /// Runs in a group.
    fn group_runs(&self) -> usize {
        self.groups.map_or(self.n, |g| self.c.checked_div(g).unwrap_or(0))
    }

    /// `1 / n` for the `n` elements of a group.
    fn inverse(&self) -> f32 {
        inverse(self.group_runs() * self.s)
    }

    /// The `i`-th run of a group.
    fn run_of(&self, group: usize, i: usize) -> usize {
        match self.groups {
            None => i * self.c + group,
            Some(_) => group * self.group_runs() + i,
        }
    }

    /// Length of chunk `k` of a run.
    fn len(&self, k: usize) -> usize {
        CHUNK.min(self.s - k * CHUNK)
    }

    /// Whether runs are single elements and the groups' elements alternate in memory. Then neighbouring channels are
    /// processed together.
    fn single(&self) -> bool {
        self.s == 1 && self.groups.is_none()
    }

    /// Words of workspace: sums per chunk and statistics per group, `width` words each.
    fn workspace(&self, width: usize) -> usize {
        width * (self.leaves() + self.group_count())
    }

    /// The view that the second-order gradient rule works on.
    fn grouped(&self) -> Result<Grouped> {
        let (n, c, s) = (self.n, self.c, self.s);
        let (view, reduced, affine) = match self.groups {
            None => (vec![n, c, s], vec![0, 2], vec![c, 1]),
            Some(g) => (vec![n, g, self.group_runs(), s], vec![2, 3], vec![g, self.group_runs(), 1]),
        };
        let (view, affine) = (Shape::new(&view)?, Shape::new(&affine)?);
        Ok(Grouped { view, reduced, affine, centered: true, eps: self.eps })
    }

    /// Positions of the elements of a group, for the reference.
    fn positions(&self, group: usize) -> Vec<usize> {
        let runs = (0..self.group_runs()).map(|i| self.run_of(group, i) * self.s);
        runs.flat_map(|at| at..at + self.s).collect()
    }
}

/// Errors unless `x` is `(N, C, …)` and gain and shift are `(C)`.
fn check(op: &'static str, x: &Shape, affine: &[Meta], groups: Option<usize>, eps: f32) -> Result<()> {
    check_eps(op, eps)?;
    if x.rank() < 2 {
        return Err(Error::new(op, ErrorKind::Rank { want: "at least 2: (N, C, …)", got: *x }));
    }
    let c = x.dims()[1];
    if let Some(groups) = groups.filter(|&g| g == 0 || !c.is_multiple_of(g)) {
        return Err(Error::argument(
            op,
            "groups",
            format!("{groups} groups cannot share {c} channels evenly"),
        ));
    }
    match affine.iter().find(|m| m.shape.dims() != [c]) {
        None => Ok(()),
        Some(m) => Err(mismatch(op, "gain and shift must have one element per channel of", *x, m.shape)),
    }
}

macro_rules! channel_norm {
    (
        $(#[$doc:meta])* $op:ident $name:literal,
        $(#[$bwd_doc:meta])* $bwd:ident $bwd_name:literal,
        { $($field:ident)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $op {
            $(/// Groups the channels of a sample are shared out to.
            pub $field: usize,)?
            /// Added to the variance.
            pub eps: f32,
        }

        $(#[$bwd_doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $bwd {
            $(/// Groups the channels of a sample are shared out to.
            pub $field: usize,)?
            /// Added to the variance.
            pub eps: f32,
            /// Whether to compute the gradient of the shift.
            pub bias: bool,
        }

        impl $op {
            fn groups(&self) -> Option<usize> {
                None::<usize>$(.or(Some(self.$field)))?
            }

            fn channels(&self, x: &Meta) -> Channels {
                Channels::of(&x.shape, self.groups(), self.eps)
            }
        }

        impl $bwd {
            fn groups(&self) -> Option<usize> {
                None::<usize>$(.or(Some(self.$field)))?
            }

            fn channels(&self, x: &Meta) -> Channels {
                Channels::of(&x.shape, self.groups(), self.eps)
            }

            /// Shapes of the packed gradients.
            fn parts(&self, ins: &[Meta]) -> PerInput<Shape> {
                gradient_parts(ins, self.bias)
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                check_inputs(Self::NAME, ins, 1..=3)?;
                check(Self::NAME, &ins[0].shape, &ins[1..], self.groups(), self.eps)?;
                Ok(ins[0])
            }

            fn workspace(&self, ins: &[Meta], _device: &Device) -> usize {
                self.channels(&ins[0]).workspace(2)
            }

            fn cpu(&self, run: CpuRun<'_>) {
                self.channels(&run.metas[0]).cpu(run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                self.channels(&run.metas[0]).cuda(run)
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                vec![self.channels(&ins[0]).module(false, ins.len() - 1, None, gpu.sm_count)]
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let bwd = $bwd { $($field: self.$field,)? eps: self.eps, bias: io.ins.len() == 3 };
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
                let channels = self.channels(&ins[0].meta());
                let mut out = x.data().to_vec();
                for group in 0..channels.group_count() {
                    let positions = channels.positions(group);
                    let values: Vec<T> = positions.iter().map(|&i| x.data()[i]).collect();
                    let (mean, std) = reference_stats(&values, true, self.eps);
                    for &i in &positions {
                        let c = i / channels.s % channels.c;
                        let mut y = (x.data()[i] - mean) / std;
                        if let Some(gamma) = affine.first() {
                            y = y * gamma.data()[c];
                        }
                        if let Some(beta) = affine.get(1) {
                            y = y + beta.data()[c];
                        }
                        out[i] = y;
                    }
                }
                Tensor::with_shape(x.shape(), out)
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![
                    $((stringify!($field), Attr::Num(self.$field as f64)),)?
                    ("eps", Attr::Num(f64::from(self.eps))),
                ]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&[$(stringify!($field),)? "eps"])?;
                Ok($op { $($field: attrs.whole(stringify!($field))?,)? eps: attrs.num("eps")? as f32 })
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample> {
                let one = |(i, (d, _groups)): (usize, &(&[usize], usize))| {
                    let affine = match i % 4 { 2 => 0, 3 => 1, _ => 2 };
                    let op = $op { $($field: *_groups,)? eps: cases::sample_eps(i) };
                    crate::Sample::new(op, cases::inputs(d, affine, false))
                };
                cases::SHAPES.iter().enumerate().map(one).collect()
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                let d = cases::random_shape(stream);
                let op = $op { $($field: if d[1] % 2 == 0 { 2 } else { d[1] },)? eps: 1e-5 };
                Some(crate::Sample::new(op, cases::inputs(&d, 2, false)))
            }

            fn rejects() -> Vec<crate::Reject> {
                let f = |d: &[usize]| Meta::f32(crate::dims(d));
                let op = |eps: f32| $op { $($field: 2,)? eps };
                let x = || f(&[2, 4, 3]);
                #[allow(unused_mut)]
                let mut bad = vec![
                    crate::Reject::new(op(1e-5), vec![], "Arity"),
                    crate::Reject::new(op(1e-5), vec![x(), f(&[4]), f(&[4]), f(&[4])], "Arity"),
                    crate::Reject::new(op(1e-5), vec![f(&[4])], "Rank"),
                    crate::Reject::new(op(-1.0), vec![x()], "Argument"),
                    crate::Reject::new(op(f32::INFINITY), vec![x()], "Argument"),
                    crate::Reject::new(op(1e-5), vec![x(), f(&[3])], "Shapes"),
                    crate::Reject::new(op(1e-5), vec![x(), f(&[4]), f(&[1, 4])], "Shapes"),
                    crate::Reject::new(op(1e-5), vec![Meta::u32(crate::dims(&[2, 4]))], "DType"),
                ];
                $(
                    bad.push(crate::Reject::new($op { $field: 3, eps: 1e-5 }, vec![x()], "Argument"));
                    bad.push(crate::Reject::new($op { $field: 0, eps: 1e-5 }, vec![x()], "Argument"));
                )?
                bad
            }

            fn bound(&self, ins: &[Meta]) -> crate::Bound {
                crate::Bound { ulps: 2.0, terms: 20.0 + self.channels(&ins[0]).depth() }
            }
        }

        impl Op for $bwd {
            const NAME: &'static str = $bwd_name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                check_inputs(Self::NAME, ins, 2..=3)?;
                check(Self::NAME, &ins[0].shape, &ins[1..ins.len() - 1], self.groups(), self.eps)?;
                let dy = ins[ins.len() - 1].shape;
                if dy != ins[0].shape {
                    return Err(mismatch(Self::NAME, "x and its upstream gradient differ", ins[0].shape, dy));
                }
                if self.bias && ins.len() == 2 {
                    return Err(Error::argument(Self::NAME, "bias", "there is no shift without a gain"));
                }
                Ok(Meta::f32(Shape::new(&[layout::packed(&self.parts(ins)).1])?))
            }

            fn workspace(&self, ins: &[Meta], _device: &Device) -> usize {
                self.channels(&ins[0]).workspace(4)
            }

            fn cpu(&self, run: CpuRun<'_>) {
                self.channels(&run.metas[0]).cpu_bwd(&self.parts(run.metas), run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                self.channels(&run.metas[0]).cuda_bwd(&self.parts(run.metas), run)
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                vec![self.channels(&ins[0]).module(true, ins.len() - 2, None, gpu.sm_count)]
            }

            fn leaving_modules(&self, ins: &[Meta], gpu: &Gpu, lines: Lines) -> Option<Vec<Source>> {
                let channels = self.channels(&ins[0]);
                channels.leaves_lines(lines).then(|| vec![channels.module(true, ins.len() - 2, Some(lines), gpu.sm_count)])
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
                let metas: Vec<Meta> = io.ins.iter().map(|&v| r.meta(v)).collect();
                let gamma = (io.ins.len() == 3).then(|| io.ins[1]);
                let ends = [io.ins[0], io.ins[io.ins.len() - 1]];
                let grouped = self.channels(&metas[0]).grouped()?;
                let [by_x, by_gamma, by_dy] = grouped.second(r, ends, gamma, v, &self.parts(&metas))?;
                Ok(if gamma.is_some() { vec![by_x, by_gamma, by_dy] } else { vec![by_x, by_dy] })
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
                let (starts, len) = layout::packed(&self.parts(&metas));
                let channels = self.channels(&metas[0]);
                let (x, dy) = (ins[0].num()?.data(), ins[ins.len() - 1].num()?.data());
                let gamma = if ins.len() == 3 { Some(ins[1].num()?.data()) } else { None };
                let mut out = vec![T::c(0.0); len];
                for group in 0..channels.group_count() {
                    let positions = channels.positions(group);
                    let values: Vec<T> = positions.iter().map(|&i| x[i]).collect();
                    let (mean, std) = reference_stats(&values, true, self.eps);
                    let n = T::c(positions.len() as f64);
                    let c = |i: usize| i / channels.s % channels.c;
                    let h = |i: usize| gamma.map_or(dy[i], |t| dy[i] * t[c(i)]);
                    let hat = |i: usize| (x[i] - mean) / std;
                    let sum = positions.iter().fold(T::c(0.0), |s, &i| s + h(i));
                    let moment = positions.iter().fold(T::c(0.0), |s, &i| s + h(i) * hat(i));
                    for &i in &positions {
                        out[i] = (h(i) - sum / n - hat(i) * (moment / n)) / std;
                        if let Some(at) = starts.get(1) {
                            out[at + c(i)] = out[at + c(i)] + dy[i] * hat(i);
                        }
                        if let Some(at) = starts.get(2) {
                            out[at + c(i)] = out[at + c(i)] + dy[i];
                        }
                    }
                }
                Tensor::with_shape(Shape::new(&[len])?, out)
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![
                    $((stringify!($field), Attr::Num(self.$field as f64)),)?
                    ("eps", Attr::Num(f64::from(self.eps))),
                    ("bias", Attr::Bool(self.bias)),
                ]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$bwd> {
                attrs.only(&[$(stringify!($field),)? "eps", "bias"])?;
                let (eps, bias) = (attrs.num("eps")? as f32, attrs.flag("bias")?);
                Ok($bwd { $($field: attrs.whole(stringify!($field))?,)? eps, bias })
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $bwd {
            fn samples() -> Vec<crate::Sample> {
                let one = |(i, (d, _groups)): (usize, &(&[usize], usize))| {
                    let (affine, eps) = (usize::from(i % 4 != 2), cases::sample_eps(i));
                    let op = $bwd { $($field: *_groups,)? eps, bias: affine == 1 && i % 4 != 3 };
                    crate::Sample::new(op, cases::inputs(d, affine, true))
                };
                cases::SHAPES.iter().enumerate().map(one).collect()
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                let d = cases::random_shape(stream);
                let op = $bwd { $($field: if d[1] % 2 == 0 { 2 } else { d[1] },)? eps: 1e-5, bias: true };
                Some(crate::Sample::new(op, cases::inputs(&d, 1, true)))
            }

            fn rejects() -> Vec<crate::Reject> {
                let f = |d: &[usize]| Meta::f32(crate::dims(d));
                let op = |eps: f32, bias: bool| $bwd { $($field: 2,)? eps, bias };
                let x = || f(&[2, 4, 3]);
                vec![
                    crate::Reject::new(op(1e-5, false), vec![x()], "Arity"),
                    crate::Reject::new(op(1e-5, false), vec![f(&[4]), f(&[4])], "Rank"),
                    crate::Reject::new(op(-1.0, false), vec![x(), x()], "Argument"),
                    crate::Reject::new(op(1e-5, true), vec![x(), x()], "Argument"),
                    crate::Reject::new(op(1e-5, false), vec![x(), f(&[3]), x()], "Shapes"),
                    crate::Reject::new(op(1e-5, false), vec![x(), f(&[2, 4, 4])], "Shapes"),
                    crate::Reject::new(op(1e-5, false), vec![x(), Meta::u32(crate::dims(&[2, 4, 3]))], "DType"),
                ]
            }

            fn bound(&self, ins: &[Meta]) -> crate::Bound {
                let channels = self.channels(&ins[0]);
                crate::Bound { ulps: 2.0, terms: 32.0 + 2.0 * channels.depth() + crate::cases::depth(channels.n * channels.chunks()) }
            }
        }
    };
}

channel_norm! {
    /// Batch norm while training, on `(N, C, …)`: `y = x^ gamma + beta` with `x^ = (x - mean) / sqrt(var + eps)`. Mean
    /// and biased variance are per channel, over all samples and positions. Inputs are `x`, or `x, gamma`, or
    /// `x, gamma, beta`, with one gain and shift per channel.
    BatchNorm "batch_norm",
    /// Gradients of [`BatchNorm`] from `x, dy` or `x, gamma, dy`, packed as `[dx | dgamma | dbeta]`. With
    /// `h = dy gamma`: `dx = (h - mean(h) - x^ mean(h x^)) / sqrt(var + eps)`, and per channel `dgamma = sum dy x^`,
    /// `dbeta = sum dy`.
    BatchNormBwd "batch_norm_bwd",
    {}
}

channel_norm! {
    /// Group norm on `(N, C, …)`: `y = x^ gamma + beta` with `x^ = (x - mean) / sqrt(var + eps)`. Mean and biased
    /// variance are per group of neighbouring channels of one sample. Inputs are `x`, or `x, gamma`, or
    /// `x, gamma, beta`, with one gain and shift per channel. One group per channel is instance norm.
    GroupNorm "group_norm",
    /// Gradients of [`GroupNorm`] from `x, dy` or `x, gamma, dy`, packed as `[dx | dgamma | dbeta]`. The formulas are
    /// those of [`BatchNormBwd`], with means over a group and sums over a channel.
    GroupNormBwd "group_norm_bwd",
    { groups }
}

/// A normalised value from `x, mean, 1 / std`, then gain and shift if there are that many inputs.
#[doc(hidden)]
pub fn normalized_program(inputs: usize) -> Pointwise {
    Pointwise::trace(inputs, |v| {
        let hat = normalized(v[0], v[1], v[2]);
        vec![match v.len() {
            5 => hat.fma(v[3], v[4]),
            4 => hat * v[3],
            _ => hat,
        }]
    })
}

/// Mean and biased variance of each channel of `(N, C, …)` over all samples and positions, packed as `[mean | var]`.
/// These are [`BatchNorm`]'s statistics, for running averages. No gradient flows through them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments;

impl Moments {
    /// Shapes of the packed results.
    #[doc(hidden)]
    pub fn parts(x: &Shape) -> [Shape; 2] {
        [dims(&x.dims()[1..2]); 2]
    }

    /// The shape in which one value per channel broadcasts to `x`.
    #[doc(hidden)]
    pub fn per_channel(x: &Shape) -> Result<Shape> {
        let mut dims = vec![1; x.rank() - 1];
        dims[0] = x.dims()[1];
        Shape::new(&dims)
    }
}

impl Op for Moments {
    const NAME: &'static str = "moments";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        check_inputs(Self::NAME, ins, 1..=1)?;
        check(Self::NAME, &ins[0].shape, &[], None, 0.0)?;
        Ok(Meta::f32(Shape::new(&[layout::packed(&Moments::parts(&ins[0].shape)).1])?))
    }

    fn workspace(&self, ins: &[Meta], _device: &Device) -> usize {
        2 * Channels::of(&ins[0].shape, None, 0.0).leaves()
    }

    fn cpu(&self, run: CpuRun<'_>) {
        Channels::of(&run.metas[0].shape, None, 0.0).cpu_moments(run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        Channels::of(&run.metas[0].shape, None, 0.0).cuda_moments(run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        vec![Channels::of(&ins[0].shape, None, 0.0).module(false, 0, None, gpu.sm_count)]
    }

    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let channels = Channels::of(&x.shape(), None, 0.0);
        let (starts, len) = layout::packed(&Moments::parts(&x.shape()));
        let mut out = vec![T::c(0.0); len];
        for c in 0..channels.c {
            let values: Vec<T> = channels.positions(c).iter().map(|&i| x.data()[i]).collect();
            let n = T::c(values.len() as f64);
            let mean = values.iter().fold(T::c(0.0), |s, &v| s + v) / n;
            out[c] = mean;
            out[starts[1] + c] = values.iter().fold(T::c(0.0), |s, &v| s + (v - mean) * (v - mean)) / n;
        }
        Tensor::with_shape(Shape::new(&[len])?, out)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn from_attrs(attrs: &Attrs) -> Result<Moments> {
        attrs.only(&[])?;
        Ok(Moments)
    }
}
