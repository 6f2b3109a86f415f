//! The backward pass, and its own gradient as products and elementwise programs.

use super::AttentionMask;
use super::cpu::{
    BackwardOperands, LANES, Operands, backward_scratch, keys, list, list_scratch, queries, row_products,
    run_tiles,
};
use super::cuda::{delta_cuda, fill_gaps};
use super::forward::{dot, is_open};
use super::geometry::{Geometry, Scoring};
use super::packed::{addresses, like, pack, pack_reference, parts, unpack};
use super::{cpu_digits, launch};
use crate::matmul::Bmm;
use crate::pointwise::expression::{Expr, Pointwise};
use crate::pointwise::record_pointwise;
use crate::reduce::Sum;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, layout, mismatch};
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::f64::consts::{LN_2, LOG2_E};

/// Gradients of [`Attention`](super::Attention): `q, k, v`, the mask if there was one, the value and its upstream gradient, both
/// packed, to `dq | dk | dv`, packed. With `p_ij = 2^(|scale| log2 e (s_ij - t_i) - l_i)`, `δ_i = do_i·o_i - dl_i log2 e` and `ds_ij =
/// p_ij (do_i·v_j - δ_i)`: `dq_i = scale Σ_j ds_ij k_j`, `dk_j = scale Σ_i ds_ij q_i`, `dv_j = Σ_i p_ij do_i`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionBwd {
    /// As in [`Attention`](super::Attention).
    pub causal: bool,
    /// As in [`Attention`](super::Attention).
    pub scale: Option<f64>,
}

impl AttentionBwd {
    pub(super) fn scoring(&self) -> Scoring {
        Scoring { causal: self.causal, scale: self.scale }
    }

    pub(super) fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        let g = self.scoring().geometry(Self::NAME, ins, 5)?;
        let (_, words) = layout::packed(&parts(ins[0].shape, ins[2].shape));
        for packed in &ins[ins.len() - 2..] {
            if packed.shape.dims() != [words] {
                let why = "not the packed value of these queries and values";
                return Err(mismatch(Self::NAME, why, packed.shape, ins[0].shape));
            }
        }
        Ok(g)
    }

    /// Where the second and the third part of the packed inputs start.
    pub(super) fn starts(ins: &[Meta]) -> [usize; 2] {
        let (starts, _) = layout::packed(&parts(ins[0].shape, ins[2].shape));
        [starts[1], starts[2]]
    }
}

/// `Σ x` along the last axis, which stays with size 1.
fn row_sum(r: &mut dyn Recorder, x: Val) -> Result<Val> {
    let shape = r.meta(x).shape;
    let sum = r.record(Sum::new(&[shape.rank() - 1])?.into(), &[x])?;
    layout::reshape_to(r, sum, like(shape, Some(1)))
}

impl Op for AttentionBwd {
    const NAME: &'static str = "attention_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        self.of(ins)?;
        let (_, words) = layout::packed(&[ins[0].shape, ins[1].shape, ins[2].shape]);
        Ok(Meta::f32(Shape::new(&[words])?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(g) = self.of(ins) else { return 0 };
        match device.as_cuda() {
            Some(cuda) => launch::backward_workspace(&g, &Gpu::of(cuda)),
            None => g.batch * g.rows(),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(g) = self.of(run.metas) else { return };
        let job = Operands::new(run.simd, self.scoring(), g, run.ins);
        let [start, tops] = AttentionBwd::starts(run.metas);
        let [y, dy] = [run.ins[run.ins.len() - 2], run.ins[run.ins.len() - 1]];
        let rows = g.batch * g.rows();
        let delta = &mut run.workspace[..rows];
        let task = run.pool.share(rows, 1 << 9, 1);
        run.pool.chunks_mut(delta, task, |i, delta| {
            let at = i * task;
            row_products(
                run.simd,
                &dy[at * g.dv..],
                &y[at * g.dv..],
                Some(&dy[start + at..]),
                g.dv,
                g.dv,
                delta,
            );
        });
        let back = BackwardOperands { job, dy, logs: &y[start..], tops: &y[tops..], delta };
        let [dq, dk, dv] = unpack(run.out, &[run.metas[0].shape, run.metas[1].shape, run.metas[2].shape]);
        if let Some(digits) = g.digits(run.numerics) {
            return cpu_digits::backward(run.pool, &back, digits, [dq, dk, dv]);
        }
        let scratch = LANES * backward_scratch(&g);
        // Whole lists, where there are enough for all threads, make every score once.
        if g.batch >= run.pool.threads() && g.rows() > 0 && g.m > 0 {
            let lists = g.batch;
            let cut = |x: &'_ mut [f32]| x.len() / lists;
            let widths = [cut(dq), cut(dk), cut(dv)];
            let scratch = scratch + list_scratch(&g);
            run_tiles(run.pool, [lists, 1, 1], [dq, dk, dv], widths, scratch, |z, _, _, results, scratch| {
                list(run.simd, &back, z, results, scratch);
            });
            return;
        }
        let tiles = [g.batch, g.rows(), LANES];
        run_tiles(run.pool, tiles, [dq], [g.d], scratch, |z, r0, count, [dq], scratch| {
            queries(run.simd, &back, z, r0, dq, count, scratch);
        });
        let tiles = [g.batch, g.m, LANES];
        run_tiles(run.pool, tiles, [dk, dv], [g.d, g.dv], scratch, |z, k0, count, [dk, dv], scratch| {
            keys(run.simd, &back, z, k0, [dk, dv], count, None, scratch);
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let g = self.of(run.metas)?;
        let shapes = [run.metas[0].shape, run.metas[1].shape, run.metas[2].shape];
        fill_gaps(run.cuda, run.out, &shapes)?;
        let packed = parts(run.metas[0].shape, run.metas[2].shape);
        let [y, dy] = [run.ins[run.ins.len() - 2], run.ins[run.ins.len() - 1]];
        let [_, logs, tops] = addresses(y, &packed);
        delta_cuda(run.cuda, &g, [dy, y, addresses(dy, &packed)[1]], run.workspace)?;
        let (starts, _) = layout::packed(&shapes);
        let [dq, dk, dv] = [starts[0], starts[1], starts[2]].map(|at| run.out + at as u64 * 4);
        if g.m == 0 {
            return run.cuda.fill(dq, 0, shapes[0].numel());
        }
        if g.batch == 0 {
            return Ok(());
        }
        let mask = if g.mask.is_some() { run.ins[3] } else { 0 };
        let ins = [run.ins[0], run.ins[1], run.ins[2], mask];
        launch::backward(run.cuda, self.scoring(), &g, ins, [dy, logs, tops], [dq, dk, dv], run.workspace)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| launch::backward_modules(self.scoring(), &g, gpu))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, up: Val) -> Result<Vec<Option<Val>>> {
        // With A = p, E = do v^T - δ, W = scale (gq k^T + q gk^T) and T = do gv^T, all (rows, keys):
        //   Ā = T + W E,  Ē = W A,  ds = A E,  S = Ā A
        //   q̄ = scale (ds gk + S k),  k̄ = scale (ds^T gq + S^T q),  v̄ = Ē^T do
        //   dō = A gv + Ē v - (Σ Ē) o,  ō = -(Σ Ē) do,  dl̄ = log2 e Σ Ē,  l̄ = -ln 2 Σ S,  t̄ = -|scale| Σ S
        let metas: Vec<Meta> = io.ins.iter().map(|&v| r.meta(v)).collect();
        let g = self.of(&metas)?;
        let (b, rows, scale) = (g.batch, g.rows(), self.scoring().scale(g.d));
        let [q, k, v] = [io.ins[0], io.ins[1], io.ins[2]];
        let [qs, ks, vs] = [q, k, v].map(|x| r.meta(x).shape);
        let [y, dy] = [io.ins[io.ins.len() - 2], io.ins[io.ins.len() - 1]];
        let packed = parts(qs, vs);
        let full = like(qs, Some(g.m));
        let column = like(qs, Some(1));

        let matrix = |r: &mut dyn Recorder, x: Val, n: usize, d: usize| {
            layout::reshape_to(r, x, Shape::new(&[b, n, d])?)
        };
        let bmm = |r: &mut dyn Recorder, ta: bool, tb: bool, x: Val, y: Val| {
            r.record(Bmm { ta, tb }.into(), &[x, y])
        };
        let o = layout::part(r, y, &packed, 0)?;
        let l = layout::part(r, y, &packed, 1)?;
        let l = layout::reshape_to(r, l, column)?;
        let top = layout::part(r, y, &packed, 2)?;
        let top = layout::reshape_to(r, top, column)?;
        let g_o = layout::part(r, dy, &packed, 0)?;
        let g_l = layout::part(r, dy, &packed, 1)?;
        let g_l = layout::reshape_to(r, g_l, column)?;
        let (q3, k3, v3) = (matrix(r, q, rows, g.d)?, matrix(r, k, g.m, g.d)?, matrix(r, v, g.m, g.dv)?);
        let do3 = matrix(r, g_o, rows, g.dv)?;
        let ups = [qs, ks, vs];
        let (gq, gk, gv) =
            (layout::part(r, up, &ups, 0)?, layout::part(r, up, &ups, 1)?, layout::part(r, up, &ups, 2)?);
        let (gq, gk, gv) = (matrix(r, gq, rows, g.d)?, matrix(r, gk, g.m, g.d)?, matrix(r, gv, g.m, g.dv)?);

        let s = bmm(r, false, true, q3, k3)?;
        let s = layout::reshape_to(r, s, full)?;
        let sign = if scale < 0.0 { -1.0 } else { 1.0 };
        let weight = move |x: &[Expr]| {
            let s = x[0] * Real::c(sign);
            ((s - x[2]) * Real::c(scale.abs()) - x[1] * Real::c(LN_2)).exp()
        };
        let a = if self.causal || g.mask.is_some() {
            let op = AttentionMask { causal: self.causal, n: g.n, m: g.m };
            let open =
                if g.mask.is_some() { r.record(op.into(), &[io.ins[3]])? } else { r.record(op.into(), &[])? };
            let program = Pointwise::trace(4, |x| {
                let zero = Real::c(0.0);
                vec![Real::where_gt(x[3], zero, weight(x), zero)]
            });
            record_pointwise(r, &program, full, &[s, l, top, open])?
        } else {
            record_pointwise(r, &Pointwise::trace(3, |x| vec![weight(x)]), full, &[s, l, top])?
        };
        let product = Pointwise::trace(2, |x| vec![x[0] * x[1]]);
        let d_o = record_pointwise(r, &product, packed[0], &[g_o, o])?;
        let d_o = row_sum(r, d_o)?;
        let dp = bmm(r, false, true, do3, v3)?;
        let dp = layout::reshape_to(r, dp, full)?;
        let slope = Pointwise::trace(3, |x| vec![x[0] - (x[1] - x[2] * Real::c(LOG2_E))]);
        let e = record_pointwise(r, &slope, full, &[dp, d_o, g_l])?;
        let (w1, w2) = (bmm(r, false, true, gq, k3)?, bmm(r, false, true, q3, gk)?);
        let t = bmm(r, false, true, do3, gv)?;
        let (w1, w2, t) = (
            layout::reshape_to(r, w1, full)?,
            layout::reshape_to(r, w2, full)?,
            layout::reshape_to(r, t, full)?,
        );
        let scaled = Pointwise::trace(2, |x| vec![(x[0] + x[1]) * Real::c(scale)]);
        let w = record_pointwise(r, &scaled, full, &[w1, w2])?;
        let e_bar = record_pointwise(r, &product, full, &[w, a])?;
        let ds = record_pointwise(r, &product, full, &[a, e])?;
        let s_bar = Pointwise::trace(4, |x| vec![(x[0] + x[1] * x[2]) * x[3]]);
        let s_bar = record_pointwise(r, &s_bar, full, &[t, w, e, a])?;

        let turn = |r: &mut dyn Recorder, x: Val| matrix(r, x, rows, g.m);
        let (a3, ds3, e3, s3) = (turn(r, a)?, turn(r, ds)?, turn(r, e_bar)?, turn(r, s_bar)?);
        let (q1, q2) = (bmm(r, false, false, ds3, gk)?, bmm(r, false, false, s3, k3)?);
        let (q3_shape, k3_shape) = (r.meta(q3).shape, r.meta(k3).shape);
        let q_bar = record_pointwise(r, &scaled, q3_shape, &[q1, q2])?;
        let (k1, k2) = (bmm(r, true, false, ds3, gq)?, bmm(r, true, false, s3, q3)?);
        let k_bar = record_pointwise(r, &scaled, k3_shape, &[k1, k2])?;
        let v_bar = bmm(r, true, false, e3, do3)?;
        let (o1, o2) = (bmm(r, false, false, a3, gv)?, bmm(r, false, false, e3, v3)?);
        let (o1, o2) = (layout::reshape_to(r, o1, packed[0])?, layout::reshape_to(r, o2, packed[0])?);
        let (e_sum, s_sum) = (row_sum(r, e_bar)?, row_sum(r, s_bar)?);
        let program = Pointwise::trace(4, |x| vec![x[0] + x[1] - x[2] * x[3]]);
        let do_bar = record_pointwise(r, &program, packed[0], &[o1, o2, e_sum, o])?;
        let minus = Pointwise::trace(2, |x| vec![-(x[0] * x[1])]);
        let o_bar = record_pointwise(r, &minus, packed[0], &[e_sum, g_o])?;
        let by = |r: &mut dyn Recorder, x: Val, c: f64| {
            r.record(crate::pointwise::Scale { c: c as f32 }.into(), &[x])
        };
        let (dl_bar, l_bar) = (by(r, e_sum, LOG2_E)?, by(r, s_sum, -LN_2)?);
        let top_bar = by(r, s_sum, -scale.abs())?;
        let y_bar = pack(r, &packed, &[o_bar, l_bar, top_bar])?;
        let dy_bar = pack(r, &packed, &[do_bar, dl_bar])?;
        let mut all = vec![
            Some(layout::reshape_to(r, q_bar, qs)?),
            Some(layout::reshape_to(r, k_bar, ks)?),
            Some(layout::reshape_to(r, v_bar, vs)?),
        ];
        all.resize(io.ins.len() - 2, None);
        all.extend([Some(y_bar), Some(dy_bar)]);
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let mask = (ins.len() == 6).then(|| &ins[3]);
        let (q, k, v) = (ins[0].num()?.data(), ins[1].num()?.data(), ins[2].num()?.data());
        let (y, dy) = (ins[ins.len() - 2].num()?.data(), ins[ins.len() - 1].num()?.data());
        let [start, tops] = AttentionBwd::starts(&metas);
        let scale = self.scoring().scale(g.d);
        let (sign, size) = (T::c(if scale < 0.0 { -1.0 } else { 1.0 }), T::c(scale.abs()));
        let scale = T::c(scale);
        let mut out = [q.len(), k.len(), v.len()].map(|n| vec![T::c(0.0); n]);
        for z in 0..g.batch {
            for r in 0..g.rows() {
                let i = z * g.rows() + r;
                let (q, g_o) = (&q[i * g.d..][..g.d], &dy[i * g.dv..][..g.dv]);
                let delta = dot(g_o, &y[i * g.dv..][..g.dv]) - dy[start + i] * T::c(LOG2_E);
                for j in (0..g.m).filter(|&j| is_open(&g, self.causal, mask, z, r, j)) {
                    let j = z * g.m + j;
                    let k = &k[j * g.d..][..g.d];
                    let p = ((dot(q, k) * sign - y[tops + i]) * size - y[start + i] * T::c(LN_2)).exp();
                    let ds = p * (dot(g_o, &v[j * g.dv..][..g.dv]) - delta) * scale;
                    for c in 0..g.d {
                        out[0][i * g.d + c] = out[0][i * g.d + c] + ds * k[c];
                        out[1][j * g.d + c] = out[1][j * g.d + c] + ds * q[c];
                    }
                    for c in 0..g.dv {
                        out[2][j * g.dv + c] = out[2][j * g.dv + c] + p * g_o[c];
                    }
                }
            }
        }
        pack_reference(&out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.scoring().attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<AttentionBwd> {
        let Scoring { causal, scale } = Scoring::from_attrs(attrs)?;
        Ok(AttentionBwd { causal, scale })
    }
}
