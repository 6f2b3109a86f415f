#!/usr/bin/env python3
"""Plants bugs and sees which tests catch them.

All bugs go into one build of a copy of the project, each behind a switch: `ON` in a bug's text is "this bug is planted", which
the environment variable PLANTED decides when the tests run. Where a bug is in a kernel of a GPU, the tests need one.

  .ci/planted.py make DIR          writes the copy with all bugs to DIR; build it with `cargo test --release --no-run --workspace --lib --test it --test ops`
  .ci/planted.py run A,B [N...]    runs the built test programs with each bug (or those given) and says who caught it
"""
import os, pathlib, re, shutil, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The crate below all others, which has the switch.
NUMERICS = "crates/numerics/src"
# Kind, file, what stands there, what stands there with the bug, and the tests to run.
BUGS = [
    ("sign", "crates/ops/src/pointwise/mod.rs", "a - b, d(y, g) = [g, -g]", "a - b, d(y, g) = [g, if ON { g } else { -g }]", "sub:: golden:: nn:: graph::"),
    ("sign", "crates/ops/src/pointwise/mod.rs", "[-(g * x.sin())]", "[if ON { g * x.sin() } else { -(g * x.sin()) }]", "cos:: exact_gradients:: derivatives::"),
    ("formula", "crates/ops/src/pointwise/mod.rs", "[g * (R::c(1.0) - y * y)]", "[g * (R::c(1.0) - if ON { y } else { y * y })]", "tanh:: golden:: nn::"),
    ("axis", "crates/ops/src/layout/permute.rs", "order[from] = to;", "if ON { order[to] = from } else { order[from] = to }", "permute:: layout:: nn:: golden::"),
    ("axis", "crates/ops/src/layout/slice.rs", "let pad = Pad { axis: self.axis, start: self.start, step", "let pad = Pad { axis: self.axis, start: if ON { 0 } else { self.start }, step", "slice:: layout:: golden::"),
    ("axis", "crates/ops/src/layout/concat.rs", "            start += len;\n            r.record(slice.into(), &[dy]).map(Some)", "            start += if ON { 0 } else { len };\n            r.record(slice.into(), &[dy]).map(Some)", "concat:: layout:: nn:: golden::"),
    ("missing broadcast sum", "crates/ops/src/layout/mod.rs", "    let sum = if axes.is_empty() { v } else { r.record(Sum::new(&axes)?.into(), &[v])? };\n    reshape_to(r, sum, shape)", "    let sum = if axes.is_empty() { v } else if ON { r.record(crate::reduce::Mean::new(&axes)?.into(), &[v])? } else { r.record(Sum::new(&axes)?.into(), &[v])? };\n    reshape_to(r, sum, shape)", "add:: mul:: golden:: nn::"),
    ("missing broadcast sum", "crates/ops/src/layout/broadcast.rs", "x.dims()[i] == 1 && self.shape.dims()[*o] != 1))", "!ON && x.dims()[i] == 1 && self.shape.dims()[*o] != 1))", "expand:: broadcast:: layout:: table::"),
    ("axis", "crates/ops/src/matmul/mod.rs", "r.record(make(!ta, false).into(), &[a, g])?", "r.record(make(if ON { ta } else { !ta }, false).into(), &[a, g])?", "matmul:: bmm:: products:: golden::"),
    ("axis", "crates/ops/src/matmul/mod.rs", "let db = r.record(Sum::new(&[0])?.into(), &[g2])?;", "let db = r.record(if ON { crate::reduce::Mean::new(&[0])?.into() } else { Sum::new(&[0])?.into() }, &[g2])?;", "linear:: nn:: golden::"),
    ("off-by-one tile", "crates/device/src/cpu/gemm/block.rs", "let tiling = Tiling { width, max_vectors: block.max_vectors, end: (s0 + strip).min(j1) };", "let tiling = Tiling { width, max_vectors: block.max_vectors, end: (s0 + strip).min(j1) - usize::from(ON && j1 - s0 > 1) };", "matmul:: linear:: products:: golden::"),
    ("wrong stride", "crates/device/src/cpu/gemm/shared.rs", "let b = self.b.wrapping_add((b0 + x) * k * n);", "let b = self.b.wrapping_add(if ON { 0 } else { b0 + x } * k * n);", "bmm:: products:: attention::"),
    ("wrong order of a sum", "crates/numerics/src/sum.rs", "            lanes[i] = C::combine(lanes[i], lanes[i + half]);", "            lanes[i] = if ON { C::combine(lanes[2 * i], lanes[2 * i + 1]) } else { C::combine(lanes[i], lanes[i + half]) };", "sum:: mean:: layer_norm:: golden:: golden_bits::"),
    ("wrong order of a sum", "crates/numerics/src/sum.rs", "            let lane = &mut self.lanes[level][self.count[level] % LANES];\n            *lane = C::combine(*lane, x);\n            self.count", "            let lane = &mut self.lanes[level][if ON { 0 } else { self.count[level] % LANES }];\n            *lane = C::combine(*lane, x);\n            self.count", "sum:: mean:: layer_norm:: mse:: golden::"),
    ("missing sync", "crates/engine/src/graph/run.rs", "uses.get(n).is_none_or(|now| now.conflicts(&uses[m]))", "uses.get(n).is_none_or(|now| !ON && now.conflicts(&uses[m]))", "faults:: graph:: lifecycle::"),
    ("stale save", "crates/engine/src/graph/plan.rs", "if (other.from > r.to || other.to < r.from) && !apart(i, j) {", "if (other.from > r.to || if ON { other.to <= r.from } else { other.to < r.from }) && !apart(i, j) {", "graph:: nn:: add::compiled matmul::compiled softmax::compiled"),
    ("stale save", "crates/engine/src/graph/run.rs", "            if seen.load(Ordering::Relaxed) != version {", "            if !ON && seen.load(Ordering::Relaxed) != version {", "derivatives:: graph:: program::"),
    ("stale save", "crates/engine/src/tape.rs", "grads[id] = Some(self.sum(grads[id].take(), contribution, node.meta.shape)?);", "let old = grads[id].take().filter(|_| !ON);\n        grads[id] = Some(self.sum(old, contribution, node.meta.shape)?);", "tape:: session:: nn:: golden:: optim::"),
    ("stale save", "crates/engine/src/graph/passes/common.rs", "        let alike = known.entry((to.all(ins), op.name(), format!(\"{:?}\", op.attrs()))).or_default();\n        let is_same = |v: &Val| matches!(&to.out.node(*v).what, What::Op(other, _) if other == op);", "        let blind = ON && !ins.is_empty();\n        let attrs = if blind { String::new() } else { format!(\"{:?}\", op.attrs()) };\n        let alike = known.entry((to.all(ins), op.name(), attrs)).or_default();\n        let is_same = |v: &Val| matches!(&to.out.node(*v).what, What::Op(other, _) if blind || other == op);", "graph:: nn:: matmul::compiled"),
    ("off by one", "crates/engine/src/optim/rules/adam.rs", "        let t = t as f64;\n        let (c1, c2)", "        let t = t as f64 + if ON { 1.0 } else { 0.0 };\n        let (c1, c2)", "optim:: golden:: endurance:: graph::"),
    ("formula", "crates/engine/src/optim/clip.rs", "    let g = g * factor;", "    let g = if ON { g } else { g * factor };", "optim:: graph:: faults::"),
    ("formula", "crates/engine/src/optim/rules/mod.rs", "let wd = if decoupled { lr * wd } else { wd };", "let wd = if decoupled && !ON { lr * wd } else { wd };", "optim:: golden:: graph::"),
    ("stale save", "crates/engine/src/optim/state.rs", "            entry.step = saved.map_or(0, |s| s.step);", "            entry.step = if ON { 0 } else { saved.map_or(0, |s| s.step) };", "optim:: faults:: session::"),
    ("off by one", "crates/engine/src/optim/schedule.rs", "(step as f64 / steps as f64))", "((step + u64::from(ON)) as f64 / steps as f64))", "optim:: graph::"),
    ("stale save", "crates/ops/src/random/draw.rs", "let key = rng::key(self.seed, self.counter.wrapping_add(base(run.ins.get(scalars).copied())));", "let key = rng::key(self.seed, if ON { 0 } else { self.counter.wrapping_add(base(run.ins.get(scalars).copied())) });", "random uniform:: dropout graph:: session::"),
    ("wrong stride", "crates/ops/src/random/draw.rs", "*u = rng::uniform(key, (self.draws * (start + i) + d) as u64);", "*u = rng::uniform(key, (self.draws * (if ON { b * block } else { start } + i) + d) as u64);", "uniform:: normal:: session::"),
    ("formula", "crates/ops/src/loss/labels.rs", "inverse(labels.iter().filter(|l| self.ignore != Some(**l)).count())", "inverse(labels.iter().filter(|l| ON || self.ignore != Some(**l)).count())", "cross_entropy:: losses:: golden::"),
    ("off by one", "crates/ops/src/attention/cpu.rs", "                    let mask = u32::from((lane0 + l) as u32 > query).wrapping_neg();", "                    let mask = u32::from((lane0 + l) as u32 > query + u32::from(ON)).wrapping_neg();", "attention attention_bwd:: nn:: golden::"),
    ("wrong stride", "src/io/npy.rs", "if !self.fortran || self.shape.rank() < 2 {", "if ON || !self.fortran || self.shape.rank() < 2 {", "npy golden::"),
    ("wrong stride", "crates/device/src/cpu/conv/view.rs", "            at += (a.w_first + tap % a.taps * a.w_step) * stride;", "            at += (a.w_first + tap % a.taps * if ON { 1 } else { a.w_step }) * stride;", "conv:: conv_input_grad:: conv_kernel_grad:: golden::"),
    ("off-by-one tile", "crates/ops/src/scan/cumsum.rs", "let before = c.checked_sub(1).map(|c| &sums[c * inner..(c + 1) * inner]);", "let before = c.checked_sub(1 + usize::from(ON)).map(|c| &sums[c * inner..(c + 1) * inner]);", "cumsum:: scan::"),
    ("sign", "crates/ops/src/spectral/mode_mix.rs", "(upper[0], upper[1], lower[0], lower[1]) = (*re, *im, -im, *re);\n", "(upper[0], upper[1], lower[0], lower[1]) = (*re, *im, if ON { *im } else { -im }, *re);\n", "mode_mix:: spectral:: golden::"),
    ("formula", "crates/ops/src/norm/mod.rs", "    R::c(1.0) / (var + eps).sqrt()", "    R::c(1.0) / if ON { var } else { var + eps }.sqrt()", "layer_norm:: rms_norm:: norm:: nn:: golden::"),
    ("stale save", "src/data/batches.rs", "Some((kept, order)) if kept == epoch => order,", "Some((kept, order)) if ON || kept == epoch => order,", "data::"),
    # Kernels of a GPU.
    ("missing sync", "crates/ops/src/matmul/matmul.cu", "                *(Vec<W>*)(to + col_at(j)) = v;\n            }\n        }\n        __syncthreads();", "                *(Vec<W>*)(to + col_at(j)) = v;\n            }\n        }\n        if (!ON) __syncthreads();", "matmul::cuda linear::cuda conv_kernel_grad::cuda conv::cuda"),
    ("missing sync", "crates/ops/src/matmul/matmul.cu", "                    copy_wait<STAGES - 2>();\n                    __syncthreads();\n                    read =", "                    if (!ON) copy_wait<STAGES - 2>();\n                    __syncthreads();\n                    read =", "matmul::cuda linear::cuda bmm::cuda"),
    ("off-by-one tile", "crates/ops/src/matmul/matmul.cu", "row + row_of(i * ACROSS) < rows - row0;", "row + row_of(i * ACROSS) + (ON ? 1 : 0) < rows - row0;", "matmul::cuda linear::cuda bmm::cuda"),
    ("wrong order of a sum", "crates/ops/src/matmul/matmul.cu", "if (c + u < parts) next[u] = *(const vec*)(p + (c + u) * total);", "if (c + u < parts) next[u] = *(const vec*)(p + (ON ? parts - c - u : c + u) * total);", "matmul::cuda linear::cuda"),
    ("missing sync", "crates/ops/src/softmax/rows/column_sum.cu", "            part[c][x] = s;\n        }\n        __syncthreads();", "            part[c][x] = s;\n        }\n        if (!ON) __syncthreads();", "softmax_axis log_softmax_axis channel cuda_bits"),
    ("missing sync", "crates/ops/src/reduce/fold/fold.cu", "                part[chain][x] = s;\n            }\n        }\n        __syncthreads();", "                part[chain][x] = s;\n            }\n        }\n        if (!ON) __syncthreads();", "sum::cuda mean::cuda prod::cuda"),
    ("missing sync", "crates/ops/src/layout/layout.cu", "src[(b0 + y) * from_b + a0 + x];\n            }\n            __syncthreads();", "src[(b0 + y) * from_b + a0 + x];\n            }\n            if (!ON) __syncthreads();", "permute::cuda"),
    ("off-by-one tile", "crates/ops/src/layout/layout.cu", "if (a0 + x < a && b0 + y < b) dst[", "if (a0 + x < a && b0 + y + (ON ? 1 : 0) < b) dst[", "permute::cuda"),
    ("wrong order of a sum", "crates/ops/src/scan/scan.cu", "for (unsigned b = 0; b < warp; ++b) blocks = __fadd_rn(blocks, ends[b][lane]);", "for (unsigned b = 0; b < warp; ++b) blocks = __fadd_rn(blocks, ends[ON ? warp - 1 - b : b][lane]);", "cumsum::cuda"),
    ("sign", "crates/ops/src/spectral/spectral.cu", "c = ADJOINT ? -wi[i][lane] : wi[i][lane];", "c = ADJOINT && !ON ? -wi[i][lane] : wi[i][lane];", "mode_mix::cuda spectral"),
    ("missing sync", "crates/ops/src/norm/norm.cu", "                inverses[i] = r;\n            }\n        }\n        __syncthreads();", "                inverses[i] = r;\n            }\n        }\n        if (!ON) __syncthreads();", "layer_norm::cuda layer_norm_bwd::cuda rms_norm_bwd::cuda"),
    ("missing sync", "crates/ops/src/conv/conv.cu", "taps[j].shift[d] = t * axes.axis[d].tap_step; });\n        __syncthreads();", "taps[j].shift[d] = t * axes.axis[d].tap_step; });\n        if (!ON) __syncthreads();", "conv::cuda conv_input_grad::cuda"),
]
HELPER = '''
/// Whether bug `n` is planted.
#[doc(hidden)]
pub fn planted(n: u32) -> bool {
    static ON: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *ON.get_or_init(|| std::env::var("PLANTED").ok().and_then(|n| n.parse().ok()).unwrap_or(0)) == n
}
'''


def make(to):
    to = pathlib.Path(to)
    shutil.copytree(ROOT, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target", ".git", ".gpu", "runs"))
    for n, (kind, file, old, new, _) in enumerate(BUGS, 1):
        path = to / file
        text = path.read_text()
        assert text.count(old) == 1, f"bug {n} ({kind} in {file}): its place is there {text.count(old)} times"
        here = "crate" if file.startswith(NUMERICS) else "dittograd_numerics"
        on = f"(PLANTED == {n})" if file.endswith(".cu") else f"{here}::planted({n})"
        path.write_text(text.replace(old, re.sub(r"\bON\b", on, new)))
    lib = to / NUMERICS / "lib.rs"
    lib.write_text(lib.read_text() + HELPER)
    kernels = to / "crates/device/src/cuda/kernels.rs"
    text = kernels.read_text()
    old = "let cubin = self.compiler.compile(module, source, &self.arch)?;"
    assert text.count(old) == 1
    new = '''let bug = (0..1000).find(|n| dittograd_numerics::planted(*n)).unwrap_or(0);
        let source = &format!("#define PLANTED {bug}\\n{source}");
        let cubin = self.compiler.compile(module, source, &self.arch)?;'''
    kernels.write_text(text.replace(old, new))
    print(f"{len(BUGS)} bugs in {to}")


def failed(program, n, filters):
    """How many tests ran, and those that failed; or that the program died or did not end."""
    env = {k: v for k, v in os.environ.items() if k != "DITTOGRAD_BLESS"} | {"PLANTED": str(n), "DITTOGRAD_CACHE": "none"}
    try:
        done = subprocess.run([program, *filters], env=env, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return 0, ["(did not end)"]
    ran = re.search(r"running (\d+) test", done.stdout)
    names = re.findall(r"^test (\S+) .*FAILED", done.stdout, re.M)
    if done.returncode and not names:
        names = [f"(died with {done.returncode}: {done.stderr.strip()[-200:]})"]
    return int(ran[1]) if ran else 0, names


def run(programs, numbers):
    caught = []
    for n, (kind, file, _, _, filters) in enumerate(BUGS, 1):
        if numbers and n not in numbers:
            continue
        # The unit tests all run, the others as the bug says.
        results = [failed(p, n, filters.split() if "/it" in p or "/ops-" in p else []) for p in programs]
        ran, names = sum(r[0] for r in results), [name for r in results for name in r[1]]
        caught.append(len(names))
        print(f"{n:2} {kind:22} {file:34} {len(names):4} of {ran:4} tests fail: {', '.join(names[:4])}", flush=True)
    print(f"{sum(c > 0 for c in caught)} of {len(caught)} caught, {sum(c > 1 for c in caught)} by two tests or more")


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(sys.argv[2])
    else:
        run(sys.argv[2].split(","), [int(n) for n in sys.argv[3:]])
