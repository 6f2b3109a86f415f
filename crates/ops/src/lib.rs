//! Operations. An op is a small value with rules attached: shape, CPU kernel, CUDA kernel, gradient,
//! f64 reference, samples and rejects. The tape and the compiled graph hold the same [`AnyOp`].
//!
//! [`with_ops!`](crate::with_ops) is the one list of them: the enum, the dispatch, the documentation
//! table and the tests of every op are made from it. To add an op, write it in its family's file and add
//! its line here.

pub mod attention;
pub mod channel_norm;
pub mod conv;
mod conv_plan;
mod definitions;
mod depthwise_plan;
pub mod elementwise;
mod exec;
pub mod extremum;
pub mod fft;
pub mod fold;
pub mod fused;
pub mod global_norm;
pub mod index;
pub mod layout;
pub mod led;
pub mod loss;
pub mod map;
pub mod matmul;
mod matmul_plan;
pub mod norm;
pub mod pool;
pub mod program;
pub mod random;
mod record;
pub mod reduce;
pub mod rope;
mod rows;
pub mod sampling;
pub mod scan;
pub mod softmax;
mod sort;
pub mod spectral;

pub use definitions::Definitions;
#[doc(hidden)]
pub use dittograd_numerics::tensor::AnyTensor;
pub use exec::apply;
pub use exec::{MAX_INS, PerInput, check_bound, check_indices, launch, with_stand_in};
pub use record::DeviceRecorder;

use dittograd_device::cpu::pool::Pool;
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cuda::{Cuda, Source};
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

/// Calls `$then` with the list of all ops, each as `name: Type`.
#[macro_export]
macro_rules! with_ops {
    ($then:ident) => {
        $then! {
            neg: elementwise::Neg,
            abs: elementwise::Abs,
            sqrt: elementwise::Sqrt,
            square: elementwise::Square,
            exp: elementwise::Exp,
            log: elementwise::Log,
            log1p: elementwise::Log1p,
            expm1: elementwise::Expm1,
            rsqrt: elementwise::Rsqrt,
            sign: elementwise::Sign,
            floor: elementwise::Floor,
            ceil: elementwise::Ceil,
            round: elementwise::Round,
            log_sigmoid: elementwise::LogSigmoid,
            mish: elementwise::Mish,
            hardsigmoid: elementwise::Hardsigmoid,
            hardswish: elementwise::Hardswish,
            leaky_relu: elementwise::LeakyRelu,
            elu: elementwise::Elu,
            inv: elementwise::Inv,
            sin: elementwise::Sin,
            cos: elementwise::Cos,
            erf: elementwise::Erf,
            relu: elementwise::Relu,
            sigmoid: elementwise::Sigmoid,
            tanh: elementwise::Tanh,
            softplus: elementwise::Softplus,
            silu: elementwise::Silu,
            gelu: elementwise::Gelu,
            gelu_erf: elementwise::GeluErf,
            copy: elementwise::Copy,
            scale: elementwise::Scale,
            add_scalar: elementwise::AddScalar,
            pow_scalar: elementwise::PowScalar,
            clamp: elementwise::Clamp,
            safe_log: elementwise::SafeLog,
            add: elementwise::Add,
            sub: elementwise::Sub,
            mul: elementwise::Mul,
            div: elementwise::Div,
            max: elementwise::Max,
            min: elementwise::Min,
            fmax: elementwise::Fmax,
            fmin: elementwise::Fmin,
            pow: elementwise::Pow,
            eq: elementwise::Eq,
            ne: elementwise::Ne,
            lt: elementwise::Lt,
            le: elementwise::Le,
            gt: elementwise::Gt,
            ge: elementwise::Ge,
            axpy: elementwise::Axpy,
            where_: elementwise::Where,
            clamp_to: elementwise::ClampTo,
            map: map::Map,
            fused: fused::Fused,
            led: led::Led,
            folded: fold::Folded,
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
            global_norm: global_norm::GlobalNorm,
            argmax: extremum::Argmax,
            argmin: extremum::Argmin,
            place: extremum::Place,
            pick: extremum::Pick,
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
            matmul: matmul::MatMul,
            bmm: matmul::Bmm,
            linear: matmul::Linear,
            dft_table: spectral::DftTable,
            axis_matmul: spectral::AxisMatMul,
            mode_mix: spectral::ModeMix,
            mode_mix_dw: spectral::ModeMixDw,
            spectral_conv1d: spectral::SpectralConv1d,
            rfft: fft::Rfft,
            irfft: fft::Irfft,
            cumsum: scan::CumSum,
            selective_scan: scan::SelectiveScan,
            selective_scan_bwd: scan::SelectiveScanBwd,
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
            rope: rope::Rope,
            softmax_axis: softmax::SoftmaxAxis,
            log_softmax_axis: softmax::LogSoftmaxAxis,
            softmax_axis_bwd: softmax::SoftmaxAxisBwd,
            log_softmax_axis_bwd: softmax::LogSoftmaxAxisBwd,
            masked_softmax: softmax::MaskedSoftmax,
            layer_norm: norm::LayerNorm,
            layer_norm_bwd: norm::LayerNormBwd,
            rms_norm: norm::RmsNorm,
            rms_norm_bwd: norm::RmsNormBwd,
            batch_norm: channel_norm::BatchNorm,
            batch_norm_bwd: channel_norm::BatchNormBwd,
            group_norm: channel_norm::GroupNorm,
            group_norm_bwd: channel_norm::GroupNormBwd,
            moments: channel_norm::Moments,
            max_pool: pool::MaxPool,
            max_pool_bwd: pool::MaxPoolBwd,
            max_pool_pick: pool::MaxPoolPick,
            avg_pool: pool::AvgPool,
            avg_pool_bwd: pool::AvgPoolBwd,
            adaptive_avg_pool: pool::AdaptiveAvgPool,
            adaptive_avg_pool_bwd: pool::AdaptiveAvgPoolBwd,
            smooth_max_pool: pool::SmoothMaxPool,
            smooth_max_pool_bwd: pool::SmoothMaxPoolBwd,
            smooth_max_pool_sum: pool::SmoothMaxPoolSum,
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

/// A value while rules are being recorded: on a tape, in a graph, or computed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Val(pub u32);

/// Whatever ops can be recorded on. Gradient rules are written against this, so one rule serves the
/// eager walk, the compiled graph and higher derivatives.
pub trait Recorder {
    /// Records `op` on `ins` and returns its value.
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> Result<Val>;
    /// Shape and element type of a value.
    fn meta(&self, v: Val) -> Meta;
}

/// What a gradient rule can see: the inputs and the value of the op.
#[derive(Clone, Copy, Debug)]
pub struct Io<'a> {
    /// The inputs.
    pub ins: &'a [Val],
    /// The value.
    pub out: Val,
}

/// What a CPU kernel gets. Shapes were checked by [`Op::shape`]; memory comes from outside.
pub struct CpuRun<'a> {
    /// Threads.
    pub pool: &'a Pool,
    /// SIMD level.
    pub simd: Simd,
    /// Shapes and types of the inputs.
    pub metas: &'a [Meta],
    /// The inputs; indices are seen through [`CpuRun::indices`].
    pub ins: &'a [&'a [f32]],
    /// Shape of the output.
    pub shape: Shape,
    /// The output, with undefined contents.
    pub out: &'a mut [f32],
    /// As many words as [`Op::workspace`] asked for, with undefined contents.
    pub workspace: &'a mut [f32],
}

impl CpuRun<'_> {
    /// Input `i` as indices.
    pub fn indices(&self, i: usize) -> &[u32] {
        bytemuck::cast_slice(self.ins[i])
    }
}

/// What kernels are chosen by on a GPU. The choice changes the speed, never a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gpu {
    /// Multiprocessors.
    pub sm_count: u32,
    /// Bytes of shared memory a block can have.
    pub shared: usize,
    /// How products are computed.
    pub numerics: Numerics,
}

impl Gpu {
    /// That of an open device.
    pub fn of(cuda: &Cuda) -> Gpu {
        Gpu { sm_count: cuda.sm_count(), shared: cuda.max_shared_per_block(), numerics: cuda.numerics() }
    }
}

/// What a CUDA kernel launch gets.
pub struct CudaRun<'a> {
    /// The device.
    pub cuda: &'a Arc<Cuda>,
    /// Shapes and types of the inputs.
    pub metas: &'a [Meta],
    /// Addresses of the inputs.
    pub ins: &'a [u64],
    /// Shape of the output.
    pub shape: Shape,
    /// Address of the output.
    pub out: u64,
    /// Address of the workspace.
    pub workspace: u64,
    /// Programs that the kernels are to take in, for ops that [can](Op::joined).
    pub around: fused::Around<'a>,
}

/// An input the checks should draw.
#[derive(Clone, Debug)]
pub enum SampleIn {
    /// Numbers of a shape, uniform in a range.
    Num(Shape, (f64, f64)),
    /// Indices of a shape, below a bound.
    Idx(Shape, u32),
}

impl SampleIn {
    /// Numbers in `[-2, 2)`.
    pub fn any(shape: Shape) -> SampleIn {
        SampleIn::Num(shape, (-2.0, 2.0))
    }

    /// Shape and element type.
    pub fn meta(&self) -> Meta {
        match self {
            SampleIn::Num(s, _) => Meta::f32(*s),
            SampleIn::Idx(s, _) => Meta::u32(*s),
        }
    }
}

/// An op with inputs that the checks run it on.
#[derive(Clone, Debug)]
pub struct Sample<O> {
    /// The op.
    pub op: O,
    /// Its inputs.
    pub ins: Vec<SampleIn>,
}

/// An op with inputs it must refuse.
#[derive(Clone, Debug)]
pub struct Reject<O> {
    /// The op.
    pub op: O,
    /// The inputs.
    pub ins: Vec<Meta>,
    /// Name of the [`ErrorKind`] it must answer with.
    pub want: &'static str,
}

/// How far a result may be from the f64 reference: `|got - want| <= ulps * ulp(want) + terms * 2^-24 * magnitude`,
/// where the magnitude is the reference evaluated on absolute values (Higham's running bound).
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Relative part in units in the last place.
    pub ulps: f64,
    /// Number of roundings of the largest intermediate magnitude.
    pub terms: f64,
}

impl Bound {
    /// No error at all: the op only moves elements or makes them.
    pub const EXACT: Bound = Bound { ulps: 0.0, terms: 0.0 };
}

/// A named attribute value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// A number.
    Num(f64),
    /// A whole number that may be too large for a float: a seed.
    Whole(u64),
    /// A truth value.
    Bool(bool),
    /// A list of sizes or axes.
    List(Vec<usize>),
}

/// The attributes of an op by name, as the program reads and prints them.
#[derive(Clone, Debug, Default)]
pub struct Attrs(pub Vec<(String, Attr)>);

impl Attrs {
    fn get(&self, name: &str) -> Option<&Attr> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, a)| a)
    }

    /// The number called `name`.
    pub fn num(&self, name: &'static str) -> Result<f64> {
        match self.get(name) {
            Some(Attr::Num(x)) => Ok(*x),
            Some(Attr::Whole(x)) => Ok(*x as f64),
            _ => Err(Error::argument("attributes", name, "a number is needed")),
        }
    }

    /// Whether there is an attribute called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The whole number called `name`, with all its bits.
    pub fn word(&self, name: &'static str) -> Result<u64> {
        match self.get(name) {
            Some(Attr::Num(x)) if *x >= 0.0 && x.fract() == 0.0 && *x < 9_007_199_254_740_992.0 => {
                Ok(*x as u64)
            }
            Some(Attr::Whole(x)) => Ok(*x),
            _ => Err(Error::argument("attributes", name, "a whole number from 0 is needed")),
        }
    }

    /// The whole number called `name`, as a size.
    pub fn whole(&self, name: &'static str) -> Result<usize> {
        let small = self.word(name)?;
        match usize::try_from(small) {
            Ok(n) if small < 1 << f64::MANTISSA_DIGITS => Ok(n),
            _ => Err(Error::argument("attributes", name, "a whole number below 2^53 is needed")),
        }
    }

    /// The truth value called `name`, false if absent.
    pub fn flag(&self, name: &'static str) -> Result<bool> {
        match self.get(name) {
            Some(Attr::Bool(x)) => Ok(*x),
            None => Ok(false),
            _ => Err(Error::argument("attributes", name, "true or false is needed")),
        }
    }

    /// The list called `name`.
    pub fn list(&self, name: &'static str) -> Result<Vec<usize>> {
        match self.get(name) {
            Some(Attr::List(x)) => Ok(x.clone()),
            _ => Err(Error::argument("attributes", name, "a list of whole numbers is needed")),
        }
    }

    /// Errors if an attribute is given that is not in `known`.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.0.iter().find(|(n, _)| !known.contains(&n.as_str())) {
            None => Ok(()),
            Some((n, _)) => {
                Err(Error::argument("attributes", "name", format!("`{n}` is not one of {known:?}")))
            }
        }
    }
}

/// What is known of the entries of a value of indices before it is computed, so that ops that read at them need not
/// look at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexBound {
    /// Nothing.
    Unknown,
    /// They are below this number.
    Below(usize),
    /// They are entries of so many of the first inputs, or 0.
    OfInputs(usize),
}

/// A kernel of the CPU that can be run many times.
pub type Kernel = Box<dyn Fn(CpuRun<'_>) + Send + Sync>;

/// The rules of an op.
pub trait Op: Clone + PartialEq + Debug + Sized {
    /// The op's name in messages, graphs, tests and the program.
    const NAME: &'static str;

    /// Shape and type of the value, or why these inputs cannot be. The only validator: after `Ok` the
    /// kernels cannot fail on shapes.
    fn shape(&self, ins: &[Meta]) -> Result<Meta>;

    /// For index inputs: which one, and what its entries must be below.
    fn index_limit(&self, _ins: &[Meta]) -> Option<(usize, usize)> {
        None
    }

    /// For a value of indices: what is known of its entries before it is computed.
    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::Unknown
    }

    /// For a value that is a run of its first input's elements, under any shape, and shares its memory:
    /// where the run starts. A start must be a multiple of 4 words, since kernels read vectors.
    fn view(&self, _ins: &[Meta]) -> Option<usize> {
        None
    }

    /// Whether the CUDA kernel may write the value over the first input, which has as many elements: nobody reads an element
    /// after another has written it. Elementwise ops always may.
    #[doc(hidden)]
    fn overwrites(&self) -> bool {
        false
    }

    /// Words of scratch memory the kernel on `device` needs.
    fn workspace(&self, _ins: &[Meta], _device: &Device) -> usize {
        0
    }

    /// Fills the output on the CPU.
    fn cpu(&self, run: CpuRun<'_>);

    /// [`Op::cpu`] on inputs of these shapes, for many runs: whatever takes memory to make, a program or a table, was made
    /// before the first. `None` where there is nothing of the kind.
    fn prepared(&self, _ins: &[Meta]) -> Option<Kernel> {
        None
    }

    /// Queues the kernels that fill the output on CUDA.
    fn cuda(&self, run: &CudaRun<'_>) -> Result<()>;

    /// The CUDA modules the launch will want, as (name, source), for compiling ahead.
    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source>;

    /// The CUDA modules with programs around what they do, if the kernels can take them in.
    fn joined(&self, _ins: &[Meta], _gpu: &Gpu, _around: fused::Around<'_>) -> Option<Vec<Source>> {
        None
    }

    /// For an elementwise op or broadcast: the program it applies to its inputs, broadcast by NumPy's rule.
    /// This is what fusion joins.
    fn as_program(&self, _ins: &[Meta]) -> Option<program::Program> {
        None
    }

    /// For a reduction or loss: the fold it is, and the axes of its first input that it folds.
    #[doc(hidden)]
    fn as_fold(&self, _ins: &[Meta]) -> Option<(fold::Fold, Vec<usize>)> {
        None
    }

    /// Records the gradients of the inputs given the gradient `dy` of the value; `None` where there is
    /// none to be had (indices, or no dependence).
    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>>;

    /// The definition, naively, in any scalar type. Written from the formula, not from the kernels.
    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>>;

    /// Inputs the checks run the op on: ordinary sizes, zero and one, and sizes around tile edges.
    fn samples() -> Vec<Sample<Self>>;

    /// The op with a random shape around tile edges, for comparing bits between devices; `None` where
    /// shapes cannot be drawn.
    fn random(_stream: &mut Stream) -> Option<Sample<Self>> {
        None
    }

    /// Inputs the op must refuse.
    fn rejects() -> Vec<Reject<Self>>;

    /// How far the value may be from the reference on these inputs.
    fn bound(&self, ins: &[Meta]) -> Bound;

    /// Whether the value depends on the inputs only through random bits, so that there is no reference
    /// in other scalars to compare gradients with.
    fn differentiable(&self) -> bool {
        true
    }

    /// Places of the value that only the gradient rule reads. Its gradients there are those that the rule itself gives; the checks
    /// leave them zero.
    fn statistics(&self, _ins: &[Meta]) -> std::ops::Range<usize> {
        0..0
    }

    /// Sets of inputs in which, taken together and with the others held, the value is linear, and exactly so
    /// on whole numbers: the checks then demand `<A x, g> = <x, A^T g>` to the last bit.
    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        Vec::new()
    }

    /// The attributes by name: all of them, exactly, since `from_attrs` must give the same op when a program is read
    /// from its text.
    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    /// The op with the given attributes.
    fn from_attrs(attrs: &Attrs) -> Result<Self>;
}

macro_rules! any_op {
    ($($name:ident: $module:ident::$op:ident,)*) => {
        /// Any op, as tapes and graphs hold it.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum AnyOp { $($op($module::$op),)* }

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
                match self { $(AnyOp::$op(_) => <$module::$op as Op>::NAME,)* }
            }

            /// See [`Op::shape`].
            pub fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                match self { $(AnyOp::$op(op) => op.shape(ins),)* }
            }

            /// See [`Op::index_limit`].
            pub fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
                match self { $(AnyOp::$op(op) => op.index_limit(ins),)* }
            }

            /// See [`Op::index_bound`].
            pub fn index_bound(&self, ins: &[Meta]) -> IndexBound {
                match self { $(AnyOp::$op(op) => op.index_bound(ins),)* }
            }

            /// See [`Op::linear`].
            pub fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
                match self { $(AnyOp::$op(op) => op.linear(ins),)* }
            }

            /// See [`Op::view`].
            pub fn view(&self, ins: &[Meta]) -> Option<usize> {
                match self { $(AnyOp::$op(op) => op.view(ins),)* }
            }

            /// See [`Op::overwrites`].
            pub fn overwrites(&self) -> bool {
                match self { $(AnyOp::$op(op) => op.overwrites(),)* }
            }

            /// See [`Op::workspace`].
            pub fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                match self { $(AnyOp::$op(op) => op.workspace(ins, device),)* }
            }

            /// See [`Op::cpu`].
            pub fn cpu(&self, run: CpuRun<'_>) {
                match self { $(AnyOp::$op(op) => op.cpu(run),)* }
            }

            /// See [`Op::prepared`].
            pub fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
                match self { $(AnyOp::$op(op) => op.prepared(ins),)* }
            }

            /// See [`Op::cuda`].
            pub(crate) fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                match self { $(AnyOp::$op(op) => op.cuda(run),)* }
            }

            /// See [`Op::cuda_modules`].
            pub fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                match self { $(AnyOp::$op(op) => op.cuda_modules(ins, gpu),)* }
            }

            /// See [`Op::joined`].
            pub(crate) fn joined(
                &self,
                ins: &[Meta],
                gpu: &Gpu,
                around: fused::Around<'_>,
            ) -> Option<Vec<Source>> {
                match self { $(AnyOp::$op(op) => op.joined(ins, gpu, around),)* }
            }

            /// See [`Op::as_program`].
            pub fn as_program(&self, ins: &[Meta]) -> Option<program::Program> {
                match self { $(AnyOp::$op(op) => op.as_program(ins),)* }
            }

            /// See [`Op::as_fold`].
            pub fn as_fold(&self, ins: &[Meta]) -> Option<(fold::Fold, Vec<usize>)> {
                match self { $(AnyOp::$op(op) => op.as_fold(ins),)* }
            }

            /// See [`Op::vjp`].
            pub fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let _strict = dittograd_numerics::environment::enter();
                match self { $(AnyOp::$op(op) => op.vjp(r, io, dy),)* }
            }

            /// See [`Op::reference`]. Errors if the inputs do not fit.
            pub fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let _strict = dittograd_numerics::environment::enter();
                let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
                self.shape(&metas)?;
                if let Some((i, limit)) = self.index_limit(&metas) {
                    check_indices(self.name(), ins[i].idx()?.data(), limit)?;
                }
                match self { $(AnyOp::$op(op) => op.reference(ins),)* }
            }

            /// See [`Op::bound`].
            pub fn bound(&self, ins: &[Meta]) -> Bound {
                match self { $(AnyOp::$op(op) => op.bound(ins),)* }
            }

            /// See [`Op::differentiable`].
            pub fn differentiable(&self) -> bool {
                match self { $(AnyOp::$op(op) => op.differentiable(),)* }
            }

            /// See [`Op::statistics`].
            pub fn statistics(&self, ins: &[Meta]) -> std::ops::Range<usize> {
                match self { $(AnyOp::$op(op) => op.statistics(ins),)* }
            }

            /// See [`Op::attrs`].
            pub fn attrs(&self) -> Vec<(&'static str, Attr)> {
                match self { $(AnyOp::$op(op) => op.attrs(),)* }
            }

            /// The op of that name with the given attributes.
            pub fn from_name(name: &str, attrs: &Attrs) -> Result<AnyOp> {
                $(if name == <$module::$op as Op>::NAME {
                    return Ok(AnyOp::$op(<$module::$op as Op>::from_attrs(attrs)?));
                })*
                Err(Error::argument("op", "name", format!("`{name}` is not an op; `dittograd ops` lists them")))
            }

            /// The samples of the op of that name.
            pub fn samples(name: &str) -> Vec<Sample<AnyOp>> {
                $(if name == <$module::$op as Op>::NAME {
                    let wrap = |s: Sample<$module::$op>| Sample { op: s.op.into(), ins: s.ins };
                    return <$module::$op as Op>::samples().into_iter().map(wrap).collect();
                })*
                Vec::new()
            }

            /// See [`Op::random`].
            pub fn random(name: &str, stream: &mut Stream) -> Option<Sample<AnyOp>> {
                $(if name == <$module::$op as Op>::NAME {
                    return <$module::$op as Op>::random(stream).map(|s| Sample { op: s.op.into(), ins: s.ins });
                })*
                None
            }

            /// The rejects of the op of that name.
            pub fn rejects(name: &str) -> Vec<Reject<AnyOp>> {
                $(if name == <$module::$op as Op>::NAME {
                    let wrap = |r: Reject<$module::$op>| Reject { op: r.op.into(), ins: r.ins, want: r.want };
                    return <$module::$op as Op>::rejects().into_iter().map(wrap).collect();
                })*
                Vec::new()
            }
        }
    };
}
with_ops!(any_op);

/// A text that is kept for good, as compiled kernels are.
pub(crate) fn lasting(text: String) -> &'static str {
    text.leak()
}

/// A module by a name that stands for its text. The text is made once: making it costs more than a launch.
#[doc(hidden)]
pub fn module(name: String, make: impl FnOnce() -> String) -> Source {
    static TEXTS: Mutex<BTreeMap<String, &'static str>> = Mutex::new(BTreeMap::new());
    let texts = || TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = texts().get(&name).copied() {
        debug_assert!(make() == text, "two texts for module {name}");
        return (name, text);
    }
    let text = lasting(make());
    texts().insert(name.clone(), text);
    (name, text)
}

/// Most that [`known`] keeps of a kind.
const MOST_KNOWN: usize = 1 << 12;

/// Things that were made, by what they were made of.
pub(crate) type Known<K, V> = LazyLock<RwLock<HashMap<K, V>>>;

/// What was made of `key` before, or is made now: eager steps ask for the same again and again.
pub(crate) fn known<K: Hash + Eq, V: Clone>(all: &Known<K, V>, key: K, make: impl FnOnce(&K) -> V) -> V {
    if let Some(known) = all.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return known.clone();
    }
    let made = make(&key);
    let mut all = all.write().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= MOST_KNOWN {
        all.clear();
    }
    all.insert(key, made.clone());
    made
}

/// The inputs as an array, or an error if their number is another.
pub(crate) fn arity<const N: usize>(op: &'static str, ins: &[Meta]) -> Result<[Meta; N]> {
    ins.try_into().map_err(|_| Error::new(op, ErrorKind::Arity { want: N, got: ins.len() }))
}

/// Errors unless input `i` has the wanted element type.
pub(crate) fn typed(op: &'static str, ins: &[Meta], i: usize, want: DType) -> Result<()> {
    match ins[i].dtype {
        got if got == want => Ok(()),
        got => Err(Error::new(op, ErrorKind::DType { want: want.name(), got: got.name(), input: i })),
    }
}

/// The inputs as an array of float32 shapes, or an error.
pub(crate) fn floats<const N: usize>(op: &'static str, ins: &[Meta]) -> Result<[Shape; N]> {
    let metas = arity::<N>(op, ins)?;
    for i in 0..N {
        typed(op, ins, i, DType::F32)?;
    }
    Ok(metas.map(|m| m.shape))
}

/// An error of two shapes that do not fit.
#[cold]
pub(crate) fn mismatch(op: &'static str, why: &'static str, left: Shape, right: Shape) -> Error {
    Error::new(op, ErrorKind::Shapes { why, left, right })
}

/// A shape that is known to be fine, for samples.
#[doc(hidden)]
pub fn dims(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap_or_default()
}

/// Shapes of one tensor that samples draw from: scalars, zero and one, vector lengths around block
/// edges, and several ranks.
pub(crate) fn sample_shapes() -> Vec<Shape> {
    [
        &[][..],
        &[0],
        &[1],
        &[7],
        &[33],
        &[513],
        &[3, 0, 5],
        &[2, 3],
        &[4, 129],
        &[2, 3, 5],
        &[1, 2, 1, 3, 2],
        &[70000],
    ]
    .iter()
    .map(|d| dims(d))
    .collect()
}

/// Draws sample inputs as float32 tensors or indices. Errors if the host has no room for them.
pub fn draw(ins: &[SampleIn], stream: &mut Stream) -> Result<Vec<AnyTensor<f32>>> {
    let one = |i: &SampleIn| match i {
        SampleIn::Num(shape, (lo, hi)) => {
            Tensor::try_from_fn(*shape, |_| stream.range(*lo as f32, *hi as f32)).map(AnyTensor::Num)
        }
        SampleIn::Idx(shape, bound) => {
            Tensor::try_from_fn(*shape, |_| stream.below(*bound as usize) as u32).map(AnyTensor::Idx)
        }
    };
    ins.iter().map(one).collect()
}
