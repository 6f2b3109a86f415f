//! A model given as programs, such as one that was traced from PyTorch.

use super::module::{Forward, Mode, Module, Visitor};
use crate::device::{Device, Meta};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::io::Checkpoint;
use crate::params::{Param, Params};
use crate::session::Var;
use crate::shape::Shape;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Names of the texts in its file.
const TRAIN: &str = "program.train";
const EVAL: &str = "program.eval";
const ASSIGNED: &str = "program.assigned";

/// A model given as two programs, one for training and one for evaluation, which read the same parameters. `dittograd.torch` in Python
/// writes such files; `dittograd train FILE` trains them.
///
/// The programs have one input, a batch with a fixed number of rows. In evaluation mode any number of rows is computed, batch by batch.
///
/// ```
/// use dittograd::device::Meta;
/// use dittograd::graph::Graph;
/// use dittograd::nn::Program;
/// use dittograd::prelude::*;
/// # fn main() -> Result<()> {
/// # let path = std::env::temp_dir().join(format!("dittograd-program-{}.safetensors", std::process::id()));
/// let device = Device::cpu()?;
/// let mut params = Params::new(&device, 7);
/// let net = Mlp::new(&mut params, &[2, 8, 3])?;
/// let batch = [Meta::f32(Shape::new(&[16, 2])?)];
/// let train = Graph::trace(&device, &batch, |_, v| Ok(vec![net.forward(v[0])?]))?;
/// let eval = Graph::trace(&device, &batch, |_, v| Ok(vec![net.eval().forward(v[0])?]))?;
/// Program::new(&params, train, eval, &[])?.save(&path, "mlp", &params)?;
///
/// let (loaded, program) = Program::load(&path, &device)?;
/// assert_eq!(loaded.fingerprint()?, params.fingerprint()?);
/// let session = Session::inference(&device);
/// let x = session.zeros(&[5, 2])?;
/// assert_eq!(program.eval().forward(x)?.value::<f32>()?, net.forward(x)?.value::<f32>()?);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    parts: Arc<Parts>,
    mode: Mode,
}

#[derive(Debug)]
struct Parts {
    train: Graph,
    eval: Graph,
    /// Parameters that a training step gives the values of further outputs of `train`.
    assigned: Vec<Param>,
    params: Vec<Param>,
}

/// Types and shapes of what a program returns.
fn results_of(graph: &Graph) -> Vec<Meta> {
    graph.outputs().iter().map(|v| graph.nodes()[v.0 as usize].meta).collect()
}

impl Program {
    /// A model of these programs, which read `params` by name. `train` may have more results than `eval`: the new values of the parameters
    /// `assigned`, such as running means. Errors if a parameter is missing, or if they do not map the same batch to rows of results.
    #[track_caller]
    pub fn new(params: &Params, mut train: Graph, mut eval: Graph, assigned: &[String]) -> Result<Program> {
        let wrong = |what: &'static str, why: String| Error::argument("program", what, why);
        train.bind(params)?;
        eval.bind(params)?;
        for (what, graph, results) in [("train", &train, 1 + assigned.len()), ("eval", &eval, 1)] {
            let (inputs, outputs) = (graph.inputs(), results_of(graph));
            if inputs.len() != 1 || outputs.len() != results {
                let got = format!("has {} inputs and {} results", inputs.len(), outputs.len());
                return Err(wrong(
                    what,
                    format!("{got}; it needs one input, a batch, and {results} results"),
                ));
            }
            let rows = |meta: &Meta| meta.shape.dims().first().copied().filter(|n| *n > 0);
            if rows(&inputs[0]).is_none() || rows(&inputs[0]) != rows(&outputs[0]) {
                let (x, y) = (inputs[0].shape, outputs[0].shape);
                return Err(wrong(
                    what,
                    format!("maps {x} to {y}; it needs a result for each row of the batch"),
                ));
            }
        }
        if train.inputs() != eval.inputs() {
            let (a, b) = (train.inputs()[0].shape, eval.inputs()[0].shape);
            return Err(wrong("eval", format!("takes {b} and train {a}; they need the same batch")));
        }
        let find = |(name, meta): (&String, &Meta)| match params.get(name) {
            Some(p) if p.shape() == meta.shape => Ok(p.clone()),
            Some(p) => {
                Err(wrong("assigned", format!("{name} has shape {}, its value {}", p.shape(), meta.shape)))
            }
            None => Err(wrong("assigned", format!("there is no parameter {name}"))),
        };
        let assigned = assigned.iter().zip(&results_of(&train)[1..]).map(find).collect::<Result<_>>()?;
        let params = params.iter().cloned().collect();
        Ok(Program { parts: Arc::new(Parts { train, eval, assigned, params }), mode: Mode::Train })
    }

    /// The type and shape of a batch.
    pub fn input(&self) -> Meta {
        self.parts.train.inputs()[0]
    }

    /// The shape of the result for a batch.
    pub fn output(&self) -> Shape {
        results_of(&self.parts.eval)[0].shape
    }

    /// Writes the programs and the values of the parameters to a checkpoint without a state of training. PyTorch reads its tensors.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>, model: &str, params: &Params) -> Result<()> {
        let mut checkpoint = Checkpoint::new(model, params)?;
        checkpoint.texts = self.texts()?;
        checkpoint.save(path)
    }

    /// The programs as texts for [`Checkpoint::texts`], where [`Program::of`] finds them.
    #[track_caller]
    pub fn texts(&self) -> Result<BTreeMap<String, String>> {
        let names: Vec<&str> = self.parts.assigned.iter().map(Param::name).collect();
        let texts = [
            (TRAIN, self.parts.train.text()?),
            (EVAL, self.parts.eval.text()?),
            (ASSIGNED, names.join("\n")),
        ];
        Ok(texts.into_iter().map(|(name, text)| (name.to_string(), text)).collect())
    }

    /// Reads what [`Program::save`] wrote, onto a device.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<(Params, Program)> {
        let checkpoint = Checkpoint::load(path.as_ref())?;
        let mut params = Params::new(device, checkpoint.random.seed);
        let program =
            Program::of(&checkpoint, &mut params).map_err(|e| Error::file("load", path, e.to_string()))?;
        Ok((params, program))
    }

    /// Whether a checkpoint has programs.
    pub fn is_in(checkpoint: &Checkpoint) -> bool {
        checkpoint.texts.contains_key(TRAIN)
    }

    /// The model of a checkpoint that has its programs. Its parameters, with their values, are added to `params`.
    #[track_caller]
    pub fn of(checkpoint: &Checkpoint, params: &mut Params) -> Result<Program> {
        let text = |name: &str| match checkpoint.texts.get(name) {
            Some(text) => Ok(text.as_str()),
            None => {
                let why = "has no programs; save them with Program::save, or in Python with Module.export";
                Err(Error::argument("program", "checkpoint", why))
            }
        };
        let (train, eval) = (Graph::parse(text(TRAIN)?)?, Graph::parse(text(EVAL)?)?);
        let assigned: Vec<String> = text(ASSIGNED)?.lines().map(str::to_string).collect();
        for (name, value) in checkpoint.params.iter() {
            let param = params.value(name, value.num()?)?;
            param.set_trainable(!checkpoint.frozen.contains(name));
            if assigned.iter().any(|a| a == name) {
                param.set_buffer();
            }
        }
        Program::new(params, train, eval, &assigned)
    }
}

impl Module for Program {
    fn visit(&self, visitor: &mut Visitor) {
        self.parts.params.iter().for_each(|p| visitor.field(p.name(), p));
    }

    fn in_mode(&self, mode: Mode) -> Program {
        Program { mode, ..self.clone() }
    }
}

impl Forward for Program {
    #[track_caller]
    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let parts = &self.parts;
        if self.mode == Mode::Train {
            let results = x.session().replay(&parts.train, &[x])?;
            for (param, value) in parts.assigned.iter().zip(&results[1..]) {
                x.session().assign(param, *value)?;
            }
            return Ok(results[0]);
        }
        let (all, batch) = (x.shape()?, self.input().shape.dims()[0]);
        let rows = all.dims().first().copied().unwrap_or(0);
        let mut results = Vec::new();
        for start in (0..rows).step_by(batch) {
            let count = batch.min(rows - start);
            let part = if rows == batch { x } else { x.narrow(0, start, count)? };
            // Rows of an evaluation do not depend on one another.
            let part = if count < batch { part.pad(0, 0, batch - count)? } else { part };
            let y = x.session().replay(&parts.eval, &[part])?[0];
            results.push(if count < batch { y.narrow(0, 0, count)? } else { y });
        }
        match results.as_slice() {
            [one] => Ok(*one),
            several => x.session().concat(several, 0),
        }
    }
}
