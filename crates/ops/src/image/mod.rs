//! Resizing of images and reading them at given places.
//!
//! An image has its sizes in the last axes. [`Resample`] makes each element from the input elements near it, axis by axis,
//! with weights that depend on nothing but sizes. [`GridSample`] reads at places that are given by numbers.

#[cfg(feature = "cases")]
mod cases;
mod filter;
mod grid;
mod grid_cpu;
mod grid_cuda;
mod places;
mod resample;
mod resample_cpu;

pub use filter::{Filter, Scaling};
pub use grid::{GridSample, GridSampleGridBwd, GridSampleInputBwd};
pub use places::{GridMode, GridPadding, Sampling};
pub use resample::{Resample, ResampleBwd};
