//! The transposed convolution.

use super::geometry::{ConvWindow, Geometry, Sizes};
use super::{
    Conv, ConvKernelGrad, add_bias, bias_grad, check_bias, image, inputs, kernel, plan, run_gathers,
    workspace_words,
};
use crate::fused::{FusedCode, Fusion};
use crate::magnitudes::Lines;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, mismatch};
use dittograd_device::cpu::conv::depthwise::Depthwise;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// Transposed convolution of `y (N, Cin, sizes…)` with `w (Cin, Cout / groups, kernel…)` and an optional bias
/// `(Cout)`: the transpose of [`Conv`] with the same window, so also the gradient of its input. `size` is the
/// size of the value along each axis, which must be one that the convolution takes to the sizes of `y`:
/// `(in − 1)·stride − 2·padding + dilation·(kernel − 1) + 1` and up to `stride − 1` (the output padding) more.
///
/// Which taps take part in a value depends only on its position's remainder by the stride: those that meet
/// it at a whole step. Of these, taps that meet nothing of `y` take part as zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvTranspose {
    /// How the kernel moves.
    pub window: ConvWindow,
    /// Sizes of the value.
    pub size: Sizes,
}

impl ConvTranspose {
    pub(super) fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        inputs(Self::NAME, ins, true)?;
        let (y, w) = (ins[0].shape, ins[1].shape);
        kernel(Self::NAME, &w)?;
        let k = &w.dims()[2..];
        let (batch, channels, sizes) = image(Self::NAME, &y, k.len())?;
        if self.size.get().len() != k.len() {
            let why =
                format!("{:?} is given for {} spatial axes: one size per axis is needed", self.size, k.len());
            return Err(Error::argument(Self::NAME, "size", why));
        }
        let Some(out) = w.dims()[1].checked_mul(self.window.groups) else {
            return Err(Error::argument(
                Self::NAME,
                "groups",
                format!("{} are too many", self.window.groups),
            ));
        };
        if channels != w.dims()[0] {
            return Err(mismatch(Self::NAME, "input channels and kernel differ", y, w));
        }
        let g =
            Geometry::new(Self::NAME, &self.window, batch, [out, channels], &self.size.all()[..k.len()], k)?;
        for (a, (l, &n)) in g.axes().iter().zip(sizes).enumerate() {
            if l.output != n {
                let why = format!(
                    "{:?} has {} along axis {a}, which a convolution takes to {}, but the input has {n}: an \
                     output padding is below the stride",
                    self.size, l.input, l.output
                );
                return Err(Error::argument(Self::NAME, "size", why));
            }
        }
        check_bias(Self::NAME, ins, out)?;
        Ok(g)
    }
}

impl Op for ConvTranspose {
    const NAME: &'static str = "conv_transpose";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(Meta::f32(self.of(ins)?.input_shape()?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.of(ins).map_or(0, |g| match device.as_cuda() {
            Some(cuda) => {
                let gpu = Gpu::of(cuda);
                plan::workspace(&plan::transposed(&g, gpu.numerics), &gpu)
            }
            None => {
                workspace_words(g.transposed_digits(device.numerics()), || g.transposed(), device.threads())
            }
        })
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(g) = self.of(run.metas) {
            let digits = g.transposed_digits(run.numerics);
            run_gathers(Depthwise::new(g.transposed()).as_ref(), digits, || g.transposed(), run);
        }
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        let g = self.of(ins).ok()?;
        let thin = Depthwise::new(g.transposed())?;
        Some(Box::new(move |run| {
            run_gathers(Some(&thin), g.transposed_digits(run.numerics), || g.transposed(), run);
        }))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        plan::launch(&plan::transposed(&self.of(run.metas)?, run.cuda.numerics()), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| plan::modules(&plan::transposed(&g, gpu.numerics), gpu, None))
    }

    fn fusion(&self, ins: &[Meta]) -> Fusion {
        let in_digits = self.of(ins).is_ok_and(|g| g.transposed_digits(Numerics::Turbo).is_some());
        super::fusion(self, ins, 1, in_digits)
    }

    fn fused_modules(&self, ins: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
        plan::fused_modules(&plan::transposed(&self.of(ins).ok()?, gpu.numerics), gpu, fused)
    }

    fn reads_magnitudes(&self, ins: &[Meta], gpu: &Gpu) -> [Option<Lines>; 2] {
        self.of(ins).map_or([None; 2], |g| plan::reads_magnitudes(&plan::transposed(&g, gpu.numerics)))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let metas: Vec<Meta> = io.ins.iter().map(|&v| r.meta(v)).collect();
        let g = self.of(&metas)?;
        let (y, w) = (io.ins[0], io.ins[1]);
        let window = self.window;
        let size = Sizes::new(&g.axes().iter().map(|l| l.kernel).collect::<Vec<_>>())?;
        let d = r.record(Conv { window }.into(), &[dy, w])?;
        let dw = r.record(ConvKernelGrad { window, size }.into(), &[y, dy])?;
        let mut all = vec![Some(d), Some(dw)];
        if io.ins.len() > 2 {
            all.push(Some(bias_grad(r, &g, dy)?));
        }
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let (y, w) = (ins[0].num()?.data(), ins[1].num()?.data());
        let mut x = vec![T::c(0.0); g.input_shape()?.numel()];
        g.products(|i, t, o| x[i] = x[i] + y[o] * w[t]);
        add_bias(&mut x, ins.get(2), &g, g.channels_in)?;
        Tensor::with_shape(g.input_shape()?, x)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        [self.window.attrs(), vec![("size", Attr::List(self.size.list()))]].concat()
    }

    fn from_attrs(attrs: &Attrs) -> Result<ConvTranspose> {
        attrs.only(&["stride", "padding", "dilation", "groups", "size"])?;
        Ok(ConvTranspose { window: ConvWindow::from_attrs(attrs)?, size: Sizes::new(&attrs.list("size")?)? })
    }
}
