//! Grid sampling on CUDA: which variant of `grid.cu` is compiled, and how it is launched.

use super::grid::Sizes;
use super::places::{GridMode, GridPadding, MOST_AXES, Sampling};
use crate::CudaRun;
use crate::index::sort;
use crate::pointwise::device_function::device_function;
use crate::pointwise::expression::{Expr, Pointwise};
use crate::pointwise::map::{self, grid};
use dittograd_device::cuda::{Args, Kernel, Source};
use dittograd_numerics::error::Result;

const GRID_CU: &str = include_str!("grid.cu");

/// As `CHANNELS` in the text.
const CHANNELS_PER_THREAD: usize = 8;

/// The module of a sampling. The formulas of places and weights are device functions.
pub(super) fn module(sampling: &Sampling) -> Source {
    let orders = |by: &str| sampling.orders.iter().map(usize::to_string).collect::<Vec<_>>().join(by);
    let mode = ["bilinear", "nearest", "bicubic"][sampling.mode as usize];
    let padding = ["zeros", "border", "reflection"][sampling.padding as usize];
    let align = if sampling.align_corners { "_aligned" } else { "" };
    crate::module(format!("grid_{mode}_{padding}{align}_{}", orders("x")), || {
        let axes = sampling.orders.len();
        let mut text = format!(
            "#define RANK {axes}\n#define WIDTH {}\n#define TAPS {}\n#define BOUND {}\n",
            sampling.width(),
            sampling.taps(),
            match (sampling.mode, sampling.padding) {
                (GridMode::Bicubic, GridPadding::Border) => "BORDER",
                (GridMode::Bicubic, GridPadding::Reflection) if sampling.align_corners => "REFLECT_CENTRES",
                (GridMode::Bicubic, GridPadding::Reflection) => "REFLECT_EDGES",
                _ => "NOTHING",
            }
        );
        text += map::prelude();
        let mut function = |name: &str, inputs: usize, f: &dyn Fn(&[Expr]) -> Expr| {
            text += &device_function(name, &Pointwise::trace(inputs, |v| vec![f(v)]));
        };
        function("place", 2, &|v| sampling.place(v[0], v[1]).0);
        function("slope", 2, &|v| sampling.place(v[0], v[1]).1);
        function("base", 1, &|v| sampling.base(v[0]).0);
        function("rest", 1, &|v| sampling.base(v[0]).1);
        for a in 0..axes {
            for more in 0..2 {
                for k in 0..sampling.width() {
                    let name = format!("weight_{a}_{more}_{k}");
                    function(&name, 2, &|v| sampling.weights(sampling.orders[a] + more, v[0], v[1])[k]);
                }
            }
        }
        // One function that chooses among the weights: axes, elements and orders are known when it is compiled.
        text +=
            "template <int A, int MORE, int K> __device__ __forceinline__ float weight(float t, float s) {\n";
        for a in 0..axes {
            for more in 0..2 {
                for k in 0..sampling.width() {
                    text += &format!(
                        "    if constexpr (A == {a} && MORE == {more} && K == {k}) return weight_{a}_{more}_{k}(t, s);\n"
                    );
                }
            }
        }
        text += "    return 0.0f;\n}\n";
        text + GRID_CU
    })
}

fn kernel(sampling: &Sampling, run: &CudaRun<'_>, name: &str) -> Result<Kernel> {
    let (module, source) = module(sampling);
    run.cuda.kernel(&module, source, name)
}

/// The sizes as `Sizes` in the text.
fn sizes_of(sizes: &Sizes) -> [u32; MOST_AXES + 3] {
    let mut all = [1; MOST_AXES + 3];
    for (to, &n) in all.iter_mut().zip(&sizes.image) {
        *to = n as u32;
    }
    // The shape rule limits these to 32 bits.
    [all[MOST_AXES], all[MOST_AXES + 1], all[MOST_AXES + 2]] =
        [sizes.image_len() as u32, sizes.places as u32, sizes.channels as u32];
    all
}

pub(super) fn sample(sampling: &Sampling, sizes: &Sizes, run: &CudaRun<'_>) -> Result<()> {
    let items = sizes.images * sizes.places * sizes.channels.div_ceil(CHANNELS_PER_THREAD);
    if run.shape.numel() == 0 {
        return Ok(());
    }
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out).u64(items as u64);
    args.bytes(bytemuck::cast_slice(&sizes_of(sizes)), 4);
    run.cuda.launch(kernel(sampling, run, "grid_sample")?, grid(run.cuda, items), 256, 0, &args)
}

pub(super) fn grid_bwd(sampling: &Sampling, sizes: &Sizes, run: &CudaRun<'_>) -> Result<()> {
    let items = sizes.images * sizes.places;
    if items == 0 {
        return Ok(());
    }
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.ins[2]).ptr(run.out).u64(items as u64);
    args.bytes(bytemuck::cast_slice(&sizes_of(sizes)), 4);
    // Small blocks, so that few places still reach all multiprocessors.
    let blocks = [items.div_ceil(128) as u32, 1, 1];
    run.cuda.launch(kernel(sampling, run, "grid_bwd")?, blocks, 128, 0, &args)
}

/// Words of workspace for the gradient by the images: for each element of each place its cell, its order and its weight.
pub(super) fn workspace(sampling: &Sampling, sizes: &Sizes) -> usize {
    let sources = sizes.images * sizes.places * sampling.taps();
    3 * sort::aligned(sources) + sort::workspace(1, sources)
}

pub(super) fn input_bwd(sampling: &Sampling, sizes: &Sizes, run: &CudaRun<'_>) -> Result<()> {
    if run.shape.numel() == 0 {
        return Ok(());
    }
    let places = sizes.images * sizes.places;
    let sources = places * sampling.taps();
    let part = |i: usize| run.workspace + (i * sort::aligned(sources)) as u64 * 4;
    let cells = sizes.images * sizes.image_len();
    let (mut keys, order, weights) = (part(0), part(1), part(2));
    if sources > 0 {
        let mut args = Args::new();
        args.ptr(run.ins[1]).ptr(keys).ptr(weights).u64(places as u64).u32(cells as u32);
        args.bytes(bytemuck::cast_slice(&sizes_of(sizes)), 4);
        run.cuda.launch(kernel(sampling, run, "grid_keys")?, grid(run.cuda, places), 256, 0, &args)?;
        let bits = u32::BITS - (cells as u32).leading_zeros();
        keys = sort::launch(run.cuda, keys, (1, sources), bits, part(3), order)?;
    }
    let items = cells * sizes.channels.div_ceil(CHANNELS_PER_THREAD);
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(keys).ptr(order).ptr(weights).ptr(run.out);
    args.u64(items as u64).u32(sources as u32).u32(cells as u32);
    args.bytes(bytemuck::cast_slice(&sizes_of(sizes)), 4);
    run.cuda.launch(kernel(sampling, run, "grid_sums")?, grid(run.cuda, items), 256, 0, &args)
}
