//! The trait that every op implements: what it is and how it runs. What it is tested with is [`Cases`](crate::cases::Cases).

use crate::magnitudes::Lines;
use crate::pointwise::expression::Pointwise;
use crate::reduce::fold::Fold;
use crate::{AnyOp, AnyTensor, Attr, Attrs, CudaKernel, custom, fused};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Cuda, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::fmt::Debug;
use std::sync::Arc;

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
    /// How products are computed.
    pub numerics: Numerics,
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
    /// It has the tensor cores of Hopper.
    pub hopper: bool,
}

impl Gpu {
    /// That of an open device.
    pub fn of(cuda: &Cuda) -> Gpu {
        let (sm_count, shared) = (cuda.sm_count(), cuda.max_shared_per_block());
        Gpu { sm_count, shared, numerics: cuda.numerics(), hopper: cuda.is_hopper() }
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
    /// The prologue and the epilogue that the kernels are to take in, for ops that [can](Op::fused_modules).
    pub fused: fused::FusedCode<'a>,
    /// Lines of the output whose largest magnitudes the kernels leave besides, and at which address, for ops that
    /// [can](Op::leaving_modules).
    pub leaves: Option<(Lines, u64)>,
    /// Where the magnitudes lie that the op [reads](Op::reads_magnitudes) of its first two inputs; 0 if they are not there.
    pub magnitudes: [u64; 2],
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

/// The rules of an op. A name, a shape rule and a definition are enough to be one; the rest makes it fast, and gives it gradients, a
/// place on the GPU and a text.
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
    #[doc(hidden)]
    fn view(&self, _ins: &[Meta]) -> Option<usize> {
        None
    }

    /// Whether the CUDA kernel may write the value over the first input, which has as many elements: nobody reads an element
    /// after another has written it. Elementwise ops always may.
    #[doc(hidden)]
    fn overwrites(&self) -> bool {
        false
    }

    /// Words of scratch memory the kernel on `device` needs. A [`CudaKernel`] gets none.
    fn workspace(&self, _ins: &[Meta], _device: &Device) -> usize {
        0
    }

    /// Fills the output on the CPU. Without it the definition is computed in float32, which is slow.
    fn cpu(&self, run: CpuRun<'_>) {
        custom::cpu_by_definition(self, run);
    }

    /// [`Op::cpu`] on inputs of these shapes, for many runs: whatever takes memory to make, a program or a table, was made
    /// before the first. `None` where there is nothing of the kind.
    #[doc(hidden)]
    fn prepared(&self, _ins: &[Meta]) -> Option<Kernel> {
        None
    }

    /// The CUDA kernel that fills the output, for ops that need only one. Without it, and without a `cuda` of its own, the op cannot
    /// run on a GPU.
    fn cuda_kernel(&self, _ins: &[Meta]) -> Option<CudaKernel> {
        None
    }

    /// Queues the kernels that fill the output on CUDA.
    #[doc(hidden)]
    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        match self.cuda_kernel(run.metas) {
            Some(kernel) => kernel.launch(Self::NAME, run),
            None => Err(Error::unsupported(
                Self::NAME,
                "CUDA: it has no kernel there for such inputs; give it `cuda_kernel`, or compute it on the CPU",
            )),
        }
    }

    /// The CUDA modules the launch will want, as (name, source), for compiling ahead.
    #[doc(hidden)]
    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        self.cuda_kernel(ins).map(|kernel| kernel.module(Self::NAME)).into_iter().collect()
    }

    /// What may be fused to the op, on inputs that [`Op::shape`] accepts. Reductions say it by [`Op::as_fold`].
    #[doc(hidden)]
    fn fusion(&self, _ins: &[Meta]) -> fused::Fusion {
        fused::Fusion::default()
    }

    /// The CUDA modules with a prologue and an epilogue in their kernels, if these can take them in.
    #[doc(hidden)]
    fn fused_modules(&self, _ins: &[Meta], _gpu: &Gpu, _fused: fused::FusedCode<'_>) -> Option<Vec<Source>> {
        None
    }

    /// Lines of the first two inputs whose largest magnitudes the CUDA kernels need. If they are there, [`CudaRun::magnitudes`] says
    /// where; otherwise the kernels find them.
    #[doc(hidden)]
    fn reads_magnitudes(&self, _ins: &[Meta], _gpu: &Gpu) -> [Option<Lines>; 2] {
        [None; 2]
    }

    /// The CUDA modules whose kernels leave the largest magnitudes of these lines of the value besides, if there are such kernels.
    #[doc(hidden)]
    fn leaving_modules(&self, _ins: &[Meta], _gpu: &Gpu, _lines: Lines) -> Option<Vec<Source>> {
        None
    }

    /// For an elementwise op or broadcast: the program it applies to its inputs, broadcast by NumPy's rule.
    /// This is what fusion joins.
    fn as_pointwise(&self, _ins: &[Meta]) -> Option<Pointwise> {
        None
    }

    /// For a reduction or loss: the fold it is, and the axes of its first input that it folds.
    #[doc(hidden)]
    fn as_fold(&self, _ins: &[Meta]) -> Option<(Fold, Vec<usize>)> {
        None
    }

    /// Records the gradients of the inputs given the gradient `dy` of the value; `None` where there is
    /// none to be had (indices, or no dependence).
    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Err(Error::unsupported(Self::NAME, "gradients: it has no rule; give it `vjp`"))
    }

    /// The definition, naively, in any scalar type. Written from the formula, not from the kernels.
    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>>;

    /// Whether the value depends on the inputs only through random bits, so that there is no reference
    /// in other scalars to compare gradients with.
    fn differentiable(&self) -> bool {
        true
    }

    /// The attributes by name: all of them, exactly, since `from_attrs` must give the same op when a program is read
    /// from its text.
    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    /// The op with the given attributes.
    fn from_attrs(_attrs: &Attrs) -> Result<Self> {
        Err(Error::unsupported(Self::NAME, "being read from a text: give it `attrs` and `from_attrs`"))
    }
}

/// Methods of an op through which no gradient flows, such as one of indices.
macro_rules! no_gradient {
    () => {
        fn vjp(
            &self,
            _r: &mut dyn $crate::Recorder,
            io: $crate::Io<'_>,
            _dy: $crate::Val,
        ) -> dittograd_numerics::error::Result<Vec<Option<$crate::Val>>> {
            Ok(vec![None; io.ins.len()])
        }

        fn differentiable(&self) -> bool {
            false
        }
    };
}
pub(crate) use no_gradient;
