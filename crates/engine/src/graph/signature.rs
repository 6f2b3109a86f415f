//! What a program takes and returns, and what it reads besides.

use super::{Graph, Node, Source, What};
use crate::host::HostDevice;
use crate::nats::Nats;
use crate::params::{Param, Params};
use dittograd_device::{AnyBuffer, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::{Attr, Val};

impl Graph {
    /// The values it returns, in order.
    pub fn outputs(&self) -> &[Val] {
        &self.outputs
    }

    /// Says which values it returns.
    pub fn set_outputs(&mut self, outputs: &[Val]) -> Result<()> {
        outputs.iter().try_for_each(|v| self.check("outputs", *v))?;
        self.outputs = outputs.to_vec();
        Ok(())
    }

    /// Types and shapes of the inputs, in the order they are given.
    pub fn inputs(&self) -> Vec<Meta> {
        let input = |n: &Node| matches!(n.what, What::Leaf(Source::Input(_))).then_some(n.meta);
        self.nodes.iter().filter_map(input).collect()
    }

    /// Names the inputs, in order: the first, the second, and so on. Names show in the text of the program, in drawings
    /// and in messages, and are the names of an ONNX model's inputs. Inputs beyond the list keep what they have. Errors
    /// if a name is empty or given twice, or there are fewer inputs.
    ///
    /// ```
    /// use dittograd::device::Meta;
    /// use dittograd::graph::Graph;
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let takes = [Meta::f32(Shape::new(&[2])?); 2];
    /// let mut graph = Graph::trace(&Device::cpu()?, &takes, |_, x| Ok(vec![(x[0] * x[1])?]))?;
    /// graph.name_inputs(&["x", "weight"])?;
    /// assert!(graph.to_string().starts_with("%0: f32[2] = input \"x\"\n%1: f32[2] = input \"weight\"\n"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn name_inputs(&mut self, names: &[&str]) -> Result<()> {
        let count = self.inputs().len();
        if names.len() > count {
            let why = format!("there are {} names, the program has {count} inputs", names.len());
            return Err(Error::argument("name_inputs", "names", why));
        }
        let mut all = std::mem::take(&mut self.input_names);
        let before = all.clone();
        all.resize(all.len().max(names.len()), None);
        all.iter_mut().zip(names).for_each(|(slot, name)| *slot = Some(name.to_string()));
        let named: Vec<&String> = all.iter().flatten().collect();
        let wrong = named.iter().enumerate().find_map(|(i, name)| match name.as_str() {
            "" => Some("a name is empty".to_string()),
            name if named[..i].iter().any(|other| *other == name) => Some(format!("{name:?} is there twice")),
            _ => None,
        });
        self.input_names = if wrong.is_some() { before } else { all };
        wrong.map_or(Ok(()), |why| Err(Error::argument("name_inputs", "names", why)))
    }

    /// The names of the inputs, in the order they are given.
    pub fn input_names(&self) -> Vec<Option<&str>> {
        (0..self.inputs().len()).map(|i| self.input_name(i)).collect()
    }

    fn input_name(&self, i: usize) -> Option<&str> {
        self.input_names.get(i)?.as_deref()
    }

    /// For each value of the program, its name if it is an input that has one.
    pub(super) fn value_names(&self) -> Vec<Option<&str>> {
        let mut names = self.input_names.iter();
        let one = |n: &Node| match &n.what {
            What::Leaf(Source::Input(_)) => names.next()?.as_deref(),
            _ => None,
        };
        self.nodes.iter().map(one).collect()
    }

    /// Errors unless these are the types and shapes of the inputs.
    pub(crate) fn check_inputs(&self, given: impl ExactSizeIterator<Item = Meta>) -> Result<()> {
        let wanted = self.inputs();
        if wanted.len() != given.len() {
            return Err(Error::new("graph", ErrorKind::Arity { want: wanted.len(), got: given.len() }));
        }
        let other = wanted.into_iter().zip(given).enumerate().find(|(_, (want, got))| want != got);
        let Some((i, (want, got))) = other else { return Ok(()) };
        let name = self.input_name(i).map_or(String::new(), |name| format!(" {name:?}"));
        got.dtype.require(want.dtype, format!("graph{name}"), i)?;
        let why = format!("input {i}{name} has shape {}, the program takes {}", got.shape, want.shape);
        Err(Error::argument("graph", "inputs", why))
    }

    /// Names and shapes of the parameters it reads, in the order it does.
    pub fn params(&self) -> Vec<(String, Shape)> {
        let param = |n: &Node| match &n.what {
            What::Leaf(Source::Param(p)) => Some((p.name().to_string(), n.meta.shape)),
            What::Leaf(Source::Named(name, shape)) => Some((name.clone(), *shape)),
            _ => None,
        };
        self.nodes.iter().filter_map(param).collect()
    }

    /// The parameters it reads, those without a value left out.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Param> {
        self.nodes.iter().filter_map(|n| match &n.what {
            What::Leaf(Source::Param(p)) => Some(p),
            _ => None,
        })
    }

    /// The lists of whole numbers it reads at every run, which can be overwritten.
    pub fn nats(&self) -> Vec<Nats> {
        let nats = |n: &Node| match &n.what {
            What::Leaf(Source::Nats(nats)) => Some(nats.clone()),
            _ => None,
        };
        self.nodes.iter().filter_map(nats).collect()
    }

    /// How many random calls one run makes.
    pub fn random_calls(&self) -> u64 {
        let Some(base) = self.random_base else { return 0 };
        let draws = self.nodes.iter().filter_map(|n| match &n.what {
            What::Op(op, ins) if ins.contains(&base) => Some(op.attrs()),
            _ => None,
        });
        let counter = |(name, value): (&str, Attr)| match value {
            Attr::Whole(n) if name == "counter" => Some(n.saturating_add(1)),
            _ => None,
        };
        draws.flatten().filter_map(counter).max().unwrap_or(0)
    }

    pub(crate) fn shape_of(&self, v: Val) -> Shape {
        self.node(v).meta.shape
    }

    /// Gives the parameters that the program reads the values of those of the same names. Errors if one is missing or
    /// has another shape; nothing is changed then.
    pub fn bind(&mut self, params: &Params) -> Result<()> {
        let mut bound = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let name = match &node.what {
                What::Leaf(Source::Param(p)) => p.name(),
                What::Leaf(Source::Named(name, _)) => name,
                _ => continue,
            };
            let Some(param) = params.get(name) else {
                let there: Vec<&str> = params.iter().map(Param::name).take(8).collect();
                let why = format!(
                    "there is no parameter {name} of shape {}; there are {}",
                    node.meta.shape,
                    if there.is_empty() { "none".to_string() } else { there.join(", ") }
                );
                return Err(Error::argument("bind", "params", why));
            };
            if param.shape() != node.meta.shape {
                let why = "the parameter has another shape than in the program";
                let kind = ErrorKind::Shapes { why, left: param.shape(), right: node.meta.shape };
                return Err(Error::new(format!("parameter {name}"), kind));
            }
            bound.push((i, param.clone()));
        }
        bound.into_iter().for_each(|(i, p)| self.nodes[i].what = What::Leaf(Source::Param(p)));
        Ok(())
    }

    /// The program with its constants on a device. Errors if a parameter has no value yet, or other memory that it reads is
    /// elsewhere.
    pub(crate) fn on_device(&self, device: &Device) -> Result<Graph> {
        let mut graph = self.clone();
        for node in &mut graph.nodes {
            match &node.what {
                What::Leaf(Source::Named(name, shape)) => return Err(unbound(name, *shape)),
                What::Leaf(Source::Constant(c)) => {
                    node.what = What::Leaf(Source::Constant(on(c, device)?));
                }
                // A copy would not follow what is written there later.
                What::Leaf(Source::State(c)) => device.check_accepts("buffer", c.buffer())?,
                _ => {}
            }
        }
        Ok(graph)
    }

    /// A device that the program's values can be on.
    pub(super) fn home(&self) -> Device {
        let param = self.nodes.iter().find_map(|n| match &n.what {
            What::Leaf(Source::Param(p)) => Some(p.buffer().buffer().device().clone()),
            _ => None,
        });
        let constant = || {
            self.nodes.iter().find_map(|n| match &n.what {
                What::Leaf(Source::Constant(c) | Source::State(c)) => Some(c.buffer().device().clone()),
                _ => None,
            })
        };
        param.or_else(constant).unwrap_or_else(Device::host::<f32>)
    }
}

/// The error of a parameter that has no value.
#[doc(hidden)]
#[cold]
pub fn unbound(name: &str, shape: Shape) -> Error {
    let why =
        format!("parameter {name} of shape {shape} has no value yet; call bind with parameters of that name");
    Error::argument("graph", "params", why)
}

/// The value on a device: itself if it can be used there, else a copy.
pub(crate) fn on(value: &AnyBuffer, device: &Device) -> Result<AnyBuffer> {
    if device.accepts(value.buffer().device()) { Ok(value.clone()) } else { value.to_device(device) }
}
