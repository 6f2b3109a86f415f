//! Complex weights applied to each mode of a spectrum.

use super::{SPECTRAL_CU, spectrum, weight_parts, with_channels};
use crate::pointwise::expression::Scratch;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats, layout, mismatch};
use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// The module of a kernel of products over modes, with `rows` batch rows per thread.
fn mix_module(kernel: &str, rows: usize) -> Source {
    crate::module(format!("{kernel}_{rows}"), || {
        let kernel = kernel.to_uppercase();
        format!(
            "#define DITTO_TABLE 0\n#define CHUNK {K_CHUNK}\n#define ROWS {rows}\n#define {kernel}\n{SPECTRAL_CU}"
        )
    })
}

/// Sizes of a product over modes: spectra (batch, 2, modes, …) and weights (modes, c, o).
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    pub(super) batch: usize,
    pub(super) modes: usize,
    pub(super) c: usize,
    pub(super) o: usize,
    /// From `o` channels to `c`, by the conjugate transpose.
    pub(super) adjoint: bool,
}

impl Mix {
    /// Input and output channels.
    pub(super) fn sides(&self) -> (usize, usize) {
        if self.adjoint { (self.o, self.c) } else { (self.c, self.o) }
    }

    /// Words of the CPU's intermediate result, which is ordered by mode.
    pub(super) fn scratch(&self) -> usize {
        self.batch * 2 * self.modes * self.sides().1
    }

    /// Per mode, one real matrix product of (batch, 2 channels) with (2 channels, 2 channels). The real and imaginary
    /// part of a channel are neighbouring terms.
    pub(super) fn cpu(
        &self,
        pool: &Pool,
        simd: Simd,
        x: &[f32],
        [re, im]: [&[f32]; 2],
        out: &mut [f32],
        dense: &mut [f32],
    ) {
        let Mix { batch, modes, c, o, adjoint } = *self;
        let (inner, outer) = self.sides();
        if out.is_empty() {
            return;
        }
        let g = Gemm { batch: 1, m: batch, n: 2 * outer, k: 2 * inner, ta: false, tb: adjoint };
        let one = Pool::alone();
        let line = 2 * outer;
        pool.chunks_mut(&mut dense[..modes * batch * line], batch * line, |k, dense| {
            let (rows, square) = (batch * 2 * inner, 4 * c * o);
            let mut scratch = Scratch::take(rows + square + g.scratch_len(1));
            let (a, rest) = scratch.words().split_at_mut(rows);
            let (b, rest) = rest.split_at_mut(square);
            let (re, im) = (&re[k * c * o..][..c * o], &im[k * c * o..][..c * o]);
            for i in 0..batch {
                let at = |part: usize| &x[((i * 2 + part) * modes + k) * inner..][..inner];
                let (re, im) = (at(0), at(1));
                let a = &mut a[i * 2 * inner..][..2 * inner];
                a.chunks_exact_mut(2).zip(re).zip(im).for_each(|((a, re), im)| (a[0], a[1]) = (*re, *im));
            }
            if adjoint {
                // Stored (n, k): line (part, c), terms (o, part).
                let (upper, lower) = b.split_at_mut(2 * c * o);
                for ((upper, lower), (re, im)) in
                    upper.chunks_exact_mut(2).zip(lower.chunks_exact_mut(2)).zip(re.iter().zip(im))
                {
                    (upper[0], upper[1], lower[0], lower[1]) = (*re, *im, -im, *re);
                }
            } else {
                // Terms (c, part), columns (part, o).
                for (i, b) in b.chunks_exact_mut(4 * o).enumerate() {
                    let (re, im) = (&re[i * o..][..o], &im[i * o..][..o]);
                    b[..o].copy_from_slice(re);
                    b[o..2 * o].copy_from_slice(im);
                    b[2 * o..3 * o].iter_mut().zip(im).for_each(|(b, im)| *b = -im);
                    b[3 * o..].copy_from_slice(re);
                }
            }
            g.run(one, simd, a, b, None, dense, rest);
        });
        let dense = &*dense;
        pool.chunks_mut(out, 2 * modes * outer, |b, out| {
            for (at, out) in out.chunks_exact_mut(outer).enumerate() {
                let (part, k) = (at / modes, at % modes);
                out.copy_from_slice(&dense[(k * batch + b) * line + part * outer..][..outer]);
            }
        });
    }

    /// Batch rows per thread: fewer where more threads are needed to fill the device.
    pub(super) fn rows(&self, sm_count: u32) -> usize {
        let tiles = self.modes * self.sides().1.div_ceil(32);
        if tiles * self.batch.div_ceil(16) >= 2 * sm_count as usize { 4 } else { 2 }
    }

    fn kernel(&self) -> &'static str {
        if self.adjoint { "mode_mix_adjoint" } else { "mode_mix" }
    }

    /// The module that [`Mix::cuda`] will want.
    pub(super) fn module(&self, gpu: &Gpu) -> Source {
        mix_module(self.kernel(), self.rows(gpu.sm_count))
    }

    pub(super) fn cuda(&self, cuda: &Cuda, x: u64, [re, im]: [u64; 2], out: u64) -> Result<()> {
        let (inner, outer) = self.sides();
        if self.batch * self.modes * outer == 0 {
            return Ok(());
        }
        let rows = self.rows(cuda.sm_count());
        let (name, source) = mix_module(self.kernel(), rows);
        let kernel = cuda.kernel(&name, source, self.kernel())?;
        let (down, across) = (self.batch.div_ceil(4 * rows), outer.div_ceil(32));
        let tiles = self.modes * down * across;
        let mut args = Args::new();
        args.ptr(x).ptr(re).ptr(im).ptr(out);
        for n in [self.batch, self.modes, inner, outer, down, across, tiles] {
            args.u64(n as u64);
        }
        cuda.launch(kernel, [tiles.min(1 << 20) as u32, 1, 1], 128, 0, &args)
    }

    /// The product in another scalar type, from the definition.
    pub(super) fn reference<T: Scalar>(&self, x: &[T], re: &[T], im: &[T]) -> Vec<T> {
        let Mix { batch, modes, c, o, adjoint } = *self;
        let (inner, outer) = self.sides();
        let mut out = Vec::with_capacity(batch * 2 * modes * outer);
        for b in 0..batch {
            for part in 0..2 {
                for k in 0..modes {
                    for j in 0..outer {
                        let mut sum = T::c(0.0);
                        for i in 0..inner {
                            let w = k * c * o + if adjoint { j * o + i } else { i * o + j };
                            let (xr, xi) = (
                                x[(b * 2 * modes + k) * inner + i],
                                x[((b * 2 + 1) * modes + k) * inner + i],
                            );
                            // (xr + i xi)(wr ± i wi)
                            let wi = if adjoint { -im[w] } else { im[w] };
                            sum = sum + if part == 0 { xr * re[w] - xi * wi } else { xr * wi + xi * re[w] };
                        }
                        out.push(sum);
                    }
                }
            }
        }
        out
    }
}

/// Multiplies a spectrum (…, 2, modes, c) by complex weights, mode by mode:
/// `Z[k, o] = Σ_c X[k, c] (wRe + i wIm)[k, c, o]` with `wRe`, `wIm` (modes, c, o). With `adjoint` it maps o channels to
/// c by the conjugate transpose: `X[k, c] = Σ_o Z[k, o] (wRe - i wIm)[k, c, o]`. Each part is a dot product by rule C4
/// over the channels, a channel's real part before its imaginary part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModeMix {
    /// Whether to use the conjugate transpose of the weights.
    pub adjoint: bool,
}

impl ModeMix {
    pub(super) fn of(&self, ins: &[Meta]) -> Result<Mix> {
        let [x, re, im] = floats(Self::NAME, ins)?;
        let [batch, modes, channels] = spectrum(Self::NAME, x)?;
        if re.rank() != 3 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "exactly 3", got: re }));
        }
        if re != im {
            return Err(mismatch(Self::NAME, "real and imaginary weights differ in shape", re, im));
        }
        let [m, c, o] = [re.dims()[0], re.dims()[1], re.dims()[2]];
        let mix = Mix { batch, modes, c, o, adjoint: self.adjoint };
        if m != modes || mix.sides().0 != channels {
            return Err(mismatch(Self::NAME, "spectrum and weights differ in modes or channels", x, re));
        }
        Ok(mix)
    }
}

impl Op for ModeMix {
    const NAME: &'static str = "mode_mix";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let mix = self.of(ins)?;
        Ok(Meta::f32(with_channels(ins[0].shape, mix.sides().1)?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        if device.is_cuda() { 0 } else { self.of(ins).map_or(0, |mix| mix.scratch()) }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(mix) = self.of(run.metas) {
            let [x, re, im] = [run.ins[0], run.ins[1], run.ins[2]];
            mix.cpu(run.pool, run.simd, x, [re, im], run.out, run.workspace);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.of(run.metas)?.cuda(run.cuda, run.ins[0], [run.ins[1], run.ins[2]], run.out)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |mix| vec![mix.module(gpu)])
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // Forward: dX = dZ W^H, dW = conj(X) dZ. Adjoint, Y = Z W^H: dZ = dY W, dW = conj(dY) Z.
        let mix = self.of(&[r.meta(io.ins[0]), r.meta(io.ins[1]), r.meta(io.ins[2])])?;
        let dx = r.record(ModeMix { adjoint: !self.adjoint }.into(), &[dy, io.ins[1], io.ins[2]])?;
        let (left, right) = if self.adjoint { (dy, io.ins[0]) } else { (io.ins[0], dy) };
        let dw = r.record(ModeMixDw.into(), &[left, right])?;
        let parts = weight_parts(mix.modes, mix.c, mix.o)?;
        let re = layout::part(r, dw, &parts, 0)?;
        let im = layout::part(r, dw, &parts, 1)?;
        Ok(vec![Some(dx), Some(re), Some(im)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let out =
            self.of(&metas)?.reference(ins[0].num()?.data(), ins[1].num()?.data(), ins[2].num()?.data());
        Tensor::with_shape(self.shape(&metas)?.shape, out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("adjoint", Attr::Bool(self.adjoint))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<ModeMix> {
        attrs.only(&["adjoint"])?;
        Ok(ModeMix { adjoint: attrs.flag("adjoint")? })
    }
}

/// The gradient of [`ModeMix`] by its weights, `Σ_b conj(X) D`, for spectra `X` (…, 2, modes, c) and `D` (…, 2, modes,
/// o). The parts `wRe = Σ_b Re X Re D + Im X Im D` and `wIm = Σ_b Re X Im D - Im X Re D` are packed, each (modes, c,
/// o). They are dot products by rule C4 over the batch, an entry's real part before its imaginary part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModeMixDw;

impl ModeMixDw {
    pub(super) fn of(ins: &[Meta]) -> Result<Mix> {
        let [x, d] = floats(Self::NAME, ins)?;
        let [batch, modes, c] = spectrum(Self::NAME, x)?;
        let [other, others, o] = spectrum(Self::NAME, d)?;
        if (other, others) != (batch, modes) || x.rank() != d.rank() {
            return Err(mismatch(Self::NAME, "spectra differ in batch or modes", x, d));
        }
        Ok(Mix { batch, modes, c, o, adjoint: false })
    }
}

impl Op for ModeMixDw {
    const NAME: &'static str = "mode_mix_dw";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let mix = ModeMixDw::of(ins)?;
        let (_, words) = layout::packed(&weight_parts(mix.modes, mix.c, mix.o)?);
        Ok(Meta::f32(Shape::new(&[words])?))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(Mix { batch, modes, c, o, .. }) = ModeMixDw::of(run.metas) else { return };
        let (x, d) = (run.ins[0], run.ins[1]);
        let g = Gemm { batch: 1, m: c, n: 2 * o, k: 2 * batch, ta: true, tb: false };
        let one = Pool::alone();
        let each = c * o;
        let half = run.out.len() / 2;
        let (re, im) = run.out.split_at_mut(half);
        re[modes * each..].fill(0.0);
        im[modes * each..].fill(0.0);
        if each == 0 {
            return;
        }
        let (re, im) = (&mut re[..modes * each], &mut im[..modes * each]);
        run.pool.chunks3_mut([re, im, &mut []], each, |k, [re, im, _]| {
            let sizes = [2 * batch * c, 4 * batch * o, 2 * each];
            let mut scratch = Scratch::take(sizes.iter().sum::<usize>() + g.scratch_len(1));
            let (left, rest) = scratch.words().split_at_mut(sizes[0]);
            let (right, rest) = rest.split_at_mut(sizes[1]);
            let (both, rest) = rest.split_at_mut(sizes[2]);
            for b in 0..batch {
                let line = |part: usize| (b * 2 + part) * modes + k;
                for part in 0..2 {
                    left[(2 * b + part) * c..][..c].copy_from_slice(&x[line(part) * c..][..c]);
                }
                let (re, im) = (&d[line(0) * o..][..o], &d[line(1) * o..][..o]);
                let right = &mut right[4 * b * o..][..4 * o];
                right[..o].copy_from_slice(re);
                right[o..2 * o].copy_from_slice(im);
                right[2 * o..3 * o].copy_from_slice(im);
                right[3 * o..].iter_mut().zip(re).for_each(|(y, re)| *y = -re);
            }
            g.run(one, run.simd, left, right, None, both, rest);
            for (both, (re, im)) in
                both.chunks_exact(2 * o).zip(re.chunks_exact_mut(o).zip(im.chunks_exact_mut(o)))
            {
                re.copy_from_slice(&both[..o]);
                im.copy_from_slice(&both[o..]);
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let mix = ModeMixDw::of(run.metas)?;
        let Mix { batch, modes, c, o, .. } = mix;
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let (name, source) = mix_module(Self::NAME, 2);
        let kernel = run.cuda.kernel(&name, source, Self::NAME)?;
        let (down, across) = (c.div_ceil(16), o.div_ceil(32));
        let tiles = modes * down * across;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out);
        for n in [batch, modes, c, o, down, across, tiles, run.shape.numel() / 2] {
            args.u64(n as u64);
        }
        run.cuda.launch(kernel, [tiles.min(1 << 20) as u32, 1, 1], 128, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![mix_module(Self::NAME, 2)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // W = Σ conj(X) D: dX = D G^H, dD = X G
        let mix = ModeMixDw::of(&[r.meta(io.ins[0]), r.meta(io.ins[1])])?;
        let parts = weight_parts(mix.modes, mix.c, mix.o)?;
        let re = layout::part(r, dy, &parts, 0)?;
        let im = layout::part(r, dy, &parts, 1)?;
        let dx = r.record(ModeMix { adjoint: true }.into(), &[io.ins[1], re, im])?;
        let dd = r.record(ModeMix { adjoint: false }.into(), &[io.ins[0], re, im])?;
        Ok(vec![Some(dx), Some(dd)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let Mix { batch, modes, c, o, .. } = ModeMixDw::of(&metas)?;
        let (x, d) = (ins[0].num()?.data(), ins[1].num()?.data());
        let half = (modes * c * o).next_multiple_of(4);
        let mut out = vec![T::c(0.0); 2 * half];
        for (at, part) in (0..modes * c * o).flat_map(|at| [(at, 0), (at, 1)]) {
            let (k, i, j) = (at / o / c, at / o % c, at % o);
            let mut sum = T::c(0.0);
            for b in 0..batch {
                let [xr, xi] = [0, 1].map(|p| x[((b * 2 + p) * modes + k) * c + i]);
                let [dr, di] = [0, 1].map(|p| d[((b * 2 + p) * modes + k) * o + j]);
                sum = sum + if part == 0 { xr * dr + xi * di } else { xr * di - xi * dr };
            }
            out[part * half + at] = sum;
        }
        Tensor::new(&[2 * half], out)
    }

    fn from_attrs(attrs: &Attrs) -> Result<ModeMixDw> {
        attrs.only(&[])?;
        Ok(ModeMixDw)
    }
}
