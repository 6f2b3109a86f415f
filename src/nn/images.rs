//! Layers without parameters that change the sizes of images: pools, pads, resizing, and moves between channels and
//! positions. The names are PyTorch's, without the number of axes: that is the number of sizes they are given.

use super::Module;
use crate::error::Result;
use crate::ops::{ConvWindow, PoolWindow};
use crate::session::{AvgPoolOptions, Interpolate, PadMode, Var};

/// Defines a layer with its fields, and what it computes.
macro_rules! layers {
    ($(
        $(#[$doc:meta])*
        $layer:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty),* } |$self:ident, $x:ident| $forward:expr;
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $layer {
            $($(#[$field_doc])* #[module(skip)] pub $field: $ty,)*
        }

        impl $layer {
            /// The output for an input.
            #[track_caller]
            pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
                let ($self, $x) = (self, x);
                $forward
            }
        }
    )*};
}

layers! {
    /// Max pooling: see [`Var::max_pool_with`].
    MaxPool {
        /// The windows.
        window: PoolWindow,
        /// Whether windows may end beyond the padding.
        ceil_mode: bool
    } |s, x| x.max_pool_with(s.window.clone(), s.ceil_mode);

    /// Average pooling: see [`Var::avg_pool_with`].
    AvgPool {
        /// The windows.
        window: PoolWindow,
        /// How cells are counted.
        options: AvgPoolOptions
    } |s, x| x.avg_pool_with(s.window.clone(), s.options);

    /// Pooling by a norm: see [`Var::lp_pool`].
    LpPool {
        /// The norm's exponent.
        p: f64,
        /// Cells of a window.
        kernel: Vec<usize>,
        /// Distance between windows.
        stride: Vec<usize>,
        /// Whether windows may end beyond the input.
        ceil_mode: bool
    } |s, x| x.lp_pool(s.p, &s.kernel, &s.stride, s.ceil_mode);

    /// Average pooling to given sizes: see [`Var::adaptive_avg_pool`].
    AdaptiveAvgPool {
        /// Sizes of the last axes of the output.
        sizes: Vec<usize>
    } |s, x| x.adaptive_avg_pool(&s.sizes);

    /// Max pooling to given sizes: see [`Var::adaptive_max_pool`].
    AdaptiveMaxPool {
        /// Sizes of the last axes of the output.
        sizes: Vec<usize>
    } |s, x| x.adaptive_max_pool(&s.sizes);

    /// Padding by a mode, PyTorch's `ZeroPad2d`, `ConstantPad2d`, `ReflectionPad2d`, `ReplicationPad2d` and `CircularPad2d`
    /// for any number of axes: see [`Var::pad_mode`].
    PadLayer {
        /// Two numbers for each axis, from the last one back.
        pad: Vec<i64>,
        /// What is put around.
        mode: PadMode
    } |s, x| x.pad_mode(&s.pad, s.mode);

    /// Resizing by factors: see [`Var::interpolate_by`].
    Upsample {
        /// A factor for each of the last axes.
        factors: Vec<f64>,
        /// How elements are made.
        options: Interpolate
    } |s, x| x.interpolate_by(&s.factors, s.options);

    /// Channels to positions: see [`Var::pixel_shuffle`].
    PixelShuffle {
        /// The factor of height and width.
        upscale_factor: usize
    } |s, x| x.pixel_shuffle(s.upscale_factor);

    /// Positions to channels: see [`Var::pixel_unshuffle`].
    PixelUnshuffle {
        /// The divisor of height and width.
        downscale_factor: usize
    } |s, x| x.pixel_unshuffle(s.downscale_factor);

    /// Channels of groups in turns: see [`Var::channel_shuffle`].
    ChannelShuffle {
        /// Groups.
        groups: usize
    } |s, x| x.channel_shuffle(s.groups);

    /// Patches of images: see [`Var::im2col`].
    Unfold {
        /// Sizes of a patch.
        kernel: Vec<usize>,
        /// Stride, padding and dilation.
        window: ConvWindow
    } |s, x| x.im2col(&s.kernel, s.window);

    /// Images from sums of patches: see [`Var::col2im`].
    Fold {
        /// Sizes of an image.
        sizes: Vec<usize>,
        /// Sizes of a patch.
        kernel: Vec<usize>,
        /// Stride, padding and dilation.
        window: ConvWindow
    } |s, x| x.col2im(&s.sizes, &s.kernel, s.window);

    /// Local response norm: see [`Var::local_response_norm`].
    LocalResponseNorm {
        /// Channels of a window.
        size: usize,
        /// Factor of the mean square.
        alpha: f64,
        /// Exponent.
        beta: f64,
        /// Added to the mean square.
        k: f64
    } |s, x| x.local_response_norm(s.size, s.alpha, s.beta, s.k);
}
