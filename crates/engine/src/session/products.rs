//! Matrix products of values.

use super::Var;
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::matmul::{Bmm, Linear, MatMul};

/// # Matrix products
impl<'s> Var<'s> {
    /// Matrix product over the last two axes, as in NumPy: leading axes are batches and broadcast against each other. A
    /// vector is a row on the left and a column on the right, and that axis is dropped.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.matmul(x.transpose()?)?.to_string(), "[[ 5. 14.]\n [14. 50.]]");
    /// let batch = session.zeros(&[8, 5, 3])?;
    /// assert_eq!(batch.matmul(x.transpose()?)?.shape()?.dims(), [8, 5, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias("mm", "mv"))]
    #[track_caller]
    pub fn matmul(self, other: Var<'s>) -> Result<Var<'s>> {
        self.matmul_with(other, false, false)
    }

    /// [`Var::matmul`] with the last two axes of the left (`ta`) or right (`tb`) operand swapped. This costs nothing:
    /// kernels read operands in either order.
    #[track_caller]
    pub fn matmul_with(self, other: Var<'s>, ta: bool, tb: bool) -> Result<Var<'s>> {
        let (left, right) = (self.shape()?, other.shape()?);
        // Errors name the given shapes, not those that the operands were reshaped to.
        self.product(other, ta, tb)
            .map_err(|e| match *e.kind() {
                ErrorKind::Shapes { why, .. } => Error::new("matmul", ErrorKind::Shapes { why, left, right }),
                _ => e,
            })
            .located()
    }

    #[track_caller]
    fn product(self, other: Var<'s>, ta: bool, tb: bool) -> Result<Var<'s>> {
        let (a, b) = (self.shape()?, other.shape()?);
        if let Some(scalar) = [a, b].into_iter().find(|s| s.rank() == 0) {
            return Err(Error::new("matmul", ErrorKind::Rank { want: "at least 1", got: scalar }));
        }
        if a.rank() == 1 {
            let row = self.reshape(&[1, a.last()])?.matmul_with(other, false, tb)?;
            return row.without_axis(row.shape()?.rank() - if b.rank() == 1 { 1 } else { 2 });
        }
        if b.rank() == 1 {
            let column = self.matmul_with(other.reshape(&[b.last(), 1])?, ta, false)?;
            return column.without_axis(column.shape()?.rank() - 1);
        }
        let (la, lb) = (&a.dims()[..a.rank() - 2], &b.dims()[..b.rank() - 2]);
        if lb.iter().all(|&d| d == 1) && lb.len() <= la.len() && (la.is_empty() || !ta) {
            // With one matrix on the right, all rows of the left operand are rows of one product.
            let left = if la.is_empty() { self } else { self.reshape(&[a.rows(), a.last()])? };
            let right = if lb.is_empty() { other } else { other.reshape(&b.dims()[lb.len()..])? };
            let product = self.session.apply(MatMul { ta, tb }, &[left, right])?;
            let last = product.shape()?.last();
            return match la {
                [] => Ok(product),
                _ => product.reshape(&[&a.dims()[..a.rank() - 1], &[last]].concat()),
            };
        }
        let lead = Shape::new(la)?.broadcast(&Shape::new(lb)?)?;
        let batch = lead.numel();
        let batched = |v: Var<'s>, s: Shape| -> Result<Var<'s>> {
            let matrix = &s.dims()[s.rank() - 2..];
            let whole = v.broadcast_to(Shape::new(&[lead.dims(), matrix].concat())?)?;
            whole.reshape(&[batch, matrix[0], matrix[1]])
        };
        let product = self.session.apply(Bmm { ta, tb }, &[batched(self, a)?, batched(other, b)?])?;
        let shape = product.shape()?;
        product.reshape(&[lead.dims(), &shape.dims()[1..]].concat())
    }

    /// Drops an axis of one element.
    #[track_caller]
    fn without_axis(self, axis: usize) -> Result<Var<'s>> {
        let mut dims = self.shape()?.dims().to_vec();
        dims.remove(axis);
        self.reshape(&dims)
    }

    /// Product with another batch of matrices, `(B, M, K)` by `(B, K, N)`.
    #[track_caller]
    pub fn bmm(self, other: Var<'s>) -> Result<Var<'s>> {
        self.session.apply(Bmm { ta: false, tb: false }, &[self, other])
    }

    /// `y[o] = Σ_i Σ_j a[i] W[o, i, j] b[j] + bias[o]` along the last axes of this value `a (…, left)` and of `b (…, right)`, with
    /// weights `(out, left, right)`: `(…, out)`.
    #[track_caller]
    pub fn bilinear(self, b: Var<'s>, weight: Var<'s>, bias: Option<Var<'s>>) -> Result<Var<'s>> {
        let (of, to, matrices) = (self.shape()?, b.shape()?, weight.shape()?);
        let &[outputs, left, right] = matrices.dims() else {
            return Err(Error::new("bilinear", ErrorKind::Rank { want: "exactly 3", got: matrices }));
        };
        let lead = of.rank().saturating_sub(1);
        let fits = of.rank() > 0 && of.rank() == to.rank() && of.dims()[..lead] == to.dims()[..lead];
        if !fits || of.last() != left || to.last() != right {
            let why = "the values are not (…, left) and (…, right) with one shape of leading axes";
            return Err(Error::new("bilinear", ErrorKind::Shapes { why, left: of, right: to }));
        }
        let rows = of.rows();
        // One product gives, for each row, a matrix (out, right).
        let flat = weight.permute(&[1, 0, 2])?.reshape(&[left, outputs * right])?;
        let halves = self.reshape(&[rows, left])?.matmul(flat)?.reshape(&[rows, outputs, right])?;
        let sums = halves.mul(b.reshape(&[rows, 1, right])?)?.sum_axes(&[2])?;
        let out = sums.reshape(&[&of.dims()[..lead], &[outputs]].concat())?;
        match bias {
            Some(bias) => out.add(bias),
            None => Ok(out),
        }
    }

    /// `x W^T + b` along the last axis.
    #[doc(alias = "addmm")]
    #[track_caller]
    pub fn linear(self, w: Var<'s>, b: Var<'s>) -> Result<Var<'s>> {
        self.session.apply(Linear, &[self, w, b])
    }
}
