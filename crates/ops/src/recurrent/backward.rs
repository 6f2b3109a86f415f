//! The gradient of all steps of a recurrent layer.

use super::{Recurrent, Sizes, all_floats, cpu, cuda, rows, shaped, states};
use crate::layout::{Concat, Slice};
use crate::matmul::MatMul;
use crate::pointwise::Add;
use crate::pointwise::expression::Pointwise;
use crate::pointwise::record::Recordable;
use crate::random::Full;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, layout, mismatch};
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// The gradients of [`Recurrent`], from its weights, its value, the gradient of that and its mask if it has one, step by step from the
/// last to the first. The value has rows (N, H): the gradients of `h W^T + b` of all steps, (T, N, gates H); for a GRU those of `x`, of the
/// same shape, which else are the same; and those of each initial state.
///
/// With `p` and `d` zero after the last step, the gradient of state `h` after a step is `g + (p + d)`, where `g` is that of the value;
/// `p` is the product of the later step's gradients with the weights, and `d` what the cell's formula passes on beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentBwd(pub Recurrent);

/// Derivatives of the cell's gradient formula by one of its inputs after another, ready to be recorded on the formula's inputs and on the
/// gradients of its results.
struct Slopes<'a> {
    program: &'a Pointwise,
    args: &'a [Val],
    shape: Shape,
}

impl Slopes<'_> {
    /// The derivative by input `i`; `None` where it is zero.
    fn by(&self, r: &mut dyn Recorder, i: usize) -> Result<Option<Val>> {
        let slope = Recordable::new(&self.program.gradient(i));
        if slope.is_zero() { Ok(None) } else { slope.record(r, self.shape, self.args).map(Some) }
    }
}

/// The program of result `i` alone.
fn only(program: &Pointwise, i: usize) -> Recordable {
    Recordable::new(&Pointwise::trace(program.inputs(), |ins| vec![program.eval(ins)[i]]))
}

fn zeros(r: &mut dyn Recorder, dims: &[usize]) -> Result<Val> {
    r.record(Full { shape: Shape::new(dims)?, value: 0.0 }.into(), &[])
}

/// The values one after another along `axis`.
fn joined(r: &mut dyn Recorder, values: &[Val], axis: usize) -> Result<Val> {
    match values {
        &[one] => Ok(one),
        _ => r.record(Concat { axis }.into(), values),
    }
}

impl RecurrentBwd {
    pub(super) fn sizes(&self, ins: &[Meta]) -> Result<Sizes> {
        let (name, cell) = (Self::NAME, self.0.cell);
        let want = 3 + usize::from(self.0.masked);
        if ins.len() != want {
            return Err(Error::new(name, ErrorKind::Arity { want, got: ins.len() }));
        }
        all_floats(name, ins)?;
        let (weight, value) = (ins[0].shape, ins[1].shape);
        let &[all, batch, columns] = value.dims() else {
            return Err(Error::new(name, ErrorKind::Rank { want: "exactly 3", got: value }));
        };
        let steps = all.saturating_sub(cell.states()) / (cell.states() + cell.saved());
        let s = Sizes::new(name, self.0, [steps, batch], value, weight)?;
        if columns != s.hidden || all != s.value_rows() {
            let why = "the rows are not those of a value of steps with these weights";
            return Err(mismatch(name, why, value, weight));
        }
        shaped(name, ins, 2, value.dims(), "the gradient is not like the value")?;
        if self.0.masked {
            shaped(name, ins, 3, &[steps, batch], "the mask is not (steps, N)")?;
        }
        Ok(s)
    }

    /// What the cell's formula reads, over all steps as `(T, N, H)`, before the gradients of states.
    fn read(&self, r: &mut dyn Recorder, s: &Sizes, [value, dy]: [Val; 2]) -> Result<Vec<Val>> {
        let (count, saved) = (self.0.cell.states(), self.0.cell.saved());
        let all = [s.steps, s.batch, s.hidden];
        let mut args = Vec::new();
        let kept = |r: &mut dyn Recorder, from: Val| {
            (count..count + saved).map(|i| rows(r, from, s.part(i), &all)).collect::<Result<Vec<_>>>()
        };
        args.extend(kept(r, value)?);
        for after in [true, false] {
            for i in 0..count {
                args.push(states(r, value, s, i, after)?);
            }
        }
        args.extend(kept(r, dy)?);
        Ok(args)
    }
}

/// The time `t` of values over all steps, `(T, N, …)` without the first axis.
fn at(r: &mut dyn Recorder, all: &[Val], t: usize) -> Result<Vec<Val>> {
    let one = |&v: &Val| {
        let dims = r.meta(v).shape;
        let one = r.record(Slice { axis: 0, start: t, len: 1, step: 1 }.into(), &[v])?;
        layout::reshape_to(r, one, Shape::new(&dims.dims()[1..])?)
    };
    all.iter().map(one).collect()
}

impl Op for RecurrentBwd {
    const NAME: &'static str = "recurrent_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let s = self.sizes(ins)?;
        s.meta(s.gradient_rows())
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(s) = self.sizes(ins) else { return 0 };
        match device.as_cuda() {
            Some(gpu) => cuda::backward_workspace(&s, &Gpu::of(gpu)),
            None => s.project_back(1).packed_len(),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(s) = self.sizes(run.metas) {
            cpu::backward(&s, run);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        cuda::backward(&self.sizes(run.metas)?, run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.sizes(ins).map_or(Vec::new(), |s| cuda::backward_modules(&s, gpu))
    }

    /// Of existing ops, step by step: slow, but only second derivatives need it.
    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let metas: Vec<Meta> = io.ins.iter().map(|v| r.meta(*v)).collect();
        let s = self.sizes(&metas)?;
        let Sizes { steps, batch, hidden, .. } = s;
        let (cell, columns) = (self.0.cell, s.columns());
        let (count, saved) = (cell.states(), cell.saved());
        let line = Shape::new(&[batch, hidden])?;
        let all = [steps, batch, hidden];
        let (weight, value, g) = (io.ins[0], io.ins[1], io.ins[2]);
        if s.state_len() == 0 {
            let zero = |r: &mut dyn Recorder, m: &Meta| zeros(r, m.shape.dims()).map(Some);
            let mut grads = metas[..3].iter().map(|m| zero(r, m)).collect::<Result<Vec<_>>>()?;
            grads.resize(io.ins.len(), None);
            return Ok(grads);
        }
        let len = s.projection_rows();
        // The gradient of the initial states is that of their rows of the value, and what comes from the first step.
        let mut to_state = Vec::new();
        for i in 0..count {
            to_state.push(rows(r, dy, [s.gradient_rows() - count + i, 1], &[batch, hidden])?);
        }
        let first = to_state.clone();
        let mut value_grads = vec![None; count + saved];
        let mut up_grads = vec![None; count + saved];
        let mut weight_grad = None;
        if steps > 0 {
            let program = &cell.programs(self.0.masked).slope_of_sums;
            let first_direct = program.outputs() - count;
            let mut args = self.read(r, &s, [value, g])?;
            let sums = args.len();
            let mask = match self.0.masked {
                true => {
                    let each = layout::reshape_to(r, io.ins[3], Shape::new(&[steps, batch, 1])?)?;
                    Some(layout::broadcast_to(r, each, Shape::new(&all)?)?)
                }
                false => None,
            };
            // The gradients of the states after each step, last step first.
            let slopes = rows(r, io.out, [0, len], &[steps * batch, columns])?;
            let products = r.record(MatMul { ta: false, tb: false }.into(), &[slopes, weight])?;
            let products = layout::reshape_to(r, products, Shape::new(&all)?)?;
            let ups = (0..count).map(|i| states(r, g, &s, i, true)).collect::<Result<Vec<_>>>()?;
            let directs: Vec<Recordable> = (0..count).map(|i| only(program, first_direct + i)).collect();
            let zero = zeros(r, &[batch, hidden])?;
            let mut states_up = vec![vec![zero; steps]; count];
            let mut later: Option<(Val, Vec<Val>)> = None;
            for t in (0..steps).rev().map(|i| s.time(i)) {
                let mut now = at(r, &args, t)?;
                for (k, v) in at(r, &ups, t)?.into_iter().enumerate() {
                    let mut sum = v;
                    if let Some((product, direct)) = &later {
                        let more = match k {
                            0 => r.record(Add {}.into(), &[*product, direct[0]])?,
                            _ => direct[k],
                        };
                        sum = r.record(Add {}.into(), &[v, more])?;
                    }
                    states_up[k][t] = sum;
                    now.push(sum);
                }
                now.extend(at(r, mask.as_slice(), t)?);
                let direct =
                    directs.iter().map(|d| if d.is_zero() { Ok(zero) } else { d.record(r, line, &now) });
                let direct = direct.collect::<Result<Vec<_>>>()?;
                later = Some((at(r, &[products], t)?[0], direct));
            }
            for part in &states_up {
                args.push(self.stacked(r, part, &all)?);
            }
            args.extend(mask);
            // Forwards: what a step passes on to the earlier one has the gradients of that one's states.
            let given: Vec<Val> = (0..s.projections())
                .map(|k| rows(r, dy, [k * len, len], &[steps, batch, columns]))
                .collect::<Result<_>>()?;
            let mut passed = vec![vec![zero; steps]; count];
            let mut found = passed.clone();
            for t in (0..steps).map(|i| s.time(i)) {
                let mut now = at(r, &args, t)?;
                let projected = at(r, &given, t)?;
                now.extend(self.gate_gradients(r, &s, &projected, weight, to_state[0])?);
                now.extend(&to_state);
                let slopes = Slopes { program, args: &now, shape: line };
                for (k, v) in to_state.iter_mut().enumerate() {
                    passed[k][t] = *v;
                    *v = slopes.by(r, sums + k)?.unwrap_or(zero);
                    found[k][t] = *v;
                }
            }
            // All else over all steps at once.
            let passed = passed.iter().map(|part| self.stacked(r, part, &all)).collect::<Result<Vec<_>>>()?;
            let by_line = layout::reshape_to(r, passed[0], Shape::new(&[steps * batch, hidden])?)?;
            weight_grad = Some(r.record(MatMul { ta: true, tb: false }.into(), &[slopes, by_line])?);
            args.extend(self.gate_gradients(r, &s, &given, weight, by_line)?);
            args.extend(passed);
            let slopes = Slopes { program, args: &args, shape: Shape::new(&all)? };
            for i in 0..saved {
                value_grads[count + i] = slopes.by(r, i)?;
                up_grads[count + i] = slopes.by(r, saved + 2 * count + i)?;
            }
            for i in 0..count {
                let after = slopes.by(r, saved + i)?;
                let before = slopes.by(r, saved + count + i)?;
                value_grads[i] = self.with_row(r, &s, after, true)?;
                if let Some(before) = self.with_row(r, &s, before, false)? {
                    value_grads[i] = Some(match value_grads[i] {
                        Some(v) => r.record(Add {}.into(), &[v, before])?,
                        None => before,
                    });
                }
                up_grads[i] = Some(self.stacked(r, &found[i], &all)?);
            }
        }
        // The rows of the initial states.
        for i in 0..count {
            let row = layout::reshape_to(r, first[i], Shape::new(&[1, batch, hidden])?)?;
            up_grads[i] = Some(match up_grads[i] {
                None => row,
                Some(rest) => self.in_order(r, row, rest)?,
            });
        }
        let value_grad = self.packed(r, &s, &value_grads)?;
        let up_grad = self.packed(r, &s, &up_grads)?;
        let weight_grad = match weight_grad {
            Some(v) => v,
            None => zeros(r, &[columns, hidden])?,
        };
        let mut grads = vec![Some(weight_grad), Some(value_grad), Some(up_grad)];
        grads.resize(io.ins.len(), None);
        Ok(grads)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let s = self.sizes(&metas)?;
        let data = ins.iter().map(|i| Ok(i.num()?.data())).collect::<Result<Vec<&[T]>>>()?;
        let (weight, value, g) = (data[0], data[1], data[2]);
        let (cell, len, columns) = (self.0.cell, s.state_len(), s.columns());
        let (count, saved, gates) = (cell.states(), cell.saved(), cell.gates());
        let zero = T::c(0.0);
        let mut out = vec![zero; s.gradient_rows() * len];
        let mut product = vec![zero; len];
        let mut direct = vec![vec![zero; len]; count];
        for t in (0..s.steps).rev().map(|i| s.time(i)) {
            let [before, after] = s.rows(t);
            for at in 0..len {
                let (n, j) = (at / s.hidden, at % s.hidden);
                let read = |from: &[T], part: usize, row: usize| from[(s.part(part)[0] + row) * len + at];
                let mut args: Vec<T> = (count..count + saved).map(|i| read(value, i, t)).collect();
                args.extend((0..count).map(|i| read(value, i, after)));
                args.extend((0..count).map(|i| read(value, i, before)));
                args.extend((count..count + saved).map(|i| read(g, i, t)));
                args.extend((0..count).map(|i| read(g, i, after)));
                args.push(product[at]);
                args.extend(direct.iter().map(|d| d[at]));
                if self.0.masked {
                    args.push(data[3][t * s.batch + n]);
                }
                let results = cell.slope_of(self.0.masked, &args);
                let first = results.len() - count;
                for (k, y) in results[..first].iter().enumerate() {
                    let (projection, gate) = (k / gates, k % gates);
                    let line = (projection * s.steps + t) * s.batch + n;
                    out[line * columns + gate * s.hidden + j] = *y;
                }
                direct.iter_mut().zip(&results[first..]).for_each(|(d, y)| d[at] = *y);
            }
            for (at, product) in product.iter_mut().enumerate() {
                let (n, j) = (at / s.hidden, at % s.hidden);
                let term = |l: usize| out[(t * s.batch + n) * columns + l] * weight[l * s.hidden + j];
                *product = (0..columns).fold(zero, |sum, l| sum + term(l));
            }
        }
        for (i, direct) in direct.iter().enumerate() {
            for at in 0..len {
                let later = if i == 0 { product[at] + direct[at] } else { direct[at] };
                let row = s.gradient_rows() - count + i;
                out[row * len + at] = g[(s.part(i)[0] + s.first_row()) * len + at] + later;
            }
        }
        Tensor::with_shape(self.shape(&metas)?.shape, out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.0.attributes()
    }

    fn from_attrs(attrs: &Attrs) -> Result<RecurrentBwd> {
        Ok(RecurrentBwd(Recurrent::of_attributes(attrs)?))
    }
}

impl RecurrentBwd {
    /// The gradients of the formula's results for each gate, of one step or of all: those given for the projections `(…, gates H)`, and for
    /// that of the state what its product with the weights adds.
    fn gate_gradients(
        &self,
        r: &mut dyn Recorder,
        s: &Sizes,
        given: &[Val],
        weight: Val,
        to_product: Val,
    ) -> Result<Vec<Val>> {
        let more = r.record(MatMul { ta: false, tb: true }.into(), &[to_product, weight])?;
        let mut all = Vec::new();
        for (k, &whole) in given.iter().enumerate() {
            let shape = r.meta(whole).shape;
            let more = layout::reshape_to(r, more, shape)?;
            let whole = if k == 0 { r.record(Add {}.into(), &[whole, more])? } else { whole };
            for gate in 0..self.0.cell.gates() {
                let axis = shape.rank() - 1;
                let slice = Slice { axis, start: gate * s.hidden, len: s.hidden, step: 1 };
                all.push(r.record(slice.into(), &[whole])?);
            }
        }
        Ok(all)
    }

    /// The values of all steps, in the order of time.
    fn stacked(&self, r: &mut dyn Recorder, steps: &[Val], shape: &[usize]) -> Result<Val> {
        let all = joined(r, steps, 0)?;
        layout::reshape_to(r, all, Shape::new(shape)?)
    }

    /// The row of the initial states and the others, in the order of time.
    fn in_order(&self, r: &mut dyn Recorder, row: Val, rest: Val) -> Result<Val> {
        joined(r, &if self.0.reverse { [rest, row] } else { [row, rest] }, 0)
    }

    /// Rows of states after the steps, or before them, with zeros for the row that is not one of these.
    fn with_row(
        &self,
        r: &mut dyn Recorder,
        s: &Sizes,
        rest: Option<Val>,
        after: bool,
    ) -> Result<Option<Val>> {
        let Some(rest) = rest else { return Ok(None) };
        let start = usize::from(after != self.0.reverse);
        let pad = layout::Pad { axis: 0, start, step: 1, size: s.steps + 1, value: 0.0 };
        Ok(Some(r.record(pad.into(), &[rest])?))
    }

    /// The parts of a value, one after another; zeros for those that there are not.
    fn packed(&self, r: &mut dyn Recorder, s: &Sizes, parts: &[Option<Val>]) -> Result<Val> {
        let mut all = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            all.push(match part {
                Some(v) => *v,
                None => zeros(r, &[s.part(i)[1], s.batch, s.hidden])?,
            });
        }
        joined(r, &all, 0)
    }
}
