//! Interleaved spiral arms: a small problem that a linear model cannot solve.

use super::{DRAW, Dataset};
use crate::error::{Error, Result};
use crate::numerics::environment;
use crate::numerics::functions::{cos, sin};
use crate::numerics::rng::Stream;
use crate::reserve::reserved;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Angle of an arm from the centre to its end, in radians.
const TURN: f32 = 5.0;
/// Scale of the angle's noise, whose standard deviation is 0.58 of this.
const NOISE: f32 = 0.4;

/// `samples` points on `classes` noisy spiral arms around the centre; the class is the arm. Row `i` is on arm
/// `i % classes`. Both features are within `[-1, 1]`. The bits depend only on the arguments: sine and cosine are the
/// crate's own, and the noise is a sum of four uniforms.
#[track_caller]
pub fn spirals(seed: u64, samples: usize, classes: usize) -> Result<Dataset> {
    let _strict = environment::enter();
    if classes == 0 || samples < classes {
        let why = format!("{samples} points on {classes} arms: use at least one arm and one point on each");
        return Err(Error::argument("spirals", "samples", why));
    }
    let shape = Shape::new(&[samples, 2])?;
    let no_memory =
        |e: Error| Error::argument("spirals", "samples", format!("no memory for {samples} points: {e}"));
    let mut x = reserved("spirals", shape.numel()).map_err(no_memory)?;
    let mut y = reserved("spirals", samples).map_err(no_memory)?;
    let mut stream = Stream::new(seed, DRAW);
    for i in 0..samples {
        let class = i % classes;
        let along = stream.uniform();
        let noise = (stream.uniform() + stream.uniform()) + (stream.uniform() + stream.uniform()) - 2.0;
        let start = std::f32::consts::TAU * (class as f32 / classes as f32);
        let angle = start + TURN * along + NOISE * noise;
        let radius = 0.05 + 0.95 * along;
        x.extend([radius * sin(angle), radius * cos(angle)]);
        y.push(class as u32);
    }
    Dataset::new("spirals", Tensor::with_shape(shape, x)?, Tensor::new(&[samples], y)?, Some(classes))
}

#[cfg(test)]
mod tests {
    use super::super::make::hash;
    use super::*;

    #[test]
    fn points_are_in_range_and_balanced() {
        let data = spirals(7, 3000, 3).unwrap();
        assert!(data.x().num().unwrap().data().iter().all(|v| (-1.0..=1.0).contains(v)));
        let on = |c| data.y().idx().unwrap().data().iter().filter(|&&y| y == c).count();
        assert_eq!([on(0), on(1), on(2)], [1000; 3]);
        assert_ne!(data, spirals(8, 3000, 3).unwrap());
    }

    #[test]
    fn bits_are_the_committed_ones() {
        let data = spirals(7, 300, 3).unwrap();
        assert_eq!(hash(data.x()), "b1e712ec76c7d0af");
    }

    #[test]
    fn too_few_points_and_impossible_sizes_are_errors() {
        assert!(spirals(1, 2, 3).is_err());
        assert!(spirals(1, 5, 0).is_err());
        assert!(spirals(1, usize::MAX, 2).is_err());
        assert!(spirals(1, 100_000, 70_000).is_err(), "more classes than a data set may have");
    }
}
