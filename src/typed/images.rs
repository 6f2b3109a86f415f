//! Convolutions and pooling. The caller names the sizes of results.

use super::assert::{self, Sliding, unknown};
use super::{Dim, Dims, Kernel, OutputPadding, Padding, Rank2, Size, Stride, Typed};
use crate::error::Result;
use crate::session::Var;

macro_rules! convolutions {
    ($($(#[$doc:meta])* $conv:ident $transpose:ident [$($n:ident $k:ident $m:ident),*] $sizes:literal;)*) => {$(
        #[doc = concat!("Signals `(batch, channels, ", $sizes, ")`.")]
        impl<'s, B: Dim, C: Dim, $($n: Dim),*> Typed<'s, (B, C, $($n),*)> {
            #[doc = concat!("Convolution with a kernel `(channels out, channels in, kernel ", $sizes, ")`: [`Var::",
                stringify!($conv), "`].")]
            $(#[$doc])*
            pub fn $conv<O: Dim, $($k: Dim, $m: Dim,)* const S: usize, const P: usize>(
                self,
                kernel: Typed<'s, (O, C, $($k),*)>,
                bias: Option<Typed<'s, (O,)>>,
                _: Stride<S>,
                _: Padding<P>,
            ) -> Result<Typed<'s, (B, O, $($m),*)>> {
                const { windows_fit::<($($n,)*), ($($k,)*), ($($m,)*)>(stringify!($conv), S, P) };
                let known = const { unknown(&[$($n::SIZE, $k::SIZE),*]) == 0 };
                Typed::trust_if(known, self.var.$conv(kernel.var, bias.map(Var::from), S, P)?)
            }

            #[doc = concat!("Transposed convolution with a kernel `(channels in, channels out, kernel ", $sizes,
                ")`: [`Var::", stringify!($transpose), "`].")]
            pub fn $transpose<O: Dim, $($k: Dim, $m: Dim,)* const S: usize, const P: usize, const Q: usize>(
                self,
                kernel: Typed<'s, (C, O, $($k),*)>,
                bias: Option<Typed<'s, (O,)>>,
                _: Stride<S>,
                _: Padding<P>,
                _: OutputPadding<Q>,
            ) -> Result<Typed<'s, (B, O, $($m),*)>> {
                const { windows_span::<($($n,)*), ($($k,)*), ($($m,)*)>(stringify!($transpose), S, P, Q) };
                let known = const { unknown(&[$($n::SIZE, $k::SIZE),*]) == 0 };
                Typed::trust_if(known, self.var.$transpose(kernel.var, bias.map(Var::from), S, P, Q)?)
            }
        }
    )*};
}

convolutions! {
    conv1d conv_transpose1d [L KL LO] "length";
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
    /// let back: Typed<Rank4<2, 3, 9, 7>> =
    ///     y.conv_transpose2d(k, None, Stride::<2>, Padding::<1>, OutputPadding::<0>)?;
    /// # Ok(())
    /// # }
    /// ```
    conv2d conv_transpose2d [H KH HO, W KW WO] "height, width";
    conv3d conv_transpose3d [D KD DO, H KH HO, W KW WO] "depth, height, width";
}

macro_rules! pools {
    ($($(#[$doc:meta])* $pool:ident $padded:ident($($arg:ident),*);)*) => {
        /// Pooling of images `(batch, channels, height, width)`.
        impl<'s, B: Dim, C: Dim, H: Dim, W: Dim> Typed<'s, (B, C, H, W)> {$(
            $(#[$doc])*
            #[doc = concat!(" of each square window: [`Var::", stringify!($pool), "`].")]
            pub fn $pool<HO: Dim, WO: Dim, const K: usize, const S: usize>(
                self,
                kernel: Kernel<K>,
                stride: Stride<S>
                $(, $arg: f64)*
            ) -> Result<Typed<'s, (B, C, HO, WO)>> {
                self.$padded(kernel, stride, Padding::<0> $(, $arg)*)
            }

            $(#[$doc])*
            #[doc = concat!(" of each square window of a padded image: [`Var::", stringify!($padded), "`].")]
            pub fn $padded<HO: Dim, WO: Dim, const K: usize, const S: usize, const P: usize>(
                self,
                _: Kernel<K>,
                _: Stride<S>,
                _: Padding<P>
                $(, $arg: f64)*
            ) -> Result<Typed<'s, (B, C, HO, WO)>> {
                const { windows_fit::<(H, W), Rank2<K, K>, (HO, WO)>(stringify!($pool), S, P) };
                let known = const { unknown(&[H::SIZE, W::SIZE]) == 0 };
                Typed::trust_if(known, self.var.$padded([K; 2], S, P $(, $arg)*)?)
            }
        )*}
    };
}

pools! {
    /// The largest
    max_pool2d max_pool2d_pad();
    /// The mean
    avg_pool2d avg_pool2d_pad();
    /// `ln(Σ e^(beta v)) / beta`
    smooth_max_pool2d smooth_max_pool2d_pad(beta);
}

/// Pooling to a given size.
impl<'s, B: Dim, C: Dim, H: Dim, W: Dim> Typed<'s, (B, C, H, W)> {
    /// Average pooling to a size that the caller names and the compiler knows: [`Var::adaptive_avg_pool`].
    pub fn adaptive_avg_pool2d<HO: Dim, WO: Dim>(self) -> Result<Typed<'s, (B, C, HO, WO)>> {
        const { assert::all_known("adaptive_avg_pool2d", &[HO::SIZE, WO::SIZE]) };
        let sizes: Vec<usize> = [HO::SIZE, WO::SIZE].into_iter().flatten().collect();
        Ok(Typed::trust(self.var.adaptive_avg_pool(&sizes)?))
    }

    /// The mean of each channel: [`Var::global_avg_pool`].
    pub fn global_avg_pool(self) -> Result<Typed<'s, (B, C, Size<1>, Size<1>)>> {
        Ok(Typed::trust(self.var.global_avg_pool(2)?))
    }

    /// The maximum of each channel: [`Var::global_max_pool`].
    pub fn global_max_pool(self) -> Result<Typed<'s, (B, C, Size<1>, Size<1>)>> {
        Ok(Typed::trust(self.var.global_max_pool(2)?))
    }
}

/// Names of axes in messages, ending with the last one.
const NAMES: [&str; 3] = ["depth", "height", "width"];

const fn name(rank: usize, axis: usize) -> &'static str {
    if rank == 1 { "length" } else { NAMES[NAMES.len() - rank + axis] }
}

/// Sliding windows along all axes must give the named sizes.
#[track_caller]
pub(super) const fn windows_fit<Image: Dims, Window: Dims, Out: Dims>(
    op: &str,
    stride: usize,
    padding: usize,
) {
    let (rank, mut i) = (Out::DIMS.len(), 0);
    while i < rank {
        let along = Sliding { size: Image::DIMS[i], kernel: Window::DIMS[i], stride, padding };
        along.gives(op, name(rank, i), Out::DIMS[i]);
        i += 1;
    }
}

/// Windows at all positions along all axes must cover the named sizes.
#[track_caller]
const fn windows_span<Image: Dims, Window: Dims, Out: Dims>(
    op: &str,
    stride: usize,
    padding: usize,
    more: usize,
) {
    let (rank, mut i) = (Out::DIMS.len(), 0);
    while i < rank {
        let along = Sliding { size: Image::DIMS[i], kernel: Window::DIMS[i], stride, padding };
        along.spans(op, name(rank, i), more, Out::DIMS[i]);
        i += 1;
    }
}
