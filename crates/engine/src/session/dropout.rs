//! Dropout of whole channels, and dropout that keeps mean and variance.

use super::Var;
use super::random::kept;
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};

/// What dropped elements become before they are brought back to mean and variance: the limit of `selu` from below, negated.
const DROPPED: f64 = 1.758_099_340_847_376_6;

impl<'s> Var<'s> {
    /// Drops whole channels of `(N, C, …)`, each with probability `p`, and scales the others by `1 / (1 - p)`: PyTorch's
    /// `dropout1d`, `dropout2d` and `dropout3d`. With `p` 1 all become 0.
    #[doc(alias("dropout1d", "dropout2d", "dropout3d", "feature_dropout"))]
    #[track_caller]
    pub fn channel_dropout(self, p: f64) -> Result<Var<'s>> {
        let _strict = environment::enter();
        let keep = kept("channel_dropout", p)?;
        let dims = self.of_channels("channel_dropout")?;
        if keep == 0.0 {
            return self.all_dropped();
        }
        self.drawing(|| {
            let mask = self.session().bernoulli(&dims, keep)?;
            self.mul(mask.scale(1.0 / keep)?)
        })
    }

    /// Dropout for networks of `selu`: elements that are dropped, each with probability `p`, become its lower limit, and
    /// all are brought back to mean 0 and variance 1. With `p` 1 all become 0.
    #[track_caller]
    pub fn alpha_dropout(self, p: f64) -> Result<Var<'s>> {
        let dims = self.shape()?.dims().to_vec();
        self.alpha_dropped("alpha_dropout", p, &dims)
    }

    /// [`Var::alpha_dropout`] of whole channels of `(N, C, …)`.
    #[track_caller]
    pub fn feature_alpha_dropout(self, p: f64) -> Result<Var<'s>> {
        let dims = self.of_channels("feature_alpha_dropout")?;
        self.alpha_dropped("feature_alpha_dropout", p, &dims)
    }

    #[track_caller]
    fn alpha_dropped(self, op: &'static str, p: f64, dims: &[usize]) -> Result<Var<'s>> {
        let _strict = environment::enter();
        let keep = kept(op, p)?;
        if keep == 0.0 {
            return self.all_dropped();
        }
        let a = 1.0 / libm::sqrt((DROPPED * DROPPED * p + 1.0) * keep);
        self.drawing(|| {
            let mask = self.session().bernoulli(dims, keep)?;
            let shift = mask.add_scalar(-1.0)?.scale(DROPPED * a)?.add_scalar(DROPPED * a * p)?;
            self.mul(mask.scale(a)?)?.add(shift)
        })
    }

    /// The dimensions of one number for each channel.
    #[track_caller]
    fn of_channels(self, op: &'static str) -> Result<Vec<usize>> {
        let shape = self.shape()?;
        if shape.rank() < 2 {
            return Err(Error::new(
                op,
                ErrorKind::Rank { want: "at least 2: images and channels", got: shape },
            ));
        }
        let mut dims = shape.dims().to_vec();
        dims[2..].fill(1);
        Ok(dims)
    }

    /// Runs `f`, which draws. After an error the count of draws is as before, so that a second try draws the same numbers.
    #[track_caller]
    fn drawing(self, f: impl FnOnce() -> Result<Var<'s>>) -> Result<Var<'s>> {
        let calls = self.session().random_calls();
        f().inspect_err(|_| self.session().seek_random(calls))
    }
}
