//! Programs as CUDA device functions, and the `#define` lines before a kernel's text: all that is generated of a kernel.

use crate::pointwise::expression::Pointwise;
use std::fmt::{Display, Write};

/// Where a device function has the program's constants from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constants {
    /// Their values stand in the text.
    Values,
    /// They are the last parameters, `k0…`, so that one text serves all values.
    Parameters,
}

impl Constants {
    /// Parameters of the constants, if they are that.
    fn parameters(self, program: &Pointwise) -> impl Iterator<Item = String> + use<> {
        let count = if self == Constants::Parameters { program.consts().len() } else { 0 };
        (0..count).map(|c| format!("float k{c}"))
    }

    /// Statements of the program, from `x0…` to `y0…`.
    fn body(self, program: &Pointwise) -> String {
        let values = if self == Constants::Values { program.cuda_constants() } else { String::new() };
        values + &program.cuda()
    }
}

/// A program with one result as `float name(float x0, …)`, the constants' values in the text.
pub(crate) fn device_function(name: &str, program: &Pointwise) -> String {
    scalar_function(name, program, Constants::Values)
}

/// A program with one result as `float name(float x0, …)`.
pub(crate) fn scalar_function(name: &str, program: &Pointwise, constants: Constants) -> String {
    let inputs = (0..program.inputs()).map(|i| format!("float x{i}"));
    let parameters: Vec<String> = inputs.chain(constants.parameters(program)).collect();
    format!(
        "{}__device__ __forceinline__ float {name}({}) {{\n{}return y0;\n}}\n",
        program.cuda_functions(),
        parameters.join(", "),
        constants.body(program)
    )
}

/// A program as `void name(const float (&x)[inputs], float (&y)[results])`. Arrays have at least one element; inputs
/// that the program does not read may be undefined.
pub fn array_function(name: &str, program: &Pointwise, constants: Constants) -> String {
    let arrays = [
        format!("const float (&x)[{}]", program.inputs().max(1)),
        format!("float (&y)[{}]", program.outputs().max(1)),
    ];
    let parameters: Vec<String> = arrays.into_iter().chain(constants.parameters(program)).collect();
    let mut t = program.cuda_functions();
    let _ = writeln!(t, "__device__ __forceinline__ void {name}({}) {{", parameters.join(", "));
    for i in (0..program.inputs()).filter(|&i| program.reads()[i]) {
        let _ = writeln!(t, "const float x{i} = x[{i}];");
    }
    t.push_str(&constants.body(program));
    for k in 0..program.outputs() {
        let _ = writeln!(t, "y[{k}] = y{k};");
    }
    t.push_str("}\n");
    t
}

/// The line `#define name value`.
pub fn define(name: &str, value: impl Display) -> String {
    format!("#define {name} {value}\n")
}

/// `F(item) F(item) …`, for a macro that is given the macro `F`.
pub(crate) fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().map(|item| format!("F({item}) ")).collect()
}
