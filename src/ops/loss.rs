//! Losses.

use super::map::record_program;
use super::program::Program;
use super::reduce::depth;
use super::rows::RowKernel;
use super::sampling::{edge_dims, edge_shape};
use super::softmax::{SoftmaxBwd, exp_shifted, softmax_rows};
use super::{
    Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Op, Recorder, RefIn, Reject, Sample, SampleIn, Val, dims, floats,
    layout, mismatch, reduce, typed,
};
use crate::device::{DType, Device, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::rng::Stream;
use crate::ops::elementwise;
use crate::ops::random::Full;
use crate::ops::softmax::Softmax;
use crate::scalar::{Real, Scalar};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Checks logits `(…, C)` and labels `(…)`; returns the logits' shape.
fn check(op: &'static str, ins: &[Meta], want: usize) -> Result<Shape> {
    if ins.len() != want {
        return Err(Error::new(op, ErrorKind::Arity { want, got: ins.len() }));
    }
    typed(op, ins, 0, DType::F32)?;
    typed(op, ins, 1, DType::U32)?;
    let (x, labels) = (ins[0].shape, ins[1].shape);
    if x.rank() == 0 {
        return Err(Error::new(op, ErrorKind::Rank { want: "at least 1", got: x }));
    }
    if x.last() == 0 {
        return Err(Error::argument(
            op,
            "last axis",
            format!("is empty in shape {x}, so there are no classes"),
        ));
    }
    if x.dims()[..x.rank() - 1] != *labels.dims() {
        return Err(mismatch(op, "labels must have the logits' shape without its last axis", x, labels));
    }
    Ok(x)
}

/// `1 / rows`, formed in f64 and rounded once; 0 for no rows, so that an empty batch has loss 0.
fn inverse(count: usize) -> f32 {
    if count == 0 { 0.0 } else { (1.0 / count as f64) as f32 }
}

/// Loss of one row: `ln s - (x_label - m)`.
fn row_loss() -> RowKernel {
    RowKernel {
        name: "cross_entropy",
        term: exp_shifted(),
        post: Program::trace(7, |v| vec![v[2].log() - (v[0] - v[1])]),
        labels: Some(1),
        per_row: true,
        ..softmax_rows()
    }
}

/// Gradient of one row: `(t (1 / s) - hit) * (g (1 / rows))`.
fn row_gradient(rows: usize) -> RowKernel {
    let inv = f64::from(inverse(rows));
    RowKernel {
        name: "cross_entropy_bwd",
        post: Program::trace(7, |v| vec![(v[3] * v[6] - v[4]) * (v[5] * Real::c(inv))]),
        labels: Some(1),
        scalar: Some(2),
        per_row: false,
        ..row_loss()
    }
}

/// Mean over all rows of `-ln softmax(x)[label]`, with logits `(…, C)` and labels `(…)` below C. An empty
/// batch has loss 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy;

impl Op for CrossEntropy {
    const NAME: &'static str = "cross_entropy";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        check(Self::NAME, ins, 2)?;
        Ok(Meta::f32(Shape::SCALAR))
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        Some((1, ins[0].shape.last()))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let (rows, columns) = (ins[0].shape.rows(), ins[0].shape.last());
        rows + match device.as_cuda() {
            Some(cuda) => {
                RowKernel::workspace(rows, columns, &Gpu::of(cuda)).max(reduce::sum_all_workspace(rows))
            }
            None => reduce::long_row_scratch(rows),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (rows, columns) = (run.metas[0].shape.rows(), run.metas[0].shape.last());
        let (losses, scratch) = run.workspace.split_at_mut(rows);
        let shape = Shape::SCALAR;
        let (pool, simd, metas, ins) = (run.pool, run.simd, run.metas, run.ins);
        row_loss()
            .run_cpu(columns, CpuRun { pool, simd, metas, ins, shape, out: losses, workspace: &mut [] });
        let sum = reduce::long_row(pool, simd, rows, scratch, |r| reduce::row_sum(simd, &losses[r]));
        run.out[0] = sum * inverse(rows);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let (rows, columns) = (run.metas[0].shape.rows(), run.metas[0].shape.last());
        let workspace = run.workspace + rows as u64 * 4;
        let per_row = CudaRun { out: run.workspace, workspace, ..*run };
        row_loss().run_cuda(columns, &per_row)?;
        let module = reduce::plain_module();
        reduce::sum_all_cuda(
            run.cuda,
            &module,
            rows,
            [run.workspace, 0],
            run.out,
            workspace,
            Some(inverse(rows)),
        )
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<(String, String)> {
        vec![row_loss().module(ins[0].shape.last(), gpu), reduce::plain_module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(CrossEntropyBwd.into(), &[io.ins[0], io.ins[1], dy])?), None])
    }

    fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
        let (x, labels) = (ins[0].num()?, ins[1].idx()?);
        let classes = x.shape().last();
        let mut sum = T::c(0.0);
        for (row, &label) in x.data().chunks(classes).zip(labels.data()) {
            let m = row.iter().copied().fold(row[0], |m, x| m.max(x));
            let s = row.iter().fold(T::c(0.0), |s, &x| s + (x - m).exp());
            sum = sum + (s.log() - (row[label as usize] - m));
        }
        let rows = labels.data().len().max(1);
        Ok(Tensor::scalar(sum / T::c(rows as f64)))
    }

    fn samples() -> Vec<Sample<CrossEntropy>> {
        label_samples().into_iter().map(|ins| Sample { op: CrossEntropy, ins }).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<CrossEntropy>> {
        Some(Sample { op: CrossEntropy, ins: random_labels(stream) })
    }

    fn rejects() -> Vec<Reject<CrossEntropy>> {
        bad_labels(&[]).into_iter().map(|(ins, want)| Reject { op: CrossEntropy, ins, want }).collect()
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 4.0, terms: 8.0 + depth(ins[0].shape.last()) + depth(ins[0].shape.rows()) }
    }

    fn from_attrs(attrs: &Attrs) -> Result<CrossEntropy> {
        attrs.only(&[])?;
        Ok(CrossEntropy)
    }
}

fn label_samples() -> Vec<Vec<SampleIn>> {
    let shapes: [&[usize]; 10] = [
        &[1, 1],
        &[5, 10],
        &[128, 10],
        &[3, 33],
        &[2, 1025],
        &[2, 3, 7],
        &[9],
        &[0, 4],
        &[2, 300],
        &[2, 24577],
    ];
    shapes
        .iter()
        .map(|d| {
            let x = dims(d);
            let lead = dims(&d[..d.len() - 1]);
            vec![SampleIn::Num(x, (-4.0, 4.0)), SampleIn::Idx(lead, x.last() as u32)]
        })
        .collect()
}

/// With a random upstream gradient.
fn with_dy(mut ins: Vec<SampleIn>) -> Sample<CrossEntropyBwd> {
    ins.push(SampleIn::any(Shape::SCALAR));
    Sample { op: CrossEntropyBwd, ins }
}

/// Random logits and labels.
fn random_labels(stream: &mut Stream) -> Vec<SampleIn> {
    let mut d = edge_dims(2, 3, stream);
    // The loss of a row with one class is zero, whose sum shows nothing.
    if let Some(classes) = d.last_mut().filter(|d| **d == 1) {
        *classes = 2;
    }
    let (x, lead) = (dims(&d), dims(&d[..d.len() - 1]));
    vec![SampleIn::Num(x, (-4.0, 4.0)), SampleIn::Idx(lead, x.last() as u32)]
}

fn bad_labels(tail: &[Meta]) -> Vec<(Vec<Meta>, &'static str)> {
    let f = |d: &[usize]| Meta::f32(dims(d));
    let u = |d: &[usize]| Meta::u32(dims(d));
    let with = |a: Meta, b: Meta| [&[a, b], tail].concat();
    vec![
        (vec![f(&[2, 3])], "Arity"),
        (with(f(&[]), u(&[])), "Rank"),
        (with(f(&[2, 0]), u(&[2])), "Argument"),
        (with(f(&[2, 3]), u(&[3])), "Shapes"),
        (with(f(&[2, 3]), u(&[2, 1])), "Shapes"),
        (with(f(&[2, 3]), f(&[2])), "DType"),
        (with(u(&[2, 3]), u(&[2])), "DType"),
    ]
}

/// Gradient of [`CrossEntropy`] with respect to the logits: `(softmax(x) - onehot(label)) * dy / rows`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyBwd;

impl Op for CrossEntropyBwd {
    const NAME: &'static str = "cross_entropy_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let x = check(Self::NAME, ins, 3)?;
        typed(Self::NAME, ins, 2, DType::F32)?;
        if ins[2].shape != Shape::SCALAR {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "exactly 0", got: ins[2].shape }));
        }
        Ok(Meta::f32(x))
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        Some((1, ins[0].shape.last()))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        device
            .as_cuda()
            .map_or(0, |cuda| RowKernel::workspace(ins[0].shape.rows(), ins[0].shape.last(), &Gpu::of(cuda)))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        row_gradient(run.shape.rows()).run_cpu(run.shape.last(), run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        row_gradient(run.shape.rows()).run_cuda(run.shape.last(), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<(String, String)> {
        vec![row_gradient(ins[0].shape.rows()).module(ins[0].shape.last(), gpu)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        // f = (p - onehot) c with c = dy / rows:  df/dx = softmax_bwd(p, v c),  df/ddy = Σ v (p - onehot) / rows
        let (x, labels, dy) = (io.ins[0], io.ins[1], io.ins[2]);
        let shape = r.meta(x).shape;
        let c = r.record(elementwise::Scale { c: inverse(shape.rows()) }.into(), &[dy])?;
        let c = layout::broadcast_to(r, c, shape)?;
        let vc = r.record(elementwise::Mul {}.into(), &[v, c])?;
        let p = r.record(Softmax.into(), &[x])?;
        let dx = r.record(SoftmaxBwd.into(), &[p, vc])?;
        let one = r.record(Full { shape: Shape::SCALAR, value: 1.0 }.into(), &[])?;
        let slope = r.record(CrossEntropyBwd.into(), &[x, labels, one])?;
        let product = r.record(elementwise::Mul {}.into(), &[v, slope])?;
        let ddy = r.record(reduce::Sum::all(shape.rank()).into(), &[product])?;
        Ok(vec![Some(dx), None, Some(ddy)])
    }

    fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
        let (x, labels, dy) = (ins[0].num()?, ins[1].idx()?, ins[2].num()?.item()?);
        let classes = x.shape().last();
        let rows = T::c(labels.data().len().max(1) as f64);
        let mut out = Vec::new();
        for (row, &label) in x.data().chunks(classes).zip(labels.data()) {
            let m = row.iter().copied().fold(row[0], |m, x| m.max(x));
            let s = row.iter().fold(T::c(0.0), |s, &x| s + (x - m).exp());
            out.extend(row.iter().enumerate().map(|(j, &x)| {
                let hit = T::c(if j == label as usize { 1.0 } else { 0.0 });
                ((x - m).exp() / s - hit) * dy / rows
            }));
        }
        Tensor::with_shape(x.shape(), out)
    }

    fn samples() -> Vec<Sample<CrossEntropyBwd>> {
        label_samples().into_iter().map(with_dy).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<CrossEntropyBwd>> {
        Some(with_dy(random_labels(stream)))
    }

    fn rejects() -> Vec<Reject<CrossEntropyBwd>> {
        let scalar = Meta::f32(Shape::SCALAR);
        let mut bad: Vec<_> = bad_labels(&[scalar])
            .into_iter()
            .map(|(ins, want)| Reject { op: CrossEntropyBwd, ins, want })
            .collect();
        let ins = vec![Meta::f32(dims(&[2, 3])), Meta::u32(dims(&[2])), Meta::f32(dims(&[1]))];
        bad.push(Reject { op: CrossEntropyBwd, ins, want: "Rank" });
        bad
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 16.0 + depth(ins[0].shape.last()), terms: 4.0 }
    }

    fn from_attrs(attrs: &Attrs) -> Result<CrossEntropyBwd> {
        attrs.only(&[])?;
        Ok(CrossEntropyBwd)
    }
}

/// Mean of the squared differences of two values of one shape; 0 if they are empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mse;

impl Op for Mse {
    const NAME: &'static str = "mse";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [a, b] = floats(Self::NAME, ins)?;
        if a != b {
            return Err(mismatch(Self::NAME, "shapes differ", a, b));
        }
        Ok(Meta::f32(Shape::SCALAR))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let n = ins[0].shape.numel();
        if device.is_cuda() { reduce::sum_all_workspace(n) } else { reduce::long_row_scratch(n) }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (a, b, simd) = (run.ins[0], run.ins[1], run.simd);
        let part = |r: std::ops::Range<usize>| reduce::row_square_error(simd, &a[r.clone()], &b[r]);
        run.out[0] = reduce::long_row(run.pool, simd, a.len(), run.workspace, part) * inverse(a.len());
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let n = run.metas[0].shape.numel();
        let ins = [run.ins[0], run.ins[1]];
        reduce::sum_all_cuda(
            run.cuda,
            &reduce::square_error_module(),
            n,
            ins,
            run.out,
            run.workspace,
            Some(inverse(n)),
        )
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<(String, String)> {
        vec![reduce::square_error_module(), reduce::plain_module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // da = ((a - b) dy) 2/N, db = -da
        let shape = r.meta(io.ins[0]).shape;
        let n = shape.numel();
        let two = f64::from(if n == 0 { 0.0 } else { (2.0 / n as f64) as f32 });
        let args = [io.ins[0], io.ins[1], dy];
        let da = Program::trace(3, |x| vec![((x[0] - x[1]) * x[2]) * Real::c(two)]);
        let db = Program::trace(3, |x| vec![-(((x[0] - x[1]) * x[2]) * Real::c(two))]);
        Ok(vec![Some(record_program(r, &da, shape, &args)?), Some(record_program(r, &db, shape, &args)?)])
    }

    fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
        let (a, b) = (ins[0].num()?, ins[1].num()?);
        let sum = a.data().iter().zip(b.data()).fold(T::c(0.0), |s, (&a, &b)| s + (a - b) * (a - b));
        Ok(Tensor::scalar(sum / T::c(a.data().len().max(1) as f64)))
    }

    fn samples() -> Vec<Sample<Mse>> {
        super::sample_shapes()
            .into_iter()
            .map(|s| Sample { op: Mse, ins: vec![SampleIn::any(s); 2] })
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Mse>> {
        Some(Sample { op: Mse, ins: vec![SampleIn::any(edge_shape(1, 3, stream)); 2] })
    }

    fn rejects() -> Vec<Reject<Mse>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject { op: Mse, ins: vec![f(&[2])], want: "Arity" },
            Reject { op: Mse, ins: vec![f(&[2]), f(&[2, 1])], want: "Shapes" },
            Reject { op: Mse, ins: vec![f(&[2]), Meta::u32(dims(&[2]))], want: "DType" },
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 4.0, terms: 6.0 + depth(ins[0].shape.numel()) }
    }

    fn from_attrs(attrs: &Attrs) -> Result<Mse> {
        attrs.only(&[])?;
        Ok(Mse)
    }
}
