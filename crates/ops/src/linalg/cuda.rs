//! Blocked elimination on CUDA: see `linalg.cu`.

use super::qr;
use crate::pointwise::map::grid;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::error::Result;
use std::sync::Arc;

const LINALG_CU: &str = include_str!("linalg.cu");
const QR_CU: &str = include_str!("qr.cu");

/// Rows of a diagonal block: what one launch eliminates before the rest is updated.
const BLOCK: usize = 64;

/// Side of a tile of an update.
const TILE: usize = 64;

/// Right-hand sides of a block of threads of `solve_columns`; `solve_block` has twice as many.
const COLUMNS: usize = 16;

/// Side of a tile of a factor, and rows that `solve_columns` substitutes at once.
const SIDE: usize = 32;

/// Shared memory of `solve_columns`: three stages of 256 rows and COLUMNS right-hand sides with 32 terms each, padded.
const STAGES_BYTES: usize = 3 * 4 * (8 * SIDE * (SIDE + 4) + SIDE * (COLUMNS + 4));

/// Bits of a word of a factor before it is computed: a NaN that no operation gives.
const ABSENT: u32 = 0xffff_beef;

/// Largest second dimension of a grid; kernels go round it.
const MAX_BATCH: usize = 65_535;

pub(super) fn module() -> Source {
    let sizes = [("TILE", TILE), ("SIDE", SIDE), ("COLUMNS", COLUMNS), ("ABSENT", ABSENT as usize)];
    let text = || {
        sizes.iter().map(|(name, value)| format!("#define {name} {value}u\n")).collect::<String>() + LINALG_CU
    };
    crate::module("linalg".into(), text)
}

/// Matrices of a batch: the address of the first element, and the distances of matrices, rows and columns in words. Reversed
/// ones have negative distances.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    at: u64,
    batch: i64,
    row: i64,
    column: i64,
}

impl Matrix {
    /// Dense matrices.
    pub(super) fn rows(at: u64, rows: usize, columns: usize) -> Matrix {
        Matrix { at, batch: (rows * columns) as i64, row: columns as i64, column: 1 }
    }

    pub(super) fn transposed(self) -> Matrix {
        Matrix { row: self.column, column: self.row, ..self }
    }

    /// From element (i, j) on.
    pub(super) fn from(self, i: usize, j: usize) -> Matrix {
        let words = i as i64 * self.row + j as i64 * self.column;
        Matrix { at: self.at.wrapping_add_signed(4 * words), ..self }
    }

    /// With `n` rows in reverse order.
    pub(super) fn rows_reversed(self, n: usize) -> Matrix {
        Matrix { row: -self.row, ..self.from(n - n.min(1), 0) }
    }

    /// With `n` columns in reverse order.
    pub(super) fn columns_reversed(self, n: usize) -> Matrix {
        self.transposed().rows_reversed(n).transposed()
    }

    fn pass(&self, args: &mut Args) {
        args.ptr(self.at);
        for words in [self.batch, self.row, self.column] {
            args.u64(words as u64);
        }
    }
}

fn launch(cuda: &Cuda, kernel: &str, x: usize, y: usize, batch: usize, args: &Args) -> Result<()> {
    let (name, source) = module();
    let kernel = cuda.kernel(&name, source, kernel)?;
    cuda.launch(kernel, [x as u32, y as u32, batch.min(MAX_BATCH) as u32], 256, 0, args)
}

/// Copies words.
pub(super) fn copy(cuda: &Arc<Cuda>, from: u64, to: u64, words: usize) -> Result<()> {
    if words == 0 {
        return Ok(());
    }
    let (name, source) = module();
    let kernel = cuda.kernel(&name, source, "copy_words")?;
    let mut args = Args::new();
    args.ptr(from).ptr(to).u64(words as u64);
    cuda.launch(kernel, grid(cuda, words), 256, 0, &args)
}

/// Solves `a x = b` in place in `x`, which has `n` rows and `m` columns; `a` is lower triangular.
pub(super) fn solve(
    cuda: &Cuda,
    a: Matrix,
    x: Matrix,
    batch: usize,
    n: usize,
    m: usize,
    unit: bool,
) -> Result<()> {
    if batch * n * m == 0 {
        return Ok(());
    }
    // Few blocks of columns have a multiprocessor each. A small matrix with many of them is faster with several on one.
    let blocks = m.div_ceil(COLUMNS);
    let many = blocks.saturating_mul(batch) > cuda.sm_count() as usize;
    if n > if many { 2 * BLOCK } else { BLOCK }
        && STAGES_BYTES + SIDE * (SIDE + 4) * 4 <= cuda.max_shared_per_block()
    {
        let mut args = Args::new();
        a.pass(&mut args);
        x.pass(&mut args);
        args.u32(n as u32).u64(m as u64).u64(batch as u64).i32(i32::from(unit));
        let (name, source) = module();
        let grid = [blocks as u32, 1, batch.min(MAX_BATCH) as u32];
        return cuda.launch(
            cuda.kernel(&name, source, "solve_columns")?,
            grid,
            256,
            STAGES_BYTES as u32,
            &args,
        );
    }
    for from in (0..n).step_by(BLOCK) {
        let rows = BLOCK.min(n - from);
        let mut args = Args::new();
        a.from(from, from).pass(&mut args);
        x.from(from, 0).pass(&mut args);
        args.u32(rows as u32).u64(m as u64).u64(batch as u64).i32(i32::from(unit));
        launch(cuda, "solve_block", m.div_ceil(2 * COLUMNS), 1, batch, &args)?;
        let next = from + rows;
        update(cuda, x.from(next, 0), a.from(next, from), x.from(from, 0), batch, [n - next, m, rows])?;
    }
    Ok(())
}

/// `c -= a b` for `c` of `sizes[0]` rows and `sizes[1]` columns, with `sizes[2]` terms.
pub(super) fn update(
    cuda: &Cuda,
    c: Matrix,
    a: Matrix,
    b: Matrix,
    batch: usize,
    sizes: [usize; 3],
) -> Result<()> {
    let [rows, columns, terms] = sizes;
    if batch * rows * columns * terms == 0 {
        return Ok(());
    }
    // Neighbouring threads have neighbouring columns. A product of numbers is the same in either order.
    if c.column.abs() != 1 && c.row.abs() == 1 {
        let [c, a, b] = [c.transposed(), b.transposed(), a.transposed()];
        return update_as_is(cuda, [c, a, b], batch, [columns, rows, terms]);
    }
    update_as_is(cuda, [c, a, b], batch, sizes)
}

fn update_as_is(cuda: &Cuda, all: [Matrix; 3], batch: usize, sizes: [usize; 3]) -> Result<()> {
    let [rows, columns, terms] = sizes;
    let mut args = Args::new();
    all.iter().for_each(|m| m.pass(&mut args));
    args.u32(rows as u32).u32(columns as u32).u32(terms as u32).u64(batch as u64);
    launch(cuda, "update", columns.div_ceil(TILE), rows.div_ceil(TILE), batch, &args)
}

/// Words of workspace of [`cholesky`]: the number of jobs that were taken.
pub(super) const CHOLESKY_WORKSPACE: usize = 2;

/// Writes the lower factors of the symmetric parts of dense matrices `a` to `l`, which is dense or its transpose is, and zeros above them.
pub(super) fn cholesky(cuda: &Cuda, a: u64, l: Matrix, batch: usize, n: usize, workspace: u64) -> Result<()> {
    if batch * n == 0 {
        return Ok(());
    }
    let (name, source) = module();
    let words = batch * n * n;
    let mut args = Args::new();
    args.ptr(l.at).u64(words as u64).ptr(workspace);
    cuda.launch(cuda.kernel(&name, source, "cholesky_start")?, grid(cuda, words), 256, 0, &args)?;
    let mut args = Args::new();
    args.ptr(a);
    l.pass(&mut args);
    args.u32(n as u32).u64(batch as u64).ptr(workspace);
    let tiles = n.div_ceil(SIDE);
    let all = batch.saturating_mul(tiles * (tiles + 1) / 2);
    // The blocks on the way of a large matrix's diagonal should not share their multiprocessors with many others.
    let together = if tiles > 8 { 2 } else { 8 };
    let blocks = all.min(together * cuda.sm_count() as usize) as u32;
    cuda.launch(cuda.kernel(&name, source, "cholesky_tiles")?, [blocks, 1, 1], 128, 0, &args)
}

/// Columns that one launch of the pivot search finishes.
const PANEL: usize = 32;

/// Factors `m` of `sizes` rows and columns with row exchanges, in place. `swaps` has a word per row; the order of rows goes to
/// `rows`, and the signs after them.
pub(super) fn lu(
    cuda: &Arc<Cuda>,
    m: Matrix,
    batch: usize,
    sizes: [usize; 2],
    swaps: u64,
    rows: u64,
) -> Result<()> {
    if batch == 0 {
        return Ok(());
    }
    let [height, columns] = sizes;
    let (name, source) = module();
    let kernel = cuda.kernel(&name, source, "lu_start")?;
    let mut args = Args::new();
    args.ptr(rows).u64((batch * height) as u64).u64(batch as u64);
    cuda.launch(kernel, grid(cuda, batch * (height + 1)), 256, 0, &args)?;
    let panel = cuda.kernel(&name, source, "lu_panel")?;
    let pivots = height.min(columns);
    for from in (0..pivots).step_by(PANEL) {
        let width = PANEL.min(pivots - from);
        let mut args = Args::new();
        m.pass(&mut args);
        args.ptr(swaps).ptr(rows).u32(from as u32).u32(width as u32).u32(height as u32).u64(batch as u64);
        cuda.launch(panel, [1, 1, batch.min(MAX_BATCH) as u32], 1024, 0, &args)?;
        let mut args = Args::new();
        m.pass(&mut args);
        args.ptr(swaps).u32(from as u32).u32(width as u32).u32(height as u32).u32(columns as u32);
        args.u64(batch as u64);
        launch(cuda, "lu_swap", columns.div_ceil(256), 1, batch, &args)?;
        let next = from + width;
        if next == columns {
            break;
        }
        solve(cuda, m.from(from, from), m.from(from, next), batch, width, columns - next, true)?;
        update(
            cuda,
            m.from(next, next),
            m.from(next, from),
            m.from(from, next),
            batch,
            [height - next, columns - next, width],
        )?;
    }
    Ok(())
}

pub(super) fn qr_module() -> Source {
    let text = || {
        let mut text = format!("#define BLOCK {}\n#define CHUNK {K_CHUNK}\n", qr::BLOCK);
        for (name, x) in [("LARGE", qr::LARGE), ("SMALL", qr::SMALL), ("DOWN", qr::DOWN), ("UP", qr::UP)] {
            text += &format!("#define {name} __uint_as_float({:#x}u)\n", x.to_bits());
        }
        text + QR_CU
    };
    crate::module("qr".into(), text)
}

/// Writes `R`, `Q`, `V` and `tau` of dense matrices `a` of sizes (batch, m, n), one after another, to `out`; `gram` has room for
/// the products of the reflections of each block, and for a factor of each column.
pub(super) fn qr(cuda: &Arc<Cuda>, a: u64, out: u64, gram: u64, sizes: [usize; 3]) -> Result<()> {
    let [batch, m, n] = sizes;
    if batch * n == 0 {
        return Ok(());
    }
    let (name, source) = qr_module();
    let q = out + 4 * (batch * n * n) as u64;
    let h = q + 4 * (batch * m * n) as u64;
    let tau = h + 4 * (batch * m * n) as u64;
    let (blocks, z) = (n.div_ceil(qr::BLOCK), batch.min(MAX_BATCH) as u32);
    let apply = cuda.kernel(&name, source, "qr_apply")?;
    let apply = |from: usize, x: u64, first: usize, transposed: bool| {
        if first >= n {
            return Ok(());
        }
        let mut args = Args::new();
        args.ptr(h).ptr(tau).ptr(gram).ptr(x).u32(from as u32).u32(qr::BLOCK.min(n - from) as u32);
        args.u32(blocks as u32).u64(m as u64).u64(n as u64).u64(first as u64).u64(batch as u64);
        args.i32(i32::from(transposed));
        cuda.launch(apply, [(n - first).div_ceil(qr::BLOCK) as u32, 1, z], 256, 0, &args)
    };
    let scales = gram + 4 * (batch * blocks * qr::BLOCK * qr::BLOCK) as u64;
    let mut args = Args::new();
    args.ptr(a).ptr(scales).u64(m as u64).u64(n as u64).u64(batch as u64);
    cuda.launch(cuda.kernel(&name, source, "qr_scales")?, [blocks as u32, 1, z], 1024, 0, &args)?;
    let mut args = Args::new();
    args.ptr(a).ptr(h).ptr(scales).u64((m * n) as u64).u64(n as u64).u64((batch * m * n) as u64);
    cuda.launch(cuda.kernel(&name, source, "qr_start")?, grid(cuda, batch * m * n), 256, 0, &args)?;
    let panel = cuda.kernel(&name, source, "qr_panel")?;
    for from in (0..n).step_by(qr::BLOCK) {
        let mut args = Args::new();
        args.ptr(h).ptr(tau).ptr(gram).u32(from as u32).u32(qr::BLOCK.min(n - from) as u32);
        args.u32(blocks as u32).u64(m as u64).u64(n as u64).u64(batch as u64);
        cuda.launch(panel, [1, 1, z], 1024, 0, &args)?;
        apply(from, h, from + qr::BLOCK, true)?;
    }
    let mut args = Args::new();
    args.ptr(h).ptr(out).ptr(q).ptr(scales).u64(m as u64).u64(n as u64).u64(batch as u64);
    cuda.launch(cuda.kernel(&name, source, "qr_split")?, grid(cuda, batch * m * n), 256, 0, &args)?;
    for from in (0..n).step_by(qr::BLOCK).rev() {
        apply(from, q, from, false)?;
    }
    Ok(())
}
