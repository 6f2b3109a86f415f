//! Histograms.

use super::Var;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use dittograd_ops::index::IndexAdd;
use dittograd_ops::pointwise::expression::Expr;

/// # Histograms
///
/// Counts of elements in bins, without gradients. Counts are exact up to 2^24.
impl<'s> Var<'s> {
    /// How many elements are in each of `bins` bins of equal width from `min` to `max`. Others and NaN are not counted, and the last
    /// bin includes `max`. If both ends are 0, they are the smallest and the largest element, which must be finite; an eager session
    /// waits for the device to see that.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[3], vec![1.0f32, 2.0, 1.0])?)?;
    /// assert_eq!(x.histc(4, 0.0, 3.0)?.to_string(), "[0. 2. 1. 0.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn histc(self, bins: usize, min: f64, max: f64) -> Result<Var<'s>> {
        const NAME: &str = "histc";
        check_bins(NAME, bins, min, max)?;
        let x = self.detach()?.flatten()?;
        let (low, high) = match (min, max) {
            (0.0, 0.0) if x.shape()?.numel() == 0 => (self.session().zeros(&[])?, self.session().ones(&[])?),
            (0.0, 0.0) if self.session().is_trace() => x.aminmax(&[0], false)?,
            (0.0, 0.0) => {
                let (low, high) = x.aminmax(&[0], false)?;
                check_bins(NAME, bins, low.item()?.into(), high.item()?.into())?;
                (low, high)
            }
            _ => (self.session().full(&[], min)?, self.session().full(&[], max)?),
        };
        // Ends that are equal are moved apart by one each.
        let apart = low.eq(high)?;
        let (low, high) = (low.sub(apart)?, high.add(apart)?);
        let last = bins as f64 - 1.0;
        let bin = self.session().pointwise(&[x, low, high], |v| {
            let (x, low, high) = (v[0], v[1], v[2]);
            let none = Expr::c(bins as f64);
            let at = ((x - low) * none / (high - low)).floor().min(Expr::c(last));
            // A comparison with NaN is false.
            Expr::where_le(low, x, Expr::where_le(x, high, at, none), none)
        })?;
        bin.to_index_below(bins as u32 + 1)?.counted(bins, None)
    }

    /// Sums of `weights`, or ones, in `bins` bins. Indices that are not below are dropped.
    #[track_caller]
    fn counted(self, bins: usize, weights: Option<Var<'s>>) -> Result<Var<'s>> {
        let ones = match weights {
            Some(weights) => weights,
            None => self.session().ones(&[self.shape()?.numel()])?,
        };
        self.session().apply(IndexAdd { axis: 0, size: bins, checked: false }, &[ones, self])
    }

    /// The edges of `bins` bins of equal width in a range, by default that of the elements, for [`Var::histogram`]. The range of no
    /// elements is 0 to 1, and an empty range is made one wide. Without a range it waits for the device; not in a traced program.
    #[doc(alias = "histogram_bin_edges")]
    #[track_caller]
    pub fn bin_edges(self, bins: usize, range: Option<(f64, f64)>) -> Result<Var<'s>> {
        const NAME: &str = "bin_edges";
        let (low, high) = match range {
            Some(range) => range,
            None if self.shape()?.numel() == 0 => (0.0, 1.0),
            None => {
                self.session().known_size(NAME, "give a range")?;
                let (low, high) = self.detach()?.flatten()?.aminmax(&[0], false)?;
                (low.item()?.into(), high.item()?.into())
            }
        };
        check_bins(NAME, bins, low, high)?;
        let wider = if low == high { 0.5 } else { 0.0 };
        self.session().linspace(low - wider, high + wider, bins + 1)
    }

    /// The histogram of the elements between neighbouring `edges`, a sorted vector: how many there are, or the sum of their `weights`.
    /// The last bin includes its upper edge; elements outside and NaN are not counted. With `density` it is divided by the
    /// total and by the widths of the bins, so that its integral is 1. [`Var::bin_edges`] makes edges of bins of equal width.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[3], vec![1.0f32, 2.0, 5.0])?)?;
    /// let counts = x.histogram(x.bin_edges(2, None)?, None, false)?; // edges 1, 3, 5
    /// assert_eq!(counts.to_string(), "[2. 1.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn histogram(self, edges: Var<'s>, weights: Option<Var<'s>>, density: bool) -> Result<Var<'s>> {
        let weights = self.weight_each("histogram", self.shape()?, weights)?;
        self.flatten()?.unsqueeze(1)?.bins_counted("histogram", &[edges], weights, density)
    }

    /// The histogram of points, whose coordinates are the last axis, in a grid: `edges` has the edges along each coordinate, as in
    /// [`Var::histogram`], and the result has an axis for each. `weights` has the other axes of the value.
    #[track_caller]
    pub fn histogramdd(self, edges: &[Var<'s>], weights: Option<Var<'s>>, density: bool) -> Result<Var<'s>> {
        const NAME: &str = "histogramdd";
        let shape = self.shape()?;
        if shape.rank() == 0 || edges.is_empty() || shape.last() != edges.len() {
            let why = format!(
                "are {} vectors for points of shape {shape}; the last axis has one each",
                edges.len()
            );
            return Err(Error::argument(NAME, "edges", why));
        }
        let points = shape.without(shape.rank() - 1)?;
        let weights = self.weight_each(NAME, points, weights)?;
        self.reshape(&[points.numel(), edges.len()])?.bins_counted(NAME, edges, weights, density)
    }

    /// Weights of the given shape as a vector.
    #[track_caller]
    fn weight_each(self, op: &str, each: Shape, weights: Option<Var<'s>>) -> Result<Option<Var<'s>>> {
        let Some(weights) = weights else { return Ok(None) };
        if weights.shape()? != each {
            let why = "there must be a weight for each element, or each point";
            return Err(Error::new(
                op,
                ErrorKind::Shapes { why, left: weights.shape()?, right: self.shape()? },
            ));
        }
        weights.flatten().map(Some)
    }

    /// The histogram of the rows of a matrix, by the edges of each column.
    #[track_caller]
    fn bins_counted(
        self,
        op: &str,
        edges: &[Var<'s>],
        weights: Option<Var<'s>>,
        density: bool,
    ) -> Result<Var<'s>> {
        let x = self.detach()?;
        let sizes = edges.iter().map(|e| Ok(e.vector(op)?.saturating_sub(1))).collect::<Result<Vec<_>>>()?;
        let bins = sizes.iter().fold(1, |all: usize, &size| all.saturating_mul(size));
        check_bins(op, bins, 0.0, 0.0)?;
        // The bin of each row among those of the columns so far, or -1 outside.
        let mut bin = self.session().zeros(&[x.shape()?.dims()[0]])?;
        for (column, (&edges, &size)) in edges.iter().zip(&sizes).enumerate() {
            let x = x.select(1, column)?;
            // The number of edges not above an element; 0 is below all of them, and the last edge belongs to the last bin.
            let above = edges.searchsorted(x, true)?.to_float()?;
            bin = self.session().pointwise(&[bin, above, x, edges.narrow(0, size, 1)?], |v| {
                let (zero, outside, size) = (Expr::c(0.0), Expr::c(-1.0), Expr::c(size as f64));
                let here = Expr::where_eq(v[2], v[3], size, v[1]) - Expr::c(1.0);
                let there = Expr::where_gt(size, here, v[0] * size + here, outside);
                Expr::where_gt(zero, v[0], outside, Expr::where_gt(zero, here, outside, there))
            })?;
        }
        let place = self
            .session()
            .pointwise(&[bin], |v| Expr::where_le(Expr::c(0.0), v[0], v[0], Expr::c(bins as f64)))?;
        let counts = place.to_index_below(bins as u32 + 1)?.counted(bins, weights)?.reshape(&sizes)?;
        if !density {
            return Ok(counts);
        }
        let mut density = counts.div(counts.sum()?)?;
        for (axis, (&edges, &size)) in edges.iter().zip(&sizes).enumerate() {
            let mut dims = vec![1; sizes.len()];
            dims[axis] = size;
            density = density.div(edges.diff(1, 0)?.reshape(&dims)?)?;
        }
        Ok(density)
    }
}

#[track_caller]
fn check_bins(op: &str, bins: usize, min: f64, max: f64) -> Result<()> {
    if bins == 0 || bins > 1 << f32::MANTISSA_DIGITS {
        return Err(Error::argument(op, "bins", format!("are {bins}, use 1 to 2^24")));
    }
    if !(min.is_finite() && max.is_finite() && min <= max) {
        return Err(Error::argument(
            op,
            "max",
            format!("is {max}, and min is {min}; use a finite range from min up"),
        ));
    }
    Ok(())
}
