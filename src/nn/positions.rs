//! Position encodings.

use super::{Module, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment;
use crate::params::{Param, Params};
use crate::session::Var;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Length and width of a value `(…, length, width)`.
#[track_caller]
fn sizes(x: Var<'_>) -> Result<[usize; 2]> {
    let shape = x.shape()?;
    match *shape.dims() {
        [.., length, width] => Ok([length, width]),
        _ => {
            let want = "at least 2: (…, length, width)";
            Err(Error::new("positions", ErrorKind::Rank { want, got: shape }))
        }
    }
}

/// Adds sinusoidal position encodings to sequences of any length. No parameters.
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct SinusoidalPositions;

impl SinusoidalPositions {
    /// The table `(length, width)`: at position `p` the channels `2 i` and `2 i + 1` are sine and cosine of
    /// `p / 10000^(2 i / width)`, computed in f64.
    #[track_caller]
    pub fn table(length: usize, width: usize) -> Result<Tensor<f64>> {
        let _strict = environment::enter();
        let wave = |i: usize| {
            let (place, channel) = (i / width, i % width);
            let turn = place as f64 * libm::pow(10000.0, -((channel - channel % 2) as f64) / width as f64);
            if channel % 2 == 0 { libm::sin(turn) } else { libm::cos(turn) }
        };
        Tensor::try_from_fn(Shape::new(&[length, width])?, wave)
    }

    /// Adds the encodings to sequences `(…, length, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let [length, width] = sizes(x)?;
        x.add(x.session().constant(&SinusoidalPositions::table(length, width)?)?)
    }
}

/// Adds a learned vector per position.
#[derive(Clone, Debug, Module)]
pub struct LearntPositions {
    weight: Param,
}

impl LearntPositions {
    /// The parameter `name.weight (most, width)` for sequences of at most `most` positions: normal draws with standard
    /// deviation `std`, usually 0.02.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        most: usize,
        width: usize,
        std: f64,
    ) -> Result<LearntPositions> {
        positive("positions", "sizes", &[most, width])?;
        Ok(LearntPositions { weight: params.normal(&format!("{name}.weight"), &[most, width], 0.0, std)? })
    }

    /// Adds the vectors of the positions to sequences `(…, length, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let ([length, _], most) = (sizes(x)?, self.weight.shape().dims()[0]);
        if length > most {
            let why = format!("{length} is longer than the {most} places that are learnt");
            return Err(Error::argument("positions", "length", why));
        }
        let all = x.session().param(&self.weight)?;
        x.add(if length < most { all.narrow(0, 0, length)? } else { all })
    }
}
