//! What a model is worth: values of every row of a data set, computed by a compiled program, and scores made of their means.

use crate::data::Dataset;
use crate::device::{Buffer, Device, Meta};
use crate::error::{Error, Result};
use crate::graph::{Function, Graph, Passes};
use crate::numerics::environment;
use crate::session::Var;
use crate::tensor::AnyTensor;

/// Rows of a batch unless another number is asked for.
const ROWS: usize = 256;

/// Values of the rows of a batch, of its inputs and targets.
type Measure<'a> = dyn for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>> + 'a;

/// Scores of the means of these values.
type Score<'a> = dyn Fn(&[f64]) -> Scores + 'a;

/// What an evaluation says about a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// What models are ranked by: larger is better. NaN is never better than anything.
    pub merit: f64,
    /// Named values, in the order they are reported.
    pub values: Vec<(String, f64)>,
}

impl Scores {
    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|v| v.0 == name).map(|v| v.1)
    }
}

/// An evaluation of a model on data it is not trained on. The rows go through a compiled program batch by batch; each gives
/// a few numbers, and only these come to the host, where they are added in f64 in the order of the rows. So the
/// scores do not depend on the size of the batches.
///
/// ```
/// use dittograd::prelude::*;
/// use dittograd::train::{Evaluation, Scores};
/// # fn main() -> Result<()> {
/// let device = Device::cpu()?;
/// let data = data::spirals(7, 300, 3)?;
/// let mut params = Params::new(&device, 7);
/// let net = Mlp::new(&mut params, &[2, 16, 3])?;
/// let rows = LabelLoss { reduction: Reduction::None, ..LabelLoss::default() };
/// let mut evaluation = Evaluation::new(
///     data,
///     |v| Ok(vec![net.forward(v[0])?.cross_entropy_loss(v[1], rows)?]),
///     |means| Scores { merit: -means[0], values: vec![("loss".into(), means[0])] },
/// );
/// assert!(evaluation.run(&device)?.merit < 0.0);
/// # Ok(())
/// # }
/// ```
pub struct Evaluation<'a> {
    data: Dataset,
    rows: usize,
    measure: Box<Measure<'a>>,
    score: Box<Score<'a>>,
    programs: Vec<(Vec<Meta>, Function)>,
}

impl<'a> Evaluation<'a> {
    /// `measure` computes from a batch of inputs and targets, `v[0]` and `v[1]`, some values with one number for each row,
    /// `(rows)`; `score` makes scores of their means over all rows of `data`.
    pub fn new(
        data: Dataset,
        measure: impl for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>> + 'a,
        score: impl Fn(&[f64]) -> Scores + 'a,
    ) -> Evaluation<'a> {
        let (measure, score) = (Box::new(measure), Box::new(score));
        Evaluation { data, rows: ROWS, measure, score, programs: Vec::new() }
    }

    /// The same with batches of at most so many rows, which take memory accordingly; 256 if not said, and in a
    /// [`Trainer`](super::Trainer) what it computes at a time.
    pub fn rows(mut self, rows: usize) -> Evaluation<'a> {
        self.rows = rows;
        self
    }

    /// The data.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// Evaluates the model as it is now. The programs are compiled at the first call.
    pub fn run(&mut self, device: &Device) -> Result<Scores> {
        self.run_within(device, None)
    }

    /// Like [`Evaluation::run`], in memory of somebody else who does not need it now, if that is enough.
    pub(super) fn run_within(&mut self, device: &Device, within: Option<&Buffer>) -> Result<Scores> {
        let _strict = environment::enter();
        let mut sums: Vec<f64> = Vec::new();
        let all = self.data.rows();
        for batch in self.data.in_order(self.rows)? {
            let (x, y) = batch?;
            let rows = x.shape().dims()[0];
            let inputs = [x, y];
            let metas: Vec<Meta> = inputs.iter().map(AnyTensor::meta).collect();
            let at = match self.programs.iter().position(|p| p.0 == metas) {
                Some(at) => at,
                None => {
                    let graph = Graph::trace(device, &metas, |_, v| values(&self.measure, v, rows))?;
                    let program = graph.compile_within(device, Passes::all(), within)?;
                    self.programs.push((metas, program));
                    self.programs.len() - 1
                }
            };
            let program = &mut self.programs[at].1;
            // A model is worth the same whenever it is asked.
            program.set_random_calls(0);
            let values = program.call(&inputs)?;
            sums.resize(values.len(), 0.0);
            for (sum, value) in sums.iter_mut().zip(&values) {
                value.num()?.data().iter().for_each(|v| *sum += f64::from(*v));
            }
        }
        let means: Vec<f64> = sums.iter().map(|s| s / all as f64).collect();
        Ok((self.score)(&means))
    }
}

/// What is measured, if it is one number for each row.
fn values<'s>(measure: &Measure<'_>, v: &[Var<'s>], rows: usize) -> Result<Vec<Var<'s>>> {
    let values = measure(v)?;
    for (i, value) in values.iter().enumerate() {
        let (shape, kind) = (value.shape()?, value.meta()?.dtype.name());
        if shape.dims() != [rows] || kind != "f32" {
            let why = format!(
                "value {i} has shape {shape} and elements {kind}; give one float32 number for each of the {rows} rows of the \
                 batch, such as a mean over all other axes"
            );
            return Err(Error::argument("evaluation", "measure", why));
        }
    }
    Ok(values)
}
