//! What a model learns: the data by name or file, the loss, and the measures on test data.

use crate::images::{self, Size};
use crate::models::{Model, Task};
use crate::out::Busy;
use crate::{Answer, fail};
use dittograd::data::{self, Dataset, IGNORE, MAX_CLASSES, Part, Regression, Scaling, Tokenizer};
use dittograd::device::Meta;
use dittograd::graph::Graph;
use dittograd::prelude::*;
use dittograd::session::LabelLoss;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Fraction of the rows to train on, unless the data set has its own split.
const TRAIN_PART: f64 = 0.8;
/// Arms of the spirals.
const ARMS: usize = 3;
/// Added to squared distances, so that even a perfect prediction has a gradient.
const DISTANCE_EPS: f64 = 1e-12;
/// Number of samples to generate if only their shape is needed.
const SHAPE_SAMPLES: usize = 8;
/// Viscosity of the fields of Burgers' equation: steep fronts, but no shocks.
const VISCOSITY: f64 = 0.01;
/// Default number of tokens of a text sample.
pub(crate) const WINDOW: usize = 64;

/// The source of data. It determines every bit of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Source {
    /// A data set generated from the seed, or a file.
    pub(crate) name: String,
    /// The file; its name need not be valid text.
    #[serde(skip)]
    pub(crate) path: Option<PathBuf>,
    /// Number of samples to generate.
    pub(crate) samples: Option<usize>,
    /// Points of a grid, or tokens of a sample of text.
    pub(crate) grid: Option<usize>,
    /// Number of last columns of a CSV file that are targets; without it, the last column is a class.
    pub(crate) targets: Option<usize>,
    /// The size that all images of a folder get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resize: Option<Size>,
    /// Seed of the draws and of the split.
    pub(crate) seed: u64,
    /// The requested tokenizer of a text, if not bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokenizer: Option<String>,
    /// The tokenizer itself, which a checkpoint stores separately.
    #[serde(skip)]
    pub(crate) tokens: Option<Arc<Tokenizer>>,
}

/// Mean and deviation of a scaling, as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kept {
    mean: Vec<f64>,
    deviation: Vec<f64>,
}

impl Kept {
    fn of(scaling: &Scaling) -> Kept {
        Kept { mean: scaling.mean().to_vec(), deviation: scaling.deviation().to_vec() }
    }

    fn scaling(&self) -> Result<Scaling, Error> {
        Scaling::from_parts(self.mean.clone(), self.deviation.clone())
    }
}

/// How the data was scaled for the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scales {
    /// The inputs.
    pub(crate) x: Option<Kept>,
    /// The targets.
    pub(crate) y: Option<Kept>,
}

impl Scales {
    /// Scales inputs for the model.
    pub(crate) fn inputs(&self, x: AnyTensor) -> Answer<AnyTensor> {
        Ok(match &self.x {
            Some(kept) => kept.scaling()?.apply_to(x.num()?)?.into(),
            None => x,
        })
    }

    /// Unscales inputs.
    pub(crate) fn raw_inputs(&self, x: AnyTensor) -> Answer<Tensor<f32>> {
        Ok(match &self.x {
            Some(kept) => kept.scaling()?.undo(x.num()?)?,
            None => x.num()?.clone(),
        })
    }

    /// Means and deviations of inputs and targets, where they are scaled.
    pub(crate) fn parts(&self) -> [Option<(Vec<f64>, Vec<f64>)>; 2] {
        [&self.x, &self.y].map(|kept| kept.as_ref().map(|k| (k.mean.clone(), k.deviation.clone())))
    }

    /// The model's outputs in the units of the data.
    pub(crate) fn outputs(&self, y: Tensor<f32>) -> Answer<Tensor<f32>> {
        Ok(match &self.y {
            Some(kept) => kept.scaling()?.undo(&y)?,
            None => y,
        })
    }
}

/// Scaled training and test data.
pub(crate) struct Data {
    pub(crate) train: Dataset,
    pub(crate) test: Dataset,
    pub(crate) scales: Scales,
    /// The tokenizer of a text.
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
}

/// The names of data sets made from a seed.
fn built_in() -> String {
    let more: Vec<&str> = Regression::ALL.iter().map(|r| r.name()).collect();
    format!("spirals, digits, burgers, darcy, additions, {}", more.join(", "))
}

impl Source {
    /// The path, if it is a text file for a model that generates text.
    fn text(&self, model: Model) -> Option<&Path> {
        let is_made = built_in().split(", ").any(|name| name == self.name);
        let path = self.path.as_deref().unwrap_or(Path::new(&self.name));
        let is_text = !is_made && !path.is_dir() && path.extension().is_none_or(|e| e != "npz");
        (model.takes_tokens() && is_text).then_some(path)
    }

    /// Creates the tokenizer: `bytes`, `bpe:SIZE` or a path.
    pub(crate) fn tokenize(&mut self, model: Model, choice: &str) -> Answer<()> {
        let Some(path) = self.text(model) else {
            return fail("--tokenizer is for gpt and mamba on a file of text");
        };
        let tokenizer = match choice.split_once(':') {
            _ if choice == "bytes" => return Ok(()),
            Some(("bpe", size)) => match size.parse::<usize>() {
                Ok(size) if (257..=MAX_CLASSES).contains(&size) => Tokenizer::train_file(path, size)?,
                _ => {
                    let how = format!("use bpe:SIZE with a size from 257 to {MAX_CLASSES}, such as bpe:1024");
                    return fail(format!("--tokenizer {choice}: {how}"));
                }
            },
            _ if !Path::new(choice).exists() => {
                let how = "use bytes, bpe:SIZE, or a path of a tokenizer.json or of its folder";
                return fail(format!("--tokenizer {choice}: there is no such file; {how}"));
            }
            _ => Tokenizer::read(choice)?,
        };
        self.tokenizer = Some(choice.into());
        self.tokens = Some(Arc::new(tokenizer));
        Ok(())
    }

    /// The tokenizer for a prompt.
    pub(crate) fn tokenizer(&self) -> Arc<Tokenizer> {
        self.tokens.clone().unwrap_or_else(|| Arc::new(Tokenizer::bytes()))
    }

    /// Training and test data, unscaled.
    fn parts(&self, model: Model, busy: &Busy) -> Answer<(Dataset, Dataset)> {
        let (seed, samples) = (self.seed, |default: usize| self.samples.unwrap_or(default));
        let split = |data: Dataset, part: f64| -> Answer<(Dataset, Dataset)> {
            if data.rows() < 2 {
                return fail(format!("{}: one row cannot be split into training and test rows", data.name()));
            }
            Ok(data::split(&model.fit(data)?, part, seed)?)
        };
        if self.grid.is_some() && !matches!(self.name.as_str(), "burgers" | "darcy") && !model.takes_tokens()
        {
            return fail(format!("--grid: {} has no grid", self.name));
        }
        if self.resize.is_some() && self.is_made() {
            return fail(format!("--resize is for folders of images; {} is made in its size", self.name));
        }
        busy.now(&format!("{} {}", if self.is_made() { "making" } else { "reading" }, self.name));
        match self.name.as_str() {
            "spirals" => split(data::spirals(seed, samples(3000), ARMS)?, TRAIN_PART),
            "digits" => split(data::digits(seed, samples(12_000))?, 5.0 / 6.0),
            "burgers" => split(
                data::burgers_with(VISCOSITY, seed, samples(1200), self.grid.unwrap_or(256))?,
                5.0 / 6.0,
            ),
            "darcy" => split(data::darcy(seed, samples(600), self.grid.unwrap_or(32))?, 5.0 / 6.0),
            "additions" => {
                let count = samples(Part::Train.lines());
                Ok((
                    data::additions(seed, count, Part::Train)?,
                    data::additions(seed, Part::HeldOut.lines(), Part::HeldOut)?,
                ))
            }
            name => match Regression::named(name) {
                Ok(kind) => split(data::regression(kind, seed, samples(2000))?, TRAIN_PART),
                Err(_) => self.files(model, self.path.as_deref().unwrap_or(Path::new(name)), &split, busy),
            },
        }
    }

    /// Training and test data from a file or a folder.
    fn files(
        &self,
        model: Model,
        path: &Path,
        split: &dyn Fn(Dataset, f64) -> Answer<(Dataset, Dataset)>,
        busy: &Busy,
    ) -> Answer<(Dataset, Dataset)> {
        if self.samples.is_some() {
            return fail("--samples is for data that is made from a seed; a file has the samples it has");
        }
        if path.is_dir() {
            return self.folder(path, split, busy);
        }
        if self.resize.is_some() {
            return fail(format!("--resize is for folders of images; {} is a file", path.display()));
        }
        let end = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if !path.exists() && end.is_empty() {
            return fail(format!(
                "--data {}: there is no such file; made from a seed are {}",
                self.name,
                built_in()
            ));
        }
        match (end, self.targets) {
            ("npz", _) => match data::npz_parts(path)? {
                (train, Some(test)) => Ok((train, test)),
                (all, None) => split(all, TRAIN_PART),
            },
            _ if model.takes_tokens() => {
                let window = self.grid.unwrap_or(WINDOW);
                let data = match &self.tokens {
                    Some(tokenizer) => data::text_with(path, tokenizer, window)?,
                    None => data::text(path, window)?,
                };
                split(data, 0.9)
            }
            (_, Some(targets)) => split(data::csv_regression(path, targets)?, TRAIN_PART),
            (_, None) => split(data::csv(path)?, TRAIN_PART),
        }
    }

    /// Whether it is generated from the seed.
    fn is_made(&self) -> bool {
        matches!(self.name.as_str(), "spirals" | "digits" | "burgers" | "darcy" | "additions")
            || Regression::named(&self.name).is_ok()
    }

    /// The shape of one input. For generated data, from a few samples.
    pub(crate) fn row(&self, model: Model) -> Answer<Vec<usize>> {
        let samples = if self.is_made() { Some(SHAPE_SAMPLES) } else { self.samples };
        let (train, _) = Source { samples, ..self.clone() }.parts(model, &Busy::hidden())?;
        Ok(model.fit(train)?.x().shape().dims()[1..].to_vec())
    }

    /// The data for a model. Numbers with arbitrary units are scaled by statistics of the training part.
    pub(crate) fn load(&self, model: Model, busy: &Busy) -> Answer<Data> {
        let (train, test) = self.parts(model, busy)?;
        let (mut train, mut test) = (model.fit(train)?, model.fit(test)?);
        for (name, a, b) in [("x", train.x(), test.x()), ("y", train.y(), test.y())] {
            let (a, b) = (a.shape(), b.shape());
            if a.dims()[1..] != b.dims()[1..] {
                return fail(format!(
                    "{}: {name} has shape {a}, {name}_test {b}; rows must be alike",
                    self.name
                ));
            }
        }
        let is_made = matches!(self.name.as_str(), "spirals" | "digits" | "burgers" | "additions");
        // A program takes what it took where it was made.
        let as_is = is_made || model.is_program();
        let mut scales = Scales::default();
        // Pictures are already in [0, 1].
        let is_picture = train.x().shape().rank() == 4 && self.name != "darcy";
        if !as_is
            && !is_picture
            && let AnyTensor::Num(_) = train.x()
        {
            let scaling = Scaling::of(&train)?;
            scales.x = Some(Kept::of(&scaling));
            (train, test) = (scaling.apply(&train)?, scaling.apply(&test)?);
        }
        if !as_is && let AnyTensor::Num(_) = train.y() {
            let scaling = Scaling::of_tensor(train.y())?;
            // Relative errors of fields stay the same under scaling only if zero stays zero.
            let scaling = match model.task(&train) {
                Task::Field => {
                    Scaling::from_parts(vec![0.0; scaling.mean().len()], scaling.deviation().to_vec())?
                }
                _ => scaling,
            };
            scales.y = Some(Kept::of(&scaling));
            let with = |d: &Dataset| d.with(d.x().clone(), scaling.apply_to(d.y().num()?)?);
            (train, test) = (with(&train)?, with(&test)?);
        }
        let tokenizer = self.text(model).map(|_| self.tokenizer());
        Ok(Data { train, test, scales, tokenizer })
    }

    /// MNIST or CIFAR-10 in a folder, whose files define the training part, or images in folders by class.
    fn folder(
        &self,
        path: &Path,
        split: &dyn Fn(Dataset, f64) -> Answer<(Dataset, Dataset)>,
        busy: &Busy,
    ) -> Answer<(Dataset, Dataset)> {
        if let Some(parts) = known_folder(path)? {
            return match self.resize {
                Some(_) => {
                    fail(format!("--resize is for folders of images; {} holds arrays", path.display()))
                }
                None => Ok(parts),
            };
        }
        if let Some(classes) = images::classes(path)? {
            return split(images::load(path, &classes, self.resize, busy)?, TRAIN_PART);
        }
        let wanted = "train-images-idx3-ubyte and its like (MNIST), data_batch_1.bin and test_batch.bin (CIFAR-10), or a \
                      folder of PNG or JPEG files for each class";
        fail(format!("{}: a folder of data has {wanted}", path.display()))
    }
}

/// Training and test data of a folder with the files of MNIST or CIFAR-10.
pub(crate) fn known_folder(path: &Path) -> Answer<Option<(Dataset, Dataset)>> {
    let find = |names: &[&str]| names.iter().map(|n| path.join(n)).find(|p| p.is_file());
    let idx = |stem: &str, kind: &str, axes: u8| {
        let names = [
            format!("{stem}-{kind}-idx{axes}-ubyte"),
            format!("{stem}-{kind}.idx{axes}-ubyte"),
            format!("{stem}-{kind}-idx{axes}-ubyte.gz"),
        ];
        find(&names.each_ref().map(String::as_str))
    };
    if let [Some(a), Some(b), Some(c), Some(d)] = [
        idx("train", "images", 3),
        idx("train", "labels", 1),
        idx("t10k", "images", 3),
        idx("t10k", "labels", 1),
    ] {
        return Ok(Some((data::idx(a, b)?, data::idx(c, d)?)));
    }
    let batches: Vec<PathBuf> = (1..=5).filter_map(|i| find(&[&format!("data_batch_{i}.bin")])).collect();
    if let (false, Some(test)) = (batches.is_empty(), find(&["test_batch.bin"])) {
        return Ok(Some((data::cifar10(&batches)?, data::cifar10(&[test])?)));
    }
    Ok(None)
}

/// The loss of a batch, for eager and compiled runs.
pub(crate) fn loss<'s>(task: Task, net: &dyn Forward, x: Var<'s>, y: Var<'s>) -> Result<Var<'s>, Error> {
    let out = net.forward(x)?;
    match task {
        Task::Classes => out.cross_entropy(y),
        Task::Text => out.cross_entropy_loss(y, LabelLoss { ignore: Some(IGNORE), ..LabelLoss::default() }),
        Task::Numbers => out.mse(y),
        Task::Itself => out.mse(x),
        Task::Field => relative_rows(out, y)?.mean(),
    }
}

/// Per row: the squared distance of the prediction from the truth, and the squared norm of the truth.
fn field_squares<'s>(out: Var<'s>, y: Var<'s>) -> Result<[Var<'s>; 2], Error> {
    let squares = |v: Var<'s>| v.flatten_from(1)?.square()?.sum_axes(&[1]);
    Ok([squares(out.sub(y)?)?, squares(y)?])
}

/// The relative distance of each row of a prediction from the truth; it has a gradient even at distance zero.
fn relative_rows<'s>(out: Var<'s>, y: Var<'s>) -> Result<Var<'s>, Error> {
    let [off, size] = field_squares(out, y)?;
    off.add_scalar(DISTANCE_EPS)?.div(size.add_scalar(DISTANCE_EPS)?)?.sqrt()
}

/// Adds all scores to an object, with names that start with `test_`.
pub(crate) fn put(scores: &Scores, object: &mut Value) {
    for (name, value) in &scores.values {
        object[format!("test_{name}")] = json!(value);
    }
}

/// The scores of an evaluation among the measurements of a run.
pub(crate) fn scores_at(lines: &[Value], step: u64) -> Option<Scores> {
    let is_it = |l: &&Value| l["step"].as_u64() == Some(step) && l.get("test_loss").is_some();
    let all = lines.iter().find(is_it)?.as_object()?;
    let score =
        |(name, value): (&String, &Value)| Some((name.strip_prefix("test_")?.to_string(), value.as_f64()?));
    // The merit is not among the measurements.
    Some(Scores { merit: f64::NAN, values: all.iter().filter_map(score).collect() })
}

/// Scores as text.
pub(crate) fn text(scores: &Scores) -> String {
    let word = |(name, value): &(String, f64)| phrase(name, &number(name, *value));
    scores.values.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// The value of a score as text, in its unit.
pub(crate) fn number(name: &str, value: f64) -> String {
    match name {
        "accuracy" | "exact" => format!("{:.2}", 100.0 * value),
        "relative_l2" => format!("{:.3}", 100.0 * value),
        "bits_per_byte" => format!("{value:.4}"),
        _ => format!("{value:.6}"),
    }
}

/// A score's name and unit around its numbers.
pub(crate) fn phrase(name: &str, numbers: &str) -> String {
    match name {
        "loss" => format!("test loss {numbers}"),
        "accuracy" | "exact" => format!("{name} {numbers} %"),
        "relative_l2" => format!("relative L2 error {numbers} %"),
        "bits_per_byte" => format!("{numbers} bits per byte"),
        name => format!("{name} {numbers}"),
    }
}

/// Position of the largest number, the first of equal ones; `None` if one is NaN.
pub(crate) fn best(row: &[f32]) -> Option<usize> {
    let larger = |b: usize, (i, v): (usize, &f32)| if *v > row[b] { i } else { b };
    row.iter().all(|v| !v.is_nan()).then(|| row.iter().enumerate().fold(0, larger))
}

/// The squared L2 distance of a prediction from the truth, and the squared norm of the truth.
pub(crate) fn squares(
    truth: impl Iterator<Item = f64> + Clone,
    prediction: impl Iterator<Item = f64>,
) -> [f64; 2] {
    let square = |v: f64| v * v;
    [truth.clone().zip(prediction).map(|(t, p)| square(p - t)).sum(), truth.map(square).sum()]
}

/// Like [`squares`], for float32 numbers.
fn squares_of(truth: &[f32], prediction: &[f32]) -> [f64; 2] {
    squares(truth.iter().map(|v| f64::from(*v)), prediction.iter().map(|v| f64::from(*v)))
}

/// Relative L2 distance of a prediction from the truth.
pub(crate) fn relative(truth: &[f32], prediction: &[f32]) -> f64 {
    let [off, size] = squares_of(truth, prediction);
    (off / size).sqrt()
}

/// The model's output for scaled inputs.
pub(crate) fn predict(device: &Device, net: &dyn Forward, x: &AnyTensor) -> Result<Tensor<f32>, Error> {
    let session = Session::inference(device);
    net.forward(session.input_any(x)?)?.value()
}

/// The bytes of tokens, or their numbers if a token is unknown.
pub(crate) fn spelled(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<u8> {
    tokenizer.decode(tokens).unwrap_or_else(|_| {
        let numbers: Vec<String> = tokens.iter().map(u32::to_string).collect();
        numbers.join(" ").into_bytes()
    })
}

/// The program of [`predict`], for inputs with this shape and type.
pub(crate) fn program(device: &Device, net: &dyn Forward, x: Meta) -> Result<Graph, Error> {
    Graph::trace(device, &[x], |_, x| Ok(vec![net.forward(x[0])?]))
}

/// 1 where the class with the largest logit `(…, classes)` is not the label, else 0; 0 where the label is ignored.
fn misses<'s>(out: Var<'s>, labels: Var<'s>) -> Result<Var<'s>, Error> {
    let (session, last) = (out.session(), out.shape()?.rank() - 1);
    let counted = labels.ne(session.indices(&Tensor::scalar(IGNORE))?)?;
    out.argmax(&[last], false)?.ne(labels)?.mul(counted)
}

/// Evaluates a model in evaluation mode on the test data: the mean loss, and further measures, of which the first one
/// decides what is better.
pub(crate) fn evaluation(task: Task, net: Arc<dyn Forward>, data: &Data) -> Answer<Evaluation<'static>> {
    let Data { test, scales, tokenizer, .. } = data;
    let deviation = match &scales.y {
        Some(kept) => Some(kept.scaling()?.deviation().to_vec()),
        None => None,
    };
    // The counts of a text depend only on the data.
    let (mut counted, mut bytes) = (0usize, 0usize);
    if task == Task::Text {
        let labels = test.y().idx()?.data().iter().filter(|l| **l != IGNORE);
        counted = labels.clone().count();
        if let Some(tokenizer) = tokenizer {
            bytes = labels.map(|id| tokenizer.token(*id).map_or(0, <[u8]>::len)).sum();
        }
    }
    let (rows, is_sums) = (test.rows() as f64, test.name() == "additions");
    let (counted, bytes) = (counted.max(1) as f64 / rows, bytes as f64 / rows);
    let score = move |means: &[f64]| {
        let (loss, more) = match task {
            Task::Classes => (means[0], vec![("accuracy", 1.0 - means[1])]),
            Task::Field => (means[0], vec![("relative_l2", means[1])]),
            Task::Numbers | Task::Itself => (means[0], vec![("rmse", means[1].sqrt())]),
            Task::Text => {
                let loss = means[0] / counted;
                let mut more = vec![("perplexity", libm::exp(loss))];
                match is_sums {
                    true => more.insert(0, ("exact", means[2])),
                    false => more.push(("accuracy", 1.0 - means[1] / counted)),
                }
                // Tokenizers have tokens of different lengths; bytes are comparable.
                if bytes > 0.0 {
                    more.push(("bits_per_byte", means[0] / bytes / std::f64::consts::LN_2));
                }
                (loss, more)
            }
        };
        let merit = match more[0] {
            _ if loss.is_nan() => f64::NAN,
            ("accuracy" | "exact", share) => share,
            ("perplexity", _) => -loss,
            (_, error) => -error,
        };
        let more = more.into_iter().map(|(name, value)| (name.to_string(), value));
        Scores { merit, values: std::iter::once(("loss".to_string(), loss)).chain(more).collect() }
    };
    Ok(Evaluation::new(test.clone(), move |v| row_values(task, net.as_ref(), deviation.as_deref(), v), score))
}

/// The measured values per row: its loss (for a text, the sum over its tokens) and what further scores need.
fn row_values<'s>(
    task: Task,
    net: &dyn Forward,
    deviation: Option<&[f64]>,
    v: &[Var<'s>],
) -> Result<Vec<Var<'s>>, Error> {
    let (x, y) = (v[0], v[1]);
    let (out, session) = (net.forward(x)?, x.session());
    let ignore = (task == Task::Text).then_some(IGNORE);
    let labels = LabelLoss { ignore, reduction: Reduction::None, ..LabelLoss::default() };
    let mean_squares = |d: Var<'s>| d.flatten_from(1)?.square()?.mean_axes(&[1]);
    Ok(match task {
        Task::Classes => vec![out.cross_entropy_loss(y, labels)?, misses(out, y)?],
        Task::Text => {
            let misses = misses(out, y)?.sum_axes(&[1])?;
            let exact = misses.eq(session.scalar(0.0)?)?;
            vec![out.cross_entropy_loss(y, labels)?.sum_axes(&[1])?, misses, exact]
        }
        Task::Field => {
            let [off, size] = field_squares(out, y)?;
            vec![relative_rows(out, y)?, off.div(size)?.sqrt()?]
        }
        Task::Numbers => {
            let off = out.sub(y)?;
            let scaled = match deviation {
                Some(d) => off.mul(session.constant(&Tensor::new(&[d.len()], d.to_vec())?)?)?,
                None => off,
            };
            vec![mean_squares(off)?, mean_squares(scaled)?]
        }
        Task::Itself => {
            let squares = mean_squares(out.sub(x)?)?;
            vec![squares, squares]
        }
    })
}
