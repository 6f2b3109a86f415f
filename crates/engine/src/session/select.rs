//! Values whose sizes depend on elements, and counts.

use super::{Session, Var};
use dittograd_device::DType;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::shape::{Position, Shape};
use dittograd_numerics::tensor::{AnyTensor, Tensor};
use dittograd_ops::index::IndexAdd;
use std::cmp::Ordering;

/// The different elements of a value, see [`Var::unique`].
#[derive(Clone, Copy, Debug)]
pub struct Unique<'s> {
    /// The elements, each once.
    pub values: Var<'s>,
    /// For each element of the value, which of them it is, as an index; in the shape of the value. For each slice along an axis, if
    /// it is about slices.
    pub inverse: Var<'s>,
    /// How often each of them is in the value, as whole numbers of the type of indices.
    pub counts: Var<'s>,
}

impl Session {
    /// Errors in a trace, which cannot know sizes that depend on elements.
    #[track_caller]
    pub(super) fn known_size(&self, op: &str, instead: &str) -> Result<()> {
        if !self.is_trace() {
            return Ok(());
        }
        let what = format!(
            "this code is traced, and the size of the result depends on elements, which are not known yet; {instead}, or compute it \
             eagerly and pass it as an argument of the step or program"
        );
        Err(Error::unsupported(op, what))
    }
}

/// # Selections and counts
///
/// The sizes of most of these depend on elements: an eager session waits for the device to know them, and a traced program
/// refuses them. Counts with a given number of bins can be traced.
impl<'s> Var<'s> {
    /// The positions in row-major order of the elements that are not 0. NaN is one of them.
    #[track_caller]
    fn nonzero_positions(self, op: &str, instead: &str) -> Result<Vec<u32>> {
        self.session.known_size(op, instead)?;
        let n = self.shape()?.numel();
        if n >= u32::MAX as usize {
            return Err(Error::argument(
                op,
                "value",
                format!("has {n} elements, more than 32 bits can count"),
            ));
        }
        fn set<T>(data: &[T], is_set: impl Fn(&T) -> bool) -> Vec<u32> {
            (0..).zip(data).filter(|(_, x)| is_set(x)).map(|(i, _)| i).collect()
        }
        Ok(match self.to_any::<f32>()? {
            AnyTensor::Num(t) => set(t.data(), |x| *x != 0.0),
            AnyTensor::Idx(t) => set(t.data(), |i| *i != 0),
        })
    }

    /// The indices `(count, axes)` of the elements, numbers or indices, that are not 0, in row-major order. Waits for the device; not in a traced program.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[2, 2], vec![0.0f32, 3.0, 0.0, 4.0])?)?;
    /// assert_eq!(x.nonzero()?.indices()?.data(), [0, 1, 1, 1]);
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "argwhere")]
    #[track_caller]
    pub fn nonzero(self) -> Result<Var<'s>> {
        let at = self.nonzero_positions("nonzero", "use a mask of a fixed size (ne, where_)")?;
        let shape = self.shape()?;
        let indices = at.iter().flat_map(|&i| coordinates(i, shape.dims())).collect();
        self.session.labels(&Tensor::new(&[at.len(), shape.rank()], indices)?)
    }

    /// The first `size` rows of [`Var::nonzero`], with `fill` in the rows that are missing. Waits for the device; not in a traced
    /// program.
    #[track_caller]
    pub fn nonzero_static(self, size: usize, fill: u32) -> Result<Var<'s>> {
        let found = self.nonzero()?;
        let (have, axes) = (found.shape()?.dims()[0], found.shape()?.last());
        let Some(missing) = size.checked_sub(have) else { return found.narrow(0, 0, size) };
        let shape = Shape::new(&[missing, axes])?;
        found.concat(self.session.labels(&Tensor::try_from_fn(shape, |_| fill)?)?, 0)
    }

    /// These indices of a value of shape `dims` as one list, in row-major order, as indices of its axes. The inverse of
    /// [`Var::index`]'s. Waits for the device; not in a traced program.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let at = session.indices(&Tensor::new(&[2], vec![1, 5])?)?.unravel_index(&[2, 3])?;
    /// assert_eq!(at[0].indices()?.data(), [0, 1]);
    /// assert_eq!(at[1].indices()?.data(), [1, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn unravel_index(self, dims: &[usize]) -> Result<Vec<Var<'s>>> {
        const NAME: &str = "unravel_index";
        self.session.known_size(NAME, "its inverse needs no index on the host")?;
        self.meta()?.dtype.require(DType::U32, NAME, 0)?;
        let (flat, cells) = (self.indices()?, Shape::new(dims)?.numel());
        if let Some(&i) = flat.data().iter().find(|&&i| i as usize >= cells) {
            let why = format!("{i} is beyond the {cells} elements of {dims:?}");
            return Err(Error::argument(NAME, "value", why));
        }
        let all: Vec<Vec<u32>> = flat.data().iter().map(|&i| coordinates(i, dims)).collect();
        let axis = |a: usize| {
            let of_axis = all.iter().map(|at| at[a]).collect();
            self.session.labels(&Tensor::with_shape(flat.shape(), of_axis)?)
        };
        (0..dims.len()).map(axis).collect()
    }

    /// The elements where `mask` is not 0, in row-major order, as a vector. Value and mask broadcast. Waits for the device; not in a
    /// traced program.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 4.0, 1.0)?;
    /// let mask = session.input(&Tensor::new(&[4], vec![0.0f32, 1.0, 0.0, 1.0])?)?;
    /// assert_eq!(x.masked_select(mask)?.to_string(), "[1. 3.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn masked_select(self, mask: Var<'s>) -> Result<Var<'s>> {
        const NAME: &str = "masked_select";
        let common = self.shape()?.broadcast(&mask.shape()?);
        let common = common.map_err(|e| Error::new(NAME, e.kind().clone()))?;
        let (x, mask) = (self.expand(common.dims())?, mask.expand(common.dims())?);
        let at = mask.nonzero_positions(NAME, "use where_ or masked_fill, which keep the size")?;
        let at = self.session.labels(&Tensor::new(&[at.len()], at)?)?;
        x.take(at)
    }

    /// The different elements in increasing order, which of them each element is, and how often each is there. NaNs are all
    /// different. Of numbers or indices. Waits for the device; not in a traced program. No gradient.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[4], vec![3.0f32, 1.0, 3.0, 2.0])?)?;
    /// let unique = x.unique()?;
    /// assert_eq!(unique.values.to_string(), "[1. 2. 3.]");
    /// assert_eq!(unique.inverse.indices()?.data(), [2, 0, 2, 1]);
    /// assert_eq!(unique.counts.indices()?.data(), [1, 1, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn unique(self) -> Result<Unique<'s>> {
        self.session.known_size("unique", "sort keeps the size")?;
        let flat = self.detach()?.flatten()?;
        let order = match flat.meta()?.dtype {
            DType::F32 => Order::Known(flat.argsort(0, false)?.indices()?.into_data()),
            DType::U32 => Order::Sorted,
        };
        flat.different_rows(order)?.in_shape(self.shape()?)
    }

    /// The first element of every run of equal elements in row-major order, which run each element is in, and how long each is.
    /// Waits for the device; not in a traced program. No gradient.
    #[track_caller]
    pub fn unique_consecutive(self) -> Result<Unique<'s>> {
        self.session.known_size("unique_consecutive", "ne of neighbours keeps the size")?;
        self.detach()?.flatten()?.different_rows(Order::AsTheyAre)?.in_shape(self.shape()?)
    }

    /// The different slices along an axis, sorted by their first elements that differ; which of them each slice is, and how often each
    /// is there, both vectors. Slices with a NaN are all different. Waits for the device; not in a traced program. No gradient.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[3, 2], vec![3.0f32, 1.0, 2.0, 9.0, 3.0, 1.0])?)?;
    /// let unique = x.unique_axis(0)?;
    /// assert_eq!(unique.values.to_string(), "[[2. 9.]\n [3. 1.]]");
    /// assert_eq!(unique.inverse.indices()?.data(), [1, 0, 1]);
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "unique_dim")]
    #[track_caller]
    pub fn unique_axis(self, axis: impl Position) -> Result<Unique<'s>> {
        self.session.known_size("unique_axis", "sort keeps the size")?;
        self.different_slices("unique_axis", axis, Order::Sorted)
    }

    /// The first slice of every run of equal slices along an axis, which run each slice is in, and how long each is. Waits for the
    /// device; not in a traced program. No gradient.
    #[track_caller]
    pub fn unique_consecutive_axis(self, axis: impl Position) -> Result<Unique<'s>> {
        self.session.known_size("unique_consecutive_axis", "ne of neighbours keeps the size")?;
        self.different_slices("unique_consecutive_axis", axis, Order::AsTheyAre)
    }

    #[track_caller]
    fn different_slices(self, op: &str, axis: impl Position, order: Order) -> Result<Unique<'s>> {
        let axis = self.axis(op, axis)?;
        self.dim(op, axis)?;
        let unique = self.detach()?.movedim(axis, 0)?.different_rows(order)?;
        Ok(Unique { values: unique.values.movedim(0, axis)?, ..unique })
    }

    /// The runs of equal rows in an order.
    #[track_caller]
    fn different_rows(self, order: Order) -> Result<Unique<'s>> {
        let count = self.shape()?.dims()[0];
        let runs = match self.to_any::<f32>()? {
            AnyTensor::Num(t) => Runs::new(t.data(), count, order, |a, b| {
                a.partial_cmp(b).unwrap_or(a.is_nan().cmp(&b.is_nan()))
            }),
            AnyTensor::Idx(t) => Runs::new(t.data(), count, order, u32::cmp),
        };
        let labels = |data: Vec<u32>| self.session.labels(&Tensor::new(&[data.len()], data)?);
        Ok(Unique {
            values: self.index_select(0, labels(runs.starts)?)?,
            inverse: labels(runs.inverse)?,
            counts: labels(runs.counts)?,
        })
    }

    /// How often each index is in this vector of indices, or the sum of its `weights`, as numbers: at least `minlength` of them, and
    /// enough for the largest index. Waits for the device; not in a traced program, see [`Var::bincount_below`].
    #[track_caller]
    pub fn bincount(self, weights: Option<Var<'s>>, minlength: usize) -> Result<Var<'s>> {
        self.session.known_size("bincount", "give the number of bins: bincount_below")?;
        self.meta()?.dtype.require(DType::U32, "bincount", 0)?;
        let most = self.indices()?.data().iter().map(|&i| i as usize + 1).fold(0, usize::max);
        self.bincount_below(weights, minlength.max(most))
    }

    /// Like [`Var::bincount`] with a given number of bins. An index that is not below it is an error. Counts are exact up to 2^24.
    #[track_caller]
    pub fn bincount_below(self, weights: Option<Var<'s>>, bins: usize) -> Result<Var<'s>> {
        let n = self.vector("bincount_below")?;
        let weights = match weights {
            Some(weights) => weights,
            None => self.session.ones(&[n])?,
        };
        self.session.apply(IndexAdd { axis: 0, size: bins, checked: true }, &[weights, self])
    }
}

/// The indices along each axis of position `i` in row-major order.
fn coordinates(i: u32, dims: &[usize]) -> Vec<u32> {
    let mut rest = i as usize;
    let mut at = vec![0; dims.len()];
    for (at, &d) in at.iter_mut().zip(dims).rev() {
        *at = (rest % d) as u32;
        rest /= d;
    }
    at
}

impl<'s> Unique<'s> {
    /// These, of elements that had another shape.
    #[track_caller]
    fn in_shape(self, shape: Shape) -> Result<Unique<'s>> {
        Ok(Unique { inverse: self.inverse.reshape(shape.dims())?, ..self })
    }
}

/// In which order rows are compared with the one before.
enum Order {
    AsTheyAre,
    Sorted,
    Known(Vec<u32>),
}

/// Runs of equal rows.
struct Runs {
    /// The first row of each.
    starts: Vec<u32>,
    /// The run of each row.
    inverse: Vec<u32>,
    counts: Vec<u32>,
}

impl Runs {
    /// The runs of `count` rows. A sort is stable.
    fn new<T: PartialEq>(data: &[T], count: usize, order: Order, compare: fn(&T, &T) -> Ordering) -> Runs {
        let width = data.len() / count.max(1);
        let row = |i: u32| &data[i as usize * width..][..width];
        let order = match order {
            Order::Known(order) => order,
            Order::AsTheyAre => (0..count as u32).collect(),
            Order::Sorted => {
                let mut order: Vec<u32> = (0..count as u32).collect();
                let pairs = |a: u32, b: u32| row(a).iter().zip(row(b));
                order.sort_by(|&a, &b| {
                    pairs(a, b).map(|(x, y)| compare(x, y)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
                });
                order
            }
        };
        let mut runs = Runs { starts: Vec::new(), inverse: vec![0; count], counts: Vec::new() };
        for (k, &i) in order.iter().enumerate() {
            match runs.counts.last_mut() {
                Some(count) if row(order[k - 1]) == row(i) => *count += 1,
                _ => {
                    runs.starts.push(i);
                    runs.counts.push(1);
                }
            }
            runs.inverse[i as usize] = runs.counts.len() as u32 - 1;
        }
        runs
    }
}
