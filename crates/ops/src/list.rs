//! The one list of ops, and the enum made from it.

use crate::*;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// Calls `$then` with the list of all ops, each as `name: Type`.
#[macro_export]
macro_rules! with_ops {
    ($then:ident) => {
        $then! {
            neg: pointwise::Neg,
            abs: pointwise::Abs,
            sqrt: pointwise::Sqrt,
            square: pointwise::Square,
            exp: pointwise::Exp,
            log: pointwise::Log,
            log1p: pointwise::Log1p,
            expm1: pointwise::Expm1,
            rsqrt: pointwise::Rsqrt,
            sign: pointwise::Sign,
            floor: pointwise::Floor,
            ceil: pointwise::Ceil,
            round: pointwise::Round,
            log_sigmoid: pointwise::LogSigmoid,
            mish: pointwise::Mish,
            hardsigmoid: pointwise::Hardsigmoid,
            hardswish: pointwise::Hardswish,
            leaky_relu: pointwise::LeakyRelu,
            elu: pointwise::Elu,
            inv: pointwise::Inv,
            sin: pointwise::Sin,
            cos: pointwise::Cos,
            erf: pointwise::Erf,
            relu: pointwise::Relu,
            sigmoid: pointwise::Sigmoid,
            tanh: pointwise::Tanh,
            softplus: pointwise::Softplus,
            silu: pointwise::Silu,
            gelu: pointwise::Gelu,
            gelu_erf: pointwise::GeluErf,
            copy: pointwise::Copy,
            scale: pointwise::Scale,
            add_scalar: pointwise::AddScalar,
            pow_scalar: pointwise::PowScalar,
            clamp: pointwise::Clamp,
            safe_log: pointwise::SafeLog,
            add: pointwise::Add,
            sub: pointwise::Sub,
            mul: pointwise::Mul,
            div: pointwise::Div,
            max: pointwise::Max,
            min: pointwise::Min,
            fmax: pointwise::Fmax,
            fmin: pointwise::Fmin,
            pow: pointwise::Pow,
            eq: pointwise::Eq,
            ne: pointwise::Ne,
            lt: pointwise::Lt,
            le: pointwise::Le,
            gt: pointwise::Gt,
            ge: pointwise::Ge,
            axpy: pointwise::Axpy,
            where_: pointwise::Where,
            clamp_to: pointwise::ClampTo,
            tan: pointwise::Tan,
            atan: pointwise::Atan,
            asin: pointwise::Asin,
            acos: pointwise::Acos,
            sinh: pointwise::Sinh,
            cosh: pointwise::Cosh,
            asinh: pointwise::Asinh,
            acosh: pointwise::Acosh,
            atanh: pointwise::Atanh,
            exp2: pointwise::Exp2,
            log2: pointwise::Log2,
            log10: pointwise::Log10,
            erfc: pointwise::Erfc,
            erfcx: pointwise::Erfcx,
            erfinv: pointwise::Erfinv,
            ndtri: pointwise::Ndtri,
            lgamma: pointwise::Lgamma,
            digamma: pointwise::Digamma,
            i0: pointwise::I0,
            i0e: pointwise::I0e,
            i1: pointwise::I1,
            i1e: pointwise::I1e,
            trunc: pointwise::Trunc,
            atan2: pointwise::Atan2,
            fmod: pointwise::Fmod,
            remainder: pointwise::Remainder,
            hypot: pointwise::Hypot,
            logaddexp: pointwise::Logaddexp,
            xlogy: pointwise::Xlogy,
            xlog1py: pointwise::Xlog1py,
            entr: pointwise::Entr,
            sinc: pointwise::Sinc,
            spherical_bessel_j0: pointwise::SphericalBesselJ0,
            log_odds: pointwise::LogOdds,
            copysign: pointwise::Copysign,
            map: pointwise::Map,
            fused: fused::Fused,
            sum: reduce::Sum,
            mean: reduce::Mean,
            amax: reduce::Amax,
            amin: reduce::Amin,
            logsumexp: reduce::Logsumexp,
            variance: reduce::Variance,
            std_dev: reduce::StdDev,
            norm_l1: reduce::NormL1,
            norm_l2: reduce::NormL2,
            norm_inf: reduce::NormInf,
            prod: reduce::Prod,
            global_norm: reduce::GlobalNorm,
            argmax: reduce::Argmax,
            argmin: reduce::Argmin,
            place: reduce::Place,
            pick: reduce::Pick,
            broadcast_to: layout::BroadcastTo,
            reshape: layout::Reshape,
            detach: layout::Detach,
            permute: layout::Permute,
            slice: layout::Slice,
            pad: layout::Pad,
            concat: layout::Concat,
            flip: layout::Flip,
            triangle: layout::Triangle,
            index_select: index::IndexSelect,
            index_add: index::IndexAdd,
            take_along_axis: index::TakeAlongAxis,
            scatter_add: index::ScatterAdd,
            scatter_reduce: index::ScatterReduce,
            scatter_last: index::ScatterLast,
            flat_index: index::FlatIndex,
            argsort: order::ArgSort,
            topk: order::TopK,
            running_extremum: order::RunningExtremum,
            searchsorted: order::SearchSorted,
            to_float: index::ToFloat,
            to_index: index::ToIndex,
            index_eq: index::IndexEq,
            matmul: matmul::MatMul,
            bmm: matmul::Bmm,
            linear: matmul::Linear,
            dft_table: spectral::DftTable,
            axis_matmul: spectral::AxisMatMul,
            mode_mix: spectral::ModeMix,
            mode_mix_dw: spectral::ModeMixDw,
            spectral_conv1d: spectral::SpectralConv1d,
            rfft: spectral::Rfft,
            irfft: spectral::Irfft,
            cholesky: linalg::Cholesky,
            triangular_solve: linalg::TriangularSolve,
            lu: linalg::Lu,
            qr: linalg::Qr,
            cumsum: scan::CumSum,
            selective_scan: scan::SelectiveScan,
            selective_scan_bwd: scan::SelectiveScanBwd,
            recurrent: recurrent::Recurrent,
            recurrent_bwd: recurrent::RecurrentBwd,
            conv: conv::Conv,
            conv_transpose: conv::ConvTranspose,
            conv_kernel_grad: conv::ConvKernelGrad,
            softmax: softmax::Softmax,
            log_softmax: softmax::LogSoftmax,
            softmax_bwd: softmax::SoftmaxBwd,
            log_softmax_bwd: softmax::LogSoftmaxBwd,
            attention: attention::Attention,
            attention_bwd: attention::AttentionBwd,
            attention_mask: attention::AttentionMask,
            self_attention: attention::SelfAttention,
            self_attention_bwd: attention::SelfAttentionBwd,
            rope: attention::Rope,
            softmax_axis: softmax::SoftmaxAxis,
            log_softmax_axis: softmax::LogSoftmaxAxis,
            softmax_axis_bwd: softmax::SoftmaxAxisBwd,
            log_softmax_axis_bwd: softmax::LogSoftmaxAxisBwd,
            masked_softmax: softmax::MaskedSoftmax,
            layer_norm: norm::LayerNorm,
            layer_norm_bwd: norm::LayerNormBwd,
            rms_norm: norm::RmsNorm,
            rms_norm_bwd: norm::RmsNormBwd,
            batch_norm: norm::BatchNorm,
            batch_norm_bwd: norm::BatchNormBwd,
            group_norm: norm::GroupNorm,
            group_norm_bwd: norm::GroupNormBwd,
            moments: norm::Moments,
            max_pool: pool::MaxPool,
            max_pool_bwd: pool::MaxPoolBwd,
            max_pool_pick: pool::MaxPoolPick,
            avg_pool: pool::AvgPool,
            avg_pool_bwd: pool::AvgPoolBwd,
            adaptive_avg_pool: pool::AdaptiveAvgPool,
            adaptive_avg_pool_bwd: pool::AdaptiveAvgPoolBwd,
            adaptive_max_pool: pool::AdaptiveMaxPool,
            adaptive_max_pool_bwd: pool::AdaptiveMaxPoolBwd,
            adaptive_max_pool_pick: pool::AdaptiveMaxPoolPick,
            smooth_max_pool: pool::SmoothMaxPool,
            smooth_max_pool_bwd: pool::SmoothMaxPoolBwd,
            smooth_max_pool_sum: pool::SmoothMaxPoolSum,
            resample: image::Resample,
            resample_bwd: image::ResampleBwd,
            grid_sample: image::GridSample,
            grid_sample_input_bwd: image::GridSampleInputBwd,
            grid_sample_grid_bwd: image::GridSampleGridBwd,
            cross_entropy: loss::CrossEntropy,
            cross_entropy_bwd: loss::CrossEntropyBwd,
            mse: loss::Mse,
            l1: loss::L1,
            huber: loss::Huber,
            smooth_l1: loss::SmoothL1,
            bce: loss::Bce,
            bce_with_logits: loss::BceWithLogits,
            kl_div: loss::KlDiv,
            nll: loss::Nll,
            nll_bwd: loss::NllBwd,
            label_weights: loss::LabelWeights,
            full: random::Full,
            uniform: random::Uniform,
            bernoulli: random::Bernoulli,
            uniform_range: random::UniformRange,
            bernoulli_mask: random::BernoulliMask,
            normal: random::Normal,
            randint: random::RandInt,
            permutation: random::Permutation,
        }
    };
}

macro_rules! any_op {
    ($($name:ident: $module:ident::$op:ident,)*) => {
        /// Any op, as tapes and graphs hold it.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum AnyOp {
            $($op($module::$op),)*
            Custom(Custom),
        }

        $(impl From<$module::$op> for AnyOp {
            fn from(op: $module::$op) -> AnyOp {
                AnyOp::$op(op)
            }
        })*

        impl AnyOp {
            /// Names of all ops, in the order of the list.
            pub const NAMES: &'static [&'static str] = &[$(<$module::$op as Op>::NAME,)*];

            /// The op's name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(AnyOp::$op(_) => <$module::$op as Op>::NAME,)*
                    AnyOp::Custom(op) => op.op().name(),
                }
            }

            /// See [`Op::shape`].
            pub fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                match self {
                    $(AnyOp::$op(op) => op.shape(ins),)*
                    AnyOp::Custom(op) => op.op().shape(ins),
                }
            }

            /// See [`Op::index_limit`].
            pub fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
                match self {
                    $(AnyOp::$op(op) => op.index_limit(ins),)*
                    AnyOp::Custom(op) => op.op().index_limit(ins),
                }
            }

            /// See [`Op::index_bound`].
            pub fn index_bound(&self, ins: &[Meta]) -> IndexBound {
                match self {
                    $(AnyOp::$op(op) => op.index_bound(ins),)*
                    AnyOp::Custom(op) => op.op().index_bound(ins),
                }
            }

            /// See [`Op::view`].
            pub fn view(&self, ins: &[Meta]) -> Option<usize> {
                match self {
                    $(AnyOp::$op(op) => op.view(ins),)*
                    AnyOp::Custom(_) => None,
                }
            }

            /// See [`Op::overwrites`].
            pub fn overwrites(&self) -> bool {
                match self {
                    $(AnyOp::$op(op) => op.overwrites(),)*
                    AnyOp::Custom(_) => false,
                }
            }

            /// See [`Op::workspace`].
            pub fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                match self {
                    $(AnyOp::$op(op) => op.workspace(ins, device),)*
                    AnyOp::Custom(op) => op.op().workspace(ins, device),
                }
            }

            /// See [`Op::cpu`].
            pub fn cpu(&self, run: CpuRun<'_>) {
                match self {
                    $(AnyOp::$op(op) => op.cpu(run),)*
                    AnyOp::Custom(op) => op.op().cpu(run),
                }
            }

            /// See [`Op::prepared`].
            pub fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
                match self {
                    $(AnyOp::$op(op) => op.prepared(ins),)*
                    AnyOp::Custom(op) => op.op().prepared(ins),
                }
            }

            /// See [`Op::cuda`].
            pub(crate) fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                match self {
                    $(AnyOp::$op(op) => op.cuda(run),)*
                    AnyOp::Custom(op) => op.op().cuda(run),
                }
            }

            /// See [`Op::cuda_modules`].
            pub fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                match self {
                    $(AnyOp::$op(op) => op.cuda_modules(ins, gpu),)*
                    AnyOp::Custom(op) => op.op().cuda_modules(ins, gpu),
                }
            }

            /// See [`Op::fused_modules`].
            pub(crate) fn fused_modules(
                &self,
                ins: &[Meta],
                gpu: &Gpu,
                fused: fused::FusedCode<'_>,
            ) -> Option<Vec<Source>> {
                match self {
                    $(AnyOp::$op(op) => op.fused_modules(ins, gpu, fused),)*
                    AnyOp::Custom(_) => None,
                }
            }

            /// See [`Op::reads_magnitudes`].
            #[doc(hidden)]
            pub fn reads_magnitudes(&self, ins: &[Meta], gpu: &Gpu) -> [Option<Lines>; 2] {
                match self {
                    $(AnyOp::$op(op) => op.reads_magnitudes(ins, gpu),)*
                    AnyOp::Custom(_) => [None; 2],
                }
            }

            /// See [`Op::leaving_modules`].
            #[doc(hidden)]
            pub fn leaving_modules(&self, ins: &[Meta], gpu: &Gpu, lines: Lines) -> Option<Vec<Source>> {
                match self {
                    $(AnyOp::$op(op) => op.leaving_modules(ins, gpu, lines),)*
                    AnyOp::Custom(_) => None,
                }
            }

            /// See [`Op::fusion`].
            pub fn fusion(&self, ins: &[Meta]) -> fused::Fusion {
                match self {
                    $(AnyOp::$op(op) => op.fusion(ins),)*
                    AnyOp::Custom(_) => fused::Fusion::default(),
                }
            }

            /// See [`Op::as_pointwise`].
            pub fn as_pointwise(&self, ins: &[Meta]) -> Option<pointwise::expression::Pointwise> {
                match self {
                    $(AnyOp::$op(op) => op.as_pointwise(ins),)*
                    AnyOp::Custom(op) => op.op().as_pointwise(ins),
                }
            }

            /// See [`Op::as_fold`].
            pub fn as_fold(&self, ins: &[Meta]) -> Option<(reduce::fold::Fold, Vec<usize>)> {
                match self {
                    $(AnyOp::$op(op) => op.as_fold(ins),)*
                    AnyOp::Custom(_) => None,
                }
            }

            /// See [`Op::vjp`].
            pub fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let _strict = dittograd_numerics::environment::enter();
                match self {
                    $(AnyOp::$op(op) => op.vjp(r, io, dy),)*
                    AnyOp::Custom(op) => op.vjp(r, io, dy),
                }
            }

            /// See [`Op::reference`]. Errors if the inputs do not fit.
            pub fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let _strict = dittograd_numerics::environment::enter();
                let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
                self.shape(&metas)?;
                if let Some((i, limit)) = self.index_limit(&metas) {
                    check_indices(self.name(), ins[i].idx()?.data(), limit)?;
                }
                match self {
                    $(AnyOp::$op(op) => op.reference(ins),)*
                    AnyOp::Custom(op) => op.reference(ins),
                }
            }

            /// See [`Op::differentiable`].
            pub fn differentiable(&self) -> bool {
                match self {
                    $(AnyOp::$op(op) => op.differentiable(),)*
                    AnyOp::Custom(op) => op.op().differentiable(),
                }
            }

            /// See [`Op::attrs`].
            pub fn attrs(&self) -> Vec<(&'static str, Attr)> {
                match self {
                    $(AnyOp::$op(op) => op.attrs(),)*
                    AnyOp::Custom(op) => op.op().attrs(),
                }
            }

            /// The op of that name with the given attributes.
            pub fn from_name(name: &str, attrs: &Attrs) -> Result<AnyOp> {
                $(if name == <$module::$op as Op>::NAME {
                    return Ok(AnyOp::$op(<$module::$op as Op>::from_attrs(attrs)?));
                })*
                if let Some(op) = custom::from_name(name, attrs) {
                    return op;
                }
                let why = format!("`{name}` is not an op; `dittograd ops` lists them, and a program can register its own");
                Err(Error::argument("op", "name", why))
            }
        }
    };
}
with_ops!(any_op);
