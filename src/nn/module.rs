//! What a model is made of: its modes and its parameters.

use crate::error::Result;
use crate::ops::ConvWindow;
use crate::params::Param;
use crate::session::Var;
pub use dittograd_derive::Module;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Whether a model trains. A layer of your own that differs in training has a field of this type: [`Module::eval`]
/// changes it wherever it is in a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, and batch norm uses the statistics of the batch.
    #[default]
    Train,
    /// Nothing is random, and batch norm uses its running statistics.
    Eval,
}

/// A model or a part of one: it has a mode and parameters. `#[derive(Module)]` implements it field by field.
///
/// A field is a layer, another struct with the derive, a [`Param`], a [`Mode`], a plain value (a number, a `bool`, a
/// `String`, a [`ConvWindow`]), an `Arc<dyn Forward>`, or any of these in `Option`, `Vec`, `Box`, `Arc`, an array or a
/// tuple. A field of another type is marked `#[module(skip)]`: it is cloned as it is. Enums can derive it too.
///
/// How a model computes is its own method, with any inputs; [`Forward`] is for those with one.
///
/// ```
/// use dittograd::nn::{BatchNorm, Conv2d, Dropout};
/// use dittograd::prelude::*;
///
/// #[derive(Clone, Debug, Module)]
/// struct Stage {
///     conv: Conv2d,
///     norm: Option<BatchNorm>,
///     dropout: Dropout,
/// }
///
/// #[derive(Clone, Debug, Module)]
/// struct Net {
///     stages: Vec<Stage>,
///     head: Linear,
///     classes: usize,
/// }
///
/// # fn main() -> Result<()> {
/// let mut params = Params::new(&Device::cpu()?, 7);
/// let mut stage = |name: &str, norm: bool| -> Result<Stage> {
///     let params = &mut params.scope(name);
///     Ok(Stage {
///         conv: Conv2d::new(params, "conv", 4, 4, [3, 3], ConvWindow::plain(2)?)?,
///         norm: norm.then(|| BatchNorm::new(params, "norm", 4)).transpose()?,
///         dropout: Dropout::new(0.1)?,
///     })
/// };
/// let stages = vec![stage("first", false)?, stage("second", true)?];
/// let net = Net { stages, head: Linear::new(&mut params, "head", 4, 10)?, classes: 10 };
///
/// let eval = net.eval(); // the same parameters, without dropout
/// assert_eq!(eval.parameters().len(), params.len());
/// let (path, weight) = &net.named_parameters()[2];
/// assert_eq!((path.as_str(), weight.name()), ("stages.1.conv.weight", "second.conv.weight"));
/// net.stages[0].parameters().iter().for_each(|p| p.set_trainable(false)); // freezes a part
/// # assert_eq!(net.classes, 10);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "`Module` is not implemented for this type",
    note = "derive it: `#[derive(Module)]` on `{Self}`; or mark the field with `#[module(skip)]`, to clone it as it is"
)]
pub trait Module {
    /// Visits the parts with parameters, in order. What the derive implements.
    fn visit(&self, visitor: &mut Visitor);

    /// The model in a mode, with the same parameters. What the derive implements.
    fn in_mode(&self, mode: Mode) -> Self
    where
        Self: Sized;

    /// The model in evaluation mode, with the same parameters: nothing is random, and norms use their running
    /// statistics.
    fn eval(&self) -> Self
    where
        Self: Sized,
    {
        self.in_mode(Mode::Eval)
    }

    /// The model in training mode, with the same parameters, as it was made.
    fn train(&self) -> Self
    where
        Self: Sized,
    {
        self.in_mode(Mode::Train)
    }

    /// The parameters in the order of fields, each once. Those that are not trained, such as running statistics, are
    /// among them.
    fn parameters(&self) -> Vec<Param> {
        self.named_parameters().into_iter().map(|(_, param)| param).collect()
    }

    /// The parameters with their paths through the fields, such as `blocks.0.norm.weight`; one that is in several places
    /// has the first path.
    ///
    /// A path says where in the struct a parameter is, as in PyTorch. Files and [`Params`](crate::params::Params) know it
    /// by its own name, [`Param::name`], which was given when it was made. The two agree where fields are called as
    /// the scopes and layers they were made with. Names of private fields of this library's models may change.
    fn named_parameters(&self) -> Vec<(String, Param)> {
        let mut visitor = Visitor::default();
        self.visit(&mut visitor);
        visitor.found
    }
}

/// Collects the parameters of a model on a walk through its fields: see [`Module::visit`].
#[derive(Debug, Default)]
pub struct Visitor {
    path: String,
    found: Vec<(String, Param)>,
    seen: HashSet<u64>,
}

impl Visitor {
    /// Visits a part that is called `name` where it is.
    pub fn field<M: Module>(&mut self, name: &str, part: &M) {
        let outer = self.path.len();
        if outer > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        part.visit(self);
        self.path.truncate(outer);
    }
}

impl Module for Param {
    fn visit(&self, visitor: &mut Visitor) {
        if visitor.seen.insert(self.id()) {
            visitor.found.push((visitor.path.clone(), self.clone()));
        }
    }

    fn in_mode(&self, _: Mode) -> Param {
        self.clone()
    }
}

impl Module for Mode {
    fn visit(&self, _: &mut Visitor) {}

    fn in_mode(&self, mode: Mode) -> Mode {
        mode
    }
}

/// Values that are neither parameters nor different in training.
macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl Module for $ty {
            fn visit(&self, _: &mut Visitor) {}

            fn in_mode(&self, _: Mode) -> $ty {
                self.clone()
            }
        }
    )*};
}

plain! {
    bool, char, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64, String, &'static str, ConvWindow
}

impl<T: ?Sized> Module for PhantomData<T> {
    fn visit(&self, _: &mut Visitor) {}

    fn in_mode(&self, _: Mode) -> PhantomData<T> {
        PhantomData
    }
}

/// A list: its parts are called `0`, `1`, ….
fn visit_all(parts: &[impl Module], visitor: &mut Visitor) {
    parts.iter().enumerate().for_each(|(i, part)| visitor.field(&i.to_string(), part));
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut Visitor) {
        visit_all(self, visitor);
    }

    fn in_mode(&self, mode: Mode) -> Vec<M> {
        self.iter().map(|part| part.in_mode(mode)).collect()
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visitor: &mut Visitor) {
        visit_all(self, visitor);
    }

    fn in_mode(&self, mode: Mode) -> [M; N] {
        self.each_ref().map(|part| part.in_mode(mode))
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor) {
        self.iter().for_each(|part| part.visit(visitor));
    }

    fn in_mode(&self, mode: Mode) -> Option<M> {
        self.as_ref().map(|part| part.in_mode(mode))
    }
}

macro_rules! pointers {
    ($($pointer:ident)*) => {$(
        impl<M: Module> Module for $pointer<M> {
            fn visit(&self, visitor: &mut Visitor) {
                M::visit(self, visitor);
            }

            fn in_mode(&self, mode: Mode) -> $pointer<M> {
                $pointer::new(M::in_mode(self, mode))
            }
        }

        impl Module for $pointer<dyn Forward> {
            fn visit(&self, visitor: &mut Visitor) {
                self.as_ref().visit(visitor);
            }

            fn in_mode(&self, mode: Mode) -> $pointer<dyn Forward> {
                self.as_ref().boxed_in_mode(mode).into()
            }
        }
    )*};
}

pointers! { Box Arc }

macro_rules! tuples {
    ($($(($part:ident $i:tt))*;)*) => {$(
        impl<$($part: Module),*> Module for ($($part,)*) {
            #[allow(unused_variables)]
            fn visit(&self, visitor: &mut Visitor) {
                $(visitor.field(stringify!($i), &self.$i);)*
            }

            #[allow(unused_variables, clippy::unused_unit)]
            fn in_mode(&self, mode: Mode) -> ($($part,)*) {
                ($(self.$i.in_mode(mode),)*)
            }
        }
    )*};
}

tuples! {
    ;
    (A 0);
    (A 0)(B 1);
    (A 0)(B 1)(C 2);
    (A 0)(B 1)(C 2)(D 3);
    (A 0)(B 1)(C 2)(D 3)(E 4);
    (A 0)(B 1)(C 2)(D 3)(E 4)(F 5);
}

/// A module with one input and one output: what [`Sequential`](super::Sequential) and [`Residual`](super::Residual) are made of. All layers here with such
/// a method implement it. In a struct, any of them is an `Arc<dyn Forward>`.
pub trait Forward: Module + BoxedInMode + fmt::Debug + Send + Sync {
    /// The output for an input.
    #[track_caller]
    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>>;
}

/// [`Module::in_mode`] of a `dyn Forward`.
#[doc(hidden)]
pub trait BoxedInMode {
    fn boxed_in_mode(&self, mode: Mode) -> Box<dyn Forward>;
}

impl<M: Forward + 'static> BoxedInMode for M {
    fn boxed_in_mode(&self, mode: Mode) -> Box<dyn Forward> {
        Box::new(self.in_mode(mode))
    }
}
