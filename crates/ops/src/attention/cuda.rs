//! The CUDA kernels: which one is launched, and with what.

use super::geometry::{Geometry, KEY_BLOCK, LEADING_AXES, MaskView, Scoring};
use crate::pointwise::map;
use crate::{Gpu, layout};
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::lane::cuda_function;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::{K_CHUNK, Numerics, functions};

/// A kernel's name and text.
type Kernel = (&'static str, &'static str);

const FORWARD: Kernel = (
    "attention_forward",
    concat!(include_str!("lists.cu"), include_str!("tiles.cu"), include_str!("forward.cu")),
);
const BACKWARD: Kernel = (
    "attention_backward",
    concat!(include_str!("lists.cu"), include_str!("tiles.cu"), include_str!("backward.cu")),
);
const DELTA: Kernel = ("attention_delta", include_str!("delta.cu"));
pub(super) const MASK: Kernel = ("attention_mask", include_str!("mask.cu"));

/// What the text of every kernel starts with.
pub(super) const COMMON_CU: &str = concat!(include_str!("../tensor.cu"), include_str!("attention.cu"));

impl Geometry {
    /// Whether tensor cores may multiply, and the sizes of heads are such that they can.
    pub(super) fn takes_tensor(&self, gpu: &Gpu) -> bool {
        let in_eights = self.d.min(self.dv) > 0 && self.d.is_multiple_of(8) && self.dv.is_multiple_of(8);
        in_eights && gpu.numerics == Numerics::Tf32
    }
}

/// Words between rows of a shared tile of the kernels: 4 mod 16.
pub(super) fn pitch(d: usize) -> usize {
    d.max(1).next_multiple_of(16) + 4
}

/// Shared memory of a block up to which a multiprocessor holds two of them.
pub(super) const MAX_SHARED_OF_TWO_BLOCKS: usize = 113 * 1024;

/// Why a GPU cannot. By the composed form it could, but with other bits than all others.
const TOO_LITTLE_SHARED: &str = "this GPU's blocks have too little shared memory for such heads; GPUs of compute capability 8.0 and above have enough";

/// A variant of the kernels and its shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    kernel: Kernel,
    pub(super) rows: usize,
    pub(super) warps: usize,
    pub(super) stage: usize,
    pub(super) share: bool,
    pub(super) shared: usize,
    pub(super) blocks: usize,
    /// Whether tensor cores multiply.
    pub(super) tensor: bool,
}

impl Variant {
    /// Rows a thread has: few enough that its sums fit its registers.
    pub(super) fn rows(g: &Geometry) -> usize {
        match g.d.max(g.dv) {
            0..=64 => 4,
            65..=128 => 2,
            _ => 1,
        }
    }

    pub(super) fn finish(self, gpu: &Gpu, words: usize) -> Option<Variant> {
        let shared = words * 4;
        // As their instructions cut rows and columns.
        let fits = self.rows.is_multiple_of(2) && self.stage.is_multiple_of(16);
        (shared <= gpu.shared).then_some(Variant {
            shared,
            blocks: if shared <= MAX_SHARED_OF_TWO_BLOCKS { 2 } else { 1 },
            tensor: self.tensor && fits,
            ..self
        })
    }

    pub(super) fn forward(g: &Geometry, gpu: &Gpu) -> Result<Variant> {
        let (pd, pv) = (pitch(g.d), pitch(g.dv));
        let tensor = g.takes_tensor(gpu);
        for (warps, share) in [(4, false), (4, true), (2, true), (1, true)] {
            let v = Variant {
                kernel: FORWARD,
                rows: Variant::rows(g),
                warps,
                stage: 0,
                share,
                shared: 0,
                blocks: 1,
                tensor,
            };
            let own = v.own();
            let streamed = if share { pd.max(pv) } else { pd + pv };
            if let Some(v) = v.finish(gpu, own * pd + KEY_BLOCK * streamed + own * (KEY_BLOCK + 4)) {
                return Ok(v);
            }
        }
        Err(Error::unsupported("attention", TOO_LITTLE_SHARED))
    }

    pub(super) fn backward(g: &Geometry, gpu: &Gpu) -> Result<Variant> {
        let (pd, pv) = (pitch(g.d), pitch(g.dv));
        let tensor = g.takes_tensor(gpu);
        // With tensor cores it is latency that counts: twice the warps, each with half the rows.
        let first = if tensor { (8, 32, 2) } else { (4, 32, Variant::rows(g)) };
        let rows = first.2;
        for (warps, stage, rows) in
            [first, (4, 32, rows), (4, 16, rows), (2, 16, rows), (2, 8, rows), (1, 8, rows)]
        {
            let v =
                Variant { kernel: BACKWARD, rows, warps, stage, share: false, shared: 0, blocks: 1, tensor };
            let own = v.own();
            let words = own * (pd + pv) + stage * (2 * pd + pv) + own * (stage + 4) + 10 * stage;
            if let Some(v) = v.finish(gpu, words) {
                return Ok(v);
            }
        }
        Err(Error::unsupported("attention_bwd", TOO_LITTLE_SHARED))
    }

    /// Rows a block owns.
    pub(super) fn own(&self) -> usize {
        self.warps * 8 * self.rows
    }

    pub(super) fn module(&self, g: &Geometry, flips: bool) -> Source {
        let defines = [
            ("D", g.d),
            ("DV", g.dv),
            ("TR", self.rows),
            ("WARPS", self.warps),
            ("SB", self.stage),
            ("SHARE", usize::from(self.share)),
            ("BLOCKS", self.blocks),
            ("MASK", usize::from(g.mask.is_some())),
            ("INSIDE", 1),
            ("TF32", 1),
            ("FLIP", 1),
        ];
        let is_used = |name: &str| match name {
            "INSIDE" => g.heads > 0,
            "TF32" => self.tensor,
            "FLIP" => flips,
            _ => true,
        };
        let defines: Vec<_> = defines.into_iter().filter(|(name, _)| is_used(name)).collect();
        source(self.kernel, &defines)
    }

    /// Launches the kernel of `module` on tiles of `rows` rows of every list, with `most` blocks at most.
    pub(super) fn launch(
        &self,
        cuda: &Cuda,
        (g, flips): (&Geometry, bool),
        rows: usize,
        most: usize,
        args: &Args,
    ) -> Result<()> {
        let (module, text) = self.module(g, flips);
        let kernel = cuda.kernel(&module, text, self.kernel.0)?;
        let blocks = rows.div_ceil(self.own()).saturating_mul(g.batch).min(most);
        cuda.launch(kernel, [blocks as u32, 1, 1], 32 * self.warps as u32, self.shared as u32, args)
    }
}

/// A variant of a kernel: a name of its own, and the text.
pub(super) fn source((kernel, own): Kernel, defines: &[(&str, usize)]) -> Source {
    let mut name = kernel.to_string();
    let mut text = format!("#define CHUNK {K_CHUNK}\n#define BLOCK {KEY_BLOCK}\n");
    for (key, value) in defines {
        name.push_str(&format!("_{}{value}", key.to_lowercase()));
        text.push_str(&format!("#define DITTO_{key} {value}\n"));
    }
    crate::module(name, || {
        text.push_str(&cuda_function("ditto_weight", functions::weight));
        text.push_str(&cuda_function("ditto_log", functions::log));
        text.push_str(COMMON_CU);
        text.push_str(own);
        text
    })
}

pub(super) fn delta_module(g: &Geometry) -> Source {
    let defines = [("DV", g.dv), ("INSIDE", 1)];
    source(DELTA, if g.heads > 0 { &defines } else { &defines[..1] })
}

/// The mask's strides as the kernels take them.
pub(super) fn mask_words(g: &Geometry) -> [u64; 2 * LEADING_AXES + 2] {
    let view = g.mask.unwrap_or(MaskView { dims: [1; LEADING_AXES], ..MaskView::default() });
    let mut words = [0; 2 * LEADING_AXES + 2];
    let all = view.dims.iter().chain(&view.strides).chain([&view.row, &view.column]);
    for (w, &x) in words.iter_mut().zip(all) {
        *w = x as u64;
    }
    words
}

/// How heads lie inside rows, as the kernels take it: how many, and words from row to row of queries, of outputs and of the
/// chains of `dq`, which are where `dq` will be if there is but one chunk.
pub(super) fn inside_words(g: &Geometry) -> [u32; 4] {
    let narrow = (g.heads * g.d) as u32;
    let chains = if g.m > K_CHUNK { narrow } else { 3 * narrow };
    [g.heads as u32, 3 * narrow, narrow, chains]
}

/// The forward kernel, on the addresses of `q, k, v` and the mask, to those of the outputs, logarithms and largest scores.
pub(super) fn forward_cuda(
    cuda: &Cuda,
    scoring: Scoring,
    g: &Geometry,
    ins: [u64; 4],
    outs: [u64; 3],
) -> Result<()> {
    let variant = Variant::forward(g, &Gpu::of(cuda))?;
    let mut args = Args::new();
    for at in ins.into_iter().chain(outs) {
        args.ptr(at);
    }
    for x in [g.batch, g.group, g.n, g.m] {
        args.u32(x as u32);
    }
    args.u32(u32::from(scoring.causal)).f32(scoring.factor(g.d));
    args.bytes(bytemuck::cast_slice(&mask_words(g)), 8);
    args.bytes(bytemuck::cast_slice(&inside_words(g)), 4);
    variant.launch(cuda, (g, scoring.flips(g.d)), g.rows(), i32::MAX as usize, &args)
}

/// `delta` of every row, from the addresses of `dy`, the outputs and `dl`.
pub(super) fn delta_cuda(cuda: &Cuda, g: &Geometry, [dy, o, dl]: [u64; 3], delta: u64) -> Result<()> {
    let rows = g.batch * g.rows();
    if rows == 0 {
        return Ok(());
    }
    let (module, text) = delta_module(g);
    let kernel = cuda.kernel(&module, text, DELTA.0)?;
    let mut args = Args::new();
    args.ptr(dy).ptr(o).ptr(dl).ptr(delta).u64(rows as u64).u32(g.n as u32).u32(g.heads as u32);
    cuda.launch(kernel, map::grid(cuda, rows * 32), 256, 0, &args)
}

/// What the backward kernel works with, in words of its workspace: first the row products, then from `turns` on
/// the order of work and how far each stage of queries is, from `chains` on the chains of `dq` under way.
pub(super) struct BackwardWorkspace {
    pub(super) turns: usize,
    pub(super) chains: usize,
    pub(super) end: usize,
}

impl BackwardWorkspace {
    pub(super) fn of(g: &Geometry) -> BackwardWorkspace {
        let rows = g.batch * g.rows();
        let turns = rows.next_multiple_of(4);
        // Stages have 8 queries or more.
        let chains = (turns + 2 + g.batch * g.rows().div_ceil(8)).next_multiple_of(4);
        let end = chains + if g.m > K_CHUNK { rows * g.d } else { 0 };
        BackwardWorkspace { turns, chains, end }
    }
}

/// The backward kernel, on the addresses of `q, k, v` and the mask, and of `dy`, the logarithms and the largest scores, to those of the
/// gradients. The workspace begins with `delta`.
pub(super) fn backward_cuda(
    cuda: &Cuda,
    scoring: Scoring,
    g: &Geometry,
    ins: [u64; 4],
    [dy, logs, tops]: [u64; 3],
    grads: [u64; 3],
    workspace: u64,
) -> Result<()> {
    let gpu = Gpu::of(cuda);
    let variant = Variant::backward(g, &gpu)?;
    let space = BackwardWorkspace::of(g);
    let turns = workspace + space.turns as u64 * 4;
    cuda.fill(turns, 0, space.chains - space.turns)?;
    // Chains of the only chunk can grow where the result will be.
    let chains = if space.end > space.chains { workspace + space.chains as u64 * 4 } else { grads[0] };
    let scale = scoring.scale(g.d);
    let mut args = Args::new();
    for at in ins.into_iter().chain([dy, logs, tops, workspace]).chain(grads).chain([chains, turns]) {
        args.ptr(at);
    }
    for x in [g.batch, g.group, g.n, g.m] {
        args.u32(x as u32);
    }
    args.u32(u32::from(scoring.causal)).f32(scoring.factor(g.d)).f32(scale as f32);
    args.bytes(bytemuck::cast_slice(&mask_words(g)), 8);
    args.bytes(bytemuck::cast_slice(&inside_words(g)), 4);
    let most = gpu.sm_count as usize * variant.blocks;
    variant.launch(cuda, (g, scoring.flips(g.d)), g.m, most, &args)
}

/// Zeroes the words between the parts of a packed value.
pub(super) fn fill_gaps(cuda: &Cuda, out: u64, parts: &[Shape]) -> Result<()> {
    let (starts, _) = layout::packed(parts);
    for (start, s) in starts.iter().zip(parts) {
        let gap = s.numel().next_multiple_of(4) - s.numel();
        if gap > 0 {
            cuda.fill(out + (start + s.numel()) as u64 * 4, 0, gap)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::geometry::MAX_HEAD;
    use super::*;

    /// Blocks of compute capability 8.6 and 8.9 have the least shared memory of all from 8.0 on.
    #[test]
    fn all_heads_fit_a_block_of_99_kib() {
        let gpu = Gpu { sm_count: 58, shared: 99 * 1024, numerics: Numerics::Strict, hopper: true };
        for d in 1..=MAX_HEAD {
            for dv in [1, d, MAX_HEAD] {
                let shape = |last: usize| Shape::new(&[2, 70, last]);
                let [q, v] = [shape(d), shape(dv)].map(Result::unwrap_or_default);
                let g = Geometry::of("attention", [q, q, v], None);
                let g = g.and_then(|g| Variant::forward(&g, &gpu).and(Variant::backward(&g, &gpu)));
                assert!(g.is_ok(), "{d} and {dv}: {g:?}");
            }
        }
    }
}
