//! Dropout.

use super::{Mode, Module};
use crate::error::{Error, Result};
use crate::session::Var;

/// Sets random elements to zero in training. It draws from the session's random stream, so eager and compiled steps
/// drop the same elements.
#[derive(Clone, Copy, Debug, Module)]
pub struct Dropout {
    p: f64,
    mode: Mode,
}

impl Dropout {
    /// Drops each element with probability `p`, 0 to 1.
    #[track_caller]
    pub fn new(p: f64) -> Result<Dropout> {
        match (0.0..=1.0).contains(&p) {
            true => Ok(Dropout { p, mode: Mode::Train }),
            false => Err(Error::argument("dropout", "p", format!("got {p}, use 0 to 1"))),
        }
    }

    /// Drops elements of `x` and scales the others by `1 / (1 - p)`. With probability 0 and in evaluation mode nothing is
    /// drawn, and `x` is returned.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        if self.p == 0.0 || self.mode == Mode::Eval { Ok(x) } else { x.dropout(self.p) }
    }
}

macro_rules! dropouts {
    ($($(#[$doc:meta])* $layer:ident $method:ident;)*) => {$(
        $(#[$doc])*
        #[doc = concat!("See [`Var::", stringify!($method), "`].")]
        #[derive(Clone, Copy, Debug, Module)]
        pub struct $layer {
            p: f64,
            mode: Mode,
        }

        impl $layer {
            /// Drops with probability `p`, 0 to 1.
            #[track_caller]
            pub fn new(p: f64) -> Result<$layer> {
                Dropout::new(p).map(|d| $layer { p: d.p, mode: d.mode })
            }

            /// Drops in training. With probability 0 and in evaluation mode nothing is drawn, and `x` is returned.
            #[track_caller]
            pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
                if self.p == 0.0 || self.mode == Mode::Eval { Ok(x) } else { x.$method(self.p) }
            }
        }
    )*};
}

dropouts! {
    /// Drops whole channels: PyTorch's `Dropout1d`, `Dropout2d` and `Dropout3d`.
    ChannelDropout channel_dropout;
    /// Dropout for networks of `selu`.
    AlphaDropout alpha_dropout;
    /// Dropout of whole channels for networks of `selu`.
    FeatureAlphaDropout feature_alpha_dropout;
}
