//! The gradient of a convolution's kernel.

use super::geometry::{ConvWindow, Geometry, Sizes};
use super::{Conv, ConvTranspose, image, inputs, plan};
use crate::magnitudes::Lines;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, mismatch};
use dittograd_device::cpu::conv::depthwise::DepthwiseGrad;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// Gradient of a convolution's kernel: from `y (N, Cout, …)`, the gradient of its value, and its input
/// `x (N, Cin, …)`, of shape `(Cout, Cin / groups, size…)`. Sums run over (image, output position), positions
/// that meet a zero of the padding taking part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvKernelGrad {
    /// How the kernel moves.
    pub window: ConvWindow,
    /// Sizes of the kernel.
    pub size: Sizes,
}

impl ConvKernelGrad {
    pub(super) fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        inputs(Self::NAME, ins, false)?;
        let (y, x) = (ins[0].shape, ins[1].shape);
        let k = &self.size.all()[..self.size.get().len()];
        let (batch, channels, sizes) = image(Self::NAME, &x, k.len())?;
        let (y_batch, y_channels, y_sizes) = image(Self::NAME, &y, k.len())?;
        if batch != y_batch {
            return Err(mismatch(Self::NAME, "batch sizes differ", y, x));
        }
        let g = Geometry::new(Self::NAME, &self.window, batch, [channels, y_channels], sizes, k)?;
        if g.axes().iter().zip(y_sizes).any(|(l, &n)| l.output != n) {
            return Err(mismatch(
                Self::NAME,
                "the convolution of the second has other sizes than the first",
                y,
                x,
            ));
        }
        Ok(g)
    }
}

/// Computes the gradient: in digits, or by the kernels for thin groups.
fn run_on_cpu(g: &Geometry, thin: Option<&DepthwiseGrad>, run: CpuRun<'_>) {
    let CpuRun { ins, out, workspace, pool, simd, .. } = run;
    match (g.kernel_grad_digits(run.numerics), thin) {
        (Some(digits), _) => g.kernel_grad().run_digits(digits, pool, simd, ins[0], ins[1], out, workspace),
        (None, Some(thin)) => thin.run(pool, simd, ins[0], ins[1], out, workspace),
        (None, None) => g.kernel_grad().run(pool, simd, ins[0], ins[1], out, workspace),
    }
}

impl Op for ConvKernelGrad {
    const NAME: &'static str = "conv_kernel_grad";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(Meta::f32(self.of(ins)?.kernel_shape()?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.of(ins).map_or(0, |g| match device.as_cuda() {
            Some(cuda) => {
                let gpu = Gpu::of(cuda);
                plan::workspace(&plan::kernel_grad(&g, gpu.numerics), &gpu)
            }
            None => match (g.kernel_grad_digits(device.numerics()), DepthwiseGrad::new(&g.kernel_grad())) {
                (Some(digits), _) => g.kernel_grad().digits_scratch_len(digits, device.threads()),
                (None, Some(thin)) => thin.scratch_len(device.threads()),
                (None, None) => g.kernel_grad().scratch_len(device.threads()),
            },
        })
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(g) = self.of(run.metas) {
            run_on_cpu(&g, DepthwiseGrad::new(&g.kernel_grad()).as_ref(), run);
        }
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        let g = self.of(ins).ok()?;
        let thin = DepthwiseGrad::new(&g.kernel_grad())?;
        Some(Box::new(move |run| run_on_cpu(&g, Some(&thin), run)))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        plan::launch(&plan::kernel_grad(&self.of(run.metas)?, run.cuda.numerics()), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| plan::modules(&plan::kernel_grad(&g, gpu.numerics), gpu, None))
    }

    fn reads_magnitudes(&self, ins: &[Meta], gpu: &Gpu) -> [Option<Lines>; 2] {
        self.of(ins).map_or([None; 2], |g| plan::reads_magnitudes(&plan::kernel_grad(&g, gpu.numerics)))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dw: Val) -> Result<Vec<Option<Val>>> {
        let (y, x) = (io.ins[0], io.ins[1]);
        let metas = [r.meta(y), r.meta(x)];
        let g = self.of(&metas)?;
        let window = self.window;
        let size = Sizes::new(&g.axes().iter().map(|l| l.input).collect::<Vec<_>>())?;
        let dy = r.record(Conv { window }.into(), &[x, dw])?;
        let dx = r.record(ConvTranspose { window, size }.into(), &[y, dw])?;
        Ok(vec![Some(dy), Some(dx)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let (y, x) = (ins[0].num()?.data(), ins[1].num()?.data());
        let mut w = vec![T::c(0.0); g.kernel_shape()?.numel()];
        g.products(|i, t, o| w[t] = w[t] + y[o] * x[i]);
        Tensor::with_shape(g.kernel_shape()?, w)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        [self.window.attrs(), vec![("size", Attr::List(self.size.list()))]].concat()
    }

    fn from_attrs(attrs: &Attrs) -> Result<ConvKernelGrad> {
        attrs.only(&["stride", "padding", "dilation", "groups", "size"])?;
        Ok(ConvKernelGrad { window: ConvWindow::from_attrs(attrs)?, size: Sizes::new(&attrs.list("size")?)? })
    }
}
