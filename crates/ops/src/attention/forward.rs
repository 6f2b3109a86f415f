//! The forward pass.

use super::AttentionBwd;
use super::cpu::{LANES, Operands, forward, forward_scratch, run_tiles};
use super::cuda::fill_gaps;
use super::geometry::{Geometry, Scoring};
use super::packed::{addresses, pack_reference, parts, unpack};
use super::{cpu_digits, launch};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, layout};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::f64::consts::LOG2_E;

/// `o_i = Σ_j p_ij v_j` with `p_i` the softmax of `scale · q_i·k_j` over the keys that query `i` may
/// attend to; packed behind it, for the gradient, per query `l_i = log2 Σ_j e^(|scale| (s_ij - t_i))`, and then per query
/// `t_i = max_j s_ij`, where `s_ij` is `q_i·k_j`, or `-q_i·k_j` if the scale is negative. A query without keys gives zeros.
///
/// `l` and `t` are one number in two parts, `l_i + |scale| log2 e · t_i`: its gradient is taken to be that of `l`, and that of `t`
/// is not read.
///
/// Inputs: `q (…, heads, n, d)`, `k (…, heads, m, d)`, `v (…, heads, m, dv)`, and optionally a mask that
/// broadcasts to `(…, heads, n, m)`, numbers or indices below 2: where its magnitude is above 0, the query may
/// attend. Keys and values may have fewer heads, each shared by neighbouring heads of the queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query `i` attends only to keys up to `i`.
    pub causal: bool,
    /// What scores are multiplied by; `1 / sqrt(d)` if not given.
    pub scale: Option<f64>,
}

impl Attention {
    pub(super) fn scoring(&self) -> Scoring {
        Scoring { causal: self.causal, scale: self.scale }
    }

    pub(super) fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        self.scoring().geometry(Self::NAME, ins, 3)
    }

    /// Errors unless there is an attention of these inputs, with heads of any size.
    #[doc(hidden)]
    pub fn check(&self, ins: &[Meta]) -> Result<()> {
        self.scoring().any_geometry(Self::NAME, ins, 3).map(|_| ())
    }
}

impl Op for Attention {
    const NAME: &'static str = "attention";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        self.of(ins)?;
        let (_, words) = layout::packed(&parts(ins[0].shape, ins[2].shape));
        Ok(Meta::f32(Shape::new(&[words])?))
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        ins.get(3).filter(|m| m.dtype == DType::U32).map(|_| (3, 2))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(g) = self.of(ins) else { return 0 };
        device.as_cuda().map_or(0, |cuda| launch::forward_workspace(&g, &Gpu::of(cuda)))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(g) = self.of(run.metas) else { return };
        let job = Operands::new(run.simd, self.scoring(), g, run.ins);
        let results = unpack(run.out, &parts(run.metas[0].shape, run.metas[2].shape));
        if let Some(digits) = g.digits(run.numerics) {
            return cpu_digits::forward(run.pool, &job, digits, results);
        }
        let (tiles, scratch) = ([g.batch, g.rows(), LANES], LANES * forward_scratch(&g));
        run_tiles(run.pool, tiles, results, [g.dv, 1, 1], scratch, |z, r0, _, results, scratch| {
            forward(run.simd, &job, z, r0, results, scratch);
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let g = self.of(run.metas)?;
        let parts = parts(run.metas[0].shape, run.metas[2].shape);
        fill_gaps(run.cuda, run.out, &parts)?;
        if g.batch * g.rows() == 0 {
            return Ok(());
        }
        let mask = if g.mask.is_some() { run.ins[3] } else { 0 };
        let outs = addresses(run.out, &parts);
        let ins = [run.ins[0], run.ins[1], run.ins[2], mask];
        launch::forward(run.cuda, self.scoring(), &g, ins, outs, run.workspace)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| launch::forward_modules(self.scoring(), &g, gpu))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let back = AttentionBwd { causal: self.causal, scale: self.scale };
        let ins = [io.ins, &[io.out, dy]].concat();
        let packed = r.record(back.into(), &ins)?;
        let shapes = [0, 1, 2].map(|i| r.meta(io.ins[i]).shape);
        let mut all = Vec::new();
        for i in 0..3 {
            all.push(Some(layout::part(r, packed, &shapes, i)?));
        }
        all.resize(io.ins.len(), None);
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let (q, k, v) = (ins[0].num()?.data(), ins[1].num()?.data(), ins[2].num()?.data());
        let scale = self.scoring().scale(g.d);
        let (sign, size) = (T::c(if scale < 0.0 { -1.0 } else { 1.0 }), T::c(scale.abs()));
        let (mut o, mut l, mut t) = (Vec::new(), Vec::new(), Vec::new());
        for z in 0..g.batch {
            for r in 0..g.rows() {
                let q = &q[(z * g.rows() + r) * g.d..][..g.d];
                let open: Vec<usize> =
                    (0..g.m).filter(|&j| is_open(&g, self.causal, ins.get(3), z, r, j)).collect();
                let score = |j: usize| dot(q, &k[(z * g.m + j) * g.d..][..g.d]) * sign;
                let scores: Vec<T> = open.iter().map(|&j| score(j)).collect();
                let Some(&first) = scores.first() else {
                    o.resize(o.len() + g.dv, T::c(0.0));
                    l.push(T::c(0.0));
                    t.push(T::c(0.0));
                    continue;
                };
                let top = scores.iter().fold(first, |m, &s| if s.to_f64() > m.to_f64() { s } else { m });
                let weights: Vec<T> = scores.iter().map(|&s| ((s - top) * size).exp()).collect();
                let total = weights.iter().fold(T::c(0.0), |s, &w| s + w);
                for c in 0..g.dv {
                    let pairs = weights.iter().zip(&open);
                    let sum = pairs.fold(T::c(0.0), |s, (&w, &j)| s + w * v[(z * g.m + j) * g.dv + c]);
                    o.push(sum / total);
                }
                l.push(total.log() * T::c(LOG2_E));
                t.push(top);
            }
        }
        pack_reference(&[o, l, t])
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.scoring().attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<Attention> {
        let Scoring { causal, scale } = Scoring::from_attrs(attrs)?;
        Ok(Attention { causal, scale })
    }
}

/// Whether a mask lets query `i` of a head attend to key `j`, for the references.
pub(super) fn is_open<T: Scalar>(
    g: &Geometry,
    causal: bool,
    mask: Option<&AnyTensor<T>>,
    z: usize,
    row: usize,
    j: usize,
) -> bool {
    if causal && j > row % g.n {
        return false;
    }
    let (Some(mask), Some(view)) = (mask, g.mask) else { return true };
    let at = view.at(z * g.group + row / g.n, row % g.n) + j * view.column;
    match mask {
        AnyTensor::Num(t) => t.data()[at].to_f64().abs() > 0.0,
        AnyTensor::Idx(t) => t.data()[at] != 0,
    }
}

pub(super) fn dot<T: Scalar>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).fold(T::c(0.0), |s, (&a, &b)| s + a * b)
}
