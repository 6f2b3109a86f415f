//! The CUDA kernels: which one is launched, and with what.

use super::{Cells, Job, Planes, shift, smooth, term, weighed};
use crate::CudaRun;
use crate::pointwise::map;
use crate::pointwise::map::grid;
use crate::pointwise::program::{Expr, Program};
use crate::softmax::rows::device_function;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::MAX_RANK;
use std::fmt::Write;

pub(super) const POOL_CU: &str = include_str!("pool.cu");

impl Planes {
    /// The module of a job. Kernel, stride, padding and dilation are part of the text, so that loops over windows
    /// are unrolled; sizes are arguments.
    pub(super) fn module(&self, job: Job) -> Source {
        let d = self.rank();
        let small = |n: usize| n <= 32;
        let mut t = String::from(POOL_CU);
        let function = |name: &str, n: usize, f: fn(&[Expr]) -> Expr| {
            device_function(name, &Program::trace(n, |v| vec![f(v)]))
        };
        if matches!(job, Job::Smooth | Job::SmoothBwd | Job::SmoothSum) {
            t.push_str(map::prelude());
            t.push_str(&function("shift_of", 1, |v| shift(v[0])));
            t.push_str(&function("term", 3, |v| term(v[0], v[1], v[2])));
            t.push_str(&function("smooth", 3, |v| smooth(v[0], v[1], v[2])));
            t.push_str(&function("weighed", 4, |v| weighed(v[0], v[1], v[2], v[3])));
        }
        let mut name = format!("pool_{}_{d}", job.name());
        let (unroll, inside) = match &self.cells {
            Cells::Fixed(w) => {
                let list = |v: &[usize]| v.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
                let _ = write!(
                    name,
                    "_k{}_s{}_p{}_d{}",
                    list(&w.kernel),
                    list(&w.stride),
                    list(&w.padding),
                    list(&w.dilation)
                );
                (small(w.cells()), w.padding.iter().all(|&p| p == 0))
            }
            Cells::Adaptive => {
                name.push_str("_adaptive");
                (false, true)
            }
        };
        let unroll = if unroll { "#pragma unroll\n" } else { "#pragma unroll 1\n" };
        // The window of output (o0, o1, …): first cells, loops over the kernel, position of a cell.
        let mut starts = String::new();
        let mut open = String::new();
        let mut real = String::from("true");
        let mut at = String::from("0ull");
        for a in 0..d {
            let (start, count, step) = match &self.cells {
                Cells::Fixed(w) => (
                    format!("(int)(o{a} * {}u) - {}", w.stride[a], w.padding[a]),
                    w.kernel[a].to_string(),
                    w.dilation[a],
                ),
                Cells::Adaptive => (
                    format!("(int)((u64)o{a} * sizes.in[{a}] / sizes.out[{a}])"),
                    format!(
                        "(int)((((u64)o{a} + 1) * sizes.in[{a}] + sizes.out[{a}] - 1) / sizes.out[{a}]) - s{a}"
                    ),
                    1,
                ),
            };
            let _ = writeln!(starts, "const int s{a} = {start};");
            if self.cells == Cells::Adaptive {
                let _ = writeln!(starts, "const int n{a} = {count};");
            }
            let count = if self.cells == Cells::Adaptive { format!("n{a}") } else { count };
            let _ = writeln!(
                open,
                "{unroll}for (int k{a} = 0; k{a} < {count}; ++k{a}) {{ const int i{a} = s{a} + k{a} * {step};"
            );
            if !inside {
                let _ = write!(real, " && (unsigned)i{a} < sizes.in[{a}]");
            }
            at = format!("(({at}) * sizes.in[{a}] + (u64)(unsigned)i{a})");
        }
        let close = "}".repeat(d);
        let over = |body: &str| {
            format!("{open}const bool real = {real};\nconst u64 cell = {at};\n{body}\n{close}\n")
        };
        // 1 / cells of a window: of all, or of the real ones.
        let count = |counted: bool| -> String {
            match &self.cells {
                Cells::Fixed(_) if counted => "const float factor = scalar;\n".into(),
                Cells::Fixed(w) => {
                    let mut t = String::from("unsigned reals = 1;\n");
                    for a in 0..d {
                        let _ =
                            writeln!(t, "reals *= real_cells(s{a}, {}, (int)sizes.in[{a}]);", w.kernel[a]);
                    }
                    t + "const float factor = __fdiv_rn(1.0f, (float)reals);\n"
                }
                Cells::Adaptive => {
                    let all: Vec<String> = (0..d).map(|a| format!("n{a}")).collect();
                    format!("const float factor = __fdiv_rn(1.0f, (float)({}));\n", all.join(" * "))
                }
            }
        };
        let first_cell = || {
            format!(
                "u64 first = ~0ull;\n{}",
                over("if (first == ~0ull && real && same(plane[cell], value)) first = cell;")
            )
        };
        let coordinates = |sizes: &str, letter: &str| -> String {
            let mut t = String::from("u64 rest = item;\n");
            for a in (0..d).rev() {
                let _ = writeln!(t, "const unsigned {letter}{a} = take(rest, sizes.{sizes}[{a}]);");
            }
            t
        };
        let kernel = if job.gathers() {
            // The windows that hold cell (c0, c1, …), in row-major order of the windows.
            let mut windows = String::new();
            let mut window = String::from("0ull");
            for a in 0..d {
                match &self.cells {
                    Cells::Fixed(w) if w.dilation[a] == 1 => {
                        let (k, s, p) = (w.kernel[a], w.stride[a], w.padding[a]);
                        let most = k.div_ceil(s);
                        let _ = writeln!(
                            windows,
                            "const int l{a} = low_window((int)c{a}, {k}, {s}, {p}), h{a} = min(((int)c{a} + {p}) / {s}, (int)sizes.out[{a}] - 1);\n{unroll}for (int w{a} = 0; w{a} < {most}; ++w{a}) {{ const unsigned o{a} = (unsigned)(l{a} + w{a}); if ((int)o{a} > h{a}) continue;"
                        );
                    }
                    Cells::Fixed(w) => {
                        let (k, s, p, g) = (w.kernel[a], w.stride[a], w.padding[a], w.dilation[a]);
                        let _ = writeln!(
                            windows,
                            "{unroll}for (int w{a} = {k} - 1; w{a} >= 0; --w{a}) {{ const int t{a} = (int)c{a} + {p} - w{a} * {g}; if (t{a} < 0 || t{a} % {s} != 0) continue; const unsigned o{a} = (unsigned)(t{a} / {s}); if (o{a} >= sizes.out[{a}]) continue;"
                        );
                    }
                    Cells::Adaptive => {
                        let _ = writeln!(
                            windows,
                            "const unsigned l{a} = (unsigned)((u64)c{a} * sizes.out[{a}] / sizes.in[{a}]), h{a} = (unsigned)((((u64)c{a} + 1) * sizes.out[{a}] + sizes.in[{a}] - 1) / sizes.in[{a}]);\nfor (unsigned o{a} = l{a}; o{a} < h{a}; ++o{a}) {{"
                        );
                    }
                }
                window = format!("(({window}) * sizes.out[{a}] + o{a})");
            }
            let body = match job {
                Job::MaxBwd => format!(
                    "const float value = y[of];\nif (same(mine, value)) {{\n{starts}{}if (first == here) sum = __fadd_rn(sum, dy[of]); }}",
                    first_cell()
                ),
                Job::AvgBwd { counted } => {
                    format!("{starts}{}sum = __fadd_rn(sum, __fmul_rn(dy[of], factor));", count(counted))
                }
                _ => "sum = __fadd_rn(sum, weighed(scalar, mine, y[of], dy[of]));".into(),
            };
            let mine = match job {
                Job::AvgBwd { .. } => "",
                _ => {
                    "const float mine = x[item];\nconst float* const plane = x + rest * in_len; (void)plane;\n"
                }
            };
            format!(
                "{}{mine}const u64 here = item - rest * in_len; (void)here;\nfloat sum = 0.0f;\n{windows}const u64 of = rest * out_len + {window};\n{body}\n{close}\nout[item] = sum;\n",
                coordinates("in", "c")
            )
        } else {
            let body = match job {
                Job::Max => format!(
                    "float best = -__int_as_float(0x7f800000);\n{}out[item] = best;",
                    over("if (real) { const float v = plane[cell]; if (larger(v, best)) best = v; }")
                ),
                Job::Pick => format!(
                    "const float value = y[item];\n{}out[item] = first == ~0ull ? 0.0f : dy[rest * in_len + first];",
                    first_cell()
                ),
                Job::Avg { counted } => format!(
                    "float sum = 0.0f;\n{}{}out[item] = __fmul_rn(sum, factor);",
                    over("if (real) sum = __fadd_rn(sum, plane[cell]);"),
                    count(counted)
                ),
                Job::Smooth => format!(
                    "float m = -__int_as_float(0x7f800000);\n{}m = shift_of(m);\nfloat sum = 0.0f;\n{}out[item] = smooth(m, sum, scalar);",
                    over("const float v = __fmul_rn(scalar, real ? plane[cell] : 0.0f); if (v > m) m = v;"),
                    over("sum = __fadd_rn(sum, term(scalar, real ? plane[cell] : 0.0f, m));")
                ),
                _ => format!(
                    "float sum = 0.0f;\nconst float value = y[item];\nconst float* const weights = dy + rest * in_len;\n{}out[item] = sum;",
                    over(
                        "if (real) sum = __fadd_rn(sum, weighed(scalar, plane[cell], value, weights[cell]));"
                    )
                ),
            };
            format!(
                "{}const float* const plane = x + rest * in_len;\n{starts}{body}\n",
                coordinates("out", "o")
            )
        };
        let _ = write!(
            t,
            "extern \"C\" __global__ void __launch_bounds__(256) pool(float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ dy, u64 items, u64 in_len, u64 out_len, Sizes sizes, float scalar) {{\nfor (u64 item = blockIdx.x * 256ull + threadIdx.x; item < items; item += gridDim.x * 256ull) {{\n{kernel}}}\n}}\n"
        );
        crate::module(name, || t)
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
