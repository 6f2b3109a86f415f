//! Reading an image at the places of a grid, and the gradients by both.

use super::places::{GridMode, MOST_AXES, Sampling};
use super::{grid_cpu, grid_cuda};
use crate::layout::{Reshape, Slice};
use crate::pointwise::{Add, Mul};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats, mismatch};
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Reads images `x (N, C, sizes…)` of two or three axes at the places of `grid (N, out…, axes)`: a value `(N, C, out…)`.
/// The numbers of the grid are positions along the last axis, the one before it, and so on, from -1 to 1 across the image.
/// An element of the value is a chain of multiply-adds from +0 over the elements it reads, in row-major order; what is
/// beyond the image is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct GridSample {
    /// How the grid reads.
    pub sampling: Sampling,
}

/// The gradient of [`GridSample`] by its images, from the upstream gradient and the grid: each element is a chain of
/// multiply-adds from +0 over all places that read it, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct GridSampleInputBwd {
    /// How the grid reads.
    pub sampling: Sampling,
    /// Sizes of the images.
    pub sizes: Vec<usize>,
}

/// The gradient of [`GridSample`] by its grid, from the images, the grid and the upstream gradient. For each axis, the
/// differentiated value of each channel is multiplied by the upstream gradient, in a chain of multiply-adds from +0 over
/// the channels.
#[derive(Clone, Debug, PartialEq)]
pub struct GridSampleGridBwd {
    /// How the grid reads.
    pub sampling: Sampling,
}

/// The sizes of images and a grid.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) images: usize,
    pub(super) channels: usize,
    /// Sizes of an image.
    pub(super) image: Vec<usize>,
    /// Places of a grid.
    pub(super) places: usize,
}

impl Sizes {
    fn new(image: &[usize], values: &Shape) -> Sizes {
        let d = values.dims();
        Sizes { images: d[0], channels: d[1], image: image.to_vec(), places: d[2..].iter().product() }
    }

    pub(super) fn image_len(&self) -> usize {
        self.image.iter().product()
    }
}

/// Places and their elements are counted in 32 bits.
const MOST_ELEMENTS: usize = u32::MAX as usize - 1;

impl Sampling {
    /// The shape of the values that a grid reads from images of these sizes, checked.
    fn values(
        &self,
        op: &'static str,
        [images, channels]: [usize; 2],
        image: &[usize],
        grid: &Shape,
    ) -> Result<Shape> {
        let axes = self.orders.len();
        if !(2..=MOST_AXES).contains(&axes) || (self.mode == GridMode::Bicubic && axes != 2) {
            let why = format!("{axes} axes given, use 2 or 3, and 2 for bicubic");
            return Err(Error::argument(op, "orders", why));
        }
        if grid.rank() != axes + 2 || grid.dims()[axes + 1] != axes {
            let want = "one axis for the images, those of the result, and a last one with a number for each axis of an image";
            return Err(Error::new(op, ErrorKind::Rank { want, got: *grid }));
        }
        if grid.dims()[0] != images {
            let why = format!("{} grids are given for {images} images", grid.dims()[0]);
            return Err(Error::argument(op, "grid", why));
        }
        if image.len() != axes || image.contains(&0) {
            let why = format!("sizes {image:?} must be {axes} numbers of at least 1");
            return Err(Error::argument(op, "sizes", why));
        }
        let shape = Shape::new(&[&[images, channels], &grid.dims()[1..=axes]].concat())?;
        let elements = grid.dims()[1..=axes].iter().try_fold(images, |all, &n| all.checked_mul(n));
        let elements = elements.and_then(|n| n.checked_mul(self.taps()));
        let cells = image.iter().try_fold(images.max(1), |all, &n| all.checked_mul(n));
        if elements.is_none_or(|n| n > MOST_ELEMENTS) || cells.is_none_or(|n| n > MOST_ELEMENTS) {
            let why =
                format!("images of {image:?} and a grid of {grid} have more elements than 32 bits can count");
            return Err(Error::argument(op, "grid", why));
        }
        Ok(shape)
    }

    /// The elements of a place and their weights, in row-major order, from the definition. `more` is an axis that is
    /// differentiated once more.
    fn elements<T: Scalar>(&self, at: &[T], image: &[usize], more: Option<usize>) -> Vec<(usize, T)> {
        let axes = image.len();
        let mut all = vec![(Some(0), T::c(1.0))];
        for a in 0..axes {
            let order = self.orders[a] + usize::from(more == Some(a));
            let (c, slope) = self.place(at[axes - 1 - a], T::c(image[a] as f64));
            let (base, t) = self.base(c);
            let weights = self.weights(order, t, slope);
            let base = Sampling::first(base.to_f64());
            let mut next = Vec::new();
            for (offset, w) in all {
                for (k, &v) in weights[..self.width()].iter().enumerate() {
                    let i = self.element(base + k as i64, image[a]);
                    let offset = offset.zip(i).map(|(o, i): (usize, usize)| o * image[a] + i);
                    next.push((offset, if a == 0 { v } else { w * v }));
                }
            }
            all = next;
        }
        all.into_iter().filter_map(|(offset, w)| Some((offset?, w))).collect()
    }
}

/// A shape's channels and the sizes after them.
fn image_of(op: &'static str, x: &Shape) -> Result<([usize; 2], Vec<usize>)> {
    match x.dims() {
        [n, c, sizes @ ..] => Ok(([*n, *c], sizes.to_vec())),
        _ => Err(Error::new(op, ErrorKind::Rank { want: "images, channels and sizes", got: *x })),
    }
}

/// Multiplies `v (N, C, out…)` by number `j` of each place of `u (N, out…, axes)`.
fn times_part(r: &mut dyn Recorder, v: Val, u: Val, j: usize) -> Result<Val> {
    let shape = r.meta(u).shape;
    let axis = shape.rank() - 1;
    let part = r.record(Slice { axis, start: j, len: 1, step: 1 }.into(), &[u])?;
    let d = shape.dims();
    let shape = Shape::new(&[&[d[0], 1], &d[1..axis]].concat())?;
    let part = r.record(Reshape { shape }.into(), &[part])?;
    r.record(Mul {}.into(), &[v, part])
}

fn plus(r: &mut dyn Recorder, sum: Option<Val>, v: Val) -> Result<Option<Val>> {
    Ok(Some(match sum {
        Some(sum) => r.record(Add {}.into(), &[sum, v])?,
        None => v,
    }))
}

impl Op for GridSample {
    const NAME: &'static str = "grid_sample";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x, grid] = floats(Self::NAME, ins)?;
        let (counts, image) = image_of(Self::NAME, &x)?;
        Ok(Meta::f32(self.sampling.values(Self::NAME, counts, &image, &grid)?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        match self.shape(ins) {
            Ok(values) if !device.is_cuda() => {
                let sizes = Sizes::new(&ins[0].shape.dims()[2..], &values.shape);
                grid_cpu::words_to_sample(&self.sampling, &sizes)
            }
            _ => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let sizes = Sizes::new(&run.metas[0].shape.dims()[2..], &run.shape);
        grid_cpu::sample(&self.sampling, &sizes, run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let sizes = Sizes::new(&run.metas[0].shape.dims()[2..], &run.shape);
        grid_cuda::sample(&self.sampling, &sizes, run)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![grid_cuda::module(&self.sampling)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let sizes = r.meta(io.ins[0]).shape.dims()[2..].to_vec();
        let by_image = GridSampleInputBwd { sampling: self.sampling.clone(), sizes };
        let dx = r.record(by_image.into(), &[dy, io.ins[1]])?;
        let by_grid = GridSampleGridBwd { sampling: self.sampling.clone() };
        let flat = self.sampling.mode == GridMode::Nearest;
        let dgrid = (!flat).then(|| r.record(by_grid.into(), &[io.ins[0], io.ins[1], dy])).transpose()?;
        Ok(vec![Some(dx), dgrid])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, grid) = (ins[0].num()?, ins[1].num()?);
        let shape = self.shape(&[ins[0].meta(), ins[1].meta()])?.shape;
        let s = Sizes::new(&x.shape().dims()[2..], &shape);
        let axes = s.image.len();
        let mut out = Tensor::full(shape, T::c(0.0));
        for at in 0..s.images * s.places {
            let (n, p) = (at / s.places, at % s.places);
            let elements = self.sampling.elements(&grid.data()[at * axes..][..axes], &s.image, None);
            for c in 0..s.channels {
                let plane = (n * s.channels + c) * s.image_len();
                let sum = elements.iter().fold(T::c(0.0), |sum, (i, w)| sum + *w * x.data()[plane + i]);
                out.data_mut()[(n * s.channels + c) * s.places + p] = sum;
            }
        }
        Ok(out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.sampling.attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<GridSample> {
        Ok(GridSample { sampling: Sampling::from_attrs(attrs, &[])? })
    }
}

impl Op for GridSampleInputBwd {
    const NAME: &'static str = "grid_sample_input_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [dy, grid] = floats(Self::NAME, ins)?;
        let (counts, _) = image_of(Self::NAME, &dy)?;
        let values = self.sampling.values(Self::NAME, counts, &self.sizes, &grid)?;
        if values != dy {
            return Err(mismatch(Self::NAME, "the gradient must have an element for each place", values, dy));
        }
        Ok(Meta::f32(Shape::new(&[&counts, &self.sizes[..]].concat())?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let sizes = Sizes::new(&self.sizes, &ins[0].shape);
        match device.is_cuda() {
            true => grid_cuda::workspace(&self.sampling, &sizes),
            false => grid_cpu::words_of_places(&self.sampling, &sizes),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let sizes = Sizes::new(&self.sizes, &run.metas[0].shape);
        grid_cpu::input_bwd(&self.sampling, &sizes, run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let sizes = Sizes::new(&self.sizes, &run.metas[0].shape);
        grid_cuda::input_bwd(&self.sampling, &sizes, run)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![grid_cuda::module(&self.sampling), crate::index::sort::module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let [dy, grid] = [io.ins[0], io.ins[1]];
        let by_dy = r.record(GridSample { sampling: self.sampling.clone() }.into(), &[v, grid])?;
        let op = GridSampleGridBwd { sampling: self.sampling.clone() };
        let flat = self.sampling.mode == GridMode::Nearest;
        let by_grid = (!flat).then(|| r.record(op.into(), &[v, grid, dy])).transpose()?;
        Ok(vec![Some(by_dy), by_grid])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (dy, grid) = (ins[0].num()?, ins[1].num()?);
        let shape = self.shape(&[ins[0].meta(), ins[1].meta()])?.shape;
        let s = Sizes::new(&self.sizes, &dy.shape());
        let axes = s.image.len();
        let mut out = Tensor::full(shape, T::c(0.0));
        for at in 0..s.images * s.places {
            let (n, p) = (at / s.places, at % s.places);
            for (i, w) in self.sampling.elements(&grid.data()[at * axes..][..axes], &s.image, None) {
                for c in 0..s.channels {
                    let to = &mut out.data_mut()[(n * s.channels + c) * s.image_len() + i];
                    *to = *to + w * dy.data()[(n * s.channels + c) * s.places + p];
                }
            }
        }
        Ok(out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut all = self.sampling.attrs();
        all.push(("sizes", Attr::List(self.sizes.clone())));
        all
    }

    fn from_attrs(attrs: &Attrs) -> Result<GridSampleInputBwd> {
        let sampling = Sampling::from_attrs(attrs, &["sizes"])?;
        Ok(GridSampleInputBwd { sampling, sizes: attrs.list("sizes")? })
    }
}

impl Op for GridSampleGridBwd {
    const NAME: &'static str = "grid_sample_grid_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x, grid, dy] = floats(Self::NAME, ins)?;
        let (counts, image) = image_of(Self::NAME, &x)?;
        let values = self.sampling.values(Self::NAME, counts, &image, &grid)?;
        if values != dy {
            return Err(mismatch(Self::NAME, "the gradient must have an element for each place", values, dy));
        }
        Ok(Meta::f32(grid))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let sizes = Sizes::new(&ins[0].shape.dims()[2..], &ins[2].shape);
        if device.is_cuda() { 0 } else { sizes.words_in_lanes() }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let sizes = Sizes::new(&run.metas[0].shape.dims()[2..], &run.metas[2].shape);
        grid_cpu::grid_bwd(&self.sampling, &sizes, run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let sizes = Sizes::new(&run.metas[0].shape.dims()[2..], &run.metas[2].shape);
        grid_cuda::grid_bwd(&self.sampling, &sizes, run)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![grid_cuda::module(&self.sampling)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, u: Val) -> Result<Vec<Option<Val>>> {
        let [x, grid, dy] = [io.ins[0], io.ins[1], io.ins[2]];
        let sizes = r.meta(x).shape.dims()[2..].to_vec();
        let (mut by_x, mut by_grid, mut by_dy) = (None, None, None);
        for a in 0..sizes.len() {
            let Some(sampling) = self.sampling.derived(a) else { continue };
            let j = sizes.len() - 1 - a;
            let slope = r.record(GridSample { sampling: sampling.clone() }.into(), &[x, grid])?;
            let slope = times_part(r, slope, u, j)?;
            by_dy = plus(r, by_dy, slope)?;
            let seen = times_part(r, dy, u, j)?;
            let op = GridSampleInputBwd { sampling: sampling.clone(), sizes: sizes.clone() };
            let dx = r.record(op.into(), &[seen, grid])?;
            by_x = plus(r, by_x, dx)?;
            let bend = r.record(GridSampleGridBwd { sampling }.into(), &[x, grid, seen])?;
            by_grid = plus(r, by_grid, bend)?;
        }
        Ok(vec![by_x, by_grid, by_dy])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, grid, dy) = (ins[0].num()?, ins[1].num()?, ins[2].num()?);
        let s = Sizes::new(&x.shape().dims()[2..], &dy.shape());
        let axes = s.image.len();
        let mut out = Tensor::full(grid.shape(), T::c(0.0));
        for at in 0..s.images * s.places {
            let (n, p) = (at / s.places, at % s.places);
            for a in 0..axes {
                let elements = self.sampling.elements(&grid.data()[at * axes..][..axes], &s.image, Some(a));
                let mut sum = T::c(0.0);
                for c in 0..s.channels {
                    let plane = (n * s.channels + c) * s.image_len();
                    let slope = elements.iter().fold(T::c(0.0), |sum, (i, w)| sum + *w * x.data()[plane + i]);
                    sum = sum + slope * dy.data()[(n * s.channels + c) * s.places + p];
                }
                out.data_mut()[at * axes + axes - 1 - a] = sum;
            }
        }
        Ok(out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.sampling.attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<GridSampleGridBwd> {
        Ok(GridSampleGridBwd { sampling: Sampling::from_attrs(attrs, &[])? })
    }
}
