//! The spectral convolution of the Fourier neural operator as one op.

use super::axis_matmul::{Along, AxisMatMul};
use super::dft_table::{DftTable, MAX_GRID, Table, angles, table_module};
use super::mode_mix::{Mix, ModeMix, ModeMixDw};
use super::{weight_parts, with_channels};
use crate::{AnyTensor, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats, layout, mismatch};
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Spectral convolution along a grid: `x` (…, grid, c), `wRe`, `wIm` (modes, c, o), value (…, grid, o).
///
/// Let `θ = 2π k t / grid`. The value is `y[t, o] = 1/grid Σ_k s_k Re(Z[k, o] e^{iθ})` over the kept modes, with
/// `X[k] = Σ_t x[t] e^{-iθ}` and `Z[k, o] = Σ_c X[k, c] (wRe + i wIm)[k, c, o]`. The weight `s_k` is 1 for mode 0 and
/// for the highest mode of an even grid, whose imaginary part of `Z` does not count; otherwise it is 2. With no modes
/// the value is zero. More than `grid / 2 + 1` modes, an empty grid and no channels are errors.
///
/// This op is always by tables, which have `4 modes grid` elements; sessions choose by
/// [`DftTable::is_faster_by_fft`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpectralConv1d;

/// The steps of a spectral convolution.
pub(super) struct Conv {
    pub(super) table: Table,
    pub(super) analysis: Along,
    pub(super) mix: Mix,
    pub(super) synthesis: Along,
}

impl Conv {
    /// Words of the two tables, of the spectrum and of the mixed spectrum. Each region starts at a multiple of 4.
    pub(super) fn words(&self) -> [usize; 3] {
        let spectrum = self.mix.batch * self.table.rows();
        let [table, x, z] =
            [self.table.len(), spectrum * self.mix.c, spectrum * self.mix.o].map(|n| n.next_multiple_of(4));
        [2 * table, x, z]
    }
}

impl SpectralConv1d {
    pub(super) fn of(ins: &[Meta]) -> Result<Conv> {
        let [x, re, im] = floats(Self::NAME, ins)?;
        if x.rank() < 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        let (lead, last) = x.dims().split_at(x.rank() - 2);
        let (batch, n) = (lead.iter().product(), last[0]);
        if n == 0 || n > MAX_GRID {
            let why = format!("{n} points, use 1 to {MAX_GRID}");
            return Err(Error::argument(Self::NAME, "grid", why));
        }
        if re.rank() != 3 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "exactly 3", got: re }));
        }
        if re != im {
            return Err(mismatch(Self::NAME, "real and imaginary weights differ in shape", re, im));
        }
        let [modes, c, o] = [re.dims()[0], re.dims()[1], re.dims()[2]];
        if c == 0 || o == 0 {
            return Err(Error::argument(Self::NAME, "channels", "there are none, use at least 1"));
        }
        if modes > n / 2 + 1 {
            let why = format!("{modes} of a grid of {n} points, which has {}", n / 2 + 1);
            return Err(Error::argument(Self::NAME, "modes", why));
        }
        if last[1] != c {
            return Err(mismatch(Self::NAME, "value and weights differ in channels", x, re));
        }
        let table = Table::real(n, modes);
        let rows = table.rows();
        Ok(Conv {
            table,
            analysis: Along { batch, m: rows, k: n, w: c, ta: false },
            mix: Mix { batch, modes, c, o, adjoint: false },
            synthesis: Along { batch, m: n, k: rows, w: o, ta: true },
        })
    }
}

/// Records the two tables of a grid.
pub(super) fn tables(r: &mut dyn Recorder, n: usize, modes: usize) -> Result<[Val; 2]> {
    let op = DftTable { n, low: modes, high: 0, complex: false };
    let both = r.record(op.into(), &[])?;
    let shape = Shape::new(&[op.table().rows(), op.table().columns()])?;
    let mut half = |start| {
        let one = r.record(layout::Slice { axis: 0, start, len: 1, step: 1 }.into(), &[both])?;
        layout::reshape_to(r, one, shape)
    };
    Ok([half(0)?, half(1)?])
}

impl Op for SpectralConv1d {
    const NAME: &'static str = "spectral_conv1d";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let conv = SpectralConv1d::of(ins)?;
        Ok(Meta::f32(with_channels(ins[0].shape, conv.mix.o)?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(conv) = SpectralConv1d::of(ins) else { return 0 };
        let own = match device.as_cuda() {
            Some(cuda) => {
                let gpu = Gpu::of(cuda);
                conv.analysis.workspace(&gpu).max(conv.synthesis.workspace(&gpu))
            }
            None => conv.table.scratch().max(conv.mix.scratch()),
        };
        conv.words().iter().sum::<usize>() + own
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(conv) = SpectralConv1d::of(run.metas) else { return };
        let (pool, simd) = (run.pool, run.simd);
        let [tables, spectrum, mixed] = conv.words();
        let (tables, rest) = run.workspace.split_at_mut(tables);
        let (x, rest) = rest.split_at_mut(spectrum);
        let (z, own) = rest.split_at_mut(mixed);
        let len = conv.table.len();
        conv.table.cpu(pool, simd, 0, &mut tables[..2 * len], own);
        let spectrum = conv.mix.batch * conv.table.rows();
        let (x, z) = (&mut x[..spectrum * conv.mix.c], &mut z[..spectrum * conv.mix.o]);
        conv.analysis.cpu(pool, simd, &tables[..len], run.ins[0], x);
        conv.mix.cpu(pool, simd, x, [run.ins[1], run.ins[2]], z, own);
        conv.synthesis.cpu(pool, simd, &tables[len..2 * len], z, run.out);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let conv = SpectralConv1d::of(run.metas)?;
        let words = conv.words();
        let tables = run.workspace;
        let x = tables + 4 * words[0] as u64;
        let z = x + 4 * words[1] as u64;
        let own = z + 4 * words[2] as u64;
        let pitch = words[0] / 2;
        conv.table.cuda(run.cuda, 0, 2, tables, pitch)?;
        conv.analysis.cuda(run, tables, run.ins[0], x, own)?;
        conv.mix.cuda(run.cuda, x, [run.ins[1], run.ins[2]], z)?;
        conv.synthesis.cuda(run, tables + 4 * pitch as u64, z, run.out, own)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        let Ok(conv) = SpectralConv1d::of(ins) else { return Vec::new() };
        let mut all = vec![table_module(), conv.mix.module(gpu)];
        all.extend(conv.analysis.modules(gpu));
        all.extend(conv.synthesis.modules(gpu));
        all
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // With A and A' the tables: dZ = A' dy, dX = dZ W^H, dx = A^T dX, dW = Σ conj(A x) dZ
        let (x, re, im) = (io.ins[0], io.ins[1], io.ins[2]);
        let conv = SpectralConv1d::of(&[r.meta(x), r.meta(re), r.meta(im)])?;
        let Mix { batch, modes, c, o, .. } = conv.mix;
        let [plain, weighted] = tables(r, conv.table.n, modes)?;
        let apart = |channels| Shape::new(&[batch, 2, modes, channels]);
        let flat = |channels| Shape::new(&[batch, conv.table.n, channels]);
        let xs = r.meta(x).shape;
        let x = layout::reshape_to(r, x, flat(c)?)?;
        let dy = layout::reshape_to(r, dy, flat(o)?)?;
        let spectrum = r.record(AxisMatMul { ta: false }.into(), &[plain, x])?;
        let spectrum = layout::reshape_to(r, spectrum, apart(c)?)?;
        let dz = r.record(AxisMatMul { ta: false }.into(), &[weighted, dy])?;
        let dz = layout::reshape_to(r, dz, apart(o)?)?;
        let dw = r.record(ModeMixDw.into(), &[spectrum, dz])?;
        let parts = weight_parts(modes, c, o)?;
        let dre = layout::part(r, dw, &parts, 0)?;
        let dim = layout::part(r, dw, &parts, 1)?;
        let dspectrum = r.record(ModeMix { adjoint: true }.into(), &[dz, re, im])?;
        let rows = layout::reshape_to(r, dspectrum, Shape::new(&[batch, 2 * modes, c])?)?;
        let dx = r.record(AxisMatMul { ta: true }.into(), &[plain, rows])?;
        let dx = layout::reshape_to(r, dx, xs)?;
        Ok(vec![Some(dx), Some(dre), Some(dim)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let Conv { table, mix: Mix { batch, modes, c, o, .. }, .. } = SpectralConv1d::of(&metas)?;
        let (x, re, im) = (ins[0].num()?.data(), ins[1].num()?.data(), ins[2].num()?.data());
        let n = table.n;
        let turns = angles(n);
        let mut y = vec![T::c(0.0); batch * n * o];
        for b in 0..batch {
            for k in 0..modes {
                let mut z = vec![(T::c(0.0), T::c(0.0)); o];
                for i in 0..c {
                    let (mut real, mut imaginary) = (T::c(0.0), T::c(0.0));
                    for t in 0..n {
                        let (cos, sin) = turns[k * t % n];
                        let v = x[(b * n + t) * c + i];
                        real = real + v * T::c(cos);
                        imaginary = imaginary - v * T::c(sin);
                    }
                    for (j, z) in z.iter_mut().enumerate() {
                        let w = (k * c + i) * o + j;
                        z.0 = z.0 + (real * re[w] - imaginary * im[w]);
                        z.1 = z.1 + (real * im[w] + imaginary * re[w]);
                    }
                }
                for t in 0..n {
                    let (cos, sin) = turns[k * t % n];
                    let s = table.weight(k) / n as f64;
                    for (j, z) in z.iter().enumerate() {
                        let at = (b * n + t) * o + j;
                        y[at] = y[at] + (z.0 * T::c(s * cos) - z.1 * T::c(s * sin));
                    }
                }
            }
        }
        Tensor::with_shape(self.shape(&metas)?.shape, y)
    }

    fn from_attrs(attrs: &Attrs) -> Result<SpectralConv1d> {
        attrs.only(&[])?;
        Ok(SpectralConv1d)
    }
}
