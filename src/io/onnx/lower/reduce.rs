//! Reductions: folds, stage by stage, and the places of extremes.

use super::super::proto::{Attribute, Type, Value};
use super::Lowering;
use super::nodes::{around, flag};
use super::op::Place;
use crate::error::Result;
use crate::ops::Attrs;
use crate::ops::reduce::fold::{self, Fold, Kind};
use crate::shape::Shape;

impl Lowering<'_> {
    /// What a fold over axes of values of shape `dims` gives; the axes stay as ones.
    pub(super) fn fold(
        &mut self,
        fold: &Fold,
        dims: &[usize],
        axes: &[usize],
        ins: &[Value],
    ) -> Result<Value> {
        let kept = fold::kept(&Shape::new(dims)?, axes);
        let (all, aux) = ins.split_at(fold.ins);
        let mut given: Vec<Value> = aux.iter().map(|v| self.reshape(v, kept.dims())).collect();
        for stage in &fold.stages {
            let mut element = self.program(&stage.load, &[all, &given[..]].concat())?;
            let element = self.expand(&element.swap_remove(0), dims);
            let op = match stage.kind {
                Kind::Sum => "ReduceSum",
                Kind::Product => "ReduceProd",
                Kind::Max => "ReduceMax",
                Kind::Min => "ReduceMin",
            };
            let folded = self.reduce(op, &element, axes);
            let mut result = self.program(&stage.post, &[&[folded], &given[..]].concat())?;
            let result = self.expand(&result.swap_remove(0), kept.dims());
            given.push(result);
        }
        Ok(given.swap_remove(given.len() - 1))
    }

    /// The place of the largest or smallest element along axes, by the name of the node.
    pub(super) fn arg_extremum(&mut self, name: &'static str, place: &Place<'_>, x: &Value) -> Result<Value> {
        let attrs = place.op.attrs().into_iter().map(|(n, a)| (n.to_string(), a));
        let (axes, out) = (Attrs(attrs.collect()).list("axes")?, place.out.shape);
        let Some((first, last)) = axes.first().zip(axes.last()) else {
            let zero = self.scalar(Type::I64, 0.0);
            return Ok(self.expand(&zero, out.dims()));
        };
        let three = self.reshape(x, &around(&x.dims, *first..last + 1));
        let attributes = vec![("axis", Attribute::Int(1)), flag("keepdims", false)];
        let place = self.node(name, &[&three], attributes, Type::I64, &[three.dims[0], three.dims[2]]);
        Ok(self.reshape(&place, out.dims()))
    }
}
