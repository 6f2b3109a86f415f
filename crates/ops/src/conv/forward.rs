//! The convolution.

use super::geometry::{ConvAxis, ConvWindow, Geometry, Sizes};
use super::{
    ConvKernelGrad, ConvTranspose, add_bias, bias_grad, check_bias, image, inputs, kernel, plan, run_gathers,
    workspace_words,
};
use crate::fused::{FusedCode, Fusion};
use crate::magnitudes::Lines;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, mismatch};
use dittograd_device::cpu::conv::depthwise::Depthwise;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::Numerics;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// Convolution (cross-correlation) of `x (N, Cin, sizes…)` with `w (Cout, Cin / groups, kernel…)` and an
/// optional bias `(Cout)`; the batch axis may be absent. Along each axis there are
/// `⌊(in + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1` outputs; fewer than one is an error. Elements
/// beyond the input are zeros and take part in the sums, so that an infinite weight next to the edge gives NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv {
    /// How the kernel moves.
    pub window: ConvWindow,
}

impl Conv {
    pub(super) fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        inputs(Self::NAME, ins, true)?;
        let (x, w) = (ins[0].shape, ins[1].shape);
        kernel(Self::NAME, &w)?;
        let k = &w.dims()[2..];
        let (batch, channels, sizes) = image(Self::NAME, &x, k.len())?;
        let channels = [channels, w.dims()[0]];
        let g = Geometry::new(Self::NAME, &self.window, batch, channels, sizes, k)?;
        if g.channels_in != w.dims()[1] {
            return Err(mismatch(Self::NAME, "input channels per group and kernel differ", x, w));
        }
        check_bias(Self::NAME, ins, channels[1])?;
        Ok(g)
    }
}

impl Op for Conv {
    const NAME: &'static str = "conv";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(Meta::f32(self.of(ins)?.output_shape()?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.of(ins).map_or(0, |g| match device.as_cuda() {
            Some(cuda) => {
                let gpu = Gpu::of(cuda);
                plan::workspace(&plan::forward(&g, gpu.numerics), &gpu)
            }
            None => workspace_words(
                g.forward_digits(device.numerics()),
                || std::iter::once(g.forward()),
                device.threads(),
            ),
        })
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(g) = self.of(run.metas) {
            let classes = || std::iter::once(g.forward());
            run_gathers(Depthwise::new(classes()).as_ref(), g.forward_digits(run.numerics), classes, run);
        }
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        let g = self.of(ins).ok()?;
        let thin = Depthwise::new(std::iter::once(g.forward()))?;
        Some(Box::new(move |run| {
            run_gathers(Some(&thin), g.forward_digits(run.numerics), || std::iter::once(g.forward()), run);
        }))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        plan::launch(&plan::forward(&self.of(run.metas)?, run.cuda.numerics()), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| plan::modules(&plan::forward(&g, gpu.numerics), gpu, None))
    }

    fn fusion(&self, ins: &[Meta]) -> Fusion {
        let in_digits = self.of(ins).is_ok_and(|g| g.forward_digits(Numerics::Turbo).is_some());
        super::fusion(self, ins, 0, in_digits)
    }

    fn fused_modules(&self, ins: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
        plan::fused_modules(&plan::forward(&self.of(ins).ok()?, gpu.numerics), gpu, fused)
    }

    fn reads_magnitudes(&self, ins: &[Meta], gpu: &Gpu) -> [Option<Lines>; 2] {
        self.of(ins).map_or([None; 2], |g| plan::reads_magnitudes(&plan::forward(&g, gpu.numerics)))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let metas: Vec<Meta> = io.ins.iter().map(|&v| r.meta(v)).collect();
        let g = self.of(&metas)?;
        let (x, w) = (io.ins[0], io.ins[1]);
        let sizes = |of: fn(&ConvAxis) -> usize| Sizes::new(&g.axes().iter().map(of).collect::<Vec<_>>());
        let window = self.window;
        let dx = r.record(ConvTranspose { window, size: sizes(|l| l.input)? }.into(), &[dy, w])?;
        let dw = r.record(ConvKernelGrad { window, size: sizes(|l| l.kernel)? }.into(), &[dy, x])?;
        let mut all = vec![Some(dx), Some(dw)];
        if io.ins.len() > 2 {
            all.push(Some(bias_grad(r, &g, dy)?));
        }
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let (x, w) = (ins[0].num()?.data(), ins[1].num()?.data());
        let mut y = vec![T::c(0.0); g.output_shape()?.numel()];
        g.products(|i, t, o| y[o] = y[o] + x[i] * w[t]);
        add_bias(&mut y, ins.get(2), &g, g.channels_out)?;
        Tensor::with_shape(g.output_shape()?, y)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.window.attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<Conv> {
        attrs.only(&["stride", "padding", "dilation", "groups"])?;
        Ok(Conv { window: ConvWindow::from_attrs(attrs)? })
    }
}
