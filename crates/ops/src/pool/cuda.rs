//! The CUDA kernels: which variant of `pool.cu` is compiled, and how it is launched.

use super::smooth::{finite_shift, log_sum_exp, shifted_exp, weighted_exp};
use super::window::{Cells, Planes};
use crate::CudaRun;
use crate::fused::{EpilogueCode, Fusion};
use crate::pointwise::device_function::device_function;
use crate::pointwise::expression::{Expr, Pointwise};
use crate::pointwise::map;
use crate::pointwise::map::grid;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::MAX_RANK;

const POOL_CU: &str = concat!(include_str!("../matmul/results.cu"), include_str!("pool.cu"));

/// Windows with more cells than this are not unrolled.
const MAX_UNROLLED_CELLS: usize = 32;

/// What a kernel of `pool.cu` computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PoolKernel {
    Max,
    First,
    MaxBwd,
    Pick,
    Avg { count_padding: bool },
    AvgBwd { count_padding: bool },
    Smooth,
    SmoothBwd,
    SmoothSum,
}

impl PoolKernel {
    /// The name of its `OP_` constant in `pool.cu`.
    pub(super) fn op(self) -> &'static str {
        match self {
            PoolKernel::Max => "MAX",
            PoolKernel::First => "MAX_FIRST",
            PoolKernel::MaxBwd => "MAX_BWD",
            PoolKernel::Pick => "MAX_PICK",
            PoolKernel::Avg { .. } => "AVG",
            PoolKernel::AvgBwd { .. } => "AVG_BWD",
            PoolKernel::Smooth => "SMOOTH",
            PoolKernel::SmoothBwd => "SMOOTH_BWD",
            PoolKernel::SmoothSum => "SMOOTH_SUM",
        }
    }

    /// Its part of the module's name.
    fn name(self) -> String {
        let count_padding = !matches!(
            self,
            PoolKernel::Avg { count_padding: false } | PoolKernel::AvgBwd { count_padding: false }
        );
        self.op().to_lowercase() + if count_padding { "" } else { "_real" }
    }

    /// What may be fused to it: the gradient of maxima takes what follows it in models, the gradient of `relu`.
    pub(super) fn fusion(self) -> Fusion {
        let epilogue = self == PoolKernel::MaxBwd;
        Fusion { prologue: None, epilogue, others: epilogue, others_in_digits: epilogue, weight: 64 }
    }

    /// Whether each thread has an input cell and visits the windows that hold it.
    pub(super) fn gathers(self) -> bool {
        matches!(self, PoolKernel::MaxBwd | PoolKernel::AvgBwd { .. } | PoolKernel::SmoothBwd)
    }
}

/// The formulas of the smooth maximum as device functions.
fn smooth_functions() -> String {
    let function = |name: &str, inputs: usize, f: fn(&[Expr]) -> Expr| {
        device_function(name, &Pointwise::trace(inputs, |v| vec![f(v)]))
    };
    [
        map::prelude().to_string(),
        function("finite_shift", 1, |v| finite_shift(v[0])),
        function("shifted_exp", 3, |v| shifted_exp(v[0], v[1], v[2])),
        function("log_sum_exp", 3, |v| log_sum_exp(v[0], v[1], v[2])),
        function("weighted_exp", 4, |v| weighted_exp(v[0], v[1], v[2], v[3])),
    ]
    .concat()
}

impl Planes {
    /// The modules of a kernel.
    pub(super) fn modules(&self, kernel: PoolKernel, epilogue: Option<&EpilogueCode>) -> Vec<Source> {
        let first = (kernel == PoolKernel::MaxBwd).then_some(PoolKernel::First);
        first
            .map(|first| self.module(first, None))
            .into_iter()
            .chain([self.module(kernel, epilogue)])
            .collect()
    }

    /// Whether offsets in a plane need 64 bits.
    fn is_wide(&self) -> bool {
        self.input_len().max(self.output_len()) >= u32::MAX as usize
    }

    /// `CELLS` of the text.
    fn cells_of_thread(&self, kernel: PoolKernel) -> usize {
        let lines_are_whole = self.input.last().is_some_and(|n| n.is_multiple_of(4));
        if kernel.gathers() && lines_are_whole { 4 } else { 1 }
    }

    /// The words of workspace of a kernel: the gradient of maxima finds first where they are.
    pub(super) fn cuda_workspace(&self, kernel: PoolKernel) -> usize {
        let words = if self.is_wide() { 2 } else { 1 };
        if kernel == PoolKernel::MaxBwd { self.count * self.output_len() * words } else { 0 }
    }

    /// The module of one launch. Kernel size, stride, padding and dilation are constants of the text, so that loops over
    /// windows unroll; sizes of planes are arguments.
    fn module(&self, kernel: PoolKernel, epilogue: Option<&EpilogueCode>) -> Source {
        let list = |v: &[usize], by: &str| v.iter().map(usize::to_string).collect::<Vec<_>>().join(by);
        let rank = self.rank();
        let windows = match &self.cells {
            Cells::Fixed(w) => [("k", &w.kernel), ("s", &w.stride), ("p", &w.padding), ("d", &w.dilation)]
                .map(|(letter, v)| format!("_{letter}{}", list(v, "x")))
                .concat(),
            Cells::Adaptive => "_adaptive".into(),
        };
        let wide = self.is_wide();
        let cells = self.cells_of_thread(kernel);
        let (tag, before) = epilogue.map_or(("", ""), EpilogueCode::text);
        let name = format!(
            "pool_{}_{rank}{windows}_c{cells}{}{tag}",
            kernel.name(),
            if wide { "_wide" } else { "" }
        );
        crate::module(name, || {
            let (adaptive, padded, unroll) = match &self.cells {
                Cells::Fixed(w) => (false, w.padding.iter().any(|&p| p > 0), w.cells() <= MAX_UNROLLED_CELLS),
                Cells::Adaptive => (true, false, false),
            };
            let mut text = format!(
                "#define OP OP_{}\n#define RANK {rank}\n#define ADAPTIVE {}\n#define PADDED {}\n#define UNROLL {}\n#define WIDE {}\n#define CELLS {cells}\n",
                kernel.op(),
                u8::from(adaptive),
                u8::from(padded),
                u8::from(unroll),
                u8::from(wide)
            );
            if let Cells::Fixed(w) = &self.cells {
                let lists = [
                    ("KERNEL", &w.kernel),
                    ("STRIDE", &w.stride),
                    ("PADDING", &w.padding),
                    ("DILATION", &w.dilation),
                ];
                lists.iter().for_each(|(name, v)| text += &format!("#define {name} {}\n", list(v, ", ")));
            }
            match kernel {
                PoolKernel::Avg { count_padding } | PoolKernel::AvgBwd { count_padding } => {
                    text += &format!("#define COUNT_PADDING {}\n", u8::from(count_padding));
                }
                PoolKernel::Smooth | PoolKernel::SmoothBwd | PoolKernel::SmoothSum => {
                    text += &smooth_functions()
                }
                PoolKernel::Max | PoolKernel::First | PoolKernel::MaxBwd | PoolKernel::Pick => {}
            }
            text + before + POOL_CU
        })
    }

    /// Queues the kernel.
    pub(super) fn run_cuda(&self, kernel: PoolKernel, scalar: f32, run: &CudaRun<'_>) -> Result<()> {
        let items = run.shape.numel();
        // `x, y, dy` of the text.
        let ins = match *run.ins {
            [x, y, dy] if kernel == PoolKernel::MaxBwd => {
                let outputs = self.count * self.output_len();
                self.launch((PoolKernel::First, None), run, outputs, run.workspace, [x, y, 0], 0.0)?;
                [0, run.workspace, dy]
            }
            [dy] if kernel.gathers() => [0, 0, dy],
            [x] => [x, 0, 0],
            [x, y, dy] => [x, y, dy],
            _ => [0; 3],
        };
        self.launch((kernel, run.fused.epilogue), run, items, run.out, ins, scalar)
    }

    /// Queues one launch.
    fn launch(
        &self,
        (kernel, epilogue): (PoolKernel, Option<&EpilogueCode>),
        run: &CudaRun<'_>,
        items: usize,
        out: u64,
        ins: [u64; 3],
        scalar: f32,
    ) -> Result<()> {
        if items == 0 {
            return Ok(());
        }
        let (module, source) = self.module(kernel, epilogue);
        let threads = items / self.cells_of_thread(kernel);
        let kernel = run.cuda.kernel(&module, source, "pool")?;
        let mut sizes = [1u32; 2 * MAX_RANK];
        for a in 0..self.rank() {
            // The shape rule limits sizes to less than 2^31.
            sizes[a] = self.input[a] as u32;
            sizes[MAX_RANK + a] = self.output[a] as u32;
        }
        let mut args = Args::new();
        args.ptr(out).ptr(ins[0]).ptr(ins[1]).ptr(ins[2]);
        args.u64(items as u64).u64(self.input_len() as u64).u64(self.output_len() as u64);
        args.bytes(bytemuck::cast_slice(&sizes), 4).f32(scalar);
        if let Some(epilogue) = epilogue {
            epilogue.push(&mut args);
        }
        run.cuda.launch(kernel, grid(run.cuda, threads), 256, 0, &args)
    }
}
