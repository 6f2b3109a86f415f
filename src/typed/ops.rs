//! Ops whose result has another shape than their input, or that need more than an equal one.

use super::assert::{self, Sliding, unknown};
use super::{Dim, Dims, EndsIn, HasAxis, Push, Rank2, Scalar, Size, Transpose, Typed};
use crate::error::Result;
use crate::ops::loss::Reduction;
use crate::session::{AttentionOptions, Var};
use crate::shape::Shape;

macro_rules! tokens {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<const N: usize>;
    )*};
}

tokens! {
    /// An axis as an argument: `a.concat(b, Axis::<0>)`.
    Axis;
    /// The side of a square window: `x.max_pool2d(Kernel::<2>, Stride::<2>)`.
    Kernel;
    /// A stride as an argument.
    Stride;
    /// A padding as an argument.
    Padding;
}

/// Matrix products.
impl<'s, M: Dim, K: Dim> Typed<'s, (M, K)> {
    /// The product with a matrix that has as many rows as this one has columns.
    ///
    /// ```compile_fail
    /// # use dittograd::typed::Matrix;
    /// fn wrong(a: Matrix<3, 4>, b: Matrix<5, 2>) {
    ///     a.matmul(b); // expected `Typed<'_, (Size<4>, _)>`, found `Typed<'_, (Size<5>, Size<2>)>`
    /// }
    /// ```
    pub fn matmul<N: Dim>(self, other: Typed<'s, (K, N)>) -> Result<Typed<'s, (M, N)>> {
        Ok(Typed::trust(self.var.matmul(other.var)?))
    }
}

/// Batches of matrices.
impl<'s, B: Dim, M: Dim, K: Dim> Typed<'s, (B, M, K)> {
    /// The products with as many matrices, each with as many rows as these have columns.
    pub fn bmm<N: Dim>(self, other: Typed<'s, (B, K, N)>) -> Result<Typed<'s, (B, M, N)>> {
        Ok(Typed::trust(self.var.bmm(other.var)?))
    }
}

/// Queries `(batch, heads, n, d)`.
impl<'s, B: Dim, H: Dim, N: Dim, D: Dim> Typed<'s, (B, H, N, D)> {
    /// [`Var::attention`] on as many heads of keys and values.
    pub fn attention<M: Dim, V: Dim>(
        self,
        keys: Typed<'s, (B, H, M, D)>,
        values: Typed<'s, (B, H, M, V)>,
        options: AttentionOptions<'s>,
    ) -> Result<Typed<'s, (B, H, N, V)>> {
        Ok(Typed::trust(self.var.attention(keys.var, values.var, options)?))
    }
}

/// Reductions over everything, or along an axis that is dropped; and what works along an axis.
impl<'s, S: Dims> Typed<'s, S> {
    /// Sum of all elements.
    pub fn sum(self) -> Result<Scalar<'s>> {
        Ok(Typed::trust(self.var.sum()?))
    }

    /// Mean of all elements.
    pub fn mean(self) -> Result<Scalar<'s>> {
        Ok(Typed::trust(self.var.mean()?))
    }

    /// Sums along an axis.
    ///
    /// ```compile_fail
    /// # use dittograd::typed::Matrix;
    /// fn wrong(x: Matrix<3, 4>) {
    ///     x.sum_axis::<2>(); // the shape `(Size<3>, Size<4>)` has no axis 2
    /// }
    /// ```
    pub fn sum_axis<const AXIS: usize>(self) -> Result<Typed<'s, S::Without>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.sum_axes(&[AXIS])?))
    }

    /// Means along an axis.
    pub fn mean_axis<const AXIS: usize>(self) -> Result<Typed<'s, S::Without>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.mean_axes(&[AXIS])?))
    }

    /// The largest elements along an axis: [`Var::amax`].
    pub fn amax<const AXIS: usize>(self) -> Result<Typed<'s, S::Without>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.amax(&[AXIS], false)?))
    }

    /// The smallest elements along an axis: [`Var::amin`].
    pub fn amin<const AXIS: usize>(self) -> Result<Typed<'s, S::Without>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.amin(&[AXIS], false)?))
    }

    /// The places of the largest elements along an axis: [`Var::argmax`].
    pub fn argmax<const AXIS: usize>(self) -> Result<Typed<'s, S::Without, u32>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.argmax(&[AXIS], false)?))
    }

    /// `ln Σ e^x` along an axis, without overflow.
    pub fn logsumexp<const AXIS: usize>(self) -> Result<Typed<'s, S::Without>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.logsumexp(&[AXIS], false)?))
    }

    /// Softmax along the last axis.
    pub fn softmax(self) -> Result<Typed<'s, S>> {
        Ok(Typed::trust(self.var.softmax()?))
    }

    /// Logarithm of the softmax along the last axis.
    pub fn log_softmax(self) -> Result<Typed<'s, S>> {
        Ok(Typed::trust(self.var.log_softmax()?))
    }

    /// Softmax along an axis.
    pub fn softmax_axis<const AXIS: usize>(self) -> Result<Typed<'s, S>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.softmax_axis(AXIS)?))
    }

    /// Logarithm of the softmax along an axis.
    pub fn log_softmax_axis<const AXIS: usize>(self) -> Result<Typed<'s, S>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.log_softmax_axis(AXIS)?))
    }

    /// [`Var::dropout`].
    pub fn dropout(self, p: f64) -> Result<Typed<'s, S>> {
        Ok(Typed::trust(self.var.dropout(p)?))
    }

    /// The same value, through which no gradient flows.
    pub fn detach(self) -> Result<Typed<'s, S>> {
        Ok(Typed::trust(self.var.detach()?))
    }
}

/// Along the last axis.
impl<'s, S: Dims> Typed<'s, S> {
    /// `x W^T + b` along the last axis.
    pub fn linear<K: Dim, N: Dim>(
        self,
        weight: Typed<'s, (N, K)>,
        bias: Typed<'s, (N,)>,
    ) -> Result<Typed<'s, <S as EndsIn<K>>::With<N>>>
    where
        S: EndsIn<K>,
    {
        Ok(Typed::trust(self.var.linear(weight.var, bias.var)?))
    }

    /// [`Var::layer_norm`] over the last axis.
    pub fn layer_norm<K: Dim>(
        self,
        weight: Typed<'s, (K,)>,
        bias: Typed<'s, (K,)>,
        eps: f64,
    ) -> Result<Typed<'s, S>>
    where
        S: EndsIn<K>,
    {
        Ok(Typed::trust(self.var.layer_norm(1, Some(weight.var), Some(bias.var), eps)?))
    }

    /// [`Var::rms_norm`] over the last axis.
    pub fn rms_norm<K: Dim>(self, weight: Typed<'s, (K,)>, eps: f64) -> Result<Typed<'s, S>>
    where
        S: EndsIn<K>,
    {
        Ok(Typed::trust(self.var.rms_norm(1, Some(weight.var), eps)?))
    }

    /// Mean cross-entropy of logits against a label for each row.
    pub fn cross_entropy<C: Dim>(self, labels: Typed<'s, S::Lead, u32>) -> Result<Scalar<'s>>
    where
        S: EndsIn<C>,
    {
        Ok(Typed::trust(self.var.cross_entropy(labels.var)?))
    }

    /// Mean squared error against a target.
    pub fn mse(self, target: Typed<'s, S>) -> Result<Scalar<'s>> {
        Ok(Typed::trust(self.var.mse(target.var)?))
    }

    /// Mean binary cross-entropy of logits against targets from 0 to 1.
    pub fn bce_with_logits(self, target: Typed<'s, S>) -> Result<Scalar<'s>> {
        Ok(Typed::trust(self.var.bce_with_logits(target.var, Reduction::Mean)?))
    }
}

/// A table with a row for each index.
impl<'s, V: Dim, C: Dim> Typed<'s, (V, C)> {
    /// Rows of this table for indices of any shape. An index out of range is an error.
    pub fn embedding<I: Push>(self, index: Typed<'s, I, u32>) -> Result<Typed<'s, I::With<C>>> {
        Ok(Typed::trust(self.var.embedding(index.var)?))
    }
}

/// Layout.
impl<'s, S: Dims> Typed<'s, S> {
    /// The same elements under another shape of as many. One dimension of it may be dynamic: it is found out.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Matrix, Rank3, Rows, Vector};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let flat: Vector<12> = x.reshape()?;
    /// let cut = flat.reshape::<Rank3<2, 3, 2>>()?;
    /// let pairs: Rows<2> = cut.reshape()?;
    /// assert_eq!(pairs.shape()?.dims(), [6, 2]);
    /// // x.reshape::<Rank2<2, 5>>() does not compile:
    /// // reshape: [3, 4] cannot become [2, 5]: they have 12 and 10 elements
    /// # Ok(())
    /// # }
    /// ```
    pub fn reshape<T: Dims>(self) -> Result<Typed<'s, T>> {
        const { assert::same_count("reshape", S::DIMS, T::DIMS) };
        let all = self.shape()?.numel();
        let known: usize = T::DIMS.iter().flatten().product();
        let found = all.checked_div(known).unwrap_or(0);
        let dims: Vec<usize> = T::DIMS.iter().map(|d| d.unwrap_or(found)).collect();
        Ok(Typed::trust(self.var.reshape(&dims)?))
    }

    /// The value repeated to another shape by NumPy's rule: along axes of one element, and along new axes in
    /// front. All sizes of that shape are known to the compiler.
    pub fn expand<T: Dims>(self) -> Result<Typed<'s, T>> {
        const { assert::broadcasts("expand", S::DIMS, T::DIMS) };
        const { assert::all_known("expand", T::DIMS) };
        let dims: Vec<usize> = T::DIMS.iter().copied().flatten().collect();
        Ok(Typed::trust(self.var.broadcast_to(Shape::new(&dims)?)?))
    }

    /// The last two axes exchanged.
    pub fn transpose(self) -> Result<Typed<'s, S::Output>>
    where
        S: Transpose,
    {
        Ok(Typed::trust(self.var.transpose()?))
    }

    /// Elements `START..START + LEN` of an axis.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::Matrix;
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let columns: Matrix<3, 2> = x.narrow::<1, 1, 2>()?;
    /// // x.narrow::<1, 3, 2>() does not compile: narrow: elements 3..5 do not lie in axis 1 of 4
    /// # Ok(())
    /// # }
    /// ```
    pub fn narrow<const AXIS: usize, const START: usize, const LEN: usize>(
        self,
    ) -> Result<Typed<'s, S::With<Size<LEN>>>>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::range_in("narrow", AXIS, S::Dim::SIZE, START, LEN) };
        Ok(Typed::trust(self.var.narrow(AXIS, START, LEN)?))
    }

    /// Element `INDEX` of an axis, which is dropped.
    pub fn select<const AXIS: usize, const INDEX: usize>(self) -> Result<Typed<'s, S::Without>>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::index_in("select", AXIS, S::Dim::SIZE, INDEX) };
        Ok(Typed::trust(self.var.select(AXIS, INDEX)?))
    }

    /// The value followed by another along an axis. The caller names the sum of their sizes.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Axis, Matrix};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let a: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let b: Matrix<2, 4> = session.full(&[2, 4], 2.0)?.typed()?;
    /// let both: Matrix<5, 4> = a.concat(b, Axis::<0>)?;
    /// // As Matrix<6, 4> it does not compile: concat: 3 and 2 elements of axis 0 make 5, but the type says 6
    /// # Ok(())
    /// # }
    /// ```
    pub fn concat<const AXIS: usize, D: Dim, N: Dim>(
        self,
        other: Typed<'s, S::With<D>>,
        _: Axis<AXIS>,
    ) -> Result<Typed<'s, S::With<N>>>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::sum_of("concat", AXIS, S::Dim::SIZE, D::SIZE, N::SIZE) };
        Typed::trust_if(const { all([S::Dim::SIZE, D::SIZE]) }, self.var.concat(other.var, AXIS)?)
    }
}

/// Whether all sizes are known.
const fn all<const N: usize>(sizes: [Option<usize>; N]) -> bool {
    unknown(&sizes) == 0
}

macro_rules! permutes {
    ($([$($d:ident)*] $shape:ty, $($i:ident)*;)*) => {$(
        impl<'s, $($d: Dim),*> Typed<'s, $shape> {
            /// The axes in another order: those of the result, named by where they are now.
            ///
            /// `x.permute::<1, 2, 0>()` has the first axis last.
            #[allow(clippy::type_complexity)] // the new order, spelt out
            pub fn permute<$(const $i: usize),*>(self) -> Result<Typed<'s, ($(<$shape as HasAxis<$i>>::Dim,)*)>>
            where
                $($shape: HasAxis<$i>,)*
            {
                const { assert::permutation("permute", &[$($i),*]) };
                Ok(Typed::trust(self.var.permute(&[$($i),*])?))
            }
        }
    )*};
}

permutes! {
    [A B] (A, B), I J;
    [A B C] (A, B, C), I J K;
    [A B C D] (A, B, C, D), I J K L;
}

/// Images `(batch, channels, height, width)`. The caller names the height and width of results.
impl<'s, B: Dim, C: Dim, H: Dim, W: Dim> Typed<'s, (B, C, H, W)> {
    /// Convolution with a kernel `(channels out, channels in, kernel height, kernel width)`: [`Var::conv2d`].
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Padding, Rank4, Stride, Typed};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Typed<Rank4<2, 3, 9, 8>> = session.full(&[2, 3, 9, 8], 1.0)?.typed()?;
    /// let k: Typed<Rank4<5, 3, 3, 3>> = session.full(&[5, 3, 3, 3], 1.0)?.typed()?;
    /// let y: Typed<Rank4<2, 5, 5, 4>> = x.conv2d(k, None, Stride::<2>, Padding::<1>)?;
    /// // As Rank4<2, 5, 4, 4> it does not compile:
    /// // conv2d: height 9 with kernel 3, stride 2 and padding 1 becomes 5, but the type says 4
    /// # Ok(())
    /// # }
    /// ```
    pub fn conv2d<O: Dim, KH: Dim, KW: Dim, HO: Dim, WO: Dim, const S: usize, const P: usize>(
        self,
        kernel: Typed<'s, (O, C, KH, KW)>,
        bias: Option<Typed<'s, (O,)>>,
        _: Stride<S>,
        _: Padding<P>,
    ) -> Result<Typed<'s, (B, O, HO, WO)>> {
        const { windows_fit::<(H, W), (KH, KW), (HO, WO)>("conv2d", S, P) };
        let known = const { all([H::SIZE, KH::SIZE, W::SIZE, KW::SIZE]) };
        Typed::trust_if(known, self.var.conv2d(kernel.var, bias.map(Var::from), S, P)?)
    }

    /// The largest of each square window: [`Var::max_pool2d`].
    pub fn max_pool2d<HO: Dim, WO: Dim, const K: usize, const S: usize>(
        self,
        _: Kernel<K>,
        _: Stride<S>,
    ) -> Result<Typed<'s, (B, C, HO, WO)>> {
        const { windows_fit::<(H, W), Rank2<K, K>, (HO, WO)>("max_pool2d", S, 0) };
        Typed::trust_if(const { all([H::SIZE, W::SIZE]) }, self.var.max_pool2d([K; 2], S)?)
    }

    /// The mean of each square window: [`Var::avg_pool2d`].
    pub fn avg_pool2d<HO: Dim, WO: Dim, const K: usize, const S: usize>(
        self,
        _: Kernel<K>,
        _: Stride<S>,
    ) -> Result<Typed<'s, (B, C, HO, WO)>> {
        const { windows_fit::<(H, W), Rank2<K, K>, (HO, WO)>("avg_pool2d", S, 0) };
        Typed::trust_if(const { all([H::SIZE, W::SIZE]) }, self.var.avg_pool2d([K; 2], S)?)
    }
}

/// Windows that slide over an image make one of the size that is named.
#[track_caller]
pub(super) const fn windows_fit<Image: Dims, Window: Dims, Out: Dims>(
    op: &str,
    stride: usize,
    padding: usize,
) {
    let names = ["height", "width"];
    let mut i = 0;
    while i < 2 {
        let along = Sliding { size: Image::DIMS[i], kernel: Window::DIMS[i], stride, padding };
        along.gives(op, names[i], Out::DIMS[i]);
        i += 1;
    }
}
