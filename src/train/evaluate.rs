//! Evaluation: values per row of a data set, computed by a compiled program, and scores from their means.

use crate::data::{Dataset, IGNORE};
use crate::device::{Buffer, Device, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::graph::{Function, Graph, Passes};
use crate::numerics::environment;
use crate::ops::Reduction;
use crate::parallel::World;
use crate::session::{LabelLoss, Var};
use crate::tensor::{AnyTensor, Tensor};

/// Default number of rows of a batch.
const ROWS: usize = 256;

/// Computes values per row of a batch from its inputs and targets.
type Measure<'a> = dyn for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>> + 'a;

/// Computes scores from the means of these values.
type Score<'a> = dyn Fn(&[f64]) -> Scores + 'a;

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The score that models are ranked by: larger is better. NaN is never better.
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

/// An evaluation of a model on data that it is not trained on. The rows go through a compiled program batch by batch.
/// Each row gives a few numbers; only these come to the host, where they are summed in f64 in the order of the rows. So
/// the scores do not depend on the batch size.
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
    /// `measure` computes values with one number per row, `(rows)`, from a batch of inputs `v[0]` and targets `v[1]`.
    /// `score` computes scores from their means over all rows of `data`.
    pub fn new(
        data: Dataset,
        measure: impl for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>> + 'a,
        score: impl Fn(&[f64]) -> Scores + 'a,
    ) -> Evaluation<'a> {
        let (measure, score) = (Box::new(measure), Box::new(score));
        Evaluation { data, rows: ROWS, measure, score, programs: Vec::new() }
    }

    /// The evaluation of a classifier: `loss`, the mean cross-entropy, and `accuracy`, the share of labels that have the
    /// largest logit, which is also the merit. `forward` maps inputs `(rows, …)` to logits `(rows, …, classes)`; the data has
    /// labels for all axes before the last. Labels that are [ignored](crate::data::IGNORE) do not count.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let mut params = Params::new(&Device::cpu()?, 7);
    /// let net = Mlp::new(&mut params, &[2, 16, 3])?;
    /// let scores = Evaluation::classes(data::spirals(7, 300, 3)?, |x| net.forward(x)).run(params.device())?;
    /// assert_eq!(Some(scores.merit), scores.get("accuracy"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn classes(
        data: Dataset,
        forward: impl for<'s> Fn(Var<'s>) -> Result<Var<'s>> + 'a,
    ) -> Evaluation<'a> {
        Evaluation::new(
            data,
            move |v| right(forward(v[0])?, v[1]),
            |means| {
                let (loss, accuracy) = (means[0] / means[2], means[1] / means[2]);
                let values = vec![("loss".into(), loss), ("accuracy".into(), accuracy)];
                Scores { merit: accuracy, values }
            },
        )
    }

    /// Limits batches to `rows` rows, which limits memory. The default is 256, and in a [`Trainer`](super::Trainer) the
    /// number of rows it computes at a time.
    pub fn rows(mut self, rows: usize) -> Evaluation<'a> {
        self.rows = rows;
        self
    }

    /// The data.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// Evaluates the model in its current state. The programs are compiled at the first call.
    #[track_caller]
    pub fn run(&mut self, device: &Device) -> Result<Scores> {
        self.run_within(device, None, None)
    }

    /// Like [`Evaluation::run`], but borrows memory that its owner does not need now, if it is large enough. The processes of `world` share
    /// the batches.
    #[track_caller]
    pub(super) fn run_within(
        &mut self,
        device: &Device,
        within: Option<&Buffer>,
        world: Option<&World>,
    ) -> Result<Scores> {
        let _strict = environment::enter();
        let (rank, ranks) = world.map_or((0, 1), |w| (w.rank(), w.size()));
        // The values of each batch of this process, one after the other.
        let mut mine: Vec<Vec<f32>> = Vec::new();
        let all = self.data.rows();
        for batch in self.data.in_order(self.rows)?.skip(rank).step_by(ranks) {
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
            // Restart the random stream, so that repeated evaluations agree.
            program.set_random_calls(0);
            let values = program.call(&inputs)?;
            mine.push(values.iter().map(|v| Ok(v.num()?.data())).collect::<Result<Vec<_>>>()?.concat());
        }
        let each = match world {
            Some(world) => shared(world, &mine, all, self.rows)?,
            None => mine,
        };
        let mut sums: Vec<f64> = Vec::new();
        for (batch, words) in each.iter().enumerate() {
            let rows = self.rows.min(all - batch * self.rows);
            sums.resize(words.len() / rows, 0.0);
            for (sum, value) in sums.iter_mut().zip(words.chunks(rows)) {
                value.iter().for_each(|v| *sum += f64::from(*v));
            }
        }
        let means: Vec<f64> = sums.iter().map(|s| s / all as f64).collect();
        Ok((self.score)(&means))
    }
}

/// The values of all batches of up to `rows` rows, in order; each process has those of every so many.
#[track_caller]
fn shared(world: &World, mine: &[Vec<f32>], all: usize, rows: usize) -> Result<Vec<Vec<f32>>> {
    let ranks = world.all_gather_words(&mine.concat())?;
    let batches = all.div_ceil(rows);
    let rows_of = |batch: usize| rows.min(all - batch * rows);
    let of_rank = |rank: usize| (rank..batches).step_by(world.size()).map(rows_of).sum::<usize>();
    let mut at = vec![0; world.size()];
    let mut each = Vec::new();
    for batch in 0..batches {
        let rank = batch % world.size();
        let per_row = ranks[rank].len() / of_rank(rank).max(1);
        let words = per_row * rows_of(batch);
        each.push(ranks[rank][at[rank]..at[rank] + words].to_vec());
        at[rank] += words;
    }
    Ok(each)
}

/// For each row: the sum of its labels' losses, how many of them have the largest logit, and how many are not ignored.
#[track_caller]
fn right<'s>(logits: Var<'s>, labels: Var<'s>) -> Result<Vec<Var<'s>>> {
    let (session, shape) = (logits.session(), logits.shape()?);
    let last = match shape.rank() {
        0 | 1 => {
            let want = "at least 2: (rows, …, classes)";
            return Err(Error::new("evaluation", ErrorKind::Rank { want, got: shape }));
        }
        rank => rank - 1,
    };
    let each = LabelLoss { ignore: Some(IGNORE), reduction: Reduction::None, ..LabelLoss::default() };
    let loss = logits.cross_entropy_loss(labels, each)?;
    let counted = labels.ne(session.indices(&Tensor::scalar(IGNORE))?)?;
    let all = [loss, logits.argmax(&[last], false)?.eq(labels)?, counted];
    let axes: Vec<usize> = (1..last).collect();
    all.into_iter().map(|v| if axes.is_empty() { Ok(v) } else { v.sum_axes(&axes) }).collect()
}

/// The measured values. Errors unless each has one number per row.
#[track_caller]
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
