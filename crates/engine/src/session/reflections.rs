//! Orthogonal factors of matrices, and products of reflections.

use super::Var;
use super::matrices::Matrices;
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_ops::linalg::Qr;

/// The sizes of the factors of [`Var::qr`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QrMode {
    /// As many columns of `Q` as the smaller side of the matrix.
    #[default]
    Reduced,
    /// Square `Q`.
    Complete,
}

/// The value of [`Qr`], apart, for a batch of tall matrices.
struct Orthogonal<'s> {
    r: Var<'s>,
    q: Var<'s>,
    v: Var<'s>,
    tau: Var<'s>,
}

impl<'s> Orthogonal<'s> {
    #[track_caller]
    fn of(a: &Matrices<'s>) -> Result<Orthogonal<'s>> {
        let (batch, m, n) = (a.count(), a.rows, a.columns);
        let all = a.all.session().apply(Qr {}, &[a.all])?;
        let (square, size) = (batch * n * n, batch * m * n);
        let part = |start: usize, dims: &[usize]| all.narrow(0, start, dims.iter().product())?.reshape(dims);
        Ok(Orthogonal {
            r: part(0, &[batch, n, n])?,
            q: part(square, &[batch, m, n])?,
            v: part(square + size, &[batch, m, n])?.detach()?,
            tau: part(square + 2 * size, &[batch, n])?.detach()?,
        })
    }
}

/// # Orthogonal factors and reflections
impl<'s> Var<'s> {
    /// `Q` and `R` with `A = Q R`: the columns of `Q` are orthogonal and of length 1, and `R` is upper triangular. With
    /// [`QrMode::Complete`], `Q` of a matrix with more rows than columns has columns that are not determined, so that it has no
    /// gradients there. Gradients are finite only where the first columns are independent. PyTorch's `linalg.qr`.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # use dittograd::session::QrMode;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let a = session.constant(&Tensor::new(&[2, 2], vec![3.0f32, 1.0, 4.0, 3.0])?)?;
    /// let (q, r) = a.qr(QrMode::Reduced)?;
    /// assert_eq!(r.to_string(), "[[-5. -3.]\n [ 0.  1.]]");
    /// assert!(q.matmul(r)?.allclose(a, 1e-6, 1e-6, false)?);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn qr(self, mode: QrMode) -> Result<(Var<'s>, Var<'s>)> {
        let a = Matrices::of("qr", self)?;
        let (m, n) = (a.rows, a.columns);
        if m < n {
            let (q, r) = self.narrow(-1, 0, m)?.qr(mode)?;
            let rest = q.matmul_with(self.narrow(-1, m, n - m)?, true, false)?;
            return Ok((q, r.concat(rest, -1)?));
        }
        let Orthogonal { r, q, v, tau } = Orthogonal::of(&a)?;
        if m == n || mode == QrMode::Reduced {
            return Ok((a.unfold(q)?, a.unfold(r)?));
        }
        let q = v.pad(2, 0, m - n)?.householder_product(tau)?;
        Ok((a.unfold(q)?, a.unfold(r.pad(1, 0, m - n)?)?))
    }

    /// `R` of [`Var::qr`] on and above the diagonal, and the reflections that `Q` is the product of, as
    /// [`Var::householder_product`] takes them: below the diagonal, and their factors. There are no gradients. PyTorch's `geqrf`.
    #[track_caller]
    pub fn geqrf(self) -> Result<(Var<'s>, Var<'s>)> {
        let a = Matrices::of("geqrf", self.detach()?)?;
        let (m, n) = (a.rows, a.columns);
        if m < n {
            let (left, tau) = self.narrow(-1, 0, m)?.geqrf()?;
            let rest = left.ormqr(tau, self.detach()?.narrow(-1, m, n - m)?, true, true)?;
            return Ok((left.concat(rest, -1)?, tau));
        }
        let Orthogonal { r, v, tau, .. } = Orthogonal::of(&a)?;
        let packed = v.tril(-1)?.add(r.pad(1, 0, m - n)?)?;
        Ok((a.unfold(packed)?, a.unfold(tau)?))
    }

    /// The solution of `A X = B` with the least squares of errors, or if there are several, with the least squares of `X`. The
    /// matrix (…, m, n) must have full rank; one that has not gives infinities, NaN or large numbers. `B` is (…, m, k). Leading
    /// axes broadcast. PyTorch's `linalg.lstsq`.
    #[track_caller]
    pub fn lstsq(self, b: Var<'s>) -> Result<Var<'s>> {
        let [a, right] = Matrices::pair("lstsq", self, b)?;
        if a.rows != right.rows {
            let why = "the matrix and the right-hand side differ in the number of equations";
            return Err(Error::new(
                "lstsq",
                ErrorKind::Shapes { why, left: self.shape()?, right: b.shape()? },
            ));
        }
        let x = if a.rows >= a.columns {
            let (q, r) = a.all.qr(QrMode::Reduced)?;
            r.solve_triangular(q.matmul_with(right.all, true, false)?, true, true, false)?
        } else {
            let (q, r) = a.all.transpose()?.qr(QrMode::Reduced)?;
            q.matmul(r.transpose()?.solve_triangular(right.all, false, true, false)?)?
        };
        right.unfold(x).located()
    }

    /// The first columns of a product of reflections, as many as this matrix has: reflection `i` is `I - tau[i] v vᵀ`, where
    /// `v` is zeros, a one on the diagonal, and column `i` of this matrix below it. PyTorch's `linalg.householder_product`.
    #[doc(alias = "orgqr")]
    #[track_caller]
    pub fn householder_product(self, tau: Var<'s>) -> Result<Var<'s>> {
        let m = Matrices::of("householder_product", self)?;
        let (v, t) = self.reflections("householder_product", tau)?;
        let eye = self.session().eye(m.rows)?.narrow(1, 0, m.columns)?;
        eye.sub(v.matmul(t)?.matmul(v.narrow(-2, 0, m.columns)?.transpose()?)?)
    }

    /// The product of reflections of [`Var::householder_product`], or its transpose, times `b`, or `b` times it if not `left`.
    #[track_caller]
    pub fn ormqr(self, tau: Var<'s>, b: Var<'s>, left: bool, transpose: bool) -> Result<Var<'s>> {
        let (v, t) = self.reflections("ormqr", tau)?;
        let t = if transpose { t.transpose()? } else { t };
        if left {
            return b.sub(v.matmul(t.matmul(v.transpose()?.matmul(b)?)?)?);
        }
        b.sub(b.matmul(v)?.matmul(t)?.matmul(v.transpose()?)?)
    }

    /// `V` and `T` of a product of reflections, `I - V T Vᵀ`.
    #[track_caller]
    fn reflections(self, op: &'static str, tau: Var<'s>) -> Result<(Var<'s>, Var<'s>)> {
        let (m, shape) = (Matrices::of(op, self)?, tau.shape()?);
        let k = shape.last();
        if shape.rank() != m.lead.len() + 1 || !shape.dims().starts_with(&m.lead) || k > m.columns.min(m.rows)
        {
            let why =
                "tau must have a number for each of the first columns of the matrix, at most as many as rows";
            return Err(Error::new(op, ErrorKind::Shapes { why, left: self.shape()?, right: shape }));
        }
        let eye = self.session().eye(m.rows)?.narrow(1, 0, k)?;
        let v = self.narrow(-1, 0, k)?.tril(-1)?.add(eye)?;
        // T⁻¹ is 1 / tau on the diagonal and Vᵀ V above it.
        let system = v.transpose()?.matmul(v)?.triu(1)?.mul(tau.unsqueeze(-1)?)?;
        Ok((v, system.solve_triangular(tau.diag_embed(0, -2, -1)?, true, true, true)?))
    }
}
