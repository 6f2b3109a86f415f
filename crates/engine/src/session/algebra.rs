//! Products, distances and norms that are made of other ops.

use super::{Session, Var};
use dittograd_numerics::environment::{self, single};
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::{Position, Shape};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::pointwise::expression::Expr;

/// Which norm of a matrix; see [`Var::matrix_norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MatrixNorm {
    /// The square root of the sum of squares.
    Frobenius,
    /// The largest sum of magnitudes of a column, or with `smallest` the smallest.
    Columns {
        /// The smallest instead of the largest.
        smallest: bool,
    },
    /// The largest sum of magnitudes of a row, or with `smallest` the smallest.
    Rows {
        /// The smallest instead of the largest.
        smallest: bool,
    },
}

#[track_caller]
fn rank_error(op: &str, want: &'static str, got: Shape) -> Error {
    Error::new(op, ErrorKind::Rank { want, got })
}

/// The cheapest order to multiply a chain in: for the product of matrices `i..=j`, where it is split. `dims[i]` and
/// `dims[i + 1]` are rows and columns of matrix `i`.
fn splits(dims: &[usize]) -> Vec<Vec<usize>> {
    let n = dims.len() - 1;
    let (mut cost, mut split) = (vec![vec![0.0f64; n]; n], vec![vec![0; n]; n]);
    for len in 2..=n {
        for i in 0..=n - len {
            let j = i + len - 1;
            let price = |k: usize, cost: &[Vec<f64>]| {
                cost[i][k] + cost[k + 1][j] + dims[i] as f64 * dims[k + 1] as f64 * dims[j + 1] as f64
            };
            // The first of several that cost the same.
            let best = (i..j).min_by(|&a, &b| price(a, &cost).total_cmp(&price(b, &cost))).unwrap_or(i);
            (cost[i][j], split[i][j]) = (price(best, &cost), best);
        }
    }
    split
}

impl Session {
    /// The product of two or more matrices, multiplied in the order with the fewest operations. The first and the last may
    /// be vectors, whose axis is dropped.
    #[doc(alias("chain_matmul", "linalg.multi_dot"))]
    #[track_caller]
    pub fn multi_dot<'s>(&'s self, values: &[Var<'s>]) -> Result<Var<'s>> {
        let _strict = environment::enter();
        let (Some(&first), Some(&last)) = (values.first(), values.last()) else {
            return Err(Error::argument("multi_dot", "values", "there are none, give two or more"));
        };
        if values.len() == 1 {
            return Err(Error::argument("multi_dot", "values", "there is one, give two or more"));
        }
        let mut all = values.to_vec();
        let (row, column) = (first.shape()?, last.shape()?);
        let end = all.len() - 1;
        if row.rank() == 1 {
            all[0] = first.reshape(&[1, row.last()])?;
        }
        if column.rank() == 1 {
            all[end] = last.reshape(&[column.last(), 1])?;
        }
        let mut dims = Vec::new();
        for v in &all {
            match v.shape()? {
                shape if shape.rank() == 2 => dims.push(shape.dims()[0]),
                got => return Err(rank_error("multi_dot", "2, of the first and last also 1", got)),
            }
        }
        dims.push(all[end].shape()?.last());
        let product = chain(&all, &splits(&dims), 0, end)?;
        let shape = product.shape()?;
        let kept: Vec<usize> = [(row.rank(), shape.dims()[0]), (column.rank(), shape.dims()[1])]
            .into_iter()
            .filter_map(|(rank, d)| (rank > 1).then_some(d))
            .collect();
        product.reshape(&kept)
    }

    /// A matrix with these matrices along its diagonal and zeros elsewhere. A vector is a row, a scalar one element.
    #[track_caller]
    pub fn block_diag<'s>(&'s self, values: &[Var<'s>]) -> Result<Var<'s>> {
        let blocks = values.iter().map(|v| v.atleast_2d()).collect::<Result<Vec<_>>>()?;
        let mut sizes = Vec::new();
        for block in &blocks {
            match block.shape()? {
                shape if shape.rank() == 2 => sizes.push(shape.last()),
                got => return Err(rank_error("block_diag", "at most 2", got)),
            }
        }
        let width: usize = sizes.iter().sum();
        let mut before = 0;
        let mut rows = Vec::new();
        for (block, size) in blocks.iter().zip(sizes) {
            rows.push(block.pad(1, before, width - before - size)?);
            before += size;
        }
        if rows.is_empty() { self.zeros(&[1, 0]) } else { self.concat(&rows, 0) }
    }
}

/// The product of the matrices `i..=j` of a chain.
#[track_caller]
fn chain<'s>(all: &[Var<'s>], split: &[Vec<usize>], i: usize, j: usize) -> Result<Var<'s>> {
    if i == j {
        return Ok(all[i]);
    }
    let at = split[i][j];
    chain(all, split, i, at)?.matmul(chain(all, split, at + 1, j)?)
}

/// # Products and sums
///
/// Products with something added, and products of vectors.
impl<'s> Var<'s> {
    /// `beta x + alpha product`. With `beta` 0 this value is not read.
    #[track_caller]
    fn plus(self, product: Var<'s>, beta: f64, alpha: f64) -> Result<Var<'s>> {
        let dims = product.shape()?;
        if self.shape()?.broadcast(&dims)? != dims {
            let why = "the value to add must broadcast to the product";
            let kind = ErrorKind::Shapes { why, left: self.shape()?, right: dims };
            return Err(Error::new("addmm", kind));
        }
        match (single(beta), single(alpha)) {
            (1.0, 1.0) => product.add(self),
            (0.0, _) => product.scale(alpha),
            (1.0, _) => self.axpy(alpha, product),
            _ => self.scale(beta)?.axpy(alpha, product),
        }
    }

    /// `beta x + alpha (a b)` for matrices `a` and `b`. With `beta` 0 this value is not read.
    #[track_caller]
    pub fn addmm(self, a: Var<'s>, b: Var<'s>, beta: f64, alpha: f64) -> Result<Var<'s>> {
        for v in [a, b] {
            if v.shape()?.rank() != 2 {
                return Err(rank_error("addmm", "exactly 2", v.shape()?));
            }
        }
        self.plus(a.matmul(b)?, beta, alpha).located()
    }

    /// `beta x + alpha (a b)` for batches of matrices `a` and `b`.
    #[track_caller]
    pub fn baddbmm(self, a: Var<'s>, b: Var<'s>, beta: f64, alpha: f64) -> Result<Var<'s>> {
        self.plus(a.bmm(b)?, beta, alpha).located()
    }

    /// `beta x + alpha Σ a b` for batches of matrices `a` and `b`, summed over the batch.
    #[track_caller]
    pub fn addbmm(self, a: Var<'s>, b: Var<'s>, beta: f64, alpha: f64) -> Result<Var<'s>> {
        self.plus(self.session().einsum("bnm,bmp->np", &[a, b])?, beta, alpha).located()
    }

    /// `beta x + alpha (a b)` for a matrix `a` and a vector `b`.
    #[track_caller]
    pub fn addmv(self, a: Var<'s>, b: Var<'s>, beta: f64, alpha: f64) -> Result<Var<'s>> {
        self.plus(a.mv(b)?, beta, alpha).located()
    }

    /// `beta x + alpha a bᵀ` for vectors `a` and `b`.
    #[track_caller]
    pub fn addr(self, a: Var<'s>, b: Var<'s>, beta: f64, alpha: f64) -> Result<Var<'s>> {
        self.plus(a.outer(b)?, beta, alpha).located()
    }

    /// The product of this matrix and a vector.
    #[track_caller]
    pub fn mv(self, vector: Var<'s>) -> Result<Var<'s>> {
        vector.vector("mv")?;
        match self.shape()? {
            shape if shape.rank() == 2 => self.matmul(vector),
            got => Err(rank_error("mv", "exactly 2", got)),
        }
    }

    /// The sums of products along the last axes of both values: `y[…, …] = Σ_k a[…, k] b[…, k]`. With a scalar, the product.
    #[track_caller]
    pub fn inner(self, other: Var<'s>) -> Result<Var<'s>> {
        let (a, b) = (self.shape()?, other.shape()?);
        if a.rank() == 0 || b.rank() == 0 {
            return self.mul(other);
        }
        self.tensordot_axes(other, &[-1], &[-1])
    }

    /// The sums of products over `axes` of this value and `other_axes` of the other, pair by pair. The axes that are left
    /// follow each other.
    #[doc(alias = "tensordot")]
    #[track_caller]
    pub fn tensordot_axes(
        self,
        other: Var<'s>,
        axes: &[impl Position],
        other_axes: &[impl Position],
    ) -> Result<Var<'s>> {
        let axes = self.axes("tensordot", axes)?;
        let other_axes = other.axes("tensordot", other_axes)?;
        self.check_tensordot(other, &axes, &other_axes)?;
        let left = (0..self.shape()?.rank()).filter(|a| !axes.contains(a));
        let right = (0..other.shape()?.rank()).filter(|a| !other_axes.contains(a));
        let a = self.permute(&left.chain(axes.iter().copied()).collect::<Vec<_>>())?;
        let b = other.permute(&other_axes.iter().copied().chain(right).collect::<Vec<_>>())?;
        a.tensordot(b, axes.len())
    }

    /// The Kronecker product: each element of this value times the whole other, in its place.
    #[track_caller]
    pub fn kron(self, other: Var<'s>) -> Result<Var<'s>> {
        let (a, b) = (self.shape()?, other.shape()?);
        let rank = a.rank().max(b.rank());
        let padded = |s: Shape| [vec![1; rank - s.rank()], s.dims().to_vec()].concat();
        let (a, b) = (padded(a), padded(b));
        let spread = |dims: &[usize], first: bool| -> Vec<usize> {
            dims.iter().flat_map(|&d| if first { [d, 1] } else { [1, d] }).collect()
        };
        let product = self.reshape(&spread(&a, true))?.mul(other.reshape(&spread(&b, false))?)?;
        product.reshape(&std::iter::zip(&a, &b).map(|(x, y)| x * y).collect::<Vec<_>>())
    }

    /// The cross product of vectors of three elements along an axis. The values broadcast by NumPy's rule.
    #[track_caller]
    pub fn cross(self, other: Var<'s>, axis: impl Position) -> Result<Var<'s>> {
        let shape = self.shape()?.broadcast(&other.shape()?)?;
        let axis = shape.axis("cross", axis)?;
        if shape.dims().get(axis) != Some(&3) {
            let why = format!("axis {axis} of {shape} must have 3 elements");
            return Err(Error::argument("cross", "axis", why));
        }
        let (a, b) = (self.broadcast_to(shape)?, other.broadcast_to(shape)?);
        let ins = [a.roll(axis, -1)?, b.roll(axis, -2)?, a.roll(axis, -2)?, b.roll(axis, -1)?];
        self.session().pointwise(&ins, |v| v[0] * v[1] - v[2] * v[3])
    }
}

/// # Norms and distances
impl<'s> Var<'s> {
    /// Norms of the matrices in two axes, those of the rows and of the columns. PyTorch's default is `[-2, -1]`.
    #[doc(alias = "linalg.matrix_norm")]
    #[track_caller]
    pub fn matrix_norm(self, norm: MatrixNorm, axes: [impl Position; 2], keepdim: bool) -> Result<Var<'s>> {
        const NAME: &str = "matrix_norm";
        let shape = self.shape()?;
        if shape.rank() < 2 {
            return Err(rank_error(NAME, "at least 2", shape));
        }
        let [rows, columns] = [self.axis(NAME, axes[0])?, self.axis(NAME, axes[1])?];
        if rows == columns {
            let why =
                format!("axis {rows} of {shape} is named as the rows and as the columns; name two axes");
            return Err(Error::argument(NAME, "axes", why));
        }
        let (added, other, smallest) = match norm {
            MatrixNorm::Frobenius => return self.norm(2.0, &[rows, columns], keepdim),
            MatrixNorm::Columns { smallest } => (rows, columns, smallest),
            MatrixNorm::Rows { smallest } => (columns, rows, smallest),
        };
        let sums = self.norm(1.0, &[added], true)?;
        let value = if smallest { sums.amin(&[other], true)? } else { sums.amax(&[other], true)? };
        if keepdim { Ok(value) } else { value.squeeze_axes(&[rows, columns]) }
    }

    /// Each slice of an axis scaled down to a norm of at most `maxnorm`: those whose `p`-norm over the other axes is larger
    /// are multiplied by `maxnorm / (norm + 1e-7)`.
    #[track_caller]
    pub fn renorm(self, p: f64, axis: impl Position, maxnorm: f64) -> Result<Var<'s>> {
        let axis = self.axis("renorm", axis)?;
        let shape = self.shape()?;
        if axis >= shape.rank() {
            return Err(Error::new("renorm", ErrorKind::Axis { axis, shape }));
        }
        let others: Vec<usize> = (0..shape.rank()).filter(|&a| a != axis).collect();
        let scaled = self.detach()?.norm(p, &others, true)?.gt(self.session().full(&[], maxnorm)?)?;
        // Only slices that are scaled depend on their norms: no gradient goes through that of another one, which may be NaN.
        let norm = scaled.where_or(self, 0.0)?.norm(p, &others, true)?;
        self.session().pointwise(&[self, norm, scaled], |v| {
            let by = Expr::c(maxnorm) / (v[1] + Expr::c(1e-7));
            Expr::where_eq(v[2], Expr::c(0.0), v[0], v[0] * by)
        })
    }

    /// The `p`-norm of the difference of two values along the last axis, after `eps` is added to it. PyTorch's defaults are
    /// `p` 2 and `eps` 1e-6.
    #[track_caller]
    pub fn pairwise_distance(self, other: Var<'s>, p: f64, eps: f64, keepdim: bool) -> Result<Var<'s>> {
        let apart = self.session().pointwise(&[self, other], |v| v[0] - v[1] + Expr::c(eps))?;
        apart.norm(p, &[-1], keepdim)
    }

    /// The `p`-norm of the difference of two values over all elements.
    #[track_caller]
    pub fn dist(self, other: Var<'s>, p: f64) -> Result<Var<'s>> {
        self.sub(other)?.flatten()?.norm(p, &[0], false)
    }

    /// The `p`-norms of the differences of all rows of two batches of rows, `(…, P, M)` and `(…, R, M)` to `(…, P, R)`.
    /// The differences themselves are formed, so equal rows have distance 0; its gradient there is 0.
    #[track_caller]
    pub fn cdist(self, other: Var<'s>, p: f64) -> Result<Var<'s>> {
        let (a, b) = (self.shape()?, other.shape()?);
        if let Some(got) = [a, b].into_iter().find(|s| s.rank() < 2) {
            return Err(rank_error("cdist", "at least 2", got));
        }
        if a.last() != b.last() {
            let why = "rows must have one length";
            return Err(Error::new("cdist", ErrorKind::Shapes { why, left: a, right: b }));
        }
        self.unsqueeze(-2)?.sub(other.unsqueeze(-3)?)?.norm(p, &[-1], false)
    }

    /// The `p`-norms of the differences of the rows of a matrix `(N, M)`: of rows 0 and 1, 0 and 2, and so on, N(N-1)/2 of them.
    #[track_caller]
    pub fn pdist(self, p: f64) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let &[rows, _] = shape.dims() else {
            return Err(rank_error("pdist", "exactly 2", shape));
        };
        let pairs = (0..rows as u32).flat_map(|i| (i + 1..rows as u32).map(move |j| (i, j)));
        let (left, right): (Vec<u32>, Vec<u32>) = pairs.unzip();
        let row =
            |at: Vec<u32>| self.index_select(0, self.session().indices(&Tensor::new(&[at.len()], at)?)?);
        row(left)?.sub(row(right)?)?.norm(p, &[-1], false)
    }

    /// The cosine of the angle between two values along an axis. Norms below `eps` count as `eps`; PyTorch's default is
    /// 1e-8.
    #[track_caller]
    pub fn cosine_similarity(self, other: Var<'s>, axis: impl Position, eps: f64) -> Result<Var<'s>> {
        let shape = self.shape()?.broadcast(&other.shape()?)?;
        let axis = shape.axis("cosine_similarity", axis)?;
        let (a, b) = (self.broadcast_to(shape)?, other.broadcast_to(shape)?);
        let dot = a.mul(b)?.sum_axes(&[axis])?;
        let (m, n) = (a.norm(2.0, &[axis], false)?, b.norm(2.0, &[axis], false)?);
        self.session().pointwise(&[dot, m, n], |v| {
            let least = Expr::c(eps);
            let at_least = |x: Expr| Expr::where_gt(least, x, least, x);
            v[0] / (at_least(v[1]) * at_least(v[2]))
        })
    }
}
