//! Linear algebra: systems of equations, and functions of matrices.

use super::factors::{Factors, first_of};
use super::matrices::Matrices;
use super::{MatrixNorm, Var};
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::shape::Position;
use dittograd_ops::linalg::{Cholesky, TriangularSolve};

/// # Linear algebra
///
/// Matrices are the last two axes; leading axes are batches. What cannot be solved has no error, since a GPU would have to
/// be waited for: it gives infinities and NaN.
impl<'s> Var<'s> {
    /// The Cholesky factor of symmetric positive definite matrices: the lower triangular `L` with `L Lᵀ = A`, or with
    /// `upper` its transpose. Of a matrix that is not symmetric it is the factor of `(A + Aᵀ) / 2`, and the gradient is
    /// that of this, so it is symmetric as in PyTorch. A matrix that is not positive definite gives NaN.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let a = session.constant(&Tensor::new(&[2, 2], vec![4.0f32, 2.0, 2.0, 10.0])?)?;
    /// assert_eq!(a.cholesky(false)?.to_string(), "[[2. 0.]\n [1. 3.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn cholesky(self, upper: bool) -> Result<Var<'s>> {
        let m = Matrices::square("cholesky", self)?;
        m.unfold(self.session().apply(Cholesky { upper }, &[m.all])?)
    }

    /// [`Var::cholesky`], and for each matrix 0, or the order of its first leading minor that is not positive. PyTorch's
    /// `linalg.cholesky_ex`.
    #[track_caller]
    pub fn cholesky_ex(self, upper: bool) -> Result<(Var<'s>, Var<'s>)> {
        let factor = self.cholesky(upper)?;
        Ok((factor, first_of(factor.diagonal(0, -2, -1)?.isnan()?)?))
    }

    /// Solves `A X = B`, or `X A = B` if not `left`, for this triangular matrix `A`. The other triangle is not read, and
    /// with `unitriangular` the diagonal counts as ones. Leading axes broadcast. A zero on the diagonal gives infinities
    /// or NaN. PyTorch's `linalg.solve_triangular`.
    #[doc(alias = "triangular_solve")]
    #[track_caller]
    pub fn solve_triangular(
        self,
        b: Var<'s>,
        upper: bool,
        left: bool,
        unitriangular: bool,
    ) -> Result<Var<'s>> {
        let op = TriangularSolve { upper, ta: false, unit: unitriangular, right: !left };
        self.triangular("solve_triangular", b, op)
    }

    #[track_caller]
    fn triangular(self, name: &'static str, b: Var<'s>, op: TriangularSolve) -> Result<Var<'s>> {
        Matrices::square(name, self)?;
        let [a, x] = Matrices::pair(name, self, b)?;
        let unknowns = if op.right { x.columns } else { x.rows };
        if unknowns != a.rows {
            let why = "the matrix and the right-hand side differ in the number of equations";
            return Err(Error::new(name, ErrorKind::Shapes { why, left: self.shape()?, right: b.shape()? }));
        }
        x.unfold(self.session().apply(op, &[a.all, x.all])?)
    }

    /// Solves `A X = B` for this `B`, given the Cholesky factor of `A`: the lower one, or the upper one with `upper`.
    #[track_caller]
    pub fn cholesky_solve(self, factor: Var<'s>, upper: bool) -> Result<Var<'s>> {
        const NAME: &str = "cholesky_solve";
        let first = TriangularSolve { upper, ta: upper, unit: false, right: false };
        let half = factor.triangular(NAME, self, first)?;
        factor.triangular(NAME, half, TriangularSolve { ta: !upper, ..first })
    }

    /// The inverse of symmetric positive definite matrices, given their Cholesky factors.
    #[track_caller]
    pub fn cholesky_inverse(self, upper: bool) -> Result<Var<'s>> {
        let n = Matrices::square("cholesky_inverse", self)?.rows;
        self.session().eye(n)?.cholesky_solve(self, upper)
    }

    /// Solves `A X = B` for this square matrix `A`, by factors with row exchanges. `B` is (…, n, m), or (…, n) with the
    /// leading axes of `A`, or one vector. Leading axes broadcast. A singular matrix gives infinities or NaN. PyTorch's
    /// `linalg.solve`.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let a = session.constant(&Tensor::new(&[2, 2], vec![0.0f32, 2.0, 4.0, 1.0])?)?;
    /// let b = session.constant(&Tensor::new(&[2], vec![4.0f32, 6.0])?)?;
    /// assert_eq!(a.solve(b)?.to_string(), "[1. 2.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn solve(self, b: Var<'s>) -> Result<Var<'s>> {
        Ok(self.solved("solve", b)?.0)
    }

    /// [`Var::solve`], and for each matrix 0, or which pivot is the first that is 0. PyTorch's `linalg.solve_ex`.
    #[track_caller]
    pub fn solve_ex(self, b: Var<'s>) -> Result<(Var<'s>, Var<'s>)> {
        const NAME: &str = "solve_ex";
        let (x, lead, factors) = self.solved(NAME, b)?;
        let own = Matrices::square(NAME, self)?;
        let factors = if lead == own.lead { factors } else { Factors::of(&own)? };
        Ok((x, factors.singular(&own)?))
    }

    /// The solution with the factors that it was found by, and their leading axes.
    #[track_caller]
    fn solved(self, op: &'static str, b: Var<'s>) -> Result<(Var<'s>, Vec<usize>, Factors<'s>)> {
        let a = Matrices::square(op, self)?;
        let shape = b.shape()?;
        if shape.rank() == 1 || shape.dims() == [&a.lead[..], &[a.rows]].concat() {
            let (x, lead, factors) = self.solved(op, b.unsqueeze(shape.rank())?)?;
            return Ok((x.squeeze(x.shape()?.rank() - 1)?, lead, factors));
        }
        let [wide, x] = Matrices::pair(op, self, b)?;
        if x.rows != a.rows {
            let why = "the matrix and the right-hand side differ in the number of equations";
            return Err(Error::new(op, ErrorKind::Shapes { why, left: self.shape()?, right: shape }));
        }
        let factors = Factors::of(&wide)?;
        let found = x.unfold(factors.solve(x.all)?)?;
        Ok((found, wide.lead, factors))
    }

    /// The inverse of square matrices. A singular matrix gives infinities or NaN. PyTorch's `linalg.inv`; [`Var::inv`] is
    /// that of each element.
    #[track_caller]
    pub fn inverse(self) -> Result<Var<'s>> {
        self.solve(self.ones_on_diagonal("inverse")?)
    }

    /// [`Var::inverse`], and for each matrix 0, or which pivot is the first that is 0. PyTorch's `linalg.inv_ex`.
    #[track_caller]
    pub fn inverse_ex(self) -> Result<(Var<'s>, Var<'s>)> {
        self.solve_ex(self.ones_on_diagonal("inverse_ex")?)
    }

    /// An identity matrix for each of these square ones.
    #[track_caller]
    fn ones_on_diagonal(self, op: &'static str) -> Result<Var<'s>> {
        let n = Matrices::square(op, self)?.rows;
        self.session().eye(n)?.broadcast_to(self.shape()?)
    }

    /// The determinant of square matrices, by factors with row exchanges. Its gradient at a singular matrix is NaN.
    #[track_caller]
    pub fn det(self) -> Result<Var<'s>> {
        let m = Matrices::square("det", self)?;
        let f = Factors::of(&m)?;
        m.unfold(f.lu.diagonal(0, 1, 2)?.prod_dim(&[1], false)?.mul(f.signs)?)
    }

    /// The sign of the determinant, and the logarithm of its size: 0 and -inf for a singular matrix.
    #[track_caller]
    pub fn slogdet(self) -> Result<(Var<'s>, Var<'s>)> {
        let m = Matrices::square("slogdet", self)?;
        let f = Factors::of(&m)?;
        let diagonal = f.lu.diagonal(0, 1, 2)?;
        let sign = diagonal.sign()?.prod_dim(&[1], false)?.mul(f.signs)?;
        Ok((m.unfold(sign)?, m.unfold(diagonal.abs()?.log()?.sum_axes(&[1])?)?))
    }

    /// The logarithm of the determinant: NaN where that is negative, -inf where it is 0.
    #[track_caller]
    pub fn logdet(self) -> Result<Var<'s>> {
        let (sign, log) = self.slogdet()?;
        let [zero, nan] = [0.0, f64::NAN].map(|x| self.session().scalar(x));
        sign.lt(zero?)?.where_(nan?, log)
    }

    /// The power of square matrices, by squaring; a negative one is that of [`Var::inverse`].
    #[track_caller]
    pub fn matrix_power(self, power: i32) -> Result<Var<'s>> {
        let m = Matrices::square("matrix_power", self)?;
        let mut base = if power < 0 { self.inverse()? } else { self };
        let mut left = power.unsigned_abs();
        if left == 0 {
            return self.session().eye(m.rows)?.broadcast_to(self.shape()?);
        }
        let mut all: Option<Var<'s>> = None;
        loop {
            if left % 2 == 1 {
                all = Some(match all {
                    Some(all) => all.matmul(base)?,
                    None => base,
                });
            }
            left /= 2;
            match (left, all) {
                (0, Some(all)) => return Ok(all),
                _ => base = base.matmul(base)?,
            }
        }
    }

    /// The exponential of square matrices: a polynomial of `A / 2^s`, whose norm is at most 2, squared `s` times. It waits
    /// for the device to learn `s`, so that it cannot be in a compiled step.
    #[track_caller]
    pub fn matrix_exp(self) -> Result<Var<'s>> {
        let eye = self.ones_on_diagonal("matrix_exp")?;
        if self.shape()?.numel() == 0 {
            return Ok(self);
        }
        let norm = self.detach()?.norm(1.0, &[-2], true)?.amax(&[-1], true)?;
        let halvings = norm.log2()?.add_scalar(-1.0)?.ceil()?.clamp_min(0.0)?;
        // Above 64 a float32 number has no digits left behind the point; NaN and infinity need no squaring.
        let most = halvings.flatten()?.amax(&[0], false)?.item()?.min(64.0) as usize;
        let x = self.mul(halvings.neg()?.exp2()?)?;
        let x2 = x.matmul(x)?;
        let (x3, x4) = (x2.matmul(x)?, x2.matmul(x2)?);
        // Four terms of the series, from that of the power k on.
        let terms = |k: usize| {
            let c = |i: usize| 1.0 / (1..=k + i).map(|i| i as f64).product::<f64>();
            eye.scale(c(0))?.axpy(c(1), x)?.axpy(c(2), x2)?.axpy(c(3), x3)
        };
        let mut y = terms(12)?;
        for k in [8, 4, 0] {
            y = terms(k)?.add(x4.matmul(y)?)?;
        }
        for i in 0..most {
            y = halvings.gt(self.session().scalar(i as f64)?)?.where_(y.matmul(y)?, y)?;
        }
        Ok(y)
    }

    /// The condition number of square matrices: a norm of the matrix times that of its inverse. PyTorch's `linalg.cond`.
    #[track_caller]
    pub fn cond(self, norm: MatrixNorm) -> Result<Var<'s>> {
        let inverse = self.inverse()?.matrix_norm(norm, [-2, -1], false)?;
        self.matrix_norm(norm, [-2, -1], false)?.mul(inverse)
    }

    /// The inverse of a value whose first `rows` axes are the rows of a square matrix, and the others its columns: the axes of
    /// the columns come first. PyTorch's `linalg.tensorinv`.
    #[track_caller]
    pub fn tensorinv(self, rows: usize) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let wrong =
            |why: &str| Error::argument("tensorinv", "rows", format!("{rows} axes of {shape}: {why}"));
        let Some((first, last)) = shape.dims().split_at_checked(rows) else {
            return Err(wrong("there are fewer"));
        };
        let [m, n] = [first, last].map(|dims| dims.iter().product::<usize>());
        if m != n {
            return Err(wrong(&format!("they have {m} elements and the others {n}, and must have as many")));
        }
        self.reshape(&[m, n])?.inverse()?.reshape(&[last, first].concat())
    }

    /// The solution `X` of `A X = B`, summed over all axes of `X`, which are the last ones of `A`: as many as its rank is above
    /// that of `B`. The named axes of `A` are moved to its end first. PyTorch's `linalg.tensorsolve`.
    #[track_caller]
    pub fn tensorsolve(self, b: Var<'s>, moved: &[impl Position]) -> Result<Var<'s>> {
        const NAME: &str = "tensorsolve";
        let moved = self.axes(NAME, moved)?;
        let kept = (0..self.shape()?.rank()).filter(|axis| !moved.contains(axis));
        let a = self.permute(&kept.chain(moved.iter().copied()).collect::<Vec<_>>())?;
        let (shape, right) = (a.shape()?, b.shape()?);
        let n = right.numel();
        match shape.dims().split_at_checked(right.rank()) {
            Some((rows, unknowns))
                if rows.iter().product::<usize>() == n && unknowns.iter().product::<usize>() == n =>
            {
                a.reshape(&[n, n])?.solve(b.flatten()?)?.reshape(unknowns).located()
            }
            _ => {
                let why = "the first axes of the matrix must have as many elements as the right-hand side, and the others too";
                Err(Error::new(NAME, ErrorKind::Shapes { why, left: shape, right }))
            }
        }
    }

    /// The dot products along an axis; other axes broadcast. PyTorch's `linalg.vecdot`.
    #[track_caller]
    pub fn vecdot(self, other: Var<'s>, axis: impl Position) -> Result<Var<'s>> {
        self.mul(other)?.sum_axes(&[axis])
    }
}
