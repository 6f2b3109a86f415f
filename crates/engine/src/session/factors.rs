//! Factors of matrices with row exchanges.

use super::Var;
use super::matrices::Matrices;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::linalg::{Lu, TriangularSolve};

/// The bound of an index among `count`.
fn limit(count: usize) -> u32 {
    u32::try_from(count.max(1)).unwrap_or(u32::MAX)
}

/// Which of `bad`, 0 or 1, is the first 1 along the last axis, counted from 1: 0 if there is none.
#[track_caller]
pub(super) fn first_of(bad: Var<'_>) -> Result<Var<'_>> {
    bad.pad_with(-1, 1, 0, 0.5)?.argmax(&[-1], false)
}

/// The first row of each of `batch` matrices of `m` rows, counted through the batch (batch, 1).
#[track_caller]
fn first_rows(like: Var<'_>, batch: usize, m: usize) -> Result<Var<'_>> {
    like.session().arange(0.0, batch as f64, 1.0)?.scale(m as f64)?.reshape(&[batch, 1])
}

/// The factors of a batch of matrices, see [`Lu`].
pub(super) struct Factors<'s> {
    pub(super) lu: Var<'s>,
    /// The rows of the matrices in the order of the factors, as numbers through the batch (batch, m).
    rows: Var<'s>,
    /// Determinants of the row exchanges (batch).
    pub(super) signs: Var<'s>,
}

impl<'s> Factors<'s> {
    #[track_caller]
    pub(super) fn of(a: &Matrices<'s>) -> Result<Factors<'s>> {
        let (batch, m, n) = (a.count(), a.rows, a.columns);
        let all = a.all.session().apply(Lu {}, &[a.all])?;
        let (entries, rows) = (batch * m * n, batch * m);
        let lu = all.narrow(0, 0, entries)?.reshape(&[batch, m, n])?;
        let order = all.narrow(0, entries, rows)?.reshape(&[batch, m])?;
        Ok(Factors { lu, rows: order, signs: all.narrow(0, entries + rows, batch)? })
    }

    /// Factors that were given: in one matrix, with rows that are counted in each matrix, and spread over a larger batch.
    #[track_caller]
    fn given(op: &'static str, lu: Var<'s>, rows: Var<'s>, wide: &Matrices<'s>) -> Result<Factors<'s>> {
        let (left, right) = (lu.shape()?, rows.shape()?);
        if right.dims() != &left.dims()[..left.rank() - 1] {
            let why = "the order must have a number for each row of the factors";
            return Err(Error::new(op, ErrorKind::Shapes { why, left, right }));
        }
        let (batch, m) = (wide.count(), wide.rows);
        let first = first_rows(lu, batch, m)?;
        let order = rows.to_float()?.expand(&[&wide.lead[..], &[m]].concat())?;
        Ok(Factors { lu: wide.all, rows: order.reshape(&[batch, m])?.add(first)?, signs: first })
    }

    /// The rows as indices through the batch.
    #[track_caller]
    fn order(&self) -> Result<Var<'s>> {
        let count = self.rows.shape()?.numel();
        self.rows.reshape(&[count])?.to_index_below(limit(count))
    }

    /// The solutions of `A X = B` for `b` (batch, n, m).
    #[track_caller]
    pub(super) fn solve(&self, b: Var<'s>) -> Result<Var<'s>> {
        let shape = b.shape()?;
        let [batch, n, m] = [0, 1, 2].map(|i| shape.dims()[i]);
        let b = b.reshape(&[batch * n, m])?;
        let b = b.index_select(0, self.order()?)?.reshape(shape.dims())?;
        let lower = TriangularSolve { upper: false, ta: false, unit: true, right: false };
        let upper = TriangularSolve { upper: true, unit: false, ..lower };
        let session = b.session();
        session.apply(upper, &[self.lu, session.apply(lower, &[self.lu, b])?])
    }

    /// The solutions of `Aᵀ X = B` for `b` (batch, n, m).
    #[track_caller]
    fn solve_transposed(&self, b: Var<'s>) -> Result<Var<'s>> {
        let shape = b.shape()?;
        let [batch, n, m] = [0, 1, 2].map(|i| shape.dims()[i]);
        let upper = TriangularSolve { upper: true, ta: true, unit: false, right: false };
        let lower = TriangularSolve { upper: false, unit: true, ..upper };
        let session = b.session();
        let x = session.apply(lower, &[self.lu, session.apply(upper, &[self.lu, b])?])?;
        let zeros = session.zeros(&[batch * n, m])?;
        zeros.index_add(0, self.order()?, x.reshape(&[batch * n, m])?)?.reshape(shape.dims())
    }

    /// For each matrix 0, or which pivot is the first that is 0.
    #[track_caller]
    pub(super) fn singular(&self, a: &Matrices<'s>) -> Result<Var<'s>> {
        let zero = self.lu.session().scalar(0.0)?;
        a.unfold(first_of(self.lu.diagonal(0, 1, 2)?.eq(zero)?)?)
    }

    /// Both in one matrix, and the rows as indices in each.
    #[track_caller]
    fn packed(&self, m: &Matrices<'s>) -> Result<(Var<'s>, Var<'s>)> {
        let first = first_rows(self.lu, m.count(), m.rows)?;
        let rows = self.rows.sub(first)?.to_index_below(limit(m.rows))?;
        Ok((m.unfold(self.lu)?, m.unfold(rows)?))
    }

    /// `P`, `L` and `U` of a batch.
    #[track_caller]
    fn apart(&self) -> Result<[Var<'s>; 3]> {
        let shape = self.lu.shape()?;
        let [batch, m, n] = [0, 1, 2].map(|i| shape.dims()[i]);
        let k = m.min(n);
        let eye = self.lu.session().eye(m)?;
        // Row i of the factors is row `rows[i]` of the matrix, so column i of P has its one there.
        let whole = eye.broadcast_to(Shape::new(&[batch, m, m])?)?.reshape(&[batch * m, m])?;
        let p = whole.index_select(0, self.order()?)?.reshape(&[batch, m, m])?.transpose()?;
        let l = self.lu.narrow(2, 0, k)?.tril(-1)?.add(eye.narrow(1, 0, k)?)?;
        Ok([p, l, self.lu.narrow(1, 0, k)?.triu(0)?])
    }
}

/// # Factors of matrices
impl<'s> Var<'s> {
    /// `P`, `L` and `U` with `A = P L U`, by partial pivoting: (…, m, m), (…, m, k) and (…, k, n) of matrices (…, m, n), with
    /// `k` the smaller of `m` and `n`. PyTorch's `linalg.lu`.
    #[track_caller]
    pub fn lu(self) -> Result<[Var<'s>; 3]> {
        let m = Matrices::of("lu", self)?;
        let [p, l, u] = Factors::of(&m)?.apart()?;
        Ok([m.unfold(p)?, m.unfold(l)?, m.unfold(u)?])
    }

    /// The factors of [`Var::lu`] in one matrix, `L` below the diagonal and `U` on and above it; and the rows of `A` in the
    /// order of the factors (…, m). PyTorch's `linalg.lu_factor` has row exchanges there, which give this order.
    #[track_caller]
    pub fn lu_factor(self) -> Result<(Var<'s>, Var<'s>)> {
        let m = Matrices::of("lu_factor", self)?;
        Factors::of(&m)?.packed(&m)
    }

    /// [`Var::lu_factor`], and for each matrix 0, or which pivot is the first that is 0. PyTorch's `linalg.lu_factor_ex`.
    #[track_caller]
    pub fn lu_factor_ex(self) -> Result<(Var<'s>, Var<'s>, Var<'s>)> {
        let m = Matrices::of("lu_factor_ex", self)?;
        let factors = Factors::of(&m)?;
        let (lu, rows) = factors.packed(&m)?;
        Ok((lu, rows, factors.singular(&m)?))
    }

    /// `P`, `L` and `U`, given the results of [`Var::lu_factor`].
    #[track_caller]
    pub fn lu_unpack(self, rows: Var<'s>) -> Result<[Var<'s>; 3]> {
        let m = Matrices::of("lu_unpack", self)?;
        let [p, l, u] = Factors::given("lu_unpack", self, rows, &m)?.apart()?;
        Ok([m.unfold(p)?, m.unfold(l)?, m.unfold(u)?])
    }

    /// The solution of `A X = B` for this `B`, given the results of [`Var::lu_factor`] for square `A`; of `X A = B` if not
    /// `left`, and of the transpose of `A` with `adjoint`. Leading axes broadcast. PyTorch's `linalg.lu_solve`.
    #[track_caller]
    pub fn lu_solve(self, lu: Var<'s>, rows: Var<'s>, left: bool, adjoint: bool) -> Result<Var<'s>> {
        const NAME: &str = "lu_solve";
        if !left {
            return self.transpose()?.lu_solve(lu, rows, true, !adjoint)?.transpose();
        }
        let n = Matrices::square(NAME, lu)?.rows;
        let [wide, b] = Matrices::pair(NAME, lu, self)?;
        if b.rows != n {
            let why = "the factors and the right-hand side differ in the number of equations";
            return Err(Error::new(NAME, ErrorKind::Shapes { why, left: lu.shape()?, right: self.shape()? }));
        }
        let factors = Factors::given(NAME, lu, rows, &wide)?;
        b.unfold(if adjoint { factors.solve_transposed(b.all)? } else { factors.solve(b.all)? })
    }
}
