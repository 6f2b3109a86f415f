//! Convolutions and pooling. The caller names the sizes of results.

use super::assert::{self, Extent, Sliding, unknown};
use super::{Convolved, Dim, Dims, Kernel, OutputPadding, Padding, Pooled, Size, Stride, Typed};
use crate::error::Result;
use crate::ops::conv::{ConvWindow, Sizes};
use crate::session::Var;

macro_rules! per_axis {
    ($($(#[$doc:meta])* $trait:ident $token:ident;)*) => {$(
        $(#[$doc])*
        #[diagnostic::on_unimplemented(
            message = "`{Self}` gives no number for each of {N} axes",
            note = "give one for all axes, or a tuple of one for each axis, outermost first",
        )]
        pub trait $trait<const N: usize> {
            /// The number for each axis.
            const EACH: [usize; N];
        }

        impl<const ALL: usize, const N: usize> $trait<N> for $token<ALL> {
            const EACH: [usize; N] = [ALL; N];
        }

        axis_tuples! { $trait $token [] 1 A 2 B 3 C 4 D 5 E 6 F 7 G 8 H }
    )*};
}

/// Impls for tuples of tokens, one for each axis. The axes before the next one are in brackets.
macro_rules! axis_tuples {
    ($trait:ident $token:ident [$($a:ident)*]) => {};
    ($trait:ident $token:ident [$($a:ident)*] $n:literal $next:ident $($more:tt)*) => {
        impl<$(const $a: usize,)* const $next: usize> $trait<$n> for ($($token<$a>,)* $token<$next>,) {
            const EACH: [usize; $n] = [$($a,)* $next];
        }
        axis_tuples! { $trait $token [$($a)* $next] $($more)* }
    };
}

per_axis! {
    /// Kernel sizes of windows along `N` axes: [`Kernel<3>`](Kernel) along all of them, or
    /// `(Kernel<3>, Kernel<2>)`.
    Kernels Kernel;
    /// Strides along `N` axes: [`Stride<2>`](Stride) along all of them, or `(Stride<2>, Stride<1>)`.
    Strides Stride;
    /// Paddings of `N` axes: [`Padding<1>`](Padding) of all of them, or `(Padding<1>, Padding<0>)`.
    Paddings Padding;
    /// Output paddings of `N` axes: [`OutputPadding<1>`](OutputPadding) of all of them, or
    /// `(OutputPadding<1>, OutputPadding<0>)`.
    OutputPaddings OutputPadding;
}

/// The untyped form of strides and paddings.
#[track_caller]
fn window<const N: usize>(stride: [usize; N], padding: [usize; N]) -> Result<ConvWindow> {
    Ok(ConvWindow { stride: Sizes::new(&stride)?, padding: Sizes::new(&padding)?, ..ConvWindow::plain(N)? })
}

macro_rules! convolutions {
    ($(
        $(#[$doc:meta])* $conv:ident $transpose:ident $rank:literal
        [$($n:ident $k:ident $m:ident),*] $sizes:literal;
    )*) => {$(
        convolution! { [B] concat!("Signals `(batch, channels, ", $sizes, ")`.");
            $(#[$doc])* $conv $transpose $rank [$($n $k $m),*] $sizes }
        convolution! { [] concat!("One signal `(channels, ", $sizes, ")`.");
            $conv $transpose $rank [$($n $k $m),*] $sizes }
    )*};
}

macro_rules! convolution {
    (
        [$($b:ident)?] $what:expr;
        $(#[$doc:meta])* $conv:ident $transpose:ident $rank:literal
        [$($n:ident $k:ident $m:ident),*] $sizes:literal
    ) => {
        #[doc = $what]
        impl<'s, $($b: Dim,)? C: Dim, $($n: Dim),*> Typed<'s, ($($b,)? C, $($n),*)> {
            #[doc = concat!("Convolution with a kernel `(channels out, channels in, kernel ", $sizes, ")`: [`Var::",
                stringify!($conv), "`]. Stride and padding are one for all axes, or one for each.")]
            $(#[$doc])*
            #[track_caller]
            pub fn $conv<O: Dim, $($k: Dim, $m: Dim,)* S: Strides<$rank>, P: Paddings<$rank>>(
                self,
                kernel: Typed<'s, (O, C, $($k),*)>,
                bias: Option<Typed<'s, (O,)>>,
                _: S,
                _: P,
            ) -> Result<Typed<'s, ($($b,)? O, $($m),*)>> {
                const {
                    let (image, kernel, out) = ([$($n::SIZE),*], [$($k::SIZE),*], [$($m::SIZE),*]);
                    windows_fit(stringify!($conv), &image, &kernel, &S::EACH, &P::EACH, &out);
                }
                let known = const { unknown(&[$($n::SIZE, $k::SIZE),*]) == 0 };
                let window = window(S::EACH, P::EACH)?;
                Typed::trust_if(known, self.var.conv(kernel.var, bias.map(Var::from), window)?)
            }

            #[doc = concat!("Transposed convolution with a kernel `(channels in, channels out, kernel ", $sizes,
                ")`: [`Var::", stringify!($transpose), "`]. Strides and paddings are one for all axes, or one for each.")]
            #[track_caller]
            pub fn $transpose<
                O: Dim,
                $($k: Dim, $m: Dim,)*
                S: Strides<$rank>,
                P: Paddings<$rank>,
                Q: OutputPaddings<$rank>,
            >(
                self,
                kernel: Typed<'s, (C, O, $($k),*)>,
                bias: Option<Typed<'s, (O,)>>,
                _: S,
                _: P,
                _: Q,
            ) -> Result<Typed<'s, ($($b,)? O, $($m),*)>> {
                const {
                    let (image, kernel, out) = ([$($n::SIZE),*], [$($k::SIZE),*], [$($m::SIZE),*]);
                    windows_span(stringify!($transpose), &image, &kernel, &S::EACH, &P::EACH, &Q::EACH, &out);
                }
                let known = const { unknown(&[$($n::SIZE, $k::SIZE),*]) == 0 };
                let (window, bias) = (window(S::EACH, P::EACH)?, bias.map(Var::from));
                Typed::trust_if(known, self.var.conv_transpose(kernel.var, bias, window, &Q::EACH)?)
            }
        }
    };
}

convolutions! {
    conv1d conv_transpose1d 1 [L KL LO] "length";
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{OutputPadding, Padding, Rank4, Stride, Typed};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Typed<Rank4<2, 3, 9, 8>> = session.full(&[2, 3, 9, 8], 1.0)?.typed()?;
    /// let k: Typed<Rank4<5, 3, 3, 3>> = session.full(&[5, 3, 3, 3], 1.0)?.typed()?;
    /// let y: Typed<Rank4<2, 5, 5, 4>> = x.conv2d(k, None, Stride::<2>, Padding::<1>)?;
    /// // As Rank4<2, 5, 4, 4> it does not compile:
    /// // conv2d: height 9 with kernel 3, stride 2 and padding 1 becomes 5, but the type says 4
    /// let wide: Typed<Rank4<2, 5, 5, 6>> = x.conv2d(k, None, (Stride::<2>, Stride::<1>), (Padding::<1>, Padding::<0>))?;
    /// let back: Typed<Rank4<2, 3, 9, 7>> =
    ///     y.conv_transpose2d(k, None, Stride::<2>, Padding::<1>, OutputPadding::<0>)?;
    /// # Ok(())
    /// # }
    /// ```
    conv2d conv_transpose2d 2 [H KH HO, W KW WO] "height, width";
    conv3d conv_transpose3d 3 [D KD DO, H KH HO, W KW WO] "depth, height, width";
}

/// Convolutions along any number of axes.
impl<'s, X: Dims> Typed<'s, X> {
    /// Convolution of `(batch, channels, sizes…)` or `(channels, sizes…)` along up to eight axes, as many as the kernel
    /// `(channels out, channels in, kernel…)` has: [`Var::conv`].
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Padding, Rank5, Rank6, Stride, Typed};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Typed<Rank5<3, 4, 5, 4, 6>> = session.full(&[3, 4, 5, 4, 6], 1.0)?.typed()?;
    /// let k: Typed<Rank6<2, 3, 2, 2, 2, 2>> = session.full(&[2, 3, 2, 2, 2, 2], 1.0)?.typed()?;
    /// let stride = (Stride::<1>, Stride::<1>, Stride::<2>, Stride::<2>);
    /// let y: Typed<Rank5<2, 3, 4, 2, 3>> = x.conv(k, None, stride, Padding::<0>)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn conv<const N: usize, K: Dims, Y: Dims, S: Strides<N>, P: Paddings<N>>(
        self,
        kernel: Typed<'s, K>,
        bias: Option<Typed<'s, (X::Out,)>>,
        _: S,
        _: P,
    ) -> Result<Typed<'s, Y>>
    where
        X: Convolved<N, K, Y>,
    {
        const {
            let (image, kernel, out) = (last(X::DIMS, N), last(K::DIMS, N), last(Y::DIMS, N));
            windows_fit("conv", image, kernel, &S::EACH, &P::EACH, out);
        }
        let known = const { unknown(last(X::DIMS, N)) + unknown(last(K::DIMS, N)) == 0 };
        let window = window(S::EACH, P::EACH)?;
        Typed::trust_if(known, self.var.conv(kernel.var, bias.map(Var::from), window)?)
    }

    /// Transposed convolution of `(batch, channels, sizes…)` or `(channels, sizes…)` along up to eight axes, as many as
    /// the kernel `(channels in, channels out, kernel…)` has: [`Var::conv_transpose`]. It is the transpose of a
    /// convolution of `Y` with that kernel.
    #[track_caller]
    pub fn conv_transpose<
        const N: usize,
        K: Dims,
        Y: Dims + Convolved<N, K, X>,
        S: Strides<N>,
        P: Paddings<N>,
        Q: OutputPaddings<N>,
    >(
        self,
        kernel: Typed<'s, K>,
        bias: Option<Typed<'s, (Y::In,)>>,
        _: S,
        _: P,
        _: Q,
    ) -> Result<Typed<'s, Y>> {
        const {
            let (image, kernel, out) = (last(X::DIMS, N), last(K::DIMS, N), last(Y::DIMS, N));
            windows_span("conv_transpose", image, kernel, &S::EACH, &P::EACH, &Q::EACH, out);
        }
        let known = const { unknown(last(X::DIMS, N)) + unknown(last(K::DIMS, N)) == 0 };
        let (window, bias) = (window(S::EACH, P::EACH)?, bias.map(Var::from));
        Typed::trust_if(known, self.var.conv_transpose(kernel.var, bias, window, &Q::EACH)?)
    }
}

/// Pooling of the last axes, up to eight; the others are independent of each other. Images are `(batch, channels, height,
/// width)`, or `(channels, height, width)`. Kernel, stride and padding are one for all pooled axes, or one for each.
impl<'s, X: Dims> Typed<'s, X> {
    /// The largest element of each window: [`Var::max_pool`]. The kernel has a size for each pooled axis.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Kernel, Padding, Rank3, Rank4, Stride, Typed};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Typed<Rank4<3, 4, 9, 8>> = session.full(&[3, 4, 9, 8], 1.0)?.typed()?;
    /// let kernel = (Kernel::<2>, Kernel::<3>, Kernel::<2>);
    /// let y: Typed<Rank4<3, 2, 5, 4>> = x.max_pool(kernel, Stride::<2>, (Padding::<0>, Padding::<1>, Padding::<0>))?;
    /// let image: Typed<Rank3<4, 9, 8>> = x.select::<0, 0>()?;
    /// let half: Typed<Rank3<4, 4, 4>> = image.max_pool2d(Kernel::<2>, Stride::<2>)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn max_pool<const N: usize, Y: Dims, K: Kernels<N>, S: Strides<N>, P: Paddings<N>>(
        self,
        _: K,
        _: S,
        _: P,
    ) -> Result<Typed<'s, Y>>
    where
        X: Pooled<N, Y>,
    {
        const { pool_fits::<N, X, Y, K, S, P>("max_pool", false) };
        let y = self.var.max_pool(&K::EACH, &S::EACH, &P::EACH)?;
        Typed::trust_if(const { unknown(last(X::DIMS, N)) == 0 }, y)
    }

    /// The mean of each window: [`Var::avg_pool`]. The kernel has a size for each pooled axis.
    #[track_caller]
    pub fn avg_pool<const N: usize, Y: Dims, K: Kernels<N>, S: Strides<N>, P: Paddings<N>>(
        self,
        _: K,
        _: S,
        _: P,
        count_include_pad: bool,
    ) -> Result<Typed<'s, Y>>
    where
        X: Pooled<N, Y>,
    {
        const { pool_fits::<N, X, Y, K, S, P>("avg_pool", true) };
        let y = self.var.avg_pool(&K::EACH, &S::EACH, &P::EACH, count_include_pad)?;
        Typed::trust_if(const { unknown(last(X::DIMS, N)) == 0 }, y)
    }

    /// `ln(Σ e^(beta v)) / beta` of each window: [`Var::smooth_max_pool`]. The kernel has a size for each pooled axis.
    #[track_caller]
    pub fn smooth_max_pool<const N: usize, Y: Dims, K: Kernels<N>, S: Strides<N>, P: Paddings<N>>(
        self,
        _: K,
        _: S,
        _: P,
        beta: f64,
    ) -> Result<Typed<'s, Y>>
    where
        X: Pooled<N, Y>,
    {
        const { pool_fits::<N, X, Y, K, S, P>("smooth_max_pool", true) };
        let y = self.var.smooth_max_pool(&K::EACH, &S::EACH, &P::EACH, beta)?;
        Typed::trust_if(const { unknown(last(X::DIMS, N)) == 0 }, y)
    }
}

// A row: the names, the method of any number of axes, its numbers, what else it gets, and whether a window may hold padding
// only. Checks are in each method, not in one that it calls, so that the compiler points at the caller.
macro_rules! pools2d {
    ($(
        $(#[$doc:meta])*
        $pool2d:ident $padded:ident = $pool:ident($($arg:ident),*)($($fixed:literal)?), $padding_only:literal;
    )*) => {
        /// Pooling of the last two axes.
        impl<'s, X: Dims> Typed<'s, X> {$(
            $(#[$doc])*
            #[doc = concat!(" of each window: [`Var::", stringify!($pool2d), "`].")]
            #[track_caller]
            pub fn $pool2d<Y: Dims, K: Kernels<2>, S: Strides<2>>(
                self,
                _: K,
                _: S
                $(, $arg: f64)*
            ) -> Result<Typed<'s, Y>>
            where
                X: Pooled<2, Y>,
            {
                const { pool_fits::<2, X, Y, K, S, Padding<0>>(stringify!($pool2d), $padding_only) };
                let y = self.var.$pool(&K::EACH, &S::EACH, &[0; 2] $(, $arg)* $(, $fixed)?)?;
                Typed::trust_if(const { unknown(last(X::DIMS, 2)) == 0 }, y)
            }

            $(#[$doc])*
            #[doc = concat!(" of each window of a padded image: [`Var::", stringify!($padded), "`].")]
            #[track_caller]
            pub fn $padded<Y: Dims, K: Kernels<2>, S: Strides<2>, P: Paddings<2>>(
                self,
                _: K,
                _: S,
                _: P
                $(, $arg: f64)*
            ) -> Result<Typed<'s, Y>>
            where
                X: Pooled<2, Y>,
            {
                const { pool_fits::<2, X, Y, K, S, P>(stringify!($pool2d), $padding_only) };
                let y = self.var.$pool(&K::EACH, &S::EACH, &P::EACH $(, $arg)* $(, $fixed)?)?;
                Typed::trust_if(const { unknown(last(X::DIMS, 2)) == 0 }, y)
            }
        )*}
    };
}

pools2d! {
    /// The largest
    max_pool2d max_pool2d_pad = max_pool()(), false;
    /// The mean, with padding counted as zeros,
    avg_pool2d avg_pool2d_pad = avg_pool()(true), true;
    /// `ln(Σ e^(beta v)) / beta`
    smooth_max_pool2d smooth_max_pool2d_pad = smooth_max_pool(beta)(), true;
}

/// Pooling to a given size.
impl<'s, B: Dim, C: Dim, H: Dim, W: Dim> Typed<'s, (B, C, H, W)> {
    /// Average pooling to a size that the caller names and the compiler knows: [`Var::adaptive_avg_pool`].
    #[track_caller]
    pub fn adaptive_avg_pool2d<HO: Dim, WO: Dim>(self) -> Result<Typed<'s, (B, C, HO, WO)>> {
        const { assert::all_known("adaptive_avg_pool2d", &[HO::SIZE, WO::SIZE]) };
        let sizes: Vec<usize> = [HO::SIZE, WO::SIZE].into_iter().flatten().collect();
        Ok(Typed::trust(self.var.adaptive_avg_pool(&sizes)?))
    }

    /// The mean of each channel: [`Var::global_avg_pool`].
    #[track_caller]
    pub fn global_avg_pool(self) -> Result<Typed<'s, (B, C, Size<1>, Size<1>)>> {
        Ok(Typed::trust(self.var.global_avg_pool(2)?))
    }

    /// The maximum of each channel: [`Var::global_max_pool`].
    #[track_caller]
    pub fn global_max_pool(self) -> Result<Typed<'s, (B, C, Size<1>, Size<1>)>> {
        Ok(Typed::trust(self.var.global_max_pool(2)?))
    }
}

/// The last `n` of some dimensions.
const fn last(dims: &[Extent], n: usize) -> &[Extent] {
    dims.split_at(dims.len() - n).1
}

/// Sizes that are known.
pub(super) const fn given<const N: usize>(sizes: [usize; N]) -> [Extent; N] {
    let (mut all, mut i) = ([None; N], 0);
    while i < N {
        all[i] = Some(sizes[i]);
        i += 1;
    }
    all
}

/// Names of axes in messages, by how many there are.
const fn name(rank: usize, axis: usize) -> &'static str {
    const AXES: [&str; 8] = ["axis 0", "axis 1", "axis 2", "axis 3", "axis 4", "axis 5", "axis 6", "axis 7"];
    match rank {
        1 => "length",
        2 => ["height", "width"][axis],
        3 => ["depth", "height", "width"][axis],
        _ => AXES[axis],
    }
}

/// Pooling windows must give the named sizes. Unless `padding_only`, each must hold a cell that is not padding.
#[track_caller]
const fn pool_fits<const N: usize, X: Dims, Y: Dims, K: Kernels<N>, S: Strides<N>, P: Paddings<N>>(
    op: &str,
    padding_only: bool,
) {
    windows_fit(op, last(X::DIMS, N), &given(K::EACH), &S::EACH, &P::EACH, last(Y::DIMS, N));
    let mut i = 0;
    while i < N && !padding_only {
        assert::padding_in_half(op, name(N, i), P::EACH[i], K::EACH[i]);
        i += 1;
    }
}

/// Sliding windows along all axes must give the named sizes.
#[track_caller]
pub(super) const fn windows_fit(
    op: &str,
    image: &[Extent],
    kernel: &[Extent],
    stride: &[usize],
    padding: &[usize],
    out: &[Extent],
) {
    let mut i = 0;
    while i < out.len() {
        let along = Sliding { size: image[i], kernel: kernel[i], stride: stride[i], padding: padding[i] };
        along.gives(op, name(out.len(), i), out[i]);
        i += 1;
    }
}

/// Windows at all positions along all axes must cover the named sizes.
#[track_caller]
const fn windows_span(
    op: &str,
    image: &[Extent],
    kernel: &[Extent],
    stride: &[usize],
    padding: &[usize],
    more: &[usize],
    out: &[Extent],
) {
    let mut i = 0;
    while i < out.len() {
        let along = Sliding { size: image[i], kernel: kernel[i], stride: stride[i], padding: padding[i] };
        along.spans(op, name(out.len(), i), more[i], out[i]);
        i += 1;
    }
}
