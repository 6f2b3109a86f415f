//! Products, attention, norms, scans, and operations along an axis.

use super::assert;
use super::{Broadcast, Dim, Dims, Element, EndsIn, HasAxis, Push, Scalar, Size, Transpose, Typed};
use crate::error::Result;
use crate::session::{AttentionOptions, Var};

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
    /// The size of a window along all axes: `x.max_pool2d(Kernel::<2>, Stride::<2>)`; a tuple of them has one for each.
    Kernel;
    /// A stride as an argument.
    Stride;
    /// A padding as an argument.
    Padding;
    /// The extra size at the end of a transposed convolution's output, as an argument.
    OutputPadding;
    /// How often something is repeated, as an argument: `x.repeat(Axis::<0>, Times::<3>)`.
    Times;
    /// A number of heads as an argument.
    Heads;
    /// A number of groups as an argument.
    Groups;
}

/// Products along the last axis.
impl<'s, S: Dims> Typed<'s, S> {
    /// The matrix product with a matrix that has as many rows as this tensor's last axis has elements.
    ///
    /// ```compile_fail
    /// # use dittograd::typed::Matrix;
    /// fn wrong(a: Matrix<3, 4>, b: Matrix<5, 2>) {
    ///     a.matmul(b); // expected `Typed<'_, (Size<4>, _)>`, found `Typed<'_, (Size<5>, Size<2>)>`
    /// }
    /// ```
    #[track_caller]
    pub fn matmul<K: Dim, N: Dim>(
        self,
        other: Typed<'s, (K, N)>,
    ) -> Result<Typed<'s, <S as EndsIn<K>>::With<N>>>
    where
        S: EndsIn<K>,
    {
        Ok(Typed::trust(self.var.matmul(other.var)?))
    }

    /// The product with a vector as long as the last axis, which is dropped. For two vectors it is a scalar.
    #[track_caller]
    pub fn mv<K: Dim>(self, vector: Typed<'s, (K,)>) -> Result<Typed<'s, S::Lead>>
    where
        S: EndsIn<K>,
    {
        Ok(Typed::trust(self.var.matmul(vector.var)?))
    }

    /// `x W^T + b` along the last axis.
    #[track_caller]
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

    /// Applies a matrix along the second-to-last axis: [`Var::axis_matmul`].
    #[allow(clippy::type_complexity)] // the last two dimensions, spelt out
    #[track_caller]
    pub fn axis_matmul<I: Dim, K: Dim, N: Dim>(
        self,
        matrix: Typed<'s, (I, K)>,
    ) -> Result<Typed<'s, <<S::Lead as EndsIn<K>>::With<I> as Push>::With<N>>>
    where
        S: EndsIn<N>,
        S::Lead: EndsIn<K>,
        <S::Lead as EndsIn<K>>::With<I>: Push,
    {
        Ok(Typed::trust(self.var.axis_matmul(matrix.var)?))
    }

    /// The sum of the diagonal of each matrix in the last two axes, which are dropped.
    #[track_caller]
    pub fn trace<M: Dim, N: Dim>(self) -> Result<Typed<'s, <S::Lead as EndsIn<M>>::Lead>>
    where
        S: EndsIn<N>,
        S::Lead: EndsIn<M>,
    {
        Ok(Typed::trust(self.var.trace()?))
    }
}

/// Batches of matrices.
impl<'s, B: Dim, M: Dim, K: Dim> Typed<'s, (B, M, K)> {
    /// Batched matrix product: each of the other matrices has as many rows as these have columns.
    #[track_caller]
    pub fn bmm<N: Dim>(self, other: Typed<'s, (B, K, N)>) -> Result<Typed<'s, (B, M, N)>> {
        Ok(Typed::trust(self.var.bmm(other.var)?))
    }

    /// The selective state space of Mamba for inputs `(batch, steps, width)`: [`Var::selective_ssm`].
    #[track_caller]
    pub fn selective_ssm<N: Dim>(
        self,
        delta: Typed<'s, (B, M, K)>,
        a: Typed<'s, (K, N)>,
        b: Typed<'s, (B, M, N)>,
        c: Typed<'s, (B, M, N)>,
    ) -> Result<Self> {
        Ok(Typed::trust(self.var.selective_ssm(delta.var, a.var, b.var, c.var)?))
    }
}

/// Queries `(batch, heads, n, d)`.
impl<'s, B: Dim, H: Dim, N: Dim, D: Dim> Typed<'s, (B, H, N, D)> {
    /// [`Var::attention`] to keys and values of as many heads, or of fewer that are shared evenly.
    #[track_caller]
    pub fn attention<G: Dim, M: Dim, V: Dim>(
        self,
        keys: Typed<'s, (B, G, M, D)>,
        values: Typed<'s, (B, G, M, V)>,
        options: AttentionOptions<'s>,
    ) -> Result<Typed<'s, (B, H, N, V)>> {
        const { assert::divides("attention", H::SIZE, "heads of queries", G::SIZE, "heads of keys") };
        Ok(Typed::trust(self.var.attention(keys.var, values.var, options)?))
    }
}

/// Packed queries, keys and values.
impl<'s, B: Dim, N: Dim, H: Dim, D: Dim> Typed<'s, (B, N, Size<3>, H, D)> {
    /// [`Var::self_attention`].
    #[track_caller]
    pub fn self_attention(self, options: AttentionOptions<'s>) -> Result<Typed<'s, (B, N, H, D)>> {
        Ok(Typed::trust(self.var.self_attention(options)?))
    }
}

/// Rows `(…, n, d)` that attend to each other.
impl<'s, S: Transpose> Typed<'s, S> {
    /// [`Var::multi_head_attention`] with the weights of queries, keys and values, whose columns are split into heads,
    /// and of the outputs.
    #[track_caller]
    pub fn multi_head_attention<D: Dim, P: Dim, O: Dim, const H: usize>(
        self,
        [wq, wk, wv]: [Typed<'s, (D, P)>; 3],
        wo: Typed<'s, (P, O)>,
        _: Heads<H>,
        options: AttentionOptions<'s>,
    ) -> Result<Typed<'s, <S as EndsIn<D>>::With<O>>>
    where
        S: EndsIn<D>,
    {
        const { assert::divides("multi_head_attention", P::SIZE, "columns", Some(H), "heads") };
        Ok(Typed::trust(self.var.multi_head_attention([wq.var, wk.var, wv.var, wo.var], H, options)?))
    }

    /// Rotary position embedding of an even number of columns: [`Var::rope`].
    #[track_caller]
    pub fn rope<D: Dim>(self, base: f64, offset: usize, interleaved: bool) -> Result<Self>
    where
        S: EndsIn<D>,
    {
        const { assert::divides("rope", D::SIZE, "columns", Some(2), "halves") };
        Ok(Typed::trust(self.var.rope(base, offset, interleaved)?))
    }
}

/// Reductions over everything.
impl<'s, S: Dims> Typed<'s, S> {
    /// Sum of all elements.
    #[track_caller]
    pub fn sum(self) -> Result<Scalar<'s>> {
        Ok(Typed::trust(self.var.sum()?))
    }

    /// Mean of all elements.
    #[track_caller]
    pub fn mean(self) -> Result<Scalar<'s>> {
        Ok(Typed::trust(self.var.mean()?))
    }

    /// Product of all elements.
    #[track_caller]
    pub fn prod(self) -> Result<Scalar<'s>> {
        Ok(Typed::trust(self.var.prod()?))
    }
}

// A row: what it is in words and in the untyped form, and what is left of the shape.
macro_rules! along_axis {
    ($(
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $type:ty),*) -> $out:ty, $e:ty, |$x:ident, $axis:ident| $value:expr;
    )*) => {
        /// Along an axis, which is kept or dropped.
        impl<'s, S: Dims> Typed<'s, S> {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name<const AXIS: usize>(self $(, $arg: $type)*) -> Result<Typed<'s, $out, $e>>
            where
                S: HasAxis<AXIS>,
            {
                let ($x, $axis): (Var<'s>, usize) = (self.var, AXIS);
                Ok(Typed::trust($value?))
            }
        )*}
    };
}

along_axis! {
    /// Sums along an axis.
    ///
    /// ```compile_fail
    /// # use dittograd::typed::Matrix;
    /// fn wrong(x: Matrix<3, 4>) {
    ///     x.sum_axis::<2>(); // the shape `(Size<3>, Size<4>)` has no axis 2
    /// }
    /// ```
    sum_axis() -> S::Without, f32, |x, axis| x.sum_axes(&[axis]);
    /// Means along an axis.
    mean_axis() -> S::Without, f32, |x, axis| x.mean_axes(&[axis]);
    /// Products along an axis: [`Var::prod_dim`].
    prod_axis() -> S::Without, f32, |x, axis| x.prod_dim(&[axis], false);
    /// The largest elements along an axis: [`Var::amax`].
    amax() -> S::Without, f32, |x, axis| x.amax(&[axis], false);
    /// The smallest elements along an axis: [`Var::amin`].
    amin() -> S::Without, f32, |x, axis| x.amin(&[axis], false);
    /// The positions of the largest elements along an axis: [`Var::argmax`].
    argmax() -> S::Without, u32, |x, axis| x.argmax(&[axis], false);
    /// The positions of the smallest elements along an axis: [`Var::argmin`].
    argmin() -> S::Without, u32, |x, axis| x.argmin(&[axis], false);
    /// `ln Σ e^x` along an axis, without overflow.
    logsumexp() -> S::Without, f32, |x, axis| x.logsumexp(&[axis], false);
    /// Variances along an axis; the divisor is the count minus `correction`: [`Var::var`].
    var(correction: usize) -> S::Without, f32, |x, axis| x.var(&[axis], correction, false);
    /// Standard deviations along an axis; the divisor is the count minus `correction`: [`Var::std`].
    std(correction: usize) -> S::Without, f32, |x, axis| x.std(&[axis], correction, false);
    /// Norms along an axis, with `p` 1, 2 or infinite: [`Var::norm`].
    norm(p: f64) -> S::Without, f32, |x, axis| x.norm(p, &[axis], false);
    /// The tensor divided by its Euclidean norm along an axis, or by `eps` if that is larger.
    normalize(eps: f64) -> S, f32, |x, axis| x.normalize(2.0, axis, eps);
    /// Softmax along an axis.
    softmax_axis() -> S, f32, |x, axis| x.softmax_axis(axis);
    /// Logarithm of the softmax along an axis.
    log_softmax_axis() -> S, f32, |x, axis| x.log_softmax_axis(axis);
    /// Cumulative sums along an axis.
    cumsum() -> S, f32, |x, axis| x.cumsum(axis);
    /// Cumulative sums without the element itself (`exclusive`), from the end (`reverse`), or both.
    cumsum_with(exclusive: bool, reverse: bool) -> S, f32, |x, axis| x.cumsum_with(axis, exclusive, reverse);
    /// Cumulative products along an axis.
    cumprod() -> S, f32, |x, axis| x.cumprod(axis);
}

/// Masks and scans.
impl<'s, S: Dims> Typed<'s, S> {
    /// `value` where the mask is not 0, otherwise this tensor.
    #[track_caller]
    pub fn masked_fill(self, mask: Typed<'s, impl Dims + Broadcast<S>>, value: f64) -> Result<Self> {
        Ok(Typed::trust(self.var.masked_fill(self.operand(mask)?, value)?))
    }

    /// Softmax along the last axis over the elements that a mask of numbers or indices allows: [`Var::masked_softmax`].
    #[track_caller]
    pub fn masked_softmax<E: Element>(self, mask: Typed<'s, impl Dims + Broadcast<S>, E>) -> Result<Self> {
        Ok(Typed::trust(self.var.masked_softmax(self.operand(mask)?)?))
    }

    /// The recurrence `h[t] = a ∘ h[t-1] + b ∘ x[t]` from `h0` along the second-to-last axis: [`Var::selective_scan`].
    /// `a` and `b` have the last axis of `x`, or its whole shape if they vary with time.
    #[track_caller]
    pub fn selective_scan<A, B, T, N>(
        self,
        a: Typed<'s, A>,
        b: Typed<'s, B>,
        h0: Typed<'s, <S::Lead as EndsIn<T>>::With<N>>,
    ) -> Result<Self>
    where
        A: Dims + Broadcast<S>,
        B: Dims + Broadcast<S>,
        T: Dim,
        N: Dim,
        S: EndsIn<N>,
        S::Lead: EndsIn<T>,
    {
        const { assert::once_or_each("selective_scan", "a", A::DIMS.len(), S::DIMS.len()) };
        const { assert::once_or_each("selective_scan", "b", B::DIMS.len(), S::DIMS.len()) };
        Ok(Typed::trust(self.var.selective_scan(a.var, b.var, h0.var)?))
    }
}

/// Norms.
impl<'s, S: Dims> Typed<'s, S> {
    /// [`Var::layer_norm`] over the last axis.
    #[track_caller]
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
    #[track_caller]
    pub fn rms_norm<K: Dim>(self, weight: Typed<'s, (K,)>, eps: f64) -> Result<Typed<'s, S>>
    where
        S: EndsIn<K>,
    {
        Ok(Typed::trust(self.var.rms_norm(1, Some(weight.var), eps)?))
    }
}

/// One number per channel of `(batch, channels, …)`.
type PerChannel<'s, S> = Typed<'s, (<S as HasAxis<1>>::Dim,)>;

/// Norms of channels `(batch, channels, …)`.
impl<'s, S: HasAxis<1>> Typed<'s, S> {
    /// [`Var::batch_norm`], for training.
    #[track_caller]
    pub fn batch_norm(
        self,
        weight: PerChannel<'s, S>,
        bias: PerChannel<'s, S>,
        eps: f64,
    ) -> Result<Typed<'s, S>> {
        Ok(Typed::trust(self.var.batch_norm(Some(weight.var), Some(bias.var), eps)?))
    }

    /// [`Var::batch_norm_eval`], with given mean and variance per channel.
    #[track_caller]
    pub fn batch_norm_eval(
        self,
        mean: PerChannel<'s, S>,
        var: PerChannel<'s, S>,
        weight: PerChannel<'s, S>,
        bias: PerChannel<'s, S>,
        eps: f64,
    ) -> Result<Typed<'s, S>> {
        let (weight, bias) = (Some(weight.var), Some(bias.var));
        Ok(Typed::trust(self.var.batch_norm_eval(mean.var, var.var, weight, bias, eps)?))
    }

    /// Mean and biased variance per channel: [`Var::moments`].
    #[track_caller]
    pub fn moments(self) -> Result<(PerChannel<'s, S>, PerChannel<'s, S>)> {
        let (mean, var) = self.var.moments()?;
        Ok((Typed::trust(mean), Typed::trust(var)))
    }

    /// [`Var::instance_norm`].
    #[track_caller]
    pub fn instance_norm(
        self,
        weight: PerChannel<'s, S>,
        bias: PerChannel<'s, S>,
        eps: f64,
    ) -> Result<Typed<'s, S>> {
        Ok(Typed::trust(self.var.instance_norm(Some(weight.var), Some(bias.var), eps)?))
    }

    /// [`Var::group_norm`] with a number of groups that divides the channels.
    #[track_caller]
    pub fn group_norm<const G: usize>(
        self,
        _: Groups<G>,
        weight: PerChannel<'s, S>,
        bias: PerChannel<'s, S>,
        eps: f64,
    ) -> Result<Typed<'s, S>> {
        const { assert::divides("group_norm", S::Dim::SIZE, "channels", Some(G), "groups") };
        Ok(Typed::trust(self.var.group_norm(G, Some(weight.var), Some(bias.var), eps)?))
    }
}

/// Fourier transforms and convolutions.
impl<'s, S: Dims> Typed<'s, S> {
    /// The Fourier transform of lines of `N` points in the last axis: `(…, N)` to `(…, N/2 + 1, 2)`, see
    /// [`Var::rfft`]. The caller names the number of modes.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Matrix, Rank3, Typed};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Matrix<3, 8> = session.full(&[3, 8], 1.0)?.typed()?;
    /// let modes: Typed<Rank3<3, 5, 2>> = x.rfft()?;
    /// let back: Matrix<3, 8> = modes.irfft()?; // with 9 points it would compile too: they have 5 modes as well
    /// // As Rank3<3, 4, 2> it does not compile: rfft: 8 points have 5 modes, but the type says 4
    /// # Ok(())
    /// # }
    /// ```
    #[allow(clippy::type_complexity)] // the last two dimensions, spelt out
    #[track_caller]
    pub fn rfft<N: Dim, M: Dim>(self) -> Result<Typed<'s, <<S as EndsIn<N>>::With<M> as Push>::With<Size<2>>>>
    where
        S: EndsIn<N>,
        <S as EndsIn<N>>::With<M>: Push,
    {
        const { assert::modes("rfft", N::SIZE, M::SIZE, true) };
        Typed::trust_if(const { N::SIZE.is_some() }, self.var.rfft()?)
    }

    /// The inverse of [`Typed::rfft`], for as many points as the caller names.
    #[track_caller]
    pub fn irfft<M: Dim, const N: usize>(self) -> Result<Typed<'s, <S::Lead as EndsIn<M>>::With<Size<N>>>>
    where
        S: EndsIn<Size<2>>,
        S::Lead: EndsIn<M>,
    {
        const { assert::modes("irfft", Some(N), M::SIZE, true) };
        Ok(Typed::trust(self.var.irfft(N)?))
    }

    /// [`Var::spectral_conv1d`] of `(…, grid, C)` with complex weights `(modes, C, O)`.
    #[track_caller]
    pub fn spectral_conv1d<G: Dim, M: Dim, C: Dim, O: Dim>(
        self,
        w_re: Typed<'s, (M, C, O)>,
        w_im: Typed<'s, (M, C, O)>,
    ) -> Result<Typed<'s, <S as EndsIn<C>>::With<O>>>
    where
        S: EndsIn<C>,
        <S as EndsIn<C>>::Lead: EndsIn<G>,
    {
        const { assert::modes("spectral_conv1d", G::SIZE, M::SIZE, false) };
        Ok(Typed::trust(self.var.spectral_conv1d(w_re.var, w_im.var)?))
    }
}

/// Values `(…, C)` on a plane.
impl<'s, B: Dim, X: Dim, Y: Dim, C: Dim> Typed<'s, (B, X, Y, C)> {
    /// [`Var::spectral_conv2d`] with complex weights `(2, modes of x, modes of y, C, O)`.
    #[track_caller]
    pub fn spectral_conv2d<MX: Dim, MY: Dim, O: Dim>(
        self,
        w_re: Typed<'s, (Size<2>, MX, MY, C, O)>,
        w_im: Typed<'s, (Size<2>, MX, MY, C, O)>,
    ) -> Result<Typed<'s, (B, X, Y, O)>> {
        const { assert::modes("spectral_conv2d", Y::SIZE, MY::SIZE, false) };
        const { assert::both_ends("spectral_conv2d", X::SIZE, MX::SIZE) };
        Ok(Typed::trust(self.var.spectral_conv2d(w_re.var, w_im.var)?))
    }
}
