//! The CUDA kernels of attention in digits: which variants are launched, with what, and where digits lie in the workspace.

use super::cuda::{COMMON_CU, inside_words, mask_words};
use super::geometry::{Geometry, KEY_BLOCK, Scoring};
use crate::Gpu;
use crate::workspace::Workspace;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::digits::{Digits, LEAST_EXPONENT};
use dittograd_numerics::error::Result;
use dittograd_numerics::functions;
use dittograd_numerics::lane::cuda_function;

const DIGITS_CU: &str = concat!(
    include_str!("lists.cu"),
    include_str!("../magnitudes.cu"),
    include_str!("../matmul/digit_parts.cu"),
    include_str!("digits.cu")
);

/// A kernel: its name, and what its text ends with.
#[derive(Clone, Copy)]
struct Kernel {
    name: &'static str,
    text: &'static str,
}

const CONVERT: Kernel = Kernel { name: "attention_digits", text: include_str!("digits_convert.cu") };
const FORWARD: Kernel = Kernel { name: "attention_digits_forward", text: include_str!("digits_forward.cu") };
const KEYS: Kernel = Kernel { name: "attention_digits_keys", text: include_str!("digits_keys.cu") };
const QUERIES: Kernel = Kernel { name: "attention_digits_queries", text: include_str!("digits_queries.cu") };

/// Threads of a block that multiplies, which owns [`KEY_BLOCK`] queries or keys.
const THREADS: u32 = 128;

/// Shared memory of a multiprocessor, and what of it each block takes for itself, from compute capability 9.0 on.
const SHARED: usize = 227 * 1024;
const SHARED_OF_BLOCK: usize = 1024;

/// Steps of k that a head has, which zeros fill up.
fn padded(d: usize) -> usize {
    d.next_multiple_of(32)
}

/// Bytes of a tile: the digits of a block of tokens with heads of that size.
fn tile(digits: Digits, d: usize) -> usize {
    digits.count() * KEY_BLOCK * padded(d)
}

/// Where one form of the digits of a tensor lies in the workspace, in words.
#[derive(Clone, Copy)]
struct Form {
    digits: usize,
    scales: usize,
}

/// A tensor whose digits are made: lists of `tokens` rows of `d` numbers.
struct Part {
    tokens: usize,
    d: usize,
    rows: Option<Form>,
    columns: Option<Form>,
}

impl Workspace {
    /// Places for the digits of a tensor, by rows and by columns.
    fn part(
        &mut self,
        g: &Geometry,
        digits: Digits,
        [tokens, d]: [usize; 2],
        [rows, columns]: [bool; 2],
    ) -> Part {
        let blocks = g.batch * tokens.div_ceil(KEY_BLOCK);
        let mut form = |scales: usize| Form {
            digits: self.take(blocks * tile(digits, d) / 4),
            scales: self.take(blocks * scales),
        };
        let rows = rows.then(|| form(KEY_BLOCK));
        let columns = columns.then(|| form(padded(d)));
        Part { tokens, d, rows, columns }
    }
}

/// The workspace of the forward pass: keys by rows, values by columns.
fn forward_parts(g: &Geometry, digits: Digits) -> ([Part; 2], usize) {
    let mut space = Workspace::default();
    let parts =
        [space.part(g, digits, [g.m, g.d], [true, false]), space.part(g, digits, [g.m, g.dv], [false, true])];
    (parts, space.words())
}

/// The workspace of the backward pass: queries, keys, values and gradients. It begins with `delta`.
fn backward_parts(g: &Geometry, digits: Digits) -> ([Part; 4], usize) {
    let rows = g.rows();
    let mut space = Workspace::default();
    space.take(g.batch * rows);
    let parts = [
        space.part(g, digits, [rows, g.d], [true, true]),
        space.part(g, digits, [g.m, g.d], [true, true]),
        space.part(g, digits, [g.m, g.dv], [true, false]),
        space.part(g, digits, [rows, g.dv], [true, true]),
    ];
    (parts, space.words())
}

/// A variant of a kernel: a name of its own, and the text.
fn source(kernel: Kernel, g: &Geometry, digits: Digits, defines: &[(&str, usize)]) -> Source {
    let sizes = [("D", g.d), ("DV", g.dv), ("DIGITS", digits.count())];
    let mut name = kernel.name.to_string();
    let mut text = format!("#define BLOCK {KEY_BLOCK}\n#define LEAST_EXPONENT ({LEAST_EXPONENT})\n");
    for (key, value) in sizes.iter().chain(defines) {
        name.push_str(&format!("_{}{value}", key.to_lowercase()));
        text.push_str(&format!("#define DITTO_{key} {value}\n"));
    }
    crate::module(name, || {
        text.push_str(&cuda_function("ditto_weight_mantissa", functions::weight_mantissa));
        text.push_str(&cuda_function("ditto_weight_power", functions::weight_power));
        text.push_str(&cuda_function("ditto_log", functions::log));
        text.push_str(COMMON_CU);
        text.push_str(DIGITS_CU);
        text.push_str(kernel.text);
        text
    })
}

/// How one of the kernels that multiply is compiled and launched.
struct Variant {
    kernel: Kernel,
    /// Bytes of shared memory.
    shared: usize,
    /// Whether all tiles take turns at one place.
    share: bool,
    /// Blocks per multiprocessor that registers are budgeted for.
    blocks: usize,
}

impl Variant {
    fn forward(g: &Geometry, digits: Digits) -> Variant {
        let shared = 2 * (tile(digits, g.d) + tile(digits, g.dv) + 4 * (KEY_BLOCK + padded(g.dv)));
        Variant::new(FORWARD, g, digits, shared, false, 4)
    }

    fn keys(g: &Geometry, digits: Digits, gpu: &Gpu) -> Variant {
        let (k, v) = (tile(digits, g.d), tile(digits, g.dv));
        let masks = if g.mask.is_some() { 8 * KEY_BLOCK } else { 0 };
        let rest = 4 * (padded(g.d) + padded(g.dv) + 5 * KEY_BLOCK) + masks;
        let share = 3 * k + 3 * v + rest > gpu.shared;
        let shared = rest + if share { k.max(v) } else { 3 * k + 3 * v };
        // A mask takes registers too.
        Variant::new(KEYS, g, digits, shared, share, if g.mask.is_some() { 2 } else { 3 })
    }

    fn queries(g: &Geometry, digits: Digits, gpu: &Gpu) -> Variant {
        let (k, v) = (tile(digits, g.d), tile(digits, g.dv));
        let rest = 4 * (padded(g.d) + 2 * KEY_BLOCK);
        let share = 3 * k + 2 * v + rest > gpu.shared;
        let shared = rest + if share { k.max(v) } else { 3 * k + 2 * v };
        Variant::new(QUERIES, g, digits, shared, share, 3)
    }

    /// `most`: blocks of a multiprocessor whose registers suffice in `turbo`, with heads of up to 64.
    fn new(kernel: Kernel, g: &Geometry, digits: Digits, shared: usize, share: bool, most: usize) -> Variant {
        let most = match (digits, g.d.max(g.dv)) {
            (Digits::Two, 0..=64) => most,
            (Digits::Three, 0..=64) => most - 1,
            (_, _) => most.saturating_sub(2),
        };
        Variant { kernel, shared, share, blocks: most.min(SHARED / (shared + SHARED_OF_BLOCK)).max(1) }
    }

    fn module(&self, g: &Geometry, digits: Digits, flips: bool) -> Source {
        let defines = [
            ("BLOCKS", self.blocks),
            ("MASK", usize::from(g.mask.is_some())),
            ("SHARE", 1),
            ("INSIDE", 1),
            ("FLIP", 1),
        ];
        let is_used = |name: &str| match name {
            "SHARE" => self.share,
            "INSIDE" => g.heads > 0,
            "FLIP" => flips,
            _ => true,
        };
        let defines: Vec<_> = defines.into_iter().filter(|(name, _)| is_used(name)).collect();
        source(self.kernel, g, digits, &defines)
    }

    /// Launches the kernel on blocks of `rows` rows of every list.
    fn launch(
        &self,
        cuda: &Cuda,
        g: &Geometry,
        digits: Digits,
        flips: bool,
        rows: usize,
        args: &Args,
    ) -> Result<()> {
        let (module, text) = self.module(g, digits, flips);
        let kernel = cuda.kernel(&module, text, self.kernel.name)?;
        let blocks = g.batch.saturating_mul(rows.div_ceil(KEY_BLOCK)).min(i32::MAX as usize);
        cuda.launch(kernel, [blocks as u32, 1, 1], THREADS, self.shared as u32, args)
    }
}

/// Makes the digits of tensors at these addresses, whose rows are so many words apart.
fn convert(
    cuda: &Cuda,
    g: &Geometry,
    digits: Digits,
    parts: &[(&Part, u64, usize)],
    workspace: u64,
) -> Result<()> {
    let mut words = [0u64; 4 * 7];
    for (words, (part, x, apart)) in words.chunks_exact_mut(7).zip(parts) {
        let address = |form: Option<Form>| {
            form.map_or([0, 0], |f| [f.digits, f.scales].map(|at| workspace + at as u64 * 4))
        };
        let ([rows, row_scales], [columns, column_scales]) = (address(part.rows), address(part.columns));
        let tokens = part.tokens as u64 | (*apart as u64) << 32;
        words.copy_from_slice(&[
            *x,
            rows,
            row_scales,
            columns,
            column_scales,
            tokens,
            u64::from(part.d != g.d),
        ]);
    }
    let (module, text) = source(CONVERT, g, digits, &[]);
    let kernel = cuda.kernel(&module, text, CONVERT.name)?;
    let mut args = Args::new();
    args.bytes(bytemuck::cast_slice(&words), 8).u32(g.batch as u32).u32(g.heads.max(1) as u32);
    let most = parts.iter().map(|(part, ..)| part.tokens).max().unwrap_or(0);
    let grid = [(g.batch * most.div_ceil(KEY_BLOCK)) as u32, parts.len() as u32, 1];
    cuda.launch(kernel, grid, 4 * padded(g.d.max(g.dv)) as u32, 0, &args)
}

/// Words between rows of `q, k, v` and of `dy`.
fn apart(g: &Geometry) -> [usize; 4] {
    match g.heads {
        0 => [g.d, g.d, g.dv, g.dv],
        heads => [3 * heads * g.d, 3 * heads * g.d, 3 * heads * g.d, heads * g.d],
    }
}

/// Words of workspace of the forward pass.
pub(super) fn forward_workspace(g: &Geometry, digits: Digits) -> usize {
    forward_parts(g, digits).1
}

/// The modules that `forward_cuda` launches kernels of.
pub(super) fn forward_modules(scoring: Scoring, g: &Geometry, digits: Digits) -> Vec<Source> {
    vec![source(CONVERT, g, digits, &[]), Variant::forward(g, digits).module(g, digits, scoring.flips(g.d))]
}

/// The forward pass in digits, on the addresses of `q, k, v` and the mask (0 without one), to those of the outputs, logarithms and
/// largest scores.
pub(super) fn forward_cuda(
    cuda: &Cuda,
    scoring: Scoring,
    g: &Geometry,
    digits: Digits,
    [q, k, v, mask]: [u64; 4],
    outs: [u64; 3],
    workspace: u64,
) -> Result<()> {
    let (parts, _) = forward_parts(g, digits);
    let apart = apart(g);
    convert(cuda, g, digits, &[(&parts[0], k, apart[1]), (&parts[1], v, apart[2])], workspace)?;
    let mut args = Args::new();
    args.ptr(q);
    for form in parts.iter().flat_map(|part| [part.rows, part.columns]).flatten() {
        args.ptr(workspace + form.digits as u64 * 4).ptr(workspace + form.scales as u64 * 4);
    }
    for at in [mask].into_iter().chain(outs) {
        args.ptr(at);
    }
    for x in [g.batch, g.group, g.n, g.m] {
        args.u32(x as u32);
    }
    args.u32(u32::from(scoring.causal)).f32(scoring.factor(g.d));
    args.bytes(bytemuck::cast_slice(&mask_words(g)), 8);
    args.bytes(bytemuck::cast_slice(&inside_words(g)), 4);
    Variant::forward(g, digits).launch(cuda, g, digits, scoring.flips(g.d), g.rows(), &args)
}

/// Words of workspace of the backward pass. It begins with `delta`, `g.batch * g.rows()` words.
pub(super) fn backward_workspace(g: &Geometry, digits: Digits) -> usize {
    backward_parts(g, digits).1
}

/// The modules that `backward_cuda` launches kernels of.
pub(super) fn backward_modules(scoring: Scoring, g: &Geometry, digits: Digits, gpu: &Gpu) -> Vec<Source> {
    let variants = [Variant::keys(g, digits, gpu), Variant::queries(g, digits, gpu)];
    let modules = variants.map(|variant| variant.module(g, digits, scoring.flips(g.d)));
    std::iter::once(source(CONVERT, g, digits, &[])).chain(modules).collect()
}

/// The backward pass in digits, on the addresses of `q, k, v` and the mask, and of `dy`, the logarithms and the largest scores, to those of
/// the gradients. The workspace begins with `delta`, which is computed.
#[allow(clippy::too_many_arguments)]
pub(super) fn backward_cuda(
    cuda: &Cuda,
    scoring: Scoring,
    g: &Geometry,
    digits: Digits,
    [q, k, v, mask]: [u64; 4],
    [dy, logs, tops]: [u64; 3],
    [dq, dk, dv]: [u64; 3],
    workspace: u64,
) -> Result<()> {
    let gpu = Gpu::of(cuda);
    let ([pq, pk, pv, pg], _) = backward_parts(g, digits);
    let apart = apart(g);
    let parts = [(&pq, q, apart[0]), (&pk, k, apart[1]), (&pv, v, apart[2]), (&pg, dy, apart[3])];
    convert(cuda, g, digits, &parts, workspace)?;
    let flips = scoring.flips(g.d);
    let statistics = [mask, logs, tops, workspace];
    let args = |forms: &[Option<Form>], grads: &[u64]| {
        let mut args = Args::new();
        // As the kernels' struct has them: digits of all forms, then their scales.
        let digits = forms.iter().flatten().map(|form| form.digits);
        let scales = forms.iter().flatten().map(|form| form.scales);
        let addresses: Vec<u64> = digits.chain(scales).map(|at| workspace + at as u64 * 4).collect();
        args.bytes(bytemuck::cast_slice(&addresses), 8);
        for &at in statistics.iter().chain(grads) {
            args.ptr(at);
        }
        for x in [g.batch, g.group, g.n, g.m] {
            args.u32(x as u32);
        }
        args.u32(u32::from(scoring.causal)).f32(scoring.factor(g.d)).f32(scoring.scale(g.d) as f32);
        args.bytes(bytemuck::cast_slice(&mask_words(g)), 8);
        args.bytes(bytemuck::cast_slice(&inside_words(g)), 4);
        args
    };
    let forms = [pq.rows, pq.columns, pk.rows, pv.rows, pg.rows, pg.columns];
    Variant::keys(g, digits, &gpu).launch(cuda, g, digits, flips, g.m, &args(&forms, &[dk, dv]))?;
    let forms = [pq.rows, pk.rows, pk.columns, pv.rows, pg.rows];
    Variant::queries(g, digits, &gpu).launch(cuda, g, digits, flips, g.rows(), &args(&forms, &[dq]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dittograd_numerics::Numerics;
    use dittograd_numerics::shape::Shape;

    /// Blocks of compute capability 8.6 and 8.9 have the least shared memory of all from 8.0 on.
    #[test]
    fn all_heads_fit_a_block_of_99_kib() {
        let gpu = Gpu { sm_count: 58, shared: 99 * 1024, numerics: Numerics::Fast, hopper: false };
        for (d, dv) in [(32, 32), (64, 64), (33, 128), (128, 33), (128, 128)] {
            let shape = |last: usize| Shape::new(&[2, 130, last]).unwrap_or_default();
            let g = Geometry::of("attention", [shape(d), shape(d), shape(dv)], None).expect("sizes fit");
            for digits in [Digits::Two, Digits::Three] {
                let variants = [
                    Variant::forward(&g, digits),
                    Variant::keys(&g, digits, &gpu),
                    Variant::queries(&g, digits, &gpu),
                ];
                for v in variants {
                    assert!(
                        v.shared <= gpu.shared,
                        "{} with {d} and {dv}: {} bytes",
                        v.kernel.name,
                        v.shared
                    );
                }
            }
        }
    }
}
