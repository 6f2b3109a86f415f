//! Standardization: fitted on one part of the data, applied to all of it, and undone on predictions.

use super::Dataset;
use crate::error::{Error, Result};
use crate::numerics::environment;
use crate::reserve::collected;
use crate::tensor::{AnyTensor, Tensor};

/// Shift and scale per feature. Features are the entries of the last axis: the columns of `(N, F)`, the channels of
/// `(N, X, C)` and `(N, H, W, C)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    mean: Vec<f64>,
    deviation: Vec<f64>,
}

impl Scaling {
    /// The scaling of the inputs: [`Scaling::of_tensor`] of [`Dataset::x`].
    #[track_caller]
    pub fn of(data: &Dataset) -> Result<Scaling> {
        Scaling::of_tensor(data.x())
    }

    /// Mean and standard deviation (over N, not N - 1) of every feature, in f64, summed in row order. A constant
    /// feature gets deviation 1. Errors for indices, which have no scale, and for empty data.
    #[track_caller]
    pub fn of_tensor(data: &AnyTensor) -> Result<Scaling> {
        let _strict = environment::enter();
        let data = data.num()?;
        let (rows, width) = (data.shape().rows(), data.shape().last());
        if data.data().is_empty() {
            return Err(Error::argument("scaling", "data", format!("of shape {} is empty", data.shape())));
        }
        let mut mean = vec![0.0f64; width];
        for row in data.data().chunks_exact(width) {
            mean.iter_mut().zip(row).for_each(|(m, &v)| *m += f64::from(v));
        }
        mean.iter_mut().for_each(|m| *m /= rows as f64);
        let mut deviation = vec![0.0f64; width];
        for row in data.data().chunks_exact(width) {
            for ((d, m), &v) in deviation.iter_mut().zip(&mean).zip(row) {
                let off = f64::from(v) - m;
                *d += off * off;
            }
        }
        for d in &mut deviation {
            *d = (*d / rows as f64).sqrt();
            if *d == 0.0 {
                *d = 1.0;
            }
        }
        Ok(Scaling { mean, deviation })
    }

    /// A scaling with the given means and deviations, for example saved ones. Errors unless there are as many of each,
    /// at least one, all finite, and the deviations are above 0.
    #[track_caller]
    pub fn from_parts(mean: Vec<f64>, deviation: Vec<f64>) -> Result<Scaling> {
        let _strict = environment::enter();
        let fits = !mean.is_empty() && mean.len() == deviation.len();
        if !fits
            || !mean.iter().chain(&deviation).all(|v| v.is_finite())
            || deviation.iter().any(|d| *d <= 0.0)
        {
            let why = "needs as many means as deviations, all finite, the deviations above 0";
            return Err(Error::argument("scaling", "parts", why));
        }
        Ok(Scaling { mean, deviation })
    }

    /// The mean of every feature.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The standard deviation of every feature, above 0.
    pub fn deviation(&self) -> &[f64] {
        &self.deviation
    }

    /// The data set with its inputs through [`Scaling::apply_to`].
    #[track_caller]
    pub fn apply(&self, data: &Dataset) -> Result<Dataset> {
        data.with(self.apply_to(data.x().num()?)?, data.y().clone())
    }

    /// `(x - mean) / deviation` for every feature, in f64 and rounded once. Errors if the number of features differs.
    #[track_caller]
    pub fn apply_to(&self, data: &Tensor<f32>) -> Result<Tensor<f32>> {
        self.each(data, |v, mean, deviation| (v - mean) / deviation)
    }

    /// `x · deviation + mean` for every feature, in f64 and rounded once: undoes [`Scaling::apply_to`] up to rounding.
    /// Errors if the number of features differs.
    #[track_caller]
    pub fn undo(&self, data: &Tensor<f32>) -> Result<Tensor<f32>> {
        self.each(data, |v, mean, deviation| v * deviation + mean)
    }

    #[track_caller]
    fn each(&self, data: &Tensor<f32>, f: impl Fn(f64, f64, f64) -> f64) -> Result<Tensor<f32>> {
        let _strict = environment::enter();
        let width = data.shape().last();
        if width != self.mean.len() {
            let why = format!("{width} columns, the scaling was made for {}", self.mean.len());
            return Err(Error::argument("scaling", "features", why));
        }
        let one =
            |(i, &v): (usize, &f32)| f(f64::from(v), self.mean[i % width], self.deviation[i % width]) as f32;
        Tensor::with_shape(data.shape(), collected("scaling", data.data().iter().enumerate().map(one))?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::spirals;
    use super::*;

    fn labelled(dims: &[usize], x: &[f32]) -> Dataset {
        let y = Tensor::new(&dims[..1], vec![0u32; dims[0]]).unwrap();
        Dataset::new("d", Tensor::new(dims, x.to_vec()).unwrap(), y, Some(1)).unwrap()
    }

    #[test]
    fn scaling_centres_and_scales_what_it_was_made_from() {
        let data = labelled(&[4, 2], &[1.0, 7.0, 3.0, 7.0, 5.0, 7.0, 7.0, 7.0]);
        let scaling = Scaling::of(&data).unwrap();
        let scaled = scaling.apply(&data).unwrap();
        let x = scaled.x().num().unwrap();
        let column: Vec<f64> = x.data().iter().step_by(2).map(|&v| f64::from(v)).collect();
        assert!(column.iter().sum::<f64>().abs() < 1e-6);
        assert!((column.iter().map(|v| v * v).sum::<f64>() / 4.0 - 1.0).abs() < 1e-6);
        assert!(x.data().iter().skip(1).step_by(2).all(|&v| v == 0.0), "a constant feature becomes 0");
        let back = scaling.undo(x).unwrap();
        assert!(back.data().iter().zip(data.x().num().unwrap().data()).all(|(a, b)| (a - b).abs() < 1e-6));
        assert!(scaling.apply(&spirals(1, 8, 2).unwrap()).is_ok());
        assert!(scaling.apply(&labelled(&[1, 1], &[1.0])).is_err());
        let again = Scaling::from_parts(scaling.mean().to_vec(), scaling.deviation().to_vec()).unwrap();
        assert_eq!(again, scaling);
    }

    #[test]
    fn channels_of_fields_are_scaled_each() {
        let data = labelled(&[2, 2, 2], &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0]);
        let scaling = Scaling::of(&data).unwrap();
        assert_eq!(scaling.mean(), [2.5, 25.0]);
        let scaled = scaling.apply(&data).unwrap();
        let pairs = scaled.x().num().unwrap().data().chunks(2).all(|p| (p[0] - p[1]).abs() < 1e-6);
        assert!(pairs && scaled.x().shape() == data.x().shape());
    }

    #[test]
    fn scaling_survives_the_largest_floats() {
        let data = labelled(&[2, 1], &[f32::MAX, f32::MIN]);
        let scaled = Scaling::of(&data).unwrap().apply(&data).unwrap();
        assert_eq!(scaled.x().num().unwrap().data(), [1.0, -1.0]);
    }

    #[test]
    fn what_has_no_scale_is_refused() {
        assert!(Scaling::of_tensor(&Tensor::new(&[2], vec![1u32, 2]).unwrap().into()).is_err());
        assert!(Scaling::of_tensor(&Tensor::new(&[0, 2], Vec::<f32>::new()).unwrap().into()).is_err());
        for (mean, deviation) in [(vec![], vec![]), (vec![0.0], vec![0.0]), (vec![f64::NAN], vec![1.0])] {
            assert!(Scaling::from_parts(mean, deviation).is_err());
        }
    }
}
