//! Optimizers of Python programs.

use crate::held::locked;
use dittograd::optim::rules::{AdaGrad, Adadelta, Adam, Lion, Momentum, Muon, RmsProp, Sgd};
use dittograd::optim::{Group, Optimizer as Native, Rule};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What updates parameters in a `TrainStep`. Make it by `dittograd.optim`, whose functions have the names and arguments of PyTorch's.
/// A step takes it: the next one needs an optimizer of its own.
///
/// rule_name: "sgd", "momentum", "adam", "adagrad", "rmsprop", "adadelta", "lion" or "muon"
/// lr: the learning rate
/// options: the rule's numbers by name; what is left out has PyTorch's default
/// weight_decay: the factor of parameters that is added to gradients, or if it is decoupled, subtracted
/// groups: parameters with numbers of their own, as (names, lr, weight_decay, options); None keeps the optimizer's
/// decoupled: whether weight decay is apart from the gradient, as AdamW's
/// clip_norm: the largest norm of all gradients together
/// clip_value: the largest element of a gradient
#[pyclass(frozen, module = "dittograd")]
pub struct Optimizer {
    /// Taken by the step that uses it: a compiled step writes into its state.
    native: Mutex<Option<Native>>,
}

type Options = BTreeMap<String, f64>;
type Member = (Vec<String>, Option<f64>, Option<f64>, Option<Options>);

/// The rule of a name with these numbers.
fn rule(name: &str, options: &Options) -> PyResult<Rule> {
    let mut left = options.clone();
    let mut names = Vec::new();
    let mut take = |name: &'static str, default: f64| {
        names.push(name);
        left.remove(name).unwrap_or(default)
    };
    let rule: Rule = match name {
        "sgd" => Sgd.into(),
        "momentum" => {
            let d = Momentum::default();
            let (mu, dampening) = (take("momentum", d.mu), take("dampening", d.dampening));
            Momentum { mu, dampening, nesterov: take("nesterov", 0.0) != 0.0 }.into()
        }
        "adam" => {
            let d = Adam::default();
            Adam { beta1: take("beta1", d.beta1), beta2: take("beta2", d.beta2), eps: take("eps", d.eps) }
                .into()
        }
        "adagrad" => {
            let d = AdaGrad::default();
            AdaGrad {
                lr_decay: take("lr_decay", d.lr_decay),
                initial: take("initial_accumulator_value", d.initial),
                eps: take("eps", d.eps),
            }
            .into()
        }
        "rmsprop" => {
            let d = RmsProp::default();
            RmsProp {
                alpha: take("alpha", d.alpha),
                eps: take("eps", d.eps),
                momentum: take("momentum", d.momentum),
                centered: take("centered", 0.0) != 0.0,
            }
            .into()
        }
        "adadelta" => {
            let d = Adadelta::default();
            Adadelta { rho: take("rho", d.rho), eps: take("eps", d.eps) }.into()
        }
        "lion" => {
            let d = Lion::default();
            Lion { beta1: take("beta1", d.beta1), beta2: take("beta2", d.beta2) }.into()
        }
        "muon" => {
            let d = Muon::default();
            Muon {
                momentum: take("momentum", d.momentum),
                nesterov: take("nesterov", f64::from(u8::from(d.nesterov))) != 0.0,
                eps: take("eps", d.eps),
            }
            .into()
        }
        _ => {
            return Err(PyValueError::new_err(format!(
                "rule is {name:?}; use sgd, momentum, adam, adagrad, rmsprop, adadelta, lion or muon"
            )));
        }
    };
    match left.keys().next() {
        Some(other) => Err(PyValueError::new_err(format!(
            "{name} has no option {other}; it has {}",
            if names.is_empty() { "none".to_string() } else { names.join(", ") }
        ))),
        None => Ok(rule),
    }
}

impl Optimizer {
    /// Gives it to a step.
    pub fn take(&self) -> PyResult<Native> {
        let mut native = locked(&self.native);
        native.take().ok_or_else(|| {
            PyRuntimeError::new_err("the optimizer belongs to another TrainStep; make one for each step")
        })
    }
}

#[pymethods]
impl Optimizer {
    #[new]
    #[pyo3(signature = (rule_name, lr, *, options=None, weight_decay=0.0, decoupled=None, groups=None, clip_norm=None, clip_value=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        rule_name: &str,
        lr: f64,
        options: Option<Options>,
        weight_decay: f64,
        decoupled: Option<bool>,
        groups: Option<Vec<Member>>,
        clip_norm: Option<f64>,
        clip_value: Option<f64>,
    ) -> PyResult<Optimizer> {
        let options = options.unwrap_or_default();
        let mut native = Native::new(rule(rule_name, &options)?, lr).weight_decay(weight_decay);
        if let Some(decoupled) = decoupled {
            native = native.decoupled(decoupled);
        }
        for (names, lr, weight_decay, own) in groups.unwrap_or_default() {
            let mut group = Group::names(&names.iter().map(String::as_str).collect::<Vec<_>>());
            group = lr.into_iter().fold(group, Group::lr);
            group = weight_decay.into_iter().fold(group, Group::weight_decay);
            if let Some(own) = own {
                let all: Options = options.clone().into_iter().chain(own).collect();
                group = group.rule(rule(rule_name, &all)?);
            }
            native = native.group(group);
        }
        native = clip_norm.into_iter().fold(native, Native::clip_norm);
        native = clip_value.into_iter().fold(native, Native::clip_value);
        Ok(Optimizer { native: Mutex::new(Some(native)) })
    }

    fn __repr__(&self) -> String {
        match &*locked(&self.native) {
            Some(native) => format!("Optimizer({:?}, lr={})", native.rule(), native.lr()),
            None => "Optimizer(of a TrainStep)".to_string(),
        }
    }
}
