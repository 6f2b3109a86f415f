//! The CUDA kernels: which variant of `pool.cu` is compiled, and how it is launched.

use super::{Cells, Job, Planes, shift, smooth, term, weighed};
use crate::CudaRun;
use crate::pointwise::map;
use crate::pointwise::map::grid;
use crate::pointwise::program::{Expr, Program};
use crate::softmax::rows::device_function;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::MAX_RANK;

const POOL_CU: &str = include_str!("pool.cu");

/// Cells of a window up to which loops over it are unrolled.
const MAX_UNROLLED_CELLS: usize = 32;

/// The formulas of the smooth maximum as device functions.
fn smooth_functions() -> String {
    let function = |name: &str, inputs: usize, f: fn(&[Expr]) -> Expr| {
        device_function(name, &Program::trace(inputs, |v| vec![f(v)]))
    };
    [
        map::prelude().to_string(),
        function("finite_shift", 1, |v| shift(v[0])),
        function("shifted_exp", 3, |v| term(v[0], v[1], v[2])),
        function("log_sum_exp", 3, |v| smooth(v[0], v[1], v[2])),
        function("weighted_exp", 4, |v| weighed(v[0], v[1], v[2], v[3])),
    ]
    .concat()
}

impl Planes {
    /// The module of a job. Kernel, stride, padding and dilation are part of the text, so that loops over windows
    /// are unrolled; sizes are arguments.
    pub(super) fn module(&self, job: Job) -> Source {
        let list = |v: &[usize], by: &str| v.iter().map(usize::to_string).collect::<Vec<_>>().join(by);
        let rank = self.rank();
        let windows = match &self.cells {
            Cells::Fixed(w) => [("k", &w.kernel), ("s", &w.stride), ("p", &w.padding), ("d", &w.dilation)]
                .map(|(letter, v)| format!("_{letter}{}", list(v, "x")))
                .concat(),
            Cells::Adaptive => "_adaptive".into(),
        };
        crate::module(format!("pool_{}_{rank}{windows}", job.name()), || {
            let (adaptive, padded, unroll) = match &self.cells {
                Cells::Fixed(w) => (false, w.padding.iter().any(|&p| p > 0), w.cells() <= MAX_UNROLLED_CELLS),
                Cells::Adaptive => (true, false, false),
            };
            let mut text = format!(
                "#define OP OP_{}\n#define RANK {rank}\n#define ADAPTIVE {}\n#define PADDED {}\n#define UNROLL {}\n",
                job.op(),
                u8::from(adaptive),
                u8::from(padded),
                u8::from(unroll)
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
            match job {
                Job::Avg { counted } | Job::AvgBwd { counted } => {
                    text += &format!("#define COUNT_PADDING {}\n", u8::from(counted));
                }
                Job::Smooth | Job::SmoothBwd | Job::SmoothSum => text += &smooth_functions(),
                Job::Max | Job::MaxBwd | Job::Pick => {}
            }
            text + POOL_CU
        })
    }

    /// Queues a job on inputs `x, y, dy`, 0 where there is none.
    pub(super) fn run_cuda(&self, job: Job, ins: [u64; 3], scalar: f32, run: &CudaRun<'_>) -> Result<()> {
        let items = run.shape.numel();
        if items == 0 {
            return Ok(());
        }
        let (module, source) = self.module(job);
        let kernel = run.cuda.kernel(&module, source, "pool")?;
        let mut sizes = [1u32; 2 * MAX_RANK];
        for a in 0..self.rank() {
            // The shape rule holds sizes below 2^31.
            sizes[a] = self.input[a] as u32;
            sizes[MAX_RANK + a] = self.output[a] as u32;
        }
        let mut args = Args::new();
        args.ptr(run.out).ptr(ins[0]).ptr(ins[1]).ptr(ins[2]);
        args.u64(items as u64).u64(self.input_len() as u64).u64(self.output_len() as u64);
        args.bytes(bytemuck::cast_slice(&sizes), 4).f32(scalar);
        run.cuda.launch(kernel, grid(run.cuda, items), 256, 0, &args)
    }
}
