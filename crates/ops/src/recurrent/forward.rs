//! All steps of a recurrent layer.

use super::{Cell, RecurrentBwd, Sizes, all_floats, cpu, cuda, rows, shaped, states};
use crate::matmul::MatMul;
use crate::reduce::Sum;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, layout};
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// All steps of a recurrent layer: projected inputs `x` (T, N, gates H), weights (gates H, H), each initial state (N, H), and
/// optionally the bias (gates H) of the projection of the state. If `masked`, a mask (T, N) comes last: where it is 0, the step does not
/// count and the states stay as they are.
///
/// The value has rows (N, H): of each state T + 1, which begin with the initial state, or end with it if `reverse`; then T of each number
/// that is saved for the gradient. See [`Cell`] for what a step computes of `x` and `h W^T + b`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recurrent {
    /// What a step computes.
    pub cell: Cell,
    /// Whether the steps run backwards in time.
    pub reverse: bool,
    /// Whether there is a mask of the steps that count.
    pub masked: bool,
}

/// The inputs after the initial states.
pub(super) struct Optional {
    pub bias: Option<usize>,
    pub mask: Option<usize>,
}

impl Recurrent {
    pub(super) fn sizes(&self, ins: &[Meta]) -> Result<Sizes> {
        let name = Self::NAME;
        let (states, want) = (self.cell.states(), 2 + self.cell.states() + usize::from(self.masked));
        if ins.len() != want && ins.len() != want + 1 {
            return Err(Error::new(name, ErrorKind::Arity { want, got: ins.len() }));
        }
        all_floats(name, ins)?;
        let (x, weight) = (ins[0].shape, ins[1].shape);
        let &[steps, batch, columns] = x.dims() else {
            return Err(Error::new(name, ErrorKind::Rank { want: "exactly 3", got: x }));
        };
        let s = Sizes::new(name, *self, [steps, batch], x, weight)?;
        if columns != s.columns() {
            let why = "the last axis of the input is not as long as the weights have rows";
            return Err(crate::mismatch(name, why, x, weight));
        }
        for i in 2..2 + states {
            shaped(name, ins, i, &[batch, s.hidden], "an initial state is not")?;
        }
        let Optional { bias, mask } = self.optional(ins.len());
        if let Some(i) = bias {
            shaped(name, ins, i, &[columns], "the bias is not")?;
        }
        if let Some(i) = mask {
            shaped(name, ins, i, &[steps, batch], "the mask is not")?;
        }
        Ok(s)
    }

    /// Which inputs there are of so many.
    pub(super) fn optional(&self, inputs: usize) -> Optional {
        let states = 2 + self.cell.states();
        let has_bias = inputs > states + usize::from(self.masked);
        Optional {
            bias: has_bias.then_some(states),
            mask: self.masked.then_some(states + usize::from(has_bias)),
        }
    }

    /// The first row of the outputs in the value, for so many steps.
    pub fn first_output(&self) -> usize {
        usize::from(!self.reverse)
    }

    /// The row of state `i` after all of so many steps.
    pub fn last_row(&self, i: usize, steps: usize) -> usize {
        i * (steps + 1) + if self.reverse { 0 } else { steps }
    }
}

impl Op for Recurrent {
    const NAME: &'static str = "recurrent";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let s = self.sizes(ins)?;
        s.meta(s.value_rows())
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(s) = self.sizes(ins) else { return 0 };
        match device.as_cuda() {
            Some(gpu) => cuda::workspace(&s, &Gpu::of(gpu), ins.len()),
            None => s.project(1).packed_len(),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(s) = self.sizes(run.metas) {
            cpu::forward(&s, run);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        cuda::forward(&self.sizes(run.metas)?, run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.sizes(ins).map_or(Vec::new(), |s| cuda::forward_modules(&s, gpu, ins.len()))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let metas: Vec<Meta> = io.ins.iter().map(|v| r.meta(*v)).collect();
        let s = self.sizes(&metas)?;
        let mask = self.optional(io.ins.len()).mask.map(|i| io.ins[i]);
        let ins: Vec<Val> = [io.ins[1], io.out, dy].into_iter().chain(mask).collect();
        let packed = r.record(RecurrentBwd(*self).into(), &ins)?;
        let len = s.projection_rows();
        let all = [s.steps, s.batch, s.columns()];
        let state = rows(r, packed, [0, len], &all)?;
        let input = match self.cell.has_own_input_gradient() {
            true => rows(r, packed, [len, len], &all)?,
            false => state,
        };
        let lines = s.lines();
        let by_line = layout::reshape_to(r, state, Shape::new(&[lines, s.columns()])?)?;
        let before = states(r, io.out, &s, 0, false)?;
        let before = layout::reshape_to(r, before, Shape::new(&[lines, s.hidden])?)?;
        let weight = r.record(MatMul { ta: true, tb: false }.into(), &[by_line, before])?;
        let mut grads = vec![Some(input), Some(weight)];
        for i in 0..self.cell.states() {
            let row = s.gradient_rows() - self.cell.states() + i;
            grads.push(Some(rows(r, packed, [row, 1], &[s.batch, s.hidden])?));
        }
        if self.optional(io.ins.len()).bias.is_some() {
            grads.push(Some(r.record(Sum::new(&[0])?.into(), &[by_line])?));
        }
        grads.resize(io.ins.len(), None);
        Ok(grads)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let s = self.sizes(&metas)?;
        let data = ins.iter().map(|i| Ok(i.num()?.data())).collect::<Result<Vec<&[T]>>>()?;
        let (gates, count, len) = (self.cell.gates(), self.cell.states(), s.state_len());
        let Optional { bias, mask } = self.optional(ins.len());
        let start = |part: usize, row: usize| (s.part(part)[0] + row) * len;
        let mut out = vec![T::c(0.0); s.value_rows() * len];
        for k in 0..count {
            out[start(k, s.first_row())..][..len].copy_from_slice(data[2 + k]);
        }
        for t in (0..s.steps).map(|i| s.time(i)) {
            let [before, after] = s.rows(t);
            for (n, j) in (0..s.batch).flat_map(|n| (0..s.hidden).map(move |j| (n, j))) {
                let mut args: Vec<T> = Vec::new();
                let line = t * s.batch + n;
                args.extend((0..gates).map(|g| data[0][line * s.columns() + g * s.hidden + j]));
                for g in 0..gates {
                    let row = g * s.hidden + j;
                    let mut sum = T::c(0.0);
                    for l in 0..s.hidden {
                        let h = out[start(0, before) + n * s.hidden + l];
                        sum = sum + h * data[1][row * s.hidden + l];
                    }
                    args.push(bias.map_or(sum, |i| sum + data[i][row]));
                }
                let at = n * s.hidden + j;
                args.extend((0..count).map(|k| out[start(k, before) + at]));
                args.extend(mask.map(|i| data[i][line]));
                for (k, y) in self.cell.step_of(self.masked, &args).into_iter().enumerate() {
                    let row = if k < count { after } else { t };
                    out[start(k, row) + at] = y;
                }
            }
        }
        Tensor::with_shape(self.shape(&metas)?.shape, out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.attributes()
    }

    fn from_attrs(attrs: &Attrs) -> Result<Recurrent> {
        Recurrent::of_attributes(attrs)
    }
}
