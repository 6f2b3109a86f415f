//! Embedding tables.

use super::{Module, positive};
use crate::error::Result;
use crate::params::{Param, Params};
use crate::session::Var;

/// A vector per index.
#[derive(Clone, Debug, Module)]
pub struct Embedding {
    weight: Param,
}

impl Embedding {
    /// The parameter `name.weight (count, size)`: normal draws with standard deviation `std`; PyTorch's default is 1.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, count: usize, size: usize, std: f64) -> Result<Embedding> {
        positive("embedding", "sizes", &[count, size])?;
        Ok(Embedding { weight: params.normal(&format!("{name}.weight"), &[count, size], 0.0, std)? })
    }

    /// The table.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The vectors for indices of any shape: `(…)` to `(…, size)`. An index out of range is an error.
    #[track_caller]
    pub fn forward<'s>(&self, index: Var<'s>) -> Result<Var<'s>> {
        index.session().param(&self.weight)?.embedding(index)
    }
}
